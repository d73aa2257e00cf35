"""Draws of a model trained with FNE and how many are correct matches, against counting by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from itrpipe.analysis.questions import false_negatives
from itrpipe.analysis.questions.false_negatives import (
    DIRECTIONS,
    TrainingSet,
    analyse,
    drawn_matches,
    hardest_candidates,
)
from itrpipe.evaluation.metrics import roc_area
from itrpipe.features.embeddings import INNER_PRODUCT, SplitEmbeddings
from itrpipe.learning.false_negatives import estimate_gaussians, false_negative_probability
from itrpipe.methods.fne.declaration import Fne
from itrpipe.methods.fne.method import draw, sampling_weights

FAMILIES, PER_FAMILY, PER_IMAGE, WIDTH = 12, 3, 2, 24
IMAGES = FAMILIES * PER_FAMILY
FAMILY = np.repeat(np.arange(FAMILIES), PER_FAMILY)
CAPTION_IMAGE = np.repeat(np.arange(IMAGES), PER_IMAGE)
SETTINGS = Fne(
    memory_size=20, min_count=0, prior=0.3, mask_same_image=True, posterior_scale=4.0, window=False, monotone=True
)


def embeddings() -> SplitEmbeddings:
    """Images of one family look alike, and the captions of each are true of all of them."""
    rng = np.random.default_rng(0)
    images = (2 * rng.standard_normal((FAMILIES, WIDTH)))[FAMILY] + 0.4 * rng.standard_normal((IMAGES, WIDTH))
    texts = images[CAPTION_IMAGE] + 1.2 * rng.standard_normal((len(CAPTION_IMAGE), WIDTH))
    images, texts = (
        (each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32) for each in (images, texts)
    )
    ids = np.array([f"image{row}" for row in range(IMAGES)])
    captions = np.array([f"caption{row}" for row in range(len(CAPTION_IMAGE))])
    return SplitEmbeddings(images, ids, texts, captions, CAPTION_IMAGE, INNER_PRODUCT)


def truth() -> list[np.ndarray]:
    return [np.flatnonzero(FAMILY[image] == FAMILY) for image in CAPTION_IMAGE]


@pytest.fixture(scope="module")
def data() -> TrainingSet:
    found = embeddings()
    return TrainingSet.of(found, found.image_ids, truth())


def distributions(data: TrainingSet, batch_size: int = 16):
    found = data.embeddings
    return estimate_gaussians(found.images, found.texts, found.caption_image, batch_size=batch_size)


def test_matches_are_those_of_the_truth_though_images_are_left_out(data):
    captions, images = np.meshgrid(np.arange(len(CAPTION_IMAGE)), np.arange(IMAGES), indexing="ij")
    np.testing.assert_array_equal(data.is_match(captions, images), FAMILY[CAPTION_IMAGE][:, None] == FAMILY[None])
    found = embeddings()
    kept = np.flatnonzero(np.arange(IMAGES) % 2 == 0)
    theirs = np.flatnonzero(np.isin(CAPTION_IMAGE, kept))
    part = SplitEmbeddings(
        found.images[kept], found.image_ids[kept], found.texts[theirs], found.caption_ids[theirs],
        np.searchsorted(kept, CAPTION_IMAGE[theirs]), INNER_PRODUCT,
    )  # fmt: skip
    smaller = TrainingSet.of(part, found.image_ids, [truth()[row] for row in theirs])
    expected = FAMILY[CAPTION_IMAGE[theirs]][:, None] == FAMILY[kept][None]
    np.testing.assert_array_equal(smaller.is_match(np.arange(len(theirs))[:, None], np.arange(len(kept))), expected)


def test_shares_of_true_matches_are_those_of_many_draws(data, monkeypatch):
    monkeypatch.setattr(false_negatives, "BATCHES", 1)
    gaussians = distributions(data)
    found = drawn_matches(data, SETTINGS, gaussians, 16)
    rows = np.random.default_rng(0).permutation(len(CAPTION_IMAGE))[:36]  # of a batch, and of the memory
    images, texts = data.embeddings.images[CAPTION_IMAGE[rows]], data.embeddings.texts[rows]
    torch.manual_seed(0)
    for direction, anchors, candidates in zip(DIRECTIONS, (images, texts), (texts, images), strict=True):
        similarities = torch.from_numpy(anchors[:16] @ candidates.T)
        excluded = torch.from_numpy(CAPTION_IMAGE[rows[:16]][:, None] == CAPTION_IMAGE[rows][None])
        weights = sampling_weights(similarities, similarities.diagonal(), excluded, gaussians, SETTINGS)
        family = FAMILY[CAPTION_IMAGE[rows]]
        counts = np.mean([family[draw(weights)[0].numpy()] == family[:16] for _ in range(3000)])
        assert found[direction]["drawn"] == pytest.approx(100 * counts, abs=1.5)
        hardest = similarities.masked_fill(excluded, -2).argmax(dim=1).numpy()
        assert found[direction]["hardest"] == pytest.approx(100 * (family[hardest] == family[:16]).mean(), abs=1e-4)
        assert found[direction]["anchors"] == 16
        chance = false_negative_probability(similarities, gaussians, SETTINGS.prior, monotone=True)[~excluded].numpy()
        match = (family == family[:16, None])[~excluded.numpy()]
        assert found[direction]["roc_area"] == pytest.approx(roc_area(chance, match), abs=1e-6)


def test_hardest_candidates_are_those_of_the_whole_split(data):
    gaussians = distributions(data)
    for direction in DIRECTIONS:
        table = hardest_candidates(data, direction, SETTINGS, gaussians).to_pylist()
        scores = data.embeddings.images @ data.embeddings.texts.T
        scores[np.arange(IMAGES)[:, None] == CAPTION_IMAGE[None]] = -np.inf
        of_images = direction == DIRECTIONS[0]
        scores = scores if of_images else scores.T
        assert len(table) == len(scores) * 20
        for row in table[::37]:
            anchor = int(row["anchor_id"].removeprefix("image").removeprefix("caption"))
            candidate = int(row["candidate_id"].removeprefix("image").removeprefix("caption"))
            assert row["similarity"] == pytest.approx(np.sort(scores[anchor])[::-1][row["rank"]], abs=1e-5)
            assert scores[anchor, candidate] == pytest.approx(row["similarity"], abs=1e-5)
            image, caption = (anchor, candidate) if of_images else (candidate, anchor)
            assert row["true_match"] == (FAMILY[image] == FAMILY[CAPTION_IMAGE[caption]])


def test_figures_are_json_and_say_how_well_the_probability_separates(data):
    figures, table = analyse(data, SETTINGS, 16)
    assert json.loads(json.dumps(figures)) == figures
    assert figures["matches"]["mean"] > figures["mismatches"]["mean"]
    assert table.num_rows == sum(each["candidates"] for each in figures["hardest"].values())
    for direction, each in figures["hardest"].items():
        rows = table.filter(np.array(table["direction"].to_pylist()) == direction)
        match = np.array(rows["true_match"].to_pylist())
        assert each["true_percent"] == pytest.approx(100 * match.mean())
        assert each["roc_area"] == pytest.approx(roc_area(rows["probability"].to_numpy(), match), abs=1e-6)
        assert each["roc_area"] > 0.9


def test_without_truth_the_shares_are_unknown_and_the_rest_stays(data):
    figures, table = analyse(TrainingSet(data.embeddings, None), SETTINGS, 16)
    json.dumps(figures, allow_nan=False)
    assert table["true_match"].null_count == table.num_rows
    for direction in DIRECTIONS:
        assert figures["drawn"][direction]["drawn"] is None
        assert figures["drawn"][direction]["anchors"] == 512
        assert figures["hardest"][direction]["roc_area"] is None
        assert figures["hardest"][direction]["likely_percent"] > 0


def test_anchors_that_nothing_can_be_drawn_for_do_not_count(data):
    """Without the fallback an anchor whose candidates all lie below the window draws nothing."""
    narrow = SETTINGS.model_copy(update={"window": True, "margin": 0.0, "fallback": False})
    found = drawn_matches(data, narrow, distributions(data), 16)
    for direction in DIRECTIONS:
        assert 50 < found[direction]["drawn"] <= 100
