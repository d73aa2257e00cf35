"""A trained UNITER as a model that writes words and ranks sentences.

Shapes: S masked captions, n sentences, W tokens, M labelled positions, V token ids, d width of a state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter.network import UniterEncoder, UniterImages

_PARTS_OF_A_WORD = 8
"""Vectors of width d that are in memory for every word: its embedding, queries, keys and values, and temporaries."""


class UniterSentences:
    """UNITER on the images of a training set; see `itrpipe.synthesis.by_model.SentenceModel`.

    The images of a block are embedded once, however many sentences are about them. Scores are raw rank logits in single
    precision.

    Args:
        model: is moved to the device and set to evaluation mode.
        images: int64 rows [B] of the training images to their features.
        device: where it computes.
        memory: bytes that the words of sentences take while they are ranked.
    """

    def __init__(
        self,
        model: UniterEncoder,
        images: Callable[[np.ndarray], ImageBatch],
        device: torch.device | str = "cpu",
        memory: int = 1 << 28,
    ) -> None:
        self._model, self._load, self._device = model.to(device).eval(), images, device
        self._memory = memory
        self._kept = threading.local()  # blocks are written in several threads

    @torch.inference_mode()
    def mlm_logits(self, images: Tensor, texts: TextBatch, labelled: Tensor) -> Tensor:
        """See `SentenceModel`; the vocabulary is looked at for the labelled positions alone."""
        model, width = self._model, texts.tokens.shape[1]
        embedded, rows = self._images(images)

        own = torch.arange(len(rows))
        states = model.read_at(embedded, model.encode_texts(texts), rows, own, width, lambda each: each)  # [S, W, d]
        return model.masked_word_logits(states[labelled])

    @torch.inference_mode()
    def rank(self, images: Tensor, texts: TextBatch) -> Tensor:
        """See `SentenceModel`."""
        embedded, rows = self._images(images)
        scores = [
            self._model.score_at(
                embedded,
                self._model.encode_texts(TextBatch(tokens, lengths)),
                part,
                torch.arange(len(part)),
            )
            for part, tokens, lengths in zip(*map(self._parts(texts), (rows, texts.tokens, texts.lengths)), strict=True)
        ]
        return torch.cat(scores).float()

    def _parts(self, texts: TextBatch) -> Callable[[Tensor], tuple[Tensor, ...]]:
        """Cuts a tensor by sentences so that the words of a part fit into memory."""
        each = 4 * _PARTS_OF_A_WORD * self._model.settings.embed_dim * texts.tokens.shape[1]
        return lambda tensor: tensor.split(max(1, self._memory // each))

    def _images(self, images: Tensor) -> tuple[UniterImages, Tensor]:
        """Embedded images, and the number of each asked for among them."""
        kept: tuple[Tensor, UniterImages] | None = getattr(self._kept, "images", None)
        if kept is None or not bool(torch.isin(images, kept[0]).all()):
            rows = images.unique()
            kept = rows, self._model.encode_images(self._load(rows.cpu().numpy()).to(self._device))
            self._kept.images = kept
        return kept[1], torch.searchsorted(kept[0], images)
