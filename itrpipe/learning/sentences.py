"""Negative sentences that a masked language model writes: masked copies of captions, refilled, filtered and ranked.

    masked, labels = masks.draw(rows, width, copies, noise, rng)                    [S, W] of `CaptionMasks`
    refilled = refill(masked, labels, logits, draws, temperature)                   [S, L, W] of S masked copies
    reasons = reject(sentences, captions, known)                                    [T, N], N = K L
    scores = score_kept(score, sentences, reasons)                                  [T, N]
    rows, real = select_hardest(scores, most)                                       [T, m]

A caption comes with candidates, sets of positions that are masked together: the objects, attributes and relations of
its scene graph, or single positions (`single_positions`), which is the usual masking of words. Each of K copies masks a
random choice of them, about 15 % of the words, and at least one. Nothing here loops over sentences, and none is scored
that a filter rejects or that stands there twice. Sentences that `itrpipe synthesize` kept are in a `SentenceBank`.

Source: Fan et al., "Negative Sample is Negative in Its Own Way: Tailoring Negative Sentences for Image-Text Retrieval"
(TAGS-DC), Findings of NAACL 2022, sections 2.1.1 (masking and refilling, Eq. 2), 2.1.2 (filter) and 2.2 (Eq. 6). That a
position which lies in several candidates counts less, that some labelled words are not masked, and that no copy is left
unmasked is in the released code only.

Shapes: T captions, P candidates of a caption, K masked copies of each, S = T K, L draws for each copy, N = K L
sentences of a caption, W positions, M labelled positions of all copies, V token ids, m sentences that are kept.
Sentence n of a caption is draw n % L of its copy n // L.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from itrpipe.models.base import TextBatch
from itrpipe.storage.arrays import Ragged

NO_WORD = -1
"""In place of the number of a word, for tokens that are part of none."""
UNLABELLED = -1
"""Label of a position that nothing is written at."""
MASK_RATE = 0.15
"""Share of the words that a masked copy hides."""
_MASKED = 0.8
_NOT_RANDOM = 0.9

KEPT, IDENTICAL, FALSE_NEGATIVE, DUPLICATE, OUTRANKED = range(5)
REASONS = ("kept", "identical", "false negative", "duplicate", "outranked", "guessed", "no twin")
"""Fate of a sentence: the number of a reason is its position here. Those of rules may be `guessed` without the
image, or be true of no image that is known."""

Compare = Literal["piece", "off"]
Candidates = Callable[[np.ndarray], np.ndarray]
"""Rows [T] of captions to bool [T, P, words], words that are masked together."""
ScoreSentences = Callable[[Tensor, Tensor], Tensor]
"""Numbers [n] of captions and sentences [n, W] to scores [n] with the images of these captions, higher for a match."""


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids that are no words.

    Attributes:
        mask_id: of `[MASK]`.
        others: padding, start, end, unknown and the like.
        random_ids: first token id of ordinary words, and one more than the last.
    """

    mask_id: int
    others: tuple[int, ...]
    random_ids: tuple[int, int]

    @property
    def all(self) -> tuple[int, ...]:
        """`[MASK]` and the others."""
        return (self.mask_id, *self.others)


@dataclass(frozen=True)
class CaptionMasks:
    """The captions of a training set, for those who mask them and write something else.

    Attributes:
        tokens: int64 [T, W], padded with 0.
        words: int64 [T, W], number of the word that each token is part of; `NO_WORD` for start, end and padding.
        image_rows: int64 [T], row of each caption's image.
        candidates: what is masked together; None masks single tokens.
        specials: token ids that are no words.
        compare: whether refilled tokens are compared with those of the captions of the image (`piece`, or `off`).
    """

    tokens: np.ndarray
    words: np.ndarray
    image_rows: np.ndarray
    candidates: Candidates | None
    specials: SpecialTokens
    compare: Compare

    @cached_property
    def _captions_of(self) -> Ragged:
        return Ragged.of_owners(self.image_rows, int(self.image_rows.max()) + 1)

    def draw(
        self, rows: np.ndarray, width: int, copies: int, noise: bool, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Masked copies of captions and their labels, int64 [T K, W] each, those of a caption together.

        Args:
            rows: [T] of the captions.
            width: W, tokens of the longest of them.
            copies, noise, rng: see `mask_captions`.
        """
        words = self.words[rows, :width]
        maskable = words != NO_WORD
        if self.candidates is None:
            candidates = single_positions(maskable)
        else:
            candidates = over_pieces(self.candidates(rows), words)
            bare = ~np.any(candidates, axis=(1, 2))
            if bare.any():  # single positions for captions that have no candidate
                candidates = np.concatenate([candidates, single_positions(maskable & bare[:, None])], axis=1)
        masked, labels = mask_captions(self.tokens[rows, :width], candidates, copies, self.specials, noise, rng)
        return masked.reshape(-1, width), labels.reshape(-1, width)

    def known(self, rows: np.ndarray) -> Tensor | None:
        """Sorted tokens int64 [T, n] of all captions of the images of captions [T]; None where nothing is compared.

        What is no word stands there as -1.
        """
        if self.compare == "off":
            return None
        siblings = self._captions_of.take(self.image_rows[rows]).padded(fill=-1)[..., None]
        tokens = self.tokens[siblings[..., 0]]
        found = np.where((siblings < 0) | np.isin(tokens, self.specials.all), -1, tokens)
        return torch.from_numpy(np.sort(found.reshape(len(rows), -1), axis=1))


def single_positions(maskable: np.ndarray) -> np.ndarray:
    """Every position as a candidate of its own, bool [T, W, W]; those that are not `maskable` [T, W] have no member."""
    return np.eye(maskable.shape[1], dtype=bool) & maskable[:, None]


def over_pieces(candidates: np.ndarray, word_of_piece: np.ndarray) -> np.ndarray:
    """Candidates of words as candidates of the pieces that a tokenizer cuts words into; a word is masked as a whole.

    Args:
        candidates: bool [T, P, W], of words.
        word_of_piece: int [T, n], word that each piece is part of; -1 for start, end and padding.

    Returns:
        bool [T, P, n].
    """
    ends = np.pad(candidates, ((0, 0), (0, 0), (0, 1)))  # number -1 finds what no candidate has
    return np.take_along_axis(ends, word_of_piece[:, None], axis=2)


def selection_rates(candidates: np.ndarray) -> np.ndarray:
    """Compute the probability that a candidate is masked.

    Args:
        candidates: bool [T, P, W].

    Returns:
        float64 [T, P]: the mean over its positions of `MASK_RATE` / (number of candidates with this position); 0 for a
        candidate without positions.
    """
    shared = MASK_RATE / np.maximum(candidates.sum(axis=1), 1)  # [T, W]
    return np.einsum("tpw,tw->tp", candidates, shared) / np.maximum(candidates.sum(axis=2), 1)


def mask_captions(
    tokens: np.ndarray,
    candidates: np.ndarray,
    copies: int,
    specials: SpecialTokens,
    noise: bool,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Masks every caption several times, each time at random.

    A candidate is chosen with its rate; where none is, one of them is, all being equally probable. A caption without
    any candidate comes back unchanged and unlabelled.

    Args:
        tokens: int [T, W].
        candidates: bool [T, P, W], those without a position are never chosen.
        copies: K.
        specials: what masks, and which ids are words.
        noise: put random words at 10 % of the labelled positions and leave 10 % as they are; otherwise all are masked.
        rng: source of randomness.

    Returns:
        The copies, int64 [T, K, W], and their labels, likewise: the caption's own token at labelled positions,
        `UNLABELLED` elsewhere.
    """
    rates = selection_rates(candidates)  # [T, P]
    shape = (len(tokens), copies, candidates.shape[1])
    chosen = rng.random(shape) < rates[:, None]
    # The first of a random order is the one with the largest of independent keys.
    usable = np.any(candidates, axis=2)[:, None]
    keys = np.where(usable, rng.random(shape), -1.0)
    first = (keys == keys.max(axis=2, keepdims=True, initial=-1.0)) & usable
    chosen = np.where(chosen.any(axis=2, keepdims=True), chosen, first)

    labelled = np.matmul(chosen.astype(np.float32), candidates.astype(np.float32)) > 0  # [T, K, W]
    own = np.broadcast_to(tokens[:, None], labelled.shape).astype(np.int64)
    shown = np.full_like(own, specials.mask_id)
    if noise:
        lot = rng.random(own.shape)
        other = rng.integers(*specials.random_ids, size=own.shape)
        shown = np.where(lot < _MASKED, shown, np.where(lot < _NOT_RANDOM, other, own))
    return np.where(labelled, shown, own), np.where(labelled, own, UNLABELLED)


def refill(
    masked: Tensor,
    labels: Tensor,
    logits: Tensor,
    draws: int,
    temperature: float,
    excluded: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Writes drawn words at the labelled positions of masked copies, also at those that masking left as they were.

    All draws come from one forward pass; positions are independent of each other.

    Args:
        masked: int64 [S, W].
        labels: int64 [S, W], `UNLABELLED` where nothing is written.
        logits: [M, V] of the labelled positions, copy by copy and from left to right.
        draws: L.
        temperature: tau, above 0; higher draws less probable words more often.
        excluded: token ids that are never drawn.
        generator: source of randomness, on the device of the logits; None for torch's own.

    Returns:
        int64 [S, L, W].

    Source: TAGS-DC, Eq. 2.
    """
    labelled = labels != UNLABELLED
    assert masked.shape == labels.shape
    # What is NaN draws anything; the loss of the step shows it, where multinomial would end with a traceback.
    scaled = (logits.detach().float() / temperature).nan_to_num(nan=0.0, posinf=float("inf"), neginf=float("-inf"))
    if excluded:
        scaled[:, list(excluded)] = float("-inf")
    drawn = torch.multinomial(scaled.softmax(dim=1), draws, replacement=True, generator=generator)  # [M, L]
    columns = masked[:, :, None].expand(-1, -1, draws)  # [S, W, L]
    # Fills in the order of copies, positions, draws, without asking the device how many there are.
    return columns.masked_scatter(labelled[:, :, None], drawn).transpose(1, 2).contiguous()


def log_probabilities(sentences: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    """Compute the mean logarithm of the probabilities of the words at labelled positions, at temperature 1.

    Args:
        sentences: int64 [S, L, W], of `refill`, or any others.
        labels: int64 [S, W], `UNLABELLED` where nothing was written.
        logits: [M, V] of the labelled positions, as for `refill`.

    Returns:
        float32 [S, L]; 0 where a copy has no labelled position.
    """
    labelled = labels != UNLABELLED
    each = logits.float().log_softmax(dim=1).gather(1, sentences.transpose(1, 2)[labelled])  # [M, L]
    owner = labelled.nonzero(as_tuple=True)[0]
    sums = each.new_zeros(sentences.shape[:2]).index_add_(0, owner, each)
    return sums / labelled.sum(dim=1, keepdim=True).clamp(min=1)


def reject(sentences: Tensor, captions: Tensor, known: Tensor | None = None) -> Tensor:
    """Sort out sentences before any is scored.

    A sentence is rejected that equals its caption; one whose replaced tokens all occur in the captions of its image,
    since it may well be true of the image; and of equal sentences all but the last.

    Args:
        sentences: int64 [T, N, W].
        captions: int64 [T, W].
        known: int64 [T, n], of `CaptionMasks.known`; None leaves the second filter out.

    Returns:
        int64 [T, N]: `KEPT`, `IDENTICAL`, `FALSE_NEGATIVE` or `DUPLICATE`; the first that holds, in this order of the
        filters.

    Source: TAGS-DC, section 2.1.2. Its released code keeps the last of equal sentences as well.
    """
    changed = sentences != captions[:, None]
    reasons = torch.where(repeated_later(sentences), DUPLICATE, KEPT)
    if known is not None:
        written = sentences.flatten(1)  # [T, N W]
        place = torch.searchsorted(known, written).clamp(max=known.shape[1] - 1)
        said = (known.gather(1, place) == written).view_as(sentences)
        reasons = torch.where((said | ~changed).all(dim=2), FALSE_NEGATIVE, reasons)
    return torch.where(changed.any(dim=2), reasons, IDENTICAL)


def repeated_later(sentences: Tensor) -> Tensor:
    """Return bool [T, N], sentences [T, N, W] that the same caption has once more, further back."""
    count, width = sentences.shape[1:]
    owner = torch.arange(len(sentences), device=sentences.device).repeat_interleave(count)
    rows = torch.cat([owner[:, None], sentences.reshape(-1, width)], dim=1)
    _, group = rows.unique(dim=0, return_inverse=True)
    number = torch.arange(len(rows), device=rows.device)
    last = torch.zeros_like(number).scatter_reduce_(0, group, number, "amax")
    return (last[group] != number).view(sentences.shape[:2])


def score_kept(score: ScoreSentences, sentences: Tensor, reasons: Tensor) -> Tensor:
    """Scores of the sentences that no filter rejected.

    Args:
        score: gives scores; called once, and not where there is nothing to score.
        sentences: int64 [T, N, W].
        reasons: int64 [T, N], of `reject`.

    Returns:
        float32 [T, N], -inf for the others.
    """
    scores = torch.full(reasons.shape, float("-inf"), device=sentences.device)
    owner, number = (reasons == KEPT).nonzero(as_tuple=True)
    if len(owner):
        scores[owner, number] = score(owner, sentences[owner, number]).float()
    return scores


def select_hardest(scores: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The sentences of each caption with the highest finite scores, hardest first, of equal ones the first.

    Args:
        scores: [T, N], of `score_kept`.
        most: m, cut to N.

    Returns:
        int64 [T, m], numbers of sentences, and bool [T, m], which of these there are; the others are any.

    Source: TAGS-DC, Eq. 6. Rejected sentences are never selected, as the released code does where too few are left.
    """
    ordered, rows = scores.sort(dim=1, descending=True, stable=True)
    return rows[:, :most], ordered[:, :most].isfinite()


def mark_outranked(reasons: Tensor, rows: Tensor, real: Tensor) -> Tensor:
    """The reasons [T, N] once more, with `OUTRANKED` for the kept ones that `select_hardest` did not choose."""
    chosen = torch.zeros_like(reasons, dtype=torch.bool).scatter_(1, rows, real)
    return torch.where((reasons == KEPT) & ~chosen, OUTRANKED, reasons)


@dataclass(frozen=True)
class SentenceBank:
    """S sentences of T captions.

    Attributes:
        tokens: int [S, W], those of a caption together, in the order of the captions, its hardest first.
        lengths: int [S].
        starts: int64 [T + 1], the sentences of caption t are those from `starts[t]` to `starts[t + 1]`.
        twins: int64 [S], row of the twin of the image of each, which stands for its mirror image where it is that image
            itself; -1 where there is none.
        details: what is true of each image alone, and what of its twin alone: tokens int [2, S, W] and lengths [2, S].
        kinds: [S] numbers of the rules that made them, from 0.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray
    twins: np.ndarray
    details: tuple[np.ndarray, np.ndarray]
    kinds: np.ndarray

    @cached_property
    def _twinned(self) -> Ragged:
        """Rows of the sentences that have twins, by kind."""
        rows = np.flatnonzero(self.twins >= 0)
        _, kinds = np.unique(self.kinds[rows], return_inverse=True)
        found = Ragged.of_owners(kinds, int(kinds.max(initial=-1)) + 1)
        return replace(found, values=rows[found.values])

    def draw_twins(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Rows [count] of sentences that have twins; of each kind as many."""
        kinds = rng.integers(len(self._twinned), size=count)
        places = (rng.random(count) * self._twinned.counts[kinds]).astype(np.int64)
        return self._twinned.values[self._twinned.offsets[kinds] + places]

    def owners(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the captions that sentences [n] were made of."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def details_of(self, rows: np.ndarray) -> TextBatch:
        """Return the details of sentences [n] about their images, and behind these those about the twins, [2 n]."""
        tokens, lengths = (each[:, rows].reshape(2 * len(rows), *each.shape[2:]) for each in self.details)
        return _text_batch(tokens, lengths)

    def take(
        self, captions: np.ndarray, most: int, rng: np.random.Generator | None = None
    ) -> tuple[TextBatch, Tensor, Tensor]:
        """Sentences of captions: the first, or with `rng` those that follow a random one, and on from the first.

        Args:
            captions: rows [B].
            most: m, sentences of each at most.
            rng: source of randomness.

        Returns:
            The n sentences; int64 [n], number of the caption of each; int64 [n], its place among those of the caption.
        """
        held = np.diff(self.starts)[captions]
        offset = np.zeros_like(held) if rng is None else rng.integers(0, np.maximum(held, 1))
        taken = Ragged.of_counts(np.minimum(held, most))
        owners = taken.owners()
        places = taken.places()
        rows = self.starts[captions][owners] + (offset[owners] + places) % held[owners]
        sentences = _text_batch(self.tokens[rows], self.lengths[rows])
        return sentences, torch.from_numpy(owners), torch.from_numpy(places)


def _text_batch(tokens: np.ndarray, lengths: np.ndarray) -> TextBatch:
    """Captions [n, W], cut to the longest of them."""
    cut = tokens[:, : lengths.max(initial=1)]
    return TextBatch(torch.from_numpy(cut.astype(np.int64)), torch.from_numpy(lengths.astype(np.int64)))
