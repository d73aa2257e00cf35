"""Evaluation: ensembles, COCO's protocols as printed, alignment, the matches of ECCV Caption."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import itrpipe
from itrpipe.analysis import settings as asked
from itrpipe.analysis.questions import eccv_caption
from itrpipe.config import parse_override
from itrpipe.evaluation import metrics as protocols
from itrpipe.evaluation.metrics import ranks
from itrpipe.features.embeddings import (
    EMBEDDINGS,
    SCORES,
    SplitEmbeddings,
    read_embeddings,
    read_scores,
    write_split_scores,
)
from itrpipe.pipeline.planning import Planner
from itrpipe.pipeline.steps import Step
from itrpipe.stages import evaluate
from itrpipe.stages.base import Need
from itrpipe.stages.evaluate import EvaluateSettings
from itrpipe.storage.artifact import (
    ALIGNMENT,
    ECCV_CAPTION,
    METRICS,
    RANKINGS,
    SUMMARY,
    read_manifest,
)
from itrpipe.training.settings import ModelName
from tests.chains import FEW, Invoke, copied, done, made, only, planned, refused, sets
from tests.conftest import TINY, TINY_AOQ

# Ensembles


def settings(model: str, *others: str) -> EvaluateSettings:
    first = ModelName("triplet", "vsrn", 0).named_by(model)
    own = {"method": first.method, "backbone": first.backbone, "seed": first.seed, "ensemble_with": others}
    given = {"features": "", "split": "test", "protocols": ["full"], "bootstrap_samples": 100, "interval_level": 0.95}
    return EvaluateSettings.model_validate({**given, "ranking_depth": 3, **own})


@pytest.mark.parametrize(
    ("first", "others", "label"),
    [
        ("aoq.vsrn", [], "aoq.vsrn"),
        ("aoq.vsrn", ["aoq.vsrn.s1"], "aoq.vsrn+vsrn.s1"),
        ("aoq.bfan", ["triplet.bfan"], "aoq.bfan+triplet.bfan"),
        ("aoq.bfan", ["scan.s0", "bfan.s02", "VSE++"], "aoq.bfan+bfan.s2+scan+vsepp"),
        ("aoq.vsrn.s1", ["vsrn.s0", "bfan"], "aoq.vsrn.s1+bfan.s1+vsrn.s0"),
    ],
)
def test_the_label_names_every_model_once_and_in_one_way(first: str, others: list[str], label: str) -> None:
    found = settings(first, *others)
    assert evaluate.EvaluateStage().label("recall", found) == label
    assert settings(found.models[0].label, *found.ensemble_with) == found
    own, *rest = label.split("+")  # it is enough to ask for the same evaluation
    assert settings(own, *rest) == found


def plan(root: Path, *texts: str) -> Step:
    overrides = [parse_override(text) for text in ("method=triplet", "backbone=bfan", *texts)]
    return Planner(root, "tiny", overrides).plan(Need("evaluate", "recall"))


def test_every_member_is_planned_and_the_order_of_names_changes_nothing(defined: Path) -> None:
    first = plan(defined, 'ensemble_with=["vsrn.s1", "scan"]')
    assert {name: (step.need.stage, step.location.label) for name, step in first.inputs.items()} == {
        "prepare": ("prepare", "files"),
        "train": ("train", "triplet.bfan"),
        "scored_train": ("evaluate", "triplet.bfan"),
        "train_2": ("train", "triplet.scan"),
        "scored_train_2": ("evaluate", "triplet.scan"),
        "train_3": ("train", "triplet.vsrn.s1"),
    }
    assert plan(defined, 'ensemble_with=["triplet.scan", "vsrn.s1"]').location == first.location
    assert plan(defined).location.fingerprint != first.location.fingerprint


def scores_of(root: Path, label: str) -> np.ndarray:
    path = only(root, f"train/{label}") / EMBEDDINGS
    if path.exists():
        return read_embeddings(path, "test").scores()
    return read_scores(only(root, f"evaluate/{label}") / SCORES, "test").matrix


def test_an_ensemble_ranks_the_mean_of_the_scores_of_models_of_both_kinds(
    pairs_chain: Path, tmp_path: Path, invoke: Invoke, recorded: Any
) -> None:
    root = copied(pairs_chain, tmp_path / "data")
    given = ("evaluate", "--method", "aoq", "--backbone", "vsepp", "--dataset", "tiny", "--data", root)
    given += (*sets(*TINY, *TINY_AOQ), "--ensemble-with", "triplet.vsepp", "--ensemble-with", "triplet.bfan")
    label = "aoq.vsepp+triplet.bfan+triplet.vsepp"
    assert planned(done(invoke(*given))) == ["evaluate/triplet.bfan", f"evaluate/{label}"]
    folder = only(root, f"evaluate/{label}")
    mean = np.mean([scores_of(root, each).astype(np.float64) for each in label.split("+")], axis=0)
    written = pq.read_table(folder / RANKINGS).to_pydict()
    shown = np.array([written["scores"][row] for row in range(len(mean))])
    np.testing.assert_allclose(shown, -np.sort(-mean, axis=1)[:, : shown.shape[1]], atol=1e-6)
    metrics = json.loads((folder / METRICS).read_text())["full"]
    expected = protocols.metrics(ranks(mean, np.repeat(np.arange(4), 5)))
    assert {name: each["value"] for name, each in metrics.items()} == pytest.approx(expected)
    manifest = read_manifest(folder)
    assert manifest.metrics["mean of"] == label.replace("+", " + ")
    assert manifest.settings["ensemble_with"] == ["triplet.bfan", "triplet.vsepp"]
    again = done(invoke(*given))  # finished, it shows its scores again
    assert "done in" not in again
    assert f"{metrics['rsum']['low']:.1f}–{metrics['rsum']['high']:.1f}" in again

    shutil.rmtree(folder)
    path = only(root, "evaluate/triplet.bfan") / SCORES
    whole = read_scores(path, "test")
    for what in ("image_ids", "caption_ids", "caption_image"):
        path.unlink()
        write_split_scores(path, "test", replace(whole, **{what: np.roll(getattr(whole, what), 1)}))
        recorded(path)
        refused(invoke(*given), 4, what.replace("_", " "))


# Of any embeddings


def evaluated(
    invoke: Invoke, folder: Path, count: int, *options: object, captions: int = 2, side: dict[str, Any] | None = None
) -> tuple[Path, SplitEmbeddings, str]:
    """Evaluates drawn vectors; gives the artifact, the vectors as they were read, and what was printed."""
    random = np.random.default_rng(0)
    owners = np.repeat(np.arange(count), captions)
    images = random.normal(size=(count, 16)).astype(np.float32)
    texts = images[owners] + 2 * random.normal(size=(len(owners), 16)).astype(np.float32)
    tables = {
        "image": {"image_id": [str(100 + row) for row in range(count)], "embedding": list(images)},
        "caption": {"caption_id": [str(1000 + row) for row in range(len(owners))], "embedding": list(texts)},
    }
    tables["caption"] |= {"image_id": [str(100 + row) for row in owners], **(side or {})}
    for name, table in tables.items():
        pq.write_table(pa.table(table), folder / f"{name}s.parquet")
    files = (folder / "images.parquet", folder / "captions.parquet")
    outcome = invoke("evaluate", "--embeddings", *files, "--data", folder / "data", f"--set={FEW}", *options)
    artifact = made(outcome)
    read = read_embeddings(only(folder / "data", "embeddings/given.test") / EMBEDDINGS, "test")
    return artifact, read, outcome.out


def figures(evaluated: Path, name: str = METRICS) -> Any:
    return json.loads((evaluated / name).read_text())


def test_one_call_over_the_vectors_gives_the_numbers_and_the_table_of_the_command(finished_chain: Path) -> None:
    root = finished_chain / "data"
    known = read_embeddings(only(root, "train/aoq.vsepp") / EMBEDDINGS, "test")
    found = itrpipe.evaluate(known.images, known.texts, known.caption_image, samples=100)
    folder = only(root, "evaluate/aoq.vsepp")
    full = figures(folder)["full"]
    assert {name: found.intervals[name] for name in full} == full
    assert {name: found.metrics[name] for name in full} == {name: each["value"] for name, each in full.items()}
    assert (folder / SUMMARY).read_text().startswith(f"{found}\n")
    rows = pq.read_table(folder / RANKINGS, columns=["direction", "rank"]).to_pylist()
    ranked = {"i2t": found.ranks.images_to_texts, "t2i": found.ranks.texts_to_images}
    for side, own in ranked.items():
        assert own.tolist() == [row["rank"] for row in rows if row["direction"] == side]


def test_coco_prints_and_records_five_folds_and_all_at_once(tmp_path: Path, invoke: Invoke) -> None:
    asked = [part for name in ("full", "coco-1k", "coco-5k") for part in ("--protocol", name)]
    folder, read, printed = evaluated(invoke, tmp_path, 5000, *asked, captions=1)
    written = figures(folder)
    for name, found in written.items():
        folds = protocols.protocol_folds(name, read.scores(), read.caption_image)
        each_fold = [protocols.metrics(fold) for fold, _ in folds]
        expected = {metric: np.mean([fold[metric] for fold in each_fold]) for metric in each_fold[0]}
        assert {metric: each["value"] for metric, each in found.items()} == pytest.approx(expected)
        assert read_manifest(folder).metrics[f"{name} rsum"] == pytest.approx(expected["rsum"], abs=0.00501)
        assert name in printed
        for each in (found[metric] for metric in (*protocols.RECALLS, "rsum")):
            assert {f"{each['value']:.1f}", f"{each['low']:.1f}–{each['high']:.1f}"} <= set(printed.split())
            assert each["low"] < each["high"]
    assert written["coco-1k"]["rsum"]["low"] > written["coco-5k"]["rsum"]["high"]
    assert written["coco-5k"] == written["full"]
    planned, _, _ = Planner(Path("nowhere"), "coco").configure(Need("evaluate", "recall"))
    assert {*planned.protocols} == written.keys()  # pyright: ignore


def test_a_split_too_small_for_a_protocol_is_told_and_order_embeddings_have_no_alignment(
    tmp_path: Path, invoke: Invoke
) -> None:
    asked = ("--protocol", "full", "--protocol", "coco-1k", "--measure", "order")
    folder, _, _ = evaluated(invoke, tmp_path, 5, *asked)
    assert "coco-1k needs 5,000 images, test has 5" in read_manifest(folder).messages
    assert set(figures(folder)) == {"full"}
    assert not (folder / ALIGNMENT).exists()


def test_alignment_is_that_of_the_embeddings(finished_chain: Path) -> None:
    embedded = read_embeddings(only(finished_chain / "data", "train/aoq.vsepp") / EMBEDDINGS, "test")
    found = figures(only(finished_chain / "data", "evaluate/aoq.vsepp"), ALIGNMENT)
    own = np.linalg.norm(embedded.images[embedded.caption_image] - embedded.texts[:], axis=1)
    assert found["image_text"]["mean"] == pytest.approx(np.mean(own), abs=1e-5)
    pairs = {"image_text": 20, "text_text": 40, "images": 6, "texts": 6}
    assert {name: each["pairs"] for name, each in found.items()} == pairs


def test_eccv_caption_is_measured_on_request(tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = {
        "i2t": {100 + row: [1000 + 2 * row, 1001 + 2 * row] for row in range(6)},
        "t2i": {1000 + row: [100 + row // 2] for row in range(12)},
    }
    monkeypatch.setattr(eccv_caption, "ground_truth", lambda: (truth, truth, truth))
    monkeypatch.setattr(eccv_caption, "metadata", SimpleNamespace(version=lambda package: "1.0"))
    monkeypatch.setattr(asked, "ECCV_PACKAGE", "json")  # one that is there
    folder, read, _ = evaluated(invoke, tmp_path, 6, "--eccv")
    found, plain = figures(folder, ECCV_CAPTION), protocols.metrics(ranks(read.scores(), read.caption_image))
    assert found["cxc"]["i2t_r1"] == pytest.approx(plain["i2t_r1"])
    assert found["eccv_caption"]["t2i_map_at_r"] == pytest.approx(plain["t2i_r1"])
    monkeypatch.setattr(asked, "ECCV_PACKAGE", "eccv_caption_that_nobody_has")
    files = (tmp_path / "images.parquet", tmp_path / "captions.parquet")
    refused(invoke("evaluate", "--embeddings", *files, "--eccv", "--data", tmp_path / "data"), 3, "itrpipe[eccv]")


def test_intervals_are_of_the_level_that_was_asked_for(tmp_path: Path, invoke: Invoke) -> None:
    narrow, wide = (
        figures(evaluated(invoke, tmp_path, 40, *sets(f"interval_level={level}", "ranking_depth=1"))[0])["full"]["rsum"]
        for level in (0.5, 0.95)
    )
    assert wide["low"] < narrow["low"] < narrow["value"] < narrow["high"] < wide["high"]
