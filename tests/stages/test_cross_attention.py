"""Models without embeddings go through the whole chain: scores instead of embeddings, lists of another model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from itrpipe.cli.asked import run_stage
from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.embeddings import SCORES, SplitScores, read_scores, write_scores
from itrpipe.pipeline.planning import Planner, parse_override
from itrpipe.stages.base import PARTS, Need
from itrpipe.storage.artifact import ALIGNMENT, read_manifest
from itrpipe.training.data import Sources
from itrpipe.training.encoding import Encoder, Scoring
from tests.chains import Invoke, copied, done, interrupted, only, planned, refused, same_files, sets
from tests.conftest import Outcome
from tests.trained_model import TrainedModel

TINY = [
    "train.epochs=1",
    "train.batch_size=16",
    "train.model.embed_dim=8",
    "train.model.word_dim=8",
    "train.min_word_count=1",
    "aoq.top_texts=5",
    "aoq.top_images=3",
    "mine_negatives.num_texts=5",
    "mine_negatives.num_images=3",
]
SCAN = TINY[:5]


@pytest.mark.parametrize("backbone", ["bfan", "scan"])
def test_a_second_round_on_the_lists_of_another_backbone(defined: Path, backbone: str, invoke: Invoke) -> None:
    arguments = ["--backbone", backbone, "--method", "aoq", "--dataset", "tiny", "--data", defined, *sets(*TINY)]
    out = done(invoke("train", *arguments, "--negatives-from", "vsepp"))
    chain = ["prepare/files", "extract/precomp", "train/triplet.vsepp", "mine_negatives/exact.triplet.vsepp"]
    assert planned(out) == [*chain, f"train/aoq.{backbone}"]
    done(invoke("evaluate", *arguments, *sets("aoq.teacher=vsepp", "evaluate.bootstrap_samples=100")))
    evaluated = only(defined, f"evaluate/aoq.{backbone}")
    (scores,) = defined.glob("tiny/*/*/scores.h5")
    assert scores.parent == evaluated
    assert not (evaluated / ALIGNMENT).exists()  # of a model without embeddings
    assert list(defined.glob("tiny/train/*/embeddings.h5")) == list(defined.glob("tiny/train/*.vsepp-*/embeddings.h5"))
    expected = best_ranks(read_scores(scores, "test"))
    recall = json.loads((evaluated / "metrics.json").read_text())["full"]["i2t_r1"]
    assert recall["value"] == pytest.approx(100 * np.mean(expected == 0))


def best_ranks(scores: SplitScores) -> np.ndarray:
    """Rank of the best own caption of every image, counted one by one."""
    ranks = []
    for row, values in enumerate(scores.matrix):
        best = values[scores.caption_image == row].max()
        ranks.append(int((values > best).sum()))
    return np.array(ranks)


# Scores of an evaluation


def evaluate(invoke: Invoke, root: Path, *options: object, block: int = 6) -> Outcome:
    own = (*SCAN, "evaluate.bootstrap_samples=100", f"evaluate.encode_block={block}")
    return invoke("evaluate", "--backbone", "scan", "--dataset", "tiny", "--data", root, *sets(*own), *options)


@pytest.fixture(scope="module")
def trained(finished_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which SCAN is trained on `tiny` and not evaluated; copy it."""
    root = copied(finished_chain / "data", tmp_path_factory.mktemp("scan") / "data")
    run_stage(root, "tiny", "train", [parse_override(text) for text in ("backbone=scan", *SCAN)], conf="triplet")
    return root


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return copied(trained, tmp_path / "data")


def opened_model(root: Path) -> TrainedModel:
    sources = Sources(only(root, "prepare/files"), only(root, "extract/precomp"))
    return TrainedModel.open(only(root, "train/triplet.scan"), sources, "test", "cpu")


def test_scores_are_those_of_the_model_whoever_makes_them_and_whatever_was_made_before(
    root: Path, tmp_path: Path, invoke: Invoke
) -> None:
    two, killed = (copied(root, tmp_path / name) for name in ("by-two", "killed"))
    done(evaluate(invoke, root, "--workers", 1))
    evaluated = only(root, "evaluate/triplet.scan")
    found, opened = read_scores(evaluated / SCORES, "test"), opened_model(root)
    data, captions = opened.data, np.arange(opened.data.num_captions)
    encoder = Encoder(opened.model, opened.device, 6)
    scored = encoder.scores(encoder.images(data, np.arange(data.num_images)), encoder.texts(data, captions))
    np.testing.assert_allclose(found.matrix, scored, rtol=0, atol=1e-6)
    for name in ("image_ids", "caption_ids", "caption_image"):
        assert getattr(found, name).tolist() == getattr(data.split, name).tolist()

    done(evaluate(invoke, two, "--workers", 2))
    with interrupted(3, Scoring, "make") as begun:
        assert evaluate(invoke, killed).code == 130
    (partial,) = killed.glob("tiny/evaluate/triplet.scan-*.partial")
    assert {path.stem for path in (partial / ".work" / PARTS).glob("*.arrays")} == names(begun)
    with interrupted(9, Scoring, "make") as others:
        done(evaluate(invoke, killed))
    assert sorted([*names(begun), *names(others)]) == BLOCKS
    assert len(others) == 2
    for each in (two, killed):
        same_files("evaluate/triplet.scan", (each, root), SCORES)
        assert read_manifest(only(each, "evaluate/triplet.scan")).outputs == read_manifest(evaluated).outputs


BLOCKS = ["000000", "000001", "000002", "000003"]
"""Of six of twenty captions."""


def names(calls: list[tuple[Any, ...]]) -> set[str]:
    """Of the parts that were made."""
    return {part.name for _, part, _ in calls}


def test_parts_of_other_blocks_are_not_mixed_with_new_ones(root: Path, tmp_path: Path, invoke: Invoke) -> None:
    other = copied(root, tmp_path / "other")
    done(evaluate(invoke, other))
    with interrupted(3, Scoring, "make"):
        assert evaluate(invoke, root, block=5).code == 130
    assert "scoring test: parts of another division are removed" in done(evaluate(invoke, root))
    same_files("evaluate/triplet.scan", (root, other), SCORES)


def test_without_its_features_a_model_is_not_evaluated_and_one_line_says_what_is_missing(
    root: Path, invoke: Invoke
) -> None:
    features = only(root, "extract/precomp")
    shutil.rmtree(features)
    named = f"{features}, which train/{only(root, 'train/triplet.scan').name} was made from"
    refused(evaluate(invoke, root), 3, named, "run `itrpipe extract --dataset tiny`")
    assert not list(root.glob("tiny/evaluate/triplet.scan-????????"))


def test_an_ensemble_reads_the_evaluations_of_its_members_and_no_features(root: Path, invoke: Invoke) -> None:
    done(evaluate(invoke, root))
    shutil.rmtree(only(root, "extract/precomp"))
    done(evaluate(invoke, root, "--ensemble-with", "vsepp"))
    folder = only(root, "evaluate/triplet.scan+vsepp")
    assert not (folder / SCORES).exists()
    inputs = read_manifest(folder).inputs
    assert {name: each.stage for name, each in inputs.items() if name != "prepare"} == {
        "train": "train",
        "scored_train": "evaluate",
        "train_2": "train",
    }


@pytest.mark.parametrize(("given", "teacher"), [([], "vsrn"), (["aoq.teacher=vsepp"], "vsepp")])
def test_the_teacher_of_a_model_without_embeddings_is_vsrn_unless_named(
    defined: Path, given: list[str], teacher: str
) -> None:
    planner = Planner(defined, "tiny", [parse_override(text) for text in ["backbone=bfan", *given]])
    step = planner.plan(Need("train", "aoq"))
    assert step.inputs["mine_negatives"].location.label == f"exact.triplet.{teacher}"


def example(n: int = 3) -> SplitScores:
    captions = np.array([f"c{row}" for row in range(2 * n)])
    matrix = np.random.default_rng(0).normal(size=(n, 2 * n)).astype(np.float32)
    return SplitScores(matrix, np.array([f"Bild é {row}" for row in range(n)]), captions, np.repeat(np.arange(n), 2))


def test_scores_come_back_as_written(tmp_path: Path) -> None:
    path, written = tmp_path / "scores.h5", example()
    write_scores(path, "val", written)
    write_scores(path, "test", example(2))
    found = read_scores(path, "val")
    for name in ("matrix", "image_ids", "caption_ids", "caption_image"):
        np.testing.assert_array_equal(getattr(found, name), getattr(written, name))
    with pytest.raises(MissingInputError, match="no split 'train'; it has test, val"):
        read_scores(path, "train")


def test_damaged_scores_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "scores.h5"
    write_scores(path, "val", example())
    with h5py.File(path, "a") as file:
        del file["val/caption_id"]
    with pytest.raises(DataError, match=r"caption_id.*is missing"):
        read_scores(path, "val")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read as scores"):
        read_scores(path, "val")
