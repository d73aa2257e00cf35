"""Small copies of photographs, made once and kept: a JPEG for each content and size."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from itrpipe.datasets.paths import ImageRoot
from itrpipe.datasets.pictures import DECODER_ERRORS, read_image, refusal
from itrpipe.datasets.prepared import IMAGES_FILE, PreparedDataset
from itrpipe.errors import DataError
from itrpipe.report.pictures import shrink
from itrpipe.retrieval.photo_folder import PhotoFile
from itrpipe.storage.disk import make_folder, write_bytes

SIDES = (320, 1_280)
"""Longest sides in pixels: of a grid, and of one photograph alone."""
Digest = Callable[[str, Path, bytes], str]
"""What tells the content of a file from any other: of its path below the root, its path, and its bytes."""
_DIGEST = re.compile("[0-9a-f]{64}")


class Pictures:
    """Finds photographs by their ids alone, so that no path comes from a request.

    Args:
        files: id -> path below the root, and the digest of the photograph that is meant: 64 hexadecimal digits.
        digest: makes it of a file.
        root: folder of the photographs.
        kept: folder for the small copies.
        source: the file that names the photographs, for errors.

    Raises:
        DataError: the digest of an image is none.
    """

    def __init__(
        self, files: Mapping[str, tuple[str, str]], digest: Digest, root: Path, kept: Path, source: Path
    ) -> None:
        self._root, self._kept, self._files, self._digest = ImageRoot(root, source), kept, files, digest
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
        return cls(files, lambda file, path, read: hashlib.sha256(read).hexdigest(), root, kept, prepared / IMAGES_FILE)

    @classmethod
    def of_folder(cls, photographs: Sequence[PhotoFile], root: Path, kept: Path) -> Pictures:
        """Those of an indexed folder: another size or time of a file is another photograph."""
        files = {each.file: (each.file, _told(each)) for each in photographs}
        return cls(files, lambda file, path, read: _told(PhotoFile.of(file, path.stat())), root, kept, root)

    def __contains__(self, image_id: str) -> bool:
        return image_id in self._files

    def digest(self, image_id: str) -> str:
        """What tells the content of a known photograph from any other."""
        return self._files[image_id][1]

    def small(self, image_id: str, side: int) -> bytes:
        """JPEG of the small copy of a known photograph.

        Args:
            image_id: of the dataset.
            side: one of `SIDES`.

        Raises:
            DataError: it cannot be read, or is another one by now.
        """
        file, content = self._files[image_id]
        kept = self._kept / f"{side}" / content[:2] / f"{content}.jpg"
        try:
            return kept.read_bytes()
        except FileNotFoundError:
            pass
        try:
            path = self._root.resolve(file, f"image {image_id}")
            read = read_image(path)
            if self._digest(file, path, read) != content:
                raise DataError("has changed since `prepare` or `index`; run that again")
            small, _ = shrink(read, side)
        except DECODER_ERRORS as error:
            raise DataError(f"image {image_id} {refusal(error)}") from None
        make_folder(kept.parent)
        write_bytes(kept, small)
        return small


def _told(photograph: PhotoFile) -> str:
    return hashlib.sha256("\0".join(map(str, photograph)).encode()).hexdigest()
