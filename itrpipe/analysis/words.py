"""The word heads of TAGS-DC: which words of a sentence do not belong to an image, and what should stand there.

A word counts as wrong where the probability that it does not match the image, of a word in pieces the highest of
theirs, is above one half; its wrong pieces are then replaced by the likeliest that the correction head knows.

How well a model does that is tested with sentences that it writes itself. The captions of a split are masked as in
training, phrase by phrase or word by word, and refilled by the model, so which words are wrong is known: those that are
not the caption's own. Sentences that are the caption itself, that say nothing but what other captions of the image say,
or that stand there twice are left out, as in training. Unlike there, all that is refilled was masked: no random words,
and no special tokens are written.

Source: Fan et al., "Negative Sample is Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval"
(TAGS-DC), Findings of NAACL 2022, sections 2.4 and 4.4, Table 4 and Fig. 4. The paper does not say how its test
sentences were chosen; here every sentence counts that the filters let through. Nor does it say where corrections count:
at all words that were masked, where the loss is computed (often the caption says what was written), or at the wrong
ones alone; here both are counted.

Shapes: B images, T captions of a split or a block, K masked copies of each, L draws for each copy, N sentences,
W tokens, M labelled positions, V token ids, d width.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import UNKNOWN
from itrpipe.learning import sentences as synthetic
from itrpipe.learning.sentences import NO_WORD, UNLABELLED
from itrpipe.methods.tags_dc.declaration import TagsDc
from itrpipe.models.base import ImageBatch, RegionEncoding, TextBatch
from itrpipe.models.captions import PieceIds
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.synthesis.language_model import LanguageModel, mean_perplexity
from itrpipe.synthesis.tokens import Spelled, caption_masks, respell, special_tokens, token_captions
from itrpipe.training.batches import blocks
from itrpipe.training.data import SplitData
from itrpipe.training.saved import SavedModel

THRESHOLD = 0.5
"""Probability of a mismatch above which a word counts as wrong. Source: TAGS-DC, section 4.4."""
CAPTIONS = 500
COPIES = 4
"""Masked copies of a caption."""
DRAWS = 4
"""Refills of each copy."""
BLOCK = 32
"""Captions at a time. What is drawn depends on it."""


class ReadTokens(NamedTuple):
    """N sentences as the model reads them, each with an image.

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
        corrected: the sentence with its wrong words replaced.
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
        """Return which words count as wrong, bool [words]."""
        return self.mismatch > THRESHOLD


def trains_word_heads(settings: Mapping[str, Any]) -> bool:
    """Tell whether a model of these settings of `itrpipe train` learns which of its words are wrong."""
    return settings["loss"].get("weight_discrimination", 0.0) > 0


def has_word_heads(saved: SavedModel) -> bool:
    """Tell whether a model was trained to find wrong words, and its tokenizer tells which characters a piece is of."""
    if isinstance(saved.tokens, PieceIds) and not saved.tokens.tokenizer.is_fast:
        return False
    return "words" in saved.settings.answers and trains_word_heads(saved.config)


class WordReader:
    """Reader of sentences made of the captions of a split with the word heads of a model.

    Args:
        saved: a model for which `has_word_heads` holds.
        split: the captions.
        device: `cpu` or `cuda`.

    Attributes:
        max_tokens: tokens of a sentence that the model has positions for, start and end included.
        captions: as the model reads them.
        specials: token ids that are no words.
        corrects: whether it was trained to correct words; otherwise it leaves every sentence as it is.
        unknown_id: token id of words that the model does not know; None where its tokenizer spells every word.
    """

    def __init__(
        self,
        saved: SavedModel,
        split: Split,
        device: torch.device | str,
    ) -> None:
        self._model: UniterEncoder = saved.model.to(device)
        self._device = torch.device(device)
        self.max_tokens = self._model.text.max_tokens
        self.captions = token_captions(split, saved.tokens, self.max_tokens)
        self.specials = special_tokens(saved.tokens, self.captions.pieces)
        self.corrects = saved.config["loss"]["weight_correction"] > 0
        self.unknown_id = UNKNOWN
        if isinstance(saved.tokens, PieceIds):
            self.unknown_id = saved.tokens.tokenizer.unk_token_id

    @torch.inference_mode()
    def embed(self, images: ImageBatch) -> RegionEncoding:
        """Return images [B] as the encoder reads them."""
        return self._model.encode_images(images.to(self._device))

    @torch.inference_mode()
    def read(
        self,
        images: RegionEncoding,
        image_rows: np.ndarray,
        rows: np.ndarray,
        tokens: np.ndarray,
        also_corrected: np.ndarray | bool = False,
    ) -> ReadTokens:
        """Read N sentences, each with an image.

        Args:
            images: embedded.
            image_rows: int64 [N], row of each sentence's image among these.
            rows: int64 [N], caption that each sentence has its words from.
            tokens: int64 [N, W].
            also_corrected: bool [N, W], positions that have a correction even where the word does not count as wrong.
        """
        states = self._states(images, image_rows, rows, tokens)
        scores = self._model.rank_score(states[:, 0]).cpu().numpy()
        match_logits = self._model.word_match_logits(states).float()
        probabilities = match_logits.softmax(dim=-1)
        mismatch = probabilities[..., 0].cpu().numpy()
        words = self.captions.words[rows, : tokens.shape[1]]
        mismatch[words == NO_WORD] = 0.0
        corrections = tokens.copy()
        if self.corrects:
            is_corrected = (mismatch > THRESHOLD) | also_corrected
            positions = torch.from_numpy(is_corrected).to(self._device)
            logits = self._model.correction_logits(states[positions]).float()
            logits[:, list(self.specials.all)] = float("-inf")
            corrections[is_corrected] = logits.argmax(dim=1).cpu().numpy()
        return ReadTokens(scores, mismatch, corrections)

    @torch.inference_mode()
    def masked_word_logits(
        self,
        images: RegionEncoding,
        image_rows: np.ndarray,
        rows: np.ndarray,
        tokens: np.ndarray,
        labelled: np.ndarray,
    ) -> Tensor:
        """Return logits float32 [M, V] of labelled positions bool [N, W], by sentence; others are as for `read`."""
        states = self._states(images, image_rows, rows, tokens)
        positions = torch.from_numpy(labelled).to(self._device)
        return self._model.masked_word_logits(states[positions]).float()

    def corrected(
        self,
        rows: np.ndarray,
        tokens: np.ndarray,
        read: ReadTokens,
    ) -> list[CorrectedSentence]:
        """Return sentences as text beside their correction; rows and tokens are the arguments of `read`."""
        is_wrong = read.mismatch > THRESHOLD
        corrected_tokens = np.where(is_wrong, read.corrections, tokens)
        words = self.captions.words[rows, : tokens.shape[1]]
        mismatch = word_maxima(read.mismatch, words)
        sentences = []
        for number, row in enumerate(rows.tolist()):
            last_word = words[number].max()
            sentence = CorrectedSentence(
                sentence=respell(self.captions, row, tokens[number]),
                mismatch=mismatch[number, : last_word + 1],
                corrected=respell(self.captions, row, corrected_tokens[number]),
                corrected_tokens=corrected_tokens[number],
                score=itm_probability(read.scores[number]),
            )
            sentences.append(sentence)
        return sentences

    def _states(
        self,
        images: RegionEncoding,
        image_rows: np.ndarray,
        rows: np.ndarray,
        tokens: np.ndarray,
    ) -> Tensor:
        """Return last states [N, W, d] of the tokens of sentences."""
        lengths = torch.from_numpy(self.captions.lengths[rows])
        batch = TextBatch(torch.from_numpy(tokens), lengths).to(self._device)
        texts = self._model.encode_texts(batch)
        return self._model.read_at(
            images,
            texts,
            torch.from_numpy(image_rows),
            torch.arange(len(rows)),
            tokens.shape[1],
            lambda states: states,
        )


def itm_probability(score: float) -> float:
    """Return the probability 0..1 of a match that a raw score of the head for image-text matching stands for."""
    return (1.0 + math.tanh(score / 2)) / 2


def word_maxima(values: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Return the highest of the values [N, W] of the tokens of every word, [N, words]; 0 where there are fewer words.

    Args:
        values: not negative.
        words: int64 [N, W], number of the word that each token is part of; `NO_WORD` for others.
    """
    last_word = int(words.max(initial=NO_WORD))
    maxima = np.zeros((len(values), last_word + 1), values.dtype)
    sentences, positions = np.nonzero(words != NO_WORD)
    cells = sentences, words[sentences, positions]
    np.maximum.at(maxima, cells, values[sentences, positions])
    return maxima


class WordTest:
    """Test of a model with the captions of a split.

    Args:
        saved: for which `has_word_heads` holds.
        data: images and captions as the model reads them.
        device: `cpu` or `cuda`.
        graphs: artifact of `itrpipe parse` that a model was trained with which masks phrases; None for others.

    Raises:
        DataError: a caption has no scene graph.
    """

    def __init__(
        self,
        saved: SavedModel,
        data: SplitData,
        device: str,
        graphs: Path | None,
    ) -> None:
        self._reader = WordReader(saved, data.split, device)
        self._data = data
        self._device = torch.device(device)
        self._trained = TagsDc.model_validate(saved.config["loss"])
        self._masks = caption_masks(self._reader.captions, saved.tokens, graphs, self._trained.compare)

    @torch.inference_mode()
    def run(
        self,
        captions: int = CAPTIONS,
        language_model: LanguageModel | None = None,
    ) -> dict[str, Any]:
        """Write sentences and read them.

        Args:
            captions: tested at most, chosen at random.
            language_model: measures how fluent they are.

        Returns:
            `captions`, how many; `mask`, what of them was masked together; `drawn`, sentences by what became of them;
            `discrimination` of `all` words, of those that are the caption's (`matching`) and of the others
            (`mismatching`), `correction` of the latter and `correction_masked` of all words that were masked, be what
            was written the caption's own: `percent` of `words` that are right, None where there is none, and None for
            both corrections where the model was not trained to correct; `below_caption`: `percent` of `sentences` that
            score below their caption. Words are tokens, so pieces of words where a tokenizer cuts them. With a language
            model also `fluency`: of `sentences`, the one of each caption with the highest score, the mean perplexities
            as `written` and `corrected`, and that of their `captions`; None without a sentence, and of the corrected
            ones where the model was not trained to correct. TAGS-DC, Table 3, does not say which sentences.
        """
        reader = self._reader
        split = reader.captions.split
        rng = np.random.default_rng(0)
        shuffled = rng.permutation(len(split.caption_ids))
        chosen = np.sort(shuffled[:captions])
        drawn = Counter()
        right = Counter()
        counted = Counter()
        texts = {"captions": [], "written": [], "corrected": []}
        for part in blocks(len(chosen), BLOCK):
            block = chosen[part]
            images = reader.embed(self._data.images(split.caption_image[block]))
            width = int(reader.captions.lengths[block].max())
            caption_tokens = reader.captions.tokens[block, :width]
            owners, tokens, masked = self._write(block, images, caption_tokens, rng, drawn)
            if not len(owners):
                continue
            rows = block[owners]
            read = reader.read(images, owners, rows, tokens, masked)
            captions_read = reader.read(images, np.arange(len(block)), block, caption_tokens)

            is_word = reader.captions.words[rows, :width] != NO_WORD
            is_wrong = (tokens != caption_tokens[owners]) & is_word
            is_flagged = (read.mismatch > THRESHOLD) & is_word
            is_mended = read.corrections == caption_tokens[owners]
            is_below = read.scores < captions_read.scores[owners]
            for name, is_right, is_counted in (
                ("matching", ~is_flagged, is_word & ~is_wrong),
                ("mismatching", is_flagged, is_wrong),
                ("correction", is_mended, is_wrong),
                ("correction_masked", is_mended, masked),
                ("below_caption", is_below, np.ones_like(is_below)),
            ):
                right[name] += int((is_right & is_counted).sum())
                counted[name] += int(is_counted.sum())

            order = np.lexsort((-read.scores, owners))  # by caption, the highest score first
            _, first = np.unique(owners[order], return_index=True)
            best = order[first]
            best_read = ReadTokens(read.scores[best], read.mismatch[best], read.corrections[best])
            sentences = reader.corrected(rows[best], tokens[best], best_read)
            for row, sentence in zip(rows[best].tolist(), sentences, strict=True):
                texts["captions"].append(split.texts[row])
                texts["written"].append(sentence.sentence.text)
                if reader.corrects:
                    texts["corrected"].append(sentence.corrected.text)

        figures: dict[str, Any] = {
            "captions": len(chosen),
            "mask": self._trained.mask,
            "drawn": dict(sorted(drawn.items())),
            **self._shares(right, counted),
        }
        if language_model is not None:
            fluency: dict[str, Any] = {"sentences": len(texts["written"])}
            for kind, lines in texts.items():
                fluency[kind] = mean_perplexity(language_model.perplexities(lines))
            figures["fluency"] = fluency
        return figures

    def _shares(self, right: Counter[str], counted: Counter[str]) -> dict[str, Any]:
        """Return the figures of `run` that are shares of words or sentences, of their counts by name."""
        for counts in (right, counted):
            counts["all"] = counts["matching"] + counts["mismatching"]
        shares: dict[str, Any] = {}
        for name in (
            "all",
            "matching",
            "mismatching",
            "correction",
            "correction_masked",
            "below_caption",
        ):
            unit = "words"
            if name == "below_caption":
                unit = "sentences"
            shares[name] = {"percent": None, unit: counted[name]}
            if counted[name]:
                shares[name]["percent"] = 100.0 * right[name] / counted[name]
        if not self._reader.corrects:
            shares["correction"] = None
            shares["correction_masked"] = None
        discrimination = {name: shares.pop(name) for name in ("all", "matching", "mismatching")}
        return {"discrimination": discrimination, **shares}

    def _write(
        self,
        block: np.ndarray,
        images: RegionEncoding,
        caption_tokens: np.ndarray,
        rng: np.random.Generator,
        drawn: Counter[str],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mask, refill and filter captions of a block with tokens int64 [T, W]; count in `drawn` what became of it.

        Returns:
            Of the sentences that the filters let through the number of each one's caption in the block, int64 [N];
            their tokens, int64 [N, W]; and what the model wrote, be it the caption's own, bool [N, W].
        """
        count, width = caption_tokens.shape
        copies, labels = self._masks.draw(block, width, COPIES, False, rng)
        owners = np.repeat(np.arange(count), COPIES)
        labelled = labels != UNLABELLED
        logits = self._reader.masked_word_logits(images, owners, block[owners], copies, labelled)
        seed = int(rng.integers(2**63))
        refilled = synthetic.refill(
            torch.from_numpy(copies).to(self._device),
            torch.from_numpy(labels).to(self._device),
            logits,
            DRAWS,
            self._trained.temperature,
            self._masks.specials.all,
            torch.Generator(self._device).manual_seed(seed),
        )  # [T K, L, W]
        sentences = refilled.view(count, -1, width)
        sibling_tokens = self._masks.known(block)
        if sibling_tokens is not None:
            sibling_tokens = sibling_tokens.to(self._device)
        own_tokens = torch.from_numpy(caption_tokens).to(self._device)
        reasons = synthetic.reject(sentences, own_tokens, sibling_tokens)
        for reason in reasons.flatten().tolist():
            drawn[synthetic.REASONS[reason]] += 1
        is_kept = reasons == synthetic.KEPT
        numbers, places = is_kept.cpu().numpy().nonzero()
        masked = labelled.reshape(count, COPIES, width)[numbers, places // DRAWS]
        return numbers, sentences[is_kept].cpu().numpy(), masked
