"""Figures on mined lists: how hard the negatives are, beside their positives, and what the filters took away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from itrpipe.mining.lists import DIRECTIONS, NO_ROW, CandidateLists
from itrpipe.printable import aligned, quantity

QUANTILES = {
    "minimum": 0.0,
    "lower_quartile": 0.25,
    "median": 0.5,
    "upper_quartile": 0.75,
    "maximum": 1.0,
}
SAMPLED_SCORES = 1 << 22
TOPS = (1, 10)
"""Depths of the lists at which candidates that are right after all are counted."""
DATASET = "the dataset"
PEOPLE = "people"
"""Who judges which candidates are right after all: the one or the other."""
BEATEN = {
    "texts_for_images": "hardest_text_beats_own_caption_percent",
    "images_for_texts": "hardest_image_beats_own_image_percent",
}
POSITIVE_LIMITS = ("absolute_margin", "relative_margin")
"""Filters that cut what scores close to the positive or above it."""
WORDS = {"texts_for_images": "captions for images", "images_for_texts": "images for captions"}
_COLUMNS = ("lowest", "25 %", "median", "75 %", "highest")
_OWN = {"texts_for_images": "own caption", "images_for_texts": "own image"}
_ANCHORS = {"texts_for_images": "images", "images_for_texts": "captions"}
_LENGTHS = {"texts_for_images": "num_texts", "images_for_texts": "num_images"}
_DIGITS = 4
_FEW = 0.5
"""Share of the candidates left below which lists are called short."""
_EMPTY = 0.01
"""Share of the anchors without candidates above which lists are called short."""


class ListFigures:
    """Counts and scores of the lists of one direction after all filters; it sees them some anchors at a time.

    Quantiles are those of the scores of every n-th anchor, where there are more than `SAMPLED_SCORES`.

    Args:
        anchors: A.
        width: K.
    """

    def __init__(self, anchors: int, width: int) -> None:
        self.anchors = anchors
        self.candidates = self.anchors_without_candidates = 0
        self.dropped: Counter[str] = Counter()
        self.judged: Counter[int] = Counter()
        self.right: Counter[int] = Counter()
        self.hardest = np.full(anchors, np.nan, dtype=np.float32)
        self._step = -(-anchors * width // SAMPLED_SCORES)
        self._sample: list[np.ndarray] = []
        self._lowest = np.inf
        self._highest = -np.inf

    def add(
        self,
        part: slice,
        lists: CandidateLists,
        dropped: Mapping[str, int],
    ) -> None:
        """Count the lists of consecutive anchors, and what each filter took from them."""
        is_real = lists.candidates != NO_ROW
        has_some = is_real[:, 0]
        scores = lists.scores[is_real]
        self.candidates += len(scores)
        self.anchors_without_candidates += int((~has_some).sum())
        self.dropped.update(dropped)
        hardest = lists.scores[:, 0]
        self.hardest[part] = np.where(has_some, hardest, np.nan)
        self._lowest = float(scores.min(initial=self._lowest))
        self._highest = float(scores.max(initial=self._highest))
        chosen = slice(-part.start % self._step, None, self._step)
        self._sample.append(lists.scores[chosen][is_real[chosen]])

    def judge(self, judged: np.ndarray, right: np.ndarray) -> None:
        """Count the candidates that were judged at each depth of `TOPS`, and those that are right after all.

        Args:
            judged: [A, K] bool, hardest candidates first.
            right: [A, K] bool, some of these.
        """
        for top in TOPS:
            self.judged[top] += int(judged[:, :top].sum())
            self.right[top] += int(right[:, :top].sum())

    def right_after_all(self) -> dict[str, dict[str, Any]]:
        """Return how many candidates were judged at each depth, and the percent that is right, None of none."""
        counts = {}
        for top in TOPS:
            judged = self.judged[top]
            percent = 100 * self.right[top] / judged if judged else None
            counts[f"top_{top}"] = {"judged": judged, "percent": percent}
        return counts

    def quantiles(self) -> dict[str, float] | None:
        """Return the quantiles of the scores; None without any."""
        if not self.candidates:
            return None
        ends = np.array([self._lowest, self._highest])
        sample = np.concatenate(self._sample)
        quantiles = _quantiles(sample) or _quantiles(ends) or {}
        quantiles["minimum"] = round(self._lowest, _DIGITS)
        quantiles["maximum"] = round(self._highest, _DIGITS)
        return quantiles


def mining_statistics(
    figures: Mapping[str, ListFigures],
    positives: np.ndarray,
    caption_image: np.ndarray,
) -> dict[str, Any]:
    """Return figures on both directions, ready for JSON.

    A margin is the score of a caption with its image less that of the hardest negative: of the image, where texts
    are mined for images, else of the caption. There are as many margins as captions with an image, less those whose
    anchor has no candidate left.

    Args:
        figures: direction -> counts and scores of its lists.
        positives: [T] score of every caption with its image, NaN for a caption of none.
        caption_image: [T] image row of each caption.

    Returns:
        Quantiles under `positive_score`, under each direction (of its negatives) and under the direction with
        `_margin` behind it, None where no candidate is left; the percent of pairs whose hardest negative scores at
        least as high as the positive; and by direction `candidates`, `anchors`, `anchors_without_candidates`,
        `dropped` and `right_after_all`.
    """
    owned = ~np.isnan(positives)
    anchors = {
        DIRECTIONS[0]: caption_image[owned],
        DIRECTIONS[1]: owned,
    }
    statistics: dict[str, Any] = {}
    statistics["positive_score"] = _quantiles(positives[owned])
    for direction in DIRECTIONS:
        margins = positives[owned] - figures[direction].hardest[anchors[direction]]
        margins = margins[~np.isnan(margins)]
        beaten = None
        if len(margins):
            share = float((margins <= 0).mean())
            beaten = round(100 * share, 2)
        statistics[direction] = figures[direction].quantiles()
        statistics[f"{direction}_margin"] = _quantiles(margins)
        statistics[BEATEN[direction]] = beaten
    statistics["right_after_all"] = {name: figures[name].right_after_all() for name in DIRECTIONS}
    for key in ("candidates", "anchors", "anchors_without_candidates", "dropped"):
        statistics[key] = {name: getattr(figures[name], key) for name in DIRECTIONS}
    return statistics


def _quantiles(values: np.ndarray) -> dict[str, float] | None:
    if not len(values):
        return None
    quantiles = np.quantile(values, list(QUANTILES.values()))
    return dict(zip(QUANTILES, quantiles.round(_DIGITS).tolist(), strict=True))


def summary(statistics: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines for a terminal: the quantiles as a table, and `sentences`.

    Args:
        statistics: as of `sentences`, with `duplicates`.
    """
    keys = {"caption with its own image": "positive_score"}
    for name, words in WORDS.items():
        keys[f"mined {words}"] = name
        keys[f"  {_OWN[name]} minus hardest"] = f"{name}_margin"
    rows: list[tuple[str, ...]] = [("score", *_COLUMNS)]
    for title, key in keys.items():
        quantiles = statistics[key]
        cells = ["–"] * len(_COLUMNS)
        if quantiles:
            cells = [f"{quantiles[name]:.3f}" for name in QUANTILES]
        rows.append((title, *cells))
    yield from aligned(rows)
    for sentence in sentences(statistics):
        yield f"  {sentence}"
    repeats = statistics["duplicates"]["captions_of_other_images"]
    if repeats:
        yield f"  {repeats:,} captions belong word for word to another image too"


def beaten_percent(statistics: Mapping[str, Any], direction: str) -> float | None:
    """Return the percent of the pairs whose hardest negative scores at least as high as the positive.

    It is None where no candidate is left, or where a margin cut those that would: then it tells nothing of the model.
    """
    for limit in POSITIVE_LIMITS:
        if limit in statistics["dropped"][direction]:
            return None
    return statistics[BEATEN[direction]]


def sentences(statistics: Mapping[str, Any]) -> list[str]:
    """Say in sentences, one per fact, what quantiles do not.

    Args:
        statistics: of `mining_statistics`, with `judge`, who judges candidates or None; with `search`, `rescored` and
            `judged` where an index, a second model or judges were used.
    """
    lines = []
    search = statistics.get("search")
    if search:
        for direction, words in WORDS.items():
            lines.append(
                f"{words}: found {100 * search['recall'][direction]:.1f}% of what exact search finds, searching "
                f"{search['num_probes'][direction]:,} of {search['num_lists'][direction]:,} clusters"
            )
    second = statistics.get("rescored")
    if second:
        lines.append(
            f"the hardest {second['texts']:,} texts and {second['images']:,} images of each list are in the order of "
            f"{second['model']}, whose scores these are"
        )
    for direction in WORDS:
        lines += _length_sentences(statistics, direction)
    lines += judged_sentences(statistics)
    for direction, words in WORDS.items():
        facts = []
        beaten = beaten_percent(statistics, direction)
        if beaten is not None:
            facts.append(f"the hardest scores at least as high as the {_OWN[direction]} in {beaten:.1f} % of the pairs")
        right = statistics["right_after_all"][direction]["top_1"]
        if right["judged"]:
            people = ""
            if statistics["judge"] == PEOPLE:
                people = f" of {right['judged']:,} that people judged"
            facts.append(f"{right['percent']:.1f} % of the hardest{people} are right after all")
        if facts:
            lines.append(f"{words}: {'; '.join(facts)}")
    if statistics["judge"] is None and "judged" not in statistics:
        lines.append("how many of the hardest are right after all is not known: nobody has judged them")
    return lines


def _length_sentences(statistics: Mapping[str, Any], direction: str) -> list[str]:
    """Say how many candidates the lists of a direction hold, what was cut, and whether they are short."""
    words = WORDS[direction]
    candidates = statistics["candidates"][direction]
    dropped = statistics["dropped"][direction]
    anchors = statistics["anchors"][direction]
    empty = statistics["anchors_without_candidates"][direction]
    total = candidates + sum(dropped.values())
    lines = [f"{words}: {candidates:,} candidates for {anchors:,} {_ANCHORS[direction]}"]
    for reason, count in dropped.items():
        line = f"{words}: {count:,} of {total:,} candidates cut by {reason}"
        if reason in POSITIVE_LIMITS and count:
            line += f", with all that score above the {_OWN[direction]}"
        lines.append(line)
    if empty:
        lines.append(f"{words}: {empty:,} of {anchors:,} {_ANCHORS[direction]} have none left")
    if candidates < _FEW * total or empty > _EMPTY * anchors:
        left = f"{candidates / anchors:.1f} of {total / anchors:.1f} candidates on average"
        warning = f"warning: {words}: lists are short, {left}"
        if dropped:
            reason = max(dropped, key=lambda name: dropped[name])
            warning += f"; loosen {reason}"
            if reason == "range_min":
                # Ranks are counted within a list, so that a longer list has more of them beyond `range_min`.
                warning += f" or raise {_LENGTHS[direction]}"
        lines.append(warning)
    return lines


def judged_sentences(statistics: Mapping[str, Any]) -> list[str]:
    """Say in sentences how many candidates are right after all by judges, see `sentences`; nothing without judges."""
    judged = statistics.get("judged")
    if judged is None:
        return []
    from itrpipe.judging.shares import LEAST, TEN_HARDEST  # most lists are not judged

    judges = " and ".join(judged["judges"])
    decisions = quantity(judged["decisions"], "decision")
    if not judged["knows"]:
        return [f"{judges}: by {decisions}, this judge knows nothing here, so that nothing is marked"]
    lines = []
    if judged["auc"]:
        area, low, high = judged["auc"]
        lines.append(f"{judges}: AUC {area:.2f} ({low:.2f}–{high:.2f}) by {decisions}")
    for direction, words in WORDS.items():
        share = judged[direction]["by_rank"].get(TEN_HARDEST)
        if share is None:
            continue
        checked = "mean probability by its default curve, which nobody has checked"
        if judged["decisions"] >= LEAST:
            checked = (
                f"mean probability by its calibrated curve alone: of one direction, fewer than {LEAST} decisions came "
                "at random"
            )
        if share["decisions"]:
            decisions = quantity(share["decisions"], "decision")
            checked = f"{100 * share['low']:.0f}–{100 * share['high']:.0f} %, {decisions}"
        lines.append(
            f"{words}: by {judges}, {100 * share['value']:.0f} % of the ten hardest training candidates are right "
            f"after all ({checked})"
        )
    counts = []
    for direction, words in WORDS.items():
        counts.append(f"{judged[direction]['marked']:,} of {statistics['candidates'][direction]:,} {words}")
    lines.append(f"{' and '.join(counts)} are likelier right than not (probability above one half)")
    return lines
