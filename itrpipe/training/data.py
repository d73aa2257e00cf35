"""The training set in memory: features as a memory map, captions as one padded array of token ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from itrpipe.datasets.prepared import Split
from itrpipe.errors import DataError
from itrpipe.features.store import FeatureFile
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.training.texts import PhraseTexts, TokenTexts

if TYPE_CHECKING:
    from itrpipe.negatives.caption_masks import CaptionMasks
    from itrpipe.negatives.sentence_bank import SentenceBank
    from itrpipe.training.captions import CaptionTokens
    from itrpipe.training.world import World

_ORDER = 1
"""Tells the generator of an epoch's order from those of its steps; NumPy takes trailing zeros for nothing."""


class SplitData:
    """Batches of one split.

    Args:
        split: images and captions.
        features: file that holds the features of all its images.
        tokens: turns captions into ids; None where only images are read.

    Raises:
        DataError: the features have no regions.

    Attributes:
        caption_image: [T] int64, row of the image that each caption describes.
        num_images: N.
        num_captions: T.
        image_dim: D_in, width of what the file has of an image: of a region feature, of a global vector, of a pixel.
        masks: how its captions are masked; set for methods that do.
        sentences: synthetic sentences of its captions; set for methods that read some.
        writer: a frozen model that writes sentences; likewise.
        ends: how many tokens stand before the words of every caption and how many behind; set for methods that make
            captions.
        max_tokens: longest caption in tokens that the model reads; likewise.
        matches: rows of all captions that are true of each image, `texts_for_images` [N, K], and of all images that
            each caption is true of, `images_for_texts` [T, L], -1 behind the last; None where the dataset does not
            know.
        decided_matches: likewise, what people have found to fit beside the own ones; None where nobody was asked.
    """

    masks: CaptionMasks
    sentences: SentenceBank
    writer: Any
    ends: tuple[int, int]
    max_tokens: int
    matches: dict[str, np.ndarray] | None = None
    decided_matches: dict[str, np.ndarray] | None = None

    _texts: TokenTexts | PhraseTexts

    def __init__(self, split: Split, features: FeatureFile, tokens: CaptionTokens | None) -> None:
        self.split = split
        self.caption_image = split.caption_image
        self.num_images, self.num_captions = len(split.image_ids), len(split.caption_ids)
        self.image_dim = self._open_images(features)
        self._rows = features.rows(split.image_ids.tolist())
        if tokens is not None:
            self._texts = TokenTexts.of(split, tokens)

    @property
    def region_counts(self) -> np.ndarray:
        """[N] int64, number of real regions of each image."""
        return self._count[self._rows].astype(np.int64)

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Features of the given image rows [B]."""
        stored = self._rows[rows]
        count = self._count[stored].astype(np.int64)
        return ImageBatch(
            regions=torch.from_numpy(self._regions[stored]),  # [B, R, D_in] f16
            count=None if (count == self._regions.shape[1]).all() else torch.from_numpy(count),
            global_=None if self._global is None else torch.from_numpy(self._global[stored]),
            boxes=None if self._boxes is None else torch.from_numpy(self._boxes[stored]),
        )

    def texts(self, rows: np.ndarray) -> TextBatch:
        """Token ids of the given caption rows [T], cut to the longest of them."""
        return self._texts.texts(rows)

    def cut(self, what: str) -> str:
        """How many of the captions, which are called `what`, are longer than the model reads; empty for none."""
        count, limit = self._texts.cut or (0, "")
        verb = "is" if count == 1 else "are"
        told = f"{count:,} of {self.num_captions:,} {what} {verb} longer than the {limit} that the model reads"
        return told if count else ""

    def pair_sizes(self) -> np.ndarray:
        """[T] words of each caption and regions of its image together."""
        return self._texts.lengths.astype(np.int64) + self.region_counts[self.caption_image]

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        """Aligned batches of image rows and caption rows, [B] each; `rng` is for data that change images at random."""
        return self.images(images), self.texts(captions)

    def train_on(self, world: World, device: torch.device) -> None:
        """Tells where the pairs go: to all of these processes, which have this data too, and there to this device."""

    def _open_images(self, features: FeatureFile) -> int:
        """Keeps the memory maps that batches are cut from; returns D_in."""
        held = features.arrays
        if "regions" not in held:
            raise DataError(f"{features.path} holds no regions, which these backbones read; extract others")
        self._regions, self._count = held["regions"], held["count"]
        self._global, self._boxes = held.get("global"), held.get("boxes")
        return self._regions.shape[2]


def epoch_batches(
    num_captions: int,
    batch_size: int,
    seed: int,
    epoch: int,
    sizes: np.ndarray | None = None,
    order: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Every caption once in an order that only `seed` and `epoch` determine, cut into batches.

    The last batch may be short; if a single caption were left for it, it joins the batch before, because one
    pair alone has no negative and no batch statistics.

    Args:
        num_captions: T.
        batch_size: captions of a batch, or, where `sizes` are given, how much their sizes may add up to.
        seed, epoch: of the order.
        sizes: [T] size of each caption with its image, in tokens and regions.
        order: [T] caption rows; None for a random order.
    """
    if order is None:
        order = np.random.default_rng([seed, epoch, 0, _ORDER]).permutation(num_captions)
    if sizes is None:
        starts = list(range(0, num_captions, batch_size))
    else:
        ends, starts = np.cumsum(sizes[order], dtype=np.int64), [0]
        while starts[-1] < num_captions:
            spent = ends[starts[-1] - 1] if starts[-1] else 0
            starts.append(max(starts[-1] + 2, int(np.searchsorted(ends, spent + batch_size, side="right"))))
        starts.pop()
    if num_captions - starts[-1] == 1 and len(starts) > 1:
        starts.pop()
    return np.split(order, starts[1:])


def blocks(count: int, size: int) -> Iterator[np.ndarray]:
    """Row numbers 0..count-1 in consecutive blocks."""
    for start in range(0, count, size):
        yield np.arange(start, min(start + size, count))
