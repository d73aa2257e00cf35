"""Mining with a faiss index: searched exactly (flat), or approximately in the nearest of many clusters (IVF).

Each direction is a search of its own, an index over captions for the images and one over images for the captions.
An anchor's own captions are fetched with the rest and left out.

IVF-PQ is for sets whose vectors no memory holds: an index has codes of at most 64 bytes, and of four times as many
candidates as are wanted the scores are computed once more from the vectors, which are read where they lie. Sides of
more than `SHARD` vectors have several indexes, which are parts of the work as other parts are.

Source: Jegou et al., "Product Quantization for Nearest Neighbor Search", TPAMI 2011; Ge et al. (OPQ), CVPR 2013.
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
    taken,
)
from itrpipe.storage.arrays import ArrayFile, Rows, write_arrays

LARGEST_FETCH_ON_GPU = 2_048
PROBED_SHARE = 1 / 4
PROBED_SHARE_OF_CODES = 1 / 16
SHARD = 50_000_000
"""Vectors of one index."""
FEWEST_CODED = 10_000
"""Vectors of a side from which on they are coded: codes are learned from them."""
_CODE_BYTES = 64
_FETCHED = 4
"""Candidates that are scored again for each that is wanted."""
_INDEX = "index"
_PER_CLUSTER = {"ivf": 256, "ivf-pq": 64}
"""Vectors that clusters are learned from, for each cluster."""
_SLICES = 256
Sizes = tuple[int, int]
"""Clusters of an index, and how many of them are searched."""


def load_faiss() -> Any:
    """Import the library.

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
    """The indexes of captions, for images, and of images: a part's file holds that of one shard.

    Args:
        searched: both sides.
        kind: `ivf` or `ivf-pq`.
        num_lists, num_probes: of each index, see `clusters`.

    Raises:
        MissingInputError: faiss is not installed.
    """

    title = "clustering"
    unit = "vectors"

    def __init__(
        self,
        searched: Searched,
        kind: str,
        num_lists: int,
        num_probes: int,
    ) -> None:
        load_faiss()
        self._kind = kind
        self._searched = searched.sides[::-1]
        self._shards: list[list[slice]] = []
        self.sizes: list[Sizes] = []
        for rows in self._searched:
            count = rows.shape[0]
            num_shards = math.ceil(count / SHARD)
            shards = slices(count, math.ceil(count / num_shards))
            self._shards.append(shards)
            self.sizes.append(clusters(kind, shards[0].stop, num_lists, num_probes))
        self.key = json.dumps([kind, self.sizes])

    def parts(self) -> list[Part]:
        """Return the shards of either direction."""
        contents = []
        for side, shards in enumerate(self._shards):
            for rows in shards:
                contents.append((rows.stop - rows.start, (side, rows)))
        return numbered(contents)

    def of_sides(self, paths: Sequence[Path]) -> tuple[Sequence[Path], Sequence[Path]]:
        """Return the files of all parts by direction."""
        count = len(self._shards[0])
        return paths[:count], paths[count:]

    def open(self) -> Any:
        """Import the library."""
        return load_faiss()

    def make(self, worker: Any, part: Part, path: Path) -> None:
        """Train and fill the index of one shard."""
        side, rows = part.content
        index = build_index(self._searched[side], self._kind, self.sizes[side], rows)
        write_arrays(path, {_INDEX: worker.serialize_index(index)})


class Searching(ListWork[Callable[[int], Any]]):
    """Highest-scoring captions of images and images of captions by an index of faiss, own pairs left out.

    A flat index gives the lists of `ExactMining` but for candidates of equal score; IVF misses some, and pads lists
    that stay too short.

    Args:
        searched: both sides.
        indexes: files of `Indexing` of each direction; None for a flat index, which each worker makes.
        again: scores are computed once more, those of codes being rough.
        block: anchors per part.
        device: "cuda" needs a GPU build of faiss and fetches 2,048 candidates at most.

    Raises:
        MissingInputError: faiss is not installed.
    """

    title = "mining"

    def __init__(
        self,
        searched: Searched,
        indexes: Sequence[Sequence[Path]] | None = None,
        *,
        again: bool = False,
        block: int = 4_096,
        device: str = "cpu",
    ) -> None:
        load_faiss()
        super().__init__(searched.shapes, dict.fromkeys(DIRECTIONS, block))
        self.searched = searched
        self.indexes = indexes
        self.again = again
        self.device = device
        text_width, image_width = searched.widths
        if again:
            text_width *= _FETCHED
            image_width *= _FETCHED
        num_images, num_texts = searched.counts
        most_own = int(searched.own_counts.max())
        self.fetch = (
            min(num_texts, text_width + most_own),
            min(num_images, image_width + 1),
        )
        self.key = json.dumps([block, indexes is None, again, *searched.anchors])

    def open(self) -> Callable[[int], Any]:
        """Return a function from a direction's number to its index on the device; one is held at a time.

        Raises:
            MissingInputError: faiss finds no GPU.
            UsageError: it cannot fetch so many candidates there.
        """
        faiss = load_faiss()
        gpu = None
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

        held: dict[int, tuple[Any, list[Any]]] = {}

        def index(side: int) -> Any:
            if side not in held:
                held.clear()  # frees the other one first
                if self.indexes:
                    stored = [ArrayFile(path)[_INDEX].read() for path in self.indexes[side]]
                    parts = [faiss.deserialize_index(values) for values in stored]
                else:
                    parts = [build_index(self.searched.sides[1 - side])]
                if gpu is not None:
                    parts = [faiss.index_cpu_to_gpu(gpu, 0, part) for part in parts]
                shards = faiss.IndexShards(self.searched.sides[0].shape[1], False, True)
                for part in parts:
                    shards.add_shard(part)
                held[side] = shards, parts  # they have to outlive it
            return held[side][0]

        return index

    def make(self, worker: Callable[[int], Any], part: Part, path: Path) -> None:
        """Search for some anchors."""
        direction, start, stop = part.content
        side = DIRECTIONS.index(direction)
        owners = self.searched.owners
        vectors = self.searched.sides[side].read(start, stop)
        anchors = np.ascontiguousarray(vectors, dtype=np.float32)
        scores, candidates = worker(side).search(anchors, self.fetch[side])
        if self.again:
            scores = _score_again(anchors, self.searched.sides[1 - side], candidates)
        rows = np.arange(start, stop)[:, None]
        is_own = owners[candidates] == rows if side == 0 else owners[rows] == candidates
        lists = by_score(np.where(is_own, NO_ROW, candidates), scores)
        width = self.searched.widths[side]
        lists = CandidateLists(lists.candidates[:, :width], lists.scores[:, :width])
        self.write(path, direction, lists)


def _score_again(anchors: np.ndarray, others: Rows, rows: np.ndarray) -> np.ndarray:
    """Compute scores [A, K] of anchors [A, D] with the vectors of rows [A, K]; minus infinity where there is none."""
    scores = np.empty(rows.shape, np.float32)
    anchors_at_once = max(1, rows_at_once(others) // rows.shape[1])
    for part in slices(len(anchors), anchors_at_once):
        vectors = taken(others, np.maximum(rows[part], 0))
        vectors = np.asarray(vectors, dtype=np.float32)
        products = np.matmul(vectors, anchors[part, :, None])
        scores[part] = products[..., 0]
    return np.where(rows < 0, -np.inf, scores)


def build_index(
    values: Rows,
    kind: str = "flat",
    sizes: Sizes = (0, 0),
    rows: slice = slice(None),
) -> Any:
    """Build an index of inner products, on the CPU.

    Args:
        values: [n, D] what is searched.
        kind: `flat`, `ivf` or `ivf-pq`; of fewer than `FEWEST_CODED` vectors the last is the one before.
        sizes: of the other two.
        rows: which of the vectors it has.

    Raises:
        MissingInputError: faiss is not installed.
    """
    faiss = load_faiss()
    dim = values.shape[1]
    start, stop, _ = rows.indices(values.shape[0])
    if kind == "flat":
        index = faiss.IndexFlatIP(dim)
    else:
        codes = 1  # parts of equal width that a vector is cut into, of two numbers at least
        for size in range(2, min(_CODE_BYTES, dim // 2) + 1):
            if dim % size == 0:
                codes = size
        num_lists, num_probes = sizes
        description = f"IVF{num_lists},Flat"
        if kind == "ivf-pq" and stop - start >= FEWEST_CODED:
            description = f"OPQ{codes},IVF{num_lists},PQ{codes}"
        index = faiss.index_factory(dim, description, faiss.METRIC_INNER_PRODUCT)
        inverted = faiss.extract_index_ivf(index)
        inverted.nprobe = num_probes
        # faiss warns of clusters of fewer than 39 vectors, which 4 sqrt(n) lists are below 24,000 vectors.
        inverted.cp.min_points_per_centroid = 1
        inverted.cp.max_points_per_centroid = _PER_CLUSTER[kind]
        sample = _sample(values, start, stop, _PER_CLUSTER[kind] * num_lists)
        index.train(sample)
    for part in slices(stop - start, rows_at_once(values)):
        vectors = values.read(start + part.start, start + part.stop)
        index.add(np.ascontiguousarray(vectors, dtype=np.float32))
    return index


def _sample(values: Rows, start: int, stop: int, most: int) -> np.ndarray:
    """Read about so many of the rows start..stop, in slices that lie apart evenly; float32."""
    if stop - start <= most:
        return np.ascontiguousarray(values.read(start, stop), dtype=np.float32)
    size = -(-most // _SLICES)
    starts = np.linspace(start, stop, _SLICES, endpoint=False).astype(int)
    pieces = []
    for first in starts.tolist():
        pieces.append(values.read(first, min(first + size, stop)))
    return np.concatenate(pieces).astype(np.float32, copy=False)


def clusters(kind: str, vectors: int, num_lists: int = 0, num_probes: int = 0) -> Sizes:
    """Choose the clusters of an index, and how many of them are searched for an anchor.

    About 4 sqrt(n) clusters is what faiss advises for n below a million. One probe in four found 98 to 99.5 percent of
    the candidates in lists of VSRN on 2,000 images with 10,000 captions.

    Args:
        kind: of the index.
        vectors: n, how many are searched.
        num_lists: clusters (nlist), 1..n; 0 makes about 4 sqrt(n).
        num_probes: clusters that are searched (nprobe), 1..num_lists; 0 searches one in four, of codes one in 16.

    Raises:
        UsageError: the numbers do not fit each other.
    """
    lists = num_lists or min(vectors, round(4 * math.sqrt(vectors)))
    share = PROBED_SHARE
    if kind == "ivf-pq" and vectors >= FEWEST_CODED:
        share = PROBED_SHARE_OF_CODES
    probes = num_probes or math.ceil(lists * share)
    if not 1 <= probes <= lists <= vectors:
        raise UsageError(
            f"num_probes = {probes} and num_lists = {lists} do not fit {vectors} vectors: "
            f"give 1 <= num_probes <= num_lists <= {vectors}"
        )
    return lists, probes
