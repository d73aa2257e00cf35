"""The second model of mining, which may put the hardest candidates in its own order.

It encodes all images and captions once and then scores pairs (`PairScorer`).

Shapes: N images, T captions, P pairs, S vectors of an item (regions, words, or one), D embedding width.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itrpipe.engine.work import CUDA, resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.features.embeddings import EmbeddingRows
from itrpipe.mining.rescoring import SecondModel
from itrpipe.models.base import EmbeddingModel, ImageEncoding, RegionEncoding, TextEncoding, WordEncoding
from itrpipe.models.scan.network import CrossAttentionModel
from itrpipe.training.batches import blocks
from itrpipe.training.data import Sources, SplitData, reopened
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.saved import SavedModel, load_model
from itrpipe.training.search_settings import MineExecution, MineSettings
from itrpipe.training.settings import run_label

_ROWS_PER_PASS = 256
_COUNTED_ROWS = 8_192
_COPIES = 2.5
"""Copies of the vectors of a pair in memory while it is scored, with room for further arrays of their size."""
_CPU_BATCH_BYTES = 32 * 2**20
"""A batch that fits into the processor's cache is up to twice as fast as one of 256 MiB."""


def second_model(
    settings: MineSettings, execution: MineExecution, inputs: Mapping[str, Any], embeddings: EmbeddingRows
) -> SecondModel:
    """Return the model that orders the lists of another one, which every worker opens.

    Its encodings are not kept: every worker encodes, and so does an interrupted run that goes on.

    Args:
        settings, execution: of mining.
        inputs: artifacts `rescorer` and `prepare`; of the first its features, if it reads some.
        embeddings: by the first model.

    Raises:
        UsageError: the other model cannot score pairs.
    """
    rescorer = inputs["rescorer"]
    trained = rescorer.folder.absolute()
    load_scoring_model(trained)  # a model that cannot score pairs is better found out before mining than after
    extracted = None
    if "extract" in rescorer.manifest.inputs:
        extracted = rescorer.input("extract").folder.absolute()
    sources = Sources(inputs["prepare"].folder.absolute(), extracted)
    memory = (execution.memory_mib or 256) * 2**20
    opening = partial(encoded_scorer, trained, sources, embeddings, execution.device, memory)
    name = run_label(settings.method, settings.rescore_with, settings.seed)
    return SecondModel(name, opening, (settings.rescore_texts, settings.rescore_images))


class KeptVectors:
    """The vectors of many items, such as the words of captions, one item behind the other without padding.

    Args:
        counts: [n] vectors of each item.
        dim: D.
        device: where they are kept.

    Attributes:
        vectors: [sum of counts, D] float32.
    """

    def __init__(self, counts: np.ndarray, dim: int, device: torch.device) -> None:
        self._counts = torch.as_tensor(counts, dtype=torch.int64, device=device)
        self._starts = self._counts.cumsum(0) - self._counts
        self.vectors = torch.empty(int(counts.sum()), dim, device=device)

    def put(self, first: int, padded: Tensor) -> None:
        """Keep the vectors [b, S, D] of items `first`, ..., of each as many as it has."""
        counts = self._counts[first : first + len(padded)]
        start = int(self._starts[first])
        real = torch.arange(padded.shape[1], device=counts.device) < counts[:, None]
        end = start + int(counts.sum())
        self.vectors[start:end] = padded.to(counts.device, torch.float32)[real]

    def take(self, rows: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the padded vectors [P, S, D] of items [P] and the number of real ones [P]."""
        items = torch.as_tensor(rows, dtype=torch.int64, device=self._counts.device)
        counts = self._counts[items]
        offsets = torch.arange(int(counts.max()), device=items.device)
        places = self._starts[items, None] + offsets
        places = places.clamp_(max=len(self.vectors) - 1)  # behind the last item there is nothing to pad with
        return self.vectors[places].to(device), counts.to(device)


class PairScorer:
    """Scores pairs of images and captions of a split, all of which it encodes first.

    The encodings are kept in float32 without padding: for a dual encoder one vector per item, else one per region and
    one per word. That is 4 D bytes each: at D = 1024 and 36 regions about 12 GiB for Flickr30K and 43 GiB for COCO.
    With a GPU a side is kept there if it takes less than half of what is free, else in main memory.

    Args:
        model: a dual encoder or one with cross-attention, in evaluation mode; it is moved to the device.
        data: the split.
        dim: D.
        device: where pairs are scored.
        memory: bytes that a batch of pairs takes, at most.

    Raises:
        UsageError: the machine has less memory than the encodings take.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: AnyMatcher,
        data: SplitData,
        dim: int,
        device: torch.device,
        memory: int,
    ) -> None:
        self._model = model.to(device)
        self._device = device
        self._dim = dim
        self._memory = memory if device.type == CUDA else min(memory, _CPU_BATCH_BYTES)
        self._dual = isinstance(model, EmbeddingModel)
        if self._dual:
            image_counts = np.ones(data.num_images, dtype=np.int64)
            text_counts = np.ones(data.num_captions, dtype=np.int64)
        else:
            image_counts = data.region_counts
            lengths = []
            for rows in blocks(data.num_captions, _COUNTED_ROWS):
                lengths.append(data.texts(rows).lengths.numpy())
            text_counts = np.concatenate(lengths)
        self._most_regions = int(image_counts.max())
        self._lengths = text_counts

        # Each side lies on the device, or in main memory.
        vectors_of_sides = []
        in_main_memory = 0
        present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        for counts in (image_counts, text_counts):
            place = device
            needed = 4 * dim * int(counts.sum())
            if device.type != CUDA or needed > torch.cuda.mem_get_info(device)[0] // 2:
                place = torch.device("cpu")
                in_main_memory += needed
            if in_main_memory > present:
                raise UsageError(
                    f"the encodings of the training set take {in_main_memory / 2**30:.1f} GiB and this machine has "
                    f"{present / 2**30:.1f} GiB of memory; mine without --rescore-with, or on a larger machine"
                )
            vectors_of_sides.append(KeptVectors(counts, dim, place))
        self._images, self._texts = vectors_of_sides

        for rows in blocks(data.num_images, _ROWS_PER_PASS):
            image = self._model.encode_images(data.images(rows).to(device))
            vectors = image.embedding[:, None] if self._dual else image.regions
            self._images.put(int(rows[0]), vectors)
        for rows in blocks(data.num_captions, _ROWS_PER_PASS):
            text = self._model.encode_texts(data.texts(rows).to(device))
            vectors = text.embedding[:, None] if self._dual else text.words
            self._texts.put(int(rows[0]), vectors)

    @torch.inference_mode()
    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Score pairs, those with the longest captions first, so that a batch is padded little.

        Args:
            images: [P] rows.
            captions: [P] rows.

        Returns:
            [P] float32.
        """
        order = np.argsort(-self._lengths[captions], kind="stable")
        scores = np.empty(len(order), dtype=np.float32)
        start = 0
        while start < len(order):
            # Beside the vectors there are a few matrices of the products of all of them with each other.
            longest_caption = int(self._lengths[captions[order[start]]])
            vectors = self._most_regions + longest_caption
            bytes_per_pair = 4 * vectors * (_COPIES * self._dim + 2 * vectors)
            pairs = max(1, int(self._memory / bytes_per_pair))
            batch = order[start : start + pairs]
            image, regions = self._images.take(images[batch], self._device)
            text, words = self._texts.take(captions[batch], self._device)
            if self._dual:
                encodings: Any = ImageEncoding(image[:, 0]), TextEncoding(text[:, 0])
            else:
                has_padding = bool((regions != image.shape[1]).any())
                encodings = RegionEncoding(image, regions if has_padding else None), WordEncoding(text, words)
            scores[batch] = self._model.score_pairs(*encodings).float().cpu().numpy()
            start += len(batch)
        return scores


def load_scoring_model(folder: Path) -> SavedModel:
    """Read a trained model that can score pairs by kept encodings.

    Raises:
        DataError: the artifact is damaged.
        UsageError: the model is neither a dual encoder nor one with cross-attention.
    """
    saved = load_model(folder)
    if not isinstance(saved.model, EmbeddingModel | CrossAttentionModel):
        raise UsageError(
            f"{saved.config['backbone']} encodes neither vectors nor regions and words, so that it cannot score mined "
            "lists again; give --rescore-with another backbone, such as bfan"
        )
    return saved


def encoded_scorer(
    trained: Path,
    sources: Sources,
    embeddings: EmbeddingRows,
    device: str,
    memory: int,
) -> PairScorer:
    """Return a scorer of the training images and captions that another model embedded, all of which it has encoded.

    Args:
        trained: artifact of the model.
        sources: captions and images.
        embeddings: by the other model.
        device: `auto`, `cpu` or `cuda`.
        memory: bytes that a batch of pairs takes.

    Raises:
        DataError: captions and features are of other images than the embeddings.
        UsageError: the machine has less memory than the encodings take.
    """
    saved = load_scoring_model(trained)
    data = reopened(saved, sources, ["train"])["train"]
    ids = data.split.image_ids, data.split.caption_ids
    for rows, embedded in zip(ids, embeddings.ids(), strict=True):
        if not np.array_equal(rows, embedded):
            raise DataError(
                f"{trained} reads {len(rows):,} training rows of {sources.prepare} and the mining model embedded "
                f"{len(embedded):,} or others; run `itrpipe train` again"
            )
    return PairScorer(saved.model, data, saved.embed_dim, torch.device(resolve_device(device)), memory)
