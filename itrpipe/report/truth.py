"""Looks up whether a caption is true of an image, where a dataset knows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.truth import read_truth


class TrueMatches:
    """All true pairs of one split.

    Args:
        true_images: for each caption the rows of the images it is true of.
        images: number of images.
    """

    def __init__(self, true_images: list[np.ndarray], images: int) -> None:
        self._images = images
        captions = np.repeat(np.arange(len(true_images)), [len(rows) for rows in true_images])
        self._pairs = captions * images + np.concatenate(true_images)

    @classmethod
    def open(cls, prepare_folder: Path, split: Split) -> TrueMatches | None:
        """Reads them; None where only own images are known to match."""
        found = read_truth(prepare_folder, split.image_ids, split.caption_ids)
        return None if found is None else cls(found, len(split.image_ids))

    def contains(self, captions: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Whether caption rows are true of image rows; the two broadcast, the result has their common shape."""
        return np.isin(np.asarray(captions, dtype=np.int64) * self._images + images, self._pairs)
