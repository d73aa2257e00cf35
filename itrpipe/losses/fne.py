"""False-negative elimination: how likely a negative is a true match, and how often it is drawn as a negative.

The similarities of true pairs and those of their hardest in-batch negatives are taken for samples of two Gaussians.
Bayes' rule then tells for any similarity s how likely the pair matches, with p the share of matches among all pairs:

    P(s) = p N(s; mu+, var+) / (p N(s; mu+, var+) + (1 - p) N(s; mu-, var-))

A candidate is drawn with weight exp(-scale P) where P is above a threshold, and with weight exp(-alpha (s - s+)^2)
elsewhere, s+ being the similarity of the anchor with its positive.

Shapes: B pairs in a batch, A anchors, M candidates of an anchor.

Source: FNE (Li et al., ACM MM 2023), Eq. 5 to 13 and 15; the released code for what the options call so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from itrpipe.losses.triplet import excluded_pairs, hinge, online_hard_negatives

NegativeSource = Literal["hardest", "all"]
Ties = Literal["none", "first"]


@dataclass(frozen=True)
class Gaussians:
    """Two normal distributions of similarities, each tensor of shape [2]: of matches and of mismatches.

    Attributes:
        mean: 0 where there are no samples.
        variance: of the samples; NaN or zero where there are fewer than two.
        count: of the samples.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def usable(self, min_count: float = 0) -> Tensor:
        """bool [], whether more than `min_count` matches were seen and both variances are positive."""
        return (self.count[0] > min_count) & (self.variance > 0).all()


@dataclass(frozen=True)
class SamplingRules:
    """How candidates are weighed.

    Attributes:
        prior: p, probability that a pair is a match, 0..1. FNE Eq. 10.
        alpha: of the weight of candidates that are no likely match. FNE Eq. 12.
        posterior_threshold: lambda, P above which a candidate is taken for a likely match, 0..1. FNE Eq. 13.
        posterior_scale: factor of P in the exponent; 1 in FNE Eq. 11, 0.5 in the released code.
        min_count: matches that must have been seen before P is used at all.
        window: candidates this far below the mean similarity of matches, or farther, are not drawn (released code);
            None draws from all.
        fallback: draw the most similar candidate where the window leaves none (released code).
        monotone: let P not fall again as s rises, which it does where the wider Gaussian is that of mismatches.
    """

    prior: float = 1e-4
    alpha: float = 0.5
    posterior_threshold: float = 0.001
    posterior_scale: float = 0.5
    min_count: int = 200
    window: float | None = 0.2
    fallback: bool = True
    monotone: bool = False


class SimilarityStatistics(nn.Module):
    """Running mean and variance of the similarities of matches and mismatches, updated batch by batch.

    Deviations are taken from the mean as it is after a batch and stay as they are when the mean moves on, as in the
    released code. Sums are kept in double precision on the device; nothing waits for them.
    """

    count: Tensor
    total: Tensor
    deviation: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("count", "total", "deviation"):
            self.register_buffer(name, torch.zeros(2, dtype=torch.float64))

    def reset(self) -> None:
        """Forgets every sample."""
        for sums in (self.count, self.total, self.deviation):
            sums.zero_()

    @torch.no_grad()
    def update(
        self,
        scores: Tensor,
        not_negative: Tensor | None = None,
        source: NegativeSource = "hardest",
        ties: Ties = "none",
        floor: bool = True,
    ) -> Tensor:
        """Takes in the retained pairs of a batch, see `retained_pairs`.

        Args:
            scores: [B, B] similarities of image i with caption j.
            not_negative: [B, B] bool, pairs beside the diagonal that are no mismatches, or None.
            source: mismatches are the `hardest` text and image of a retained pair, as in the released code, or `all` of
                its row and column.
            ties: see `retained_pairs`.
            floor: a hardest mismatch counts 0 at least, as in the released code.

        Returns:
            Number [] of retained pairs.
        """
        retained = retained_pairs(scores, not_negative, ties).double()
        if source == "hardest":
            mismatches = torch.cat(online_hard_negatives(scores, not_negative))  # [2 B]
            # Pairs without any are not retained; their minus infinity times zero would be NaN.
            mismatches = mismatches.clamp(min=0) if floor else mismatches.nan_to_num(neginf=0.0)
            weights = retained.repeat(2)
        else:
            excluded = excluded_pairs(scores, not_negative)
            mismatches = scores.masked_fill(excluded, 0.0)
            weights = (retained[:, None] + retained[None, :]).masked_fill(excluded, 0.0)  # [B, B]
        self._add(0, scores.diagonal(), retained)
        self._add(1, mismatches, weights)
        return retained.sum()

    def gaussians(self) -> Gaussians:
        """The distributions as of now, in single precision."""
        mean, variance = self.total / self.count.clamp(min=1), self.deviation / (self.count - 1)
        return Gaussians(mean.float(), variance.float(), self.count.float())

    def _add(self, which: int, samples: Tensor, weights: Tensor) -> None:
        samples = samples.double()
        self.count[which] += weights.sum()
        self.total[which] += (weights * samples).sum()
        mean = self.total[which] / self.count[which].clamp(min=1)
        self.deviation[which] += (weights * (samples - mean).square()).sum()


def retained_pairs(scores: Tensor, not_negative: Tensor | None = None, ties: Ties = "none") -> Tensor:
    """Pairs [B] bool that score higher than every other pair of their image and of their caption; there must be one.

    Args:
        scores: [B, B] similarities of image i with caption j.
        not_negative: [B, B] bool, pairs beside the diagonal that do not compete, or None.
        ties: pairs that score as high as another one are kept by `none`; `first` keeps the first of equals, as the
            arg max of the released code does.
    """
    own = scores.diagonal()
    text, image = online_hard_negatives(scores, not_negative)
    compared = text.isfinite() & image.isfinite()
    if ties == "none":
        return compared & (own > text) & (own > image)
    others = scores.masked_fill(excluded_pairs(scores, not_negative), float("-inf"))
    here_or_later = torch.ones_like(others, dtype=torch.bool).triu()
    earlier_text = others.masked_fill(here_or_later, float("-inf")).amax(dim=1)
    earlier_image = others.masked_fill(here_or_later.T, float("-inf")).amax(dim=0)
    return compared & (own >= text) & (own >= image) & (own > earlier_text) & (own > earlier_image)


def false_negative_probability(
    similarities: Tensor, gaussians: Gaussians, prior: float, *, min_count: float = 0, monotone: bool = False
) -> Tensor:
    """P(match | s), from log-odds, since both densities underflow far from their means.

    Args:
        similarities: of any shape, single precision.
        gaussians: of matches and mismatches.
        prior: p, 0..1.
        min_count, monotone: see `SamplingRules`.

    Returns:
        Of the shape of `similarities`, 0..1; 0 where the distributions are not usable yet.

    Source: FNE, Eq. 9.
    """
    usable = gaussians.usable(min_count)
    mean, variance = gaussians.mean, torch.where(usable, gaussians.variance, 1.0)
    if monotone:
        similarities = _up_to_the_turn(similarities, mean, variance)
    log_density = [
        -0.5 * (variance[k].log() + (similarities - mean[k]).square() / variance[k]) for k in range(len(mean))
    ]
    log_prior_odds = math.log(prior / (1 - prior))
    return torch.where(usable, torch.sigmoid(log_density[0] - log_density[1] + log_prior_odds), 0.0)


def _up_to_the_turn(similarities: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Similarities, held at the one where the log-odds, a parabola, turn from rising to falling or back."""
    curvature = 1 / variance[0] - 1 / variance[1]
    turn = (mean[0] / variance[0] - mean[1] / variance[1]) / curvature
    held = torch.where(curvature > 0, similarities.minimum(turn), similarities.maximum(turn))
    return torch.where(curvature == 0, similarities, held)


def sampling_weights(
    similarities: Tensor, positive: Tensor, excluded: Tensor, gaussians: Gaussians, rules: SamplingRules
) -> Tensor:
    """Weight of every candidate of every anchor in the draw.

    Args:
        similarities: [A, M] of anchors with candidates, single precision, without gradient.
        positive: [A] of anchors with their positives.
        excluded: [A, M] bool, candidates that are never drawn, such as those of the anchor's image.
        gaussians: of matches and mismatches.
        rules: see there.

    Returns:
        [A, M], 0..1. A row is zero where nothing may be drawn.

    Source: FNE, Eq. 13; window and fallback of the released code.
    """
    probability = false_negative_probability(
        similarities, gaussians, rules.prior, min_count=rules.min_count, monotone=rules.monotone
    )
    easy = torch.exp(-rules.alpha * (similarities - positive[:, None]).square())
    likely_match = probability > rules.posterior_threshold
    weights = torch.where(likely_match, torch.exp(-rules.posterior_scale * probability), easy)
    weights = weights.masked_fill(excluded, 0.0)
    if rules.window is None:
        return weights
    weights = weights.masked_fill(similarities <= gaussians.mean[0] - rules.window, 0.0)
    if rules.fallback:
        none = (weights == 0).all(dim=1, keepdim=True)
        weights = torch.where(none, hardest_only(similarities, excluded), weights)
    return weights


def hardest_only(similarities: Tensor, excluded: Tensor) -> Tensor:
    """Weights [A, M] that are 1 for the most similar candidate of every anchor that has one, 0 elsewhere.

    Args:
        similarities, excluded: see `sampling_weights`.
    """
    ranked = similarities.masked_fill(excluded, float("-inf"))
    hardest = torch.zeros_like(similarities).scatter_(1, ranked.argmax(dim=1, keepdim=True), 1.0)
    return hardest.masked_fill(excluded, 0.0)


def draw(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Draws one candidate for every anchor.

    The candidate with the largest weight over an exponential variate of its own is drawn in proportion to its weight.
    `torch.multinomial` does the same and waits for the device to check its input.

    Args:
        weights: [A, M], 0 or more.

    Returns:
        Columns [A] of the candidates, and bool [A], False where a row is zero and the column says nothing. A candidate
        whose weight is NaN is drawn first, so that the loss shows it.
    """
    times = torch.empty_like(weights).exponential_()
    return (weights / times).argmax(dim=1), (weights != 0).any(dim=1)


def drawn_hinges(positive: Tensor, negative: Tensor, found: Tensor, margin: float) -> Tensor:
    """[margin - s+ + s-]+ of every anchor [A] with its drawn negative; 0 where it has none.

    Args:
        positive, negative: [A] similarities of anchors with their positives and with what was drawn.
        found: bool [A], whether something was.
        margin: of the hinge.

    Source: FNE, Eq. 15, one of its two terms.
    """
    return torch.where(found, hinge(positive, negative, margin), 0.0)
