"""Further candidates: embeddings of images or captions that belong to nobody, from a file that the user names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.artifacts.disk import reading_error
from itrpipe.engine.files import ArrayFile, ArrayWriter, StoredRows
from itrpipe.errors import DataError
from itrpipe.features.embeddings import Side
from itrpipe.features.hdf5 import open_hdf5
from itrpipe.mining.settings import candidate_files
from itrpipe.mining.vectors import Rows, rows_at_once, slices

SIDES: dict[str, Side] = {"images": "image", "image": "image", "captions": "caption", "texts": "caption"}
VECTOR = "embedding"
_FORMS = (
    "give a Parquet file, or a folder of them, with the columns image_id or caption_id and embedding; or images.npy or "
    "captions.npy with the ids in images.ids.json or captions.ids.json beside it; or an HDF5 file with image_id and "
    "images, or caption_id and texts"
)


@dataclass(frozen=True)
class Corpus:
    """Further candidates of one side.

    Attributes:
        side: of which they are.
        ids: M strings.
        rows: [M, D] float32.
    """

    side: Side
    ids: list[str]
    rows: Rows


def open_corpus(path: Path, copy: Path) -> Corpus:
    """Reads further candidates.

    Args:
        path: what the user named.
        copy: file for the vectors where they cannot be read a slice at a time as they lie.

    Raises:
        DataError: it is of no known form, or damaged.
    """
    try:
        if path.is_dir() or path.suffix == ".parquet":
            return _parquet(path, copy)
        if path.suffix == ".npy":
            return _numpy(path)
        with open_hdf5(path) as file:
            return _hdf5(path, file, copy)
    except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        damage = DataError(f"--candidates {path} cannot be read ({reason}); {_FORMS}")
        raise reading_error(error, path, damage) from None


def _parquet(path: Path, copy: Path) -> Corpus:
    files = [pq.ParquetFile(each) for each in candidate_files(path)]
    names = files[0].schema_arrow.names if files else []
    column = next((name for name in ("caption_id", "image_id") if name in names), None)
    if column is None or VECTOR not in names:
        raise ValueError(f"it has the columns {', '.join(names) or 'of no Parquet file'}")
    ids = [each for file in files for each in file.read([column])[column].to_pylist()]
    first = next(_vectors(files[0]))
    _copy(copy, (len(ids), first.shape[1]), (block for file in files for block in _vectors(file)))
    return Corpus("caption" if column == "caption_id" else "image", ids, _stored(copy))


def _vectors(file: pq.ParquetFile) -> Iterator[np.ndarray]:
    for batch in file.iter_batches(16_384, columns=[VECTOR]):
        column: Any = batch.column(0)
        yield column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _numpy(path: Path) -> Corpus:
    side = SIDES.get(path.stem)
    if side is None:
        raise ValueError("its name does not say what it holds")
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if array.ndim != 2 or array.dtype != np.dtype("<f4") or not array.flags.c_contiguous:
        raise ValueError(f"it holds {array.dtype} {array.shape} and not float32 [rows, D]")
    ids = json.loads(path.with_suffix(".ids.json").read_bytes())
    return _checked(side, ids, StoredRows(path.absolute(), array.offset, "<f4", array.shape))


def _hdf5(path: Path, file: h5py.File, copy: Path) -> Corpus:
    for name in ("texts", "images"):
        if name in file:
            side = SIDES[name]
            vectors: Any = file[name]
            pieces = slices(len(vectors), rows_at_once(vectors))
            _copy(copy, vectors.shape, (vectors[piece] for piece in pieces))
            ids: Any = file[f"{side}_id"]
            return _checked(side, [each.decode() for each in ids[:]], _stored(copy))
    raise ValueError(f"it has {', '.join(file)}")


def _checked(side: Side, ids: Any, rows: StoredRows) -> Corpus:
    if not isinstance(ids, list) or len(ids) != rows.shape[0]:
        raise ValueError(f"it has {rows.shape[0]:,} vectors and another number of ids")
    return Corpus(side, [str(each) for each in ids], rows)


def _copy(path: Path, shape: tuple[int, ...], blocks: Iterator[np.ndarray]) -> None:
    if len(shape) != 2:
        raise ValueError(f"its vectors have shape {shape} and not [rows, D]")
    start = 0
    with ArrayWriter(path, {VECTOR: ("<f4", shape)}) as writer:
        for block in blocks:
            if block.shape[1:] != shape[1:] or start + len(block) > shape[0]:
                raise ValueError("its vectors are not all of one length")
            writer.write(VECTOR, start, block)
            start += len(block)
    if start != shape[0]:
        raise ValueError(f"it has {start:,} vectors for {shape[0]:,} ids")


def _stored(copy: Path) -> StoredRows:

    return ArrayFile(copy).stored(VECTOR)
