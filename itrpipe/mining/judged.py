"""Mined lists as judges and people see them: the pairs to ask about, and probabilities that candidates are right.

Shapes: P pairs of an image and a caption, each once; J judges; A anchors with lists, K candidates of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from itrpipe.datasets.truth import Decided, PairSet
from itrpipe.judging.calibration import Calibration, calibrate
from itrpipe.judging.opened import Scale
from itrpipe.judging.shares import LEAST, drawn_at_random, lots_of, share_by_rank, strata_of
from itrpipe.mining.filters import drop
from itrpipe.mining.lists import DIRECTIONS, NO_ROW, CandidateLists, count_anchors, list_blocks, matching
from itrpipe.mining.statistics import PEOPLE, ListFigures
from itrpipe.storage.arrays import ArrayFile, write_arrays
from itrpipe.storage.disk import read_json, write_json

PAIRS = "pairs.arrays"
SCALE = "scale.json"
CALIBRATION = "calibration.json"
ASKED = 10
"""Ranks of both directions that people are asked about, at random within strata of their pairs."""
_CALIBRATION_FIGURES = ("decisions", "knows", "auc", "precision", "recall", "reliability")
"""Figures of a calibration that are among those of the lists."""
LIKELY = 0.5
"""Probability above which a candidate is likelier right than not."""


def candidate_pairs(folder: Path) -> PairSet:
    """Return the pairs of an image and a caption that the finished lists in a folder hold."""
    num_images = count_anchors(folder, DIRECTIONS[0])
    codes = []
    for direction in DIRECTIONS:
        for part, lists in list_blocks(folder, direction):
            anchors, columns = np.nonzero(lists.candidates != NO_ROW)
            candidates = lists.candidates[anchors, columns]
            anchors += part.start
            if direction == DIRECTIONS[0]:
                pairs = PairSet.of(candidates, anchors, num_images)
            else:
                pairs = PairSet.of(anchors, candidates, num_images)
            codes.append(pairs.codes)
    return PairSet(np.unique(np.concatenate(codes)), num_images)


def write_scores(
    folder: Path,
    pairs: PairSet,
    scores: np.ndarray,
    scale: Scale,
) -> None:
    """Write the scores [P] float32 that a judge gave to pairs, and its scale."""
    arrays = {"codes": pairs.codes, "scores": scores}
    write_arrays(folder / PAIRS, arrays, pairs.images)
    write_json(folder / SCALE, scale._asdict())


class Judgement(NamedTuple):
    """Opinions of judges and people on pairs.

    Attributes:
        judges: names of the judges.
        pairs: that they were asked about.
        log_odds: [P, J] of each judge, by its default curve.
        answers: [P] of people: 1 the caption fits, 0 it does not; NaN where they have not decided.
        is_judged: bool [P], by people, sure or not.
        calibration: of all judges together, by the answers in their order.
        probabilities: [P] float32 that a pair is right after all; 0 where people found that it is not.
    """

    judges: tuple[str, ...]
    pairs: PairSet
    log_odds: np.ndarray
    answers: np.ndarray
    is_judged: np.ndarray
    calibration: Calibration
    probabilities: np.ndarray

    @classmethod
    def read(cls, folders: Mapping[str, Path], decided: Decided | None) -> Judgement:
        """Read what judges have scored, and calibrate it by people's decisions.

        Args:
            folders: of the scores, by the names of the judges; their pairs are the same.
            decided: pairs that people have judged; those without scores do not count.
        """
        columns = []
        for folder in folders.values():
            file = ArrayFile(folder / PAIRS)
            scale = Scale(**read_json(folder / SCALE))
            columns.append(scale.log_odds(file["scores"].read()))
        log_odds = np.stack(columns, axis=1)
        pairs = PairSet(file["codes"].read(), file.facts)
        decided = decided or Decided.of({}, np.array([], str), np.array([], str))
        answers, is_judged = decided.answers(pairs)
        is_decided = ~np.isnan(answers)
        calibration = calibrate(
            log_odds[is_decided],
            answers[is_decided] == 1,
            pairs.image_rows[is_decided],
        )
        probabilities = calibration.probabilities(log_odds)
        probabilities[answers == 0] = 0.0
        return cls(
            tuple(folders),
            pairs,
            log_odds,
            answers,
            is_judged,
            calibration,
            probabilities,
        )

    def counts(self, places_of: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Count candidates that are likelier right than not, and estimate the share that is right, by their rank.

        Args:
            places_of: direction -> places [A, K] of its candidates among the pairs, hardest first; -1 where there is
                none.

        Returns:
            Direction -> `marked`, how many, without what people found to fit; and `by_rank`, span of ranks, such as
            `3-5` -> share, see `itrpipe.judging.shares.Share`. Decisions correct the shares of both directions, or of
            none where one has fewer than `LEAST`, so that they can be compared.
        """
        hardest = [places[:, :ASKED].ravel() for places in places_of.values()]
        asked = np.unique(np.concatenate(hardest))
        asked = asked[asked >= 0]
        strata = np.zeros(len(self.pairs), np.int64)
        strata[asked] = strata_of(self.log_odds[asked].mean(axis=1))
        lots = lots_of(self.pairs)
        is_drawn = np.zeros(len(self.pairs), dtype=bool)
        is_drawn[asked] = drawn_at_random(
            strata[asked],
            lots[asked],
            self.is_judged[asked],
        )
        unseen = self.probabilities.copy()
        unseen[~np.isnan(self.answers)] = self.calibration.held_out

        is_corrected = True
        for places in hardest:
            is_corrected &= np.count_nonzero(is_drawn[places] & (places >= 0)) >= LEAST
        counted = {}
        for direction, places in places_of.items():
            anchors, columns = np.nonzero(places >= 0)
            pairs = places[anchors, columns]
            rows = np.flatnonzero(is_corrected & is_drawn[pairs] & (columns < ASKED))
            shares = share_by_rank(
                unseen[pairs],
                rows,
                self.answers[pairs[rows]],
                strata[pairs],
                columns + 1,
            )
            is_likely = (self.probabilities[pairs] > LIKELY) & (self.answers[pairs] != 1)
            counted[direction] = {
                "marked": int(is_likely.sum()),
                "by_rank": {span: share._asdict() for span, share in shares.items()},
            }
        return counted


def mark_lists(
    folder: Path,
    statistics: dict[str, Any],
    write: Callable[[str, slice, CandidateLists, np.ndarray | None], None],
    judgement: Judgement | None,
    decided: Decided | None,
) -> None:
    """Read lists, and write them without what people found to fit, with what judges say of the other candidates.

    Args:
        folder: of the lists as a search found them.
        statistics: of the search. What people dropped, what is left, and what judges, or people alone, call right after
            all is told anew; all else stays that of the search.
        write: takes the direction, rows of some anchors, their lists, and their probabilities [a, K] float32, 0 behind
            the last candidate; None without judges.
        judgement: of judges and people; None without judges.
        decided: pairs that people have judged.
    """
    places_of: dict[str, np.ndarray] = {}
    for direction in DIRECTIONS:
        figures = ListFigures(statistics["anchors"][direction], 1)
        left = 0
        empty = 0
        blocks = []
        for part, lists in list_blocks(folder, direction):
            if judgement is not None:
                blocks.append(matching(judgement.pairs.places, direction, part, lists))
            if decided is not None:
                fits = matching(decided.fits.has, direction, part, lists)
                differs = matching(decided.differs.has, direction, part, lists)
                figures.judge(fits | differs, fits)
                lists, _ = drop(lists, {"decisions": fits})
            is_missing = lists.candidates == NO_ROW
            left += int((~is_missing).sum())
            empty += int(is_missing[:, 0].sum())
            probability = None
            if judgement is not None:
                places = matching(judgement.pairs.places, direction, part, lists)
                of_pairs = judgement.probabilities[places]
                probability = np.where(places >= 0, of_pairs, np.float32(0))
            write(direction, part, lists, probability)
        if decided is not None:
            dropped = statistics["candidates"][direction] - left
            statistics["dropped"][direction]["decisions"] = dropped
        statistics["candidates"][direction] = left
        statistics["anchors_without_candidates"][direction] = empty
        if judgement is not None:
            places_of[direction] = np.concatenate(blocks)
        elif statistics["judge"] is None:
            statistics["right_after_all"][direction] = figures.right_after_all()
    if judgement is not None:
        calibration = judgement.calibration
        facts = {name: getattr(calibration, name) for name in _CALIBRATION_FIGURES}
        counts = judgement.counts(places_of)
        statistics["judged"] = {"judges": judgement.judges, **facts, **counts}
    elif statistics["judge"] is None:
        statistics["judge"] = PEOPLE
