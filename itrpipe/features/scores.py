"""Scores of whole splits, for models that compare every region with every word and so have no embedding to keep.

`scores.h5` holds a group for each split: `scores [N, T] f4` of every image with every caption, `image_id [N]`,
`caption_id [T]` and `caption_image [T] i8`, the row of the image each caption describes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from itrpipe.errors import MissingInputError
from itrpipe.features.embeddings import as_bytes, dataset_of
from itrpipe.features.hdf5 import open_hdf5
from itrpipe.storage.disk import full_disk_as_error, reading, require_space
from itrpipe.storage.integrity import checked

SCORES = "scores.h5"


@dataclass(frozen=True)
class SplitScores:
    """Scores of one split; the part of `SplitEmbeddings` that evaluation needs.

    Attributes:
        matrix: [N, T] float32, higher is better.
        image_ids: [N] strings.
        caption_ids: [T] strings.
        caption_image: [T] int64 row of the image that each caption describes.
    """

    matrix: np.ndarray
    image_ids: np.ndarray
    caption_ids: np.ndarray
    caption_image: np.ndarray

    def scores(self) -> np.ndarray:
        """Scores [N, T] of every image with every caption; higher is better."""
        return self.matrix


def write_scores(path: Path, split: str, scores: SplitScores) -> None:
    """Adds a split to a file of scores.

    Raises:
        DiskFullError: the disk cannot hold it.
    """
    require_space(path, scores.matrix.nbytes, f"scores of {split}")
    with full_disk_as_error(path), h5py.File(path, "a") as file:
        group = file.create_group(split)
        group.create_dataset("scores", data=scores.matrix.astype("<f4"), track_times=False)
        group.create_dataset("image_id", data=as_bytes(scores.image_ids), track_times=False)
        group.create_dataset("caption_id", data=as_bytes(scores.caption_ids), track_times=False)
        group.create_dataset("caption_image", data=scores.caption_image.astype(np.int64), track_times=False)


def read_scores(path: Path, split: str) -> SplitScores:
    """Reads the scores of a split.

    Raises:
        DataError: the file is truncated or not a file of scores.
        MissingInputError: it has no such split.
    """
    with reading(path, "scores", "run `itrpipe evaluate` again"), open_hdf5(checked(path)) as file:
        if split not in file:
            raise MissingInputError(f"{path} has no split {split!r}; it has {', '.join(file)}")
        return SplitScores(
            matrix=dataset_of(file, f"{split}/scores")[:],
            image_ids=np.char.decode(dataset_of(file, f"{split}/image_id")[:], "utf-8"),
            caption_ids=np.char.decode(dataset_of(file, f"{split}/caption_id")[:], "utf-8"),
            caption_image=dataset_of(file, f"{split}/caption_image")[:],
        )
