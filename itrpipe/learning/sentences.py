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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

KEPT, IDENTICAL, FALSE_NEGATIVE, DUPLICATE, OUTRANKED = range(5)
REASONS = ("kept", "identical", "false negative", "duplicate", "outranked", "guessed", "no twin")
"""Fate of a sentence: the number of a reason is its position here. Those of rules may be `guessed` without the
image, or be true of no image that is known."""

Compare = Literal["piece", "off"]
WordGroups = Callable[[np.ndarray], np.ndarray]
"""Rows [T] of captions to bool [T, P, words], words that are masked together."""


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
        return (self.mask_id, *self.others)


@dataclass(frozen=True)
class CaptionMasks:
    """The captions of a training set, for methods that mask them and write other words.

    Attributes:
        tokens: int64 [T, W], padded with 0.
        words: int64 [T, W], number of the word that each token is part of; `NO_WORD` for start, end and padding.
        image_rows: int64 [T], row of each caption's image.
        candidates: which words are masked together; None masks single tokens.
        specials: token ids that are no words.
        compare: whether refilled tokens are compared with those of the captions of the image (`piece`, or `off`).
    """

    tokens: np.ndarray
    words: np.ndarray
    image_rows: np.ndarray
    candidates: WordGroups | None
    specials: SpecialTokens
    compare: Compare

    @cached_property
    def _captions_of_image(self) -> Ragged:
        return Ragged.of_owners(self.image_rows, int(self.image_rows.max()) + 1)

    def draw(
        self,
        rows: np.ndarray,
        width: int,
        copies: int,
        noise: bool,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw masked copies of captions and their labels, int64 [T K, W] each, those of a caption together.

        Args:
            rows: [T] of the captions.
            width: W, tokens of the longest of them.
            copies, noise, rng: see `mask_captions`.
        """
        words = self.words[rows, :width]
        is_maskable = words != NO_WORD
        if self.candidates is None:
            candidates = single_positions(is_maskable)
        else:
            candidates = over_pieces(self.candidates(rows), words)
            has_none = ~np.any(candidates, axis=(1, 2))
            if has_none.any():
                singles = single_positions(is_maskable & has_none[:, None])
                candidates = np.concatenate([candidates, singles], axis=1)
        masked, labels = mask_captions(self.tokens[rows, :width], candidates, copies, self.specials, noise, rng)
        return masked.reshape(-1, width), labels.reshape(-1, width)

    def known(self, rows: np.ndarray) -> Tensor | None:
        """Return the sorted tokens int64 [T, n] of all captions of the images of captions [T].

        A token that is no word is -1. None where nothing is compared.
        """
        if self.compare == "off":
            return None
        siblings = self._captions_of_image.take(self.image_rows[rows]).padded(fill=-1)  # [T, k]
        tokens = self.tokens[siblings]  # [T, k, W]
        is_padding = siblings[..., None] < 0
        is_special = np.isin(tokens, self.specials.all)
        words = np.where(is_padding | is_special, -1, tokens)
        return torch.from_numpy(np.sort(words.reshape(len(rows), -1), axis=1))


def single_positions(is_maskable: np.ndarray) -> np.ndarray:
    """Make every position a candidate of its own, bool [T, W, W]; one that is not maskable [T, W] has no member."""
    return np.eye(is_maskable.shape[1], dtype=bool) & is_maskable[:, None]


def over_pieces(candidates: np.ndarray, word_of_piece: np.ndarray) -> np.ndarray:
    """Turn candidates of words into candidates of the pieces that a tokenizer cuts words into.

    All pieces of a word belong to the candidates of the word.

    Args:
        candidates: bool [T, P, W], of words.
        word_of_piece: int [T, n], word that each piece is part of; -1 for start, end and padding.

    Returns:
        bool [T, P, n].
    """
    with_no_word = np.pad(candidates, ((0, 0), (0, 0), (0, 1)))  # number -1 finds a column that no candidate has
    return np.take_along_axis(with_no_word, word_of_piece[:, None], axis=2)


def selection_rates(candidates: np.ndarray) -> np.ndarray:
    """Compute the probability that a candidate is masked.

    Args:
        candidates: bool [T, P, W].

    Returns:
        float64 [T, P]: the mean over its positions of `MASK_RATE` / (number of candidates with this position); 0 for a
        candidate without positions.
    """
    rate_of_position = MASK_RATE / np.maximum(candidates.sum(axis=1), 1)  # [T, W]
    total = np.einsum("tpw,tw->tp", candidates, rate_of_position)
    return total / np.maximum(candidates.sum(axis=2), 1)


def mask_captions(
    tokens: np.ndarray,
    candidates: np.ndarray,
    copies: int,
    specials: SpecialTokens,
    noise: bool,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask every caption several times, each time at random.

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
        The copies, int64 [T, K, W], and their labels, int64 [T, K, W]: the caption's own token at labelled positions,
        `UNLABELLED` elsewhere.
    """
    rates = selection_rates(candidates)  # [T, P]
    shape = (len(tokens), copies, candidates.shape[1])
    is_chosen = rng.random(shape) < rates[:, None]
    # The first of a random order is the one with the largest of independent keys.
    is_usable = np.any(candidates, axis=2)[:, None]
    keys = np.where(is_usable, rng.random(shape), -1.0)
    is_first = (keys == keys.max(axis=2, keepdims=True, initial=-1.0)) & is_usable
    is_chosen = np.where(is_chosen.any(axis=2, keepdims=True), is_chosen, is_first)

    times_chosen = np.matmul(is_chosen.astype(np.float32), candidates.astype(np.float32))  # [T, K, W]
    is_labelled = times_chosen > 0
    originals = np.broadcast_to(tokens[:, None], is_labelled.shape).astype(np.int64)
    written = np.full_like(originals, specials.mask_id)
    if noise:
        lot = rng.random(originals.shape)
        random_words = rng.integers(*specials.random_ids, size=originals.shape)
        written = np.where(lot < 0.8, written, random_words)
        written = np.where(lot < 0.9, written, originals)
    masked = np.where(is_labelled, written, originals)
    labels = np.where(is_labelled, originals, UNLABELLED)
    return masked, labels


def refill(
    masked: Tensor,
    labels: Tensor,
    logits: Tensor,
    draws: int,
    temperature: float,
    excluded: Sequence[int] = (),
    generator: torch.Generator | None = None,
) -> Tensor:
    """Write drawn words at the labelled positions of masked copies, also at those that masking left as they were.

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
    assert masked.shape == labels.shape
    is_labelled = labels != UNLABELLED
    scaled = logits.detach().float() / temperature
    # NaN draws any word; the loss of the step shows it, where multinomial would end with a traceback.
    scaled = scaled.nan_to_num(nan=0.0, posinf=float("inf"), neginf=float("-inf"))
    if excluded:
        scaled[:, list(excluded)] = float("-inf")
    drawn = torch.multinomial(scaled.softmax(dim=1), draws, replacement=True, generator=generator)  # [M, L]
    columns = masked[:, :, None].expand(-1, -1, draws)  # [S, W, L]
    # Fills in the order of copies, positions, draws, without asking the device how many there are.
    refilled = columns.masked_scatter(is_labelled[:, :, None], drawn)
    return refilled.transpose(1, 2).contiguous()


def log_probabilities(sentences: Tensor, labels: Tensor, logits: Tensor) -> Tensor:
    """Compute the mean logarithm of the probabilities of the words at labelled positions, at temperature 1.

    Args:
        sentences: int64 [S, L, W], of `refill`, or any others.
        labels: int64 [S, W], `UNLABELLED` where no word was written.
        logits: [M, V] of the labelled positions, as for `refill`.

    Returns:
        float32 [S, L]; 0 where a copy has no labelled position.
    """
    is_labelled = labels != UNLABELLED
    words = sentences.transpose(1, 2)[is_labelled]  # [M, L]
    logs = logits.float().log_softmax(dim=1).gather(1, words)
    owner, _ = is_labelled.nonzero(as_tuple=True)
    sums = logs.new_zeros(sentences.shape[:2]).index_add_(0, owner, logs)
    return sums / is_labelled.sum(dim=1, keepdim=True).clamp(min=1)


def reject(sentences: Tensor, captions: Tensor, known: Tensor | None = None) -> Tensor:
    """Sort out sentences before any is scored.

    Rejected are a sentence that equals its caption; one whose replaced tokens all occur in the captions of its image,
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
    is_replaced = sentences != captions[:, None]
    reasons = torch.where(repeated_later(sentences), DUPLICATE, KEPT)
    if known is not None:
        tokens = sentences.flatten(1)  # [T, N W]
        nearest = torch.searchsorted(known, tokens).clamp(max=known.shape[1] - 1)
        is_known = (known.gather(1, nearest) == tokens).view_as(sentences)
        may_be_true = (is_known | ~is_replaced).all(dim=2)
        reasons = torch.where(may_be_true, FALSE_NEGATIVE, reasons)
    return torch.where(is_replaced.any(dim=2), reasons, IDENTICAL)


def repeated_later(sentences: Tensor) -> Tensor:
    """Return bool [T, N], sentences [T, N, W] that their caption has once more, further back."""
    count, width = sentences.shape[1:]
    owner = torch.arange(len(sentences), device=sentences.device).repeat_interleave(count)
    rows = torch.cat([owner[:, None], sentences.reshape(-1, width)], dim=1)
    _, group = rows.unique(dim=0, return_inverse=True)
    number = torch.arange(len(rows), device=rows.device)
    last = torch.zeros_like(number).scatter_reduce_(0, group, number, "amax")
    return (last[group] != number).view(sentences.shape[:2])


def score_kept(score: Callable[[Tensor, Tensor], Tensor], sentences: Tensor, reasons: Tensor) -> Tensor:
    """Score the sentences that no filter rejected.

    Args:
        score: takes numbers [n] of captions and sentences [n, W], and gives scores [n] with the images of these
            captions, higher for a match; called once, and only if there is a sentence to score.
        sentences: int64 [T, N, W].
        reasons: int64 [T, N], of `reject`.

    Returns:
        float32 [T, N], -inf for the others.
    """
    scores = torch.full(reasons.shape, float("-inf"), device=sentences.device)
    captions, numbers = (reasons == KEPT).nonzero(as_tuple=True)
    if len(captions):
        scores[captions, numbers] = score(captions, sentences[captions, numbers]).float()
    return scores


def select_hardest(scores: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Select the sentences of each caption with the highest finite scores, hardest first, of equal ones the first.

    Args:
        scores: [T, N], of `score_kept`.
        most: m, cut to N.

    Returns:
        int64 [T, m], numbers of sentences, and bool [T, m], False where there is none, whatever the number.

    Source: TAGS-DC, Eq. 6. Rejected sentences are never selected, as the released code does where too few are left.
    """
    ordered, rows = scores.sort(dim=1, descending=True, stable=True)
    return rows[:, :most], ordered[:, :most].isfinite()


def mark_outranked(reasons: Tensor, rows: Tensor, real: Tensor) -> Tensor:
    """Return the reasons [T, N] with `OUTRANKED` for the kept sentences that `select_hardest` did not choose."""
    is_chosen = torch.zeros_like(reasons, dtype=torch.bool).scatter_(1, rows, real)
    is_outranked = (reasons == KEPT) & ~is_chosen
    return torch.where(is_outranked, OUTRANKED, reasons)


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
    def _with_twins(self) -> Ragged:
        """Return the rows of the sentences that have twins, by kind."""
        rows = np.flatnonzero(self.twins >= 0)
        names, kinds = np.unique(self.kinds[rows], return_inverse=True)
        return Ragged.of_owners(kinds, len(names), values=rows)

    def draw_twins(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw rows [count] of sentences that have twins; every kind is as likely."""
        lists = self._with_twins
        kinds = rng.integers(len(lists), size=count)
        places = (rng.random(count) * lists.counts[kinds]).astype(np.int64)
        return lists.values[lists.offsets[kinds] + places]

    def owners(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the captions that sentences [n] were made of."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def details_of(self, rows: np.ndarray) -> TextBatch:
        """Return the details of sentences [n] about their images, then their details about the twins, [2 n]."""
        tokens, lengths = self.details
        both_tokens = tokens[:, rows].reshape(2 * len(rows), tokens.shape[2])
        return _text_batch(both_tokens, lengths[:, rows].reshape(-1))

    def take(
        self,
        captions: np.ndarray,
        most: int,
        rng: np.random.Generator | None = None,
    ) -> tuple[TextBatch, Tensor, Tensor]:
        """Take sentences of captions: the first, or with `rng` those from a random one on, then on from the first.

        Args:
            captions: rows [B].
            most: m, sentences of each at most.
            rng: source of randomness.

        Returns:
            The n sentences; int64 [n], number of the caption of each; int64 [n], its place among those of the caption.
        """
        counts = np.diff(self.starts)[captions]
        offsets = np.zeros_like(counts)
        if rng is not None:
            offsets = rng.integers(0, np.maximum(counts, 1))
        taken = Ragged.of_counts(np.minimum(counts, most))
        owners = taken.owners()
        places = taken.places()
        place_in_bank = (offsets[owners] + places) % counts[owners]
        rows = self.starts[captions[owners]] + place_in_bank
        sentences = _text_batch(self.tokens[rows], self.lengths[rows])
        return sentences, torch.from_numpy(owners), torch.from_numpy(places)


def _text_batch(tokens: np.ndarray, lengths: np.ndarray) -> TextBatch:
    """Make a batch of captions [n, W], cut to the longest of them."""
    width = lengths.max(initial=1)
    tokens = tokens[:, :width].astype(np.int64)
    lengths = lengths.astype(np.int64)
    return TextBatch(torch.from_numpy(tokens), torch.from_numpy(lengths))
