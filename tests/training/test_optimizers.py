"""Which weights the optimisers decay, their state in a checkpoint, and the learning rates of UNITER."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import build
from itrpipe.training.checkpoint import Position, load_checkpoint, save_checkpoint
from itrpipe.training.optimizers import OPTIMIZERS, Trained
from itrpipe.training.schedule import warmup_and_decay_to_floor, warmup_and_linear_decay


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
    save_checkpoint(tmp_path / "checkpoint.safetensors", halved, optimizer, Position())
    again = OPTIMIZERS["adamw-clip"](Trained(resumed), 0.01, 0.05)
    load_checkpoint(tmp_path / "checkpoint.safetensors", resumed, again)
    steps(resumed, again, range(3, 6))
    for name, weights in whole.state_dict().items():
        assert torch.equal(weights, resumed.state_dict()[name]), name
        assert name not in halved.undecayed() or not torch.equal(weights, halved.state_dict()[name])


@pytest.mark.parametrize(
    ("update", "expected"),
    [
        (0, 5e-5 / 500),
        (249, 2.5e-5),
        (499, 5e-5),
        (500, 5e-5 * 4499 / 4500),
        (2749, 2.5e-5),
        (4998, 5e-5 / 4500),
        (4999, 1e-8),
        (6000, 1e-8),
    ],
)
def test_rates_of_uniter_count_updates_from_one(update: int, expected: float) -> None:
    assert warmup_and_decay_to_floor(5e-5, update, warmup=500, total=5000) == pytest.approx(expected, rel=1e-12)


def test_rates_of_uniter_are_one_update_ahead_of_the_usual_ones() -> None:
    for update in range(10, 99):
        ahead = warmup_and_linear_decay(1.0, update + 1, warmup=10, total=100)
        assert warmup_and_decay_to_floor(1.0, update, warmup=10, total=100) == pytest.approx(ahead)
    assert warmup_and_decay_to_floor(1.0, 0, warmup=0, total=4) == 0.75
