"""Mined lists on disk.

There is one Parquet file for each direction, every anchor with its hardest candidates. `texts_for_images.parquet` has a
row per image, `images_for_texts.parquet` a row per caption:

    anchor_id       string                     image_id or caption_id
    candidate_rows  fixed_size_list<int32>[K]  hardest first; row k of the other file is the candidate; int64 where
                                               there are more than 2^31 of them
    scores          fixed_size_list<float16>[K]
    false_negative_probability  fixed_size_list<float16>[K], 0..1, only where mining was told to guard (`--guard fne`)

The two files name each other's candidates: candidate row r of an image is row r of `images_for_texts`,
whose `anchor_id` is the caption.

Shapes: A anchors with lists, K candidates of each.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.storage.disk import on_disk, reading

FILES = {"texts_for_images": "texts_for_images.parquet", "images_for_texts": "images_for_texts.parquet"}
PROBABILITY = "false_negative_probability"
_ANCHORS_AT_ONCE = 8_192


@dataclass(frozen=True)
class MinedList:
    """One direction of a mining run.

    Attributes:
        anchor_ids: [A] strings.
        candidates: [A, K] int32 or int64 rows of the other direction's anchors, hardest first.
        scores: [A, K] float16.
        false_negative_probability: [A, K] float16, 0..1, or None where mining did not estimate it.
    """

    anchor_ids: np.ndarray
    candidates: np.ndarray
    scores: np.ndarray
    false_negative_probability: np.ndarray | None = None


class ListWriter(AbstractContextManager["ListWriter"]):
    """Writes one direction, some anchors at a time, each time as a row group.

    Args:
        folder: that the file is written to.
        direction: a key of `FILES`.
        width: K.
        guarded: whether each candidate has a probability to be a false negative.
        wide: rows of the other side need 64 bits.
    """

    def __init__(self, folder: Path, direction: str, width: int, *, guarded: bool = False, wide: bool = False) -> None:
        self._path, self._width = folder / FILES[direction], width
        fields = [("anchor_id", pa.string()), ("candidate_rows", pa.list_(pa.int64() if wide else pa.int32(), width))]
        fields += [(name, pa.list_(pa.float16(), width)) for name in ("scores", *((PROBABILITY,) if guarded else ()))]
        self._schema = pa.schema(fields)
        self._writer = pq.ParquetWriter(self._path, self._schema, compression="zstd")

    def write(
        self, anchor_ids: list[str], candidates: np.ndarray, scores: np.ndarray, probability: np.ndarray | None = None
    ) -> None:
        """Writes the next anchors; see `MinedList`.

        Raises:
            DiskFullError: no space is left.
        """
        columns: list[pa.Array] = [pa.array(anchor_ids, pa.string())]
        for values, field in zip((candidates, scores, probability), list(self._schema)[1:], strict=False):
            assert values is not None
            values = pa.array(values.reshape(-1), field.type.value_type)
            columns.append(pa.FixedSizeListArray.from_arrays(values, self._width))
        table = pa.Table.from_arrays(columns, schema=self._schema)
        with on_disk(self._path):
            self._writer.write_table(table, row_group_size=max(1, len(table)))

    def __exit__(self, *exception: object) -> None:
        with on_disk(self._path):
            self._writer.close()


def read_list(folder: Path, direction: str, most: int | None = None) -> MinedList:
    """Reads one direction, some anchors at a time.

    Args:
        folder: holds the file.
        direction: a key of `FILES`.
        most: candidates of each anchor to keep, the hardest; None keeps all.

    Raises:
        DataError: the file is truncated or not a mined list.
    """
    path = folder / FILES[direction]
    with (
        reading(path, "mined lists", "run `itrpipe mine-negatives` again"),
        pq.ParquetFile(path) as file,
    ):
        width = file.schema_arrow.field("candidate_rows").type.list_size

        def column(name: str) -> np.ndarray:
            batches = (batch[0] for batch in file.iter_batches(_ANCHORS_AT_ONCE, columns=[name]))
            tables = (each.flatten().to_numpy(zero_copy_only=False).reshape(-1, width) for each in batches)
            return np.concatenate([each[:, :most].copy() for each in tables])  # what is cut off does not stay in memory

        ids = np.asarray(file.read(["anchor_id"])["anchor_id"].to_pylist(), dtype=str)
        chances = column(PROBABILITY) if PROBABILITY in file.schema_arrow.names else None
        return MinedList(ids, column("candidate_rows"), column("scores"), chances)
