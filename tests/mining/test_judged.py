"""Mined lists as judges and people see them, against loops over all candidates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.datasets.truth import Decided, PairSet
from itrpipe.judging.opened import Scale
from itrpipe.judging.shares import LEAST, lots_of, strata_of
from itrpipe.mining.judged import Judgement, candidate_pairs, mark_lists, write_scores
from itrpipe.mining.lists import DIRECTIONS, NO_ROW, CandidateLists, MinedList
from itrpipe.mining.statistics import sentences
from tests.judging.populations import population
from tests.maps import write_list

IMAGES, CAPTIONS = 12, 30
SCALE = Scale(0.0, 1.0, 8.0, 0.5)
Lists = dict[str, tuple[CandidateLists, np.ndarray | None]]


def write_lists(folder: Path) -> dict[str, np.ndarray]:
    """Lists of both directions, one of them empty and one short."""
    rng = np.random.default_rng(1)
    candidates = {
        DIRECTIONS[0]: np.argsort(rng.random((IMAGES, CAPTIONS)), axis=1)[:, :8].astype(np.int32),
        DIRECTIONS[1]: np.argsort(rng.random((CAPTIONS, IMAGES)), axis=1)[:, :5].astype(np.int32),
    }
    candidates[DIRECTIONS[0]][3, 2:] = NO_ROW
    candidates[DIRECTIONS[1]][7] = NO_ROW
    for direction, rows in candidates.items():
        scores = np.where(rows == NO_ROW, -np.inf, -np.arange(rows.shape[1])).astype(np.float16)
        write_list(folder, direction, MinedList(np.arange(len(rows)).astype(str), rows, scores))
    return candidates


def statistics_of(candidates: dict[str, np.ndarray]) -> dict[str, Any]:
    counted = {direction: int((rows != NO_ROW).sum()) for direction, rows in candidates.items()}
    return {
        "anchors": {direction: len(rows) for direction, rows in candidates.items()},
        "candidates": counted,
        "anchors_without_candidates": dict(zip(DIRECTIONS, (0, 1), strict=True)),
        "dropped": {direction: {} for direction in DIRECTIONS},
        "right_after_all": {direction: {"top_1": {"judged": 0, "percent": None}} for direction in DIRECTIONS},
        "judge": None,
        **dict.fromkeys(("hardest_text_beats_own_caption_percent", "hardest_image_beats_own_image_percent")),
    }


def pairs_of(candidates: dict[str, np.ndarray]) -> set[tuple[int, int]]:
    found = set()
    for image, rows in enumerate(candidates[DIRECTIONS[0]].tolist()):
        found |= {(image, caption) for caption in rows if caption != NO_ROW}
    for caption, rows in enumerate(candidates[DIRECTIONS[1]].tolist()):
        found |= {(image, caption) for image in rows if image != NO_ROW}
    return found


def marked(folder: Path, statistics: dict[str, Any], judgement: Judgement | None, decided: Decided | None) -> Lists:
    kept: Lists = {}

    def keep(direction: str, part: slice, lists: CandidateLists, probability: np.ndarray | None) -> None:
        kept[direction] = lists, probability

    mark_lists(folder, statistics, keep, judgement, decided)
    return kept


def judged_by(folder: Path, pairs: PairSet, names: str, decided: Decided | None = None) -> Judgement:
    folders = {}
    for number, name in enumerate(names):
        folders[name] = folder / name
        folders[name].mkdir(exist_ok=True)
        scores = np.random.default_rng(number).random(len(pairs), dtype=np.float32)
        write_scores(folders[name], pairs, scores, SCALE)
    return Judgement.read(folders, decided)


def test_every_pair_of_both_directions_is_asked_once(tmp_path: Path) -> None:
    candidates = write_lists(tmp_path)
    pairs = candidate_pairs(tmp_path)
    rows = list(zip(pairs.image_rows.tolist(), pairs.caption_rows.tolist(), strict=True))
    assert sorted(rows) == sorted(pairs_of(candidates))


def test_probabilities_are_those_of_the_pairs_and_counted(tmp_path: Path) -> None:
    candidates = write_lists(tmp_path)
    pairs = candidate_pairs(tmp_path)
    judgement = judged_by(tmp_path, pairs, "ab")
    scores = [np.random.default_rng(number).random(len(pairs), dtype=np.float32) for number in range(2)]
    joined = 1 / (1 + np.exp(-(SCALE.log_odds(scores[0]) + SCALE.log_odds(scores[1])) / 2))
    known = dict(zip(zip(pairs.image_rows.tolist(), pairs.caption_rows.tolist(), strict=True), joined, strict=True))
    statistics = statistics_of(candidates)
    lists = marked(tmp_path, statistics, judgement, None)
    for direction, rows in candidates.items():
        found, probability = lists[direction]
        np.testing.assert_array_equal(found.candidates, rows)
        assert probability is not None
        for (anchor, place), candidate in np.ndenumerate(rows):
            pair = (anchor, candidate) if direction == DIRECTIONS[0] else (candidate, anchor)
            expected = 0.0 if candidate == NO_ROW else known[pair]
            np.testing.assert_allclose(probability[anchor, place], expected, atol=1e-5)
        counts = statistics["judged"][direction]
        assert counts["marked"] == (probability > 0.5).sum()
        first = probability[rows[:, 0] != NO_ROW, 0]
        assert counts["by_rank"]["1"]["value"] == pytest.approx(first.mean(), abs=1e-5)
    said = sentences(statistics)
    assert any("nobody has checked" in sentence for sentence in said)
    assert len([sentence for sentence in said if "likelier right" in sentence]) == 1


def test_what_people_decided_leaves_the_lists_or_is_no_match(tmp_path: Path) -> None:
    candidates = write_lists(tmp_path)
    pairs = candidate_pairs(tmp_path)
    order = np.random.default_rng(5).permutation(len(pairs))
    fits, differs = order[:30], order[30:60]
    decided = Decided(
        PairSet.of(pairs.caption_rows[fits], pairs.image_rows[fits], IMAGES),
        PairSet.of(pairs.caption_rows[differs], pairs.image_rows[differs], IMAGES),
        PairSet.of(np.array([], int), np.array([], int), IMAGES),
    )
    judgement = judged_by(tmp_path, pairs, "a", decided)
    assert judgement.calibration.decisions == 60 > LEAST
    for with_judge in (judgement, None):
        statistics = statistics_of(candidates)
        lists = marked(tmp_path, statistics, with_judge, decided)
        for direction, rows in candidates.items():
            found, probability = lists[direction]
            images, captions = np.arange(len(rows))[:, None], found.candidates
            if direction == DIRECTIONS[1]:
                images, captions = captions, images
            places = np.where(found.candidates == NO_ROW, -1, pairs.places(captions, images))
            assert not np.isin(places, fits).any()
            gone = (rows != NO_ROW).sum() - (found.candidates != NO_ROW).sum()
            assert statistics["dropped"][direction]["decisions"] == gone > 0
            by_people_alone = statistics["right_after_all"][direction]["top_1"]["judged"] > 0
            assert by_people_alone == (with_judge is None)
            if probability is not None:
                assert (probability[np.isin(places, differs)] == 0).all()
    # Random scores know nothing of random answers.
    assert not judgement.calibration.knows
    assert (judgement.probabilities <= 0.5).all()


def decided_as(pairs: PairSet, answers: np.ndarray, places: np.ndarray, doubtful: np.ndarray) -> Decided:
    sets = []
    for rows in (places[answers[places]], places[~answers[places]], doubtful):
        sets.append(PairSet.of(pairs.caption_rows[rows], pairs.image_rows[rows], pairs.images))
    return Decided(*sets)


def test_only_decisions_drawn_at_random_move_the_share(tmp_path: Path) -> None:
    """Whatever else people decide, here only pairs that are right, and right pairs that they were unsure of."""
    images = np.argsort(np.random.default_rng(0).random((200, 60)), axis=1)[:, :10].astype(np.int64)
    captions = np.repeat(np.arange(200), 10)
    pairs = PairSet.of(captions, images.ravel(), 60)
    places_of = {DIRECTIONS[1]: pairs.places(captions, images.ravel()).reshape(200, 10)}
    covered = 0
    for seed in range(40):
        answers, log_odds = population(0.2, 0.85, len(pairs), np.random.default_rng(seed))
        write_scores(tmp_path, pairs, (log_odds / 8 + 0.5 + 0.1).astype(np.float32), SCALE)
        strata, lots = strata_of(log_odds), lots_of(pairs)
        drawn = []
        for stratum in range(5):
            own = np.flatnonzero(strata == stratum)
            drawn.append(own[np.argsort(lots[own])][:20])
        drawn = np.concatenate(drawn)
        others = np.setdiff1d(np.flatnonzero(answers & (lots > 0.6)), drawn)

        def share(places: np.ndarray, doubtful: np.ndarray) -> dict[str, Any]:
            decided = decided_as(pairs, answers, places, doubtful)  # noqa: B023
            return Judgement.read({"a": tmp_path}, decided).counts(places_of)[DIRECTIONS[1]]["by_rank"]

        nothing = share(others[:0], others[:0])
        assert share(others[:40], others[40:60]) == nothing, "the judge's alone"
        decided = share(np.append(drawn, others[:40]), others[40:60])
        covered += decided["1-10"]["low"] <= answers.mean() <= decided["1-10"]["high"]
        assert decided["1-10"]["decisions"] == 100
        assert not any(span["decisions"] < LEAST for span in decided.values())
    assert covered >= 36
    short = {DIRECTIONS[0]: places_of[DIRECTIONS[1]][:4], **places_of}
    counts = Judgement.read({"a": tmp_path}, decided_as(pairs, answers, drawn, drawn[:0])).counts(short)
    for direction in DIRECTIONS:
        assert counts[direction]["by_rank"]["1-10"]["decisions"] == 0, "few of one direction were decided"
    doubtful = share(drawn[10:], drawn[:10])["1-10"]
    assert doubtful["decisions"] == 100, "who is unsure was asked about a pair that was drawn"
    assert doubtful["high"] - doubtful["low"] > decided["1-10"]["high"] - decided["1-10"]["low"]
