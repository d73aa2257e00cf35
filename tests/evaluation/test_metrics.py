"""Ranks, metrics and protocols against published values and definitions that look at one score after another."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.datasets.truth import PairSet
from itrpipe.errors import DataError
from itrpipe.evaluation import metrics as measured
from itrpipe.evaluation.metrics import (
    PROTOCOLS,
    Protocol,
    cross_retrieval,
    metrics,
    precision_of_matches,
    protocol_folds,
    random_recalls,
    ranks,
    ranks_of_matches,
    recall,
)

REFERENCE = Path(__file__).resolve().parents[1] / "reference" / "eval_metrics_matrix.npz"
KINDS = st.sampled_from([np.float16, np.float32, np.float64])


def drawn(seed: int, images: int, extra: int, levels: int, kind: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Scores of so many levels, and the images of captions, one at least of each."""
    random = np.random.default_rng(seed)
    caption_image = random.permutation(np.r_[np.arange(images), random.integers(0, images, extra)])
    return random.integers(-levels, levels, (images, len(caption_image))).astype(kind), caption_image


@pytest.mark.parametrize("system", ["a", "b", "ens"])
def test_metrics_are_those_of_the_published_code(system: str) -> None:
    with np.load(REFERENCE, allow_pickle=False) as arrays:
        known = dict(arrays)
    scores = (known["in_sims_a"] + known["in_sims_b"]) / 2 if system == "ens" else known[f"in_sims_{system}"]
    found = ranks(scores, np.arange(300) // 5)
    values, recalls = metrics(found), 0.0
    for side, own in (("i2t", found.images_to_texts), ("t2i", found.texts_to_images)):
        np.testing.assert_array_equal(own, known[f"out_{system}_{side}_ranks"])
        names = ("r1", "r5", "r10", "median_rank", "mean_rank")
        np.testing.assert_array_equal(
            np.array([values[f"{side}_{name}"] for name in names], np.float32), known[f"out_{system}_{side}"]
        )
        recalls += float(known[f"out_{system}_{side}"][:3].sum())
    assert values["rsum"] == pytest.approx(recalls, abs=1e-4)


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(0, 30), st.sampled_from([1, 3, 10_000]), KINDS)
def test_ranks_are_the_negatives_that_reach_the_best_match(
    seed: int, images: int, extra: int, levels: int, kind: type
) -> None:
    scores, caption_image = drawn(seed, images, extra, levels, kind)
    relevant = (caption_image == np.arange(images)[:, None]) | (np.random.default_rng(seed).random(scores.shape) < 0.2)

    def one_by_one(scores: np.ndarray, relevant: np.ndarray) -> list[int]:
        return [int((row[~own] >= row[own].max()).sum()) for row, own in zip(scores, relevant, strict=True)]

    found = ranks_of_matches(scores, *np.nonzero(relevant))
    assert found.images_to_texts.tolist() == one_by_one(scores, relevant)
    assert found.texts_to_images.tolist() == one_by_one(scores.T, relevant.T)
    own = caption_image == np.arange(images)[:, None]
    assert ranks(scores, caption_image).texts_to_images.tolist() == one_by_one(scores.T, own.T)
    captions, rows = np.nonzero(relevant.T)
    pairs = PairSet.of(captions, rows, images)
    by_pairs = ranks_of_matches(scores, pairs.image_rows, pairs.caption_rows)
    np.testing.assert_array_equal(by_pairs.images_to_texts, found.images_to_texts)


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(2, 12), st.sampled_from([3, 1000]))
def test_precision_is_what_its_definition_says(seed: int, queries: int, candidates: int, levels: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, levels, (queries, candidates)).astype(np.float32)
    relevant = random.random((queries, candidates)) < 0.4
    relevant[np.arange(queries), random.integers(0, candidates, queries)] = True
    matches = np.stack(np.nonzero(relevant))
    average, r_precision = precision_of_matches(scores, *matches[:, random.permutation(matches.shape[1])])
    for query, (row, truth) in enumerate(zip(scores, relevant, strict=True)):
        hits = truth[np.lexsort((truth, -row))][: truth.sum()]  # of equal scores, negatives first
        places = np.arange(1, len(hits) + 1)
        assert average[query] == pytest.approx((hits * np.cumsum(hits) / places).mean())
        assert r_precision[query] == pytest.approx(hits.mean())


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(0, 30), st.sampled_from([1, 3, 10_000]), KINDS)
def test_cross_retrieval_is_a_loop_over_pairs(seed: int, images: int, extra: int, levels: int, kind: type) -> None:
    scores, caption_image = drawn(seed, images, extra, levels, kind)
    found = cross_retrieval(scores, caption_image)
    for caption, image in enumerate(caption_image):
        own = scores[image, caption]
        image_rank = int((scores[:, caption] >= own).sum())
        text_rank = 1 + int((scores[image, caption_image != image] >= own).sum())
        scaled = math.ceil((image_rank - 1) * scores.shape[1] / images) + 1
        expected = {"image_rank": image_rank, "text_rank": text_rank, "cross_rank": max(scaled, text_rank)}
        assert {name: int(values[caption]) for name, values in found.items()} == expected


def test_small_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, caption_image = drawn(0, 60, 10, 50)
    pairs = caption_image, np.arange(70)
    whole = [*vars(ranks(scores, caption_image)).values(), *precision_of_matches(scores, *pairs)]
    monkeypatch.setattr(measured, "_BLOCK_VALUES", 210)
    small = [*vars(ranks(scores, caption_image)).values(), *precision_of_matches(scores, *pairs)]
    for one, other in zip(whole, small, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_without_an_order_are_refused(value: float) -> None:
    scores, owners = np.zeros((4, 8)), np.arange(8) // 2
    scores[1, 2] = scores[3, 7] = value
    for compute, pairs in ((ranks, (owners,)), (cross_retrieval, (owners,)), (precision_of_matches, (owners, owners))):
        with pytest.raises(DataError, match="2 of 32 scores"):
            compute(scores, *pairs)


def test_an_image_without_a_caption_is_refused() -> None:
    with pytest.raises(DataError, match="1 of 3 queries"):
        ranks(np.zeros((3, 4)), np.array([0, 0, 1, 1]))


@pytest.mark.parametrize(("images", "each"), [(3, 2), (4, 1), (12, 5), (30, 2)])
def test_chance_is_the_mean_of_random_orders(images: int, each: int) -> None:
    random, owners = np.random.default_rng(0), np.repeat(np.arange(images), each)
    found = [metrics(ranks(random.random((images, len(owners))), owners)) for _ in range(400)]
    for name, value in random_recalls(images, images * each).items():
        assert value == pytest.approx(np.mean([own[name] for own in found]), abs=12 if name == "rsum" else 5)


# Protocols


@pytest.fixture(scope="module")
def coco() -> tuple[np.ndarray, np.ndarray]:
    """5,020 images with one to seven captions each in any order, more than the protocols look at."""
    random = np.random.default_rng(2)
    caption_image = random.permutation(np.r_[np.arange(5020), np.repeat([3, 1500, 4999, 5010], 6)])
    scores = random.standard_normal((5020, len(caption_image)), dtype=np.float32)
    scores[caption_image, np.arange(len(caption_image))] += 4
    return scores, caption_image


@pytest.mark.parametrize(("name", "size"), [("coco-1k", 1000), ("coco-5k", 5000)])
def test_coco_takes_five_captions_of_each_of_5000_images(
    name: str, size: int, coco: tuple[np.ndarray, np.ndarray]
) -> None:
    scores, caption_image = coco
    folds = protocol_folds(name, scores, caption_image)
    assert len(folds) == 5000 // size
    for start, (found, rows) in zip(range(0, 5000, size), folds, strict=True):
        seen, columns = dict.fromkeys(range(start, start + size), 0), []
        for column, image in enumerate(caption_image.tolist()):
            if image in seen and seen[image] < 5:
                columns.append(column)
                seen[image] += 1
        assert rows.tolist() == (caption_image[columns] - start).tolist()
        assert metrics(found) == metrics(ranks(scores[start : start + size][:, columns], rows))


def test_the_full_protocol_ranks_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROTOCOLS, "three", Protocol("three folds of two", images=6, folds=3))
    scores, caption_image = drawn(1, 8, 9, 1000)
    ((found, rows),) = protocol_folds("full", scores, caption_image)
    assert metrics(found) == metrics(ranks(scores, caption_image))
    assert rows is caption_image
    assert [len(fold.images_to_texts) for fold, _ in protocol_folds("three", scores, caption_image)] == [2, 2, 2]
    assert recall(np.array([0, 4, 5, 9]), 5) == 50.0
