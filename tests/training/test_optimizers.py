"""Which weights the optimisers decay, their state in a checkpoint, and the learning rates of every schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import build
from itrpipe.testing import LOOP_SETTINGS
from itrpipe.training.optimizers import OPTIMIZERS, Trained, learning_rate
from itrpipe.training.saved import Position, load_checkpoint, save_checkpoint


def model():
    torch.manual_seed(0)
    return build(Uniter(embed_dim=8, layers=1, heads=2, feed_forward_dim=8, max_words=8), 4, 10)


def test_decay_is_for_the_matrices_and_two_layer_norms() -> None:
    made = model()
    optimizer = OPTIMIZERS["adamw"](Trained(made), 0.01, 0.05)
    names = {id(weights): name for name, weights in made.named_parameters()}
    decayed, spared = ({names[id(weights)] for weights in group["params"]} for group in optimizer.param_groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.0]
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.01]
    assert spared == made.undecayed()
    assert decayed | spared == set(names.values())
    assert {"image.box_norm.weight", "text.word.weight", "text.position.weight", "rank.weight"} <= decayed
    assert {"layers.0.attention_norm.weight", "rank.bias", "masked_word.bias"} <= spared


def test_frozen_weights_are_left_to_themselves() -> None:
    made = model()
    made.image.requires_grad_(False)
    for name, make in OPTIMIZERS.items():
        given = {id(weights) for group in make(Trained(made), 0.01, 0.05).param_groups for weights in group["params"]}
        assert not given & {id(weights) for weights in made.image.parameters()}, name
        assert given == {id(weights) for weights in made.parameters() if weights.requires_grad}, name


def steps(made: nn.Module, optimizer: torch.optim.Optimizer, seeds: range) -> None:
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        for weights in made.parameters():
            weights.grad = torch.randn(weights.shape, generator=generator)
        optimizer.step()


def test_a_checkpoint_in_between_changes_nothing(tmp_path: Path) -> None:
    whole, halved, resumed = model(), model(), model()
    steps(whole, OPTIMIZERS["adamw-clip"](Trained(whole), 0.01, 0.05), range(6))
    optimizer = OPTIMIZERS["adamw-clip"](Trained(halved), 0.01, 0.05)
    steps(halved, optimizer, range(3))
    save_checkpoint(tmp_path / "checkpoint.safetensors", {"model": halved}, optimizer, Position())
    again = OPTIMIZERS["adamw-clip"](Trained(resumed), 0.01, 0.05)
    load_checkpoint(tmp_path / "checkpoint.safetensors", {"model": resumed}, again)
    steps(resumed, again, range(3, 6))
    for name, weights in whole.state_dict().items():
        assert torch.equal(weights, resumed.state_dict()[name]), name
        assert name not in halved.undecayed() or not torch.equal(weights, halved.state_dict()[name])


LINEAR, UNITER = ({"schedule": name, "warmup_updates": 10} for name in ("linear", "linear-uniter"))
COSINE = {"schedule": "cosine", "warmup_updates": 10}
STEP, AT = {"decay_every": 10}, {"decay_at": (5, 15), "warmup_updates": 2}
PLATEAU = {"schedule": "plateau", "decay_factor": 0.5}


@pytest.mark.parametrize(
    ("schedule", "places", "expected"),
    [
        (LINEAR, [(0, u, 0) for u in (0, 4, 9, 10, 15, 19, 20, 25)], [0.1, 0.5, 1, 1, 0.5, 0.1, 0, 0]),
        (UNITER, [(0, u, 0) for u in (0, 4, 9, 10, 14, 18, 19, 25)], [0.1, 0.5, 1, 0.9, 0.5, 0.1, 1e-8, 1e-8]),
        (UNITER | {"warmup_updates": 0}, [(0, 0, 0)], [0.95]),
        (COSINE, [(0, u, 0) for u in (0, 4, 9, 10, 15, 20, 25)], [0.1, 0.5, 1, 1, 0.5, 0, 0]),
        (STEP, [(e, 99, 0) for e in (0, 9, 10, 19, 20)], [1, 1, 0.1, 0.1, 0.01]),
        (AT, [(e, 99, 0) for e in (0, 4, 5, 14, 15, 24)], [1, 1, 0.1, 0.1, 0.01, 0.01]),
        (AT, [(5, 0, 0), (0, 1, 0), (0, 2, 0)], [0.05, 1, 1]),
        (PLATEAU, [(30, 99, 0), (0, 99, 1), (0, 99, 2)], [1, 0.5, 0.25]),
        (STEP | {"learning_rate_scaling": "linear", "base_batch_size": 4}, [(0, 0, 0)], [8]),
        (LINEAR | {"learning_rate_scaling": "sqrt", "base_batch_size": 128}, [(0, 10, 0)], [0.5]),
    ],
)
def test_rates_of_places_in_the_training(schedule: dict[str, Any], places: list[Any], expected: list[float]) -> None:
    """Epoch, update and plateaus before, of 20 updates of twice 16 pairs."""
    settings = LOOP_SETTINGS.model_copy(update={"learning_rate": 1.0, "batch_size": 16, "accumulate": 2, **schedule})
    found = [learning_rate(settings, epoch, update, 20, plateaus) for epoch, update, plateaus in places]
    assert found == pytest.approx(expected, rel=1e-12, abs=1e-15)
