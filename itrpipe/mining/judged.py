"""Mined lists as judges and people see them: the pairs to ask about, and probabilities that candidates are right.

Shapes: P pairs of an image and a caption, each once; J judges; A anchors with lists, K candidates of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from itrpipe.datasets.truth import Decided
from itrpipe.judging.calibration import Calibration, calibrate
from itrpipe.judging.opened import Scale
from itrpipe.judging.shares import RANKS, share_by_rank, strata_of
from itrpipe.mining.filters import drop
from itrpipe.mining.lists import (
    DIRECTIONS,
    NO_ROW,
    CandidateLists,
    count_anchors,
    list_blocks,
    matching,
    row_type,
)
from itrpipe.mining.statistics import DATASET, JOINED, PEOPLE, Figures
from itrpipe.storage.arrays import ArrayFile, write_arrays
from itrpipe.storage.disk import read_json, write_json

PAIRS, SCALE = "pairs.arrays", "scale.json"
CALIBRATION = "calibration.json"
ASKED = 10
"""Ranks of both directions that people are asked about, at random within strata of their pairs."""
LIKELY = 0.5
"""Probability above which a candidate is likelier right than not."""


class CandidatePairs(NamedTuple):
    """The pairs of an image and a caption that mined lists hold, by image, then by caption.

    Attributes:
        keys: [P] int64, ascending: image * T + caption.
        num_captions: T.
    """

    keys: np.ndarray
    num_captions: int

    @classmethod
    def of_lists(cls, folder: Path) -> CandidatePairs:
        """Return those of the finished lists in a folder."""
        num_captions = count_anchors(folder, DIRECTIONS[1])
        pieces = []
        for direction in DIRECTIONS:
            for part, lists in list_blocks(folder, direction):
                images, captions = rows_of_pairs(direction, part, lists)
                pieces.append((images * num_captions + captions)[lists.candidates != NO_ROW])
        keys = np.concatenate(pieces)
        keys.sort()
        return cls(keys[np.diff(keys, prepend=-1) > 0], num_captions)

    @property
    def images(self) -> np.ndarray:
        """Return the row of each pair's image."""
        return self.keys // self.num_captions

    @property
    def captions(self) -> np.ndarray:
        """Return the row of each pair's caption."""
        return self.keys % self.num_captions

    def places(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return the place of each pair of rows, of the shape that both broadcast to; -1 of others than these."""
        keys = images.astype(np.int64) * self.num_captions + captions
        if not len(self.keys):
            return np.full(keys.shape, -1)
        places = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[places] == keys, places, -1)


def rows_of_pairs(direction: str, part: slice, lists: CandidateLists) -> tuple[np.ndarray, np.ndarray]:
    """Return the image and the caption of every place of some lists, int64 [A, K]; -1 where there is no candidate.

    Args:
        direction: of the lists.
        part: rows of the anchors.
        lists: theirs.
    """
    candidates = lists.candidates.astype(np.int64)
    anchors = np.broadcast_to(np.arange(part.start, part.stop)[:, None], candidates.shape)
    return (anchors, candidates) if direction == DIRECTIONS[0] else (candidates, anchors)


def write_scores(folder: Path, pairs: CandidatePairs, scores: np.ndarray, scale: Scale) -> None:
    """Write what a judge said of pairs.

    Args:
        folder: of the files.
        pairs: which.
        scores: [P] float32.
        scale: of the judge.
    """
    images, captions = pairs.images, pairs.captions
    arrays = {
        "images": images.astype(row_type(int(images.max(initial=0)) + 1)),
        "captions": captions.astype(row_type(pairs.num_captions)),
        "scores": scores,
    }
    write_arrays(folder / PAIRS, arrays, pairs.num_captions)
    write_json(folder / SCALE, scale._asdict())


class Judgement(NamedTuple):
    """What judges say of pairs.

    Attributes:
        pairs: which.
        log_odds: [P, J] of each judge, by its default curve.
        calibration: of all judges together.
        probabilities: name of a judge, and `JOINED` for all -> probabilities [P] float32 that a pair is right after
            all.
        decided_at, answers: [n] places of the pairs that people have judged, and whether they found that these fit.
    """

    pairs: CandidatePairs
    log_odds: np.ndarray
    calibration: Calibration
    probabilities: dict[str, np.ndarray]
    decided_at: np.ndarray
    answers: np.ndarray

    @classmethod
    def read(cls, folders: Mapping[str, Path], decided: Decided | None) -> Judgement:
        """Read what judges have scored, and calibrate it by people's decisions.

        Args:
            folders: of the scores, by the names of the judges; their pairs are the same.
            decided: pairs that people have judged; those without scores do not count.
        """
        log_odds = []
        for folder in folders.values():
            file = ArrayFile(folder / PAIRS)
            scale = Scale(**read_json(folder / SCALE))
            log_odds.append(scale.log_odds(file["scores"].read()))
        num_captions = file.facts
        keys = file["images"].read().astype(np.int64) * num_captions + file["captions"].read()
        pairs = CandidatePairs(keys, num_captions)
        places, answers = decisions_at(pairs, decided)
        images = pairs.images[places]

        probabilities = {}
        for name, column in zip(folders, log_odds, strict=True):
            alone = column[:, None]
            probabilities[name] = calibrate(alone[places], answers, images).probabilities(alone)
        together = np.stack(log_odds, axis=1)
        calibration = calibrate(together[places], answers, images)
        probabilities[JOINED] = calibration.probabilities(together)
        return cls(pairs, together, calibration, probabilities, places, answers)

    def counts(self, places_of: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Count candidates that are likelier right than not, and estimate the share that is right, by their rank.

        Args:
            places_of: direction -> places [A, K] of its candidates among the pairs, hardest first; -1 where there is
                none.

        Returns:
            Direction -> `marked`: by each judge, and by all, how many of the candidates; and `by_rank`: span of ranks,
            such as `3-5` -> its `candidates`, its `marked`, and their `share`, see `itrpipe.judging.shares.Share`.
        """
        asked = np.unique(np.concatenate([places[:, :ASKED].ravel() for places in places_of.values()]))
        asked = asked[asked >= 0]
        strata = np.zeros(len(self.pairs.keys), np.int64)
        strata[asked] = strata_of(self.log_odds[asked].mean(axis=1))
        decision_of = np.full(len(self.pairs.keys), -1)
        decision_of[self.decided_at] = np.arange(len(self.decided_at))
        unseen = self.probabilities[JOINED].copy()
        unseen[self.decided_at] = self.calibration.held_out

        counted = {}
        for direction, places in places_of.items():
            is_candidate = places >= 0
            ranks = np.broadcast_to(np.arange(1, places.shape[1] + 1), places.shape)[is_candidate]
            places = places[is_candidate]
            rows = np.flatnonzero((decision_of[places] >= 0) & (ranks <= ASKED))
            answers = self.answers[decision_of[places[rows]]]
            shares = share_by_rank(unseen[places], rows, answers, strata[places], ranks)
            marked = {judge: found[places] > LIKELY for judge, found in self.probabilities.items()}
            spans = {}
            for (first, last), (name, share) in zip(RANKS, shares.items(), strict=False):
                inside = (ranks >= first) & (ranks <= last)
                own = {judge: int(marks[inside].sum()) for judge, marks in marked.items()}
                spans[name] = {"candidates": int(inside.sum()), "marked": own, "share": share._asdict()}
            own = {judge: int(marks.sum()) for judge, marks in marked.items()}
            counted[direction] = {"marked": own, "by_rank": spans}
        return counted

    def of(self, direction: str, part: slice, lists: CandidateLists) -> np.ndarray:
        """Return the probabilities of some lists by all judges, [a, K] float32; 0 behind the last candidate."""
        places = self.pairs.places(*rows_of_pairs(direction, part, lists))
        return np.where(places >= 0, self.probabilities[JOINED][places], np.float32(0))


def decisions_at(pairs: CandidatePairs, decided: Decided | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of decided pairs [n] among others, and whether people found that they fit, bool [n]."""
    places = [np.zeros(0, np.int64)]
    answers = [np.zeros(0, bool)]
    if decided is not None:
        for found, fits in ((decided.fits, True), (decided.differs, False)):
            own = pairs.places(found.image_rows, found.caption_rows)
            places.append(own[own >= 0])
            answers.append(np.full(len(places[-1]), fits))
    return np.concatenate(places), np.concatenate(answers)


def without_decided(
    direction: str,
    part: slice,
    lists: CandidateLists,
    decided: Decided | None,
    probability_of: Callable[[str, slice, CandidateLists], np.ndarray] | None,
) -> tuple[CandidateLists, np.ndarray | None]:
    """Return lists without what people found to fit, and the probabilities that the others are right after all.

    Args:
        direction: of the lists.
        part: rows of the anchors.
        lists: theirs.
        decided: pairs that people have judged; what they found not to fit has probability 0.
        probability_of: judges, such as `Judgement.of`; None without any.
    """
    if decided is not None:
        lists, _ = drop(lists, {"decisions": matching(decided.fits.has, direction, part, lists)})
    if probability_of is None:
        return lists, None
    probability = probability_of(direction, part, lists)
    if decided is not None:
        probability[matching(decided.differs.has, direction, part, lists)] = 0.0
    return lists, probability


def mark_lists(
    folder: Path,
    statistics: dict[str, Any],
    write: Callable[[str, slice, CandidateLists, np.ndarray | None], None],
    judgement: Judgement | None,
    decided: Decided | None,
) -> None:
    """Read lists, and write them with what judges and people say of their candidates.

    Args:
        folder: of the lists as a search found them.
        statistics: of the search. What people dropped, what is left, and what they and judges call right after all is
            told anew; all else stays that of the search.
        write: takes the direction, rows of some anchors, their lists, and the probabilities, see `without_decided`.
        judgement: of the judges; None without any.
        decided: pairs that people have judged.
    """
    probability_of = None if judgement is None else judgement.of
    places: dict[str, np.ndarray] = {}
    for direction in DIRECTIONS:
        figures = Figures(statistics["anchors"][direction], 1)
        left = empty = 0
        blocks = []
        for part, found in list_blocks(folder, direction):
            if judgement is not None:
                blocks.append(judgement.pairs.places(*rows_of_pairs(direction, part, found)))
            lists, probability = without_decided(direction, part, found, decided, probability_of)
            if decided is not None:
                fits = matching(decided.fits.has, direction, part, found)
                figures.judge(fits | matching(decided.differs.has, direction, part, found), fits)
            left += int((lists.candidates != NO_ROW).sum())
            empty += int((lists.candidates[:, 0] == NO_ROW).sum())
            write(direction, part, lists, probability)
        if decided is not None:
            if statistics["judge"] != DATASET:
                statistics["right_after_all"][direction] = figures.right_after_all()
            statistics["dropped"][direction]["decisions"] = statistics["candidates"][direction] - left
        statistics["candidates"][direction] = left
        statistics["anchors_without_candidates"][direction] = empty
        if judgement is not None:
            places[direction] = np.concatenate(blocks)
    if decided is not None and statistics["judge"] is None:
        statistics["judge"] = PEOPLE
    if judgement is not None:
        calibration = judgement.calibration
        facts = {name: getattr(calibration, name) for name in ("decisions", "knows", "auc", "precision", "recall")}
        judges = [name for name in judgement.probabilities if name != JOINED]
        statistics["judged"] = {"judges": judges, **facts, **judgement.counts(places)}
