"""Pairs that a judge is asked about in parts: each once, and to the same bytes whoever makes them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from itrpipe.errors import DataError
from itrpipe.judging.declaration import judge_name
from itrpipe.judging.material import Material
from itrpipe.judging.opened import open_judge, scale_of
from itrpipe.judging.pairs import JudgedPairs
from tests.maps import made

WORDS = ("dog", "ball", "grass", "boat", "lake", "rain", "tree", "man")
NAME = judge_name("captions:tfidf")


def material() -> Material:
    rng = np.random.default_rng(0)
    captions = []
    for image in range(6):
        for _ in range(3):
            captions.append(f"{WORDS[image]} {WORDS[image + 1]} {' '.join(rng.choice(WORDS, 2))}")
    return Material(captions, np.repeat(np.arange(6), 3), 6)


def work(block: int = 5) -> JudgedPairs:
    known = material()
    pairs = np.arange(6 * 18)
    opening = partial(Material, known.captions, known.owners, known.num_images)
    return JudgedPairs(NAME, opening, pairs // 18, pairs % 18, "cpu", block=block)


def test_scores_and_scale_are_those_of_the_judge_asked_at_once(tmp_path: Path) -> None:
    known = material()
    judge = open_judge(NAME, known, "cpu")
    pairs = np.arange(6 * 18)
    for block in (5, 0):
        asked = work(block)
        scores, scale = asked.join(made(asked, tmp_path / f"by {block}").paths)
        np.testing.assert_allclose(scores, judge(pairs // 18, pairs % 18), rtol=1e-6)
        assert scale == scale_of(judge, NAME)


def test_what_is_made_already_stays_and_others_make_the_same(tmp_path: Path) -> None:
    whole = made(work(), tmp_path / "whole")
    again = tmp_path / "again"
    made(work(), again)
    for path in sorted(again.glob("*.arrays"))[::2]:
        path.unlink()
    resumed = made(work(), again, workers=2)
    assert 0 < resumed.rows < whole.rows
    for one, other in zip(whole.paths, resumed.paths, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_scores_that_are_no_numbers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("itrpipe.judging.terms.TermsJudge.__call__", lambda self, images, captions: images * np.nan)
    asked = work()
    with pytest.raises(DataError, match="NaN or infinite"):
        asked.make(asked.open(), asked.parts()[1], tmp_path / "part")
