"""Second ranking of mined lists against a loop."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.errors import DataError, UsageError
from itrpipe.mining.lists import NO_ROW, MinedLists
from itrpipe.mining.rescore import Rescorer

# Whole numbers, so that many pairs tie.
TRUE_SCORES = np.random.default_rng(0).integers(0, 4, (12, 30)).astype(np.float32)
CAPTION_IMAGE = np.random.default_rng(2).permutation(np.arange(30) % 12)


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


def rescorer(block_pairs: int = 10, score_pairs=look_up) -> Rescorer:
    return Rescorer(mined(), CAPTION_IMAGE, score_pairs, 6, 5, block_pairs)


def finished(work: Rescorer) -> Rescorer:
    for block in work.pending():
        work.step(block)
    return work


@pytest.mark.parametrize("block_pairs", [1, 7, 1_000])
def test_tops_are_ordered_by_the_second_model(block_pairs):
    lists, work = mined(), rescorer(block_pairs)
    assert sum(work.pairs(block) for block in range(work.num_blocks)) == 11 * 6 + 2 + 29 * 5 + 30
    found = finished(work).result()
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
    np.testing.assert_array_equal(work.positives(), [TRUE_SCORES[i, t] for t, i in enumerate(CAPTION_IMAGE)])


@pytest.mark.parametrize("interrupted_after", [0, 3, 20])
def test_an_interrupted_run_scores_only_what_is_missing_and_gives_the_same(interrupted_after):
    first, whole = rescorer(), finished(rescorer())
    for block in first.pending()[:interrupted_after]:
        first.step(block)
    saved = first.state()
    finished(first)
    scored = []

    def count(images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        scored.append(len(images))
        return look_up(images, captions)

    second = rescorer(score_pairs=count)
    second.restore(saved)
    assert second.pending() == list(range(interrupted_after, second.num_blocks))
    finished(second)
    assert len(scored) == second.num_blocks - interrupted_after
    for name, array in vars(second.result()).items():
        np.testing.assert_array_equal(array, getattr(whole.result(), name), err_msg=name)
    np.testing.assert_array_equal(second.positives(), whole.positives())
    with pytest.raises(UsageError, match="block 0 of"):
        second.step(0)
    with pytest.raises(DataError, match="start the mining again"):
        rescorer(block_pairs=1_000).restore(saved)


def test_unfinished_lists_are_not_given_out():
    for ask in (Rescorer.result, Rescorer.positives):
        with pytest.raises(UsageError, match="blocks are not scored yet"):
            ask(rescorer())


@pytest.mark.parametrize("top", [0, 9])
def test_asking_for_more_than_the_lists_hold_is_refused(top):
    with pytest.raises(UsageError, match=f"{top} candidates are to be scored again but the lists hold 8"):
        Rescorer(mined(), CAPTION_IMAGE, look_up, top, 5)


@pytest.mark.parametrize("broken", [lambda i, c: np.full(len(i), np.nan), lambda i, c: np.zeros((len(i), 1))])
def test_scores_that_are_none_are_refused(broken):
    with pytest.raises(DataError, match="check the model"):
        rescorer(score_pairs=broken).step(0)
