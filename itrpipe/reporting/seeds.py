"""Methods compared with the first training and with baselines: the choice of the seed and that of the test images.

Each of the two has its own interval; `itrpipe.evaluation.claims` says what they allow to call significant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.evaluation.bootstrap import paired_mean_intervals
from itrpipe.evaluation.claims import Difference, seed_interval, significances
from itrpipe.evaluation.protocols import metrics
from itrpipe.evaluation.ranks import Ranks
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import COMPARED
from itrpipe.reporting.controls import controls_of, is_control_of, is_reference_of
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import FULL, ORACLE
from itrpipe.reporting.titles import method_title


@dataclass(frozen=True)
class SeedComparison:
    """A method against the first training or one of its baselines.

    Attributes:
        series: of the method.
        reference: of the first training, a baseline or the model that training began with, re-ranked alike.
        seeds: that both have.
        own: difference of every metric in `COMPARED`, a caption's own image being its only match.
        oracle: the same with all correct matches counted; None where the truth is not known.
    """

    series: Series[Run]
    reference: Series[Run]
    seeds: list[int]
    own: dict[str, Difference]
    oracle: dict[str, Difference] | None

    @property
    def is_controlled(self) -> bool:
        """Whether the reference is a control of the series, see `itrpipe.reporting.controls.is_control_of`."""
        return is_control_of(self.reference.first, self.series.first)


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
        oracle: the same with all correct matches counted; None where the truth is not known.
        seconds: mean cost of training, see `Run.seconds`; None when part was removed.
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
        comparisons: of methods with the first training and its baselines.
        missing: one sentence for each comparison that could not be made.
        removed: names of runs that are left out because their models were removed.
    """

    scores: list[SeedScores]
    comparisons: list[SeedComparison]
    missing: list[str]
    removed: list[str]


def compare_with_references(
    series: Sequence[Series[Run]], split: Split | None, samples: int, level: float, baseline_method: str
) -> list[SeedComparison]:
    """Compares every method with the first training and with its own baselines that were trained with the same seeds.

    Args:
        series: of all runs on one test set.
        split: they were evaluated on; None when the dataset was removed, and then nothing can be paired.
        samples: resampled test sets behind an interval over images.
        level: share of seeds, or of test sets, that an interval holds.
        baseline_method: the method of the first training.
    """
    known = [each for each in series if each.known]
    pairs = [(one, other) for one in known for other in known if _comparable(one, other, baseline_method)]
    return [compared(*pair, split.caption_image, samples, level) for pair in pairs if split]


def judged(groups: Sequence[Sequence[SeedComparison]]) -> list[list[SeedComparison]]:
    """Marks the differences in RSum that are significant among all that the page shows, over all of its test sets.

    With all correct matches counted, a comparison is shown a second time, and not judged again.
    """
    shown = [each.own["rsum"] for group in groups for each in group if len(each.seeds) > 1]
    marks = dict(zip(map(id, shown), significances(shown), strict=True))

    def marked(comparison: SeedComparison) -> SeedComparison:
        rsum = comparison.own["rsum"]
        found = replace(rsum, significant=marks.get(id(rsum), False))
        return replace(comparison, own={**comparison.own, "rsum": found})

    return [[marked(each) for each in group] for group in groups]


def over_seeds(
    series: Sequence[Series[Run]], comparisons: Sequence[SeedComparison], paired: bool, baseline_method: str
) -> Seeds | None:
    """What several seeds of methods tell.

    Args:
        series: of all runs on one test set.
        comparisons: of `judged`; those of a single seed are left out.
        paired: whether runs could be paired at all.
        baseline_method: the method of the first training.

    Returns:
        None when no method has two seeds.
    """
    known = [each for each in series if each.known]
    if not any(len(by_seed(each)) > 1 for each in known):
        return None
    several = [each for each in comparisons if len(each.seeds) > 1]
    scores = sorted((_scores(each) for each in known), key=lambda each: -each.own["rsum"].mean)
    removed = [run.name for each in series if not each.known for run in each.all]
    return Seeds(scores, several, _missing(known, several, baseline_method) if paired else [], removed)


def by_seed(series: Series[Run]) -> dict[int, Run]:
    """The newest run of every seed."""
    ordered = sorted(series.all, key=lambda run: run.manifest.finished)
    return dict(sorted({run.seed: run for run in ordered}.items()))


def pairs_by_seed(reference: Series[Run], series: Series[Run]) -> dict[int, tuple[Run, Run]]:
    """Runs of both by the seed that they share; what was not trained is the same beside each seed of the other."""
    first, second = by_seed(reference), by_seed(series)
    if reference.first.is_untrained:
        first = dict.fromkeys(second, *first.values()) if len(first) == 1 else first
    if series.first.is_untrained:
        second = dict.fromkeys(first, *second.values()) if len(second) == 1 else second
    return {seed: (first[seed], second[seed]) for seed in first if seed in second}


def _comparable(series: Series[Run], reference: Series[Run], baseline_method: str) -> bool:
    """Whether one may be judged by the other, both being trained from the same and ranked alike, with a shared seed."""
    if series is reference or _kind(series) != _kind(reference) or _shares(series) != _shares(reference):
        return False
    return is_reference_of(reference.first, series.first, baseline_method) and bool(pairs_by_seed(reference, series))


def _shares(series: Series[Run]) -> list[float]:
    """Of the training images, that the members were trained on."""
    manifests = [member.artifact.manifest for member in series.first.members]
    return [each.settings.get("train_share", 1.0) for each in manifests if each is not None]


def _kind(series: Series[Run]) -> tuple[list[tuple[str, ...]], str, int]:
    """Backbones with the encoders that they began with, features, and how many candidates were ranked again."""
    run = series.first
    return sorted((each.backbone_name, *each.encoders) for each in run.members), run.settings["features"], run.rerank


def _missing(known: Sequence[Series[Run]], compared: Sequence[SeedComparison], baseline_method: str) -> list[str]:
    """Sentences that name every declared baseline that a method with several seeds is not compared with.

    Of methods that learned from mined lists also the first training, where that is not.
    """
    found = []
    for each in known:
        own = [one for one in compared if one.series is each]
        if each.first.is_baseline or each.first.is_control or len(by_seed(each)) < 2:
            continue
        done = {member.method_name for one in own for member in one.reference.first.members}
        mined = each.first.mined_by(baseline_method)
        wanted = [*([baseline_method] if mined else []), *controls_of(each.first, baseline_method)]
        found += [
            f"{each.name} is not compared with {method_title(name, baseline_method)} ({name}): no evaluation of it"
            f"{', re-ranked alike,' if each.first.rerank else ''} shares two seeds."
            for name in wanted
            if name not in done
        ]
    return found


def compared(
    series: Series[Run], reference: Series[Run], caption_image: np.ndarray, samples: int, level: float
) -> SeedComparison:
    """Differences of one series to another, over the seeds that both have."""
    runs = pairs_by_seed(reference, series)
    own, oracle = (
        _differences(
            [(before.ranks(oracle=counted), after.ranks(oracle=counted)) for before, after in runs.values()],
            caption_image,
            samples,
            level,
        )
        for counted in (False, True)
    )
    assert own is not None
    return SeedComparison(series, reference, [*runs], own, oracle)


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
        single = [after[name] - before[name] for before, after in measured]
        seeds = seed_interval(single, level) if len(single) > 1 else None
        found[name] = Difference(float(np.mean(single)), seeds, images[name], len(single), level)
    return found


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
