"""The FNE method against its formulas written out, its ablations, and runs that repeat and go on exactly."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from itrpipe.methods.base import MomentumTwin
from itrpipe.methods.fne import method as fne
from itrpipe.methods.fne.declaration import Fne
from itrpipe.methods.fne.method import EMPTY, FeatureQueues, FneLoss, draw, sampling_weights
from tests.methods.toys import gaussians, of_case, reference
from tests.waits import Waits

IMAGES, DIM = 20, 16
CASES = ["warm", "full", "full_wide_pos", "full_wide_neg", "empty"]


def unit_vectors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [F.normalize(torch.randn(6, DIM, generator=generator), dim=1).requires_grad_() for _ in range(2)]


def test_under_autocast_everything_is_compared_in_single_precision():
    found = []
    for enabled in (False, True):
        torch.manual_seed(0)
        images, texts, owners, loss = *unit_vectors(), torch.arange(6), FneLoss(DIM, Fne(min_count=0))
        loss(images, texts, owners)  # fills memory and statistics
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            value = loss(images, texts, owners)
        found.append([value, *torch.autograd.grad(value, [images, texts]), *loss.state_dict().values()])
    torch.testing.assert_close(*found, atol=0, rtol=0)


@pytest.mark.parametrize("choice", ["drawn", "hardest"])
def test_a_step_reads_no_value_from_the_device(choice):
    loss = FneLoss(DIM, Fne(min_count=0, memory_size=12, candidates=choice))
    with Waits() as waits:
        loss(*unit_vectors(), torch.arange(6)).backward()
        assert not waits.seen
        loss.figures["retained"].item()
    assert waits.seen == ["_local_scalar_dense"]


@pytest.mark.parametrize("case", CASES)
def test_weights_match_reference(case):
    posterior = reference("fne_posterior")
    similarities, excluded, positive = posterior["sims"], posterior["mask"], posterior["pos_sims"][:, 0]
    rules = Fne(
        prior=1 / float(posterior["inv_prior"]),
        alpha=float(posterior["alpha"]),
        posterior_threshold=1 - float(posterior["keep_false_margin"]),
        posterior_scale=float(posterior["posterior_scale"]),
        min_count=int(posterior["min_count"]),
        margin=float(posterior["margin"]),
    )
    weights = sampling_weights(similarities, positive, excluded, of_case(posterior, case), rules)
    np.testing.assert_allclose(weights, posterior[f"{case}/weights"], atol=1e-6)
    np.testing.assert_array_equal(weights.argmax(dim=1)[:, None], posterior[f"{case}/argmax_index"])


@pytest.mark.parametrize("chosen", ["drawn", "hardest"])
def test_a_similarity_that_is_nan_is_drawn(chosen):
    similarities = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    similarities[1, 4] = float("nan")
    rules = Fne(prior=0.1, min_count=0, candidates=chosen)
    columns, found = draw(sampling_weights(similarities, torch.ones(4), torch.eye(4, 6).bool(), gaussians(), rules))
    assert (columns[1], found[1]) == (4, True)


def test_a_row_without_candidates_draws_nothing_and_costs_nothing():
    similarities = torch.tensor([[0.9, 0.1, 0.2], [0.1, 0.9, 0.2]])
    excluded = torch.tensor([[True, True, True], [False, True, False]])
    below, without, anywhere = (
        sampling_weights(similarities, similarities[:, 0], excluded, gaussians(), Fne(**given)) > 0
        for given in ({}, {"fallback": False}, {"window": False})
    )
    assert below.tolist() == [[False] * 3, [False, False, True]]  # below the window, so the hardest
    assert not without.any()
    assert anywhere.sum() == 2
    weights = below.float()
    drawn, found = draw(weights)
    assert found.tolist() == [False, True]
    assert drawn[1] == 2


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(1, 9), max_size=8), size=st.integers(1, 12))
def test_queues_hold_the_last_pairs_though_a_run_restarts_before_every_batch(sizes, size):
    queues, written = FeatureQueues(size, 2), 0
    for count in sizes:
        state, queues = queues.state_dict(), FeatureQueues(size, 2)
        queues.load_state_dict(state)
        rows = torch.arange(written, written + count)
        features = torch.stack([rows, -rows], dim=1).float()
        queues.write(features, features + 0.5, rows)
        written += count
    filled = queues.image_rows >= 0
    found = queues.image_rows[filled]
    assert sorted(found.tolist()) == list(range(max(0, written - size), written))
    np.testing.assert_array_equal(queues.images[filled][:, 0], found)
    np.testing.assert_array_equal(queues.texts[filled][:, 1], -found.float() + 0.5)


def test_a_random_start_counts_as_candidates_of_unit_length():
    queues = FeatureQueues(6, 4, random=True)
    assert (queues.image_rows != EMPTY).all()
    torch.testing.assert_close(queues.images.norm(dim=1), torch.ones(6))
    assert not torch.equal(queues.images, queues.texts)


def test_its_example_runs() -> None:
    found = doctest.testmod(fne)
    assert found.attempted > 5
    assert not found.failed


@pytest.mark.parametrize("evaluate", [True, False])
def test_the_slow_copy_has_its_own_mode_the_models_buffers_and_no_gradient(evaluate):
    rows, model = torch.randn(5, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5))
    twin = MomentumTwin(model, 0.99, evaluate)
    for _ in range(3):
        model(rows)
    twin.follow()
    assert torch.equal(twin.model[0].running_mean, model[0].running_mean)  # pyright: ignore
    assert twin.model[0].num_batches_tracked == 3
    assert torch.equal(twin.model(rows), twin.model(rows)) == evaluate
    assert model.training
    assert not any(weights.requires_grad for weights in twin.parameters())
    assert {name.partition(".")[0] for name in twin.state_dict()} == {"model"}  # the followed one is no part of it
