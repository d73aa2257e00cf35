"""Cross-attention scores against the published ones and against a loop over pairs that forms every context vector."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from itrpipe.models.base import RegionEncoding, WordEncoding
from itrpipe.models.scan import network as scan_network
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.scan.network import (
    SMALLEST_GROUP,
    Attention,
    CrossAttention,
    CrossAttentionModel,
    groups,
)
from tests.models.toys import close, kept_values, recorded

AGGREGATIONS = ("LogSumExp", "Mean", "Max", "Sum")
NORMS = ("clipped_l2norm", "l2norm", "clipped", "softmax", "no_norm", "l1norm", "clipped_l1norm")
PUBLISHED = {"t2i": {"lambda_softmax": 9.0, "lambda_lse": 6.0}, "i2t": {"lambda_softmax": 4.0, "lambda_lse": 5.0}}


def sides_of(reference: dict[str, Tensor]) -> tuple[RegionEncoding, WordEncoding]:
    """Recorded regions and words, with garbage behind the lengths of captions."""
    words = WordEncoding(reference["in_captions_garbage_pad"], reference["in_lens"])
    return RegionEncoding(reference["in_images"]), words


def one_way(direction: str, attention: Attention) -> CrossAttention:
    return CrossAttention(attention, None) if direction == "t2i" else CrossAttention(None, attention)


def both_ways(focal: str) -> CrossAttention:
    return CrossAttention(Attention(20.0, focal=focal), Attention(20.0, focal=focal))


def scores_of(images: RegionEncoding, texts: WordEncoding, scoring: CrossAttention) -> Tensor:
    return CrossAttentionModel(Scan(embed_dim=1, word_dim=1), scoring, 1, 1).score_matrix(images, texts)


def gradients(scores: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Of a sum of the scores in which each has a weight of its own."""
    weights = torch.arange(scores.numel(), dtype=scores.dtype).view_as(scores).cos()
    return torch.autograd.grad((scores * weights).sum(), inputs)


OPTIONS = [
    *(
        one_way(direction, Attention(9.0, norm, aggregation=aggregation, lambda_lse=6.0))
        for direction, norm, aggregation in itertools.product(PUBLISHED, NORMS, AGGREGATIONS)
    ),
    *(both_ways(focal) for focal in ("equal", "prob")),
    CrossAttention(Attention(9.0, aggregation="Max"), Attention(4.0, "softmax", "prob", "LogSumExp", 5.0)),
]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("direction", PUBLISHED)
def test_scan_scores_match_reference(direction: str, norm: str) -> None:
    reference = recorded("scan_xattn")
    for aggregation in AGGREGATIONS:
        attention = Attention(raw_feature_norm=norm, aggregation=aggregation, **PUBLISHED[direction])
        scores = scores_of(*sides_of(reference), one_way(direction, attention))
        close(scores, reference[f"out_{direction}_{norm}_{aggregation}"], 2e-6)


@pytest.mark.parametrize("focal", ["equal", "prob"])
def test_bfan_scores_match_reference(focal: str) -> None:
    reference = recorded("bfan_focal")
    close(scores_of(*sides_of(reference), both_ways(focal)), reference[f"out_{focal}_sim"], 3e-6)


def test_large_matrices_keep_their_inputs_alone_for_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    products = (16 * 36) ** 2
    vectors = [torch.randn(16, 36, 8, requires_grad=True) for _ in range(2)]
    sides = RegionEncoding(vectors[0]), WordEncoding(vectors[1], torch.full((16,), 36))
    for most, keeps_all in ((products, True), (products - 1, False)):
        monkeypatch.setitem(scan_network.KEPT_VALUES, "cpu", most)
        assert (kept_values(lambda: scores_of(*sides, both_ways("equal")))[1] > products) == keeps_all


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=400), most=st.integers(1, 3000))
@settings(max_examples=50)
def test_groups_hold_every_caption_once_within_the_budget(lengths: list[int], most: int) -> None:
    found = list(groups(torch.tensor(lengths), most))
    assert sorted(torch.cat([rows for rows, _, _ in found]).tolist()) == list(range(len(lengths)))
    for rows, longest, shortest in found:
        own = [lengths[row] for row in rows.tolist()]
        assert (max(own), min(own)) == (longest, shortest)
        assert len(own) * longest <= max(most, longest)
        assert len(own) <= SMALLEST_GROUP or longest == shortest


DEGENERATE = {
    "zero words": lambda regions, words: (regions, words.index_fill(1, torch.tensor([2]), 0.0)),
    "zero regions": lambda regions, words: (regions.index_fill(1, torch.tensor([0]), 0.0), words),
    "flat": lambda regions, words: (regions[:, :1].expand_as(regions), words[:, :1].expand_as(words)),
    "one word": lambda regions, words: (regions[:, :1], words[:, :1]),
    "opposite": lambda regions, words: (torch.stack([regions[:, 0], -regions[:, 0]], dim=1), words),
}


@pytest.mark.parametrize("scoring", OPTIONS, ids=str)
@pytest.mark.parametrize("case", DEGENERATE)
def test_degenerate_input_gives_finite_scores_and_modest_gradients(scoring: CrossAttention, case: str) -> None:
    sides = (torch.nn.functional.normalize(torch.randn(5, 6, 8), dim=2) for _ in range(2))
    inputs = [each.clone().requires_grad_() for each in DEGENERATE[case](*sides)]
    regions, words = inputs
    scores = scores_of(RegionEncoding(regions), WordEncoding(words, torch.full((5,), words.shape[1])), scoring)
    assert torch.isfinite(scores).all()
    assert all(each.abs().max() < 1e4 for each in gradients(scores, *inputs))
