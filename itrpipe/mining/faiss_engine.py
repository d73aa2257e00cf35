"""Mining with a faiss index: searched exactly (flat), or approximately in the nearest of many clusters (IVF).

Each direction is a search of its own, an index over captions for the images and one over images for the captions.
An anchor's own captions are fetched with the rest and left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from itrpipe.engine.work import Part, Work, numbered, resolve_device
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.mining.exact import check_inputs
from itrpipe.mining.lists import NO_ROW, CandidateLists, by_score
from itrpipe.mining.mined import DIRECTIONS, layout, row_type, write_slice
from itrpipe.mining.vectors import Rows, slices
from itrpipe.storage.parts import ArrayFile, array_writer, write_arrays

IndexKind = Literal["flat", "ivf"]
LARGEST_FETCH_ON_GPU = 2_048
PROBED_SHARE = 1 / 4
_INDEX = "index"


def load_faiss() -> Any:
    """The library.

    Raises:
        MissingInputError: it is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise MissingInputError(
            "the library faiss is not installed: pip install 'itrpipe[cpu]', or 'itrpipe[gpu]' for NVIDIA GPUs"
        ) from None
    return faiss


class Indexing(Work[Any]):
    """The clusters of both sides, each trained once: a part's file holds a whole index.

    Args:
        texts, images: [T, D], [N, D], what is searched.
        clusters: of each, with probes, see `clusters`.

    Raises:
        MissingInputError: faiss is not installed.
    """

    title, unit = "clustering", "vectors"

    def __init__(self, texts: Rows, images: Rows, sizes: Sequence[tuple[int, int]]) -> None:
        load_faiss()
        self._searched, self._sizes = (texts, images), sizes
        self.key = json.dumps(sizes)

    def parts(self) -> list[Part]:
        """The two sides."""
        return numbered((rows.shape[0], side) for side, rows in enumerate(self._searched))

    def open(self) -> Any:
        """The library."""
        return load_faiss()

    def make(self, worker: Any, part: Part, path: Path) -> None:
        """Trains and fills the index of one side."""
        vectors = _whole(self._searched[part.content])
        index = new_index(worker, "ivf", vectors.shape[1], *self._sizes[part.content])
        index.train(vectors)
        index.add(vectors)
        write_arrays(path, {_INDEX: worker.serialize_index(index)})


class Searching(Work["_Searcher"]):
    """Highest-scoring captions of images and images of captions by an index of faiss, own pairs left out.

    A part is a number of anchors of one direction, those of the images first; its file holds `rows` and `scores`
    [a, K]. A flat index gives the lists of `ExactMining` but for candidates of equal score; IVF misses some, and pads
    lists that stay too short.

    Args:
        images: [N, D].
        texts: [T, D].
        owners: [T] row of the image each caption belongs to, -1 for none; these pairs are never candidates.
        num_texts: captions wanted per image.
        num_images: images wanted per caption.
        indexes: files of `Indexing`; None for a flat index, which each worker makes.
        block: anchors per part.
        device: "cuda" needs a GPU build of faiss and fetches 2,048 candidates at most.
        anchors: how many images and captions, the first ones, get lists; the others are candidates alone. None: all.

    Raises:
        MissingInputError: faiss is not installed.
        DataError: the arrays do not fit each other.
        UsageError: fewer candidates exist than were asked for.
    """

    title, unit = "mining", "anchors"

    def __init__(
        self,
        images: Rows,
        texts: Rows,
        owners: Rows,
        num_texts: int,
        num_images: int,
        indexes: Sequence[Path] | None = None,
        *,
        block: int = 4_096,
        device: str = "cpu",
        anchors: tuple[int, int] | None = None,
    ) -> None:
        load_faiss()
        largest_own = check_inputs(images, texts, owners, num_texts, num_images)
        self.anchors, self.searched, self.owners = (images, texts), (texts, images), owners
        self.counts = anchors or (images.shape[0], texts.shape[0])
        self.widths = (num_texts, num_images)
        self.fetch = (min(texts.shape[0], num_texts + largest_own), num_images + 1)
        self.indexes, self.device, self._block = indexes, device, block
        self.key = json.dumps([block, indexes is None, *self.counts])

    def parts(self) -> list[Part]:
        """Anchors, some at a time."""
        contents = [(side, part) for side, count in enumerate(self.counts) for part in slices(count, self._block)]
        return numbered((part.stop - part.start, (side, part.start, part.stop)) for side, part in contents)

    def open(self) -> _Searcher:
        """An index, one side at a time."""
        return _Searcher(self)

    def make(self, worker: _Searcher, part: Part, path: Path) -> None:
        """Searches for some anchors."""
        side, start, stop = part.content
        anchors = np.ascontiguousarray(self.anchors[side].read(start, stop), dtype=np.float32)
        scores, found = worker.index(side).search(anchors, self.fetch[side])
        rows = np.arange(start, stop)[:, None]
        known = found != NO_ROW
        if side == 0:
            own = worker.owners[np.where(known, found, 0)] == rows
        else:
            own = worker.owners[start:stop, None] == found
        lists = by_score(np.where(known & ~own, found, NO_ROW), scores)
        width = self.widths[side]
        kept = lists.candidates[:, :width].astype(row_type(self.searched[side].shape[0]))
        write_arrays(path, {"rows": kept, "scores": lists.scores[:, :width]})

    def join(self, paths: Sequence[Path], target: Path) -> None:
        """Writes the lists of both directions, see `itrpipe.mining.mined`.

        Raises:
            DiskFullError: no space is left.
        """
        shapes = {
            name: (self.counts[side], self.widths[side], self.searched[side].shape[0])
            for side, name in enumerate(DIRECTIONS)
        }
        with array_writer(target, layout(shapes)) as writer:
            for part, path in zip(self.parts(), paths, strict=True):
                side, start, _ = part.content
                found = ArrayFile(path)
                lists = CandidateLists(found["rows"].read(), found["scores"].read())
                write_slice(writer, DIRECTIONS[side], start, lists)


class _Searcher:
    """The index of one side or the other, on the device of a worker.

    Attributes:
        owners: [T] of all captions, since those found lie anywhere.
    """

    def __init__(self, work: Searching) -> None:
        self._work, self._faiss = work, load_faiss()
        self._on_gpu = resolve_device(work.device) == "cuda"
        self._open: tuple[int, Any] | None = None
        self.owners = work.owners.read(0, work.owners.shape[0])
        if not self._on_gpu:
            return
        if not hasattr(self._faiss, "StandardGpuResources") or not self._faiss.get_num_gpus():
            raise MissingInputError(
                "the installed faiss has no CUDA or finds no GPU: pip install 'itrpipe[gpu]', or mine with device cpu"
            )
        if max(work.fetch) > LARGEST_FETCH_ON_GPU:
            raise UsageError(
                f"faiss fetches at most {LARGEST_FETCH_ON_GPU} candidates on a GPU, {max(work.fetch)} are needed with "
                "the own ones: ask for fewer, or mine with the exact engine"
            )

    def index(self, side: int) -> Any:
        """The index that the anchors of a side are searched in."""
        if self._open is None or self._open[0] != side:
            self._open = None  # frees the other one first
            self._open = (side, self._read(side))
        return self._open[1]

    def _read(self, side: int) -> Any:
        if self._work.indexes is None:
            vectors = _whole(self._work.searched[side])
            index = new_index(self._faiss, "flat", vectors.shape[1], 0, 0)
            index.add(vectors)
        else:
            index = self._faiss.deserialize_index(ArrayFile(self._work.indexes[side])[_INDEX].read())
        if self._on_gpu:
            self._resources = self._faiss.StandardGpuResources()  # has to outlive the index
            index = self._faiss.index_cpu_to_gpu(self._resources, 0, index)
        return index


def _whole(values: Rows) -> np.ndarray:
    return np.ascontiguousarray(values.read(0, values.shape[0]), dtype=np.float32)


def required_clusters(searched: Sequence[int], num_lists: int, num_probes: int) -> list[tuple[int, int]]:
    """Clusters and probes of IVF, for each side that is searched.

    Args:
        searched: vectors of each side.
        num_lists: clusters (nlist), 1..number of vectors; 0 makes about 4 sqrt(n) of n vectors.
        num_probes: clusters that are searched for an anchor (nprobe), 1..num_lists; 0 searches one in four.

    Raises:
        UsageError: the numbers do not fit each other.
    """
    found = [clusters(vectors, num_lists, num_probes) for vectors in searched]
    for (lists, probes), vectors in zip(found, searched, strict=True):
        if not 1 <= probes <= lists <= vectors:
            raise UsageError(
                f"num_probes = {probes} and num_lists = {lists} do not fit {vectors} vectors: "
                f"give 1 <= num_probes <= num_lists <= {vectors}"
            )
    return found


def new_index(faiss: Any, kind: IndexKind, dim: int, lists: int, probes: int) -> Any:
    """An empty index of inner products, on the CPU.

    Args:
        faiss: of `load_faiss`.
        kind: `flat` or `ivf`.
        dim: D.
        lists, probes: of `clusters`, for IVF.
    """
    index = faiss.IndexFlatIP(dim)
    if kind == "ivf":
        index = faiss.IndexIVFFlat(index, dim, lists, faiss.METRIC_INNER_PRODUCT)
        index.nprobe = probes
        # faiss warns of clusters of fewer than 39 vectors, which 4 sqrt(n) lists are below 24,000 vectors.
        index.cp.min_points_per_centroid = 1
    return index


def clusters(vectors: int, num_lists: int, num_probes: int) -> tuple[int, int]:
    """Clusters of an index, and how many of them are searched for an anchor; 0 is replaced by what suits it.

    About 4 sqrt(n) clusters is what faiss advises for n below a million. One probe in four found 98 to 99.5 percent of
    the candidates in lists of VSRN on 2,000 images with 10,000 captions.

    Args:
        vectors: n, how many are searched.
        num_lists, num_probes: as `required_clusters` takes them.
    """
    lists = num_lists or min(vectors, round(4 * math.sqrt(vectors)))
    return lists, num_probes or math.ceil(lists * PROBED_SHARE)
