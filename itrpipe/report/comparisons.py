"""Comparisons of series with their baselines, over the seeds that both have.

`itrpipe.evaluation.compare` makes the difference, the verdict and the sentence of a comparison from ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from itrpipe.datasets.prepared import Split
from itrpipe.errors import UsageError
from itrpipe.evaluation.compare import Claim, mark_claims
from itrpipe.evaluation.intervals import Difference, paired_differences
from itrpipe.evaluation.metrics import RSUM
from itrpipe.evaluation.results import ORACLE
from itrpipe.report.baselines import TIME, UPDATES, pairs_with_baselines
from itrpipe.report.pictures import SplitPictures
from itrpipe.report.published import ReportSettings
from itrpipe.report.runs import EvaluatedRun
from itrpipe.report.series import Series, SeriesPair, series_of


@dataclass(frozen=True)
class Comparison:
    """A series compared with its baseline.

    Attributes:
        baseline: trained with the same seeds, or not at all, and re-ranked alike.
        series: that is compared with it.
        seeds: that both have.
        claim: what the differences say, a caption's own image being its only match.
        oracle: differences with all correct matches counted; None where the truth is not known.
    """

    baseline: Series
    series: Series
    seeds: list[int]
    claim: Claim
    oracle: dict[str, Difference] | None = None

    @property
    def rsum(self) -> Difference:
        """Return the difference of the sum of recalls, which the verdict is about."""
        return self.claim.differences[RSUM]


@dataclass(frozen=True)
class ComparedSeries:
    """The series of one test set, and their comparisons.

    Attributes:
        series: of all runs.
        comparisons: with baselines of as many updates; else of the two series that a user compares.
        time_comparisons: with baselines of as much time.
        decision_comparisons: with the same trainings without people's decisions.
    """

    series: list[Series]
    comparisons: list[Comparison]
    time_comparisons: list[Comparison]
    decision_comparisons: list[Comparison]


def compare_runs(
    runs: Sequence[EvaluatedRun],
    runs_without_decisions: Mapping[str, EvaluatedRun],
    gallery: SplitPictures | None,
    options: ReportSettings,
) -> ComparedSeries:
    """Group the runs on one test set into series, and compare these; those of as much time alone are marked.

    Args:
        runs: on the test set.
        runs_without_decisions: of trainings without people's decisions, by the names of evaluations with decisions.
        gallery: of the test set; None where its dataset was removed, and nothing can be compared.
        options: of the report.
    """
    all_series = series_of(runs)
    if options.compare:
        all_series = list(chosen_pair(all_series, options.compare))
    if gallery is None:
        return ComparedSeries(all_series, [], [], [])
    intervals = gallery.split, options.bootstrap_samples, options.interval_level
    if options.compare:
        return ComparedSeries(all_series, compare_pairs([SeriesPair(*all_series)], *intervals), [], [])
    comparisons = compare_pairs(pairs_with_baselines(all_series, UPDATES), *intervals)
    (time_comparisons,) = mark_significant([compare_pairs(pairs_with_baselines(all_series, TIME), *intervals)])

    # Only the seeds that were evaluated both with and without decisions.
    pairs = []
    for series in all_series:
        with_decisions, without = [], []
        for run in series.run_of_seed.values():
            if run.evaluation.name in runs_without_decisions:
                with_decisions.append(run)
                without.append(runs_without_decisions[run.evaluation.name])
        if without:
            baseline = Series(f"{series.name} without decisions", tuple(without))
            pairs.append(SeriesPair(baseline, replace(series, runs=tuple(with_decisions))))
    return ComparedSeries(all_series, comparisons, time_comparisons, compare_pairs(pairs, *intervals))


def compare_pairs(
    pairs: Sequence[SeriesPair],
    split: Split,
    samples: int,
    level: float,
) -> list[Comparison]:
    """Compare series with their baselines, over the seeds that both have; no claim is marked as significant yet.

    Args:
        pairs: on one test set.
        split: they were evaluated on.
        samples: resampled test sets behind an interval over images.
        level: share of seeds, or of test sets, that an interval holds.
    """
    comparisons = []
    for pair in pairs:
        runs = pair.runs_by_seed()
        before, after = pair.baseline.first_run, pair.series.first_run
        columns = ["rank"]
        if ORACLE in after.metrics:
            columns.append("oracle_rank")
        differences = []
        for column in columns:
            ranks = [(baseline.ranks(column), run.ranks(column)) for baseline, run in runs.values()]
            differences.append(paired_differences(ranks, split.caption_image, samples, level))

        claim = Claim(
            pair.series.name,
            pair.baseline.method if before.backbone == after.backbone else pair.baseline.name,
            differences[0],
            at_chance=all(map(EvaluatedRun.is_at_chance, itertools.chain.from_iterable(runs.values()))),
            is_trained="untrained" not in before.roles & after.roles,
        )
        comparisons.append(Comparison(*pair, list(runs), claim, *differences[1:]))
    return comparisons


def mark_significant(groups: Sequence[Sequence[Comparison]]) -> list[list[Comparison]]:
    """Mark the comparisons whose difference is significant, with the p-values of all groups corrected together.

    A page corrects the comparisons on all of its test sets together, but for those with baselines of as much time:
    these are corrected apart, on every test set alone.
    """
    claims = iter(mark_claims([comparison.claim for comparison in itertools.chain.from_iterable(groups)]))
    marked = []
    for group in groups:
        marked.append([replace(comparison, claim=next(claims)) for comparison in group])
    return marked


def chosen_pair(all_series: Sequence[Series], baseline_names: Collection[str]) -> SeriesPair:
    """Return the two series that a user compares, with no other runs than those of the seeds that both have.

    Args:
        all_series: of the baseline and of the model that is compared with it.
        baseline_names: of the evaluations of the baseline.

    Raises:
        UsageError: a name stands for models of several settings, both for one, or they share no seed.
    """
    baselines, others = [], []
    for series in all_series:
        is_baseline = {run.evaluation.name in baseline_names for run in series.runs}
        if True in is_baseline:
            baselines.append(series)
        if False in is_baseline:
            others.append(series)
    for side in (baselines, others):
        if len(side) > 1:
            folders = []
            for series in side:
                for run in series.runs:
                    folders.append(run.evaluation.name)
            raise UsageError(
                f"--compare: one name means {len(side)} models; name one of the folders {', '.join(folders)}"
            )
    (baseline,), (series,) = baselines, others
    if baseline is series:
        raise UsageError(f"--compare: both are {series.name}, which differ in nothing but their seed")

    pairs = SeriesPair(baseline, series).runs_by_seed()
    if not pairs:
        raise UsageError(f"--compare: {baseline.name} and {series.name} share no seed; evaluate both with one")
    compared = list(itertools.chain.from_iterable(pairs.values()))
    baseline_runs = tuple(run for run in baseline.runs if run in compared)
    runs = tuple(run for run in series.runs if run in compared)
    return SeriesPair(replace(baseline, runs=baseline_runs), replace(series, runs=runs))
