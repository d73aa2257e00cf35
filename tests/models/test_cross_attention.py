"""Cross-attention scores against the published ones and against a loop over pairs that forms every context vector."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from itrpipe.models.base import RegionEncoding, WordEncoding
from itrpipe.models.scan import network as scan_network
from itrpipe.models.scan.network import (
    AGGREGATIONS,
    FOCAL_THRESHOLDS,
    RAW_FEATURE_NORMS,
    SMALLEST_GROUP,
    Attention,
    CrossAttention,
    groups,
    score_matrix,
    score_pairs,
)
from tests.models.published import arrays

PUBLISHED = {"t2i": {"lambda_softmax": 9.0, "lambda_lse": 6.0}, "i2t": {"lambda_softmax": 4.0, "lambda_lse": 5.0}}


def load(name: str) -> dict[str, torch.Tensor]:
    return {key: torch.tensor(array) for key, array in arrays(name).items() if key != "meta"}


@pytest.fixture(scope="module")
def scan():
    return load("scan_xattn")


@pytest.fixture(scope="module")
def bfan():
    return load("bfan_focal")


def sides_of(reference, images: str = "in_images", captions: str = "in_captions"):
    return RegionEncoding(reference[images]), WordEncoding(reference[captions], reference["in_lens"])


def one_way(direction: str, attention: Attention) -> CrossAttention:
    return CrossAttention(attention, None) if direction == "t2i" else CrossAttention(None, attention)


def both_ways(focal: str) -> CrossAttention:
    return CrossAttention(Attention(20.0, focal=focal), Attention(20.0, focal=focal))


def gradients(scores, cotangent, *inputs):
    return torch.autograd.grad((scores * cotangent).sum(), inputs)


def naive_score(queries, context, attention: Attention):
    """The score of a pair, step by step: A, its norm, the softmax, the focal mask, the context vectors, the cosine."""
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
    relevance = F.cosine_similarity(queries, weights @ context, dim=1, eps=1e-8)
    if attention.aggregation == "LogSumExp":
        return (attention.lambda_lse * relevance).exp().sum().log() / attention.lambda_lse
    return {"Mean": relevance.mean, "Sum": relevance.sum, "Max": relevance.max}[attention.aggregation]()


def naive_matrix(images: RegionEncoding, texts: WordEncoding, scoring: CrossAttention):
    assert images.count is not None
    regions = [each[:count] for each, count in zip(images.regions, images.count.tolist(), strict=True)]
    words = [each[:length] for each, length in zip(texts.words, texts.lengths.tolist(), strict=True)]
    scores = torch.zeros(len(regions), len(words), dtype=texts.words.dtype)
    if scoring.words_to_regions is not None:
        scores = scores + torch.stack(
            [torch.stack([naive_score(w, r, scoring.words_to_regions) for w in words]) for r in regions]
        )
    if scoring.regions_to_words is not None:
        scores = scores + torch.stack(
            [torch.stack([naive_score(r, w, scoring.regions_to_words) for w in words]) for r in regions]
        )
    return scores


def random_sides(seed, images=4, regions=5, captions=6, words=7, dim=8, dtype=torch.float64, least=1):
    """Unit vectors, at least `least` per item, with NaN in all padding, so that nothing padded can go unnoticed.

    The normalised products of a single word are all one, and only rounding tells them apart: single precision
    is compared on longer captions, as real ones are with their start and end token.
    """
    generator = torch.Generator().manual_seed(seed)

    def side(items, width):
        vectors = F.normalize(torch.randn(items, width, dim, generator=generator, dtype=dtype), dim=-1)
        count = torch.randint(least, width + 1, (items,), generator=generator)
        return vectors.masked_fill(
            (torch.arange(width) >= count[:, None])[..., None], float("nan")
        ).requires_grad_(), count

    return RegionEncoding(*side(images, regions)), WordEncoding(*side(captions, words))


OPTIONS = [
    *(
        one_way(direction, Attention(9.0, norm, aggregation=aggregation, lambda_lse=6.0))
        for direction, norm, aggregation in itertools.product(("t2i", "i2t"), RAW_FEATURE_NORMS, AGGREGATIONS)
    ),
    *(both_ways(focal) for focal in FOCAL_THRESHOLDS),
    CrossAttention(Attention(9.0, aggregation="Max"), Attention(4.0, "softmax", "prob", "LogSumExp", 5.0)),
]
EXTREME = [one_way("t2i", Attention(2000.0, norm)) for norm in ("clipped_l2norm", "no_norm")]


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("norm", RAW_FEATURE_NORMS)
@pytest.mark.parametrize("direction", PUBLISHED)
def test_scan_scores_match_reference(scan, direction, norm, aggregation):
    scoring = one_way(direction, Attention(raw_feature_norm=norm, aggregation=aggregation, **PUBLISHED[direction]))
    scores = score_matrix(*sides_of(scan, captions="in_captions_garbage_pad"), scoring)
    torch.testing.assert_close(scores, scan[f"out_{direction}_{norm}_{aggregation}"], atol=2e-6, rtol=0)


@pytest.mark.parametrize("direction", PUBLISHED)
def test_scan_scores_of_vectors_of_any_length_match_reference(scan, direction):
    scoring = one_way(direction, Attention(PUBLISHED[direction]["lambda_softmax"]))
    scores = score_matrix(*sides_of(scan, "in_images_unnorm", "in_captions_unnorm"), scoring)
    torch.testing.assert_close(scores, scan[f"out_unnorm_{direction}"], atol=2e-6, rtol=0)


@pytest.mark.parametrize("focal", FOCAL_THRESHOLDS)
def test_bfan_scores_and_pairs_match_reference(bfan, focal):
    attention, sides = Attention(20.0, focal=focal), sides_of(bfan, captions="in_captions_garbage_pad")
    for name, scoring in (("sim", both_ways(focal)), *((way, one_way(way, attention)) for way in PUBLISHED)):
        torch.testing.assert_close(score_matrix(*sides, scoring), bfan[f"out_{focal}_{name}"], atol=3e-6, rtol=0)
    pairs = score_pairs(*sides, both_ways(focal))
    torch.testing.assert_close(pairs, bfan[f"out_{focal}_offline_pairs"], atol=3e-6, rtol=0)


# The recorded gradients are in single precision and lie up to 1.4e-5 (Sum: 2.9e-5) from the exact ones.
@pytest.mark.parametrize(
    ("name", "scoring", "tolerance"),
    [
        (f"{way}_{aggregation}", one_way(way, Attention(aggregation=aggregation, **PUBLISHED[way])), 6e-5)
        for way, aggregation in itertools.product(PUBLISHED, AGGREGATIONS)
    ]
    + [(focal, both_ways(focal), 5e-5) for focal in FOCAL_THRESHOLDS],
)
def test_gradients_match_reference(scan, bfan, name, scoring, tolerance):
    reference = bfan if name in FOCAL_THRESHOLDS else scan
    images, texts = sides_of(reference)
    inputs = images.regions.requires_grad_(), texts.words.requires_grad_()
    found = gradients(score_matrix(images, texts, scoring), reference["in_cotangent"], *inputs)
    for ours, side in zip(found, ("gim", "gcap"), strict=True):
        torch.testing.assert_close(ours, reference[f"{side}_{name}"], atol=tolerance, rtol=0)


@pytest.mark.parametrize("scoring", [*OPTIONS, *EXTREME], ids=str)
def test_every_option_equals_the_loop_over_pairs(scoring):
    images, texts = random_sides(seed=3)
    inputs = images.regions, texts.words
    scores, naive = score_matrix(images, texts, scoring), naive_matrix(images, texts, scoring)
    torch.testing.assert_close(scores, naive, atol=1e-9, rtol=0)
    cotangent = torch.randn(scores.shape, dtype=scores.dtype)
    expected = gradients(naive, cotangent, *inputs)
    for ours, theirs in zip(gradients(scores, cotangent, *inputs), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5 if scoring in EXTREME else 1e-9, rtol=0)
    pairs = score_pairs(images, WordEncoding(texts.words[:4], texts.lengths[:4]), scoring)
    torch.testing.assert_close(pairs, scores.diagonal(), atol=1e-10, rtol=0)
    assert all(torch.isfinite(gradient).all() for gradient in gradients(pairs, cotangent[0, :4], *inputs))


@given(
    seed=st.integers(0, 2**31),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.integers(1, 7)),
    scoring=st.sampled_from(OPTIONS),
    tile_values=st.sampled_from([1, 30, 200, 1 << 20]),
    recompute=st.booleans(),
)
@settings(max_examples=60)
def test_any_shape_in_any_tiles_equals_the_loop(seed, sizes, scoring, tile_values, recompute):
    images, texts = random_sides(seed, *sizes)
    scores = score_matrix(images, texts, scoring, "fp32", tile_values, recompute)
    torch.testing.assert_close(scores, naive_matrix(images, texts, scoring), atol=1e-9, rtol=0)
    found = gradients(scores, torch.ones(()), images.regions, texts.words)
    for gradient, real in zip(found, (images.count, texts.lengths), strict=True):
        assert torch.isfinite(gradient).all()
        assert (gradient[torch.arange(gradient.shape[1]) >= real[:, None]] == 0).all()


@pytest.mark.parametrize("products", ["fp32", "bf16"])
def test_tiles_and_recomputation_change_neither_scores_nor_gradients(products):
    images, texts = random_sides(5, 9, 6, 70, 8, 16, torch.float32, least=3)
    cotangent = torch.randn(9, 70, generator=torch.Generator().manual_seed(5))
    whole = score_matrix(images, texts, both_ways("equal"), products, 1 << 20, recompute=False)
    tiled = score_matrix(images, texts, both_ways("equal"), products, 600, recompute=True)
    with torch.no_grad():
        rounded_once = score_matrix(images, texts, both_ways("equal"), products, 600)
    torch.testing.assert_close(tiled, whole, atol=1e-6, rtol=0)
    torch.testing.assert_close(rounded_once, whole, atol=1e-6, rtol=0)
    expected = gradients(whole, cotangent, images.regions, texts.words)
    for ours, theirs in zip(gradients(tiled, cotangent, images.regions, texts.words), expected, strict=True):
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
        texts = WordEncoding(words, torch.full((images,), 36))
        score_matrix(RegionEncoding(regions), texts, both_ways("equal"), recompute=recompute)
    return sum(sizes.values())


def test_recomputation_keeps_a_fraction_and_is_chosen_for_large_matrices(monkeypatch):
    products = (16 * 36) ** 2
    everything, inputs = kept_values(False, 16), kept_values(True, 16)
    assert everything > 8 * products
    assert inputs < products / 2
    for most, kept in ((products, everything), (products - 1, inputs)):
        monkeypatch.setitem(scan_network.KEPT_VALUES, "cpu", most)
        assert kept_values(None, 16) == kept


@pytest.mark.parametrize("scoring", [OPTIONS[0], one_way("i2t", Attention(4.0)), *OPTIONS[-3:-1]], ids=str)
def test_products_in_bfloat16_stay_close(scoring):
    sides = random_sides(8, 12, 36, 40, 16, 1024, torch.float32, least=8)
    exact, rounded = (score_matrix(*sides, scoring, each) for each in ("fp32", "bf16"))
    assert rounded.dtype == torch.float32
    assert 0 < (exact - rounded).abs().max() < (1e-2 if scoring == both_ways("prob") else 1e-3)


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=400), most=st.integers(1, 3000))
@settings(max_examples=50)
def test_groups_hold_every_caption_once_within_the_budget(lengths, most):
    lengths = torch.tensor(lengths)
    found = list(groups(lengths, most))
    assert sorted(torch.cat([rows for rows, _, _ in found]).tolist()) == list(range(len(lengths)))
    for rows, longest, shortest in found:
        assert (int(lengths[rows].max()), int(lengths[rows].min())) == (longest, shortest)
        assert len(rows) * longest <= max(most, longest)
        assert len(rows) <= SMALLEST_GROUP or longest == shortest


@pytest.mark.parametrize("scoring", OPTIONS, ids=str)
@pytest.mark.parametrize("case", ["zero words", "zero regions", "flat", "one word", "opposite"])
def test_degenerate_input_gives_finite_scores_and_modest_gradients(scoring, case):
    images, texts = random_sides(1, dtype=torch.float32)
    regions, words = images.regions.detach().nan_to_num(0.3), texts.words.detach().nan_to_num(0.3)
    if case == "zero words":
        words[:, 2] = 0.0
    if case == "zero regions":
        regions[:, 0] = 0.0
    if case == "flat":
        regions, words = regions[:, :1].expand_as(regions), words[:, :1].expand_as(words)
    if case == "one word":
        regions, words = regions[:, :1], words[:, :1]
    if case == "opposite":
        regions = torch.stack([regions[:, 0], -regions[:, 0]], dim=1)
    inputs = regions.clone().requires_grad_(), words.clone().requires_grad_()
    scores = score_matrix(RegionEncoding(inputs[0]), WordEncoding(inputs[1], torch.full((6,), words.shape[1])), scoring)
    assert torch.isfinite(scores).all()
    assert all(each.abs().max() < 1e4 for each in gradients(scores, torch.ones(()), *inputs))
