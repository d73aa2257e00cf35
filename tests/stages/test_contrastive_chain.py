"""Contrastive training through the chain: pretrained CLIP and SigLIP, every source of negatives, interruption."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from itrpipe.artifacts.artifact import read_manifest
from itrpipe.training import loop
from itrpipe.training.saved import MODEL

Invoke = Callable[..., Any]
SMALL = [
    "train.batch_size=20",
    "train.epochs=2",
    "train.min_word_count=1",
    "pixels.height=32",
    "pixels.width=32",
    "extract.workers=0",
]
ALL = ["mine_negatives.num_texts=5", "mine_negatives.num_images=3", "vse-c.min_count=1"]
ALL += ["contrastive.loss.top_texts=5", "contrastive.loss.top_images=3"]
ALL += ["contrastive.sentences=vse-c", "contrastive.loss.temperature=own", "contrastive.loss.bias=own"]


def arguments(root: Path, *sets: str) -> list[object]:
    return ["--dataset", "tiny", "--data", root, *(f"--set={text}" for text in [*SMALL, *sets])]


def named(encoders: Path, kind: str) -> list[object]:
    return ["--vision", encoders / kind, "--text", encoders / kind]


def as_settings(encoders: Path, kind: str) -> list[str]:
    return [f"train.model.{side}={encoders / kind}" for side in ("vision", "text")]


def done(outcome: Any) -> str:
    assert outcome.code == 0, outcome.err
    return outcome.out


def folder_of(root: Path, pattern: str, stage: str = "train") -> Path:
    (folder,) = (path for path in root.glob(f"tiny/{stage}/{pattern}-*") if path.name[-8:].isalnum())
    return folder


@pytest.mark.parametrize(("kind", "objective"), [("clip", "infonce"), ("siglip", "sigmoid")])
def test_a_pretrained_model_is_evaluated_mined_with_and_fine_tuned_with_all_negatives(
    kind: str, objective: str, defined: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    model = as_settings(saved_encoders, kind)
    done(invoke("train", "--method", "zero-shot", *named(saved_encoders, kind), *arguments(defined)))
    untrained = folder_of(defined, "zero-shot.dual-encoder")
    history = pq.read_table(untrained / "history.parquet").to_pylist()
    assert [(row["epoch"], row["steps"]) for row in history] == [(0, 0)]
    again = [*named(saved_encoders, kind), *arguments(defined, "train.learning_rate=0.5", "train.schedule=cosine")]
    assert "up to date" in done(invoke("train", "--method", "zero-shot", *again, "--dry-run"))  # nothing is trained
    measured = ["evaluate.bootstrap_samples=100"]
    out = done(invoke("evaluate", "--method", "zero-shot", *arguments(defined, *model, *measured)))
    assert "✓ train/zero-shot.dual-encoder" in out

    given = ["--negatives", "mined,synthetic", "--weigh", "fne", "--objective", objective]
    chosen = [each for each in ALL if objective == "sigmoid" or "bias" not in each]
    teacher = ["--negatives-from", "zero-shot"]
    out = done(
        invoke(
            "train", "--method", "contrastive", *given, *teacher, *named(saved_encoders, kind),
            *arguments(defined, *chosen, "train.learning_rate=1e-4"),
        )
    )  # fmt: skip
    assert "✓ train/zero-shot.dual-encoder" in out
    folder = folder_of(defined, "contrastive.dual-encoder")
    assert folder_of(defined, "exact.zero-shot.dual-encoder", "mine_negatives")
    assert {*read_manifest(folder).inputs} >= {"mine_negatives", "synthesize"}
    rows = pq.read_table(folder / "history.parquet").to_pylist()
    scale = {"clip": 1 / np.exp(2.6592), "siglip": 1.0}
    assert rows[0]["mean_temperature"] == pytest.approx(scale[kind], rel=0.01)
    assert {"mean_retained", "mean_text_candidates", "loss_contrastive"} <= rows[0].keys()
    assert ("mean_bias" in rows[0]) is (objective == "sigmoid")

    combined = ['negatives=["mined","synthetic"]', "weigh=fne", "teacher=zero-shot", f"objective={objective}"]
    settings = [f"contrastive.loss.{each}" for each in combined]
    where = arguments(defined, *model, *chosen, *settings, "train.learning_rate=1e-4", *measured)
    out = done(invoke("evaluate", "--method", "contrastive", "--backbone", "dual-encoder", *where))
    assert f"✓ train/{folder.name}" in out
    done(invoke("export", "--method", "contrastive", "--backbone", "dual-encoder", *where, "--to", tmp_path / "out"))
    assert (tmp_path / "out" / "README.md").exists()
    out = done(invoke("report", "--dataset", "tiny", "--data", defined))
    assert "zero-shot" in out
    assert {"infonce": "InfoNCE, mined", "sigmoid": "sigmoid loss, mined"}[objective] in out


def same_training(*roots: Path) -> None:
    folders = [folder_of(root, "contrastive.*") for root in roots]
    for name in (MODEL, "history.parquet"):
        assert folders[0].joinpath(name).read_bytes() == folders[1].joinpath(name).read_bytes(), name


def test_an_interrupted_run_goes_on_to_the_same_weights(
    defined: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--method", "contrastive", "--negatives", "mined,synthetic", "--weigh", "fne"]
    given += ["--batches", "neighbours", *named(saved_encoders, "clip")]
    sets = [each for each in ALL if "bias" not in each]
    sets += ["train.checkpoint_seconds=0", "contrastive.loss.min_count=0", "train.learning_rate=1e-3"]
    other = Path(shutil.copytree(defined, tmp_path / "other"))
    done(invoke("train", *given, *arguments(other, *sets)))
    steps, step = [0], loop.Trainer._step

    def interrupted(trainer: loop.Trainer, *more: Any) -> bool:
        steps[0] += isinstance(trainer._method, loop.OrderingMethod)
        if steps[0] == 5:
            raise KeyboardInterrupt
        return step(trainer, *more)

    with monkeypatch.context() as patched:
        patched.setattr(loop.Trainer, "_step", interrupted)
        assert invoke("train", *given, *arguments(defined, *sets)).code == 130
    assert "going on in epoch 2 after step 1" in done(invoke("train", *given, *arguments(defined, *sets)))
    same_training(other, defined)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--method", "zero-shot"], "name one joint model"),
        (["--method", "zero-shot", "--vision", "random", "--text", "random"], "name one joint model"),
        (["--method", "triplet", "--weigh", "fne"], "--weigh fne is for --method contrastive"),
        (["--method", "aoq", "--negatives", "mined"], "aoq has none of this name"),
        (
            ["--method", "contrastive", "--negatives", "mined", "--set=loss.refresh_every=1", "--backbone", "scan"],
            "has no embeddings",
        ),
        (["--method", "contrastive", "--set", "loss.prior=0.1", "--backbone", "vsepp"], "changes nothing"),
        (["--method", "aoq", "--negatives-from", "nobody.vsepp"], "there is no method 'nobody'"),
        (
            ["--method", "contrastive", "--set=loss.temperature=own", "--backbone", "vsepp"],
            "from random weights",
        ),
    ],
)
def test_what_cannot_work_is_refused(given: list[str], reason: str, defined: Path, invoke: Invoke) -> None:
    outcome = invoke("train", *given, "--dataset", "tiny", "--data", defined)
    assert outcome.code != 0
    assert reason in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1
