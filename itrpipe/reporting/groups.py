"""The runs on one test set, and what they tell together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from itrpipe.datasets.prepared import Split
from itrpipe.reporting import plots, seed_tables, tables
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import Comparison, check_rankings, compare, conclusion, of_recalls
from itrpipe.reporting.epochs import different_epochs
from itrpipe.reporting.expected import Published
from itrpipe.reporting.library import Library
from itrpipe.reporting.matching import MatchingScores, matching_scores, matching_tables
from itrpipe.reporting.overview import Overview, overview_of
from itrpipe.reporting.precision import precision_tables
from itrpipe.reporting.seeds import SeedComparison, Seeds, compare_with_references, over_seeds
from itrpipe.reporting.series import Series, series_of
from itrpipe.reporting.verdicts import conclusion_of, summary


@dataclass(frozen=True)
class Options:
    """Settings of a report, see `itrpipe.stages.report.ReportSettings`."""

    title: str
    examples: int
    seed: int
    bootstrap_samples: int
    interval_level: float
    published: Sequence[Published]
    sections: Sequence[str] = ()


@dataclass(frozen=True)
class AcrossSeeds:
    """What several seeds tell, with its tables.

    Attributes:
        found: the numbers.
        scores, differences: tables.
        conclusions: one sentence for each comparison.
        summary: how many of them are significant; empty when there is none.
        meaning: of the intervals.
        epochs: which of the compared methods were trained for different numbers of them; often empty.
    """

    found: Seeds
    scores: tables.Table
    differences: list[tables.Table]
    conclusions: list[str]
    summary: str
    meaning: str
    epochs: str


@dataclass(frozen=True)
class Matching:
    """How often runs tell pairs from their negatives.

    Attributes:
        scores: of the runs whose evaluation measured it, often none.
        tables: the same, one for each choice of negatives.
    """

    scores: list[MatchingScores]
    tables: list[tables.Table]


@dataclass(frozen=True)
class Group:
    """The runs on one test set.

    Attributes:
        description: of the test set, one phrase.
        overview: all results in one table.
        runs: sorted.
        comparisons: against the first training.
        conclusion, of_recalls: what these allow to say of RSum, and of the single recalls.
        epochs: which of the compared runs were trained for different numbers of them; often empty.
        results, differences: tables.
        forest: plots of the differences.
        seeds: None when no method has two.
        matching: of models that read phrases.
        precision: tables over all correct matches; often empty.
        series: the runs by method.
        compared: methods with the first training and with baselines, of one seed too.
        prefix: of the names in its drawings.
    """

    description: str
    overview: Overview
    runs: list[Run]
    comparisons: list[Comparison]
    conclusion: str
    of_recalls: str
    epochs: str
    results: list[tables.Table]
    differences: list[tables.Table]
    forest: list[plots.Plot]
    seeds: AcrossSeeds | None
    matching: Matching
    precision: list[tables.SpannedTable]
    series: list[Series[Run]]
    compared: list[SeedComparison]
    prefix: str


@dataclass(frozen=True)
class Pairing:
    """The runs on one test set as series, and what is compared with what.

    Attributes:
        split: they were evaluated on; None when the dataset was removed.
        series: of the runs.
        compared: methods with the first training and with baselines.
    """

    split: Split | None
    series: list[Series[Run]]
    compared: list[SeedComparison]


def pair(runs: list[Run], library: Library | None, options: Options, baseline_method: str) -> Pairing:
    """Puts runs on one test set beside the first training and their baselines.

    Args:
        runs: sorted.
        library: their dataset; None when it was removed.
        options: of the report.
        baseline_method: the method of the first training.

    Raises:
        DataError: rankings do not fit the dataset.
    """
    split = None if library is None else library.split(runs[0].settings["split"])
    if split is not None:
        check_rankings(runs, split)
    series, chances = series_of(runs), (options.bootstrap_samples, options.interval_level)
    return Pairing(split, series, compare_with_references(series, split, *chances, baseline_method))


def make_group(runs: list[Run], pairing: Pairing, options: Options, prefix: str, baseline_method: str) -> Group:
    """What the runs on one test set tell together.

    Args:
        runs: sorted.
        pairing: of these runs, with what is significant on the whole page.
        options: of the report.
        prefix: of the names in its drawings.
        baseline_method: the method of the first training.
    """
    level, split, series = options.interval_level, pairing.split, pairing.series
    comparisons = compare(runs, split, options.bootstrap_samples, level)
    seeds = over_seeds(series, pairing.compared, split is not None, baseline_method)
    matching = matching_scores(series)
    return Group(
        description=describe_test_set(runs[0]),
        overview=overview_of(series, pairing.compared, comparisons, options.published, prefix),
        runs=runs,
        comparisons=comparisons,
        conclusion=conclusion(comparisons, runs, split, level),
        of_recalls=of_recalls(comparisons, level),
        epochs=different_epochs((each.run, each.baseline) for each in comparisons),
        results=tables.result_tables(runs, options.published),
        differences=tables.difference_tables(comparisons, level),
        forest=plots.difference_plots(comparisons, series, prefix),
        seeds=None if seeds is None else _across_seeds(seeds, level),
        matching=Matching(matching, matching_tables(matching)),
        precision=precision_tables(runs),
        series=series,
        compared=pairing.compared,
        prefix=prefix,
    )


def _across_seeds(seeds: Seeds, level: float) -> AcrossSeeds:
    compared = seeds.comparisons
    return AcrossSeeds(
        seeds,
        seed_tables.score_table(seeds.scores),
        seed_tables.difference_tables(compared, level),
        [conclusion_of(each) for each in compared],
        summary(compared),
        seed_tables.meaning(level),
        different_epochs((each.series.first, each.reference.first) for each in compared),
    )


def describe_test_set(run: Run) -> str:
    """The images that a run was evaluated on, one phrase."""
    images, captions = run.size
    return f"{run.settings['split']} split of {run.manifest.dataset}, {images:,} images with {captions:,} captions"
