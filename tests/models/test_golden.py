"""Scores, gradients and auxiliary losses of every backbone, freshly initialised, are those of when it was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from itrpipe.models.ascl import network as ascl
from itrpipe.models.declaration import backbone_family
from itrpipe.models.scan import network as scan
from itrpipe.models.ssamt import network as ssamt
from itrpipe.models.uniter import network as uniter
from itrpipe.models.vsepp import network as vsepp
from itrpipe.testing import ToyPairs
from tests.models.toys import built, encoded

GOLDEN = Path(__file__).with_name("golden.json")
CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text())["golden"]


def measured(name: str) -> dict[str, list[float]]:
    """Numbers of a backbone: its scores of toy pairs, and the lengths of the gradients of its parameters."""
    model, data = built(name, **CASES[name]), ToyPairs(uneven=backbone_family(name) != "vsrn")
    rows = data.caption_image[:11]
    texts = data.texts(np.arange(11))
    scores = model.score_matrix(*encoded(model, data.images(np.arange(7)), texts))
    pairs = model.score_pairs(*encoded(model, data.images(rows), texts))
    loss = (scores * torch.arange(scores.numel()).view_as(scores).cos()).sum() + pairs.square().sum()
    auxiliary = model.auxiliary_loss(model.encode_images(data.images(rows)), texts)
    (loss if auxiliary is None else loss + auxiliary).backward()
    lengths = [each.grad.norm().item() for each in model.parameters() if each.grad is not None]
    return {"scores": scores.flatten().tolist(), "pairs": pairs.tolist(), "gradients": lengths}


@pytest.fixture(params=["usual tiles", "small tiles"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """Models score a few pairs at a time, or all; how near their scores are to those that were recorded."""
    if request.param == "usual tiles":
        return 1e-5
    for sizes in (scan.TILE_VALUES, ssamt._TILE_SIZES, uniter._TILE_SIZES):
        monkeypatch.setitem(sizes, "cpu", 600)
    monkeypatch.setitem(scan.KEPT_VALUES, "cpu", 0)
    monkeypatch.setattr(ascl, "TILE", 2)
    monkeypatch.setattr(vsepp, "_ORDER_TILE_VALUES", 200)
    return 1e-3


@pytest.mark.parametrize("name", CASES)
def test_scores_and_gradients_are_those_that_were_recorded(name: str, tiles: float) -> None:
    expected = json.loads(GOLDEN.read_text())[name]
    for key, values in measured(name).items():
        assert summed(values) == pytest.approx(expected[key], rel=tiles, abs=tiles / 10), key


def summed(values: list[float]) -> list[float]:
    """Few numbers that change where any of many does: the mean, two of its own waves, and the last one."""
    angles = np.arange(len(values))
    return [float(np.mean(values * np.cos(angles * rate))) for rate in (0.0, 1.0, 2.5)] + [values[-1]]
