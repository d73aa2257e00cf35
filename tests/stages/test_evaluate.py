"""Evaluation through its stage: ensembles, COCO's protocols as printed, cross-retrieval ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.analysis.questions import eccv_caption
from itrpipe.analysis.questions.query_length import recall_by_length
from itrpipe.datasets.truth import write_truth
from itrpipe.errors import DataError
from itrpipe.evaluation import metrics as protocols
from itrpipe.evaluation.metrics import ranks
from itrpipe.features.embeddings import (
    EMBEDDINGS,
    INNER_PRODUCT,
    ORDER,
    SCORES,
    EmbeddingWriter,
    SplitScores,
    read_embeddings,
    read_scores,
    write_scores,
)
from itrpipe.pipeline.planning import Planner, parse_override
from itrpipe.pipeline.steps import Step
from itrpipe.progress import Reporter
from itrpipe.stages import evaluate
from itrpipe.stages.base import Input, Job, Need
from itrpipe.stages.evaluate import EvaluateSettings
from itrpipe.storage.artifact import ALIGNMENT, ECCV_CAPTION, METRICS, QUERY_LENGTH, RANKINGS, read_manifest
from itrpipe.training.settings import Model, settings_of
from tests.chains import Invoke, copied, done, only, planned, refused, sets
from tests.conftest import TINY, TINY_AOQ

GIVEN = {"features": "", "split": "test", "protocols": ["full"], "bootstrap_samples": 100, "interval_level": 0.95}


def settings(model: str, *others: str, **more: Any) -> EvaluateSettings:
    first = Model("triplet", "vsrn", 0).named_by(model)
    own = {"method": first.method, "backbone": first.backbone, "seed": first.seed, "ensemble_with": others}
    return EvaluateSettings.model_validate({**GIVEN, "ranking_depth": 3, **own, **more})


# Names of ensembles


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
    assert evaluate.Evaluate().label("recall", found) == label
    again = settings(found.models[0].label, *found.ensemble_with)
    assert again == found
    own, *rest = label.split("+")  # it is enough to ask for the same evaluation
    assert settings(own, *rest) == found


def plan(root: Path, *texts: str) -> Step:
    return Planner(root, "tiny", [parse_override(text) for text in texts]).plan(Need("evaluate", "recall"))


def test_every_member_is_planned_and_the_order_of_names_changes_nothing(defined: Path) -> None:
    first = plan(defined, "method=triplet", "backbone=bfan", 'ensemble_with=["vsrn.s1", "scan"]')
    assert {name: step.location.label for name, step in first.inputs.items()} == {
        "prepare": "files",
        "train": "triplet.bfan",
        "scored_train": "triplet.bfan",
        "train_2": "triplet.scan",
        "scored_train_2": "triplet.scan",
        "train_3": "triplet.vsrn.s1",
    }
    stages = {name: step.need.stage for name, step in first.inputs.items() if "train" in name}
    assert stages == {name: "evaluate" if name.startswith("scored_") else "train" for name in stages}
    second = plan(defined, "method=triplet", "backbone=bfan", 'ensemble_with=["triplet.scan", "vsrn.s1"]')
    assert second.location == first.location
    alone = plan(defined, "method=triplet", "backbone=bfan")
    assert alone.location.fingerprint != first.location.fingerprint


# Scores of ensembles


def scores_of(chain: Path, label: str) -> tuple[np.ndarray, np.ndarray]:
    path = only(chain, f"train/{label}") / EMBEDDINGS
    if path.exists():
        return (found := read_embeddings(path, "test")).scores(), found.caption_image
    found = read_scores(only(chain, f"evaluate/{label}") / SCORES, "test")
    return found.scores(), found.caption_image


def test_an_ensemble_ranks_the_mean_of_the_scores_of_models_of_both_kinds(
    pairs_chain: Path, tmp_path: Path, invoke: Invoke
) -> None:
    root = copied(pairs_chain, tmp_path / "data")
    given = ("evaluate", "--method", "aoq", "--backbone", "vsepp", "--dataset", "tiny", "--data", root)
    given += (*sets(*TINY, *TINY_AOQ), "--ensemble-with", "triplet.vsepp", "--ensemble-with", "triplet.bfan")
    label = "aoq.vsepp+triplet.bfan+triplet.vsepp"
    assert planned(done(invoke(*given))) == ["evaluate/triplet.bfan", f"evaluate/{label}"]
    folder = only(root, f"evaluate/{label}")
    parts = [scores_of(root, each) for each in label.split("+")]
    mean = np.mean([scores.astype(np.float64) for scores, _ in parts], axis=0)
    written = pq.read_table(folder / RANKINGS).to_pydict()
    shown = np.array([written["scores"][row] for row in range(len(mean))])
    np.testing.assert_allclose(shown, -np.sort(-mean, axis=1)[:, : shown.shape[1]], atol=1e-6)
    metrics = json.loads((folder / METRICS).read_text())["full"]
    expected = protocols.metrics(ranks(mean, parts[0][1]))
    assert {name: each["value"] for name, each in metrics.items()} == pytest.approx(expected)
    manifest = read_manifest(folder)
    assert manifest.metrics["mean of"] == label.replace("+", " + ")
    assert manifest.settings["ensemble_with"] == ["triplet.bfan", "triplet.vsepp"]
    again = done(invoke(*given))  # finished, it shows its scores again
    assert "done in" not in again
    assert f"{metrics['rsum']['low']:.1f}–{metrics['rsum']['high']:.1f}" in again
    shutil.rmtree(only(root, "extract/precomp"))
    shutil.rmtree(folder)
    done(invoke(*given))  # scores are read, and no features


def example(count: int, seed: int, captions: int = 2) -> SplitScores:
    random = np.random.default_rng(seed)
    caption_image = np.repeat(np.arange(count), captions)
    matrix = random.standard_normal((count, len(caption_image)), dtype=np.float32)
    matrix[caption_image, np.arange(len(caption_image))] += 2
    names = [f"{row:05}" for row in range(count)]
    return SplitScores(
        matrix,
        np.array(names),
        np.array([f"{names[image]}#{k}" for k, image in enumerate(caption_image)]),
        caption_image,
    )


def write_captions(folder: Path, split: str, scores: SplitScores) -> None:
    """A prepared dataset with the images and captions of these scores; caption c has 1 + c % 30 words."""
    images, owners = scores.image_ids.tolist(), scores.image_ids[np.sort(scores.caption_image)].tolist()
    sizes = pa.array([1] * len(images), pa.int32())
    shown = dict.fromkeys(("image_id", "file"), images) | {"split": [split] * len(images)}
    rows = {**shown, "width": sizes, "height": sizes, "sha256": images}
    pq.write_table(pa.table(rows), folder / "images.parquet", write_page_checksum=True)
    captions = scores.caption_ids.tolist()
    said = {"caption_id": captions, "image_id": owners, "split": [split] * len(captions), "text": captions}
    words = pa.array([["word"] * (1 + row % 30) for row in range(len(captions))], pa.list_(pa.string()))
    pq.write_table(pa.table({**said, "tokens": words}), folder / "captions.parquet", write_page_checksum=True)


def write_embeddings(path: Path, split: str, scores: SplitScores, measure: str) -> None:
    """Embeddings with these inner products: image n has a one in dimension n, a caption its scores with all images."""
    width, about = len(scores.matrix), (scores.image_ids, scores.caption_ids, scores.caption_image)
    with EmbeddingWriter(path, split, *about, width, measure) as writer:
        writer.write("images", 0, np.eye(width, dtype=np.float32))
        writer.write("texts", 0, scores.matrix.T)


UNTRAINED = SimpleNamespace(metrics={}, settings={"backbone": "vsepp", "method": "zero-shot", "loss": {}})
"""In the place of a manifest, of models of which nothing is asked but their scores."""


def job_on(folder: Path, chosen: EvaluateSettings, *models: SplitScores) -> Job:
    """A job that reads these scores and captions of one to thirty words, and no truth."""
    inputs = {"prepare": Input(folder / "prepare", None)}  # pyright: ignore
    for number, (model, scores) in enumerate(zip(chosen.models, models, strict=True), 1):
        name = "train" if number == 1 else f"train_{number}"
        read = (name,) if settings_of(model.backbone).embeds else (name, f"{evaluate.SCORED}{name}")
        for each in read:
            (folder / each).mkdir()
            inputs[each] = Input(folder / each, UNTRAINED)  # pyright: ignore
        if settings_of(model.backbone).embeds:
            measure = ORDER if model.backbone == "vsepp-order" else INNER_PRODUCT
            write_embeddings(folder / name / EMBEDDINGS, chosen.split, scores, measure)
        else:
            write_scores(folder / read[-1] / SCORES, chosen.split, scores)
    (folder / "prepare").mkdir()
    write_captions(folder / "prepare", chosen.split, models[0])
    made = folder / "made"
    made.mkdir()
    execution = evaluate.Execution(device="cpu", encode_block=16)
    return Job("tiny", "recall", chosen, execution, inputs, None, made, Reporter())


@pytest.mark.parametrize("what", ["image_ids", "caption_ids", "caption_image"])
def test_members_with_other_rows_are_refused(tmp_path: Path, what: str) -> None:
    first, second = example(5, 0), example(5, 1)
    getattr(second, what)[[0, 2]] = getattr(second, what)[[2, 0]]
    job = job_on(tmp_path, settings("bfan", "scan"), first, second)
    with pytest.raises(
        DataError, match=f"train_2: its {what.replace('_', ' ')} of split test are not those of .*train,"
    ):
        evaluate.Evaluate().run(job)
    assert not (job.folder / METRICS).exists()


# Protocols


def test_coco_prints_and_records_five_folds_and_all_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = example(5000, 0, captions=1)
    job = job_on(tmp_path, settings("bfan", "scan", protocols=["full", "coco-1k", "coco-5k"]), scores, scores)
    evaluate.Evaluate().run(job)
    printed, written = capsys.readouterr().out, json.loads((job.folder / METRICS).read_text())
    assert set(written) == {"full", "coco-1k", "coco-5k"}
    for name, found in written.items():
        folds = [
            protocols.metrics(each) for each, _ in protocols.protocol_folds(name, scores.matrix, scores.caption_image)
        ]
        expected = {metric: np.mean([fold[metric] for fold in folds]) for metric in folds[0]}
        assert {metric: each["value"] for metric, each in found.items()} == pytest.approx(expected)
        assert job.metrics[f"{name} rsum"] == pytest.approx(expected["rsum"], abs=0.00501)
        assert name in printed
        for each in (found[metric] for metric in (*protocols.RECALLS, "rsum")):
            assert {f"{each['value']:.1f}", f"{each['low']:.1f}–{each['high']:.1f}"} <= set(printed.split())
            assert each["low"] < each["high"]
    assert written["coco-1k"]["rsum"]["low"] > written["coco-5k"]["rsum"]["high"]
    assert written["coco-5k"] == written["full"]
    planned, _, _ = Planner(Path("nowhere"), "coco").configure_checked(Need("evaluate", "recall"))
    assert planned.protocols == ("full", "coco-1k", "coco-5k")  # pyright: ignore


def test_a_split_too_small_for_a_protocol_is_told_and_order_embeddings_have_no_alignment(tmp_path: Path) -> None:
    job = job_on(tmp_path, settings("vsepp-order", protocols=["full", "coco-1k"]), example(5, 0))
    evaluate.Evaluate().run(job)
    assert job.messages == ["coco-1k needs 5,000 images, test has 5"]
    assert set(json.loads((job.folder / METRICS).read_text())) == {"full"}
    assert not (job.folder / ALIGNMENT).exists()


# Recall by length, alignment, and the matches of ECCV Caption


def test_recall_by_length_counts_the_words_of_the_dataset_and_only_captions_that_were_scored(tmp_path: Path) -> None:
    whole = example(7, 0, captions=5)
    image_ids, caption_ids, own = whole.image_ids[2:], whole.caption_ids[10:], whole.caption_image[10:] - 2
    scores = SplitScores(whole.matrix[2:, 10:], image_ids, caption_ids, own)
    job = job_on(tmp_path, settings("vsepp"), scores)
    write_captions(tmp_path / "prepare", "test", whole)
    evaluate.Evaluate().run(job)
    words = (1 + np.arange(35) % 30)[10:]
    expected = recall_by_length(ranks(scores.matrix, own).texts_to_images, words)
    assert json.loads((job.folder / QUERY_LENGTH).read_text()) == expected


def test_alignment_is_that_of_the_embeddings(finished_chain: Path) -> None:
    embedded = read_embeddings(only(finished_chain / "data", "train/aoq.vsepp") / EMBEDDINGS, "test")
    found = json.loads((only(finished_chain / "data", "evaluate/aoq.vsepp") / ALIGNMENT).read_text())
    own = [
        np.linalg.norm(embedded.images[image] - text)
        for image, text in zip(embedded.caption_image, embedded.texts, strict=True)
    ]
    assert found["image_text"]["mean"] == pytest.approx(np.mean(own), abs=1e-5)
    pairs = {"image_text": 20, "text_text": 40, "images": 6, "texts": 6}
    assert {name: each["pairs"] for name, each in found.items()} == pairs


def test_eccv_caption_is_measured_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = example(2, 0)
    scores = SplitScores(scores.matrix, np.array(["1", "2"]), np.array(["1", "2", "3", "4"]), scores.caption_image)
    truth = {"i2t": {1: [1, 2], 2: [3, 4]}, "t2i": {1: [1], 2: [1], 3: [2], 4: [2]}}
    monkeypatch.setattr(eccv_caption, "ground_truth", lambda: (truth, truth, truth))
    monkeypatch.setattr(eccv_caption, "metadata", SimpleNamespace(version=lambda package: "1.0"))
    job = job_on(tmp_path, settings("vsepp", eccv=True), scores)
    evaluate.Evaluate().run(job)
    found, plain = (
        json.loads((job.folder / ECCV_CAPTION).read_text()),
        protocols.metrics(ranks(scores.matrix, scores.caption_image)),
    )
    assert found["cxc"]["i2t_r1"] == pytest.approx(plain["i2t_r1"])
    assert found["eccv_caption"]["t2i_map_at_r"] == pytest.approx(plain["t2i_r1"])


def test_the_missing_package_is_told_before_anything_is_made(
    defined: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "ECCV_PACKAGE", "eccv_caption_that_nobody_has")
    outcome = invoke("evaluate", "--backbone", "vsepp", "--eccv", "--dataset", "tiny", "--data", defined)
    refused(outcome, 3, "eccv_caption_that_nobody_has", "pip install itrpipe[eccv]")
    assert not list(defined.glob("tiny/*/"))


def test_intervals_are_of_the_level_that_was_asked_for(tmp_path: Path) -> None:
    ends, scores = [], example(40, 0)
    own = [[image] for image in scores.image_ids[scores.caption_image].tolist()]
    for level in (0.5, 0.95):
        folder = tmp_path / str(level)
        folder.mkdir()
        job = job_on(folder, settings("vsepp", interval_level=level), scores)
        write_truth(folder / "prepare", dict(zip(scores.caption_ids.tolist(), own, strict=True)))
        evaluate.Evaluate().run(job)
        metrics = json.loads((job.folder / METRICS).read_text())
        ends.append(
            [(each["low"], each["high"]) for each in (metrics["full"]["rsum"], metrics["oracle"]["t2i_map_at_r"])]
        )
    for (low, high), (lowest, highest) in zip(*ends, strict=True):
        assert lowest < low < high < highest
