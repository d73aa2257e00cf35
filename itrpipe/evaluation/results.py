"""The figures of one evaluation: every protocol with its intervals, as they are written, printed and summed up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.progress import Reporter

if TYPE_CHECKING:
    import numpy as np

    from itrpipe.datasets.truth import PairSet
    from itrpipe.evaluation.bootstrap import Interval
    from itrpipe.evaluation.ranks import Ranks
    from itrpipe.features.embeddings import SplitScores

FULL, ORACLE = "full", "oracle"
RESULT_PROTOCOLS = (FULL, "coco-1k", "coco-5k")
"""Names in `itrpipe.evaluation.protocols`."""
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Matches:
    """All correct matches of a split.

    Attributes:
        offsets: [T + 1], where the images of each caption begin.
        images: their rows.
    """

    offsets: np.ndarray
    images: np.ndarray

    @classmethod
    def read(cls, prepared: Path, split: SplitScores) -> Matches | None:
        """Those of a dataset; None where it does not know them."""
        import numpy as np

        from itrpipe.datasets.truth import read_truth

        truth = read_truth(prepared, split.image_ids, split.caption_ids)
        if truth is None:
            return None
        return cls(np.concatenate([[0], np.cumsum([len(rows) for rows in truth])]), np.concatenate(truth))

    @classmethod
    def of(cls, pairs: PairSet, captions: int) -> Matches:
        """Those of a set in which each of so many captions has one at least."""
        import numpy as np

        return cls(np.searchsorted(pairs.caption_rows, np.arange(captions + 1)), pairs.image_rows)


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
        self, split: SplitScores, full: Ranks, oracle: Ranks | None, matches: Matches | None
    ) -> dict[str, Figures]:
        """Protocol -> metric -> value, low and high; of median ranks the value alone.

        Args:
            split: scores.
            full: ranks with a caption's own image as its only match.
            oracle, matches: ranks with all correct matches counted, and these, where they are known.
        """
        from itrpipe.evaluation.protocols import PROTOCOLS, protocol_folds

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

    def with_matches(self, split: SplitScores, ranks: Ranks, matches: Matches) -> Figures:
        """Recalls by ranks of the best of several matches, and how well all of them are gathered."""
        return self._recalls([(ranks, split.caption_image)]) | self._precision(split, matches)

    def _recalls(self, folds: Sequence[tuple[Ranks, np.ndarray]]) -> Figures:
        from itrpipe.evaluation.bootstrap import fold_intervals
        from itrpipe.evaluation.protocols import metrics

        measured = [metrics(ranks) for ranks, _ in folds]
        means = {name: {"value": sum(each[name] for each in measured) / len(folds)} for name in measured[0]}
        return means | _figures(fold_intervals(folds, self.samples, self.level))

    def _precision(self, split: SplitScores, matches: Matches) -> Figures:
        """mAP@R and R-Precision with all correct matches counted, in percent."""
        import numpy as np

        from itrpipe.evaluation.bootstrap import mean_intervals
        from itrpipe.evaluation.oracle import oracle_precision

        found = oracle_precision(split.matrix, matches.offsets, matches.images)
        images, values = len(split.matrix), {}
        for side, query_image in (("i2t", np.arange(images)), ("t2i", split.caption_image)):
            percent = {
                f"{side}_map_at_r": 100.0 * found[side].average,
                f"{side}_r_precision": 100.0 * found[side].r_precision,
            }
            values |= mean_intervals(percent, query_image, images, self.samples, self.level)
        return _figures(values)


def say_results(results: Mapping[str, Figures], level: float, size: tuple[int, int], reporter: Reporter) -> None:
    """Prints the recalls and RSum under every protocol, below them their intervals, and what chance gives.

    Args:
        results: of an evaluation.
        level: share of resampled test sets that its intervals hold.
        size: images and captions of the split.
        reporter: prints.
    """
    from itrpipe.evaluation.chance import random_recalls
    from itrpipe.evaluation.rsum import CUTOFFS

    titles = [f"{side} R@{k}" if k == CUTOFFS[0] else f"R@{k}" for side in ("i2t", "t2i") for k in CUTOFFS]
    metrics = [*(f"{side}_r{k}" for side in ("i2t", "t2i") for k in CUTOFFS), "rsum"]
    percent = f"{100 * level:g} %"
    reporter.say(_line("", [*titles, "RSum"]))
    for name, values in results.items():
        found = [values[metric] for metric in metrics]
        reporter.say(_line(name, [f"{each['value']:.1f}" for each in found]))
        reporter.say(_line(f" {percent}", [_span(each["low"], each["high"]) for each in found]))
    chance = random_recalls(*size)
    reporter.say(_line("chance", [f"{chance[metric]:.1f}" for metric in metrics]))
    meaning = f"  {percent}: bootstrap interval over images"
    reporter.say(f"{meaning}; {ORACLE}: all correct matches counted" if ORACLE in results else meaning)


def summed_up(results: Mapping[str, Figures]) -> dict[str, Any]:
    """The numbers that tables of artifacts show."""
    from itrpipe.evaluation.rsum import CUTOFFS

    shown: dict[str, Any] = {}
    for direction in ("i2t", "t2i"):
        recalls = [results[FULL][f"{direction}_r{k}"]["value"] for k in CUTOFFS]
        shown[f"{direction} R@1/5/10"] = " / ".join(f"{value:.1f}" for value in recalls)
    return shown | {f"{name} rsum": round(values["rsum"]["value"], 2) for name, values in results.items()}


def _figures(found: Mapping[str, Interval]) -> Figures:
    return {name: {"value": each.value, "low": each.low, "high": each.high} for name, each in found.items()}


def _line(name: str, cells: Sequence[str]) -> str:
    """Below 80 columns wide: a name, six recalls and RSum."""
    first, *others, last = cells
    return f"  {name:<7}{first:>9}" + "".join(f"{cell:>10}" for cell in others) + f"{last:>12}"


def _span(low: float, high: float) -> str:
    """Both ends; 100 % has no decimals, so that ten characters hold every interval of a recall and a blank."""
    return f"{low:.1f}\N{EN DASH}{high:.1f}".replace("100.0", "100")
