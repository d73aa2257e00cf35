"""Fine-tuning through the chain: presets, adapters, frozen encoders, rates by the layer, averages of weights."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from itrpipe.cli.asked import run_stage
from itrpipe.config import bind, load_declaration, resolve
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.features.embeddings import read_embeddings
from itrpipe.pipeline.planning import parse_override
from itrpipe.storage.artifact import read_manifest
from itrpipe.training.loop import CHECKPOINT
from itrpipe.training.saved import MODEL, load_model
from itrpipe.training.settings import TrainSettings, backbones, cited
from tests.chains import Invoke, copied, done, goes_on, history, only, refused
from tests.conftest import Outcome
from tests.stages.test_contrastive_chain import ALL, arguments, as_settings, named

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


def trained(invoke: Invoke, root: Path, encoders: Path, *small: str, method: str = "clip-finetune") -> Path:
    kind = "siglip" if method.startswith("siglip") else "clip"
    done(invoke("train", "--method", method, *named(encoders, kind), *arguments(root, *QUICK, *small)))
    return only(root, f"train/{method}.dual-encoder")


def untrained(invoke: Invoke, root: Path, encoders: Path, kind: str = "clip") -> dict[str, np.ndarray]:
    done(invoke("train", "--method", "zero-shot", *named(encoders, kind), *arguments(root)))
    return load_file(only(root, "train/zero-shot.dual-encoder") / MODEL)


@pytest.fixture(scope="module")
def prepared(finished_chain: Path, saved_encoders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with pixels and nothing trained on them. Copy it."""
    root = copied(finished_chain / "data", tmp_path_factory.mktemp("prepared") / "data")
    given = ["pixels.height=32", "pixels.width=32", "extract.workers=0"]
    run_stage(root, "tiny", "extract", [parse_override(text) for text in given], conf="pixels")
    return root


@pytest.fixture
def root(prepared: Path, tmp_path: Path) -> Path:
    return copied(prepared, tmp_path / "data")


@pytest.mark.parametrize(("method", "kind"), [("clip-finetune", "clip"), ("siglip-finetune", "siglip")])
def test_presets_train_offline_and_are_evaluated_and_exported(
    method: str, kind: str, root: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    folder = trained(invoke, root, saved_encoders, method=method)
    settings = read_manifest(folder).settings
    assert settings["schedule"] == "cosine"
    assert settings["optimizer"] == f"adamw-{kind}"
    assert settings["loss"]["temperature"] == "own"
    first = history(root, f"{method}.dual-encoder")[0]
    assert first["mean_temperature"] == pytest.approx({"clip": 1 / np.exp(2.6592), "siglip": 1.0}[kind], rel=0.05)
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
    outcome = invoke("train", *again, *arguments(root, *QUICK, *LORA, "train.seed=1"))
    refused(outcome, 2, "peft", "pip install 'itrpipe[lora]'")


@pytest.mark.parametrize("share", ["0", "0.5", "1"])
def test_interpolated_weights_lie_between_zero_shot_and_fine_tuned(
    share: str, root: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    before = untrained(invoke, root, saved_encoders)
    # One epoch, so that both choose it.
    plain = copied(root, tmp_path / "plain")
    tuned = load_file(trained(invoke, plain, saved_encoders, "clip-finetune.epochs=1") / MODEL)
    folder = trained(invoke, root, saved_encoders, "clip-finetune.epochs=1", f"train.average=wise-ft:{share}")
    for name, found in load_file(folder / MODEL).items():
        expected = (1 - float(share)) * before[name] + float(share) * tuned[name]
        np.testing.assert_allclose(found, expected, atol=1e-7, err_msg=name)
        if share != "0.5":
            np.testing.assert_array_equal(found, (before if share == "0" else tuned)[name], err_msg=name)
    if share == "0":
        folders = (folder, only(root, "train/zero-shot.dual-encoder"))
        own, other = (read_embeddings(each / "embeddings.h5", "val") for each in folders)
        np.testing.assert_array_equal(own.images, other.images)
        np.testing.assert_array_equal(own.texts, other.texts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_interrupted_run_goes_on_to_the_same_bytes(
    variant: str, root: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    small = [*QUICK, *VARIANTS[variant], "train.checkpoint_seconds=0"]

    def run(each: Path) -> Outcome:
        for checkpoint in each.glob(f"tiny/train/*/.work/{CHECKPOINT}"):
            averaged = [name for name in load_file(checkpoint) if name.startswith("average/")]
            assert bool(averaged) is (variant == "ema")
        return invoke("train", "--method", "clip-finetune", *named(saved_encoders, "clip"), *arguments(each, *small))

    goes_on(run, root, "clip-finetune.dual-encoder", 5, "epoch 2 after step 1")


def test_adapters_train_with_mined_remembered_and_synthetic_negatives(
    root: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    small = [each.replace("contrastive.", "clip-finetune.") for each in ALL if "bias" not in each]
    small += [*VARIANTS["all"], *QUICK]  # of zero-shot too, which reads none of them
    before = untrained(invoke, root, saved_encoders)
    chosen = ["--negatives", "mined,synthetic", "--weigh", "fne", "--negatives-from", "zero-shot"]
    given = [*chosen, *named(saved_encoders, "clip"), *arguments(root, *small)]
    out = done(invoke("train", "--method", "clip-finetune", *given))
    assert "✓ train/zero-shot.dual-encoder" in out
    folder = only(root, "train/clip-finetune.dual-encoder")
    after = load_file(folder / MODEL)
    moved = {name for name, value in after.items() if not np.array_equal(value, before[name])}
    assert moved == {name for name in after if "q_proj.w" in name or "v_proj.w" in name}
    assert {*read_manifest(folder).inputs} >= {"mine_negatives", "synthesize"}


def test_who_stretches_photographs_for_a_model_that_crops_them_is_told_so(
    root: Path, saved_encoders: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(kind: str) -> str:
        outcome = invoke("train", "--method", "zero-shot", *named(saved_encoders, kind), *arguments(root))
        assert outcome.code == 0, outcome.err
        return " ".join((outcome.out + outcome.err).split())

    with monkeypatch.context() as patched:
        patched.setattr(PreparedDataset, "sizes", lambda _: np.array([[40, 40], [30, 40], [0, 0]]))
        assert "on the middle of photographs, and 1 of 2 are stretched here" in said("clip")
    (manifest,) = (root / "tiny" / "train").glob("zero-shot.dual-encoder-*/manifest.json")
    (told,) = [each for each in read_manifest(manifest.parent).messages if "stretched" in each]
    assert "stretched" not in said("siglip")
    command = told.partition("that you compare: itrpipe ")[2].split()
    small = ("--set", "height=32", "--set", "width=32", "--set", "workers=0", "--data", root)
    assert invoke(*command, *small).code == 0
    shutil.rmtree(manifest.parent)
    assert "stretched" not in said("clip")
