"""Scores of chosen pairs of a split by a trained model, every image and caption encoded once.

Shapes: N images, T captions, P pairs, S vectors of an item (regions, words, or one), D embedding width.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.engine.work import resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.features.embeddings import EmbeddingRows, Side
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.base import (
    DualEncoder,
    ImageEncoding,
    RegionEncoding,
    TextEncoding,
    WordEncoding,
)
from itrpipe.models.scan.network import CrossAttentionModel
from itrpipe.training.data import SplitData, blocks
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.saved import SavedModel, load_model
from itrpipe.training.splits import open_split

_ROWS_PER_PASS = 256
_COUNTED_ROWS = 8_192
_COPIES = 2.5
"""How often the vectors of a pair are in memory while it is scored, with room for what is derived from them."""
_CPU_BATCH_BYTES = 32 * 2**20
"""A batch that fits into the processor's cache is up to twice as fast as one of 256 MiB."""


class KeptVectors:
    """The vectors of many items, such as the words of captions, one item behind the other without padding.

    Args:
        counts: [n] vectors of each item.
        dim: D.
        device: where they are kept.

    Attributes:
        counts: [n] int64.
        vectors: [sum of counts, D] float32.
    """

    def __init__(self, counts: np.ndarray, dim: int, device: torch.device) -> None:
        self.counts = torch.as_tensor(counts, dtype=torch.int64, device=device)
        self._starts = self.counts.cumsum(0) - self.counts
        self.vectors = torch.empty(int(counts.sum()), dim, device=device)
        self._uniform = bool((self.counts == self.counts[0]).all())

    def put(self, first: int, padded: Tensor) -> None:
        """Keeps the vectors [b, S, D] of items `first`, ..., of each as many as it has."""
        counts = self.counts[first : first + len(padded)]
        real = torch.arange(padded.shape[1], device=counts.device) < counts[:, None]
        start = int(self._starts[first])
        self.vectors[start : start + int(counts.sum())] = padded.to(counts.device, torch.float32)[real]

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """Padded vectors [P, S, D] of items [P] and the number of real ones [P]; None where all items have S."""
        rows = rows.to(self.counts.device)
        counts = self.counts[rows]
        width = int(counts.max())
        places = self._starts[rows, None] + torch.arange(width, device=rows.device)
        places = places.clamp_(max=len(self.vectors) - 1)  # behind the last item there is nothing to pad with
        padded = self.vectors.index_select(0, places.flatten()).view(len(rows), width, -1)
        return padded, None if self._uniform else counts


class PairScorer:
    """Scores pairs of images and captions by their encodings.

    All encodings of the split are kept in float32 without padding: for a dual encoder one vector per item, else one
    per region and one per word. That is 4 D bytes each: at D = 1024 and 36 regions about 12 GiB for Flickr30K and
    43 GiB for COCO. With a GPU a side is kept there if it takes less than half of what is free, else in main memory.

    Args:
        model: a dual encoder or one with cross-attention, in evaluation mode; it is moved to the device.
        data: the split.
        dim: D.
        device: where pairs are scored.
        memory: bytes that a batch of pairs takes, at most.

    Raises:
        UsageError: the machine has less memory than the encodings take.
    """

    def __init__(
        self,
        model: AnyMatcher,
        data: SplitData,
        dim: int,
        device: torch.device,
        memory: int,
    ) -> None:
        self._model, self._data, self._device = model.to(device), data, device
        self._memory = memory if device.type == "cuda" else min(memory, _CPU_BATCH_BYTES)
        self._dual = isinstance(model, DualEncoder)
        self._lengths = _lengths(data)
        counts = [np.ones_like(each) if self._dual else each for each in (data.region_counts, self._lengths)]
        self._images, self._texts = _room(counts, dim, device)
        self._widest_image, self._dim = int(counts[0].max()), dim

    @property
    def num_items(self) -> int:
        """N + T, what `encode` has to do."""
        return self._data.num_images + self._data.num_captions

    @torch.inference_mode()
    def encode(self, advance: Callable[[int], object]) -> None:
        """Encodes all images and captions; once, before any pair is scored.

        Args:
            advance: called with the number of items after each pass.
        """
        for rows in blocks(self._data.num_images, _ROWS_PER_PASS):
            encoded = self._model.encode_images(self._data.images(rows).to(self._device))
            self._images.put(int(rows[0]), encoded.embedding[:, None] if self._dual else encoded.regions)
            advance(len(rows))
        for rows in blocks(self._data.num_captions, _ROWS_PER_PASS):
            encoded = self._model.encode_texts(self._data.texts(rows).to(self._device))
            self._texts.put(int(rows[0]), encoded.embedding[:, None] if self._dual else encoded.words)
            advance(len(rows))

    @torch.inference_mode()
    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Scores pairs, those with the longest captions first, so that a batch is padded little.

        Args:
            images: [P] rows.
            captions: [P] rows.

        Returns:
            [P] float32.
        """
        lengths = self._lengths[captions]
        order = np.argsort(-lengths, kind="stable")
        scores, start = np.empty(len(order), dtype=np.float32), 0
        while start < len(order):
            batch = order[start : start + self._batch_size(int(lengths[order[start]]))]
            sides = self._images_of(images[batch]), self._texts_of(captions[batch])
            scores[batch] = self._model.score_pairs(*sides).float().cpu().numpy()
            start += len(batch)
        return scores

    def _batch_size(self, words: int) -> int:
        """Pairs at a time, with captions of so many words at most."""
        vectors = 2 if self._dual else self._widest_image + words
        # Beside the vectors there are a few matrices of the products of all of them with each other.
        per_pair = 4 * vectors * (_COPIES * self._dim + 2 * vectors)
        return max(1, int(self._memory / per_pair))

    def _images_of(self, rows: np.ndarray) -> ImageEncoding | RegionEncoding:
        vectors, count = self._taken(self._images, rows)
        return ImageEncoding(vectors[:, 0]) if self._dual else RegionEncoding(vectors, count)

    def _texts_of(self, rows: np.ndarray) -> TextEncoding | WordEncoding:
        vectors, _ = self._taken(self._texts, rows)
        if self._dual:
            return TextEncoding(vectors[:, 0])
        return WordEncoding(vectors, torch.as_tensor(self._lengths[rows], device=self._device))

    def _taken(self, kept: KeptVectors, rows: np.ndarray) -> tuple[Tensor, Any]:
        vectors, count = kept.take(torch.as_tensor(rows, dtype=torch.int64))
        return vectors.to(self._device), None if count is None else count.to(self._device)


def load_scoring_model(folder: Path) -> SavedModel:
    """Reads a trained model that can score pairs by kept encodings.

    Raises:
        DataError: the artifact is damaged.
        UsageError: the model is neither a dual encoder nor one with cross-attention.
    """
    saved = load_model(folder)
    if not isinstance(saved.model, DualEncoder | CrossAttentionModel):
        raise UsageError(
            f"{saved.config['backbone']} encodes neither vectors nor regions and words, so that it cannot score mined "
            "lists again; give --rescore-with another backbone, such as bfan"
        )
    return saved


def encoded_scorer(
    trained: Path, prepared: Path, extracted: Path, embeddings: EmbeddingRows, device: str, memory: int
) -> PairScorer:
    """A trained model on the training images and captions that another one embedded, which it has encoded.

    Args:
        trained: artifact of the model.
        prepared: of the captions.
        extracted: of the features.
        embeddings: by the other model.
        device: `auto`, `cpu` or `cuda`.
        memory: bytes that a batch of pairs takes.

    Raises:
        DataError: captions and features are of other images than the embeddings.
        UsageError: the machine has less memory than the encodings take.
    """
    saved, features = load_scoring_model(trained), FeatureFile.open(extracted / FEATURES)
    split = PreparedDataset.open(prepared).split("train")
    if absent := features.absent(split.image_ids.tolist()):  # training left them out as well
        split = split.without(absent)
    sides: tuple[tuple[Side, np.ndarray, int], ...] = (
        ("image", split.image_ids, embeddings.images.shape[0]),
        ("caption", split.caption_ids, embeddings.texts.shape[0]),
    )
    for side, ours, count in sides:
        if ours.tolist() != embeddings.ids(side, 0, count):
            raise DataError(
                f"{prepared} and {extracted} hold {len(ours):,} training rows and the mining model embedded "
                f"{count:,} or others; run `itrpipe train` again"
            )
    data = open_split(split, features, saved.tokens, saved.settings, saved.frame)
    scorer = PairScorer(saved.model, data, saved.embed_dim, torch.device(resolve_device(device)), memory)
    scorer.encode(lambda count: None)
    return scorer


def _lengths(data: SplitData) -> np.ndarray:
    """Words [T] int64 of every caption, start and end token among them."""
    return np.concatenate([data.texts(rows).lengths.numpy() for rows in blocks(data.num_captions, _COUNTED_ROWS)])


def _room(counts: Sequence[np.ndarray], dim: int, device: torch.device) -> list[KeptVectors]:
    """Room for the vectors of each side, on the device or in main memory."""
    kept, in_main_memory = [], 0
    for each in counts:
        needed = 4 * dim * int(each.sum())
        on_device = device.type == "cuda" and needed <= torch.cuda.mem_get_info(device)[0] // 2
        in_main_memory += 0 if on_device else needed
        _require_memory(in_main_memory)
        kept.append(KeptVectors(each, dim, device if on_device else torch.device("cpu")))
    return kept


def _require_memory(needed: int) -> None:
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > present:
        raise UsageError(
            f"the encodings of the training set take {needed / 2**30:.1f} GiB and this machine has "
            f"{present / 2**30:.1f} GiB of memory; mine without --rescore-with, or on a larger machine"
        )
