"""Models that score pairs, through the chain: AsCL, SSAMT, cross-attention; what every evaluation must be true to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import h5py
import numpy as np
import pytest
import torch

from itrpipe.analysis.phrases import PhraseModel, matching_accuracy
from itrpipe.analysis.questions.alignment import VECTORS, mean_vectors
from itrpipe.config import parse_override
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.errors import DataError, MissingInputError
from itrpipe.evaluation import metrics
from itrpipe.features.embeddings import EMBEDDINGS, SCORES, SplitScores, read_scores, write_split_scores
from itrpipe.models.ascl.network import AsclEncoder
from itrpipe.models.ssamt.network import Relevance
from itrpipe.pipeline.planning import Planner
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.stages.base import Need
from itrpipe.stages.evaluate import EvaluateSettings
from itrpipe.storage.artifact import ALIGNMENT, MATCHING, METRICS, read_manifest
from itrpipe.testing.backbones import above_chance
from itrpipe.training.data import Sources, open_split, reopened
from itrpipe.training.encoding import Scoring, SplitEncoder
from itrpipe.training.saved import load_model
from tests.chains import (
    ASCL,
    FEW,
    MODELS,
    SSAMT,
    ChainModel,
    Invoke,
    copied,
    done,
    history,
    interrupted,
    only,
    planned,
    refused,
    sets,
)
from tests.conftest import TINY, TINY_AOQ, Outcome
from tests.trained_model import TrainedModel

# AsCL


@pytest.fixture
def drawn(scenes_chain: Path, tmp_path: Path) -> Path:
    """This test's own copy."""
    return copied(scenes_chain, tmp_path / "data")


def train_ascl(invoke: Invoke, drawn: Path, method: str, *options: object) -> Outcome:
    small = [each for each in ASCL if "text_" not in each or "--text" not in options]
    return invoke("train", "--method", method, "--data", drawn, "--device", "cpu", *sets(*small), *options)


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
    (known, _) = get_args(EvaluateSettings.model_fields["protocols"].annotation)
    assert get_args(known) == tuple(metrics.PROTOCOLS)


def test_alignment_is_that_of_mean_regions_and_mean_words_which_nothing_can_search(
    ascl_chain: Path, invoke: Invoke
) -> None:
    found = json.loads((only(ascl_chain, "evaluate/ascl.ascl") / "alignment.json").read_text())
    assert found["vectors"] == VECTORS
    sources = Sources(only(ascl_chain, "prepare/scenes"), only(ascl_chain, "extract/scenes"))
    opened = TrainedModel.open(only(ascl_chain, "train/ascl.ascl"), sources, "test", "cpu")
    assert isinstance(opened.model, AsclEncoder)
    images, texts = mean_vectors(SplitEncoder(opened.model, opened.device, 5), opened.data)
    own = np.linalg.norm(images[opened.data.caption_image] - texts, axis=1)
    mean, variance = (pytest.approx(each, abs=1e-5) for each in (own.mean(), own.var()))
    assert found["image_text"] == {"pairs": 20, "mean": mean, "variance": variance}
    assert found["images"]["pairs"] == 6
    assert not list(ascl_chain.rglob(EMBEDDINGS))
    refused(invoke("mine-negatives", "--backbone", "ascl", "--set", "method=ascl", "--data", ascl_chain), 2)


@pytest.mark.parametrize(("method", "positives"), [("ascl-no-positives", False), ("ascl-triplet", True)])
def test_its_ablations_train(drawn: Path, invoke: Invoke, method: str, positives: bool) -> None:
    done(train_ascl(invoke, drawn, method))
    assert ("mean_loss_of_positives" in history(drawn, f"{method}.ascl")[0]) is positives


@pytest.mark.usefixtures("any_hub")
def test_saved_encoders_of_transformers_are_read_and_none_is_downloaded_for_a_plan(
    drawn: Path, invoke: Invoke, saved_encoders: Path
) -> None:
    chosen = ("--text", saved_encoders / "bert")
    refused(train_ascl(invoke, drawn, "ascl", *chosen), 2, "loss.max_tokens = 62", "40 tokens")
    done(train_ascl(invoke, drawn, "ascl", *chosen, *sets("loss.max_tokens=40")))
    assert (only(drawn, "train/ascl.ascl") / "text" / "tokenizer.json").is_file()
    done(train_ascl(invoke, drawn, "ascl", "--text", "nobody/no-such-model", *sets("loss.max_tokens=40"), "--dry-run"))


# SSAMT


def metrics_of(root: Path, label: str) -> dict[str, Any]:
    return json.loads((only(root, f"evaluate/{label}") / METRICS).read_text())["full"]


def test_the_chain_parses_trains_both_phases_and_evaluates(ssamt_chain: Path) -> None:
    assert only(ssamt_chain, "parse/rules.lexicon")
    assert {"loss_global", "loss_local", "loss_phrase"} <= history(ssamt_chain, "ssamt.ssamt")[0].keys()
    assert "loss_intra" in history(ssamt_chain, "ssamt-intra.ssamt")[0]
    # Pairs are scored by what is evaluated alone, and not by a model that another one starts from.
    assert [path.parent.name.rpartition("-")[0] for path in ssamt_chain.rglob(SCORES)] == ["ssamt.ssamt"]


def test_matching_accuracy_is_that_of_pairs_one_by_one(ssamt_chain: Path) -> None:
    written = json.loads((only(ssamt_chain, "evaluate/ssamt.ssamt") / MATCHING).read_text())
    assert {each["pairs"] for sides in written.values() for each in sides.values()} == {20}
    folder = only(ssamt_chain, "train/ssamt.ssamt")
    read = read_manifest(folder).inputs
    dataset = ssamt_chain / "tiny"
    prepare, extract, parse = (dataset / name / read[name].name for name in ("prepare", "extract", "parse"))
    saved: Any = load_model(folder)
    data: Any = reopened(saved, Sources(prepare, extract, parse), ["train"])["train"]
    opened = PhraseModel(saved.model, data, torch.device("cpu"))
    found = matching_accuracy(opened)
    own, data = opened.data.caption_image, opened.data

    def scored(image: int, caption: int) -> tuple[Relevance, torch.Tensor]:
        texts = opened.texts(np.array([caption]))
        holds = data.captions.matching(np.array([image]), np.array([caption]), *texts.phrase_tokens.shape[1:])
        return opened.model.relevance(opened.images(np.array([image])), texts), holds[0]

    with torch.inference_mode():
        intra = opened.model.intra_matrix(opened.images(own), opened.texts(np.arange(60))).numpy()
        for side in ("i2t", "t2i"):
            right: dict[str, list[bool]] = {"global": [], "local": [], "phrase": []}
            for caption, image in enumerate(own):
                others = np.flatnonzero(own != image)
                wrong = image, int(others[intra[caption, others].argmax()])
                if side == "t2i":
                    wrong = int(own[others[intra[others, caption].argmax()]]), caption
                (positive, _), (negative, holds) = scored(image, caption), scored(*wrong)
                sums = [float(each.text_fragments + each.regions) for each in (positive, negative)]
                right["global"].append(float(positive.whole) > float(negative.whole))
                right["local"].append(sums[0] > sums[1])
                real = negative.fragments_real[0]
                inside, outside = negative.fragments[0][holds & real], negative.fragments[0][~holds & real]
                if len(inside) and len(outside):
                    right["phrase"].append(float(inside.mean()) > float(outside.mean()))
            shares: dict[str, Any] = {name: 100 * np.mean(each) for name, each in right.items()}
            assert found["hardest"][side] == pytest.approx(shares | {"pairs": 60, "phrase_pairs": len(right["phrase"])})
            assert found["uniform"][side].keys() == found["hardest"][side].keys()
            assert found["uniform"][side]["pairs"] == 60


def test_other_evaluations_rank_by_the_first_phase_and_score_few_candidates(
    ssamt_chain: Path, tmp_path: Path, invoke: Invoke
) -> None:
    root = copied(ssamt_chain, tmp_path / "data")

    def evaluate(method: str, *options: object) -> None:
        done(invoke("evaluate", "--method", method, "--dataset", "tiny", "--data", root, *sets(*SSAMT, FEW), *options))

    full = metrics_of(root, "ssamt.ssamt")
    evaluate("ssamt", "--rerank", 20)
    assert metrics_of(root, "ssamt.ssamt.rerank20") == full
    evaluate("ssamt", "--rerank", 1)
    assert metrics_of(root, "ssamt.ssamt.rerank1").keys() == full.keys()
    evaluate("ssamt-intra")
    intra, inter = (
        read_scores(only(root, f"evaluate/{label}") / SCORES, "test").matrix
        for label in ("ssamt-intra.ssamt", "ssamt.ssamt")
    )
    assert np.abs(intra).max() <= 1.001
    assert 1e-3 < np.abs(inter - intra).max() <= 0.5 + 1e-3  # mu1 + 2 mu2


# Cross-attention


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
    write_split_scores(path, "val", written)
    write_split_scores(path, "test", example(2))
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


# Every kind of model


@pytest.mark.parametrize("label", MODELS)
def test_neither_the_order_of_images_nor_that_of_captions_matters(
    label: str, model_of: Callable[[str], ChainModel]
) -> None:
    model = model_of(label)
    written, saved, folders = model.scores(), load_model(model.trained), model.inputs()
    split, random = PreparedDataset.open(folders["prepare"]).split("test"), np.random.default_rng(0)
    images, captions = random.permutation(len(split.images)), random.permutation(len(split.captions))
    other = Split("test", split.images.take(images), split.captions.take(captions))
    features = Sources(folders["prepare"], folders.get("extract")).images(other)
    phrases = None
    if saved.settings.reads_phrases:
        phrases = CaptionPhrases.read(folders["parse"], saved.config["model"]["max_words"])
    data = open_split(other, features, saved.tokens, saved.settings, saved.images, phrases)
    again = TrainedModel(saved.model, data, torch.device("cpu"), saved.config["score_precision"]).scores(data, 7)
    assert written.shape == (4, 20)
    scale, tolerance = np.abs(written).max(), 1e-5 if saved.config["score_precision"] == "fp32" else 1e-2
    np.testing.assert_allclose(again / scale, written[images][:, captions] / scale, atol=tolerance)


def test_scores_that_know_their_pairs_are_told_from_noise() -> None:
    random, own = np.random.default_rng(0), np.repeat(np.arange(30), 5)
    scores = random.standard_normal((30, 150))
    assert not above_chance(scores, own)
    assert not above_chance(np.zeros((30, 150)), own)  # ties are below chance, however images are dealt
    scores[own, np.arange(150)] += 1
    assert set(above_chance(scores, own)) >= {"i2t_r1", "t2i_r1"}
