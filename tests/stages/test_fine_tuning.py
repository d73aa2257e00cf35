"""Fine-tuning through the chain: presets, adapters, frozen encoders, rates by the layer, averages of weights."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from itrpipe.artifacts.artifact import read_manifest
from itrpipe.commands.stages import run_stage
from itrpipe.config import bind, load_declaration, resolve
from itrpipe.features.embeddings import read_embeddings
from itrpipe.plan.planning import parse_override
from itrpipe.training import loop
from itrpipe.training.loop import CHECKPOINT
from itrpipe.training.saved import MODEL, load_model
from itrpipe.training.settings import TrainSettings, backbones, cited
from tests.stages.test_contrastive_chain import ALL, arguments, as_settings, done, folder_of, named

Invoke = Callable[..., Any]
FIND = importlib.util.find_spec
QUICK = ["train.learning_rate=1e-2", "train.warmup_updates=0"]
LORA = ["train.adapter=lora", "train.lora_rank=2", "train.lora_dropout=0.2"]
VARIANTS = {
    "lora": LORA,
    "lora, frozen": [*LORA, "train.freeze=vision"],
    "frozen": ["train.freeze=text"],
    "layers": ["train.layer_decay=0.5"],
    "ema": ["train.average=ema:0.9"],
    "wise-ft": ["train.average=wise-ft:0.5"],
    "all": [*LORA, "train.layer_decay=0.5", "train.average=wise-ft:0.5", "train.encode_chunk=7"],
}
"""Settings that are trained in part or averaged."""


def trained(invoke: Invoke, root: Path, encoders: Path, *sets: str, method: str = "clip-finetune") -> Path:
    kind = "siglip" if method.startswith("siglip") else "clip"
    done(invoke("train", "--method", method, *named(encoders, kind), *arguments(root, *QUICK, *sets)))
    return folder_of(root, f"{method}.dual-encoder")


def untrained(invoke: Invoke, root: Path, encoders: Path, kind: str = "clip") -> dict[str, np.ndarray]:
    done(invoke("train", "--method", "zero-shot", *named(encoders, kind), *arguments(root)))
    return load_file(folder_of(root, "zero-shot.dual-encoder") / MODEL)


@pytest.fixture(scope="module")
def prepared(finished_chain: Path, saved_encoders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with pixels and nothing trained on them. Copy it."""
    root = Path(shutil.copytree(finished_chain / "data", tmp_path_factory.mktemp("prepared") / "data"))
    given = ["pixels.height=32", "pixels.width=32", "extract.workers=0"]
    run_stage(root, "tiny", "extract", [parse_override(text) for text in given], conf="pixels")
    return root


@pytest.fixture
def root(prepared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(prepared, tmp_path / "data"))


@pytest.mark.parametrize(("method", "kind"), [("clip-finetune", "clip"), ("siglip-finetune", "siglip")])
def test_presets_train_offline_and_are_evaluated_and_exported(
    method: str, kind: str, root: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    folder = trained(invoke, root, saved_encoders, method=method)
    settings = read_manifest(folder).settings
    assert settings["schedule"] == "cosine"
    assert settings["optimizer"] == f"adamw-{kind}"
    assert settings["loss"]["temperature"] == "own"
    rows = pq.read_table(folder / "history.parquet").to_pylist()
    assert rows[0]["mean_temperature"] == pytest.approx({"clip": 1 / np.exp(2.6592), "siglip": 1.0}[kind], rel=0.05)
    chosen = arguments(root, *QUICK, *as_settings(saved_encoders, kind), "evaluate.bootstrap_samples=100")
    out = done(invoke("evaluate", "--method", method, *chosen))
    assert f"✓ train/{folder.name}" in out
    done(invoke("export", "--method", method, *chosen, "--to", tmp_path / "out"))
    assert "hu2022lora" not in (tmp_path / "out" / "README.md").read_text()
    written, weights = load_model(tmp_path / "out").model.state_dict(), load_file(folder / MODEL)
    assert written.keys() == weights.keys()
    assert all(np.array_equal(each.numpy(), weights[name]) for name, each in written.items())


def test_ways_of_training_are_cited() -> None:
    assert cited({}) == ()
    assert cited({"adapter": "none", "freeze": "text", "average": "ema:0.9"}) == ()
    every = {"adapter": "lora", "freeze": "vision", "average": "wise-ft:0.5"}
    assert [paper.key for paper in cited(every)] == ["hu2022lora", "zhai2022lit", "wortsman2022wiseft"]


@pytest.mark.parametrize("method", ["clip-finetune", "siglip-finetune"])
def test_presets_name_published_encoders(method: str) -> None:
    resolved = resolve(load_declaration("train"), method, backbones=backbones(), backbone="dual-encoder")
    settings = bind(TrainSettings, resolved, f"train {method}")
    assert settings.backbone == "dual-encoder"
    assert settings.model.pretrained().keys() == {"vision", "text"}
    assert not settings.model.untrained()


def test_adapters_leave_a_plain_model_that_needs_no_peft(
    root: Path, invoke: Invoke, saved_encoders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = untrained(invoke, root, saved_encoders)
    folder = trained(invoke, root, saved_encoders, *VARIANTS["lora, frozen"])
    after = load_file(folder / MODEL)
    assert after.keys() == before.keys()
    moved = {name for name, value in after.items() if not np.array_equal(value, before[name])}
    assert moved == {name for name in after if name.startswith("text.") and ("q_proj.w" in name or "v_proj.w" in name)}
    assert 0 < read_manifest(folder).metrics["trained_weights"] < sum(value.size for value in after.values()) / 20
    monkeypatch.setitem(sys.modules, "peft", None)  # an import of it would fail
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "peft" else FIND(name, *more))
    chosen = [*QUICK, *VARIANTS["lora, frozen"], *as_settings(saved_encoders, "clip"), "evaluate.bootstrap_samples=100"]
    out = done(invoke("evaluate", "--method", "clip-finetune", *arguments(root, *chosen)))
    assert f"✓ train/{folder.name}" in out
    again = ["--method", "clip-finetune", *named(saved_encoders, "clip")]
    refused = invoke("train", *again, *arguments(root, *QUICK, *LORA, "train.seed=1"))
    assert refused.code != 0
    assert "adapter = lora needs peft, which is not installed; run `pip install 'itrpipe[lora]'`" in refused.err


@pytest.mark.parametrize("share", ["0", "0.5", "1"])
def test_interpolated_weights_lie_between_zero_shot_and_fine_tuned(
    share: str, root: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    before = untrained(invoke, root, saved_encoders)
    # One epoch, so that both choose it.
    plain = Path(shutil.copytree(root, tmp_path / "plain"))
    tuned = load_file(trained(invoke, plain, saved_encoders, "clip-finetune.epochs=1") / MODEL)
    folder = trained(invoke, root, saved_encoders, "clip-finetune.epochs=1", f"train.average=wise-ft:{share}")
    for name, found in load_file(folder / MODEL).items():
        expected = (1 - float(share)) * before[name] + float(share) * tuned[name]
        np.testing.assert_allclose(found, expected, atol=1e-7, err_msg=name)
        if share != "0.5":
            np.testing.assert_array_equal(found, (before if share == "0" else tuned)[name], err_msg=name)
    if share == "0":
        own, other = (
            read_embeddings(each / "embeddings.h5", "val")
            for each in (folder, folder_of(root, "zero-shot.dual-encoder"))
        )
        np.testing.assert_array_equal(own.images, other.images)
        np.testing.assert_array_equal(own.texts, other.texts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    variant: str, root: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = [*VARIANTS[variant], "train.checkpoint_seconds=0"]
    other = Path(shutil.copytree(root, tmp_path / "other"))
    whole = trained(invoke, other, saved_encoders, *sets)
    steps, step = [0], loop.Trainer._step

    def interrupted(trainer: loop.Trainer, *more: Any) -> bool:
        steps[0] += 1
        if steps[0] == 5:
            raise KeyboardInterrupt
        return step(trainer, *more)

    given = ["--method", "clip-finetune", *named(saved_encoders, "clip"), *arguments(root, *QUICK, *sets)]
    monkeypatch.setattr(loop.Trainer, "_step", interrupted)
    assert invoke("train", *given).code == 130
    (checkpoint,) = root.glob(f"tiny/train/*/.work/{CHECKPOINT}")
    averaged = [name for name in load_file(checkpoint) if name.startswith("average/")]
    assert bool(averaged) is (variant == "ema")
    monkeypatch.setattr(loop.Trainer, "_step", step)
    assert "going on in epoch 2 after step 1" in done(invoke("train", *given))
    for name in (MODEL, "history.parquet"):
        written = [
            folder.joinpath(name).read_bytes() for folder in (whole, folder_of(root, "clip-finetune.dual-encoder"))
        ]
        assert written[0] == written[1], name


def test_adapters_train_with_mined_remembered_and_synthetic_negatives(
    root: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    sets = [each.replace("contrastive.", "clip-finetune.") for each in ALL if "bias" not in each]
    sets += [*VARIANTS["all"], *QUICK]  # of zero-shot too, which reads none of them
    before = untrained(invoke, root, saved_encoders)
    chosen = ["--negatives", "mined,synthetic", "--weigh", "fne", "--negatives-from", "zero-shot"]
    given = [*chosen, *named(saved_encoders, "clip"), *arguments(root, *sets)]
    out = done(invoke("train", "--method", "clip-finetune", *given))
    assert "✓ train/zero-shot.dual-encoder" in out
    folder = folder_of(root, "clip-finetune.dual-encoder")
    after = load_file(folder / MODEL)
    moved = {name for name, value in after.items() if not np.array_equal(value, before[name])}
    assert moved == {name for name in after if "q_proj.w" in name or "v_proj.w" in name}
    assert {*read_manifest(folder).inputs} >= {"mine_negatives", "synthesize"}


PRESET = ["--method", "clip-finetune", "--vision", "{clip}", "--text", "{clip}"]
VSEPP = ["--method", "contrastive", "--backbone", "vsepp"]
RANDOM = ["--method", "contrastive", "--backbone", "dual-encoder", "--vision", "random", "--text", "random"]


@pytest.mark.parametrize(
    ("given", "sets", "reason"),
    [
        (VSEPP, ["adapter=lora"], "adapter = lora is for encoders of layers, and backbone 'vsepp' has none"),
        (VSEPP, ["freeze=vision"], "freeze = vision is for encoders of layers"),
        (VSEPP, ["layer_decay=0.5"], "layer_decay = 0.5 is for encoders of layers"),
        (VSEPP, ["average=wise-ft:0.5"], "average = wise-ft:0.5 lies between a model that works already"),
        (VSEPP, ["average=ema"], "give none, ema:DECAY"),
        (VSEPP, ["schedule=plateau"], "needs patience"),
        (VSEPP, ["schedule=plateau", "patience=1", "average=ema:0.9"], "average = ema:0.9 keeps others"),
        (["--method", "zero-shot", "--vision", "{clip}"], ["patience=2"], "patience = 2 changes nothing"),
        (RANDOM, ["adapter=lora"], "keeps the weights of the vision encoder, which are random"),
        (RANDOM, ["freeze=text"], "keeps the weights of the text encoder, which are random"),
        (RANDOM, ["average=wise-ft:0.5"], "were not trained together"),
        (PRESET, ["model.embed_dim=8", "average=wise-ft:0.5"], "projection to embed_dim = 8 is random"),
        (PRESET, ["lora_rank=4"], "lora_rank = 4 changes nothing"),
        (PRESET, ["adapter=lora", 'lora_targets=["q"]'], "lora_targets names q"),
        (
            ["--method", "contrastive", "--backbone", "dual-encoder", "--text", "{bert}"],
            ["model.images=regions", "model.embed_dim=8", "freeze=vision"],
            "images are features and no pretrained encoder makes them",
        ),
        (
            ["--method", "contrastive", "--backbone", "dual-encoder", "--text", "{bert}"],
            ["model.images=regions", "model.embed_dim=8", "freeze=text", "adapter=lora"],
            "leaves no encoder for adapter = lora",
        ),
    ],
)
def test_what_cannot_work_is_refused(
    given: list[str], sets: list[str], reason: str, root: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    options = [each.format(clip=saved_encoders / "clip", bert=saved_encoders / "bert") for each in given]
    chosen = [f"--set=train.{each}" for each in sets]
    features = ["--features", "precomp"] if "vsepp" in given or "model.images=regions" in sets else []
    small = [f"--set={each}" for each in ("train.min_word_count=1", "pixels.height=32", "pixels.width=32")]
    outcome = invoke("train", *options, *features, "--dataset", "tiny", "--data", root, *small, *chosen)
    assert outcome.code not in (0, 1), outcome.err
    assert reason in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
    assert not list(root.glob("tiny/train/c*/manifest.json"))


def test_a_pretrained_scale_beyond_the_limit_is_refused(root: Path, invoke: Invoke, saved_encoders: Path) -> None:
    where = arguments(root, *QUICK, "train.loss.largest_scale=10")
    outcome = invoke("train", "--method", "clip-finetune", *named(saved_encoders, "clip"), *where)
    assert outcome.code != 0
    assert "give --set loss.largest_scale=15 or more" in outcome.err


def test_a_folder_with_one_encoder_or_none_is_refused_before_anything_is_made(
    root: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    for folder, told in (
        (saved_encoders / "bert", "is a model of type bert, which is no encoder of both images and captions"),
        (tmp_path, "has no config.json, and so is no model of transformers"),
    ):
        outcome = invoke("train", "--method", "zero-shot", "--vision", folder, *arguments(root), "--dry-run")
        assert outcome.code != 0
        assert f"{folder} {told}" in outcome.err


def test_who_stretches_photographs_for_a_model_that_crops_them_is_told_so(
    prepared: Path, saved_encoders: Path, tmp_path: Path, invoke: Invoke
) -> None:
    root = Path(shutil.copytree(prepared, tmp_path / "data"))

    def said(kind: str) -> str:
        outcome = invoke("train", "--method", "zero-shot", *named(saved_encoders, kind), *arguments(root))
        assert outcome.code == 0, outcome.err
        return " ".join((outcome.out + outcome.err).split())

    assert "on the middle of photographs, and 20 of 20 are stretched here" in said("clip")
    (manifest,) = (root / "tiny" / "train").glob("zero-shot.dual-encoder-*/manifest.json")
    (told,) = [each for each in read_manifest(manifest.parent).messages if "stretched" in each]
    assert "stretched" not in said("siglip")
    command = told.partition("that you compare: itrpipe ")[2].split()
    small = ("--set", "height=32", "--set", "width=32", "--set", "workers=0", "--data", root)
    assert invoke(*command, *small).code == 0
    shutil.rmtree(manifest.parent)
    assert "stretched" not in said("clip")
