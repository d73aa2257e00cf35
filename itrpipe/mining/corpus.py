"""Further candidates: embeddings of images or captions that belong to nobody, from a file that the user names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.errors import DataError
from itrpipe.features.embeddings import Side
from itrpipe.features.given import ONE, checked_vectors
from itrpipe.features.given_files import Side as GivenSideName
from itrpipe.features.given_files import open_side
from itrpipe.features.hdf5 import open_hdf5
from itrpipe.mining.settings import candidate_files
from itrpipe.mining.vectors import Rows
from itrpipe.storage.disk import reading_error
from itrpipe.storage.parts import ArrayFile, ArrayWriter

_SIDES: dict[str, GivenSideName] = {"image": "images", "images": "images"}
_SIDES |= {"caption": "captions", "captions": "captions", "texts": "captions"}
_VECTOR = "embedding"
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


def open_corpus(path: Path, copy: Path, *, unit: bool = False) -> Corpus:
    """Reads further candidates.

    Args:
        path: what the user named.
        copy: file for the vectors.
        unit: make them unit vectors where they are not.

    Raises:
        DataError: it is of no known form, or damaged.
    """
    try:
        found = open_side(path, _side_of(path), "")
        if found.ids is None:
            raise ValueError("it has no ids")
        with ArrayWriter(copy, {_VECTOR: ("<f4", found.shape)}) as writer:
            start = 0
            for block in found.read():
                writer.write(_VECTOR, start, checked_vectors(block, path, start, unit=unit)[0])
                start += len(block)
    except DataError as error:
        raise DataError(f"--candidates {error}") from None
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        damage = DataError(f"--candidates {path} cannot be read ({reason}); {_FORMS}")
        raise reading_error(error, path, damage) from None
    return Corpus(ONE[found.side], found.ids.to_pylist(), ArrayFile(copy).stored(_VECTOR))


def _side_of(path: Path) -> GivenSideName:
    """Whether a file holds images or captions, as its columns, its name or its datasets say."""
    if path.is_dir() or path.suffix == ".parquet":
        files = candidate_files(path)
        names = pq.read_schema(files[0]).names if files else []
        for column in ("caption_id", "image_id"):
            if column in names:
                return _SIDES[column.removesuffix("_id")]
        raise ValueError(f"it has the columns {', '.join(names) or 'of no Parquet file'}")
    if path.suffix == ".npy":
        if path.stem not in _SIDES:
            raise ValueError("its name does not say what it holds")
        return _SIDES[path.stem]
    with open_hdf5(path) as file:
        for name in ("texts", "images"):
            if name in file:
                return _SIDES[name]
        raise ValueError(f"it has {', '.join(file)}")
