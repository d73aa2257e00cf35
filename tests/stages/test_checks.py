"""Features that a model cannot read are refused when they are planned, before anything is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition
from itrpipe.errors import UsageError
from itrpipe.pipeline.planning import Planner, parse_override
from itrpipe.stages.base import Need
from tests.definitions import save_definition

PIXELS, NARROW = "backbone=dual-encoder", "train.model.embed_dim=8"
GRID = {"grid": [2, 2]}


@pytest.mark.usefixtures("any_hub")
@pytest.mark.parametrize(
    ("conf", "settings", "model", "lacks"),
    [
        ("pixels", {}, ("backbone=vsrn",), "'vsrn' reads regions, which features 'mine' .made by pixels. do not hold"),
        ("precomp", {}, (PIXELS,), r"reads pixels, .* give --features pixels"),
        ("butd+resnet", {}, (PIXELS,), r"made by butd\+resnet"),
        ("pixels", {}, (PIXELS, "train.model.images=regions", NARROW), "reads regions"),
        ("pixels", {}, (PIXELS, "train.model.images=region-tokens"), "reads regions, .* name features with regions"),
        ("frcnn", {}, (PIXELS, "train.model.images=global", NARROW), "reads global vectors"),
        ("butd", {}, ("method=ascl", "backbone=ascl"), "--set train.model.fusion=none"),
        ("precomp", {}, ("method=itm", "backbone=uniter"), r"reads the boxes of regions, .* --set precomp.grid="),
        ("pixels+vit", {}, ("backbone=vsrn",), ""),
        ("butd+resnet", {}, ("method=ascl", "backbone=ascl"), ""),
        ("butd", {}, ("method=ascl", "backbone=ascl", "train.model.fusion=none"), ""),
        ("precomp", GRID, ("method=itm", "backbone=uniter"), ""),
        ("vit", {}, (PIXELS, "train.model.images=global", NARROW), ""),
    ],
)
def test_features_that_a_model_cannot_read_are_refused_when_they_are_planned(
    defined: Path, conf: str, settings: dict[str, Any], model: tuple[str, ...], lacks: str
) -> None:
    known = load_definition(defined, "tiny")
    features = {"mine": StageDefinition(conf=conf, source=known.features["precomp"].source, settings=settings)}
    save_definition(defined, "tiny", DatasetDefinition(prepare=known.prepare, features=features))
    planner = Planner(defined, "tiny", [parse_override(text) for text in ("features=mine", *model)])
    if not lacks:
        planner.plan(Need("evaluate", "recall"))
        return
    with pytest.raises(UsageError, match=lacks):
        planner.plan(Need("evaluate", "recall"))
