"""Speed of cross-attention scores against the published formulation: one caption at a time, context vectors formed.

The published side is timed on a sample of the captions and scaled by the number of words. Run with `make bench`.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from measure import paired
from torch import Tensor
from torch.nn import functional as F

from itrpipe.models.base import RegionEncoding, WordEncoding
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.scan.network import KEPT_VALUES, Attention, CrossAttention, CrossAttentionModel

IMAGES, REGIONS, CAPTIONS, DIM = 200, 36, 1_000, 1_024
SAMPLE = 32
FOCAL = {focal: Attention(20.0, focal=focal) for focal in ("equal", "prob")}
SCORINGS = {
    "SCAN t2i LSE": CrossAttention(Attention(9.0, aggregation="LogSumExp", lambda_lse=6.0), None),
    "SCAN i2t Mean": CrossAttention(None, Attention(4.0)),
    **{f"BFAN {focal}": CrossAttention(attention, attention) for focal, attention in FOCAL.items()},
}


def attend(queries, context, attention: Attention):
    """Relevance [B, Q] of queries [B, Q, D] over context [B, S, D], with the attended vectors [B, Q, D]."""
    affinity = F.leaky_relu(torch.bmm(context, queries.transpose(1, 2)), 0.1)  # [B, S, Q]
    affinity = affinity / (affinity.pow(2).sum(dim=2, keepdim=True).sqrt() + 1e-8)
    weights = (attention.lambda_softmax * affinity.transpose(1, 2)).softmax(dim=2)  # [B, Q, S]
    if attention.focal is not None:
        if attention.focal == "equal":
            focal = weights * weights.shape[2] - weights.sum(dim=2, keepdim=True)
        else:
            other = weights[:, :, None]  # [B, Q, 1, S]
            focal = ((weights[..., None] - other) * other.sqrt()).sum(dim=3)
        weights = torch.where(focal > 0, weights, 0.0)
        weights = weights / weights.sum(dim=2, keepdim=True)
    attended = torch.bmm(weights, context)
    lengths = queries.norm(dim=2) * attended.norm(dim=2)
    return (queries * attended).sum(dim=2) / lengths.clamp(min=1e-8)


def aggregated(relevance, attention: Attention):
    if attention.aggregation == "Mean":
        return relevance.mean(dim=1)
    return (attention.lambda_lse * relevance).exp().sum(dim=1).log() / attention.lambda_lse


def published(regions, words, lengths, scoring: CrossAttention):
    """Scores [B, T] as the public code computes them."""
    columns = []
    for caption, length in zip(words, lengths.tolist(), strict=True):
        repeated = caption[:length].expand(len(regions), -1, -1).contiguous()
        column = torch.zeros(())
        for attention, sides in (
            (scoring.words_to_regions, (repeated, regions)),
            (scoring.regions_to_words, (regions, repeated)),
        ):
            if attention is not None:
                column = column + aggregated(attend(*sides, attention), attention)
        columns.append(column)
    return torch.stack(columns, dim=1)


def sides(images, captions):
    """Unit vectors; captions of 8 to 16 words."""
    generator = torch.Generator().manual_seed(0)
    regions = F.normalize(torch.randn(images, REGIONS, DIM, generator=generator), dim=-1)
    words = F.normalize(torch.randn(captions, 16, DIM, generator=generator), dim=-1)
    lengths = torch.randint(8, 17, (captions,), generator=generator)
    return regions, words.masked_fill((torch.arange(16) >= lengths[:, None])[..., None], 0.0), lengths


@cache
def model_of(scoring: CrossAttention) -> CrossAttentionModel:
    return CrossAttentionModel(Scan(), scoring, 1, 1)


def score_matrix(regions: Tensor, words: Tensor, lengths: Tensor, scoring: CrossAttention) -> Tensor:
    """Score all images with all captions, as a model of these parts does."""
    return model_of(scoring).score_matrix(RegionEncoding(regions), WordEncoding(words, lengths))


@pytest.mark.parametrize("name", SCORINGS)
def test_score_matrix_against_one_caption_at_a_time(name: str) -> None:
    scoring, (regions, words, lengths) = SCORINGS[name], sides(IMAGES, CAPTIONS)
    scale = float(lengths.sum() / lengths[:SAMPLE].sum())
    with torch.no_grad():
        seconds, limit = paired(
            lambda: score_matrix(regions, words, lengths, scoring),
            lambda: published(regions, words[:SAMPLE], lengths[:SAMPLE], scoring),
            rounds=3,
        )
    print(f"\n  {name}, {IMAGES} x {CAPTIONS:,}: {scale * limit / seconds:.1f} times the published speed")
    assert seconds < scale * limit


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", SCORINGS)
def test_training_against_one_caption_at_a_time(name: str, recompute: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    scoring, (regions, words, lengths) = SCORINGS[name], sides(64, 64)
    inputs = regions.requires_grad_(), words.requires_grad_()
    monkeypatch.setitem(KEPT_VALUES, "cpu", 0 if recompute else 1 << 40)
    seconds, limit = paired(
        lambda: torch.autograd.grad(score_matrix(regions, words, lengths, scoring).sum(), inputs),
        lambda: torch.autograd.grad(published(regions, words, lengths, scoring).sum(), inputs),
        rounds=3,
    )
    kept = "tiles computed twice" if recompute else "all kept"
    print(f"\n  {name}, forward and backward of 64 x 64, {kept}: {limit / seconds:.1f} times the published speed")
    assert seconds < limit
