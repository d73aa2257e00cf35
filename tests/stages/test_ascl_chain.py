"""AsCL through the command line: what it reads, its ablations, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from itrpipe.analysis.mean_vectors import VECTORS, mean_vectors
from itrpipe.commands.stages import run_stage
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, save_definition
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.evaluation.protocols import PROTOCOLS
from itrpipe.evaluation.results import RESULT_PROTOCOLS
from itrpipe.features.embeddings import EMBEDDINGS
from itrpipe.models.ascl.network import AsclEncoder
from itrpipe.plan.planning import parse_override
from itrpipe.training.loop import Trainer
from itrpipe.training.splits import Sources
from tests.trained_model import TrainedModel

Invoke = Callable[..., Any]
CHOSEN = (
    "train.epochs=2",
    "train.batch_size=16",
    "train.min_word_count=1",
    "train.model.embed_dim=16",
    "train.model.heads=2",
    "train.model.text_width=16",
    "train.model.text_heads=2",
    "train.model.text_layers=1",
)


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with twelve training scenes and their features; copy it."""
    root = tmp_path_factory.mktemp("ascl") / "data"
    scenes = StageDefinition(conf="scenes", settings={"train": 12, "val": 4, "test": 4})
    save_definition(
        root, "scenes", DatasetDefinition(prepare=scenes, features={"scenes": StageDefinition(conf="scenes")})
    )
    run_stage(root, "scenes", "extract", [], conf="scenes")
    return root


@pytest.fixture
def root(extracted: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return Path(shutil.copytree(extracted, tmp_path / "data"))


def train(invoke: Invoke, root: Path, method: str, *options: object, device: str = "cpu") -> Any:
    chosen = [part for text in CHOSEN for part in ("--set", text)]
    return invoke("train", "--method", method, "--data", root, "--device", device, *chosen, *options)


def folder_of(root: Path, label: str) -> Path:
    (folder,) = [each for each in root.glob(f"scenes/train/{label}-[0-9a-f]*") if each.suffix != ".partial"]
    return folder


def test_it_trains_and_is_evaluated(root: Path, invoke: Invoke) -> None:
    assert train(invoke, root, "ascl").code == 0
    folder = folder_of(root, "ascl.ascl")
    rows = pq.read_table(folder / "history.parquet").to_pylist()
    assert [row["epoch"] for row in rows] == [1, 2]
    for row in rows:
        assert np.isclose(
            row["loss_ascl"], (row["mean_loss_of_originals"] + row["mean_loss_of_positives"]) / 2, rtol=0.1
        )
    chosen = [part for text in CHOSEN for part in ("--set", text)]
    outcome = invoke("evaluate", "--method", "ascl", "--data", root, *chosen, "--no-deps")
    assert outcome.code == 0, outcome.err


@pytest.fixture(scope="module")
def evaluated(extracted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with an evaluated model; copy it to write into it."""
    root = Path(shutil.copytree(extracted, tmp_path_factory.mktemp("evaluated") / "data"))
    chosen = [parse_override(text) for text in ("method=ascl", "bootstrap_samples=100", *CHOSEN)]
    run_stage(root, "scenes", "evaluate", chosen)
    return root


def evaluate(invoke: Invoke, root: Path, *options: object) -> Any:
    chosen = [part for text in ("evaluate.bootstrap_samples=100", *CHOSEN) for part in ("--set", text)]
    return invoke("evaluate", "--method", "ascl", "--data", root, *chosen, *options)


def evaluation(root: Path) -> Path:
    (folder,) = root.glob("scenes/evaluate/ascl.ascl-????????")
    return folder


def opened_model(root: Path) -> TrainedModel:
    prepare, extract = (next(root.glob(f"scenes/{name}/scenes-*")) for name in ("prepare", "extract"))
    return TrainedModel.open(folder_of(root, "ascl.ascl"), Sources(prepare, extract), "test", "cpu")


def test_protocols_are_named_by_an_option(evaluated: Path, invoke: Invoke) -> None:
    named = evaluate(invoke, evaluated, "--protocol", "coco-1k", "--protocol", "full", "--dry-run")
    given = evaluate(invoke, evaluated, "--set", 'protocols=["coco-1k","full"]', "--dry-run")
    assert (named.code, given.code) == (0, 0)
    assert named.out == given.out
    assert "evaluate/ascl.ascl-" in named.out
    assert evaluation(evaluated).name not in named.out.partition("estimated cost")[0]
    assert tuple(PROTOCOLS) == RESULT_PROTOCOLS


def test_alignment_is_that_of_mean_regions_and_mean_words(evaluated: Path) -> None:
    found = json.loads((evaluation(evaluated) / "alignment.json").read_text())
    assert found["vectors"] == VECTORS
    opened = opened_model(evaluated)
    assert isinstance(opened.model, AsclEncoder)
    images, texts = mean_vectors(opened.model, opened.data, opened.device, 5)
    own = np.linalg.norm(images[opened.data.caption_image] - texts, axis=1)
    assert found["image_text"] == {
        "pairs": 20,
        "mean": pytest.approx(own.mean(), abs=1e-5),
        "variance": pytest.approx(own.var(), abs=1e-5),
    }
    assert found["images"]["pairs"] == 6


def test_its_mean_vectors_are_nothing_that_mining_could_search(evaluated: Path, invoke: Invoke) -> None:
    assert not list(evaluated.rglob(EMBEDDINGS))
    outcome = invoke("mine-negatives", "--backbone", "ascl", "--set", "method=ascl", "--data", evaluated)
    assert outcome.code == UsageError.exit_code
    assert outcome.err.count("\n") == 1
    assert not list(evaluated.glob("scenes/mine_negatives/*"))


def test_without_what_it_was_trained_on_it_is_not_scored_and_one_line_says_what_is_missing(
    evaluated: Path, tmp_path: Path, invoke: Invoke
) -> None:
    root = Path(shutil.copytree(evaluated, tmp_path / "data"))
    (features,) = root.glob("scenes/extract/scenes-*")
    shutil.rmtree(features)
    shutil.rmtree(evaluation(root))
    missing = evaluate(invoke, root, "--no-deps")
    assert missing.code == MissingInputError.exit_code
    assert missing.err.startswith(f"error: {features}, which train/ascl.ascl-")
    assert missing.err.endswith("is not there; run `itrpipe extract --dataset scenes`\n")
    assert missing.err.count("\n") == 1
    assert not list(root.glob("scenes/evaluate/ascl.ascl-????????"))


@pytest.mark.parametrize("method", ["ascl-no-positives", "ascl-no-negatives", "ascl-plain", "ascl-triplet"])
def test_its_ablations_train(root: Path, invoke: Invoke, method: str) -> None:
    assert train(invoke, root, method).code == 0
    (first, _) = pq.read_table(folder_of(root, f"{method}.ascl") / "history.parquet").to_pylist()
    assert ("mean_loss_of_positives" in first) == (method in ("ascl-no-negatives", "ascl-triplet"))


def test_interrupted_it_ends_with_the_same_weights(
    root: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copytree(root, tmp_path / "other"))
    assert train(invoke, root, "ascl").code == 0
    update, done = Trainer._update, []

    def stop_after_five(self: Trainer) -> None:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(update(self))

    often = ("--set", "checkpoint_seconds=0")
    monkeypatch.setattr(Trainer, "_update", stop_after_five)
    assert train(invoke, other, "ascl", *often).code != 0
    monkeypatch.setattr(Trainer, "_update", update)
    assert train(invoke, other, "ascl", *often).code == 0
    whole, resumed = (load_file(folder_of(each, "ascl.ascl") / "model.safetensors") for each in (root, other))
    assert all((whole[name] == resumed[name]).all() for name in whole)


def test_saved_encoders_of_transformers_are_read(root: Path, invoke: Invoke, saved_encoders: Path) -> None:
    chosen = ("--text", saved_encoders / "bert")
    refused = train(invoke, root, "ascl", *chosen)
    assert refused.code == 2
    assert "loss.max_tokens = 62, but the text encoder reads 40 tokens at most" in refused.err
    outcome = train(invoke, root, "ascl", *chosen, "--set", "loss.max_tokens=40")
    assert outcome.code == 0, outcome.err
    assert (folder_of(root, "ascl.ascl") / "tokenizer").is_dir()


@pytest.mark.usefixtures("any_hub")
def test_a_dry_run_measures_with_encoders_of_this_machine_and_downloads_none(
    root: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    for text, measures in ((saved_encoders / "bert", True), ("nobody/no-such-model", False)):
        outcome = train(invoke, root, "ascl", "--text", text, "--set", "loss.max_tokens=40", "--seed", "7", "--dry-run")
        assert (outcome.code, outcome.err) == (0, "")
        assert ("to evaluate it: " in outcome.out and " for the scores of test, 80 pairs\n" in outcome.out) is measures


def test_other_backbones_are_refused(root: Path, invoke: Invoke) -> None:
    outcome = invoke("train", "--method", "ascl", "--backbone", "vsepp", "--data", root)
    assert outcome.code != 0
    assert "it trains ascl and nothing else" in outcome.err
