"""Small copies of photographs inside the page, so that it opens anywhere."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from itrpipe.datasets.pictures import DECODER_ERRORS, open_picture, picture_rgb, read_image
from itrpipe.storage.integrity import checked

LONGEST_SIDE = 288
"""Pixels: sharp at the 144 CSS pixels of a dense display, and large enough to be opened."""
_QUALITY = 66


@dataclass(frozen=True)
class Picture:
    """A photograph as the page shows it.

    Attributes:
        image_id: of the dataset.
        source: data URI; None when the photograph cannot be read, and a placeholder with its name is shown.
        width, height: pixels of the small copy.
    """

    image_id: str
    source: str | None
    width: int = LONGEST_SIDE
    height: int = LONGEST_SIDE


class Album:
    """Makes pictures of a dataset and remembers which photographs could not be read.

    Args:
        root: folder that the files are relative to; None when it is gone.
        files: image_id -> file.
    """

    def __init__(self, root: Path | None, files: Mapping[str, str]) -> None:
        self._root, self._files = root, files
        self._made: dict[str, Picture] = {}
        self.problems: list[str] = []

    def picture(self, image_id: str) -> Picture:
        """A small copy, or a placeholder.

        Raises:
            DataError: the picture is a file of an artifact and damaged.
        """
        if image_id not in self._made:
            self._made[image_id] = self._make(image_id)
        return self._made[image_id]

    def _make(self, image_id: str) -> Picture:
        if self._root is None:
            return Picture(image_id, None)
        path = checked(self._root / self._files[image_id])
        try:
            content, (width, height) = shrink(read_image(path))
        except DECODER_ERRORS as error:
            self.problems.append(f"{path}: {' '.join(str(error).split())}")
            return Picture(image_id, None)
        return Picture(image_id, f"data:image/jpeg;base64,{base64.b64encode(content).decode()}", width, height)


def shrink(content: bytes, longest_side: int = LONGEST_SIDE) -> tuple[bytes, tuple[int, int]]:
    """Decodes a photograph and encodes it as a small JPEG, upright and without metadata.

    Args:
        content: bytes of its file.
        longest_side: pixels of the copy at most; smaller photographs stay as large as they are.

    Returns:
        The bytes, and width and height.
    """
    from PIL import Image

    with open_picture(content) as image:
        image.draft("RGB", (2 * longest_side, 2 * longest_side))  # a JPEG is decoded at about the size that is needed
        small = Image.fromarray(picture_rgb(image))
    small.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return buffer.getvalue(), small.size
