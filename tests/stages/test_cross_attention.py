"""Models without embeddings go through the whole chain: scores instead of embeddings, lists of another model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.embeddings import EMBEDDINGS, SCORES, SplitScores, read_scores, write_scores
from itrpipe.pipeline.planning import Planner, parse_override
from itrpipe.stages.base import Need
from itrpipe.storage.artifact import ALIGNMENT, read_manifest
from itrpipe.training.encoding import Scoring
from tests.chains import Invoke, copied, done, interrupted, only, planned, refused, sets
from tests.conftest import TINY, TINY_AOQ, Outcome


def evaluate(invoke: Invoke, root: Path, *options: object) -> Outcome:
    own = sets(*TINY, "evaluate.encode_block=6")
    return invoke("evaluate", "--backbone", "scan", "--dataset", "tiny", "--data", root, *own, *options)


@pytest.fixture
def root(pairs_chain: Path, tmp_path: Path) -> Path:
    """A data folder in which SCAN is trained and not evaluated, this test's own."""
    root = copied(pairs_chain, tmp_path / "data")
    shutil.rmtree(only(root, "evaluate/triplet.scan"))
    return root


def test_a_second_round_on_the_lists_of_another_backbone(root: Path, invoke: Invoke) -> None:
    given = ["--backbone", "bfan", "--method", "aoq", "--dataset", "tiny", "--data", root]
    out = done(invoke("train", *given, "--negatives-from", "vsepp", *sets(*TINY[:-1], *TINY_AOQ)))
    assert planned(out) == ["train/aoq.bfan"]  # by the lists that are there
    done(invoke("evaluate", *given, *sets("aoq.teacher=vsepp", *TINY, *TINY_AOQ)))
    evaluated = only(root, "evaluate/aoq.bfan")
    assert not (only(root, "train/aoq.bfan") / EMBEDDINGS).exists()
    assert not (evaluated / ALIGNMENT).exists()
    scores = read_scores(evaluated / SCORES, "test")
    first = [scores.caption_image[values.argmax()] == row for row, values in enumerate(scores.matrix)]
    recall = json.loads((evaluated / "metrics.json").read_text())["full"]["i2t_r1"]
    assert recall["value"] == pytest.approx(100 * np.mean(first))


def test_scores_are_the_same_in_blocks_of_any_size(root: Path, pairs_chain: Path, invoke: Invoke) -> None:
    """Twenty captions are four parts of six."""
    with interrupted(9, Scoring, "make") as made:
        done(evaluate(invoke, root))
    assert sorted(part.name for _, part, _ in made) == ["000000", "000001", "000002", "000003"]
    known, found = (read_scores(only(each, "evaluate/triplet.scan") / SCORES, "test") for each in (pairs_chain, root))
    np.testing.assert_allclose(found.matrix, known.matrix, atol=1e-6)


def test_without_its_features_a_model_is_not_evaluated_but_an_ensemble_of_evaluations_is(
    root: Path, pairs_chain: Path, tmp_path: Path, invoke: Invoke
) -> None:
    features = only(root, "extract/precomp")
    shutil.rmtree(features)
    refused(evaluate(invoke, root), 3, f"{features}, which train/", "run `itrpipe extract --dataset tiny`")
    assert not list(root.glob("tiny/evaluate/triplet.scan-????????"))
    both = copied(pairs_chain, tmp_path / "both")
    shutil.rmtree(only(both, "extract/precomp"))
    done(evaluate(invoke, both, "--ensemble-with", "vsepp"))
    folder = only(both, "evaluate/triplet.scan+vsepp")
    assert not (folder / SCORES).exists()
    inputs = {name: each.stage for name, each in read_manifest(folder).inputs.items()}
    assert inputs == {"prepare": "prepare", "train": "train", "scored_train": "evaluate", "train_2": "train"}


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


def test_scores_come_back_as_written_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path, written = tmp_path / "scores.h5", example()
    write_scores(path, "val", written)
    write_scores(path, "test", example(2))
    found = read_scores(path, "val")
    for name in ("matrix", "image_ids", "caption_ids", "caption_image"):
        np.testing.assert_array_equal(getattr(found, name), getattr(written, name))
    with pytest.raises(MissingInputError, match="no split 'train'; it has test, val"):
        read_scores(path, "train")
    with h5py.File(path, "a") as file:
        del file["val/caption_id"]
    with pytest.raises(DataError, match=r"caption_id.*is missing"):
        read_scores(path, "val")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read as scores"):
        read_scores(path, "val")
