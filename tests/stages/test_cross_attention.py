"""Models without embeddings go through the whole chain: scores instead of embeddings, lists of another model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from itrpipe.artifacts.artifact import existing_input, read_manifest
from itrpipe.artifacts.files import ALIGNMENT
from itrpipe.commands.stages import run_stage
from itrpipe.engine.work import Part
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.scores import SplitScores, read_scores, write_scores
from itrpipe.plan.planning import Planner, parse_override
from itrpipe.stages.base import PARTS, Need
from itrpipe.training.encode import score_split
from itrpipe.training.scoring import Scoring
from itrpipe.training.splits import Sources
from tests.trained_model import TrainedModel

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
    (scores,) = defined.glob("tiny/*/*/scores.h5")
    assert scores.parent == metrics.parent
    assert not (metrics.parent / ALIGNMENT).exists()  # of a model without embeddings
    assert list(defined.glob("tiny/train/*/embeddings.h5")) == list(defined.glob("tiny/train/*.vsepp-*/embeddings.h5"))
    expected = best_ranks(read_scores(scores, "test"))
    assert json.loads(metrics.read_text())["full"]["i2t_r1"]["value"] == pytest.approx(100 * np.mean(expected == 0))


def best_ranks(scores: SplitScores) -> np.ndarray:
    """Rank of the best own caption of every image, counted one by one."""
    ranks = []
    for row, values in enumerate(scores.matrix):
        best = values[scores.caption_image == row].max()
        ranks.append(int((values > best).sum()))
    return np.array(ranks)


# Scores of an evaluation


def evaluate(invoke: Invoke, root: Path, *options: object, block: int = 6) -> Any:
    own = ("evaluate.bootstrap_samples=100", f"evaluate.encode_block={block}")
    sets = [f"--set={text}" for text in TINY if text.startswith("train.")] + [f"--set={text}" for text in own]
    return invoke("evaluate", "--backbone", "scan", "--dataset", "tiny", "--data", root, *sets, *options)


@pytest.fixture(scope="module")
def trained(finished_chain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which SCAN is trained on `tiny` and not evaluated; copy it."""
    root = Path(shutil.copytree(finished_chain / "data", tmp_path_factory.mktemp("scan") / "data"))
    chosen = ["backbone=scan", *(text for text in TINY if text.startswith("train."))]
    run_stage(root, "tiny", "train", [parse_override(text) for text in chosen], conf="triplet")
    return root


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return Path(shutil.copytree(trained, tmp_path / "data"))


def scores_in(root: Path) -> Path:
    (path,) = root.glob("tiny/evaluate/triplet.scan-????????/scores.h5")
    return path


def opened_model(root: Path) -> TrainedModel:
    (trained,) = root.glob("tiny/train/triplet.scan-*")
    prepare, extract = (existing_input(trained, read_manifest(trained), name) for name in ("prepare", "extract"))
    return TrainedModel.open(trained, Sources(prepare, extract), "test", "cpu")


def test_scores_are_those_of_the_model_whoever_makes_them_and_whatever_was_made_before(
    root: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = [Path(shutil.copytree(root, tmp_path / name)) for name in ("by-two", "killed")]
    assert evaluate(invoke, root, "--workers", 1).code == 0
    (expected,) = root.glob("tiny/evaluate/triplet.scan-*")
    found, opened = read_scores(scores_in(root), "test"), opened_model(root)
    data, captions = opened.data, np.arange(opened.data.num_captions)
    scored = score_split(opened.model, data, opened.device, 6, data.num_images, captions)
    np.testing.assert_allclose(found.matrix, scored, rtol=0, atol=1e-6)
    for name in ("image_ids", "caption_ids", "caption_image"):
        assert getattr(found, name).tolist() == getattr(data.split, name).tolist()

    assert evaluate(invoke, copies[0], "--workers", 2).code == 0
    make, made, left = Scoring.make, [], iter(range(2))

    def make_two(self: Scoring, worker: Any, part: Part, path: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        make(self, worker, part, path)
        made.append(part.name)

    def make_others(self: Scoring, worker: Any, part: Part, path: Path) -> None:
        make(self, worker, part, path)
        made.append(part.name)

    monkeypatch.setattr(Scoring, "make", make_two)
    assert evaluate(invoke, copies[1]).code == 130
    assert len(made) == 2
    (partial,) = copies[1].glob("tiny/evaluate/triplet.scan-*.partial")
    assert {path.stem for path in (partial / ".work" / PARTS).glob("*.arrays")} == set(made)
    before = set(made)
    made.clear()
    monkeypatch.setattr(Scoring, "make", make_others)
    assert evaluate(invoke, copies[1]).code == 0
    assert sorted(made) == sorted({"000000", "000001", "000002", "000003"} - before)  # blocks of 6 of 20 captions
    for each in copies:
        assert scores_in(each).parent.name == expected.name
        assert scores_in(each).read_bytes() == scores_in(root).read_bytes()
        assert read_manifest(scores_in(each).parent).outputs == read_manifest(expected).outputs


def test_parts_of_other_blocks_are_not_mixed_with_new_ones(
    root: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(shutil.copytree(root, tmp_path / "other"))
    assert evaluate(invoke, other).code == 0
    make, left = Scoring.make, iter(range(2))

    def make_two(self: Scoring, worker: Any, part: Part, path: Path) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        make(self, worker, part, path)

    with monkeypatch.context() as stopping:
        stopping.setattr(Scoring, "make", make_two)
        assert evaluate(invoke, root, block=5).code == 130
    outcome = evaluate(invoke, root)
    assert outcome.code == 0, outcome.err
    assert "scoring test: parts of another division are removed" in outcome.out
    assert scores_in(root).read_bytes() == scores_in(other).read_bytes()


def test_without_its_features_a_model_is_not_evaluated_and_one_line_says_what_is_missing(
    root: Path, invoke: Invoke
) -> None:
    (trained,) = root.glob("tiny/train/triplet.scan-*")
    features = existing_input(trained, read_manifest(trained), "extract")
    shutil.rmtree(features)
    outcome = evaluate(invoke, root)
    assert outcome.code == MissingInputError.exit_code
    expected = f"error: {features}, which train/{trained.name} was made from, is not there; run `itrpipe extract "
    assert outcome.err == f"{expected}--dataset tiny`\n"
    assert not list(root.glob("tiny/evaluate/triplet.scan-????????"))


def test_an_ensemble_reads_the_evaluations_of_its_members_and_no_features(root: Path, invoke: Invoke) -> None:
    assert evaluate(invoke, root).code == 0
    (features,) = root.glob("tiny/extract/precomp-*")
    shutil.rmtree(features)
    outcome = evaluate(invoke, root, "--ensemble-with", "vsepp")
    assert outcome.code == 0, outcome.err
    (folder,) = root.glob("tiny/evaluate/triplet.scan+vsepp-*")
    assert not (folder / "scores.h5").exists()
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
