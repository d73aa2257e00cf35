"""A checkpoint brings back weights, optimiser moments, random numbers and position."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from itrpipe.errors import DataError
from itrpipe.training.saved import Position, load_checkpoint, load_weights, save_checkpoint, save_weights


def make_run(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(6, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_goes_on_bit_for_bit(tmp_path):
    model, optimizer = make_run()
    train(model, optimizer, 3)
    position = Position(
        epoch=2, step=5, sums={"loss": 0.1 + 0.2}, history=[{"epoch": 1, "loss": 1 / 3}], best_score=7.5
    )
    save_checkpoint(tmp_path / "c.safetensors", {"model": model}, optimizer, position)
    expected = train(model, optimizer, 4)

    other, other_optimizer = make_run(seed=99)
    found = load_checkpoint(tmp_path / "c.safetensors", {"model": other}, other_optimizer)
    assert found == position
    assert train(other, other_optimizer, 4) == expected
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_equal_states_give_equal_bytes(tmp_path):
    for name in ("a", "b"):
        model, optimizer = make_run()
        train(model, optimizer, 2)
        save_checkpoint(tmp_path / name, {"model": model}, optimizer, Position())
        save_weights(tmp_path / f"{name}.weights", model)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a.weights").read_bytes() == (tmp_path / "b.weights").read_bytes()


@pytest.mark.parametrize("damage", ["truncate", "other model", "not safetensors"])
def test_a_bad_checkpoint_is_one_line(tmp_path, damage):
    model, optimizer = make_run()
    train(model, optimizer, 1)
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, {"model": model}, optimizer, Position())
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "other model":
        model = nn.Linear(4, 2)
        optimizer = torch.optim.Adam(model.parameters())
    else:
        path.write_bytes(b"hello")
    with pytest.raises(DataError, match=r"is not a checkpoint of this run|own checksum|has no checksum") as error:
        load_checkpoint(path, {"model": model}, optimizer)
    assert "\n" not in str(error.value)


def test_weights_of_another_model_are_refused(tmp_path):
    save_weights(tmp_path / "w", nn.Linear(4, 2))
    with pytest.raises(DataError, match="does not hold the weights of this model"):
        load_weights(tmp_path / "w", nn.Linear(4, 3))
