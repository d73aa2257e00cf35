"""Contrastive training through the chain: pretrained CLIP and SigLIP, every source of negatives, interruption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.storage.artifact import read_manifest
from itrpipe.training.loop import OrderingMethod
from tests.chains import Invoke, done, goes_on, history, only, sets
from tests.conftest import Outcome

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


def arguments(root: Path, *more: str) -> list[object]:
    return ["--dataset", "tiny", "--data", root, *sets(*SMALL, *more)]


def named(encoders: Path, kind: str) -> list[object]:
    return ["--vision", encoders / kind, "--text", encoders / kind]


def as_settings(encoders: Path, kind: str) -> list[str]:
    return [f"train.model.{side}={encoders / kind}" for side in ("vision", "text")]


@pytest.mark.parametrize(("kind", "objective"), [("clip", "infonce"), ("siglip", "sigmoid")])
def test_a_pretrained_model_is_evaluated_mined_with_and_fine_tuned_with_all_negatives(
    kind: str, objective: str, defined: Path, invoke: Invoke, saved_encoders: Path, tmp_path: Path
) -> None:
    model = as_settings(saved_encoders, kind)
    done(invoke("train", "--method", "zero-shot", *named(saved_encoders, kind), *arguments(defined)))
    assert [(row["epoch"], row["steps"]) for row in history(defined, "zero-shot.dual-encoder")] == [(0, 0)]
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
    folder = only(defined, "train/contrastive.dual-encoder")
    assert only(defined, "mine_negatives/exact.zero-shot.dual-encoder")
    assert {*read_manifest(folder).inputs} >= {"mine_negatives", "synthesize"}
    rows = history(defined, "contrastive.dual-encoder")
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


def test_an_interrupted_run_goes_on_to_the_same_weights(defined: Path, invoke: Invoke, saved_encoders: Path) -> None:
    given = ["--method", "contrastive", "--negatives", "mined,synthetic", "--weigh", "fne"]
    given += ["--batches", "neighbours", *named(saved_encoders, "clip")]
    chosen = [each for each in ALL if "bias" not in each]
    chosen += ["train.checkpoint_seconds=0", "contrastive.loss.min_count=0", "train.learning_rate=1e-3"]

    def run(root: Path) -> Outcome:
        return invoke("train", *given, *arguments(root, *chosen))

    def trains_with_lists(trainer: Any) -> bool:
        return isinstance(trainer._method, OrderingMethod)

    goes_on(run, defined, "contrastive.dual-encoder", 5, "epoch 2 after step 1", counts=trains_with_lists)
