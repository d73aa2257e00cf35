"""Figures on mined lists, counted by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from itrpipe.mining import statistics
from itrpipe.mining.lists import NO_ROW, CandidateLists
from itrpipe.mining.statistics import QUANTILES, Figures, beaten_percent, mining_statistics, sentences, table_rows

POSITIVES = np.array([0.9, 0.5, 0.4], np.float32)
CAPTION_IMAGE = np.array([0, 0, 1])
LISTS = {
    "texts_for_images": CandidateLists(
        np.array([[2, NO_ROW], [0, 1]], np.int32), np.array([[0.5, -np.inf], [0.3, 0.1]], np.float32)
    ),
    "images_for_texts": CandidateLists(
        np.array([[1], [NO_ROW], [0]], np.int32), np.array([[0.7], [-np.inf], [0.6]], np.float32)
    ),
}
DROPPED = {"texts_for_images": {"max_score": 1}, "images_for_texts": {"max_score": 0, "duplicates": 1}}


def figures_of(lists, dropped, at_once: int = 100) -> dict[str, Figures]:
    """Figures that have seen lists, some anchors at a time, the first time with all that was dropped."""
    found = {}
    for name, each in lists.items():
        found[name] = Figures(*each.scores.shape)
        for start in range(0, len(each.scores), at_once):
            part = slice(start, min(start + at_once, len(each.scores)))
            seen = CandidateLists(each.candidates[part], each.scores[part])
            found[name].add(part, seen, dropped[name] if start == 0 else dict.fromkeys(dropped[name], 0))
    return found


def figures(dropped=DROPPED, lists=LISTS, positives=POSITIVES, owners=CAPTION_IMAGE, at_once: int = 100):
    return mining_statistics(figures_of(lists, dropped, at_once), positives, owners)


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
    assert found["candidates"] == {"texts_for_images": 3, "images_for_texts": 2}
    assert found["anchors"] == {"texts_for_images": 2, "images_for_texts": 3}
    assert found["anchors_without_candidates"] == {"texts_for_images": 0, "images_for_texts": 1}
    assert found["dropped"] == DROPPED
    assert json.loads(json.dumps(found)) == found


def test_tables_and_sentences_say_the_same():
    found = figures()
    rows = table_rows(found)
    assert {len(row) for row in rows} == {6}
    assert rows[0][1:] == ("lowest", "25 %", "median", "75 %", "highest")
    assert rows[1] == ("caption with its own image", "0.400", "0.450", "0.500", "0.700", "0.900")
    assert [row[0] for row in rows[2:]] == [
        "mined captions for images",
        "  own caption minus hardest",
        "mined images for captions",
        "  own image minus hardest",
    ]
    said = sentences(found)
    assert "captions for images: 1 of 4 candidates cut by max_score" in said
    assert "images for captions: 1 of 3 candidates cut by duplicates" in said
    assert "images for captions: the hardest scores at least as high as the own image in 50.0% of the pairs" in said
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    assert 2 + sum(widths) + 2 * 5 <= 80


@pytest.mark.parametrize("limit", ["absolute_margin", "relative_margin"])
def test_what_a_margin_cut_is_not_told_as_a_finding(limit: str):
    dropped = {"texts_for_images": {limit: 3}, "images_for_texts": {limit: 0}}
    found = figures(dropped)
    said = sentences(found)
    assert f"captions for images: 3 of 6 candidates cut by {limit}, with all that score above the own caption" in said
    assert f"images for captions: 0 of 2 candidates cut by {limit}" in said
    assert not any("at least as high" in each for each in said)
    assert beaten_percent(found, "texts_for_images") is beaten_percent(found, "images_for_texts") is None


def test_short_and_empty_lists_are_warned_of():
    dropped = {"texts_for_images": {"max_score": 1, "range_min": 4}, "images_for_texts": {}}
    said = [each for each in sentences(figures(dropped)) if "short" in each]
    assert said == [
        "warning: captions for images: lists are short, 1.5 of 4.0 candidates on average; loosen range_min or raise "
        "num_texts",
        "warning: images for captions: lists are short, 0.7 of 0.7 candidates on average, and 1 of 3 captions have "
        "none left",
    ]


def test_few_empty_lists_are_only_counted():
    facts = {
        "candidates": {"texts_for_images": 3_900, "images_for_texts": 40},
        "anchors": {"texts_for_images": 400, "images_for_texts": 4},
        "anchors_without_candidates": {"texts_for_images": 3, "images_for_texts": 0},
        "dropped": {"texts_for_images": {"duplicates": 100}, "images_for_texts": {}},
        "hardest_text_beats_own_caption_percent": None,
        "hardest_image_beats_own_image_percent": None,
    }
    assert sentences(facts) == [
        "captions for images: 3,900 candidates for 400 images",
        "captions for images: 100 of 4,000 candidates cut by duplicates",
        "captions for images: 3 of 400 images have none left",
        "images for captions: 40 candidates for 4 captions",
    ]


def test_an_index_and_a_second_model_are_told_of():
    found = figures()
    plain = sentences(found)
    found["search"] = {
        "recall": {"texts_for_images": 0.98765, "images_for_texts": 1.0},
        "num_probes": {"texts_for_images": 400, "images_for_texts": 3},
        "num_lists": {"texts_for_images": 1_600, "images_for_texts": 12},
    }
    found["rescored"] = {"model": "triplet.bfan", "texts": 300, "images": 60}
    assert sentences(found) == [
        "captions for images: found 98.8% of what exact search finds, searching 400 of 1,600 clusters",
        "images for captions: found 100.0% of what exact search finds, searching 3 of 12 clusters",
        "the hardest 300 texts and 60 images of each list are in the order of triplet.bfan, whose scores these are",
        *plain,
    ]


def test_lists_without_any_candidate():
    empty = {
        name: CandidateLists(np.full_like(lists.candidates, NO_ROW), np.full_like(lists.scores, -np.inf))
        for name, lists in LISTS.items()
    }
    found = figures(lists=empty)
    assert found["texts_for_images"] is None
    assert found["hardest_text_beats_own_caption_percent"] is None
    assert table_rows(found)[2] == ("mined captions for images", *["–"] * 5)
    assert not any("at least as high" in sentence for sentence in sentences(found))


def test_captions_of_no_image_have_no_margin():
    lists = dict(LISTS)
    lists["images_for_texts"] = CandidateLists(
        np.array([[1], [NO_ROW], [0], [1]], np.int32), np.array([[0.7], [-np.inf], [0.6], [5.0]], np.float32)
    )
    found = figures(lists=lists, positives=np.append(POSITIVES, np.float32("nan")), owners=np.append(CAPTION_IMAGE, -1))
    without = figures()
    for name in ("positive_score", "texts_for_images_margin", "images_for_texts_margin"):
        assert found[name] == without[name]
    assert found["hardest_image_beats_own_image_percent"] == without["hardest_image_beats_own_image_percent"]
    assert found["images_for_texts"]["maximum"] == 5.0
    assert (found["candidates"]["images_for_texts"], found["anchors"]["images_for_texts"]) == (3, 4)


def drawn_lists(anchors: int, width: int) -> CandidateLists:
    """Falling scores, and lists that end anywhere."""
    generator = np.random.default_rng(anchors)
    scores = -np.sort(-generator.standard_normal((anchors, width)).astype(np.float32), axis=1)
    beyond = np.arange(width) >= generator.integers(0, width + 1, anchors)[:, None]
    return CandidateLists(
        np.where(beyond, NO_ROW, generator.integers(0, 900, scores.shape)).astype(np.int32),
        np.where(beyond, -np.inf, scores).astype(np.float32),
    )


@pytest.mark.parametrize("at_once", [1, 7, 64, 300])
@pytest.mark.parametrize("sampled", [3_000, 2_999, 1_500, 1_000, 40, 1])
def test_quantiles_are_of_all_scores_or_of_every_nth_anchor(monkeypatch, sampled, at_once):
    monkeypatch.setattr(statistics, "SAMPLED_SCORES", sampled)
    lists = drawn_lists(300, 10)
    (found,) = figures_of({"texts_for_images": lists}, {"texts_for_images": {}}, at_once).values()
    step = -(-3_000 // sampled)
    chosen = lists.scores[::step]
    every, sample = (each[np.isfinite(each)] for each in (lists.scores, chosen))
    expected = dict(zip(QUANTILES, np.quantile(sample, list(QUANTILES.values())), strict=True))
    expected |= {"minimum": every.min(), "maximum": every.max()}
    assert found.quantiles() == pytest.approx(expected, abs=1e-4)
    assert found.candidates == len(every)
    assert found.empty == int((lists.counts == 0).sum())
    if step > 100:
        assert expected["minimum"] < sample.min()


def test_a_sample_without_candidates_leaves_the_ends(monkeypatch):
    monkeypatch.setattr(statistics, "SAMPLED_SCORES", 2)
    lists = CandidateLists(np.array([[NO_ROW], [3], [1], [2]], np.int32), np.array([[-np.inf], [0.5], [0.1], [0.3]]))
    (found,) = figures_of({"texts_for_images": lists}, {"texts_for_images": {}}).values()
    quantiles = found.quantiles()
    assert quantiles is not None
    assert (quantiles["minimum"], quantiles["maximum"]) == (0.1, 0.5)
    assert quantiles["minimum"] <= quantiles["median"] <= quantiles["maximum"]
