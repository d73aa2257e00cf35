"""Small copies of a dataset's photographs, made once and kept: a JPEG for each content and size."""

from __future__ import annotations

import re
from pathlib import Path

from itrpipe.artifacts.disk import make_folder, write_bytes
from itrpipe.artifacts.integrity import checked
from itrpipe.datasets.image_check import DECODER_ERRORS
from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.prepared import IMAGES_FILE, PreparedDataset
from itrpipe.errors import DataError
from itrpipe.reporting.thumbnails import shrink

SIDES = (320, 1_280)
"""Longest sides in pixels: of a grid, and of one photograph alone."""
_DIGEST = re.compile("[0-9a-f]{64}")


class Pictures:
    """Finds photographs by their ids alone, so that no path comes from a request.

    Args:
        prepared: artifact of the dataset.
        root: folder of its photographs.
        kept: folder for the small copies.

    Raises:
        DataError: the digest of an image is none.
    """

    def __init__(self, prepared: Path, root: Path, kept: Path) -> None:
        self._root, self._kept = ImageRoot(root, prepared / IMAGES_FILE), kept
        self._files: dict[str, tuple[str, str]] = {}
        dataset = PreparedDataset.open(prepared, tokens=False)
        for split in map(dataset.split, dataset.splits):
            content = split.images["sha256"].to_pylist()
            self._files |= dict(zip(split.image_ids.tolist(), zip(split.files, content, strict=True), strict=True))
        for image_id, (_, content) in self._files.items():
            if not _DIGEST.fullmatch(content):
                raise DataError(f"{prepared / IMAGES_FILE}: image {image_id} has no digest; prepare the dataset again")

    def __contains__(self, image_id: str) -> bool:
        return image_id in self._files

    def small(self, image_id: str, side: int) -> Path | None:
        """The small copy of a known photograph; None where it cannot be read.

        Args:
            image_id: of the dataset.
            side: one of `SIDES`.
        """
        file, content = self._files[image_id]
        path = self._kept / f"{side}" / content[:2] / f"{content}.jpg"
        if not path.is_file():
            try:
                small, _ = shrink(checked(self._root.resolve(file, f"image {image_id}")), side)
            except DECODER_ERRORS:
                return None
            make_folder(path.parent)
            write_bytes(path, small)
        return path
