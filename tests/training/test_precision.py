"""Which precision a training takes when it is left to choose, and that choosing changes nothing else."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from itrpipe.mining.arithmetic import Seconds
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.testing import IMAGE_DIM, VOCABULARY, ToyPairs
from itrpipe.training import precision
from itrpipe.training.precision import CHOSEN, chosen_precision, training_seconds

CPU = torch.device("cpu")


def build() -> torch.nn.Module:
    torch.manual_seed(0)
    return vsepp.build(Vsepp(embed_dim=8, word_dim=4), IMAGE_DIM, VOCABULARY)


def test_measuring_leaves_the_model_and_the_draws_alone() -> None:
    model, data = build().train(), ToyPairs(0)
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    found = training_seconds(model, data, 4, CPU)  # pyright: ignore
    assert found.fp32 > 0
    assert found.bf16 > 0
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(weights.grad is None for weights in model.parameters())


def test_recurrent_layers_train_and_others_do_not_while_it_is_measured() -> None:
    model = build()
    assert isinstance(model, torch.nn.Module)
    modes: dict[str, set[bool]] = {}
    for name, part in model.named_modules():
        part.register_forward_hook(lambda part, *_, name=name: modes.setdefault(name, set()).add(part.training))
    training_seconds(model, ToyPairs(0), 4, CPU)  # pyright: ignore
    # The recurrent layer itself runs no hook on a CPU, where its steps are our own.
    assert modes["text"] == {False}
    assert [part.training for part in model.modules() if isinstance(part, torch.nn.RNNBase)] == [True]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_recurrent_model_is_measured_on_a_gpu() -> None:
    assert training_seconds(build(), ToyPairs(0), 4, torch.device("cuda")).fp32 > 0  # pyright: ignore


def test_what_was_chosen_stays_when_the_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Seconds(1.0, 2.0), Seconds(2.0, 1.0)]
    monkeypatch.setattr(precision, "training_seconds", lambda *arguments: found.pop())
    given = (build(), ToyPairs(0), 4, "cpu")
    assert chosen_precision(tmp_path, *given) == "bf16"  # pyright: ignore
    assert chosen_precision(tmp_path, *given) == "bf16"  # pyright: ignore
    assert chosen_precision(tmp_path / "..", *given) == "fp32"  # pyright: ignore
    (tmp_path / ".." / CHOSEN).unlink()


def test_a_batch_of_tokens_or_of_few_captions_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    data, taken = ToyPairs(0), []
    texts = data.texts

    def spied(rows: np.ndarray):
        taken.append(len(rows))
        return texts(rows)

    monkeypatch.setattr(data, "texts", spied)
    monkeypatch.setattr(precision, "_ROWS", 3)
    for size in (2, 10_240):
        training_seconds(build(), data, size, CPU)  # pyright: ignore
    assert taken == [2, 3]
