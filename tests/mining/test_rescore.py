"""Second ranking of mined lists against a loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.errors import DataError, UsageError
from itrpipe.mining.lists import NO_ROW, MinedLists
from itrpipe.mining.mined import MinedFile
from itrpipe.mining.rescore import Rescoring
from itrpipe.mining.vectors import HeldRows
from tests.maps import made
from tests.mining.mine import FIELDS, made_in_order, write_lists

# Whole numbers, so that many pairs tie.
TRUE_SCORES = np.random.default_rng(0).integers(0, 4, (12, 30)).astype(np.float32)
CAPTION_IMAGE = np.random.default_rng(2).permutation(np.arange(30) % 12)
NOBODYS = np.where(np.arange(30) % 7 == 3, -1, CAPTION_IMAGE)


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


def opened(score_pairs: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return score_pairs


def rescoring(
    folder: Path,
    block_pairs: int = 10,
    score_pairs: Callable[..., np.ndarray] = look_up,
    owners: np.ndarray = CAPTION_IMAGE,
    top: int = 6,
) -> Rescoring:
    path = folder / "mined.arrays"
    write_lists(path, mined())
    opening = partial(opened, score_pairs)
    return Rescoring("another", path, HeldRows(owners), opening, top, 5, block_pairs=block_pairs)


def results(work: Rescoring, paths: list[Path], folder: Path) -> tuple[MinedLists, np.ndarray]:
    positives = work.join(paths, folder / "rescored.arrays")
    return MinedFile(folder / "rescored.arrays").lists(), positives


def finished(folder: Path, workers: int = 1, **more: Any) -> tuple[MinedLists, np.ndarray]:
    work = rescoring(folder, **more)
    return results(work, made(work, folder / "parts", workers).paths, folder)


@pytest.mark.parametrize("owners", [CAPTION_IMAGE, NOBODYS], ids=["of images", "some of nobody"])
@pytest.mark.parametrize("block_pairs", [1, 7, 1_000])
def test_tops_are_ordered_by_the_second_model(tmp_path, block_pairs, owners):
    scored = []

    def count(images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        scored.append(len(images))
        return look_up(images, captions)

    lists = mined()
    found, positives = finished(tmp_path, block_pairs=block_pairs, score_pairs=count, owners=owners)
    assert sum(scored) == 11 * 6 + 2 + 29 * 5 + int((owners >= 0).sum())
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
    expected = [TRUE_SCORES[i, t] if i >= 0 else np.nan for t, i in enumerate(owners)]
    np.testing.assert_array_equal(positives, expected)


def test_two_processes_give_the_same(tmp_path):
    (whole, positives), (found, again) = finished(tmp_path), finished(tmp_path, workers=2, block_pairs=11)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name), err_msg=name)
    np.testing.assert_array_equal(again, positives)


@pytest.mark.parametrize("interrupted_after", [0, 3, 20])
def test_an_interrupted_run_scores_only_what_is_missing_and_gives_the_same(tmp_path, interrupted_after):
    (tmp_path / "whole").mkdir()
    whole, positives = finished(tmp_path / "whole")
    first = rescoring(tmp_path)
    made_in_order(first, first.parts()[:interrupted_after], tmp_path / "parts")
    scored = []

    def count(images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        scored.append(len(images))
        return look_up(images, captions)

    second = rescoring(tmp_path, score_pairs=count)
    paths = made(second, tmp_path / "parts").paths
    assert len(paths) > 20
    assert len(scored) == len(paths) - interrupted_after
    found, again = results(second, paths, tmp_path)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(whole, name), err_msg=name)
    np.testing.assert_array_equal(again, positives)
    other = rescoring(tmp_path, block_pairs=1_000, score_pairs=count)
    scored.clear()
    made(other, tmp_path / "parts")  # parts of another division are not used
    assert len(scored) == len(other.parts())


@pytest.mark.parametrize("top", [0, 9])
def test_asking_for_more_than_the_lists_hold_is_refused(tmp_path, top):
    with pytest.raises(UsageError, match=f"{top} candidates are to be scored again but the lists hold 8"):
        rescoring(tmp_path, top=top)


@pytest.mark.parametrize("broken", [lambda i, c: np.full(len(i), np.nan), lambda i, c: np.zeros((len(i), 1))])
def test_scores_that_are_none_are_refused(tmp_path, broken):
    work = rescoring(tmp_path, score_pairs=broken)
    with pytest.raises(DataError, match="check the model"):
        made_in_order(work, work.parts()[:1], tmp_path / "parts")
