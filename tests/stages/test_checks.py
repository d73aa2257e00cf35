"""What is refused before anything is made for it: features that a model cannot read, and lists that are too long."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from itrpipe.commands.stages import run_stage
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition
from itrpipe.errors import UsageError
from itrpipe.plan.planning import Planner, parse_override
from itrpipe.stages.base import Need
from itrpipe.stages.checks import candidates
from tests.chains import Invoke
from tests.definitions import save_definition

AOQ = ("evaluate", "--method", "aoq", "--backbone", "vsepp", "--dataset", "tiny")
FITTING = (
    "--set mine_negatives.num_texts=55 --set mine_negatives.num_images=11 "
    "--set aoq.top_texts=55 --set aoq.top_images=11, or less"
)
"""For twelve training images with five captions each."""


def made_in(root: Path) -> set[str]:
    return {path.parent.name for path in root.glob("tiny/*/*/manifest.json")}


# Lists


def test_lists_that_are_too_long_are_refused_in_one_message_before_anything_is_trained(
    defined: Path, invoke: Invoke
) -> None:
    run = (*AOQ, "--data", defined)
    assert invoke(*run, "--dry-run").code == 0  # how large the training set is, is not known yet
    outcome = invoke(*run)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "mining is to list 300 captions for every image and 60 images for every caption" in outcome.err
    assert f"the training set has 55 and 11 that are candidates; give {FITTING}" in outcome.err
    assert {path.parent.name for path in defined.glob("tiny/*/*/")} == {"prepare"}
    again = invoke(*run, "--dry-run")
    assert (again.code, again.err) == (2, outcome.err)
    assert {path.parent.name for path in defined.glob("tiny/*/*/")} == {"prepare"}


def test_what_the_message_says_fits(defined: Path) -> None:
    run_stage(defined, "tiny", "prepare", [])
    overrides = [parse_override(text) for text in FITTING.removesuffix(", or less").split() if text != "--set"]
    named = [parse_override("method=aoq"), parse_override("backbone=vsepp")]
    Planner(defined, "tiny", [*named, *overrides]).plan(Need("evaluate", "recall"))
    for number, item in enumerate(overrides):
        longer = parse_override(f"{item.scope}.{item.key}={item.value + 1}")
        changed = [*named, *overrides[:number], longer, *overrides[number + 1 :]]
        with pytest.raises(UsageError, match=r"or less|or raise"):
            Planner(defined, "tiny", changed).plan(Need("evaluate", "recall"))


def test_draws_from_more_than_is_mined_are_refused_when_they_are_planned(defined: Path, invoke: Invoke) -> None:
    outcome = invoke(*AOQ, "--set", "mine_negatives.num_texts=20", "--data", defined, "--dry-run")
    assert (outcome.code, outcome.out.count("missing")) == (2, 0)
    assert "aoq is to draw from the first 300 captions and 60 images of mined lists that hold 20 and 60" in outcome.err
    assert "give --set aoq.top_texts=20 --set aoq.top_images=60, or raise --set mine_negatives.num_texts=300" in (
        outcome.err
    )


def test_a_configuration_is_named_by_its_own_name(defined: Path, invoke: Invoke) -> None:
    run_stage(defined, "tiny", "prepare", [])
    given = ("--method", "aoq-guarded", "--backbone", "vsepp", "--dataset", "tiny", "--data", defined)
    assert "--set aoq-guarded.top_texts=55 --set aoq-guarded.top_images=11" in invoke("train", *given).err


def test_mining_alone_names_its_own_settings(defined: Path, invoke: Invoke) -> None:
    run_stage(defined, "tiny", "prepare", [])
    given = ("mine-negatives", "--backbone", "vsepp", "--dataset", "tiny", "--data", defined)
    outcome = invoke(*given, "--set", "num_images=3")
    assert outcome.code == 2
    assert outcome.err.endswith("give --set mine_negatives.num_texts=55 --set mine_negatives.num_images=3, or less\n")
    half = invoke(*given, "--set", "train.train_share=0.5", "--dry-run")
    assert "--set mine_negatives.num_texts=25 --set mine_negatives.num_images=5, or less" in half.err
    one = invoke(*given, "--set", "train.train_share=0.01", "--dry-run")
    assert one.err.endswith("it takes two images with captions at least\n")


def test_finished_artifacts_are_never_refused(finished_chain: Path, tiny: Callable, monkeypatch: Any) -> None:
    monkeypatch.setattr("itrpipe.stages.checks.candidates", lambda rows: (1, 1))
    monkeypatch.setattr("itrpipe.stages.checks.candidates_in", lambda folder, share: (1, 1))
    root = finished_chain / "data"
    assert Planner(root, "tiny", tiny("aoq")).plan(Need("evaluate", "recall")).state == "up to date"
    with pytest.raises(UsageError, match="mining is to list 5 captions"):
        Planner(root, "tiny", tiny("aoq", "aoq.alpha=0.5")).plan(Need("evaluate", "recall"))


def test_candidates_are_those_that_every_anchor_has() -> None:
    assert candidates(np.array([0, 0, 0, 1, 2, 2])) == (3, 2)


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


def test_a_search_looks_for_its_image_before_it_trains(defined: Path, invoke: Invoke) -> None:
    question = ("search", "--image", "nowhere.jpg", "--backbone", "vsepp", "--dataset", "tiny", "--data", defined)
    outcome = invoke(*question)
    assert (outcome.code, made_in(defined)) == (2, set())
    outcome = invoke(*question, "--make")
    assert (outcome.code, "has no image 'nowhere.jpg'" in outcome.err) == (3, True)
    assert {name.partition("-")[0] for name in made_in(defined)} == {"files"}  # it has the names of the images
    outcome = invoke(*question, "--dry-run")
    assert (outcome.code, "has no image 'nowhere.jpg'" in outcome.err) == (3, True)
    outcome = invoke("search", "zorp", *question[3:])
    assert (outcome.code, "knows no word of the query (zorp)" in outcome.err) == (2, True)
    assert {name.partition("-")[0] for name in made_in(defined)} == {"files"}
