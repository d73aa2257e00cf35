"""Mined lists on disk: for each direction one Parquet file, every anchor with its hardest candidates.

`texts_for_images.parquet` has a row per image, `images_for_texts.parquet` a row per caption:

    anchor_id       string                     image_id or caption_id
    candidate_rows  fixed_size_list<int32>[K]  hardest first; row k of the other file is the candidate
    scores          fixed_size_list<float16>[K]
    false_negative_probability  fixed_size_list<float16>[K], 0..1, only where mining was told to guard (`--guard fne`)

The two files name each other's candidates: candidate row r of an image is row r of `images_for_texts`,
whose `anchor_id` is the caption.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.artifacts.disk import reading_error
from itrpipe.artifacts.integrity import checked
from itrpipe.errors import DataError

FILES = {"texts_for_images": "texts_for_images.parquet", "images_for_texts": "images_for_texts.parquet"}
PROBABILITY = "false_negative_probability"
PROBABILITY_OF = "false_negatives/"
"""What stands before a direction where methods are given its probabilities beside its candidates."""


@dataclass(frozen=True)
class MinedList:
    """One direction of a mining run.

    Attributes:
        anchor_ids: [A] strings.
        candidates: [A, K] int32 rows of the other direction's anchors, hardest first.
        scores: [A, K] float16.
        false_negative_probability: [A, K] float16, 0..1, or None where mining did not estimate it.
    """

    anchor_ids: np.ndarray
    candidates: np.ndarray
    scores: np.ndarray
    false_negative_probability: np.ndarray | None = None


def write_list(folder: Path, direction: str, mined: MinedList) -> None:
    """Writes one direction; `direction` is a key of `FILES`."""
    width = mined.candidates.shape[1]
    columns = {
        "anchor_id": pa.array(mined.anchor_ids.tolist(), pa.string()),
        "candidate_rows": _fixed(mined.candidates.astype(np.int32), width),
        "scores": _fixed(mined.scores.astype(np.float16), width),
    }
    if mined.false_negative_probability is not None:
        columns[PROBABILITY] = _fixed(mined.false_negative_probability.astype(np.float16), width)
    pq.write_table(pa.table(columns), folder / FILES[direction], compression="zstd")


def read_list(folder: Path, direction: str) -> MinedList:
    """Reads one direction.

    Raises:
        DataError: the file is truncated or not a mined list.
    """
    path = folder / FILES[direction]
    try:
        table = pq.read_table(checked(path))
        width = table.schema.field("candidate_rows").type.list_size
        return MinedList(
            anchor_ids=np.asarray(table["anchor_id"].to_pylist(), dtype=str),
            candidates=_matrix(table["candidate_rows"], width),
            scores=_matrix(table["scores"], width),
            false_negative_probability=_matrix(table[PROBABILITY], width)
            if PROBABILITY in table.column_names
            else None,
        )
    except (OSError, pa.ArrowException, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        damage = DataError(f"{path} cannot be read as mined lists ({reason}); run `itrpipe mine-negatives` again")
        raise reading_error(error, path, damage) from None


def _fixed(matrix: np.ndarray, width: int) -> pa.FixedSizeListArray:
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), width)


def _matrix(column: pa.ChunkedArray, width: int) -> np.ndarray:
    flat = pa.concat_arrays([chunk.flatten() for chunk in column.chunks])
    return flat.to_numpy(zero_copy_only=False).reshape(-1, width)
