"""Embeddings of the photographs of a folder, as an index keeps them.

Shapes: N photographs, D embedding width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.datasets.pictures import DECODER_ERRORS, open_picture, upright_size
from itrpipe.engine.work import Part, Work, cut, resolve_device
from itrpipe.errors import DataError
from itrpipe.search.photos import PhotoFile, no_embeddings
from itrpipe.storage.disk import on_disk, require_space
from itrpipe.storage.integrity import checked
from itrpipe.storage.parts import ArrayFile, write_arrays

if TYPE_CHECKING:
    from itrpipe.search.model import RetrievalModel

PHOTOS, EMBEDDINGS = "photos.parquet", "embeddings.npy"
_BLOCK = 4_096


class Rows(NamedTuple):
    """Photographs with their embeddings, mapped: of an index, or of a part of one that is being made.

    Attributes:
        photographs: N of them.
        vectors: [N, D] float32.
        sizes: [N, 2] int32, width and height in pixels.
    """

    photographs: list[PhotoFile]
    vectors: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of_index(cls, folder: Path) -> Rows:
        """Those of a whole index.

        Raises:
            DataError: a file of it is damaged.
        """
        table = pq.read_table(checked(folder / PHOTOS))
        photographs = [
            PhotoFile(*each) for each in zip(*(table[name].to_pylist() for name in PhotoFile._fields), strict=True)
        ]
        sizes = np.stack([table[name].to_numpy() for name in ("width", "height")], axis=1)
        return cls(photographs, np.load(checked(folder / EMBEDDINGS), mmap_mode="r", allow_pickle=False), sizes)

    @classmethod
    def of_part(cls, path: Path) -> tuple[Rows, dict[str, str]]:
        """Those of a part, and path -> reason of the photographs that could not be used."""
        file = ArrayFile(path)
        vectors, sizes = (file[name].mapped("r") for name in ("vectors", "sizes"))
        return cls([PhotoFile(*each) for each in file.facts["photographs"]], vectors, sizes), file.facts["failed"]


class Encoding(Work["RetrievalModel"]):
    """Embeds photographs; a part is some of them in the order of their paths.

    Args:
        folder: of the photographs.
        photographs: which are encoded.
        model: folder of the model.
        digest: of it.
        device: `auto`, `cpu` or `cuda`.
        batch: photographs per forward pass.
        block: photographs per part.
    """

    title, unit = "encoding", "photographs"

    def __init__(
        self,
        folder: Path,
        photographs: Sequence[PhotoFile],
        model: Path,
        digest: str,
        *,
        device: str,
        batch: int,
        block: int,
    ) -> None:
        self._folder, self._photographs, self._model = folder, photographs, model
        self.device, self._batch, self._block = device, batch, block
        listed = "\n".join(f"{each.file}\0{each.bytes}\0{each.changed}" for each in photographs)
        self.key = hashlib.sha256(f"{digest}\n{block}\n{listed}".encode()).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        """Each worker is told of the photographs of its parts alone."""
        return {name: value for name, value in self.__dict__.items() if name != "_photographs"}

    def parts(self) -> list[Part]:
        """Photographs, some at a time."""
        return cut(self._photographs, self._block)

    def open(self) -> RetrievalModel:
        """The model.

        Raises:
            UsageError: it has no embeddings.
        """
        from itrpipe.search.opening import load

        opened = load(self._model, device=resolve_device(self.device))
        if not opened.embeds:
            raise no_embeddings(opened.label)
        return opened

    def make(self, worker: RetrievalModel, part: Part, path: Path) -> None:
        """Encodes some photographs; those that cannot be used are listed with the reason.

        Raises:
            UsageError: the model reads features that were imported.
            UnavailableError: the disk does not answer.
            DataError: an embedding is not finite.
        """
        photographs: Sequence[PhotoFile] = part.content
        files, failed = [self._folder / each.file for each in photographs], {}
        vectors = worker.encode_images(files, self._batch, refused=failed.__setitem__)
        usable = [row for row in range(len(photographs)) if row not in failed]
        if bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
            raise DataError(f"{worker.label} embeds {files[usable[bad[0]]]} as NaN or infinity; name another model")
        sizes = np.array([_size(files[row]) for row in usable], dtype=np.int32).reshape(-1, 2)
        facts = {
            "photographs": [photographs[row] for row in usable],
            "failed": {photographs[row].file: reason for row, reason in failed.items()},
        }
        write_arrays(path, {"vectors": vectors, "sizes": sizes}, facts)


def _size(path: Path) -> tuple[int, int]:
    """Width and height in pixels as a viewer shows it, from the header; 0 of a file that is gone by now."""
    try:
        with open_picture(path.read_bytes()) as image:
            return upright_size(image)
    except DECODER_ERRORS:
        return 0, 0


def places_of(sources: Sequence[Rows]) -> dict[PhotoFile, tuple[int, int]]:
    """Photograph -> source and row; one that has another size or time is another photograph."""
    return {each: (number, row) for number, rows in enumerate(sources) for row, each in enumerate(rows.photographs)}


def write_index(
    folder: Path, photographs: Sequence[PhotoFile], sources: Sequence[Rows], advance: Callable[[int], object]
) -> int:
    """Writes `photos.parquet` and `embeddings.npy`, some rows at a time.

    Args:
        folder: exists.
        photographs: N, the rows, each in one of the sources.
        sources: have their embeddings.
        advance: called with the number of rows done.

    Returns:
        D.

    Raises:
        DiskFullError: the disk cannot hold them.
    """
    places, count, width = places_of(sources), len(photographs), sources[0].vectors.shape[1]
    require_space(folder, count * width * 4, "the embeddings")
    sizes: list[np.ndarray] = []
    with on_disk(folder), (folder / EMBEDDINGS).open("wb") as stream:
        layout: Mapping[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
        np.lib.format.write_array_header_1_0(stream, layout)
        for start in range(0, count, _BLOCK):
            block = [places[each] for each in photographs[start : start + _BLOCK]]
            stream.write(np.stack([sources[number].vectors[row] for number, row in block]).astype("<f4").tobytes())
            sizes += [sources[number].sizes[row] for number, row in block]
            advance(len(block))
    files, lengths, changed = zip(*photographs, strict=True)
    columns = {"file": pa.array(files, pa.string())}
    columns |= {"bytes": pa.array(lengths, pa.int64()), "changed": pa.array(changed, pa.int64())}
    whole = np.stack(sizes).astype(np.int32)
    columns |= {name: pa.array(whole[:, column]) for column, name in enumerate(("width", "height"))}
    with on_disk(folder):
        pq.write_table(pa.table(columns), folder / PHOTOS, compression="zstd", write_page_checksum=True)
    return width
