"""The figures of one evaluation: every protocol with its intervals, as they are written, printed and summed up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from itrpipe.datasets.truth import PairSet
from itrpipe.evaluation.bootstrap import Interval, fold_intervals, mean_intervals
from itrpipe.evaluation.metrics import (
    CUTOFFS,
    PROTOCOLS,
    RECALLS,
    RSUM,
    SIDES,
    Ranks,
    metrics,
    protocol_folds,
    random_recalls,
    ranks_of_matches,
)
from itrpipe.evaluation.precision import precision_of_matches
from itrpipe.evaluation.tables import Number, Row, Table, as_lines
from itrpipe.features.embeddings import SplitScores
from itrpipe.progress import Reporter

FULL, ORACLE = "full", "oracle"
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Measurement:
    """How figures are measured.

    Attributes:
        protocols: those beside the full one.
        samples: resampled test sets behind every interval.
        level: share of them that an interval holds.
        where: the split, for messages.
        warn: is told of protocols that need more images.
    """

    protocols: Sequence[str]
    samples: int
    level: float
    where: str
    warn: Callable[[str], None]

    def results(
        self, split: SplitScores, full: Ranks, oracle: Ranks | None, matches: PairSet | None
    ) -> dict[str, Figures]:
        """Protocol -> metric -> value, low and high; of median ranks the value alone.

        Args:
            split: scores.
            full: ranks with a caption's own image as its only match.
            oracle, matches: ranks with all correct matches counted, and these, where they are known.
        """
        images = len(split.matrix)
        found = {FULL: self._recalls([(full, split.caption_image)])}
        for name in self.protocols:
            if name == FULL:
                continue
            if not PROTOCOLS[name].applies(images):
                self.warn(f"{name} needs {PROTOCOLS[name].images:,} images, {self.where} has {images:,}")
                continue
            found[name] = self._recalls(protocol_folds(name, split.matrix, split.caption_image))
        if oracle is not None and matches is not None:
            found[ORACLE] = self.with_matches(split, oracle, matches)
        return found

    def with_matches(self, split: SplitScores, ranks: Ranks, matches: PairSet) -> Figures:
        """Recalls by ranks of the best of several matches, and mAP@R and R-Precision of all of them, in percent."""
        found = self._recalls([(ranks, split.caption_image)])
        pairs, images = (matches.image_rows, matches.caption_rows), len(split.matrix)
        sides = (split.matrix, pairs, np.arange(images)), (split.matrix.T, pairs[::-1], split.caption_image)
        for side, (scores, own, query_image) in zip(SIDES, sides, strict=True):
            precision = precision_of_matches(scores, *own)
            percent = {
                f"{side}_map_at_r": 100.0 * precision.average,
                f"{side}_r_precision": 100.0 * precision.r_precision,
            }
            found |= _figures(mean_intervals(percent, query_image, images, self.samples, self.level))
        return found

    def _recalls(self, folds: Sequence[tuple[Ranks, np.ndarray]]) -> Figures:
        measured = [metrics(ranks) for ranks, _ in folds]
        means = {name: {"value": sum(each[name] for each in measured) / len(folds)} for name in measured[0]}
        return means | _figures(fold_intervals(folds, self.samples, self.level))


def oracle_ranks(split: SplitScores, matches: PairSet) -> Ranks:
    """Ranks of the best correct match, with all correct matches of a caption, and of an image, counted."""
    return ranks_of_matches(split.matrix, matches.image_rows, matches.caption_rows)


def say_results(results: Mapping[str, Figures], level: float, size: tuple[int, int], reporter: Reporter) -> None:
    """Prints the recalls and RSum under every protocol, below them their intervals, and what chance gives.

    Args:
        results: of an evaluation.
        level: share of resampled test sets that its intervals hold.
        size: images and captions of the split.
        reporter: prints.
    """
    names = [*RECALLS, RSUM]
    rows = [Row(name, [Number.of(values[each]) for each in names]) for name, values in results.items()]
    rows.append(Row("chance", [Number(random_recalls(*size)[each]) for each in names]))
    columns = [f"{side[0]}→{side[2]} R@{k}" for side in SIDES for k in CUTOFFS] + ["RSum"]
    told = f"; {ORACLE}: all correct matches counted" if ORACLE in results else ""
    title = f"In percent, with {100 * level:g} % bootstrap intervals over images{told}"
    reporter.say_lines("\n".join(as_lines(Table(title, columns, rows, head=""))))


def summed_up(results: Mapping[str, Figures]) -> dict[str, Any]:
    """The numbers that tables of artifacts show."""
    shown: dict[str, Any] = {}
    for direction in SIDES:
        recalls = [results[FULL][f"{direction}_r{k}"]["value"] for k in CUTOFFS]
        shown[f"{direction} R@1/5/10"] = " / ".join(f"{value:.1f}" for value in recalls)
    return shown | {f"{name} rsum": round(values[RSUM]["value"], 2) for name, values in results.items()}


def _figures(found: Mapping[str, Interval]) -> Figures:
    return {name: {"value": each.value, "low": each.low, "high": each.high} for name, each in found.items()}
