"""Models without embeddings go through the whole chain: scores instead of embeddings, lists of another model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.scores import SplitScores, read_scores, write_scores
from itrpipe.plan.planning import Planner, parse_override
from itrpipe.stages.base import Need

Invoke = Callable[..., Any]
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


@pytest.mark.parametrize("backbone", ["bfan", "scan"])
def test_a_second_round_on_the_lists_of_another_backbone(defined: Path, backbone: str, invoke: Invoke) -> None:
    sets = [f"--set={text}" for text in TINY]
    arguments = ["--backbone", backbone, "--method", "aoq", "--dataset", "tiny", "--data", defined]
    outcome = invoke("train", *arguments, "--negatives-from", "vsepp", *sets)
    assert outcome.code == 0, outcome.err
    planned = [line.split()[1].rpartition("-")[0] for line in outcome.out.splitlines() if line.startswith("  + ")]
    chain = ["prepare/files", "extract/precomp", "train/triplet.vsepp", "mine_negatives/exact.triplet.vsepp"]
    assert planned == [*chain, f"train/aoq.{backbone}"]
    evaluated = invoke(
        "evaluate", *arguments, *sets, "--set", "aoq.teacher=vsepp", "--set", "evaluate.bootstrap_samples=100"
    )
    assert evaluated.code == 0, evaluated.err
    (metrics,) = defined.glob(f"tiny/evaluate/aoq.{backbone}-*/metrics.json")
    (scores,) = defined.glob(f"tiny/train/aoq.{backbone}-*/scores.h5")
    expected = best_ranks(read_scores(scores, "test"))
    assert json.loads(metrics.read_text())["full"]["i2t_r1"]["value"] == pytest.approx(100 * np.mean(expected == 0))


def best_ranks(scores: SplitScores) -> np.ndarray:
    """Rank of the best own caption of every image, counted one by one."""
    ranks = []
    for row, values in enumerate(scores.matrix):
        best = values[scores.caption_image == row].max()
        ranks.append(int((values > best).sum()))
    return np.array(ranks)


@pytest.mark.parametrize(("given", "teacher"), [([], "vsrn"), (["aoq.teacher=vsepp"], "vsepp")])
def test_the_teacher_of_a_model_without_embeddings_is_vsrn_unless_named(
    defined: Path, given: list[str], teacher: str
) -> None:
    planner = Planner(defined, "tiny", [parse_override(text) for text in ["backbone=bfan", *given]])
    step = planner.plan(Need("train", "aoq"))
    assert step.inputs["mine_negatives"].location.label == f"exact.triplet.{teacher}"


def test_a_model_without_embeddings_cannot_mine(defined: Path) -> None:
    planner = Planner(defined, "tiny", [parse_override("backbone=scan")])
    with pytest.raises(UsageError, match=r"scan compares regions with words .*--negatives-from vsrn"):
        planner.plan(Need("mine_negatives", "exact"))


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
    with pytest.raises(DataError, match="cannot be read as scores"):
        read_scores(path, "val")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read as scores"):
        read_scores(path, "val")
