"""Which images each caption is true of, where that is known: the file `truth.parquet` of a prepared dataset.

Only the embedded dataset `scenes` has it. Every other dataset takes a caption's own image for the only true
one, which is what makes its false negatives invisible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from itrpipe.datasets.pairs import PairSet
from itrpipe.errors import DataError
from itrpipe.storage.disk import reading_error
from itrpipe.storage.integrity import checked

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import Split

TRUTH_FILE = "truth.parquet"


def write_truth(folder: Path, true_images: Mapping[str, Sequence[str]]) -> None:
    """Writes the file.

    Args:
        folder: the prepared dataset.
        true_images: caption_id -> ids of all images of the same split that the caption describes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "caption_id": pa.array(list(true_images), pa.string()),
        "true_image_ids": pa.array([list(ids) for ids in true_images.values()], pa.list_(pa.string())),
    }
    pq.write_table(pa.table(columns), folder / TRUTH_FILE)


def read_truth(folder: Path, image_ids: np.ndarray, caption_ids: np.ndarray) -> list[np.ndarray] | None:
    """Reads the true images of some captions.

    Args:
        folder: the prepared dataset.
        image_ids: [N] images, whose rows are returned.
        caption_ids: [T] captions.

    Returns:
        For each caption the ascending rows of its true images, or None when the dataset has no such file.

    Raises:
        DataError: the file is damaged or lacks a caption.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / TRUTH_FILE
    if not path.exists():
        return None
    row_of = {image_id: row for row, image_id in enumerate(image_ids.tolist())}
    try:
        table = pq.read_table(checked(path))
        known = dict(zip(table["caption_id"].to_pylist(), table["true_image_ids"].to_pylist(), strict=True))
        return [
            np.array(sorted(row_of[image_id] for image_id in known[caption_id]), dtype=np.int64)
            for caption_id in caption_ids.tolist()
        ]
    except (OSError, pa.ArrowException, KeyError) as error:
        reason = " ".join(str(error).split())
        damage = DataError(f"{path} is damaged or of another dataset ({reason}); run `itrpipe prepare` again")
        raise reading_error(error, path, damage) from None


def known_matches(folder: Path, split: Split) -> dict[str, np.ndarray] | None:
    """The true matches of a split as lists, -1 behind the last of each.

    Args:
        folder: the prepared dataset.
        split: of it.

    Returns:
        `texts_for_images` [N, K] caption rows and `images_for_texts` [T, L] image rows, or None where the dataset does
        not know them.

    Raises:
        DataError: see `read_truth`.
    """
    images = read_truth(folder, split.image_ids, split.caption_ids)
    if images is None:
        return None
    captions = np.repeat(np.arange(len(images)), [len(each) for each in images])
    return PairSet.of(captions, np.concatenate(images), len(split.image_ids)).lists(len(images))
