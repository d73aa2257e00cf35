"""Mining with a faiss index: searched exactly (flat), or approximately in the nearest of many clusters (IVF).

Each direction is a search of its own, an index over captions for the images and one over images for the captions.
An anchor's own captions are fetched with the rest and left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.engine.work import CUDA, Part, Work, numbered, resolve_device
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.mining.lists import (
    DIRECTIONS,
    NO_ROW,
    CandidateLists,
    ListWork,
    Searched,
    by_score,
    rows_at_once,
    slices,
)
from itrpipe.storage.arrays import Rows
from itrpipe.storage.parts import ArrayFile, write_arrays

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
    """The clusters of captions, for images, and of images, each trained once: a part's file holds a whole index.

    Args:
        searched: both sides.
        sizes: clusters and probes of each index, see `clusters`.

    Raises:
        MissingInputError: faiss is not installed.
    """

    title, unit = "clustering", "vectors"

    def __init__(self, searched: Searched, sizes: Sequence[tuple[int, int]]) -> None:
        load_faiss()
        self._searched, self._sizes = searched.sides[::-1], sizes
        self.key = json.dumps(sizes)

    def parts(self) -> list[Part]:
        """The two directions."""
        return numbered((rows.shape[0], side) for side, rows in enumerate(self._searched))

    def open(self) -> Any:
        """The library."""
        return load_faiss()

    def make(self, worker: Any, part: Part, path: Path) -> None:
        """Trains and fills the index of one direction."""
        index = build_index(self._searched[part.content], self._sizes[part.content])
        write_arrays(path, {_INDEX: worker.serialize_index(index)})


class Searching(ListWork[Callable[[int], Any]]):
    """Highest-scoring captions of images and images of captions by an index of faiss, own pairs left out.

    A flat index gives the lists of `ExactMining` but for candidates of equal score; IVF misses some, and pads lists
    that stay too short.

    Args:
        searched: both sides.
        indexes: files of `Indexing`; None for a flat index, which each worker makes.
        block: anchors per part.
        device: "cuda" needs a GPU build of faiss and fetches 2,048 candidates at most.

    Raises:
        MissingInputError: faiss is not installed.
    """

    title = "mining"

    def __init__(
        self, searched: Searched, indexes: Sequence[Path] | None = None, *, block: int = 4_096, device: str = "cpu"
    ) -> None:
        load_faiss()
        super().__init__(searched.shapes, dict.fromkeys(DIRECTIONS, block))
        self.searched, self.indexes, self.device = searched, indexes, device
        (texts, images), most = searched.widths, searched.counts[1]
        self.fetch = (min(most, texts + searched.largest_own), images + 1)
        self.key = json.dumps([block, indexes is None, *searched.anchors])

    def open(self) -> Callable[[int], Any]:
        """Direction -> its index, on the device; one is held at a time.

        Raises:
            MissingInputError: faiss finds no GPU.
            UsageError: it cannot fetch so many candidates there.
        """
        faiss, gpu, held = load_faiss(), None, dict[int, Any]()
        if resolve_device(self.device) == CUDA:
            if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
                raise MissingInputError(
                    "the installed faiss has no CUDA or finds no GPU: pip install 'itrpipe[gpu]', or mine with device "
                    "cpu"
                )
            if max(self.fetch) > LARGEST_FETCH_ON_GPU:
                raise UsageError(
                    f"faiss fetches at most {LARGEST_FETCH_ON_GPU} candidates on a GPU, {max(self.fetch)} are needed "
                    "with the own ones: ask for fewer, or mine with the exact engine"
                )
            gpu = faiss.StandardGpuResources()  # has to outlive the index

        def index(side: int) -> Any:
            if side not in held:
                held.clear()  # frees the other one first
                if self.indexes:
                    made = faiss.deserialize_index(ArrayFile(self.indexes[side])[_INDEX].read())
                else:
                    made = build_index(self.searched.sides[1 - side])
                held[side] = made if gpu is None else faiss.index_cpu_to_gpu(gpu, 0, made)
            return held[side]

        return index

    def make(self, worker: Callable[[int], Any], part: Part, path: Path) -> None:
        """Searches for some anchors."""
        direction, start, stop = part.content
        side, owners = DIRECTIONS.index(direction), self.searched.owners
        anchors = np.ascontiguousarray(self.searched.sides[side].read(start, stop), dtype=np.float32)
        scores, found = worker(side).search(anchors, self.fetch[side])
        rows = np.arange(start, stop)[:, None]
        own = owners[found] == rows if side == 0 else owners[rows] == found
        lists, width = by_score(np.where(own, NO_ROW, found), scores), self.searched.widths[side]
        self.write(path, direction, CandidateLists(lists.candidates[:, :width], lists.scores[:, :width]))


def build_index(values: Rows, sizes: tuple[int, int] | None = None) -> Any:
    """An index of inner products, on the CPU.

    Args:
        values: [n, D] what is searched.
        sizes: clusters and probes of IVF, see `clusters`; None for a flat index.

    Raises:
        MissingInputError: faiss is not installed.
    """
    faiss, (count, dim) = load_faiss(), values.shape
    index = faiss.IndexFlatIP(dim)
    if sizes:
        index = faiss.IndexIVFFlat(index, dim, sizes[0], faiss.METRIC_INNER_PRODUCT)
        index.nprobe = sizes[1]
        # faiss warns of clusters of fewer than 39 vectors, which 4 sqrt(n) lists are below 24,000 vectors.
        index.cp.min_points_per_centroid = 1
        index.train(np.ascontiguousarray(values.read(0, count), dtype=np.float32))
    for part in slices(count, rows_at_once(values)):
        index.add(np.ascontiguousarray(values.read(part.start, part.stop), dtype=np.float32))
    return index


def clusters(vectors: int, num_lists: int = 0, num_probes: int = 0) -> tuple[int, int]:
    """Clusters of an index, and how many of them are searched for an anchor.

    About 4 sqrt(n) clusters is what faiss advises for n below a million. One probe in four found 98 to 99.5 percent of
    the candidates in lists of VSRN on 2,000 images with 10,000 captions.

    Args:
        vectors: n, how many are searched.
        num_lists: clusters (nlist), 1..n; 0 makes about 4 sqrt(n).
        num_probes: clusters that are searched (nprobe), 1..num_lists; 0 searches one in four.

    Raises:
        UsageError: the numbers do not fit each other.
    """
    lists = num_lists or min(vectors, round(4 * math.sqrt(vectors)))
    probes = num_probes or math.ceil(lists * PROBED_SHARE)
    if not 1 <= probes <= lists <= vectors:
        raise UsageError(
            f"num_probes = {probes} and num_lists = {lists} do not fit {vectors} vectors: "
            f"give 1 <= num_probes <= num_lists <= {vectors}"
        )
    return lists, probes
