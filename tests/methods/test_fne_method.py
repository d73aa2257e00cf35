"""The FNE method against its formulas written out, its ablations, and runs that repeat and go on exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.utils._python_dispatch import TorchDispatchMode

from itrpipe.errors import DataError
from itrpipe.losses.fne_loss import Pool
from itrpipe.losses.triplet import triplet_loss
from itrpipe.methods.fne import method as fne
from itrpipe.methods.fne.declaration import Fne
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.negatives.memory import MomentumTwin
from itrpipe.progress import Reporter
from itrpipe.testing import IMAGE_DIM, LOOP_SETTINGS, VOCABULARY, ToyPairs
from itrpipe.training.loop import Trainer

IMAGES, DIM = 20, 16
SETTINGS = replace(
    LOOP_SETTINGS,
    epochs=3,
    batch_size=8,
    learning_rate=0.005,
    decay_every=4,
    max_updates=0,
    validation_images=IMAGES,
    encode_block=50,
    prefetch=2,
)


@pytest.fixture(scope="module")
def data() -> tuple[ToyPairs, ToyPairs]:
    return ToyPairs(images=IMAGES), ToyPairs(seed=1, images=IMAGES)


def attached(data, **settings: Any):
    """A fresh model and a method attached to it, and the method's state."""
    torch.manual_seed(0)
    model = vsepp.build(Vsepp(embed_dim=DIM, word_dim=8), IMAGE_DIM, VOCABULARY)
    method = fne.build(Fne(**{"memory_size": 12, "min_count": 0, "warm_epochs": 0, **settings}), data[0], {})
    return model, method, method.attach(model)


def make_batch(method, seed: int, size: int = 6):
    rng = np.random.default_rng(seed)
    return method.collate(rng.choice(2 * IMAGES, size, replace=False), rng)


def trainer(data, work: Path, loss: Fne | None = None, **loop: Any) -> Trainer:
    work.mkdir(exist_ok=True)
    torch.manual_seed(0)
    model = vsepp.build(Vsepp(embed_dim=DIM, word_dim=8), IMAGE_DIM, VOCABULARY)
    method = fne.build(loss or Fne(memory_size=20, min_count=3), data[0], {})
    settings = replace(SETTINGS, **loop)
    return Trainer(settings, model, method, data[0], data[1], "cpu", work, Reporter())


def test_a_step_is_the_equation_of_the_paper(data):
    model, method, state = attached(data, margin=0.5, candidates="hardest")
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.1 * torch.randn_like(weights))
    memory = []  # (image row, image, text) of earlier batches, oldest first
    twin = {name: value.clone() for name, value in state.twin.model.state_dict().items()}
    for step in range(4):
        batch = make_batch(method, step)
        state.twin.follow()
        twin = {name: 0.995 * value + 0.005 * model.state_dict()[name] for name, value in twin.items()}
        follower = vsepp.build(Vsepp(embed_dim=DIM, word_dim=8), IMAGE_DIM, VOCABULARY)
        follower.load_state_dict(twin)
        images, texts = batch.pairs["positive"]
        with torch.no_grad():
            v, t = model.encode_images(images).embedding, model.encode_texts(texts).embedding
            v_m, t_m = follower.encode_images(images).embedding, follower.encode_texts(texts).embedding
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


@pytest.mark.parametrize("size", [0, 5])
def test_drawn_similarities_and_their_gradient_are_those_of_the_matrix_though_the_queue_is_overwritten(size):
    torch.manual_seed(0)
    queue = torch.randn(size, 3) if size else None
    anchors, own = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    columns = torch.tensor([0, 3, 4, 8] if size else [3, 1, 0, 0])
    pool = torch.cat([own, queue]) if queue is not None else own
    expected = (anchors @ pool.T).gather(1, columns[:, None])[:, 0]
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    gradients = torch.autograd.grad((expected * weights).sum(), (anchors, own))
    candidates = Pool(own, queue)
    torch.testing.assert_close(candidates.similarities(anchors), (anchors @ pool.T).detach())
    found = (anchors * candidates.rows(columns)).sum(dim=1)
    torch.testing.assert_close(found, expected)
    if queue is not None:
        queue.zero_()
    for ours, theirs in zip(torch.autograd.grad((found * weights).sum(), (anchors, own)), gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_warm_epochs_are_the_triplet_loss_and_write_no_memory(data):
    model, method, state = attached(data, warm_epochs=2, sum_epochs=1, mask_same_image=True)
    for epoch, hardest in ((0, False), (1, True)):
        batch = make_batch(method, 5)
        images, texts = batch.pairs["positive"]
        scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
        same = batch.images[:, None] == batch.images[None, :]
        losses = method.losses(model, batch, epoch)
        assert set(losses) == {"triplet"}
        assert losses["triplet"].item() == pytest.approx(triplet_loss(scores, 0.2, hardest, same).item() / 6, abs=1e-6)
    assert not state.queues.filled.any()
    assert not state.statistics.count.any()
    method.losses(model, make_batch(method, 5), epoch=2)
    assert state.queues.filled.sum() == 6


def test_without_twin_and_drawing_it_is_the_hardest_triplet_of_other_images(data):
    model, method, state = attached(data, memory_size=0, momentum_twin=False, candidates="hardest")
    assert (state.twin, state.queues) == (None, None)
    batch = make_batch(method, 3)
    images, texts = batch.pairs["positive"]
    scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
    same = batch.images[:, None] == batch.images[None, :]
    expected = triplet_loss(scores, 0.2, True, same) / 6
    found = method.losses(model, batch, 0)["fne"]
    torch.testing.assert_close(found, expected)
    ours, theirs = (torch.autograd.grad(loss, list(model.parameters())) for loss in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_statistics_are_an_epochs_own_or_go_on(data):
    for reset in (True, False):
        model, method, state = attached(data, reset_each_epoch=reset)
        for step in range(4):
            method.losses(model, make_batch(method, step), 0)
        assert state.statistics.count[1] > 0
        method.start_epoch(1)
        assert bool(state.statistics.count.any()) != reset


def test_the_history_tells_how_hard_and_how_likely_false_the_draws_are(data, tmp_path):
    run = trainer(data, tmp_path / "a")
    run.run()
    rows = run.position.history
    assert [next(name for name in row if name.startswith("loss_")) for row in rows] == [
        "loss_triplet", "loss_fne", "loss_fne",
    ]  # fmt: skip
    for row in rows[1:]:
        assert 0 < row["mean_hardest_text_share"] <= 1
        assert 0 <= row["mean_image_probability"] <= 1
        assert 0 <= row["mean_fallback_text_share"] <= row["mean_hardest_text_share"]
        assert 0 <= row["mean_retained"] <= 8


def test_similarities_stay_in_single_precision_under_autocast(data, monkeypatch):
    model, method, state = attached(data)
    seen = []
    weights = state._weights

    def noted(similarities, *rest):
        seen.append(similarities)
        return weights(similarities, *rest)

    monkeypatch.setattr(state, "_weights", noted)
    with torch.autocast("cpu", torch.bfloat16):
        loss = method.losses(model, make_batch(method, 0), 0)["fne"]
    assert [each.dtype for each in seen] == [torch.float32] * 2
    assert all((each[each != 0] != each[each != 0].bfloat16()).float().mean() > 0.9 for each in seen)
    assert loss.dtype == torch.float32


class NothingRead(TorchDispatchMode):
    """Refuses what waits for a device: reading a value, and shapes that depend on values."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function)
        assert not any(each in name for each in ("_local_scalar_dense", "nonzero", "masked_select", "unique")), name
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("choice", ["drawn", "hardest"])
def test_a_step_reads_no_value_from_the_device(data, choice, monkeypatch):
    """Beside the encoders, whose recurrent layers ask for the lengths of captions."""
    model, method, state = attached(data, candidates=choice)
    batch = make_batch(method, 0)
    images, texts = encoded(model, batch)
    candidates = state.twin.encode(*batch.pairs["positive"])
    monkeypatch.setattr(model, "encode_images", lambda batch: images)
    monkeypatch.setattr(model, "encode_texts", lambda batch: texts)
    monkeypatch.setattr(state.twin, "encode", lambda images, texts: candidates)
    with NothingRead():
        method.losses(model, batch, 0)["fne"].backward()
    with NothingRead(), pytest.raises(AssertionError, match="_local_scalar_dense"):
        batch.statistics["retained"].item()


def encoded(model, batch):
    images, texts = batch.pairs["positive"]
    return model.encode_images(images), model.encode_texts(texts)


def test_a_checkpoint_of_another_memory_is_refused(data, tmp_path):
    trainer(data, tmp_path / "a").run()
    with pytest.raises(DataError, match="is not a checkpoint of this run"):
        trainer(data, tmp_path / "a", Fne(memory_size=21, min_count=3)).run()


def test_the_twin_follows_once_an_update(data, tmp_path, monkeypatch):
    followed, follow = [], MomentumTwin.follow
    monkeypatch.setattr(MomentumTwin, "follow", lambda twin: (followed.append(twin), follow(twin))[1])
    whole = trainer(data, tmp_path / "a", epochs=1, accumulate=2)
    whole.run()
    assert 0 < whole.position.updates == len(followed)


def test_a_memory_needs_its_twin():
    with pytest.raises(ValidationError, match="memory_size = 8192 needs momentum_twin = true"):
        Fne(momentum_twin=False)
    assert Fne(momentum_twin=False, memory_size=0).first_epochs() == 1
    assert Fne(sum_epochs=3).first_epochs() == 3


def test_likely_matches_are_drawn_less_often_than_without_their_probability(data):
    """Two candidates of an anchor are as similar as its positive, one above lambda and one an easy negative."""
    _, _, state = attached(data, prior=0.01, posterior_scale=4.0)
    state.statistics.count += torch.tensor([300.0, 600.0])
    state.statistics.total += torch.tensor([300 * 0.8, 600 * 0.4])
    state.statistics.deviation += torch.tensor([299 * 0.005, 599 * 0.01])
    similarities = torch.tensor([[0.8, 0.82, 0.62]])
    weights = state._weights(similarities, similarities[:, 0], torch.tensor([[True, False, False]]))
    assert weights[0, 0] == 0
    assert weights[0, 1] < 0.2 < 0.9 < weights[0, 2]
    _, _, plain = attached(data, candidates="hardest")
    assert plain._weights(similarities, similarities[:, 0], torch.tensor([[True, False, False]])).tolist() == [
        [0, 1, 0]
    ]
