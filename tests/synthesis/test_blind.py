"""Models without images: what they find in captions and negatives, and pairs of which they find nothing."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from itrpipe.synthesis.blind import (
    FEWEST,
    MODELS,
    Pairs,
    Trigrams,
    _Differences,
    blind_accuracy,
    blind_points,
    refined,
)

NOUNS = ("dog", "cat", "horse", "bird", "car", "boat", "cup", "chair")
COLOURS = ("red", "blue", "green", "black")


def trigrams(*captions: str) -> Trigrams:
    return Trigrams(pa.chunked_array([pa.array([caption.split() for caption in captions])]))


def replaced(count: int, weights: tuple[float, ...]) -> Pairs:
    """Captions of a colour drawn alike, and negatives of another that is drawn by weights."""
    random = np.random.default_rng(0)
    rows: list[tuple[str, str]] = []
    while len(rows) < count:
        noun, own, other = random.choice(NOUNS), random.choice(COLOURS), random.choice(COLOURS, p=weights)
        if own != other:
            rows.append((f"a {own} {noun}", f"a {other} {noun}"))
    captions, negatives = zip(*rows, strict=True)
    return Pairs(captions, negatives, np.arange(count))


FAIR = trigrams(*(f"a {colour} {noun}" for noun in NOUNS for colour in COLOURS))
EVEN, ODD = (0.25,) * 4, (0.7, 0.1, 0.1, 0.1)


def test_trigrams_prefer_the_words_that_captions_have_in_their_order() -> None:
    """By hand: with captions `a b` and `a c`, P(b | a) = .1 (1/6) / 1 + .3 (1/2) + .6 (1/2) + .1 (1/12), and so on."""
    english = trigrams("a b", "a b", "a c")
    pairs = Pairs(["a b", "a c", "a b", "b a"], ["a c", "a b", "b a", "x x b"], np.arange(4))
    points = blind_points(pairs, np.zeros(4), english)
    assert points[:, MODELS.index("trigrams")].tolist() == [100, 0, 100, 100]
    assert blind_points(Pairs(["a x"], ["a y"], np.arange(1)), np.zeros(1), english)[0, 0] == 50  # a tie


@pytest.mark.parametrize(("weights", "guessed"), [(EVEN, False), (ODD, True)])
def test_words_that_stand_in_negatives_more_often_are_found_on_other_images(
    weights: tuple[float, ...], guessed: bool
) -> None:
    pairs = replaced(600, weights)
    found = blind_accuracy(blind_points(pairs, np.zeros(600), FAIR), pairs.images, 100, 0.95)
    assert found["guessed"] is guessed
    assert found["value"] > 65 if guessed else 45 < found["value"] < 55
    assert found["low"] <= found["value"] <= found["high"]


def test_a_pair_is_answered_by_what_was_learned_from_other_images_and_kinds() -> None:
    images, learned = np.repeat(np.arange(40), 5), MODELS.index("naive Bayes")
    own = [f"a own{image}" for image in images]  # each image has its words, so that others teach nothing
    for negatives, kinds, expected in (
        ([f"a other{image}" for image in images], np.zeros(200), 50),
        (["a dog"] * 200, np.zeros(200), 100),
        (["a dog"] * 200, images, 50),
    ):
        points = blind_points(Pairs(own, negatives, images), kinds, FAIR)
        assert (points[:, learned] == expected).all()


def test_a_text_encoder_is_believed_where_its_vectors_of_other_images_tell() -> None:
    pairs, images = replaced(400, EVEN), np.arange(400)
    random = np.random.default_rng(0)
    differences = random.normal(size=(400, 8)).astype(np.float32)
    alone = blind_points(pairs, np.zeros(400), FAIR)
    for shift, low, high in ((0.0, 40, 60), (2.0, 90, 100)):
        differences[:, 3] += shift
        points = blind_points(pairs, np.zeros(400), FAIR, differences)
        assert (points[:, :3] == alone).all()
        assert low < points[:, MODELS.index("text encoder")].mean() < high
        assert blind_accuracy(points, images, 100, 0.95)["guessed"] is (shift > 0)


def test_captions_that_are_judged_are_judged_by_captions_of_other_images() -> None:
    captions, images = [f"a word{image}" for image in range(10)], np.arange(10)
    tokens = pa.chunked_array([pa.array([caption.split() for caption in captions])])
    pairs = Pairs(captions, [f"a other{image}" for image in images], images)
    points = [blind_points(pairs, np.zeros(10), Trigrams(tokens, known))[:, 0] for known in (None, images)]
    assert (points[0] == 100).all()  # read before
    assert (points[1] == 50).all()
    alone = Trigrams(tokens.slice(0, 1), images[:1])  # nothing is left to learn from
    assert blind_points(pairs.only(images[:1]), np.zeros(1), alone).tolist() == [[50, 50, 50]]


def test_logistic_regression_is_at_the_minimum_of_its_loss_and_reads_pairs_of_words_with_one_between() -> None:
    rng = np.random.default_rng(0)
    rows, columns = np.divmod(rng.choice(400, 120, replace=False), 8)
    more = rng.choice([-1.0, 1.0, 2.0], 120)
    weights = _Differences(rows, columns, more, 50, 8).regression()
    matrix = np.zeros((50, 8))
    matrix[rows, columns] = more
    slope = weights - matrix.T @ (1 / (1 + np.exp(matrix @ weights)))
    assert np.abs(slope).max() < 1e-3
    # Only the first word with the third tells captions from negatives.
    ends, between = rng.permuted(np.tile([0, 1], (400, 1)), axis=1), rng.integers(0, 60, 400)
    words = list(zip(ends[:, 0], between, strict=True))
    captions, negatives = ([f"{'xy'[end]} w{word} {'xy'[end ^ odd]}" for end, word in words] for odd in (0, 1))
    points = blind_points(Pairs(captions, negatives, np.arange(400)), np.zeros(400), FAIR).mean(axis=0)
    assert points[MODELS.index("logistic regression")] > 90


def test_of_refined_pairs_nothing_can_be_guessed() -> None:
    pairs = replaced(4_000, ODD)
    rows = refined(pairs, FAIR)
    assert 1_000 < len(rows) < 4_000
    assert (np.diff(rows) > 0).all()
    rest = pairs.only(rows)
    found = blind_accuracy(blind_points(rest, np.zeros(len(rows)), FAIR), rest.images, 100, 0.95)
    assert 47 <= found["value"] <= 53
    assert (refined(pairs, FAIR) == rows).all()


def test_few_pairs_stay_as_they_are() -> None:
    few = FEWEST - 1
    assert len(refined(replaced(few, ODD), FAIR)) == few
    assert not len(refined(Pairs([], [], np.zeros(0, np.int64)), FAIR))
    assert len(refined(replaced(FEWEST, (1.0, 0.0, 0.0, 0.0)), FAIR)) < FEWEST  # and are not refined again
