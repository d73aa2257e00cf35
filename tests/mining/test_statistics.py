"""ListFigures on mined lists, counted by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from itrpipe.datasets.truth import PairSet
from itrpipe.mining import statistics
from itrpipe.mining.lists import NO_ROW, CandidateLists, matching, slices
from itrpipe.mining.statistics import QUANTILES, ListFigures, mining_statistics, sentences, summary

POSITIVES = np.array([0.9, 0.5, 0.4, np.nan], np.float32)  # the last caption is nobody's
CAPTION_IMAGE = np.array([0, 0, 1, -1])
LISTS = {
    "texts_for_images": CandidateLists(
        np.array([[2, NO_ROW], [0, 1]], np.int32), np.array([[0.5, -np.inf], [0.3, 0.1]], np.float32)
    ),
    "images_for_texts": CandidateLists(
        np.array([[1], [NO_ROW], [0], [1]], np.int32), np.array([[0.7], [-np.inf], [0.6], [5.0]], np.float32)
    ),
}
DROPPED = {"texts_for_images": {"max_score": 1}, "images_for_texts": {"max_score": 0, "duplicates": 1}}


def figures_of(lists, dropped, at_once: int = 100) -> dict[str, ListFigures]:
    """ListFigures that have seen lists, some anchors at a time, the first time with all that was dropped."""
    found = {}
    for name, each in lists.items():
        found[name] = ListFigures(*each.scores.shape)
        for part in slices(len(each.scores), at_once):
            seen = CandidateLists(each.candidates[part], each.scores[part])
            found[name].add(part, seen, dropped[name] if part.start == 0 else dict.fromkeys(dropped[name], 0))
    return found


def figures(dropped=DROPPED, lists=LISTS, at_once: int = 100) -> dict[str, Any]:
    return mining_statistics(figures_of(lists, dropped, at_once), POSITIVES, CAPTION_IMAGE) | {"judge": None}


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_quantiles_margins_and_counts(at_once):
    found = figures(at_once=at_once)
    assert found["positive_score"] == {
        "minimum": 0.4, "lower_quartile": 0.45, "median": 0.5, "upper_quartile": 0.7, "maximum": 0.9,
    }  # fmt: skip
    assert [found["texts_for_images"][name] for name in ("minimum", "median", "maximum")] == [0.1, 0.3, 0.5]
    # Pairs (0.9, 0.5), (0.5, 0.5) of image 0 and (0.4, 0.3) of image 1.
    assert [found["texts_for_images_margin"][name] for name in ("minimum", "median", "maximum")] == [0.0, 0.1, 0.4]
    assert found["hardest_text_beats_own_caption_percent"] == 33.33
    # Caption 1 has no candidate: margins 0.2 and -0.2.
    assert [found["images_for_texts_margin"][name] for name in ("minimum", "median", "maximum")] == [-0.2, 0.0, 0.2]
    assert found["hardest_image_beats_own_image_percent"] == 50.0
    assert found["images_for_texts"]["maximum"] == 5.0
    assert found["candidates"] == {"texts_for_images": 3, "images_for_texts": 3}
    assert found["anchors"] == {"texts_for_images": 2, "images_for_texts": 4}
    assert found["anchors_without_candidates"] == {"texts_for_images": 0, "images_for_texts": 1}
    assert found["dropped"] == DROPPED
    assert "captions for images: 1 of 4 candidates cut by max_score" in sentences(found)
    assert json.loads(json.dumps(found)) == found


def test_lists_without_any_candidate():
    empty = {
        name: CandidateLists(*map(np.full_like, vars(each).values(), (NO_ROW, -np.inf))) for name, each in LISTS.items()
    }
    found = figures(lists=empty)
    assert found["texts_for_images"] is found["hardest_text_beats_own_caption_percent"] is None
    lines = list(summary(found | {"duplicates": {"captions_of_other_images": 3}}))
    assert lines[2].split() == ["mined", "captions", "for", "images", *"–––––"]
    assert lines[-1] == "  3 captions belong word for word to another image too"
    assert not any("at least as high" in sentence for sentence in sentences(found))


def test_what_is_right_after_all_is_counted_among_what_was_judged_and_places_without_a_candidate_are_not():
    truth = PairSet.of(np.array([2, 0]), np.array([0, 1]), 2)
    found = figures_of(LISTS, DROPPED)
    for name, lists in LISTS.items():
        found[name].judge(lists.candidates >= 0, matching(truth.has, name, slice(0, len(lists.scores)), lists))
    right = {name: found[name].right_after_all() for name in LISTS}
    assert right["texts_for_images"]["top_1"] == {"judged": 2, "percent": 100.0}
    assert right["texts_for_images"]["top_10"] == {"judged": 3, "percent": pytest.approx(66.6667)}
    assert right["images_for_texts"]["top_1"] == {"judged": 3, "percent": pytest.approx(66.6667)}
    nobody = figures()
    assert nobody["right_after_all"]["texts_for_images"]["top_1"] == {"judged": 0, "percent": None}
    assert "nobody has judged" in sentences(nobody)[-1]
    # An image from outside the dataset, behind the two that it has, is not the first one of the next caption.
    outside = CandidateLists(np.array([[2]], np.int32), np.ones((1, 1), np.float32))
    assert not matching(truth.has, "images_for_texts", slice(1, 2), outside).any()


@pytest.mark.parametrize("at_once", [7, 300])
@pytest.mark.parametrize("sampled", [3_000, 2_999, 1_000, 1])
def test_quantiles_are_of_all_scores_or_of_every_nth_anchor(monkeypatch, sampled, at_once):
    monkeypatch.setattr(statistics, "SAMPLED_SCORES", sampled)
    generator = np.random.default_rng(300)
    scores = -np.sort(-generator.standard_normal((300, 10)).astype(np.float32), axis=1)
    scores[np.arange(10) >= generator.integers(0, 11, 300)[:, None]] = -np.inf
    lists = CandidateLists(np.where(np.isinf(scores), NO_ROW, 7), scores)
    (found,) = figures_of({"texts_for_images": lists}, {"texts_for_images": {}}, at_once).values()
    every, sample = (each[np.isfinite(each)] for each in (scores, scores[:: -(-3_000 // sampled)]))
    ends = {"minimum": every.min(), "maximum": every.max()}
    sample = sample if len(sample) else np.array([*ends.values()])  # of a sample without candidates, the ends of all
    expected = dict(zip(QUANTILES, np.quantile(sample, list(QUANTILES.values())), strict=True)) | ends
    assert found.quantiles() == pytest.approx(expected, abs=1e-4)
    assert (found.candidates, found.anchors_without_candidates) == (
        len(every),
        int((lists.candidates == NO_ROW).all(axis=1).sum()),
    )
