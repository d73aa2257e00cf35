"""Draws of a model trained with FNE and how many are correct matches, against counting by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from itrpipe.analysis.questions import false_negatives
from itrpipe.analysis.questions.false_negatives import DIRECTIONS, TrainingSet, analyse, drawn_matches
from itrpipe.datasets.truth import write_truth
from itrpipe.evaluation.metrics import roc_area
from itrpipe.evaluation.tables import Number
from itrpipe.features.embeddings import INNER_PRODUCT, SplitEmbeddings
from itrpipe.learning.false_negatives import estimate_gaussians, false_negative_probability
from itrpipe.methods.fne.declaration import Fne
from itrpipe.methods.fne.method import draw, sampling_weights
from tests.analysis.families import FAMILY, IMAGES, MATCH, OWNERS, families

SETTINGS = Fne(
    memory_size=20, min_count=0, prior=0.3, mask_same_image=True, posterior_scale=4.0, window=False, monotone=True
)


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    return families()


@pytest.fixture
def gaussians(data: TrainingSet) -> Any:
    found = data.embeddings
    vectors = found.images, found.texts, found.caption_image
    return estimate_gaussians(*vectors, batch_size=16, mask_same_image=True, source="hardest", ties="none", floor=True)


@pytest.mark.parametrize("known", [True, False])
def test_matches_are_those_of_the_images_that_were_trained_on(
    data: TrainingSet, known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, kept = data.embeddings, np.arange(0, IMAGES, 2)
    own = np.flatnonzero(OWNERS % 2 == 0)
    part = SplitEmbeddings(
        found.images[kept], found.image_ids[kept], found.texts[own], found.caption_ids[own], OWNERS[own] // 2,
        INNER_PRODUCT,
    )  # fmt: skip
    if known:
        images = found.image_ids.tolist()
        write_truth(tmp_path, {f"c{row}": [each for each in images if MATCH[int(each[1:]), row]] for row in own})
    monkeypatch.setattr(false_negatives, "read_embeddings", lambda path, split: part)
    whole = SimpleNamespace(split=lambda name: SimpleNamespace(image_ids=found.image_ids))
    monkeypatch.setattr(false_negatives.PreparedDataset, "open", lambda path: whole)
    seen = TrainingSet.open(tmp_path, tmp_path).is_match(np.arange(len(own)), np.arange(len(kept))[:, None])
    np.testing.assert_array_equal(seen, MATCH[kept][:, own] if known else None)


def test_shares_of_true_matches_are_those_of_many_draws(
    data: TrainingSet, gaussians: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(false_negatives, "BATCHES", 1)
    found = drawn_matches(data, SETTINGS, gaussians, 16)
    rows = np.random.default_rng(0).permutation(len(OWNERS))[:36]  # of a batch, and of the memory
    images, texts, family = data.embeddings.images[OWNERS[rows]], data.embeddings.texts[rows], FAMILY[OWNERS[rows]]
    torch.manual_seed(0)
    for direction, anchors, candidates in zip(DIRECTIONS, (images, texts), (texts, images), strict=True):
        similarities = torch.from_numpy(anchors[:16] @ candidates.T)
        excluded = torch.from_numpy(OWNERS[rows[:16]][:, None] == OWNERS[rows])
        weights = sampling_weights(similarities, similarities.diagonal(), excluded, gaussians, SETTINGS)
        counts = np.mean([family[draw(weights)[0].numpy()] == family[:16] for _ in range(3000)])
        hardest = similarities.masked_fill(excluded, -2).argmax(dim=1).numpy()
        chance = false_negative_probability(similarities, gaussians, SETTINGS.prior, monotone=True)[~excluded].numpy()
        match = (family == family[:16, None])[~excluded.numpy()]
        assert found[direction] == {
            "drawn": pytest.approx(100 * counts, abs=1.5),
            "hardest": pytest.approx(100 * (family[hardest] == family[:16]).mean(), abs=1e-4),
            "anchors": 16,
            "roc_area": pytest.approx(roc_area(chance, match), abs=1e-6),
        }


@pytest.mark.parametrize("known", [True, False])
def test_hardest_candidates_are_those_of_the_whole_split(data: TrainingSet, gaussians: Any, known: bool) -> None:
    figures, table = analyse(data if known else TrainingSet(data.embeddings, None), SETTINGS, 16)
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    for row, name in enumerate(("matches", "mismatches")):
        assert figures[name] == pytest.approx(
            {key: each[row].item() for key, each in vars(gaussians).items()}, abs=1e-5
        )
    scores = data.embeddings.images @ data.embeddings.texts.T
    scores[np.arange(IMAGES)[:, None] == OWNERS] = -np.inf
    for direction, matrix, true in ((DIRECTIONS[0], scores, MATCH), (DIRECTIONS[1], scores.T, MATCH.T)):
        rows = [row for row in table.to_pylist() if row["direction"] == direction]
        assert [row["rank"] for row in rows] == [*range(20)] * len(matrix)
        for number, row in enumerate(rows):
            anchor, candidate = number // 20, int(row["candidate_id"][1:])
            assert row["anchor_id"][1:] == str(anchor)
            assert row["similarity"] == pytest.approx(np.sort(matrix[anchor])[-1 - row["rank"]], abs=1e-5)
            assert matrix[anchor, candidate] == pytest.approx(row["similarity"], abs=1e-5)
            assert row["true_match"] == (true[anchor, candidate] if known else None)
        similarity, likely = (np.array([row[name] for row in rows]) for name in ("similarity", "probability"))
        expected = false_negative_probability(torch.from_numpy(similarity), gaussians, SETTINGS.prior, monotone=True)
        np.testing.assert_allclose(likely, expected, atol=1e-6)
        told: dict[str, Any] = dict.fromkeys(("true_percent", "roc_area", "roc_area_of_similarity"))
        if known:
            match = np.array([row["true_match"] for row in rows])
            told = {"true_percent": 100 * match.mean(), "roc_area": roc_area(likely, match)}
            told |= {"roc_area_of_similarity": roc_area(similarity, match)}
        told |= {"candidates": len(rows), "likely_percent": 100 * np.mean(likely > 0.5)}
        assert figures["hardest"][direction] == pytest.approx(told, abs=1e-5)
        cells = false_negatives.SHOWN[direction == DIRECTIONS[1]].cells(figures).values()
        assert [cell.digits for cell in cells if isinstance(cell, Number)] == ([1, 1, 3, 1, 3, 3] if known else [1])
        assert figures["drawn"][direction]["anchors"] == 512
        assert (figures["drawn"][direction]["drawn"] is None) != known


def test_anchors_that_nothing_can_be_drawn_for_do_not_count(data: TrainingSet, gaussians: Any) -> None:
    """Without the fallback an anchor whose candidates all lie below the window draws nothing."""
    narrow = SETTINGS.model_copy(update={"window": True, "margin": 0.0, "fallback": False})
    for each in drawn_matches(data, narrow, gaussians, 16).values():
        assert 50 < each["drawn"] <= 100
