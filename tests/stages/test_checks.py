"""What is refused before anything is made for it, such as features that a model cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition
from itrpipe.errors import UsageError
from itrpipe.pipeline.planning import Planner, parse_override
from itrpipe.stages.base import Need
from tests.chains import Invoke
from tests.definitions import save_definition

AOQ = ("evaluate", "--method", "aoq", "--backbone", "vsepp", "--dataset", "tiny")


def made_in(root: Path) -> set[str]:
    return {path.parent.name for path in root.glob("tiny/*/*/manifest.json")}


# Features


def planned(root: Path, conf: str, model: tuple[str, ...], settings: dict[str, Any]) -> None:
    known = load_definition(root, "tiny")
    features = {"mine": StageDefinition(conf=conf, source=known.features["precomp"].source, settings=settings)}
    save_definition(root, "tiny", DatasetDefinition(prepare=known.prepare, features=features))
    overrides = [parse_override(text) for text in ("features=mine", *model)]
    Planner(root, "tiny", overrides).plan(Need("evaluate", "recall"))


PIXELS = "backbone=dual-encoder"


@pytest.mark.parametrize(
    ("conf", "model", "lacks"),
    [
        ("pixels", ("backbone=vsrn",), "'vsrn' reads regions, which features 'mine' .made by pixels. do not hold"),
        ("precomp", (PIXELS,), r"reads pixels, .* give --features pixels, or train on frozen features with --set"),
        ("butd+resnet", (PIXELS,), r"made by butd\+resnet"),
        ("pixels", (PIXELS, "train.model.images=regions", "train.model.embed_dim=8"), "reads regions"),
        ("pixels", (PIXELS, "train.model.images=region-tokens"), "reads regions, .* name features with regions by"),
        ("frcnn", (PIXELS, "train.model.images=global", "train.model.embed_dim=8"), "reads global vectors"),
        ("butd", ("method=ascl", "backbone=ascl"), "or do without with --set train.model.fusion=none"),
        ("precomp", ("method=itm", "backbone=uniter"), r"reads the boxes of regions, .* --set precomp.grid=\[6,6\]"),
    ],
)
def test_features_that_a_model_cannot_read_are_refused_when_they_are_planned(
    defined: Path, conf: str, model: tuple[str, ...], lacks: str
) -> None:
    with pytest.raises(UsageError, match=lacks):
        planned(defined, conf, model, {})
    assert not made_in(defined)


@pytest.mark.usefixtures("any_hub")
@pytest.mark.parametrize(
    ("conf", "model", "settings"),
    [
        ("pixels+vit", ("backbone=vsrn",), {}),
        ("butd+resnet", ("method=ascl", "backbone=ascl"), {}),
        ("butd", ("method=ascl", "backbone=ascl", "train.model.fusion=none"), {}),
        ("precomp", ("method=itm", "backbone=uniter"), {"grid": [2, 2]}),
        ("vit", (PIXELS, "train.model.images=global", "train.model.embed_dim=8"), {}),
    ],
)
def test_features_that_a_model_can_read_are_planned(
    defined: Path, conf: str, model: tuple[str, ...], settings: dict[str, Any]
) -> None:
    planned(defined, conf, model, settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_refused_before_anything_is_made(defined: Path, invoke: Invoke) -> None:
    for more in ([], ["--dry-run"]):
        outcome = invoke(*AOQ, "--device", "cuda", "--data", defined, *more)
        assert (outcome.code, "--device cuda: no CUDA device is visible" in outcome.err) == (2, True)
    assert made_in(defined) == set()
