"""Second ranking of mined lists against a loop."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.errors import DataError, UsageError
from itrpipe.mining.lists import NO_ROW, MinedLists
from itrpipe.mining.rescore import rescore

# Whole numbers, so that many pairs tie.
TRUE_SCORES = np.random.default_rng(0).integers(0, 4, (12, 30)).astype(np.float32)


def mined() -> MinedLists:
    generator = np.random.default_rng(1)
    texts = np.argsort(generator.random((12, 30)), axis=1)[:, :8].astype(np.int32)
    images = np.argsort(generator.random((30, 12)), axis=1)[:, :5].astype(np.int32)
    texts[3, 2:], images[7, :] = NO_ROW, NO_ROW
    return MinedLists(texts, np.zeros(texts.shape, np.float32), images, np.zeros(images.shape, np.float32))


def look_up(images: np.ndarray, captions: np.ndarray) -> np.ndarray:
    assert (images >= 0).all()
    assert (captions >= 0).all()
    return TRUE_SCORES[images, captions]


@pytest.mark.parametrize("batch_size", [1, 7, 1_000])
def test_tops_are_ordered_by_the_second_model(batch_size):
    lists, done = mined(), []
    found = rescore(lists, look_up, 6, 5, batch_size, done.append)
    assert max(done) <= batch_size
    assert sum(done) == 11 * 6 + 2 + 29 * 5
    for anchors, candidates, scores, before, pair in (
        (12, found.texts_per_image, found.text_scores, lists.texts_per_image[:, :6], lambda a, c: TRUE_SCORES[a, c]),
        (30, found.images_per_text, found.image_scores, lists.images_per_text, lambda a, c: TRUE_SCORES[c, a]),
    ):
        for anchor in range(anchors):
            known = [candidate for candidate in before[anchor].tolist() if candidate != NO_ROW]
            expected = sorted(known, key=lambda candidate: (-pair(anchor, candidate), candidate))
            padding = before.shape[1] - len(known)
            assert candidates[anchor].tolist() == expected + [NO_ROW] * padding
            assert scores[anchor].tolist() == [pair(anchor, candidate) for candidate in expected] + [-np.inf] * padding


@pytest.mark.parametrize("top", [0, 9])
def test_asking_for_more_than_the_lists_hold_is_refused(top):
    with pytest.raises(UsageError, match=f"{top} candidates are to be scored again but the lists hold 8"):
        rescore(mined(), look_up, top, 5)


@pytest.mark.parametrize("broken", [lambda i, c: np.full(len(i), np.nan), lambda i, c: np.zeros((len(i), 1))])
def test_scores_that_are_none_are_refused(broken):
    with pytest.raises(DataError, match="check the model"):
        rescore(mined(), broken, 6, 5)
