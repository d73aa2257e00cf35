"""Speed of cross-attention scores against the published formulation: one caption at a time, context vectors formed.

The published side is timed on a sample of the captions and scaled by the number of words. Run with `make bench`.
"""

from __future__ import annotations

import pytest
import torch
from measure import paired
from torch.nn import functional as F

from itrpipe.models.base import RegionEncoding, WordEncoding
from itrpipe.models.scan.network import KEPT_VALUES, Attention, CrossAttention, score_matrix, score_pairs

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


@pytest.mark.parametrize("name", SCORINGS)
def test_score_matrix_against_one_caption_at_a_time(name):
    scoring, (regions, words, lengths) = SCORINGS[name], sides(IMAGES, CAPTIONS)
    scale = float(lengths.sum() / lengths[:SAMPLE].sum())
    with torch.no_grad():
        expected = published(regions, words[:SAMPLE], lengths[:SAMPLE], scoring)
        for products in ("fp32", "bf16"):
            seconds, limit = paired(
                lambda products=products: score_matrix(
                    RegionEncoding(regions), WordEncoding(words, lengths), scoring, products
                ),
                lambda: published(regions, words[:SAMPLE], lengths[:SAMPLE], scoring),
                rounds=3,
            )
            scores = score_matrix(RegionEncoding(regions), WordEncoding(words, lengths), scoring, products)
            error = (scores[:, :SAMPLE] - expected).abs().max()
            print(
                f"\n  {name}, {IMAGES} x {CAPTIONS:,}, {products}: {scale * limit / seconds:.1f} times the published "
                f"speed ({seconds:.2f} s against {scale * limit:.2f} s; largest error {error:.0e})"
            )


@pytest.mark.parametrize("name", SCORINGS)
def test_score_matrix_against_bare_products(name):
    """The limit is the product of all regions with all real words in oneDNN's layout, in tiles that are not kept."""
    scoring, (regions, words, lengths) = SCORINGS[name], sides(IMAGES, CAPTIONS)
    left = regions.flatten(0, 1).split(1_008)
    right = torch.randn(int(lengths.sum()), DIM).split(2_048)
    with torch.inference_mode():
        for products in ("fp32", "bf16"):
            rows, columns = ([_in_layout(each, products) for each in side] for side in (left, right))
            seconds, limit = paired(
                lambda products=products: score_matrix(
                    RegionEncoding(regions), WordEncoding(words, lengths), scoring, products
                ),
                lambda rows=rows, columns=columns: [F.linear(a, b) for a in rows for b in columns],
            )
            print(f"\n  {name}, {products}: {seconds / limit:.2f} times the bare product ({seconds:.2f} s)")


def _in_layout(matrix, products):
    return matrix.bfloat16() if products == "bf16" else matrix.to_mkldnn()


@pytest.mark.parametrize("name", SCORINGS)
def test_training_against_one_caption_at_a_time(name, monkeypatch):
    scoring, (regions, words, lengths) = SCORINGS[name], sides(64, 64)
    inputs = regions.requires_grad_(), words.requires_grad_()
    cotangent = torch.randn(64, 64)

    def step(scores):
        return torch.autograd.grad((scores * cotangent).sum(), inputs)

    for recompute in (False, True):
        monkeypatch.setitem(KEPT_VALUES, "cpu", 0 if recompute else 1 << 40)
        seconds, limit = paired(
            lambda: step(score_matrix(RegionEncoding(regions), WordEncoding(words, lengths), scoring)),
            lambda: step(published(regions, words, lengths, scoring)),
            rounds=3,
        )
        ours = step(score_matrix(RegionEncoding(regions), WordEncoding(words, lengths), scoring))
        pairs_of_gradients = zip(ours, step(published(regions, words, lengths, scoring)), strict=True)
        error = max(float((mine - theirs).abs().max()) for mine, theirs in pairs_of_gradients)
        print(
            f"\n  {name}, forward and backward of 64 x 64, {'tiles computed twice' if recompute else 'all kept'}: "
            f"{limit / seconds:.1f} times the published speed ({1000 * seconds:.0f} ms against {1000 * limit:.0f} ms; "
            f"largest error {error:.0e})"
        )


@pytest.mark.parametrize("focal", FOCAL)
def test_pairs_against_one_caption_at_a_time(focal):
    scoring, (regions, words, lengths) = SCORINGS[f"BFAN {focal}"], sides(128, 128)
    inputs = regions.requires_grad_(), words.requires_grad_()

    def one_by_one():
        return torch.cat(
            [published(*(each[k : k + 1] for each in (regions, words, lengths)), scoring)[0] for k in range(128)]
        )

    seconds, limit = paired(
        lambda: torch.autograd.grad(
            score_pairs(RegionEncoding(regions), WordEncoding(words, lengths), scoring).sum(), inputs
        ),
        lambda: torch.autograd.grad(one_by_one().sum(), inputs),
        rounds=3,
    )
    print(
        f"\n  BFAN {focal}, forward and backward of 128 pairs: {limit / seconds:.1f} times the published speed "
        f"({1000 * seconds:.0f} ms against {1000 * limit:.0f} ms)"
    )
