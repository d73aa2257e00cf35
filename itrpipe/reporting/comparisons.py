"""Differences between a run and the run of the first training that it is fair to compare it with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from itrpipe.errors import DataError
from itrpipe.evaluation.bootstrap import Interval, paired_intervals
from itrpipe.evaluation.claims import excludes_zero
from itrpipe.evaluation.rsum import CUTOFFS
from itrpipe.reporting.collect import MODEL_INPUT, Run

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import Split

RECALLS = tuple(f"{direction}_r{k}" for direction in ("i2t", "t2i") for k in CUTOFFS)
COMPARED = (*RECALLS, "rsum")
_NAMED = 4
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Comparison:
    """One run against its first training.

    Attributes:
        run: of the second training.
        baseline: of the first training, with the same backbone, seed and features, on the same images, re-ranked alike.
        own: difference of every metric in `COMPARED`, a caption's own image being its only match.
        oracle: the same with all correct matches counted; None where the truth is not known.
    """

    run: Run
    baseline: Run
    own: dict[str, Interval]
    oracle: dict[str, Interval] | None


def check_rankings(runs: Iterable[Run], split: Split) -> None:
    """Makes sure that the rankings of runs are of the images and captions of a split, in their order.

    Raises:
        DataError: they are not.
    """
    ids = {"i2t": split.image_ids.tolist(), "t2i": split.caption_ids.tolist()}
    for run in runs:
        if any(run.rankings[side].ids != ids[side] for side in ids):
            raise DataError(
                f"{run.evaluation.folder}: its rankings are not of {run.prepare.path} {split.name}; evaluate again"
            )


def compare(runs: Sequence[Run], split: Split | None, samples: int, level: float) -> list[Comparison]:
    """Pairs every later run with its first training, where there is one.

    Args:
        runs: of one test set.
        split: they were evaluated on; None when the dataset was removed, and then nothing can be paired.
        samples: resampled test sets behind an interval.
        level: share of them that an interval holds.
    """
    found = []
    for run in runs:
        baseline = None if run.is_baseline else _baseline_of(run, runs)
        if baseline is None or split is None:
            continue
        own = _differences(run, baseline, split.caption_image, samples, level, oracle=False)
        assert own is not None
        oracle = _differences(run, baseline, split.caption_image, samples, level, oracle=True)
        found.append(Comparison(run, baseline, own, oracle))
    return found


def conclusion(comparisons: Sequence[Comparison], runs: Sequence[Run], split: Split | None, level: float) -> str:
    """What the differences in RSum allow to say, in one or two sentences; empty where none can be."""
    if all(run.is_about_training for run in runs):
        return ""
    if split is None:
        return "No difference is measured: the dataset was removed, and with it which captions belong to which image."
    if not comparisons and not any(_may_be_second_round(run) for run in runs):
        if not any(run.is_baseline for run in runs):
            return ""
        return "No difference to a first training is measured: no run was trained with negatives that one had mined."
    if not comparisons:
        return (
            "No difference is measured: no later run stands beside an evaluation of the first training that mined its "
            "negatives, on the same images."
        )
    percent = f"{100 * level:g} %"
    sentence = _one_conclusion(comparisons[0], percent) if len(comparisons) == 1 else _many(comparisons, percent)
    return f"{sentence}{_oracle_conclusion(comparisons)}{_caveat(comparisons)}"


def of_recalls(comparisons: Sequence[Comparison], level: float) -> str:
    """In how many of the single recalls the interval leaves out zero; empty when nothing is compared."""
    recalls = [each.own[name] for each in comparisons for name in RECALLS]
    if not recalls:
        return ""
    up, down = sum(each.low > 0 for each in recalls), sum(each.high < 0 for each in recalls)
    return (
        f"Of the {len(recalls)} differences in recall, the interval lies above zero in {up} and below zero in {down}; "
        f"were there no difference at all, {(1 - level) * len(recalls):.1f} would by chance."
    )


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign and a real minus; zero has none."""
    text = f"{abs(value):.{digits}f}"
    return text if not float(text) else f"{'+' if value > 0 else MINUS}{text}"


def interval_text(interval: Interval) -> str:
    """Both ends of the interval of a difference."""
    return f"{signed(interval.low)} to {signed(interval.high)}"


def _one_conclusion(comparison: Comparison, percent: str) -> str:
    rsum = comparison.own["rsum"]
    first = (
        f"{comparison.run.method} changes the RSum of {comparison.run.backbone} by {signed(rsum.value)} "
        f"({percent} interval {interval_text(rsum)})"
    )
    if excludes_zero(rsum):
        verdict = "The interval excludes zero: these two models differ, and other seeds of the methods may not."
    else:
        verdict = "The interval includes zero: this test set does not tell the two models apart."
    return f"{first}. {verdict}"


def _many(comparisons: Sequence[Comparison], percent: str) -> str:
    higher = [each for each in comparisons if each.own["rsum"].low > 0]
    lower = [each for each in comparisons if each.own["rsum"].high < 0]
    if not higher and not lower:
        return (
            f"Of {len(comparisons)} differences in RSum between single runs, every {percent} interval includes zero: "
            "this test set does not tell the models apart."
        )
    parts = [f"lies above zero in {_names(higher)}" if higher else ""]
    parts.append(f"lies below zero in {_names(lower)}" if lower else "")
    rest = len(comparisons) - len(higher) - len(lower)
    tail = f" and includes it in {rest}" if rest else ""
    return (
        f"Of {len(comparisons)} differences in RSum between single runs, the {percent} interval "
        f"{', '.join(filter(None, parts))}{tail}."
    )


def _oracle_conclusion(comparisons: Sequence[Comparison]) -> str:
    """What counting all correct matches changes; empty where the truth is not known."""
    oracle = [each.oracle["rsum"] for each in comparisons if each.oracle]
    if not oracle:
        return ""
    if len(oracle) == 1:
        (only,) = oracle
        what = f"the difference is {signed(only.value)} ({interval_text(only)})"
    else:
        what = f"{sum(map(excludes_zero, oracle)) or 'none'} of the {len(oracle)} intervals exclude zero"
    return f" With all correct matches counted, {what}."


def _caveat(comparisons: Sequence[Comparison]) -> str:
    """What the intervals leave out: seeds, and the training that a second training has behind it."""
    seeds = len({each.run.settings["seed"] for each in comparisons})
    counted = "one seed was" if seeds == 1 else f"{seeds} seeds were"
    intervals = f" These intervals cover the choice of images, not that of the seed ({counted} trained)."
    controls = list(dict.fromkeys(each.run.method for each in comparisons if each.run.is_control))
    if controls:
        return f"{intervals} A second training cost two trainings: judge it also against {' and '.join(controls)}."
    return f"{intervals} A second training cost two: a first one for as long is not compared here."


def _may_be_second_round(run: Run) -> bool:
    """Whether a member learned from the lists of a first training; of what was removed that is not known."""
    if run.is_baseline:
        return False
    return any(member.artifact.manifest is None for member in run.members) or run.mined_by(run.baseline_method)


def _names(comparisons: Sequence[Comparison]) -> str:
    if len(comparisons) > _NAMED:
        return str(len(comparisons))
    names = "; ".join(each.run.name for each in comparisons)
    return f"{len(comparisons)} ({names})"


def _baseline_of(run: Run, runs: Sequence[Run]) -> Run | None:
    """The first training of a run: the models whose negatives its members were trained with, where backbones agree.

    A member that learned from another backbone's lists, or whose lists were removed, is paired with the newest
    first training of its backbone, seed and features. An ensemble has the same members in both trainings. Scores
    that were re-ranked are compared with scores of as many candidates, never with those of all.
    """
    similar = [
        each
        for each in runs
        if each.is_baseline
        and each.settings["features"] == run.settings["features"]
        and each.rerank == run.rerank
        and _backbones_and_seeds(each) == _backbones_and_seeds(run)
        and _mined_with(run, each)
    ]
    return max(similar, key=lambda each: each.manifest.finished, default=None)


def _backbones_and_seeds(run: Run) -> list[tuple[str, int]]:
    return sorted((each.backbone_name, each.seed) for each in run.members)


def _mined_with(run: Run, baseline: Run) -> bool:
    """Whether no member of a run learned from lists of another first training of its backbone than the baseline's."""
    models = {(each.backbone_name, each.seed): each.artifact.fingerprint for each in baseline.members}
    for member in run.members:
        mining = member.mining.manifest if member.mining else None
        if mining is None or mining.settings["backbone"] != member.backbone_name:
            continue
        if mining.inputs[MODEL_INPUT].fingerprint != models[member.backbone_name, member.seed]:
            return False
    return True


def _differences(
    run: Run, baseline: Run, caption_image: np.ndarray, samples: int, level: float, *, oracle: bool
) -> dict[str, Interval] | None:
    before, after = baseline.ranks(oracle=oracle), run.ranks(oracle=oracle)
    if before is None or after is None:
        return None
    found = paired_intervals(before, after, caption_image, samples, level)
    return {name: found[name] for name in COMPARED}
