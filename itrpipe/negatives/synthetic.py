"""Negative sentences that a masked language model writes: refilled copies of a caption, filtered and ranked.

    refilled = refill(masked.tokens, masked.labels, logits, draws, temperature)     [S, L, W] of S masked copies
    reasons = reject(sentences, captions, known)                                    [T, N], N = K L
    scores = score_kept(score, sentences, reasons)                                  [T, N]
    hardest = select_hardest(scores, most)                                          [T, m]

Nothing here loops over sentences, and none is scored that a filter rejects or that stands there twice.

Source: TAGS-DC, sections 2.1.1 (refilling, Eq. 2), 2.1.2 (filter) and 2.2 (Eq. 6).

Shapes: T captions, K masked copies of each, S = T K, L draws for each copy, N = K L sentences of a caption,
W positions, M labelled positions of all copies, V token ids, m sentences that are kept. Sentence n of a caption is draw
n % L of its copy n // L.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from itrpipe.negatives.masking import UNLABELLED

KEPT, IDENTICAL, FALSE_NEGATIVE, DUPLICATE, OUTRANKED = range(5)
REASONS = ("kept", "identical", "false negative", "duplicate", "outranked")
"""What became of a sentence: the number of a reason is its position here."""

ScoreSentences = Callable[[Tensor, Tensor], Tensor]
"""Numbers [n] of captions and sentences [n, W] to scores [n] with the images of these captions, higher for a match."""


@dataclass(frozen=True)
class Hardest:
    """The sentences of each caption that score highest, hardest first.

    Attributes:
        rows: int64 [T, m], numbers of sentences; where there are fewer than m the rest are any.
        real: bool [T, m], which of these there are.
    """

    rows: Tensor
    real: Tensor

    def take(self, values: Tensor) -> Tensor:
        """Their part [T, m, ...] of values [T, N, ...] of all sentences."""
        index = self.rows.view(*self.rows.shape, *(1,) * (values.dim() - 2))
        return values.gather(1, index.expand(*self.rows.shape, *values.shape[2:]))


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
    """How probable the words at labelled positions were, at temperature 1: the mean of their logarithms.

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
    """What becomes of each sentence before any is scored.

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
    """Which sentences [T, N, W] the same caption has once more, further back, bool [T, N]."""
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


def select_hardest(scores: Tensor, most: int) -> Hardest:
    """The highest of finite scores, of equal ones the first.

    Args:
        scores: [T, N], of `score_kept`.
        most: m, cut to N.

    Source: TAGS-DC, Eq. 6. Rejected sentences are never selected, as the released code does where too few are left.
    """
    ordered, rows = scores.sort(dim=1, descending=True, stable=True)
    return Hardest(rows[:, :most], ordered[:, :most].isfinite())


def mark_outranked(reasons: Tensor, hardest: Hardest) -> Tensor:
    """The reasons [T, N] once more, with `OUTRANKED` for the kept ones that are not among the hardest."""
    chosen = torch.zeros_like(reasons, dtype=torch.bool).scatter_(1, hardest.rows, hardest.real)
    return torch.where((reasons == KEPT) & ~chosen, OUTRANKED, reasons)
