"""A NaN in a score comes out of every loss as NaN, so that training stops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from itrpipe.losses.ascl import caption_loss, caption_triplet_loss
from itrpipe.losses.contrastive import hardest_triplet, infonce, sigmoid, sum_of_triplets
from itrpipe.losses.fne import Gaussians, SamplingRules, draw, drawn_hinges, hardest_only, sampling_weights
from itrpipe.losses.itm import ranking_hinges
from itrpipe.losses.quintuplet import (
    OfflineScores,
    adaptive_offline_quintuplet_loss,
    offline_quintuplet_loss,
    offline_triplet_loss,
)
from itrpipe.losses.ssamt import fragment_loss, pair_loss, phrase_loss
from itrpipe.losses.tags import correction_loss, discrimination_loss, masked_word_loss, synthetic_triplet_loss
from itrpipe.losses.triplet import hardest_sentence_loss, hinge, triplet_loss

B = 4
FEW = torch.tensor([0, 0, 1, 3])
HALF = torch.tensor([[True, False, True]] * B)


def offline(values: Tensor) -> OfflineScores:
    return OfflineScores(*values.unbind(dim=1))


LOSSES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "triplet, hardest": ((B, B), triplet_loss),
    "triplet, all": ((B, B), lambda x: triplet_loss(x, max_violation=False)),
    "sentences": ((4,), lambda x: hardest_sentence_loss(torch.zeros(B), x, FEW, 0.2)),
    "sentences, captions": ((B,), lambda x: hardest_sentence_loss(x, torch.zeros(4), torch.arange(4), 0.2)),
    "offline triplet": ((B, 2), lambda x: offline_triplet_loss(torch.eye(B), x[:, 0], x[:, 1])),
    "quintuplet": ((B, 4), lambda x: offline_quintuplet_loss(torch.eye(B), offline(x))),
    "online quintuplet": ((B, B), lambda x: offline_quintuplet_loss(x, offline(torch.zeros(B, 4)), pairs="online")),
    "adaptive": ((B, 4), lambda x: adaptive_offline_quintuplet_loss(torch.eye(B), offline(x))),
    "adaptive, online": ((B, B), lambda x: adaptive_offline_quintuplet_loss(x, offline(torch.zeros(B, 4)))),
    "ranking": ((B, 3), lambda x: ranking_hinges(x, 0.2).mean()),
    "pairs": ((B, 3), lambda x: pair_loss(*x.unbind(dim=1), 0.2)),
    "fragments": ((B, 4), lambda x: fragment_loss(*x.unbind(dim=1), 0.2)),
    "phrases": ((B, 3), lambda x: phrase_loss(x, HALF, torch.ones_like(HALF), 0.2)),
    "masked words": ((4, 5), lambda x: masked_word_loss(x, FEW, FEW, B)),
    "synthetic": ((B, 3), lambda x: synthetic_triplet_loss(torch.zeros(B), x, torch.ones(B, 3).bool(), 0.2)),
    "discrimination": ((4, 2), lambda x: discrimination_loss(x, FEW, torch.arange(4), FEW, B)),
    "correction": ((4, 5), lambda x: correction_loss(x, FEW, FEW, B)),
    "contrastive": ((B, B), caption_loss),
    "contrastive, generated": ((B, B), lambda x: caption_loss(torch.eye(B), x)),
    "infonce": ((B, 3), lambda x: infonce(torch.zeros(B), x)),
    "infonce, positive": ((B,), lambda x: infonce(x, torch.zeros(B, 3))),
    "sigmoid": ((B, 3), lambda x: sigmoid(torch.zeros(B), x)),
    "sigmoid, positive": ((B,), lambda x: sigmoid(x, torch.zeros(B, 3))),
    "hardest of any": ((B, 3), lambda x: hardest_triplet(torch.zeros(B), x)),
    "sum of any": ((B, 3), lambda x: sum_of_triplets(torch.zeros(B), x)),
    "caption triplet": ((B, B), lambda x: caption_triplet_loss(torch.eye(B), x)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_score_that_is_nan_makes_the_loss_nan(name: str) -> None:
    shape, loss = LOSSES[name]
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    assert loss(values).isfinite()
    for place in range(values.numel()):
        broken = values.clone()
        broken.view(-1)[place] = float("nan")
        assert loss(broken).isnan(), place


@pytest.mark.parametrize("window", [None, 0.2])
@pytest.mark.parametrize("fallback", [True, False])
def test_a_similarity_that_is_nan_is_drawn(window: float | None, fallback: bool) -> None:
    similarities = torch.rand(B, 6, generator=torch.Generator().manual_seed(0))
    similarities[1, 4] = float("nan")
    excluded = torch.eye(B, 6).bool()
    gaussians = Gaussians(torch.tensor([0.8, 0.2]), torch.tensor([0.1, 0.1]), torch.tensor([1e3, 1e3]))
    rules = SamplingRules(
        prior=0.1,
        alpha=0.5,
        posterior_threshold=0.01,
        posterior_scale=1.0,
        min_count=0,
        window=window,
        fallback=fallback,
        monotone=False,
    )
    positive = torch.ones(B)
    for weights in (
        sampling_weights(similarities, positive, excluded, gaussians, rules),
        hardest_only(similarities, excluded),
    ):
        columns, found = draw(weights)
        negative = similarities.gather(1, columns[:, None])[:, 0]
        losses = drawn_hinges(positive, negative, found, 0.2)
        assert losses.isnan().tolist() == [False, True, False, False]


def test_a_candidate_whose_weight_is_nan_is_found_where_no_other_is() -> None:
    columns, found = draw(torch.tensor([[0.0, float("nan"), 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    assert found.tolist() == [True, False, True]
    assert columns[[0, 2]].tolist() == [1, 2]


def test_the_hinge_passes_nan_on_and_its_gradient_at_zero() -> None:
    positive = torch.tensor([0.5, 0.5, float("nan"), 9.0], requires_grad=True)
    found = hinge(positive, torch.tensor([0.5, 0.7, 0.1, 0.1]), 0.0)
    assert found[2].isnan()
    assert found[[0, 1, 3]].tolist() == pytest.approx([0.0, 0.2, 0.0])
    found[[0, 1, 3]].sum().backward()
    assert positive.grad is not None
    assert positive.grad.tolist() == [-1.0, -1.0, 0.0, 0.0]
