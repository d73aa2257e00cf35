"""The FNE method against its formulas written out, its ablations, and runs that repeat and go on exactly."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from itrpipe.learning.losses import triplet_loss
from itrpipe.methods.base import MomentumTwin, encoded
from itrpipe.methods.fne import method as fne
from itrpipe.methods.fne.declaration import Fne
from itrpipe.methods.fne.method import EMPTY, FeatureQueues, FneLoss, draw, sampling_weights
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.testing import IMAGE_DIM, VOCABULARY, ToyPairs
from tests.methods.toys import gaussians, of_case, reference
from tests.waits import Waits

IMAGES, DIM = 20, 16
CASES = ["warm", "full", "full_wide_pos", "full_wide_neg", "empty"]


def attached(**settings: Any):
    """A fresh model and a method attached to it, and the method's state."""
    torch.manual_seed(0)
    model = vsepp.build(Vsepp(embed_dim=DIM, word_dim=8), IMAGE_DIM, VOCABULARY)
    chosen = Fne(**{"memory_size": 12, "min_count": 0, "warm_epochs": 0, **settings})
    method = fne.build(chosen, ToyPairs(images=IMAGES), {})  # pyright: ignore
    return model, method, method.attach(model)


def make_batch(method, seed: int, size: int = 6):
    rng = np.random.default_rng(seed)
    return method.collate(rng.choice(2 * IMAGES, size, replace=False), rng)


def test_a_step_is_the_equation_of_the_paper():
    model, method, state = attached(margin=0.5, candidates="hardest")
    twin = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.1 * torch.randn_like(weights))
    memory = []  # (image row, image, text) of earlier batches, oldest first
    for step in range(4):
        batch = make_batch(method, step)
        state.twin.follow()
        twin = {name: 0.995 * value + 0.005 * model.state_dict()[name] for name, value in twin.items()}
        torch.testing.assert_close(dict(state.twin.model.state_dict()), twin)
        with torch.no_grad():
            v, t = (each.embedding for each in encoded(model, batch.pairs["positive"]))
        v_m, t_m = state.twin.encode(*batch.pairs["positive"])
        rows = batch.images.tolist()
        pool = [*zip(rows, v_m, t_m, strict=True), *memory[-12:]]
        expected = 0.0
        for k, row in enumerate(rows):
            negative_texts = [float(v[k] @ text) for other, _, text in pool if other != row]
            negative_images = [float(t[k] @ image) for other, image, _ in pool if other != row]
            expected += max(0.0, 0.5 - float(v[k] @ t_m[k]) + max(negative_texts)) / len(rows)
            expected += max(0.0, 0.5 - float(t[k] @ v_m[k]) + max(negative_images)) / len(rows)
        losses = method.losses(model, batch, epoch=0)
        assert set(losses) == {"fne"}
        assert losses["fne"].item() == pytest.approx(expected, abs=1e-5)
        assert batch.statistics["hardest_text_share"] == 1
        memory += zip(rows, v_m, t_m, strict=True)
    assert len(memory) > 12
    losses["fne"].backward()
    assert all(weights.grad is not None for weights in model.parameters())
    assert all(weights.grad is None for weights in state.parameters())


def test_warm_epochs_are_the_triplet_loss_and_write_no_memory():
    model, method, state = attached(warm_epochs=2, sum_epochs=1, mask_same_image=True)
    for epoch, hardest in ((0, False), (1, True)):
        batch = make_batch(method, 5)
        scores = model.score_matrix(*encoded(model, batch.pairs["positive"]))
        same = batch.images[:, None] == batch.images[None, :]
        losses = method.losses(model, batch, epoch)
        assert set(losses) == {"triplet"}
        assert losses["triplet"].item() == pytest.approx(triplet_loss(scores, 0.2, hardest, same).item() / 6, abs=1e-6)
    assert not (state.queues.image_rows >= 0).any()
    assert not state.statistics.count.any()
    method.losses(model, make_batch(method, 5), epoch=2)
    assert (state.queues.image_rows >= 0).sum() == 6


@pytest.mark.parametrize("reset", [True, False])
def test_statistics_are_an_epochs_own_or_go_on(reset):
    model, method, state = attached(reset_each_epoch=reset)
    for step in range(4):
        method.losses(model, make_batch(method, step), 0)
    assert state.statistics.count[1] > 0
    method.start_epoch(1)
    assert bool(state.statistics.count.any()) != reset


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


def test_draws_follow_the_weights():
    torch.manual_seed(0)
    weights = torch.tensor([0.0, 1.0, 3.0, 0.5, 0.0])
    drawn, found = draw(weights.repeat(40_000, 1))
    assert found.all()
    shares = drawn.bincount(minlength=5) / len(drawn)
    np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.01)
    assert shares[[0, 4]].sum() == 0


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
