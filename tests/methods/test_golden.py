"""Losses, statistics and weights of ten steps of every method are those recorded; a weight scales its term."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from itrpipe.methods.declaration import FirstEpochs
from itrpipe.models.declaration import backbone_names
from itrpipe.testing import ToyPairs
from tests.test_estimator_checks import CONFS, builder, method_builder, settings, trains

GOLDEN = Path(__file__).with_name("golden_pairs.json")
FURTHER = ("aoq-triplet", "aoq-quintuplet", "aoq-online-quintuplet", "aoq-positive-weight", "aoq-only-offline")
FURTHER += (
    "contrastive-twins",
    "twins-triplet",
    "fne-paper",
    "fne-memory-only",
    "ssamt-words",
    "tags-words",
    "ascl-no-positives",
)
LATER: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text())["later"]
"""Methods whose first epochs have another loss."""
CASES = {conf: each for conf in CONFS for each in sorted(backbone_names(), reverse=True) if trains(conf, each)}
CASES |= {conf: next(b for b in ("vsepp", "ssamt", "uniter", "ascl") if trains(conf, b)) for conf in (*FURTHER, *LATER)}


def arranged(conf: str, backbone: str, **changed: float) -> tuple[ToyPairs, Any, Any, list[torch.nn.Parameter]]:
    """Toy pairs, method and model, which it is attached to, and the parameters of both."""
    chosen = settings(conf, backbone)
    loss = type(chosen.loss).model_validate({**chosen.loss.model_dump(), **LATER.get(conf, {}), **changed})
    chosen = chosen.model_copy(update={"loss": loss})
    torch.manual_seed(0)
    data = ToyPairs(uneven=backbone != "vsrn")
    method, model = method_builder(chosen)(data), builder(chosen)().train()
    trained = list(model.parameters())
    trained += list(method.attach(model).parameters())
    return data, method, model, trained


def measured(conf: str, backbone: str) -> dict[str, list[float]]:
    """Losses and statistics of each step, on both sides of where the loss changes, and what becomes of the weights."""
    data, method, model, trained = arranged(conf, backbone)
    late = method.settings.first_epochs() if isinstance(method.settings, FirstEpochs) else 0
    optimizer = torch.optim.SGD([each for each in trained if each.requires_grad], lr=0.01)
    rng, found = np.random.default_rng(0), {}
    for step in range(10):
        if step == 3:
            method.start_epoch(late)
        batch = method.collate(rng.permutation(data.num_captions)[:8], rng)
        losses = method.losses(model, batch, max(late - 1, 0) if step < 3 else late)
        for name, value in (losses | {f"mean_{name}": each for name, each in batch.statistics.items()}).items():
            found.setdefault(name, []).append(float(torch.as_tensor(value).detach()))
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
    weights = torch.cat([each.detach().flatten() for each in trained]).double()
    wave = torch.arange(len(weights)).double().cos()
    return found | {"weights": [weights.norm().item(), (weights * wave).sum().item()]}


@pytest.mark.parametrize("conf", CASES)
def test_ten_steps_are_those_that_were_recorded(conf: str) -> None:
    found, expected = measured(conf, CASES[conf]), json.loads(GOLDEN.read_text())[f"{conf} on {CASES[conf]}"]
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert values == pytest.approx(expected[name], rel=1e-4, abs=1e-5), name


WEIGHTED = {"pretrain": ("words", "matching"), "tags": ("words", "sentences")}
WEIGHTED |= {"tags-dc": ("discrimination", "correction"), "ssamt": ("global", "local", "phrase")}
WEIGHTS = [(conf, f"weight_{term}", term) for conf, terms in WEIGHTED.items() for term in terms]
WEIGHTS += [("triplet", "auxiliary_weight", "auxiliary"), ("synthetic-triplet", "synthetic_weight", "synthetic")]


@pytest.mark.parametrize(("conf", "option", "term"), WEIGHTS)
def test_a_weight_scales_its_term(conf: str, option: str, term: str) -> None:
    found = []
    for weight in (0.5, 1.5):
        _, method, model, _ = arranged(conf, "vsrn" if conf == "triplet" else CASES[conf], **{option: weight})
        torch.manual_seed(1)
        batch = method.collate(np.arange(8), np.random.default_rng(0))
        found.append(method.losses(model, batch, 1_000)[term].item())
    assert found[1] == pytest.approx(3 * found[0], rel=1e-5)
    assert found[0] > 0
