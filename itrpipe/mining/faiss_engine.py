"""Mining with a faiss index: searched exactly (flat), or approximately in the nearest of many clusters (IVF).

Each direction is a search of its own, an index over captions for the images and one over images for the captions.
An anchor's own captions are fetched with the rest and left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.mining.exact import check_inputs
from itrpipe.mining.lists import NO_ROW, MinedLists, by_score

IndexKind = Literal["flat", "ivf"]
LARGEST_FETCH_ON_GPU = 2_048
PROBED_SHARE = 1 / 4


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


class FaissMiner:
    """Same interface as `ExactMiner`: the highest-scoring captions of images and images of captions.

    A block is a number of anchors of one direction, those of the images first. A flat index gives the lists of
    `ExactMiner` but for candidates of equal score; IVF misses some, and pads lists that stay too short.

    Args:
        image_embeddings: [N, D].
        text_embeddings: [T, D].
        caption_image: [T] row of the image each caption belongs to; these pairs are never candidates.
        num_texts: captions wanted per image.
        num_images: images wanted per caption.
        kind: "flat" or "ivf".
        num_lists: clusters of IVF (nlist), 1..number of vectors searched; 0 makes about 4 sqrt(n) of n vectors.
        num_probes: clusters that are searched for an anchor (nprobe), 1..num_lists; 0 searches one in four.
        block_size: anchors per block.
        device: "cuda" needs a GPU build of faiss and fetches 2,048 candidates at most.

    Attributes:
        clusters: clusters and probes of IVF, for the search of captions and for that of images.

    Raises:
        MissingInputError: faiss is not installed, or is a CPU build where CUDA was asked for.
        DataError: the arrays do not fit each other, or hold NaN or infinity.
        UsageError: fewer candidates exist than were asked for, or than the GPU can fetch; or IVF's numbers do not
            fit each other.
    """

    def __init__(
        self,
        image_embeddings: np.ndarray,
        text_embeddings: np.ndarray,
        caption_image: np.ndarray,
        num_texts: int,
        num_images: int,
        kind: IndexKind = "flat",
        num_lists: int = 0,
        num_probes: int = 0,
        block_size: int = 4_096,
        device: Literal["cpu", "cuda"] = "cpu",
    ) -> None:
        self._faiss = load_faiss()
        check_inputs(image_embeddings, text_embeddings, caption_image, num_texts, num_images)
        self._images = _plain("image", image_embeddings)
        self._texts = _plain("caption", text_embeddings)
        self._caption_image = caption_image
        self._kind: IndexKind = kind
        self._device = device
        self._block_size = block_size
        images, texts = len(self._images), len(self._texts)
        self.clusters = tuple(clusters(searched, num_lists, num_probes) for searched in (texts, images))
        self._fetch = (min(texts, num_texts + int(np.bincount(caption_image).max())), num_images + 1)
        self._require_fitting()
        self._candidates = [
            np.full((images, num_texts), NO_ROW, np.int32),
            np.full((texts, num_images), NO_ROW, np.int32),
        ]
        self._scores = [np.full(part.shape, -np.inf, np.float32) for part in self._candidates]
        self._image_blocks = -(-images // block_size)
        self._done = np.zeros(self._image_blocks - (-texts // block_size), dtype=bool)
        self._index: tuple[int, Any] | None = None

    def _require_fitting(self) -> None:
        for (lists, probes), vectors in zip(self.clusters, (len(self._texts), len(self._images)), strict=True):
            if self._kind == "ivf" and not 1 <= probes <= lists <= vectors:
                raise UsageError(
                    f"num_probes = {probes} and num_lists = {lists} do not fit {vectors} vectors: "
                    f"give 1 <= num_probes <= num_lists <= {vectors}"
                )
        if self._device == "cpu":
            return
        if not hasattr(self._faiss, "StandardGpuResources") or not self._faiss.get_num_gpus():
            raise MissingInputError(
                "the installed faiss has no CUDA or finds no GPU: pip install 'itrpipe[gpu]', or mine with device cpu"
            )
        if max(self._fetch) > LARGEST_FETCH_ON_GPU:
            raise UsageError(
                f"faiss fetches at most {LARGEST_FETCH_ON_GPU} candidates on a GPU, {max(self._fetch)} are needed with "
                "the own ones: ask for fewer, or mine with the exact engine"
            )

    @property
    def num_blocks(self) -> int:
        """Number of blocks that the anchors of both directions are cut into."""
        return len(self._done)

    def pending(self) -> list[int]:
        """Blocks that are still to be done, ascending."""
        return np.flatnonzero(~self._done).tolist()

    def step(self, block_index: int) -> None:
        """Mine one block of anchors.

        Args:
            block_index: 0..num_blocks - 1, not done before.

        Raises:
            UsageError: the block does not exist or was done already.
        """
        if not 0 <= block_index < self.num_blocks or self._done[block_index]:
            raise UsageError(f"block {block_index} of {self.num_blocks} is done already or does not exist")
        direction = int(block_index >= self._image_blocks)
        start = (block_index - direction * self._image_blocks) * self._block_size
        anchors = (self._images, self._texts)[direction][start : start + self._block_size]
        scores, found = self._searched(direction).search(anchors, self._fetch[direction])
        rows = np.arange(start, start + len(anchors))[:, None]
        known = found != NO_ROW
        # -1 would name the last caption; what it finds there is not used.
        own = self._caption_image[found] == rows if direction == 0 else self._caption_image[rows] == found
        lists = by_score(np.where(known & ~own, found, NO_ROW), scores)
        width = self._candidates[direction].shape[1]
        self._candidates[direction][rows[:, 0]] = lists.candidates[:, :width]
        self._scores[direction][rows[:, 0]] = lists.scores[:, :width]
        self._done[block_index] = True

    def _searched(self, direction: int) -> Any:
        """The index of a direction; one is kept at a time."""
        if self._index is None or self._index[0] != direction:
            self._index = None  # frees the other one first
            self._index = (direction, self._built((self._texts, self._images)[direction], *self.clusters[direction]))
        return self._index[1]

    def _built(self, vectors: np.ndarray, lists: int, probes: int) -> Any:
        index = new_index(self._faiss, self._kind, vectors.shape[1], lists, probes)
        if self._device == "cuda":
            self._resources = self._faiss.StandardGpuResources()  # has to outlive the index
            index = self._faiss.index_cpu_to_gpu(self._resources, 0, index)
        if not index.is_trained:
            index.train(vectors)
        index.add(vectors)
        return index

    def state(self) -> dict[str, np.ndarray]:
        """All that is needed to go on later, see `ExactMiner.state`."""
        return {"done": self._done.copy()} | {name: array.copy() for name, array in self._arrays().items()}

    def _arrays(self) -> dict[str, np.ndarray]:
        names = ("texts_per_image", "images_per_text", "text_scores", "image_scores")
        return dict(zip(names, (*self._candidates, *self._scores), strict=True))

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state`.

        Raises:
            DataError: the state comes from other data, or was made with other list lengths or blocks.
        """
        expected = {"done": self._done.shape} | {name: array.shape for name, array in self._arrays().items()}
        found = {name: array.shape for name, array in state.items()}
        if found != expected:
            raise DataError(f"saved mining progress has shapes {found}, expected {expected}: start the mining again")
        self._done = state["done"].astype(bool)
        for name, array in self._arrays().items():
            array[...] = state[name]

    def result(self) -> MinedLists:
        """The lists, once all blocks are done.

        Raises:
            UsageError: blocks are still to be done.
        """
        if self.pending():
            raise UsageError(f"{len(self.pending())} of {self.num_blocks} blocks are not mined yet: step through them")
        return MinedLists(**self._arrays())


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


def search_index(vectors: np.ndarray, queries: np.ndarray, top: int, kind: IndexKind) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of highest inner product with each query, on the CPU.

    Args:
        vectors: [N, D].
        queries: [Q, D].
        top: k, at most N.
        kind: `flat` searches exactly, `ivf` in the nearest of about 4 sqrt(N) clusters.

    Returns:
        Rows of `vectors` [Q, k], best first, `NO_ROW` where IVF finds fewer; and their inner products [Q, k] float32.

    Raises:
        MissingInputError: faiss is not installed.
        DataError: a vector holds NaN or infinity.
    """
    plain = _plain("searched", vectors)
    index = new_index(load_faiss(), kind, plain.shape[1], *clusters(len(plain), 0, 0))
    if not index.is_trained:
        index.train(plain)
    index.add(plain)
    scores, rows = index.search(_plain("query", queries), top)
    return rows, scores


def clusters(vectors: int, num_lists: int, num_probes: int) -> tuple[int, int]:
    """Clusters of an index, and how many of them are searched for an anchor; 0 is replaced by what suits it.

    About 4 sqrt(n) clusters is what faiss advises for n below a million. One probe in four found 98 to 99.5 percent of
    the candidates in lists of VSRN on 2,000 images with 10,000 captions.

    Args:
        vectors: n, how many are searched.
        num_lists, num_probes: as `FaissMiner` takes them.
    """
    lists = num_lists or min(vectors, round(4 * math.sqrt(vectors)))
    return lists, num_probes or math.ceil(lists * PROBED_SHARE)


def _plain(name: str, vectors: np.ndarray) -> np.ndarray:
    """Vectors as faiss takes them: float32, row after row.

    Raises:
        DataError: a vector holds NaN or infinity.
    """
    plain = np.ascontiguousarray(vectors, dtype=np.float32)
    bad = len(plain) - int(np.isfinite(plain.sum(axis=1, dtype=np.float64)).sum())
    if bad:
        raise DataError(f"{bad} of {len(plain)} {name} embeddings hold NaN or infinity: train the model again")
    return plain
