"""SSAMT through the command line: both phases, its analyses, and scores of the best candidates alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from itrpipe.analysis.phrases import FRAGMENT_SCHEMA, PhraseModel, matching_accuracy
from itrpipe.features.embeddings import SCORES, read_scores
from itrpipe.models.ssamt.network import Relevance
from itrpipe.storage.artifact import MATCHING, METRICS, PHRASES, read_manifest
from itrpipe.training.data import Sources
from itrpipe.training.saved import load_model
from tests.chains import FEW, SSAMT, Invoke, copied, done, history, only, sets


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
    sources = Sources(*(ssamt_chain / "tiny" / name / read[name].name for name in ("prepare", "extract", "parse")))
    opened = PhraseModel.open(load_model(folder), sources, "train", "cpu")
    found = matching_accuracy(opened)
    own, data = opened.data.caption_image, opened.data

    def scored(image: int, caption: int) -> tuple[Relevance, torch.Tensor]:
        texts = opened.texts(np.array([caption]))
        holds = data.matching(np.array([image]), np.array([caption]), *texts.phrase_tokens.shape[1:])
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


def test_every_word_of_an_example_is_scored_with_both_images(ssamt_chain: Path) -> None:
    table = pq.read_table(only(ssamt_chain, "evaluate/ssamt.ssamt") / PHRASES)
    assert table.schema.equals(FRAGMENT_SCHEMA)
    rows = table.to_pylist()
    for example in {row["example"] for row in rows}:
        own, wrong = (
            [row for row in rows if row["example"] == example and row["matched"] is side] for side in (True, False)
        )
        assert [row["starts"] for row in own] == [row["starts"] for row in wrong]
        assert own[0]["image_id"] != wrong[0]["image_id"]
        words = [row for row in own if row["kind"] == "word"]
        spoken = [row["text"][row["starts"][0] : row["ends"][0]] for row in words]
        assert "".join(spoken) == own[0]["text"].replace(" ", "")
        assert all(row["holds"] for row in own)  # the image's own captions say it
        assert not all(row["holds"] for row in wrong)
        assert {row["kind"] for row in own} >= {"word", "object"}
        assert all(-1.001 <= row["score"] <= 1.001 for row in rows)


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
