"""Figures of benchmarks of hard negatives: against a naive loop, Winoground's arithmetic by hand, and intervals."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.analysis.questions.benchmarks import ScoredPairs, benchmark_figures, examples

GROUPS = ("on", "in", "")


def pairs_of(rows: list[tuple[float, float, int, str, str]]) -> ScoredPairs:
    scores, negatives, images, categories, groups = map(np.array, zip(*rows, strict=True))
    blind = np.full((len(rows), 3), 50.0)
    return ScoredPairs(scores.astype(np.float32), negatives.astype(np.float32), images, categories, groups, blind)


def test_what_can_be_guessed_without_the_image_counts_in_no_sum() -> None:
    pairs = pairs_of([(1.0, 0.0, row, "fair" if row % 2 else "odd", "") for row in range(40)])
    pairs.blind[::2, 1], pairs.scores[::2] = 100.0, -1.0
    found = benchmark_figures(pairs, ("pairs",), 100, 0.95)
    assert (found["guessed"], found["pairs"], found["accuracy"]["value"]) == (["odd"], 20, 100)
    assert found["categories"]["odd"]["blind"]["by"] == "naive Bayes"
    assert benchmark_figures(pairs.only(pairs.categories == "odd"), ("pairs",), 100, 0.95)["pairs"] == 20


def test_accuracy_and_macro_are_those_of_a_naive_loop() -> None:
    random = np.random.default_rng(0)
    rows = [
        (*random.integers(0, 4, 2).tolist(), int(random.integers(9)), random.choice(["a", "b"]), random.choice(GROUPS))
        for _ in range(60)
    ]
    figures = benchmark_figures(pairs_of(rows), ("pairs", "macro"), 100, 0.95)
    assert set(figures["categories"]) == {"a", "b"}
    for category, found in {"": figures, **figures["categories"]}.items():
        right: dict[str, list[bool]] = {name: [] for name in ("all", *GROUPS)}
        for score, negative, _image, own, group in rows:
            for name in ("all", group) if category in ("", own) else ():
                right[name].append(score > negative)  # ties are wrong
        assert found["pairs"] == len(right["all"])
        assert found["accuracy"]["value"] == pytest.approx(100 * np.mean(right["all"]))
        assert found["macro"]["value"] == pytest.approx(100 * np.mean([np.mean(right[name]) for name in ("on", "in")]))
        for name in ("accuracy", "macro"):
            assert found[name]["low"] <= found[name]["value"] <= found[name]["high"]


def test_without_groups_and_categories_there_is_one_figure() -> None:
    found = benchmark_figures(pairs_of([(1.0, 1.0, 0, "", ""), (2.0, 1.0, 1, "", "")]), ("pairs", "macro"), 100, 0.95)
    assert found.keys() == {"pairs", "images", "accuracy", "blind", "guessed", "categories"}
    assert found["categories"] == {}


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # s(c0, i0), s(c1, i0), s(c1, i1), s(c0, i1) -> text, image
        ((0.9, 0.1, 0.8, 0.2), (True, True)),
        ((0.9, 0.8, 0.5, 0.4), (True, False)),  # c1 fits image 0 better than image 1
        ((0.3, 0.4, 0.9, 0.2), (False, True)),  # image 0 fits caption 1 better
        ((0.1, 0.9, 0.2, 0.8), (False, False)),
        ((0.5, 0.5, 0.9, 0.1), (False, True)),  # a tie in the text
        ((0.5, 0.1, 0.9, 0.5), (True, False)),  # a tie in the images
    ],
)
def test_winoground_by_hand(scores: tuple[float, ...], expected: tuple[bool, bool]) -> None:
    right, wrong, other, crossed = scores
    pairs = pairs_of([(right, wrong, 0, "Object", "7"), (other, crossed, 1, "Object", "7")])
    found = examples(pairs, 100, 0.95)
    assert (found["text"]["value"], found["image"]["value"]) == tuple(100.0 * each for each in expected)
    assert found["group"]["value"] == 100.0 * all(expected)


def test_examples_may_come_in_any_order() -> None:
    first, second = (0.9, 0.8, 0, "Object", "7"), (0.5, 0.4, 1, "Object", "7")
    other = [(0.9, 0.1, 2, "Relation", "12"), (0.9, 0.1, 3, "Relation", "12")]
    found = examples(pairs_of([first, other[0], other[1], second]), 100, 0.95)
    assert {name: each["value"] for name, each in found.items()} == {"text": 100.0, "image": 50.0, "group": 50.0}
