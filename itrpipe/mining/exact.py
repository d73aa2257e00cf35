"""Exact top-k mining in both directions from one blocked matrix product.

A block of image rows is multiplied with all captions. The block holds every candidate of its images, so their
lists are final at once; the lists of all captions run along and take in the block's images. Candidates are
ordered by falling score, and by rising index where scores are equal, so that the lists do not depend on the
order of the blocks, nor on how often the work was interrupted. Their size can change the last bit of a product,
as it can in any matrix product, and with it the order of two candidates that differ by no more.

Source: AOQ (Chen et al., ECCV 2020) §3.1 says what is mined; the blocked product is ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from itrpipe.errors import DataError, UsageError
from itrpipe.mining.top_k import NO_CANDIDATE, keys_reaching, kth_largest, largest_keys, most_reaching, unpack

Precision = Literal["fp32", "bf16"]
"""How embeddings are multiplied: exactly, or rounded to bfloat16."""


@dataclass(frozen=True)
class MinedLists:
    """Hard negatives of every image and caption, hardest first.

    Attributes:
        texts_per_image: [N, num_texts] int32, caption indices.
        text_scores: [N, num_texts] float32.
        images_per_text: [T, num_images] int32, image indices.
        image_scores: [T, num_images] float32.
    """

    texts_per_image: np.ndarray
    text_scores: np.ndarray
    images_per_text: np.ndarray
    image_scores: np.ndarray


class ExactMiner:
    """The highest-scoring captions of every image and images of every caption, own pairs left out.

    Blocks may be done in any order, each once; `state` and `restore` carry the work over an interruption.

    Args:
        image_embeddings: [N, D] one vector per image.
        text_embeddings: [T, D] one vector per caption; the score of a pair is the inner product.
        caption_image: [T] row of the image each caption belongs to; these pairs are never candidates.
        num_texts: captions wanted per image.
        num_images: images wanted per caption.
        block_size: images per block; a block of scores takes 4 * block_size * T bytes.
        precision: "fp32", or "bf16" to round the embeddings to bfloat16 and add their products in float32,
            which reorders candidates whose scores differ by less than about 0.1 percent.
        device: where the products are computed.

    Raises:
        DataError: an embedding is NaN or infinite, or the arrays do not fit each other.
        UsageError: fewer candidates exist than were asked for.

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
        block_size: int = 512,
        precision: Precision = "fp32",
        device: torch.device | str = "cpu",
    ) -> None:
        _check(image_embeddings, text_embeddings, caption_image, num_texts, num_images)
        self._precision: Precision = precision
        self._images = _prepared(image_embeddings, precision, device)
        self._texts = _prepared(text_embeddings, precision, device)
        self._caption_image = torch.as_tensor(caption_image, dtype=torch.int64, device=device)
        self._by_image = self._caption_image.argsort(stable=True)
        self._own_offsets = np.searchsorted(np.sort(caption_image), np.arange(len(image_embeddings) + 1))
        self._block_size = block_size
        images, texts = len(image_embeddings), len(text_embeddings)
        self._done = np.zeros(-(-images // block_size), dtype=bool)
        self._text_keys = torch.full((images, num_texts), NO_CANDIDATE, device=device)
        self._image_keys = torch.full((texts, num_images), NO_CANDIDATE, device=device)

    @property
    def num_blocks(self) -> int:
        """Number of blocks that the images are cut into."""
        return len(self._done)

    def pending(self) -> list[int]:
        """Blocks that are still to be done, ascending."""
        return np.flatnonzero(~self._done).tolist()

    def step(self, block_index: int) -> None:
        """Mine one block of images.

        Args:
            block_index: 0..num_blocks - 1, not done before.

        Raises:
            UsageError: the block does not exist or was done already.
            DataError: a score is NaN or infinite.
        """
        if not 0 <= block_index < self.num_blocks or self._done[block_index]:
            raise UsageError(f"block {block_index} of {self.num_blocks} is done already or does not exist")
        start = block_index * self._block_size
        stop = min(start + self._block_size, len(self._images))
        scores = _products(self._images[start:stop], self._texts, self._precision)  # [b, T]
        own = self._by_image[self._own_offsets[start] : self._own_offsets[stop]]
        scores[self._caption_image[own] - start, own] = float("-inf")

        self._take_texts(scores, start)
        self._take_images(scores, start)
        self._done[block_index] = True

    def _take_texts(self, scores: Tensor, start: int) -> None:
        """Set the lists of a block of images from its scores [b, T]."""
        wanted = self._text_keys.shape[1]
        keys = largest_keys(keys_reaching(scores, kth_largest(scores, wanted)), wanted)
        bad = keys.numel() - int(unpack(keys)[0].isfinite().sum())
        if bad:
            raise DataError(f"{bad} of {keys.numel()} scores are NaN or infinite: normalise the embeddings")
        self._text_keys[start : start + len(scores)] = keys

    def _take_images(self, scores: Tensor, start: int) -> None:
        """Let the lists of all captions take in a block of images from its scores [b, T]."""
        wanted = self._image_keys.shape[1]
        bound, _ = unpack(self._image_keys[:, -1])  # [T] the worst score of each list
        # Nothing below the worst of a list can enter it: after a few blocks hardly any score can. Until then the
        # block's own best are a tighter bound.
        if most_reaching(scores, bound) > wanted:
            bound = torch.maximum(bound, kth_largest(scores.T, wanted))
        keys = keys_reaching(scores.T, bound, first_index=start)
        self._image_keys = largest_keys(torch.cat([self._image_keys, keys], dim=1), wanted)

    def state(self) -> dict[str, np.ndarray]:
        """All that is needed to go on later: a miner made with the same arguments takes it in `restore`."""
        return {
            "done": self._done.copy(),
            "text_keys": self._text_keys.numpy(force=True).copy(),
            "image_keys": self._image_keys.numpy(force=True).copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from a `state`.

        Raises:
            DataError: the state comes from other data, or was made with other list lengths or blocks.
        """
        expected = {name: array.shape for name, array in self.state().items()}
        found = {name: array.shape for name, array in state.items()}
        if found != expected:
            raise DataError(f"saved mining progress has shapes {found}, expected {expected}: start the mining again")
        self._done = state["done"].astype(bool)
        self._text_keys = torch.tensor(state["text_keys"], device=self._text_keys.device)
        self._image_keys = torch.tensor(state["image_keys"], device=self._image_keys.device)

    def result(self) -> MinedLists:
        """The lists, once all blocks are done.

        Raises:
            UsageError: blocks are still to be done.
        """
        if self.pending():
            raise UsageError(f"{len(self.pending())} of {self.num_blocks} blocks are not mined yet: step through them")
        text_scores, texts = unpack(self._text_keys)
        image_scores, images = unpack(self._image_keys)
        return MinedLists(*(part.numpy(force=True) for part in (texts, text_scores, images, image_scores)))


def _prepared(embeddings: np.ndarray, precision: Precision, device: torch.device | str) -> Tensor:
    """Embeddings on the device, rounded where asked; the CPU keeps rounded ones as float32, see `_products`."""
    vectors = torch.as_tensor(embeddings, dtype=torch.float32, device=device)
    if precision == "fp32":
        return vectors
    return vectors.bfloat16() if vectors.is_cuda else vectors.bfloat16().float()


def _products(images: Tensor, texts: Tensor, precision: Precision) -> Tensor:
    """Inner products [b, T] of vectors [b, D] and [T, D], in float32 whatever the precision.

    Returned as bfloat16, with its 8 bits, most neighbours in a list would tie. CUDA multiplies bfloat16 into
    float32; the CPU cannot, but multiplies float32 through the processor's bfloat16 units where it is allowed
    to, which loses nothing on vectors that are already rounded.
    """
    if images.dtype == torch.bfloat16:
        return torch.mm(images, texts.T, out_dtype=torch.float32)
    with _float32_products("highest" if precision == "fp32" else "medium"):
        return images @ texts.T


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _check(images: np.ndarray, texts: np.ndarray, caption_image: np.ndarray, num_texts: int, num_images: int) -> None:
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
    for name, vectors in (("image", images), ("caption", texts)):
        bad = len(vectors) - int(np.isfinite(vectors).all(axis=1).sum())
        if bad:
            raise DataError(f"{bad} of {len(vectors)} {name} embeddings hold NaN or infinity: train the model again")
    largest_own = int(np.bincount(caption_image).max())
    for name, wanted, available in (
        ("captions per image", num_texts, len(texts) - largest_own),
        ("images per caption", num_images, len(images) - 1),
    ):
        if not 1 <= wanted <= available:
            raise UsageError(
                f"{wanted} {name} were asked for, but {available} candidates exist: ask for 1..{available}"
            )
