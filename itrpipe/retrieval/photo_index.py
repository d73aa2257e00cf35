"""An index of photographs: how it is made, and what it finds.

Shapes: N photographs, D embedding width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from itrpipe.datasets.pictures import DECODER_ERRORS, open_picture, upright_size
from itrpipe.engine.work import Part, Work, cut, resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.features.embeddings import INNER_PRODUCT, compare
from itrpipe.mining.faiss_engine import build_index, clusters, load_faiss
from itrpipe.mining.lists import NO_ROW, HeldRows
from itrpipe.retrieval.photo_folder import PhotoFile
from itrpipe.retrieval.photo_rows import EMBEDDINGS, IndexRows, PartFacts, write_part
from itrpipe.storage.artifact import read_manifest
from itrpipe.storage.disk import require_space
from itrpipe.storage.integrity import checked

if TYPE_CHECKING:
    from itrpipe.retrieval.model import RetrievalModel

INDEX = "index.faiss"


def open_embedding(model: Path, device: str) -> RetrievalModel:
    """Opens a model whose embeddings can be indexed.

    Args:
        model: its folder, see `itrpipe.load`.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        UsageError: it has none.
        ItrpipeError: see `itrpipe.load`.
    """
    from itrpipe.retrieval.opening import load

    opened = load(model, device=device)
    if not opened.embeds:
        raise UsageError(
            f"{opened.label} scores images and texts together and has no embeddings to index; name a model with "
            "embeddings, such as vsrn or dual-encoder"
        )
    return opened


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
        self._folder, self._photographs, self._model, self._digest = folder, photographs, model, digest
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
        """The model."""
        return open_embedding(self._model, resolve_device(self.device))

    def make(self, worker: RetrievalModel, part: Part, path: Path) -> None:
        """Encodes some photographs; those that cannot be used are listed with the reason.

        Raises:
            UsageError: the model reads features that were imported.
            UnavailableError: the disk does not answer.
            DataError: an embedding is not finite.
        """
        photographs: Sequence[PhotoFile] = part.content
        files, failed = [self._folder / each.file for each in photographs], {}

        def refused(row: int, reason: str) -> None:
            failed[row] = reason

        vectors = worker.encode_images(files, self._batch, refused=refused)
        usable = [row for row in range(len(photographs)) if row not in failed]
        if bad := np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
            raise DataError(f"{worker.label} embeds {files[usable[bad[0]]]} as NaN or infinity; name another model")
        sizes = np.array([_size(files[row]) for row in usable], dtype=np.int32).reshape(-1, 2)
        reasons = {photographs[row].file: reason for row, reason in failed.items()}
        rows = [photographs[row] for row in usable]
        write_part(path, vectors, sizes, PartFacts(self._digest, str(worker.measure), rows, reasons))


def _size(path: Path) -> tuple[int, int]:
    """Width and height in pixels as a viewer shows it, from the header; 0 of a file that is gone by now."""
    try:
        with open_picture(path.read_bytes()) as image:
            return upright_size(image)
    except DECODER_ERRORS:
        return 0, 0


def write_index(folder: Path, kind: Literal["flat", "ivf"]) -> None:
    """Writes `index.faiss` over `embeddings.npy`, which inner products compare.

    Args:
        folder: of both.
        kind: `flat`, or `ivf` of about 4 sqrt(N) clusters.

    Raises:
        MissingInputError: faiss is not installed.
        DiskFullError: the disk cannot hold it.
    """
    faiss, vectors = load_faiss(), np.load(folder / EMBEDDINGS, mmap_mode="r", allow_pickle=False)
    index = build_index(HeldRows(vectors), clusters(len(vectors)) if kind == "ivf" else None)
    # The library reports a full disk as an error of its own, which names no remedy.
    require_space(folder, vectors.nbytes + 16 * len(vectors), "the index")
    faiss.write_index(index, str(folder / INDEX))


class PhotoIndex:
    """A finished index.

    Args:
        folder: artifact of `index`.

    Raises:
        DataError: a file of it is damaged.

    Attributes:
        measure: how embeddings are compared.
        photographs: the rows.
    """

    def __init__(self, folder: Path) -> None:
        manifest = read_manifest(folder)
        self.measure: str = manifest.metrics["measure"]
        self._folder, self._rows = folder, IndexRows(folder, self.measure)
        self.photographs = self._rows.photographs

    @property
    def vectors(self) -> np.ndarray:
        """Embeddings [N, D] of all photographs, mapped."""
        return self._rows.vectors(slice(None))

    def vector(self, file: str) -> np.ndarray | None:
        """Embedding [1, D] of a photograph of the folder; None where the index has none of this path."""
        row = next((row for row, each in enumerate(self.photographs) if each.file == file), None)
        return None if row is None else np.array(self._rows.vectors(np.array([row])))

    def nearest(self, query: np.ndarray, top: int) -> list[tuple[str, float]]:
        """The photographs that fit a query best, best first; equal scores in the order of their paths.

        Args:
            query: [1, D], of a sentence or an image.
            top: how many are wanted; fewer come where there are fewer.

        Returns:
            Path relative to the folder and score of each.

        Raises:
            MissingInputError: faiss is not installed.
            DataError: the index is damaged.
        """
        if self.measure == INNER_PRODUCT:
            index = load_faiss().read_index(str(checked(self._folder / INDEX)))
            found = index.search(np.ascontiguousarray(query, dtype=np.float32), min(top, len(self.photographs)))
            scores, rows = (each[0] for each in found)
        else:
            every = self._rows.vectors(np.arange(len(self.photographs)))
            scores = compare(every, query, self.measure)[:, 0]
            rows = np.arange(len(scores))
        known = rows != NO_ROW
        rows, scores = rows[known], scores[known]
        order = np.lexsort((rows, -scores))[:top]
        return [(self.photographs[rows[each]].file, float(scores[each])) for each in order]
