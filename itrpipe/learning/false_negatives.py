"""Estimate how likely a negative is a correct match, by its similarity alone (false-negative elimination, FNE).

The similarities of true pairs and those of their hardest in-batch negatives are taken for samples of two Gaussians.
Bayes' rule then tells for any similarity s how likely the pair matches, with p the share of matches among all pairs:

    P(s) = p N(s; mu+, var+) / (p N(s; mu+, var+) + (1 - p) N(s; mu-, var-))

A training keeps the two distributions up to date batch by batch (`SimilarityStatistics`). After it,
`estimate_gaussians` takes them from the embeddings of any dual encoder, whatever it was trained with.

Shapes: B pairs in a batch, N images, T captions, D embedding width.

Source: FNE (Li et al., ACM MM 2023), Eq. 5 to 10; the released code for what the options call so.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from itrpipe.learning.losses import excluded_pairs, online_hard_negatives

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
        """Return bool [], True if more than `min_count` matches were seen and both variances are positive."""
        return (self.count[0] > min_count) & (self.variance > 0).all()


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
        """Forget every sample."""
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
        """Take in the retained pairs of a batch, see `retained_pairs`.

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
            weights = retained[:, None] + retained[None, :]  # [B, B]
            weights = weights.masked_fill(excluded, 0.0)
        self._add(0, scores.diagonal(), retained)
        self._add(1, mismatches, weights)
        return retained.sum()

    def gaussians(self) -> Gaussians:
        """Return the distributions of all samples so far, in single precision."""
        mean = self.total / self.count.clamp(min=1)
        variance = self.deviation / (self.count - 1)
        return Gaussians(mean.float(), variance.float(), self.count.float())

    def _add(self, which: int, samples: Tensor, weights: Tensor) -> None:
        samples = samples.double()
        self.count[which] += weights.sum()
        self.total[which] += (weights * samples).sum()
        mean = self.total[which] / self.count[which].clamp(min=1)
        self.deviation[which] += (weights * (samples - mean).square()).sum()


def retained_pairs(scores: Tensor, not_negative: Tensor | None = None, ties: Ties = "none") -> Tensor:
    """Return bool [B], the pairs that score higher than every other pair of their image and of their caption.

    A pair without any other is not among them.

    Args:
        scores: [B, B] similarities of image i with caption j.
        not_negative: [B, B] bool, pairs beside the diagonal that do not compete, or None.
        ties: pairs that score as high as another one are kept by `none`; `first` keeps the first of equals, as the
            arg max of the released code does.
    """
    positive = scores.diagonal()
    hardest_text, hardest_image = online_hard_negatives(scores, not_negative)
    has_both = hardest_text.isfinite() & hardest_image.isfinite()
    if ties == "none":
        return has_both & (positive > hardest_text) & (positive > hardest_image)
    place = torch.arange(len(positive), device=positive.device)
    excluded = excluded_pairs(scores, not_negative)
    competing = torch.where(excluded, float("-inf"), scores).diagonal_scatter(positive)
    return has_both & (competing.argmax(dim=1) == place) & (competing.argmax(dim=0) == place)


def false_negative_probability(
    similarities: Tensor,
    gaussians: Gaussians,
    prior: float,
    *,
    min_count: float = 0,
    monotone: bool = False,
) -> Tensor:
    """Compute P(match | s), from log-odds, since both densities underflow far from their means.

    Args:
        similarities, gaussians, prior, monotone: see `match_log_odds`.
        min_count: matches that must have been seen before P is used at all.

    Returns:
        Of the shape of `similarities`, 0..1; 0 where the distributions are not usable yet.

    Source: FNE, Eq. 9.
    """
    chances = torch.sigmoid(match_log_odds(similarities, gaussians, prior, monotone=monotone))
    return torch.where(gaussians.usable(min_count), chances, 0.0)


def match_log_odds(similarities: Tensor, gaussians: Gaussians, prior: float, *, monotone: bool = False) -> Tensor:
    """Return the log-odds of P(match | s), of the shape of `similarities`.

    Args:
        similarities: of any shape, single precision.
        gaussians: of matches and mismatches.
        prior: p, 0..1.
        monotone: let them not fall again as s rises, which they do where the wider Gaussian is that of mismatches.
    """
    match_mean, mismatch_mean = gaussians.mean
    variance = torch.where((gaussians.variance > 0).all(), gaussians.variance, 1.0)
    match_variance, mismatch_variance = variance
    if monotone:  # hold s where the log-odds, a parabola, turn from rising to falling or back
        curvature = 1 / match_variance - 1 / mismatch_variance
        turn = (match_mean / match_variance - mismatch_mean / mismatch_variance) / curvature
        held = torch.where(curvature > 0, similarities.minimum(turn), similarities.maximum(turn))
        similarities = torch.where(curvature == 0, similarities, held)
    match = -0.5 * (match_variance.log() + (similarities - match_mean).square() / match_variance)
    mismatch = -0.5 * (mismatch_variance.log() + (similarities - mismatch_mean).square() / mismatch_variance)
    return match - mismatch + math.log(prior / (1 - prior))


def estimate_gaussians(
    images: np.ndarray,
    texts: np.ndarray,
    caption_image: np.ndarray,
    *,
    batch_size: int,
    mask_same_image: bool = True,
    source: NegativeSource = "hardest",
    ties: Ties = "none",
    floor: bool = False,
) -> Gaussians:
    """Estimate the distributions of matches and mismatches by one epoch over embeddings that do not change.

    Args:
        images: [N, D] embeddings that compare by inner product.
        texts: [T, D].
        caption_image: [T] image row of each caption.
        batch_size: pairs whose negatives compete; the more, the harder the hardest.
        mask_same_image: whether captions of one image are no negatives of each other.
        source, ties, floor: see `SimilarityStatistics.update`.
    """
    statistics = SimilarityStatistics()
    order = np.random.default_rng(0).permutation(len(texts))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        image_rows = caption_image[rows]
        scores = torch.from_numpy(images[image_rows]) @ torch.from_numpy(texts[rows]).T
        same_image = None
        if mask_same_image:
            same_image = torch.from_numpy(image_rows[:, None] == image_rows[None, :])
        statistics.update(scores, same_image, source, ties, floor)
    return statistics.gaussians()


def probabilities(scores: np.ndarray, gaussians: Gaussians, prior: float) -> np.ndarray:
    """Compute the probability of each candidate to be a false negative; the more similar, the likelier.

    Args:
        scores: similarities of any shape; those of padding are minus infinity.
        gaussians: of matches and mismatches.
        prior: share of matches among all pairs, 0..1.

    Returns:
        Of the shape of `scores`, float32, 0..1; 0 for padding.
    """
    similarities = torch.from_numpy(np.asarray(scores, dtype=np.float32))
    chances = false_negative_probability(similarities, gaussians, prior, monotone=True)
    return chances.masked_fill(similarities.isneginf(), 0.0).numpy()
