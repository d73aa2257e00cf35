"""Cross-attention scores against the published ones and against a loop over pairs that forms every context vector."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from itrpipe.models import attention_tiles
from itrpipe.models.attention_tiles import SMALLEST_GROUP, groups, score_matrix, score_pairs
from itrpipe.models.cross_attention import AGGREGATIONS, FOCAL_THRESHOLDS, RAW_FEATURE_NORMS, Attention, CrossAttention

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
PUBLISHED = {"t2i": {"lambda_softmax": 9.0, "lambda_lse": 6.0}, "i2t": {"lambda_softmax": 4.0, "lambda_lse": 5.0}}


def load(name: str) -> dict[str, torch.Tensor]:
    with np.load(REFERENCE / f"{name}.npz", allow_pickle=False) as arrays:
        return {key: torch.tensor(array) for key, array in arrays.items() if key != "meta"}


@pytest.fixture(scope="module")
def scan():
    return load("scan_xattn")


@pytest.fixture(scope="module")
def bfan():
    return load("bfan_focal")


def one_way(direction: str, attention: Attention) -> CrossAttention:
    return CrossAttention(attention, None) if direction == "t2i" else CrossAttention(None, attention)


def both_ways(focal: str) -> CrossAttention:
    return CrossAttention(Attention(20.0, focal=focal), Attention(20.0, focal=focal))


def gradients(scores, cotangent, *inputs):
    return torch.autograd.grad((scores * cotangent).sum(), inputs)


def naive_relevance(queries, context, attention: Attention):
    """R_q of one pair, step by step: A, its norm, the softmax, the focal mask, the context vectors, the cosine."""
    affinity = context @ queries.T  # [S, Q]
    name = attention.raw_feature_norm
    if name.startswith("clipped"):
        affinity = torch.where(affinity > 0, affinity, 0.1 * affinity)
    if name.endswith("l2norm"):
        affinity = affinity / (affinity.pow(2).sum(dim=1, keepdim=True).sqrt() + 1e-8)
    if name.endswith("l1norm"):
        affinity = affinity / (affinity.abs().sum(dim=1, keepdim=True) + 1e-8)
    if name == "softmax":
        affinity = affinity.exp() / affinity.exp().sum(dim=1, keepdim=True)
    weights = (attention.lambda_softmax * affinity.T).softmax(dim=1)  # [Q, S]
    if attention.focal is not None:
        with torch.no_grad():
            difference = weights[:, :, None] - weights[:, None, :]  # p_i - p_j
            confidence = weights[:, None, :].sqrt() if attention.focal == "prob" else 1.0
            kept = (difference * confidence).sum(dim=2) > 0
            kept[~kept.any(dim=1)] = True
        weights = torch.where(kept, weights, 0.0)
        weights = weights / weights.sum(dim=1, keepdim=True)
    return F.cosine_similarity(queries, weights @ context, dim=1, eps=1e-8)


def naive_score(queries, context, attention: Attention):
    relevance = naive_relevance(queries, context, attention)
    if attention.aggregation == "LogSumExp":
        return (attention.lambda_lse * relevance).exp().sum().log() / attention.lambda_lse
    return {"Mean": relevance.mean, "Sum": relevance.sum, "Max": relevance.max}[attention.aggregation]()


def naive_matrix(regions, count, words, lengths, scoring: CrossAttention):
    counts = [regions.shape[1]] * len(regions) if count is None else count.tolist()
    rows = []
    for image, real in zip(regions, counts, strict=True):
        row = []
        for caption, length in zip(words, lengths.tolist(), strict=True):
            score = 0.0
            if scoring.words_to_regions is not None:
                score = score + naive_score(caption[:length], image[:real], scoring.words_to_regions)
            if scoring.regions_to_words is not None:
                score = score + naive_score(image[:real], caption[:length], scoring.regions_to_words)
            row.append(score)
        rows.append(torch.stack(row))
    return torch.stack(rows)


def random_sides(seed, images=4, regions=5, captions=6, words=7, dim=8, dtype=torch.float64, least=1):
    """Unit vectors, at least `least` per item, with NaN in all padding, so that nothing padded can go unnoticed.

    The normalised products of a single word are all one, and only rounding tells them apart: single precision
    is compared on longer captions, as real ones are with their start and end token.
    """
    generator = torch.Generator().manual_seed(seed)

    def side(items, width):
        vectors = F.normalize(torch.randn(items, width, dim, generator=generator, dtype=dtype), dim=-1)
        count = torch.randint(least, width + 1, (items,), generator=generator)
        return vectors.masked_fill((torch.arange(width) >= count[:, None])[..., None], float("nan")), count

    return *side(images, regions), *side(captions, words)


OPTIONS = [
    *(
        one_way(direction, Attention(9.0, norm, aggregation=aggregation, lambda_lse=6.0))
        for direction, norm, aggregation in itertools.product(("t2i", "i2t"), RAW_FEATURE_NORMS, AGGREGATIONS)
    ),
    *(both_ways(focal) for focal in FOCAL_THRESHOLDS),
    CrossAttention(Attention(9.0, aggregation="Max"), Attention(4.0, "softmax", "prob", "LogSumExp", 5.0)),
]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("norm", RAW_FEATURE_NORMS)
@pytest.mark.parametrize("direction", PUBLISHED)
def test_scan_scores_match_reference(scan, direction, norm, aggregation):
    scoring = one_way(direction, Attention(raw_feature_norm=norm, aggregation=aggregation, **PUBLISHED[direction]))
    expected = scan[f"out_{direction}_{norm}_{aggregation}"]
    for captions in ("in_captions", "in_captions_garbage_pad"):
        scores = score_matrix(scan["in_images"], None, scan[captions], scan["in_lens"], scoring)
        torch.testing.assert_close(scores, expected, atol=2e-6, rtol=0)


def test_scan_with_the_temperature_of_coco_matches_reference(scan):
    scoring = one_way("i2t", Attention(4.0, aggregation="LogSumExp", lambda_lse=20.0))
    scores = score_matrix(scan["in_images"], None, scan["in_captions"], scan["in_lens"], scoring)
    torch.testing.assert_close(scores, scan["out_i2t_clipped_l2norm_LogSumExp_coco_lse20"], atol=2e-6, rtol=0)


# The recorded gradients are in single precision and lie up to 1.4e-5 (Sum: 2.9e-5) from the exact ones.
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 2e-5), (torch.float32, 4e-5)])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("direction", PUBLISHED)
def test_scan_gradients_match_reference(scan, direction, aggregation, dtype, tolerance):
    regions, words = scan["in_images"].to(dtype).requires_grad_(), scan["in_captions"].to(dtype).requires_grad_()
    scoring = one_way(direction, Attention(aggregation=aggregation, **PUBLISHED[direction]))
    scores = score_matrix(regions, None, words, scan["in_lens"], scoring)
    tolerance *= 1.5 if aggregation == "Sum" else 1.0
    for ours, name in zip(gradients(scores, scan["in_cotangent"], regions, words), ("gim", "gcap"), strict=True):
        torch.testing.assert_close(ours.float(), scan[f"{name}_{direction}_{aggregation}"], atol=tolerance, rtol=0)


@pytest.mark.parametrize("direction", PUBLISHED)
def test_scan_scores_of_vectors_of_any_length_match_reference(scan, direction):
    scoring = one_way(direction, Attention(PUBLISHED[direction]["lambda_softmax"]))
    scores = score_matrix(scan["in_images_unnorm"], None, scan["in_captions_unnorm"], scan["in_lens"], scoring)
    torch.testing.assert_close(scores, scan[f"out_unnorm_{direction}"], atol=2e-6, rtol=0)


@pytest.mark.parametrize("focal", FOCAL_THRESHOLDS)
def test_bfan_scores_and_pairs_match_reference(bfan, focal):
    attention = Attention(20.0, focal=focal)
    sides = bfan["in_images"], None, bfan["in_captions_garbage_pad"], bfan["in_lens"]
    for name, scoring in (
        ("sim", CrossAttention(attention, attention)),
        ("t2i", CrossAttention(attention, None)),
        ("i2t", CrossAttention(None, attention)),
    ):
        torch.testing.assert_close(score_matrix(*sides, scoring), bfan[f"out_{focal}_{name}"], atol=3e-6, rtol=0)
    pairs = score_pairs(*sides, CrossAttention(attention, attention))
    torch.testing.assert_close(pairs, bfan[f"out_{focal}_offline_pairs"], atol=3e-6, rtol=0)


@pytest.mark.parametrize("focal", FOCAL_THRESHOLDS)
def test_bfan_gradients_match_reference(bfan, focal):
    regions, words = bfan["in_images"].clone().requires_grad_(), bfan["in_captions"].clone().requires_grad_()
    scores = score_matrix(regions, None, words, bfan["in_lens"], both_ways(focal))
    of_regions, of_words = gradients(scores, bfan["in_cotangent"], regions, words)
    torch.testing.assert_close(of_regions, bfan[f"gim_{focal}"], atol=5e-5, rtol=0)
    torch.testing.assert_close(of_words, bfan[f"gcap_{focal}"], atol=5e-5, rtol=0)


@pytest.mark.parametrize("scoring", OPTIONS, ids=str)
def test_every_option_equals_the_loop_over_pairs(scoring):
    regions, count, words, lengths = random_sides(seed=3)
    inputs = regions.requires_grad_(), words.requires_grad_()
    scores, naive = (score(regions, count, words, lengths, scoring) for score in (score_matrix, naive_matrix))
    torch.testing.assert_close(scores, naive, atol=1e-10, rtol=0)
    cotangent = torch.randn(scores.shape, dtype=scores.dtype)
    expected = gradients(naive, cotangent, *inputs)
    for ours, theirs in zip(gradients(scores, cotangent, *inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=0)
    chosen = torch.arange(4)
    pairs = score_pairs(regions, count, words[:4], lengths[:4], scoring)
    torch.testing.assert_close(pairs, scores[chosen, chosen], atol=1e-10, rtol=0)
    assert all(torch.isfinite(gradient).all() for gradient in gradients(pairs, cotangent[0, :4], *inputs))


@pytest.mark.parametrize("norm", ["clipped_l2norm", "no_norm"])
def test_attention_of_any_temperature_neither_overflows_nor_vanishes(norm):
    regions, count, words, lengths = random_sides(seed=7)
    for scoring in (one_way(direction, Attention(2000.0, norm)) for direction in PUBLISHED):
        scores, naive = (score(regions, count, words, lengths, scoring) for score in (score_matrix, naive_matrix))
        torch.testing.assert_close(scores, naive, atol=1e-9, rtol=0)


@given(
    seed=st.integers(0, 2**31),
    images=st.integers(1, 4),
    regions=st.integers(1, 6),
    captions=st.integers(1, 5),
    words=st.integers(1, 7),
    scoring=st.sampled_from(OPTIONS),
    tile_values=st.sampled_from([1, 30, 200, 1 << 20]),
    recompute=st.booleans(),
)
@settings(max_examples=60)
def test_any_shape_in_any_tiles_equals_the_loop(
    seed, images, regions, captions, words, scoring, tile_values, recompute
):
    vectors, count, texts, lengths = random_sides(seed, images, regions, captions, words)
    inputs = vectors.requires_grad_(), texts.requires_grad_()
    scores = score_matrix(*inputs[:1], count, texts, lengths, scoring, "fp32", tile_values, recompute)
    torch.testing.assert_close(scores, naive_matrix(vectors, count, texts, lengths, scoring), atol=1e-9, rtol=0)
    for gradient, real in zip(gradients(scores, torch.ones(()), *inputs), (count, lengths), strict=True):
        padding = torch.arange(gradient.shape[1]) >= real[:, None]
        assert torch.isfinite(gradient).all()
        assert (gradient[padding] == 0).all()


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("products", ["fp32", "bf16"])
def test_tiles_and_recomputation_change_neither_scores_nor_gradients(products, recompute):
    regions, count, words, lengths = random_sides(5, 9, 6, 70, 8, 16, torch.float32, least=3)
    regions, words = regions.requires_grad_(), words.requires_grad_()
    cotangent = torch.randn(9, 70, generator=torch.Generator().manual_seed(5))
    whole = score_matrix(regions, count, words, lengths, both_ways("equal"), products, 1 << 20, recompute=False)
    tiled = score_matrix(regions, count, words, lengths, both_ways("equal"), products, 600, recompute)
    torch.testing.assert_close(tiled, whole, atol=1e-6, rtol=0)
    expected = gradients(whole, cotangent, regions, words)
    for ours, theirs in zip(gradients(tiled, cotangent, regions, words), expected, strict=True):
        # Gradients pass through bfloat16 too, whose last bit is 2^-8 of a value; tiles add up in another order.
        atol, rtol = (1e-5, 1e-5) if products == "fp32" else (2e-2, 2**-8)
        torch.testing.assert_close(ours, theirs, atol=atol, rtol=rtol)


def kept_values(recompute: bool | None, images: int) -> int:
    """Values that autograd holds between a forward pass and its backward pass."""
    sizes = {}

    def pack(tensor):
        sizes[tensor.data_ptr()] = tensor.untyped_storage().nbytes() // tensor.element_size()
        return tensor

    regions, words = (torch.randn(images, 36, 4, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        score_matrix(regions, None, words, torch.full((images,), 36), both_ways("equal"), recompute=recompute)
    return sum(sizes.values())


def test_recomputation_keeps_a_fraction_and_is_chosen_for_large_matrices(monkeypatch):
    products = (16 * 36) ** 2
    everything, inputs = kept_values(False, 16), kept_values(True, 16)
    assert everything > 8 * products
    assert inputs < products / 2
    monkeypatch.setitem(attention_tiles.KEPT_VALUES, "cpu", products)
    assert kept_values(None, 16) == everything
    monkeypatch.setitem(attention_tiles.KEPT_VALUES, "cpu", products - 1)
    assert kept_values(None, 16) == inputs


@pytest.mark.parametrize("scoring", [OPTIONS[0], one_way("i2t", Attention(4.0)), *OPTIONS[-3:-1]], ids=str)
def test_products_in_bfloat16_stay_close(scoring):
    regions, count, words, lengths = random_sides(8, 12, 36, 40, 16, 1024, torch.float32, least=8)
    exact, rounded = (score_matrix(regions, count, words, lengths, scoring, each) for each in ("fp32", "bf16"))
    assert rounded.dtype == torch.float32
    assert 0 < (exact - rounded).abs().max() < (1e-2 if scoring == both_ways("prob") else 1e-3)


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=400), most=st.integers(1, 3000))
@settings(max_examples=50)
def test_groups_hold_every_caption_once_within_the_budget(lengths, most):
    lengths = torch.tensor(lengths)
    found = list(groups(lengths, most))
    assert sorted(torch.cat([group.index for group in found]).tolist()) == list(range(len(lengths)))
    for group in found:
        real = lengths[group.index]
        assert (int(real.max()), int(real.min())) == (group.width, group.shortest)
        assert len(real) * group.width <= max(most, group.width)
        assert len(real) <= SMALLEST_GROUP or group.width == group.shortest


@pytest.mark.parametrize("scoring", OPTIONS, ids=str)
@pytest.mark.parametrize("case", ["zero words", "zero regions", "flat", "one word", "opposite"])
def test_degenerate_input_gives_finite_scores_and_modest_gradients(scoring, case):
    regions, _, words, _ = random_sides(1, dtype=torch.float32)
    regions, words = regions.nan_to_num(0.3), words.nan_to_num(0.3)
    if case == "zero words":
        words = words.clone().index_fill_(1, torch.tensor([2]), 0.0)
    if case == "zero regions":
        regions = regions.clone().index_fill_(1, torch.tensor([0]), 0.0)
    if case == "flat":
        regions, words = regions[:, :1].expand_as(regions), words[:, :1].expand_as(words)
    if case == "one word":
        regions, words = regions[:, :1], words[:, :1]
    if case == "opposite":
        regions = torch.stack([regions[:, 0], -regions[:, 0]], dim=1)
    inputs = regions.clone().requires_grad_(), words.clone().requires_grad_()
    scores = score_matrix(inputs[0], None, inputs[1], torch.full((6,), words.shape[1]), scoring)
    assert torch.isfinite(scores).all()
    for gradient in gradients(scores, torch.ones(()), *inputs):
        assert gradient.abs().max() < 1e4


@pytest.mark.parametrize("focal", FOCAL_THRESHOLDS)
def test_a_context_of_one_vector_is_attended_whole(focal):
    region, word = F.normalize(torch.randn(2, 1, 1, 8), dim=-1)
    scores = score_matrix(region, None, word, torch.tensor([1]), both_ways(focal))
    torch.testing.assert_close(scores, 2 * (region * word).sum(dim=-1))
