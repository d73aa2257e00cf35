"""Further candidates: embeddings of images or captions that belong to nobody, from a file that the user names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from itrpipe.features.embeddings import Side
from itrpipe.features.given import open_side
from itrpipe.mining.vectors import Rows
from itrpipe.storage.arrays import open_arrays
from itrpipe.storage.disk import reading
from itrpipe.storage.parts import ArrayFile, array_writer

_SIDES: dict[str, Side] = {"caption_id": "caption", "texts": "caption", "captions": "caption"}
_SIDES |= {"image_id": "image", "images": "image", "caption": "caption", "image": "image"}
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
    with reading(f"--candidates {path}", "embeddings", _FORMS):
        names = [*open_arrays(path, "embeddings", _FORMS), path.stem]
        side: Side | None = next((side for name, side in _SIDES.items() if name in names), None)
        if side is None:
            raise ValueError(f"neither its name nor {', '.join(filter(None, names[:-1]))} in it say of what they are")
        found = open_side(path, side, "")
        if found.numbered:
            raise ValueError("it has no ids")
        with array_writer(copy, {_VECTOR: ("<f4", found.vectors.shape)}) as writer:
            for start, vectors, _ in found.read(unit=unit):
                writer.write(_VECTOR, start, vectors)
    return Corpus(found.side, found.ids.to_pylist(), ArrayFile(copy)[_VECTOR])
