"""Recall of approximate lists, against sets that are compared one by one."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.mining.lists import NO_ROW, MinedLists
from itrpipe.mining.recall import search_recall
from tests.mining.mine import held, mine, write_lists


@pytest.fixture(scope="module")
def split():
    generator = np.random.default_rng(4)
    caption_image = generator.permutation(np.arange(300) % 90)
    images = generator.standard_normal((90, 8)).astype(np.float32)
    texts = (images[caption_image] + generator.standard_normal((300, 8))).astype(np.float32)
    return images, texts, caption_image, mine(images, texts, caption_image, 20, 10)


@pytest.fixture
def recall(tmp_path):
    def of_lists(images, texts, caption_image, lists, **more):
        return search_recall(*held(images, texts), caption_image, write_lists(tmp_path / "mined.arrays", lists), **more)

    return of_lists


def test_exact_lists_have_all_and_a_missing_candidate_counts(split, recall):
    images, texts, caption_image, exact = split
    assert recall(images, texts, caption_image, exact) == {"texts_for_images": 1.0, "images_for_texts": 1.0}
    damaged = MinedLists(*(array.copy() for array in vars(exact).values()))
    damaged.texts_per_image[:, -3:], damaged.text_scores[:, -3:] = NO_ROW, -np.inf
    damaged.images_per_text[:, 4], damaged.image_scores[:, 4] = 0, damaged.image_scores.min() - 1
    found = recall(images, texts, caption_image, damaged)
    assert found == {"texts_for_images": pytest.approx(17 / 20), "images_for_texts": pytest.approx(9 / 10)}


def test_only_so_many_anchors_are_compared_and_the_same_every_time(split, recall):
    images, texts, caption_image, exact = split
    damaged = MinedLists(*(array.copy() for array in vars(exact).values()))
    damaged.text_scores[::2] = -np.inf  # every other image has nothing
    whole = recall(images, texts, caption_image, damaged)["texts_for_images"]
    assert whole == pytest.approx(0.5)
    few = [recall(images, texts, caption_image, damaged, anchors=7)["texts_for_images"] for _ in range(2)]
    assert few[0] == few[1]
    assert round(few[0] * 7, 9) in range(8)


def test_candidates_of_equal_score_are_as_good_as_each_other(recall):
    images = np.ones((4, 2), np.float32)
    texts, caption_image = np.ones((8, 2), np.float32), np.repeat(np.arange(4), 2)
    lists = MinedLists(
        np.array([[7, 6], [7, 6], [7, 6], [1, 0]], np.int32), np.full((4, 2), 2.0, np.float32),
        np.array([[3]] * 6 + [[0]] * 2, np.int32), np.full((8, 1), 2.0, np.float32),
    )  # fmt: skip
    assert recall(images, texts, caption_image, lists) == {"texts_for_images": 1.0, "images_for_texts": 1.0}
