"""Methods compared over seeds: the choice of the seed and that of the test images each have their own interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from itrpipe.config import load_declaration
from itrpipe.datasets.prepared import Split
from itrpipe.evaluation.bootstrap import Interval, paired_mean_intervals
from itrpipe.evaluation.protocols import metrics
from itrpipe.evaluation.ranks import Ranks
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import COMPARED, excludes_zero, signed
from itrpipe.reporting.series import Series
from itrpipe.reporting.student_t import quantile_within
from itrpipe.reporting.tables import FULL, ORACLE
from itrpipe.reporting.titles import method_title


@dataclass(frozen=True)
class Difference:
    """Mean over seeds of the difference of one metric.

    Attributes:
        value: the mean.
        seeds: interval over seeds, of Student's t distribution.
        images: interval over test images, of the paired bootstrap.
    """

    value: float
    seeds: Interval
    images: Interval

    @property
    def is_real(self) -> bool:
        """Whether both intervals exclude zero."""
        return excludes_zero(self.seeds) and excludes_zero(self.images)


@dataclass(frozen=True)
class SeedComparison:
    """A method against round one or one of its controls.

    Attributes:
        series: of the method.
        reference: of round one or a control, with the same backbones and features, re-ranked alike.
        seeds: that both have, two at least.
        own: difference of every metric in `COMPARED`, a caption's own image being its only match.
        oracle: the same with every true match counted; None where the truth is not known.
    """

    series: Series[Run]
    reference: Series[Run]
    seeds: list[int]
    own: dict[str, Difference]
    oracle: dict[str, Difference] | None


@dataclass(frozen=True)
class Spread:
    """Mean over seeds; the standard deviation is None for a single seed."""

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class SeedScores:
    """What a method reaches and costs.

    Attributes:
        series: of the method.
        seeds: that were evaluated.
        own: of every metric in `COMPARED`.
        oracle: the same with every true match counted; None where the truth is not known.
        seconds: mean cost of training, of a later round with round one and mining; None when part was removed.
    """

    series: Series[Run]
    seeds: list[int]
    own: dict[str, Spread]
    oracle: dict[str, Spread] | None
    seconds: float | None


@dataclass(frozen=True)
class Seeds:
    """Everything that several seeds allow to say of the runs on one test set.

    Attributes:
        scores: of all methods, best mean RSum first.
        comparisons: of methods with round one and its controls.
        missing: one sentence for each comparison that could not be made.
        removed: names of runs that are left out because their models were removed.
    """

    scores: list[SeedScores]
    comparisons: list[SeedComparison]
    missing: list[str]
    removed: list[str]

    @property
    def conclusions(self) -> list[str]:
        """One sentence for each comparison: which of its intervals exclude zero."""
        return [_conclusion(each) for each in self.comparisons]

    @property
    def summary(self) -> str:
        """How many differences are real; empty when none was measured."""
        return _summary(self.comparisons)


def over_seeds(
    series: Sequence[Series[Run]], split: Split | None, samples: int, level: float, baseline_method: str
) -> Seeds | None:
    """Compares every method with round one and every control that was trained with the same seeds.

    Args:
        series: of all runs on one test set.
        split: they were evaluated on; None when the dataset was removed, and then nothing can be paired.
        samples: resampled test sets behind an interval over test images.
        level: share of seeds, or of test sets, that an interval holds.
        baseline_method: the method of round one.

    Returns:
        None when no method has two seeds.
    """
    known = [each for each in series if each.known]
    if not any(len(by_seed(each)) > 1 for each in known):
        return None
    references = [each for each in known if each.first.is_baseline or each.first.is_control]
    compared = [each for each in known if each not in references and len(by_seed(each)) > 1]
    pairs = [(one, other) for one in compared for other in references if split and _comparable(one, other)]
    comparisons = [_compared(*pair, split.caption_image, samples, level) for pair in pairs if split]
    scores = sorted((_scores(each) for each in known), key=lambda each: -each.own["rsum"].mean)
    removed = [run.name for each in series if not each.known for run in each.all]
    return Seeds(scores, comparisons, _missing(compared, pairs, baseline_method) if split else [], removed)


def by_seed(series: Series[Run]) -> dict[int, Run]:
    """The newest run of every seed."""
    ordered = sorted(series.all, key=lambda run: run.manifest.finished)
    return dict(sorted({run.seed: run for run in ordered}.items()))


def _summary(comparisons: Sequence[SeedComparison]) -> str:
    rsums = [each.own["rsum"] for each in comparisons]
    if not rsums:
        return ""
    up, down = (sum(each.is_real and sign * each.value > 0 for each in rsums) for sign in (1, -1))
    if len(rsums) == 1:
        kind = "a real gain" if up else "a real loss" if down else "not shown to be real"
        counted = f"the one mean difference in RSum to round one or a control is {kind}"
    else:
        counted = (
            f"of {len(rsums)} mean differences in RSum to round one or a control, {up or 'none'} "
            f"{'are' if up > 1 else 'is'} real and positive, {down or 'none'} real and negative"
        )
    return (
        f"Across seeds, {counted}. Real means that the interval over seeds and the interval over test images both "
        "exclude zero."
    )


def _comparable(series: Series[Run], reference: Series[Run]) -> bool:
    """Whether both are of the same backbones and features, re-ranked alike or not at all, and share two seeds."""
    return _kind(series) == _kind(reference) and len(_shared_seeds(series, reference)) > 1


def _kind(series: Series[Run]) -> tuple[list[str], str, int]:
    run = series.first
    return sorted(each.backbone_name for each in run.members), run.settings["features"], run.rerank


def _shared_seeds(series: Series[Run], reference: Series[Run]) -> list[int]:
    return sorted(by_seed(series).keys() & by_seed(reference).keys())


def _missing(
    compared: Sequence[Series[Run]], pairs: Sequence[tuple[Series[Run], Series[Run]]], baseline_method: str
) -> list[str]:
    """Sentences that name round one and every declared control that a second round is not compared with."""
    controls = [name for name in load_declaration("train").confs if name.startswith(f"{baseline_method}-")]
    found = []
    for each in compared:
        if not any(member.mining for member in each.first.members):
            continue  # it has no first round
        done = {member.method_name for one, other in pairs if one is each for member in other.first.members}
        found += [
            f"{each.name} is not compared with {method_title(name, baseline_method)} ({name}): no evaluation of it"
            f"{', re-ranked alike,' if each.first.rerank else ''} shares two seeds."
            for name in (baseline_method, *controls)
            if name not in done
        ]
    return found


def _compared(
    series: Series[Run], reference: Series[Run], caption_image: np.ndarray, samples: int, level: float
) -> SeedComparison:
    seeds = _shared_seeds(series, reference)
    runs = [(by_seed(reference)[seed], by_seed(series)[seed]) for seed in seeds]
    own, oracle = (
        _differences(
            [(before.ranks(oracle=counted), after.ranks(oracle=counted)) for before, after in runs],
            caption_image,
            samples,
            level,
        )
        for counted in (False, True)
    )
    assert own is not None
    return SeedComparison(series, reference, seeds, own, oracle)


def _differences(
    pairs: Sequence[tuple[Ranks | None, Ranks | None]], caption_image: np.ndarray, samples: int, level: float
) -> dict[str, Difference] | None:
    known = [(before, after) for before, after in pairs if before is not None and after is not None]
    if len(known) < len(pairs):
        return None
    images = paired_mean_intervals(known, caption_image, samples, level)
    measured = [(metrics(before), metrics(after)) for before, after in known]
    found = {}
    for name in COMPARED:
        interval = seed_interval([after[name] - before[name] for before, after in measured], level)
        found[name] = Difference(interval.value, interval, images[name])
    return found


def seed_interval(differences: Sequence[float], level: float) -> Interval:
    """Mean of the differences of n seeds with its interval, Student's t with n - 1 degrees of freedom.

        mean ± t * s / sqrt(n)

    Args:
        differences: one for each seed, two at least.
        level: 0..1.

    Source: Student, 1908, on paired differences.
    """
    count, mean = len(differences), float(np.mean(differences))
    half = quantile_within(level, count - 1) * float(np.std(differences, ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def _scores(series: Series[Run]) -> SeedScores:
    runs = by_seed(series)
    measured = [run.metrics for run in runs.values()]
    seconds = [run.seconds for run in runs.values()]
    known = [each for each in seconds if each is not None]
    return SeedScores(
        series,
        list(runs),
        _spreads([each[FULL] for each in measured]),
        _spreads([each[ORACLE] for each in measured]) if all(ORACLE in each for each in measured) else None,
        float(np.mean(known)) if len(known) == len(seconds) else None,
    )


def _spreads(measured: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, Spread]:
    return {name: spread([each[name]["value"] for each in measured]) for name in COMPARED}


def spread(values: Sequence[float]) -> Spread:
    """Mean and, of several values, their standard deviation."""
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None)


def _conclusion(comparison: SeedComparison) -> str:
    rsum = comparison.own["rsum"]
    sentence = (
        f"{comparison.series.name} against {comparison.reference.method}, {len(comparison.seeds)} seeds: "
        f"RSum {signed(rsum.value)}; {_verdict(rsum)}"
    )
    if comparison.oracle is None:
        return f"{sentence}."
    oracle = comparison.oracle["rsum"]
    counted = "the same" if _verdict(oracle) == _verdict(rsum) else _verdict(oracle)
    return f"{sentence}; with every true match counted as right {signed(oracle.value)}, {counted}."


def _verdict(difference: Difference) -> str:
    seeds, images = excludes_zero(difference.seeds), excludes_zero(difference.images)
    if seeds and images:
        return f"both intervals exclude zero: a real {'gain' if difference.value > 0 else 'loss'}"
    if not seeds and not images:
        return "both intervals include zero: not shown to be real"
    excluding, including = ("seeds", "test images") if seeds else ("test images", "seeds")
    return f"only the interval over {excluding} excludes zero, that over {including} does not: not shown to be real"
