"""AsCL through the command line: what it reads, its ablations, and what evaluation measures of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from itrpipe.analysis.questions.alignment import VECTORS, mean_vectors
from itrpipe.evaluation import metrics
from itrpipe.features.embeddings import EMBEDDINGS
from itrpipe.models.ascl.network import AsclEncoder
from itrpipe.stages.evaluate import PROTOCOLS
from itrpipe.training.data import Sources
from tests.chains import ASCL, FEW, Invoke, copied, done, history, only, refused, sets
from tests.conftest import Outcome
from tests.trained_model import TrainedModel


@pytest.fixture
def root(scenes_chain: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return copied(scenes_chain, tmp_path / "data")


def train(invoke: Invoke, root: Path, method: str, *options: object) -> Outcome:
    return invoke("train", "--method", method, "--data", root, "--device", "cpu", *sets(*ASCL), *options)


def test_its_loss_is_the_mean_over_originals_and_positives(ascl_chain: Path) -> None:
    rows = history(ascl_chain, "ascl.ascl")
    assert [row["epoch"] for row in rows] == [1, 2]
    for row in rows:
        expected = (row["mean_loss_of_originals"] + row["mean_loss_of_positives"]) / 2
        assert row["loss_ascl"] == pytest.approx(expected, rel=0.1)


def test_protocols_are_named_by_an_option(ascl_chain: Path, invoke: Invoke) -> None:
    given = ("evaluate", "--method", "ascl", "--data", ascl_chain, *sets(FEW, *ASCL), "--dry-run")
    named = done(invoke(*given, "--protocol", "coco-1k", "--protocol", "full"))
    assert named == done(invoke(*given, "--set", 'protocols=["coco-1k","full"]'))
    assert only(ascl_chain, "evaluate/ascl.ascl").name not in named.partition("estimated cost")[0]
    assert tuple(metrics.PROTOCOLS) == PROTOCOLS


def test_alignment_is_that_of_mean_regions_and_mean_words_which_nothing_can_search(
    ascl_chain: Path, invoke: Invoke
) -> None:
    found = json.loads((only(ascl_chain, "evaluate/ascl.ascl") / "alignment.json").read_text())
    assert found["vectors"] == VECTORS
    sources = Sources(only(ascl_chain, "prepare/scenes"), only(ascl_chain, "extract/scenes"))
    opened = TrainedModel.open(only(ascl_chain, "train/ascl.ascl"), sources, "test", "cpu")
    assert isinstance(opened.model, AsclEncoder)
    images, texts = mean_vectors(opened.model, opened.data, opened.device, 5)
    own = np.linalg.norm(images[opened.data.caption_image] - texts, axis=1)
    mean, variance = (pytest.approx(each, abs=1e-5) for each in (own.mean(), own.var()))
    assert found["image_text"] == {"pairs": 20, "mean": mean, "variance": variance}
    assert found["images"]["pairs"] == 6
    assert not list(ascl_chain.rglob(EMBEDDINGS))
    refused(invoke("mine-negatives", "--backbone", "ascl", "--set", "method=ascl", "--data", ascl_chain), 2)


@pytest.mark.parametrize(("method", "positives"), [("ascl-no-positives", False), ("ascl-triplet", True)])
def test_its_ablations_train(root: Path, invoke: Invoke, method: str, positives: bool) -> None:
    done(train(invoke, root, method))
    assert ("mean_loss_of_positives" in history(root, f"{method}.ascl")[0]) is positives


@pytest.mark.usefixtures("any_hub")
def test_saved_encoders_of_transformers_are_read_and_none_is_downloaded_for_a_plan(
    root: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    chosen = ("--text", saved_encoders / "bert")
    refused(train(invoke, root, "ascl", *chosen), 2, "loss.max_tokens = 62", "40 tokens")
    done(train(invoke, root, "ascl", *chosen, *sets("loss.max_tokens=40")))
    assert (only(root, "train/ascl.ascl") / "tokenizer").is_dir()
    done(train(invoke, root, "ascl", "--text", "nobody/no-such-model", *sets("loss.max_tokens=40"), "--dry-run"))
