"""AsCL through the command line: what it reads, its ablations, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from itrpipe.analysis.questions.alignment import VECTORS, mean_vectors
from itrpipe.cli.asked import run_stage
from itrpipe.evaluation import metrics
from itrpipe.features.embeddings import EMBEDDINGS
from itrpipe.models.ascl.network import AsclEncoder
from itrpipe.pipeline.planning import parse_override
from itrpipe.stages.evaluate import PROTOCOLS
from itrpipe.training.data import Sources
from tests.chains import Invoke, copied, define_scenes, done, goes_on, history, only, refused, sets
from tests.conftest import Outcome
from tests.trained_model import TrainedModel

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
    root = define_scenes(tmp_path_factory.mktemp("ascl") / "data")
    run_stage(root, "scenes", "extract", [], conf="scenes")
    return root


@pytest.fixture
def root(extracted: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return copied(extracted, tmp_path / "data")


def train(invoke: Invoke, root: Path, method: str, *options: object) -> Outcome:
    return invoke("train", "--method", method, "--data", root, "--device", "cpu", *sets(*CHOSEN), *options)


@pytest.fixture(scope="module")
def evaluated(extracted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with an evaluated model; copy it to write into it."""
    root = copied(extracted, tmp_path_factory.mktemp("evaluated") / "data")
    chosen = [parse_override(text) for text in ("method=ascl", "bootstrap_samples=100", *CHOSEN)]
    run_stage(root, "scenes", "evaluate", chosen)
    return root


def test_its_loss_is_the_mean_over_originals_and_positives(evaluated: Path) -> None:
    rows = history(evaluated, "ascl.ascl")
    assert [row["epoch"] for row in rows] == [1, 2]
    for row in rows:
        expected = (row["mean_loss_of_originals"] + row["mean_loss_of_positives"]) / 2
        assert row["loss_ascl"] == pytest.approx(expected, rel=0.1)


def evaluate(invoke: Invoke, root: Path, *options: object) -> Outcome:
    small = sets("evaluate.bootstrap_samples=100", *CHOSEN)
    return invoke("evaluate", "--method", "ascl", "--data", root, *small, *options)


def opened_model(root: Path) -> TrainedModel:
    sources = Sources(only(root, "prepare/scenes"), only(root, "extract/scenes"))
    return TrainedModel.open(only(root, "train/ascl.ascl"), sources, "test", "cpu")


def test_protocols_are_named_by_an_option(evaluated: Path, invoke: Invoke) -> None:
    named = evaluate(invoke, evaluated, "--protocol", "coco-1k", "--protocol", "full", "--dry-run")
    given = evaluate(invoke, evaluated, "--set", 'protocols=["coco-1k","full"]', "--dry-run")
    assert (named.code, given.code) == (0, 0)
    assert named.out == given.out
    assert "evaluate/ascl.ascl-" in named.out
    assert only(evaluated, "evaluate/ascl.ascl").name not in named.out.partition("estimated cost")[0]
    assert tuple(metrics.PROTOCOLS) == PROTOCOLS


def test_alignment_is_that_of_mean_regions_and_mean_words(evaluated: Path) -> None:
    found = json.loads((only(evaluated, "evaluate/ascl.ascl") / "alignment.json").read_text())
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
    refused(outcome, 2)
    assert not list(evaluated.glob("scenes/mine_negatives/*"))


@pytest.mark.parametrize("method", ["ascl-no-positives", "ascl-no-negatives", "ascl-plain", "ascl-triplet"])
def test_its_ablations_train(root: Path, invoke: Invoke, method: str) -> None:
    done(train(invoke, root, method))
    first, _ = history(root, f"{method}.ascl")
    assert ("mean_loss_of_positives" in first) == (method in ("ascl-no-negatives", "ascl-triplet"))


def test_interrupted_it_ends_with_the_same_weights(root: Path, invoke: Invoke) -> None:
    def run(each: Path) -> Outcome:
        return train(invoke, each, "ascl", *sets("checkpoint_seconds=0"))

    goes_on(run, root, "ascl.ascl", 6, "epoch 2 after step 1")


def test_saved_encoders_of_transformers_are_read(root: Path, invoke: Invoke, saved_encoders: Path) -> None:
    chosen = ("--text", saved_encoders / "bert")
    refused(train(invoke, root, "ascl", *chosen), 2, "loss.max_tokens = 62", "40 tokens")
    done(train(invoke, root, "ascl", *chosen, *sets("loss.max_tokens=40")))
    assert (only(root, "train/ascl.ascl") / "tokenizer").is_dir()


@pytest.mark.usefixtures("any_hub")
def test_a_dry_run_downloads_no_encoder(root: Path, invoke: Invoke) -> None:
    done(train(invoke, root, "ascl", "--text", "nobody/no-such-model", *sets("loss.max_tokens=40"), "--dry-run"))
