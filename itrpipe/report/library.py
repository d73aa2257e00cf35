"""The dataset behind the runs: its captions, photographs and, where known, its truth."""

from __future__ import annotations

from pathlib import Path

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import DataError
from itrpipe.report.chain import Artifact
from itrpipe.report.examples import Gallery
from itrpipe.report.thumbnails import Album, Picture
from itrpipe.report.truth import TrueMatches


class Library:
    """A prepared dataset, opened for a report.

    Args:
        prepare: its artifact, which exists.
        root: folder of its photographs; None when it is gone.
    """

    def __init__(self, prepare: Artifact, root: Path | None) -> None:
        self._folder = prepare.folder
        self._dataset = PreparedDataset.open(prepare.folder)
        files: dict[str, str] = {}
        for name in self._dataset.splits:
            split = self._dataset.split(name)
            files |= zip(split.image_ids.tolist(), split.files, strict=True)
        self._images = frozenset(files)
        self.album = Album(root, files)
        self._galleries: dict[str, Gallery] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that hold images: of vectors of the test split alone, that one."""
        return tuple(self._dataset.splits)

    def split(self, name: str) -> Split:
        """One split."""
        return self.gallery(name).split

    def picture(self, image_id: str, named_by: Path) -> Picture:
        """The picture of an image that an artifact names.

        Raises:
            DataError: the dataset has no such image.
        """
        if image_id not in self._images:
            raise DataError(f"{named_by} names image {image_id}, which {self._folder} does not have; evaluate again")
        return self.album.picture(image_id)

    def gallery(self, name: str) -> Gallery:
        """Captions, pictures and truth of one split."""
        if name not in self._galleries:
            split = self._dataset.split(name)
            self._galleries[name] = Gallery(split, self.album, TrueMatches.open(self._folder, split))
        return self._galleries[name]
