"""Small copies of photographs, made once and kept: a JPEG for each content and size."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from itrpipe.artifacts.disk import make_folder, write_bytes
from itrpipe.artifacts.integrity import checked
from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.photo_folder import PhotoFile
from itrpipe.datasets.pictures import DECODER_ERRORS
from itrpipe.datasets.prepared import IMAGES_FILE, PreparedDataset
from itrpipe.errors import DataError
from itrpipe.reporting.thumbnails import shrink

SIDES = (320, 1_280)
"""Longest sides in pixels: of a grid, and of one photograph alone."""
AT_ONCE = 2
"""Photographs that are decoded at a time; the same one never twice."""
_DIGEST = re.compile("[0-9a-f]{64}")


class Pictures:
    """Finds photographs by their ids alone, so that no path comes from a request.

    Args:
        files: id -> path below the root, and what tells its content from any other: 64 hexadecimal digits.
        root: folder of the photographs.
        kept: folder for the small copies.
        source: the file that names the photographs, for errors.

    Raises:
        DataError: the digest of an image is none.
    """

    def __init__(self, files: Mapping[str, tuple[str, str]], root: Path, kept: Path, source: Path) -> None:
        self._root, self._kept, self._files = ImageRoot(root, source), kept, files
        self._making = [threading.Lock() for _ in range(AT_ONCE)]
        for image_id, (_, content) in files.items():
            if not _DIGEST.fullmatch(content):
                raise DataError(f"{source}: image {image_id} has no digest; prepare the dataset again")

    @classmethod
    def of_dataset(cls, prepared: Path, root: Path, kept: Path) -> Pictures:
        """Those of a prepared dataset.

        Args:
            prepared: artifact of the dataset.
            root: folder of its photographs.
            kept: folder for the small copies.
        """
        files: dict[str, tuple[str, str]] = {}
        dataset = PreparedDataset.open(prepared, tokens=False)
        for split in map(dataset.split, dataset.splits):
            content = split.images["sha256"].to_pylist()
            files |= dict(zip(split.image_ids.tolist(), zip(split.files, content, strict=True), strict=True))
        return cls(files, root, kept, prepared / IMAGES_FILE)

    @classmethod
    def of_folder(cls, photographs: Sequence[PhotoFile], root: Path, kept: Path) -> Pictures:
        """Those of an indexed folder: another size or time of a file is another photograph."""
        files = {
            each.file: (each.file, hashlib.sha256("\0".join(map(str, each)).encode()).hexdigest())
            for each in photographs
        }
        return cls(files, root, kept, root)

    def __contains__(self, image_id: str) -> bool:
        return image_id in self._files

    def digest(self, image_id: str) -> str:
        """What tells the content of a known photograph from any other."""
        return self._files[image_id][1]

    def small(self, image_id: str, side: int) -> bytes | None:
        """JPEG of the small copy of a known photograph; None where it cannot be read.

        Args:
            image_id: of the dataset.
            side: one of `SIDES`.
        """
        file, content = self._files[image_id]
        path = self._kept / f"{side}" / content[:2] / f"{content}.jpg"
        if (found := _read(path)) is not None:
            return found
        with self._making[int(content, 16) % AT_ONCE]:
            return _read(path) or self._made(file, image_id, path, side)

    def _made(self, file: str, image_id: str, path: Path, side: int) -> bytes | None:
        try:
            small, _ = shrink(checked(self._root.resolve(file, f"image {image_id}")), side)
        except DECODER_ERRORS:
            return None
        make_folder(path.parent)
        write_bytes(path, small)
        return small


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
