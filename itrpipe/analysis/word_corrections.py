"""Which words of a sentence do not belong to an image, and what should stand there: the word heads of TAGS-DC.

A word counts as wrong where the probability that it does not match the image, of a word in pieces the highest of
theirs, is above one half; its wrong pieces are then replaced by the likeliest that the correction head knows.

Source: Fan et al., "Negative Sample is Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval"
(TAGS-DC), Findings of NAACL 2022, sections 2.4 and 4.4.

Shapes: B images, T captions of a split, N sentences, W tokens, M labelled positions, V token ids, d width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import UNKNOWN, Vocabulary
from itrpipe.learning.sentences import NO_WORD
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter.network import UniterEncoder, UniterImages
from itrpipe.synthesis.tokens import Spelled, respell
from itrpipe.training.captions import PieceIds, special_tokens, token_captions
from itrpipe.training.saved import SavedModel

THRESHOLD = 0.5
"""Probability of a mismatch above which a word counts as wrong. Source: TAGS-DC, section 4.4."""


class ReadTokens(NamedTuple):
    """What the model makes of N sentences, each with an image.

    Attributes:
        scores: float32 [N], raw, higher for a better match.
        mismatch: float32 [N, W], probability that a token does not belong to the image; 0 for start, end and padding.
        corrections: int64 [N, W], what should stand at the positions that are wrong or were asked for; elsewhere the
            tokens of the sentence.
    """

    scores: np.ndarray
    mismatch: np.ndarray
    corrections: np.ndarray


class CorrectedSentence(NamedTuple):
    """A sentence beside an image.

    Attributes:
        sentence: as it is given.
        mismatch: float32 [words], probability that a word does not belong to the image; of the words that are read.
        corrected: the sentence with what should stand at its wrong words.
        corrected_tokens: int64 [W], the same as tokens.
        score: probability that the sentence matches the image, 0..1.
    """

    sentence: Spelled
    mismatch: np.ndarray
    corrected: Spelled
    corrected_tokens: np.ndarray
    score: float

    @property
    def flagged(self) -> np.ndarray:
        """bool [words], words that count as wrong."""
        return self.mismatch > THRESHOLD


def trains_word_heads(settings: Mapping[str, Any]) -> bool:
    """Whether a model of these settings of `itrpipe train` learns which of its words are wrong."""
    return settings["loss"].get("weight_discrimination", 0.0) > 0


def has_word_heads(saved: SavedModel) -> bool:
    """Whether a model was trained to find wrong words, and its tokenizer tells which characters a piece is of."""
    located = isinstance(saved.tokens, Vocabulary) or (
        isinstance(saved.tokens, PieceIds) and saved.tokens.tokenizer.is_fast
    )
    return located and "words" in saved.settings.answers and trains_word_heads(saved.config)


class WordReader:
    """Reads sentences made of the captions of a split with the word heads of a model.

    Args:
        saved: a model for which `has_word_heads` holds.
        split: the captions.
        device: `cpu` or `cuda`.

    Attributes:
        captions: as the model reads them.
        specials: token ids that are no words.
        corrects: whether it was trained to correct words; otherwise it leaves every sentence as it is.
        unknown_id: token id of words that the model does not know; None where its tokenizer spells every word.
    """

    def __init__(self, saved: SavedModel, split: Split, device: torch.device | str) -> None:
        self._model = cast(UniterEncoder, saved.model.to(device))
        self._device = torch.device(device)
        self.captions = token_captions(split, saved.tokens, self._model)
        self.specials = special_tokens(saved.tokens, self.captions.pieces)
        self.corrects = saved.config["loss"]["weight_correction"] > 0
        self.unknown_id = saved.tokens.tokenizer.unk_token_id if isinstance(saved.tokens, PieceIds) else UNKNOWN

    @property
    def max_tokens(self) -> int:
        """Tokens of a sentence that the model has positions for, start and end included."""
        return self._model.text.max_tokens

    def embed(self, images: ImageBatch) -> UniterImages:
        """Images [B] as the encoder reads them."""
        with torch.inference_mode():
            return self._model.encode_images(images.to(self._device))

    @torch.inference_mode()
    def read(
        self, images: UniterImages, image_rows: np.ndarray, rows: np.ndarray, tokens: np.ndarray, asked: np.ndarray
    ) -> ReadTokens:
        """Reads N sentences, each with an image.

        Args:
            images: embedded.
            image_rows: int64 [N], row of each sentence's image among these.
            rows: int64 [N], caption that each sentence has its words from.
            tokens: int64 [N, W].
            asked: bool [N, W], positions whose correction is wanted also where the word is not found wrong.
        """
        states = self._states(images, image_rows, rows, tokens)
        scores = self._model.rank_score(states[:, 0]).cpu().numpy()
        mismatch = self._model.word_match_logits(states).float().softmax(dim=-1)[..., 0].cpu().numpy()
        mismatch[self.captions.words[rows, : tokens.shape[1]] == NO_WORD] = 0.0
        corrections = tokens.copy()
        if self.corrects:
            wanted = (mismatch > THRESHOLD) | asked
            corrections[wanted] = self._likeliest(states[torch.from_numpy(wanted).to(self._device)])
        return ReadTokens(scores, mismatch, corrections)

    @torch.inference_mode()
    def masked_word_logits(
        self, images: UniterImages, image_rows: np.ndarray, rows: np.ndarray, tokens: np.ndarray, labelled: np.ndarray
    ) -> Tensor:
        """What stands at labelled positions bool [N, W], float32 [M, V], sentence by sentence; others as for `read`."""
        states = self._states(images, image_rows, rows, tokens)
        return self._model.masked_word_logits(states[torch.from_numpy(labelled).to(self._device)]).float()

    def corrected(self, rows: np.ndarray, tokens: np.ndarray, read: ReadTokens) -> list[CorrectedSentence]:
        """The sentences as text with their words and what these should be; the arguments are those of `read`."""
        fixed = np.where(read.mismatch > THRESHOLD, read.corrections, tokens)
        words = self.captions.words[rows, : tokens.shape[1]]
        chances = word_maxima(read.mismatch, words)
        return [
            CorrectedSentence(
                sentence=respell(self.captions, row, tokens[number]),
                mismatch=chances[number, : words[number].max() + 1],
                corrected=respell(self.captions, row, fixed[number]),
                corrected_tokens=fixed[number],
                score=match_probability(read.scores[number]),
            )
            for number, row in enumerate(rows.tolist())
        ]

    def _states(self, images: UniterImages, image_rows: np.ndarray, rows: np.ndarray, tokens: np.ndarray) -> Tensor:
        """Last states [N, W, d] of the tokens of sentences."""
        if not len(rows):
            return torch.zeros(0, tokens.shape[1], self._model.settings.embed_dim, device=self._device)
        lengths = torch.from_numpy(self.captions.lengths[rows])
        texts = self._model.encode_texts(TextBatch(torch.from_numpy(tokens), lengths).to(self._device))
        places = torch.from_numpy(image_rows), torch.arange(len(rows))
        return self._model.read_at(images, texts, *places, tokens.shape[1], lambda states: states)

    def _likeliest(self, states: Tensor) -> np.ndarray:
        """Words int64 [M] that should stand at positions with these states [M, d]."""
        logits = self._model.correction_logits(states).float()
        logits[:, list(self.specials.all)] = float("-inf")
        return logits.argmax(dim=1).cpu().numpy()


def match_probability(score: float) -> float:
    """The probability of a match that a raw score stands for, 0..1."""
    return 1.0 / (1.0 + math.exp(-score)) if score > 0 else math.exp(score) / (1.0 + math.exp(score))


def word_maxima(values: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The highest of the values [N, W] of the tokens of every word, [N, words]; 0 where a sentence has fewer words.

    Args:
        values: not negative.
        words: int64 [N, W], number of the word that each token is part of; `NO_WORD` for others.
    """
    found = np.zeros((len(values), int(words.max(initial=NO_WORD)) + 1), values.dtype)
    sentence, place = np.nonzero(words != NO_WORD)
    np.maximum.at(found, (sentence, words[sentence, place]), values[sentence, place])
    return found
