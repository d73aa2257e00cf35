"""Sentences of whole training sets by a masked language model that sees the image: masked, refilled, filtered, ranked.

Source: TAGS-DC, sections 2.1 and 2.2; there the sentences of a caption are made anew in every training step.

Shapes: T captions of a block, K masked copies of each, L draws for each copy, N = K L, W tokens, V token ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from itrpipe.models.base import TextBatch
from itrpipe.negatives import synthetic
from itrpipe.negatives.caption_masks import Candidates, CaptionMasks, Compare, SpecialTokens
from itrpipe.negatives.masking import UNLABELLED
from itrpipe.synthesis.captions import CONTINUATION, TokenCaptions
from itrpipe.synthesis.edits import Edit, apply_edits
from itrpipe.synthesis.sentences import Sentence


class SentenceModel(Protocol):
    """A model that writes words and ranks sentences; it is in evaluation mode and needs no gradient."""

    def mlm_logits(self, images: Tensor, texts: TextBatch, labelled: Tensor) -> Tensor:
        """What stands at masked positions.

        Args:
            images: int64 [S], rows of the images of the training set.
            texts: S masked captions.
            labelled: bool [S, W], the M positions that are asked for.

        Returns:
            [M, V], caption by caption and from left to right.
        """
        ...

    def rank(self, images: Tensor, texts: TextBatch) -> Tensor:
        """Raw scores [n] of image rows [n] with n captions, higher for a better match."""
        ...


@dataclass(frozen=True)
class ModelSettings:
    """How sentences are made.

    Attributes:
        copies: K, masked copies of a caption.
        draws: L, refills of a copy.
        keep: m, sentences kept of a caption, the hardest.
        temperature: tau of the draws.
        noise: put random words at 10 % of the labelled positions and leave 10 % as they are.
        exclude_specials: never draw start, end, padding, the unknown word or the mask.
        compare: the filter against false negatives compares token ids with the captions of the image (`piece`); `off`
            leaves it out.
        write_rejected: give the sentences that were rejected as well, each once.
        seed: of everything random.
    """

    copies: int = 20
    draws: int = 20
    keep: int = 31
    temperature: float = 1.5
    noise: bool = True
    exclude_specials: bool = True
    compare: Compare = "piece"
    write_rejected: bool = False
    seed: int = 0


class _Made(NamedTuple):
    """The sentences of a block, on the CPU.

    Attributes:
        sentences: int64 [T, N, W].
        reasons: int64 [T, N].
        scores: float32 [T, N], -inf where nothing was scored.
        positive: float32 [T].
        likely, own: float32 [T, N], log-probabilities of the written words, and of the caption's in their places.
        repeated: bool [T, N], sentences that follow once more.
    """

    sentences: np.ndarray
    reasons: np.ndarray
    scores: np.ndarray
    positive: np.ndarray
    likely: np.ndarray
    own: np.ndarray
    repeated: np.ndarray


class ModelMaker:
    """Makes sentences with a model; see `itrpipe.synthesis.make.SentenceMaker`.

    Args:
        captions: of the training set.
        model: writes and ranks.
        candidates: rows [T] of captions to bool [T, P, words], words that are masked together, see
            `itrpipe.synthesis.captions.GraphCandidates`; None masks single tokens.
        settings: how.
        specials: token ids that are no words.
        device: where the model is.
    """

    def __init__(
        self,
        captions: TokenCaptions,
        model: SentenceModel,
        candidates: Candidates | None,
        settings: ModelSettings,
        specials: SpecialTokens,
        device: torch.device | str = "cpu",
    ) -> None:
        self._captions, self._model = captions, model
        self._settings, self._device = settings, device
        self._excluded = specials.all if settings.exclude_specials else ()
        self._masks = CaptionMasks(
            captions.tokens,
            captions.words,
            captions.image_rows,
            candidates,
            specials,
            settings.compare,
        )

    @torch.inference_mode()
    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        """See `SentenceMaker`."""
        chosen = np.arange(rows.start, rows.stop)
        made = self._draw(chosen, np.random.default_rng([self._settings.seed, block]))
        reasons = Counter(synthetic.REASONS[reason] for reason in made.reasons.ravel().tolist())
        return self._sentences(chosen, made), dict(sorted(reasons.items()))

    def _draw(self, rows: np.ndarray, rng: np.random.Generator) -> _Made:
        """Masks, refills, filters and ranks in one pass of the model over the masked copies and one over the rest."""
        settings = self._settings
        width = int(self._captions.lengths[rows].max())
        tokens = self._captions.tokens[rows, :width]
        masked = self._masks.draw(rows, width, settings.copies, settings.noise, rng)
        copies, labels, captions, images, lengths = (
            torch.from_numpy(each).to(self._device)
            for each in (
                masked.tokens.reshape(-1, width),
                masked.labels.reshape(-1, width),
                tokens,
                self._captions.image_rows[rows],
                self._captions.lengths[rows],
            )
        )
        texts = TextBatch(copies, lengths.repeat_interleave(settings.copies))
        repeated_images = images.repeat_interleave(settings.copies)
        logits = self._model.mlm_logits(repeated_images, texts, labels != UNLABELLED)
        generator = torch.Generator(self._device).manual_seed(int(rng.integers(2**63)))
        drawn = synthetic.refill(
            copies, labels, logits, settings.draws, settings.temperature, self._excluded, generator
        )  # [T K, L, W]
        likely = synthetic.log_probabilities(drawn, labels, logits)
        own = synthetic.log_probabilities(captions.repeat_interleave(settings.copies, 0)[:, None], labels, logits)
        sentences = drawn.view(len(rows), -1, width)

        def score(owners: Tensor, found: Tensor) -> Tensor:
            return self._model.rank(images[owners], TextBatch(found, lengths[owners]))

        known = self._masks.known(rows)
        reasons = synthetic.reject(sentences, captions, None if known is None else known.to(self._device))
        scores = synthetic.score_kept(score, sentences, reasons)
        reasons = synthetic.mark_outranked(reasons, synthetic.select_hardest(scores, settings.keep))
        positive = self._model.rank(images, TextBatch(captions, lengths)).float()
        likely, own = (each.expand_as(likely).reshape(reasons.shape) for each in (likely, own))
        repeated = synthetic.repeated_later(sentences)
        return _Made(*(each.cpu().numpy() for each in (sentences, reasons, scores, positive, likely, own, repeated)))

    def _sentences(self, rows: np.ndarray, made: _Made) -> list[Sentence]:
        """The rows of the file: of every caption the kept ones, hardest first, then the others if they are wanted."""
        kept = made.reasons == synthetic.KEPT
        written = kept | (~made.repeated & self._settings.write_rejected)
        owner, number = np.nonzero(written)
        order = np.lexsort((number, -made.scores[owner, number], ~kept[owner, number], owner))
        return [
            self._sentence(int(rows[row]), row, at, made) for row, at in zip(owner[order], number[order], strict=True)
        ]

    def _sentence(self, caption: int, row: int, number: int, made: _Made) -> Sentence:
        captions, score = self._captions, float(made.scores[row, number])
        edits = self._edits(caption, made.sentences[row, number])
        text = captions.texts[caption]
        reason = synthetic.REASONS[made.reasons[row, number]]
        return Sentence(
            caption_id=captions.caption_ids[caption],
            image_id=captions.image_ids[int(captions.image_rows[caption])],
            text=apply_edits(text, captions.spans[caption][:, 0].tolist(), edits),
            edits=edits,
            score=score if np.isfinite(score) else None,
            positive_score=float(made.positive[row]),
            log_probability=float(made.likely[row, number]),
            caption_log_probability=float(made.own[row, number]),
            kept=reason == "kept",
            reason=reason,
        )

    def _edits(self, caption: int, tokens: np.ndarray) -> list[Edit]:
        """The words of a caption that other tokens stand for, as text."""
        captions = self._captions
        own, words = captions.tokens[caption, : len(tokens)], captions.words[caption, : len(tokens)]
        pieces = [captions.pieces[token] for token in map(int, tokens)]
        edits = []
        for first, last in _runs(np.unique(words[tokens != own]).tolist(), words, pieces):
            start, end = int(captions.spans[caption][first, 0]), int(captions.spans[caption][last, 1])
            inside = np.flatnonzero((words >= first) & (words <= last)).tolist()
            text, new = captions.texts[caption], _spell([pieces[at] for at in inside])
            # A word in place of a punctuation mark would go on with the word before it.
            apart = " " if start and text[start - 1].isalnum() and new[:1].isalnum() else ""
            edits.append(Edit(first, text[start:end], apart + new))
        return edits


def _runs(changed: Sequence[int], words: np.ndarray, pieces: Sequence[str]) -> list[tuple[int, int]]:
    """First and last word of what is written anew: changed words, with those before them that they now go on with.

    Args:
        changed: numbers of words, rising.
        words: int64 [W], word of each token.
        pieces: W tokens.
    """
    runs: list[tuple[int, int]] = []
    for word in changed:
        first = word
        while first > 0 and pieces[int(np.argmax(words == first))].startswith(CONTINUATION):
            first -= 1
        if runs and first <= runs[-1][1]:
            first = min(first, runs.pop()[0])
        runs.append((first, word))
    return runs


def _spell(pieces: Sequence[str]) -> str:
    """Pieces as text."""
    spelled = (piece.removeprefix(CONTINUATION) if piece.startswith(CONTINUATION) else f" {piece}" for piece in pieces)
    return "".join(spelled).strip()
