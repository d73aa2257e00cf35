"""Exact top-k mining in both directions from one pass of blocked matrix products.

A tile of images times captions serves the lists of its images and of its captions alike. Candidates are ordered
by falling score, and by rising index where scores are equal, so that the lists do not depend on the order of the
tiles, nor on how often the work was interrupted.

With precision "bf16+fp32" a tile is multiplied in bfloat16. Every pair whose product lies within the bound of the
rounding error (`products.error_bounds`) of what either list demands is scored in float32, and lists are made of
these scores alone: no pair that belongs to a list can be missed, and the size of the tiles does not matter either.
With the other two precisions the products are the scores, and the size of the tiles can change their last bit.

Source: AOQ (Chen et al., ECCV 2020) §3.1 says what is mined; the method is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from itrpipe.errors import DataError, UsageError
from itrpipe.mining.lists import MinedLists
from itrpipe.mining.products import (
    Embeddings,
    Precision,
    error_bounds,
    in_two_steps,
    multiply,
    pair_scores,
    reaching,
    require_finite_products,
    rounded,
    score_dtype,
)
from itrpipe.mining.running_lists import RunningLists
from itrpipe.mining.threads import one_thread

DEFAULT_MEMORY = 256 * 2**20
"""Bytes that a tile and what is computed with it take."""
_TEXTS_AT_ONCE = 1_024
_PAIRS_AT_ONCE = 1 << 21
_BYTES_PER_CANDIDATE = 80


class ExactMiner:
    """The highest-scoring captions of every image and images of every caption, own pairs left out.

    A block is a tile of some images times some captions; blocks may be done in any order, each once; `state` and
    `restore` carry the work over an interruption. Beyond the embeddings the miner takes 8 bytes per place of the
    lists (16 in `result`) and `memory`.

    Args:
        image_embeddings: [N, D] one vector per image.
        text_embeddings: [T, D] one vector per caption; the score of a pair is the inner product.
        caption_image: [T] row of the image each caption belongs to; these pairs are never candidates.
        num_texts: captions wanted per image.
        num_images: images wanted per caption.
        block_size: images per tile, at most; None to choose it from `memory`.
        precision: "fp32"; "bf16" to round the embeddings to bfloat16 and add their products in float32, which
            reorders candidates whose scores differ by less than about 0.1 percent; "bf16+fp32" for the lists of
            "fp32" (up to the last bit of a score) at nearly the speed of bfloat16; or "fp32+fp32" for exactly those of
            "bf16+fp32" where the processor multiplies single precision faster.
        device: where the products are computed.
        text_block_size: captions per tile, at most; None to choose it from `memory`.
        memory: bytes that decide the size of the tiles.

    Raises:
        DataError: an embedding is NaN or infinite, or the arrays do not fit each other.
        UsageError: fewer candidates exist than were asked for, or `memory` holds no tile.

    Example:
        >>> images, texts = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)
        >>> miner = ExactMiner(images, texts, np.array([0, 1, 2]), num_texts=2, num_images=1)
        >>> for block in miner.pending():
        ...     miner.step(block)
        >>> miner.result().texts_per_image.tolist()
        [[1, 2], [0, 2], [0, 1]]
    """

    def __init__(
        self,
        image_embeddings: np.ndarray,
        text_embeddings: np.ndarray,
        caption_image: np.ndarray,
        num_texts: int,
        num_images: int,
        block_size: int | None = None,
        precision: Precision = "fp32",
        device: torch.device | str = "cpu",
        text_block_size: int | None = None,
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        check_inputs(image_embeddings, text_embeddings, caption_image, num_texts, num_images)
        self._precision: Precision = precision
        self._images = Embeddings.of("image", image_embeddings, device)
        self._texts = Embeddings.of("caption", text_embeddings, device)
        require_finite_products(self._images, self._texts)
        self._caption_image = torch.as_tensor(caption_image, dtype=torch.int64, device=device)
        images, texts = len(image_embeddings), len(text_embeddings)
        density = min(1.0, num_texts / texts + num_images / images)
        automatic = tile_shape(images, texts, image_embeddings.shape[1], density, memory)
        self._tile_texts = text_block_size or automatic[1]
        self._image_blocks = math.ceil(images / (block_size or automatic[0]))
        self._text_blocks = math.ceil(texts / self._tile_texts)
        self._area = max(texts, images, (block_size or automatic[0]) * self._tile_texts)
        self._done = np.zeros(self._image_blocks * self._text_blocks, dtype=bool)
        self._by_image = RunningLists(images, num_texts, texts, device)
        self._by_text = RunningLists(texts, num_images, images, device)
        self._buffer = torch.empty(0, dtype=score_dtype(precision, self._images.vectors.device), device=device)

    @property
    def num_blocks(self) -> int:
        """Number of tiles that the scores are cut into."""
        return len(self._done)

    def pending(self) -> list[int]:
        """Blocks that are still to be done, ascending."""
        return np.flatnonzero(~self._done).tolist()

    def step(self, block_index: int) -> None:
        """Mine one tile.

        A tile takes every so-many-th image and caption: it is then a fair sample of both, whatever their order.

        Args:
            block_index: 0..num_blocks - 1, not done before.

        Raises:
            UsageError: the block does not exist or was done already.
        """
        if not 0 <= block_index < self.num_blocks or self._done[block_index]:
            raise UsageError(f"block {block_index} of {self.num_blocks} is done already or does not exist")
        image_block, text_block = divmod(block_index, self._text_blocks)
        device = self._caption_image.device
        images = torch.arange(image_block, len(self._images.vectors), self._image_blocks, device=device)
        texts = torch.arange(text_block, len(self._texts.vectors), self._text_blocks, device=device)
        self._search(images, texts, self._by_image, self._by_text)
        self._done[block_index] = True

    def _search(
        self, images: Tensor, texts: Tensor, by_image: RunningLists | None, by_text: RunningLists | None
    ) -> None:
        """Lets the lists of images [b] and of captions [t] take in each other; a direction of None is left alone."""
        image_vectors = self._images.vectors[images]
        scores = self._products(image_vectors, images, texts)  # [t, b]
        image_bounds = error_bounds(self._images, images, self._texts, texts, self._precision)
        text_bounds = error_bounds(self._texts, texts, self._images, images, self._precision)
        image_limit = _limits(by_image, scores.T, images, image_bounds)
        text_limit = _limits(by_text, scores, texts, text_bounds)

        waiting: list[tuple[Tensor, Tensor, Tensor]] = []  # images wait, so that their lists are merged seldom
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            part = slice(start, start + _TEXTS_AT_ONCE)
            row, column = reaching(scores[part], text_limit[part], image_limit)
            exact = self._exact(scores[part], texts[part], image_vectors, row, column)
            with one_thread():
                if by_text is not None:
                    by_text.take(texts[part], row, images[column], exact)
                if by_image is not None:
                    enters = exact >= by_image.thresholds(images)[column]
                    waiting.append((column[enters], texts[part][row[enters]], exact[enters]))
                    if sum(len(pairs[0]) for pairs in waiting) > _PAIRS_AT_ONCE:
                        _take_all(by_image, images, waiting)
        if by_image is not None:
            _take_all(by_image, images, waiting)

    def _products(self, image_vectors: Tensor, images: Tensor, texts: Tensor) -> Tensor:
        """Products [t, b] of a tile, minus infinity for captions with their own image; valid until the next call."""
        needed = len(texts) * len(images)
        if len(self._buffer) < needed:
            self._buffer = torch.empty(needed, dtype=self._buffer.dtype, device=self._buffer.device)
        scores = self._buffer[:needed].view(len(texts), len(images))
        right = rounded(image_vectors, self._precision)
        for rows, out in zip(texts.split(_TEXTS_AT_ONCE), scores.split(_TEXTS_AT_ONCE), strict=True):
            multiply(rounded(self._texts.vectors[rows], self._precision), right, self._precision, out)
        own = self._caption_image[texts]
        column = torch.searchsorted(images, own).clamp(max=len(images) - 1)
        row = (images[column] == own).nonzero()[:, 0]
        scores[row, column[row]] = float("-inf")
        return scores

    def _exact(self, scores: Tensor, texts: Tensor, image_vectors: Tensor, row: Tensor, column: Tensor) -> Tensor:
        """The scores [P] that rank the pairs found in a part of a tile."""
        if not in_two_steps(self._precision):
            return scores[row, column]
        return pair_scores(self._texts.vectors[texts], image_vectors, row, column)

    def state(self) -> dict[str, np.ndarray]:
        """All that is needed to go on later: a miner made with the same arguments takes it in `restore`."""
        return {
            "done": self._done.copy(),
            "text_keys": self._by_image.keys.numpy(force=True).copy(),
            "text_floors": self._by_image.floors.numpy(force=True).copy(),
            "image_keys": self._by_text.keys.numpy(force=True).copy(),
            "image_floors": self._by_text.floors.numpy(force=True).copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state`.

        Raises:
            DataError: the state comes from other data, or was made with other list lengths or blocks.
        """
        expected = {"done": self._done.shape}
        for name, lists in (("text", self._by_image), ("image", self._by_text)):
            expected |= {f"{name}_keys": tuple(lists.keys.shape), f"{name}_floors": tuple(lists.floors.shape)}
        found = {name: array.shape for name, array in state.items()}
        if found != expected:
            raise DataError(f"saved mining progress has shapes {found}, expected {expected}: start the mining again")
        self._done = state["done"].astype(bool)
        for name, lists in (("text", self._by_image), ("image", self._by_text)):
            lists.keys = torch.tensor(state[f"{name}_keys"], device=lists.keys.device)
            lists.floors = torch.tensor(state[f"{name}_floors"], device=lists.floors.device)

    def result(self) -> MinedLists:
        """The lists, once all blocks are done.

        The few lists whose floor was guessed too high are made here, from all their candidates at once.

        Raises:
            UsageError: blocks are still to be done.
            DataError: products are off by more than floating-point arithmetic allows.
        """
        if self.pending():
            raise UsageError(f"{len(self.pending())} of {self.num_blocks} blocks are not mined yet: step through them")
        for rows in self._again(self._by_image, len(self._texts.vectors)):
            self._search(rows, self._all(self._texts), self._by_image, None)
        for rows in self._again(self._by_text, len(self._images.vectors)):
            self._search(self._all(self._images), rows, None, self._by_text)
        short = len(self._by_image.unproven()) + len(self._by_text.unproven())
        if short:
            raise DataError(
                f"{short} lists lack candidates that exist: products in {self._precision} are less exact on this "
                "machine than they have to be; mine with precision fp32"
            )
        return MinedLists(*self._by_image.sorted(), *self._by_text.sorted())

    def _again(self, lists: RunningLists, candidates: int) -> Iterator[Tensor]:
        """Anchors with unproven lists, emptied, as many at a time as a tile has room for."""
        unproven = lists.unproven()
        lists.reset(unproven)
        if len(unproven):
            yield from unproven.split(max(1, self._area // candidates))

    def _all(self, side: Embeddings) -> Tensor:
        return torch.arange(len(side.vectors), device=side.vectors.device)


@one_thread()
def _take_all(lists: RunningLists, rows: Tensor, waiting: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    """Gives the candidates that wait to the lists of anchors [a], and empties the queue."""
    if waiting:
        lists.take(rows, *(torch.cat(parts) for parts in zip(*waiting, strict=True)))
        waiting.clear()


def _limits(lists: RunningLists | None, scores: Tensor, rows: Tensor, bounds: Tensor) -> Tensor:
    """What the products [a, c] of anchors have to reach to be looked at, [a]; infinity without lists."""
    if lists is None:
        return torch.full_like(bounds, float("inf"))
    lists.set_floors(scores, rows, bounds)
    return lists.thresholds(rows) - bounds


def tile_shape(images: int, texts: int, dim: int, density: float, memory: int) -> tuple[int, int]:
    """Images and captions of the largest tile that fits in memory, about four captions to an image.

    Fewer images than captions, since their vectors should stay in the processor's cache.

    Args:
        images: N.
        texts: T.
        dim: D.
        density: share of the scores that become candidates.
        memory: bytes.

    Raises:
        UsageError: not even a single image and four captions fit.
    """
    per_pair = 4 + _BYTES_PER_CANDIDATE * density
    per_vector = 8 * dim
    # 4 b^2 pairs and b vectors; captions are converted a few at a time.
    fixed = per_vector * min(texts, _TEXTS_AT_ONCE)
    rest = memory - fixed
    if rest < 4 * per_pair + per_vector:
        raise UsageError(f"{memory} bytes of memory hold no tile of vectors of width {dim}: give {2 * fixed} or more")
    wide = (math.sqrt(per_vector**2 + 16 * per_pair * rest) - per_vector) / (8 * per_pair)
    tile_images = min(images, int(wide))
    tile_texts = min(texts, int((rest - per_vector * tile_images) / (per_pair * tile_images)))
    if tile_texts == texts:
        tile_images = min(images, int(rest / (per_pair * texts + per_vector)))
    return max(1, tile_images), max(1, tile_texts)


def check_inputs(
    images: np.ndarray, texts: np.ndarray, caption_image: np.ndarray, num_texts: int, num_images: int
) -> None:
    """Refuses arrays that do not fit each other and lists longer than there are candidates.

    Args:
        images: [N, D].
        texts: [T, D].
        caption_image: [T] rows of images.
        num_texts: captions wanted per image.
        num_images: images wanted per caption.

    Raises:
        DataError: the arrays do not fit each other.
        UsageError: fewer candidates exist than were asked for.
    """
    if images.shape[1] != texts.shape[1] or len(caption_image) != len(texts):
        raise DataError(
            f"embeddings of images {images.shape}, of captions {texts.shape} and {len(caption_image)} caption rows "
            "do not fit each other: encode the split again with one model"
        )
    if caption_image.min() < 0 or caption_image.max() >= len(images):
        raise DataError(
            f"captions name image rows {caption_image.min()}..{caption_image.max()}, but {len(images)} images are "
            "embedded: encode the whole split"
        )
    largest_own = int(np.bincount(caption_image).max())
    for name, wanted, available in (
        ("captions per image", num_texts, len(texts) - largest_own),
        ("images per caption", num_images, len(images) - 1),
    ):
        if not 1 <= wanted <= available:
            raise UsageError(
                f"{wanted} {name} were asked for, but {available} candidates exist: ask for 1..{available}"
            )
