"""Everything a report says, computed once for the page, the terminal and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from itrpipe.artifacts.artifact import Manifest
from itrpipe.datasets.prepared import Split
from itrpipe.errors import MissingInputError
from itrpipe.reporting import plots, seed_tables, tables
from itrpipe.reporting.analyses import Analyses, SpannedTable, analyses_of
from itrpipe.reporting.chain import Artifact
from itrpipe.reporting.collect import Run, all_artifacts, collect, minings, models
from itrpipe.reporting.comparisons import Comparison, check_rankings, compare, conclusion, of_recalls
from itrpipe.reporting.curves import Curves, curves_of
from itrpipe.reporting.departures import Declared
from itrpipe.reporting.difficulty import Difficulty, difficulty_of
from itrpipe.reporting.discrimination import discrimination_tables
from itrpipe.reporting.epochs import different_epochs
from itrpipe.reporting.examples import Example, retrieval_examples
from itrpipe.reporting.expected import Published
from itrpipe.reporting.false_negatives import FalseNegatives, estimated
from itrpipe.reporting.library import Library
from itrpipe.reporting.matching import MatchingScores, matching_scores, matching_tables
from itrpipe.reporting.mined import Mining, describe, mined_examples
from itrpipe.reporting.overview import Overview, overview_of
from itrpipe.reporting.phrase_view import PhraseView, phrase_view
from itrpipe.reporting.seeds import SeedComparison, Seeds, compare_with_references, judged, over_seeds
from itrpipe.reporting.series import Series, series_of
from itrpipe.reporting.synthetic import Synthetic, synthetic_view
from itrpipe.reporting.thumbnails import Picture
from itrpipe.reporting.verdicts import conclusion_of, summary
from itrpipe.reporting.word_maps import WordMapView, word_map_view
from itrpipe.reporting.wrong_words import WrongWords, wrong_words_view

MINED_SPLIT = "train"
View = TypeVar("View")


@dataclass(frozen=True)
class Options:
    """Settings of a report, see `itrpipe.stages.report.ReportSettings`."""

    title: str
    examples: int
    seed: int
    bootstrap_samples: int
    interval_level: float
    published: Sequence[Published]


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
        comparisons: against round one.
        conclusion, of_recalls: what these allow to say of RSum, and of the single recalls.
        epochs: which of the compared runs were trained for different numbers of them; often empty.
        results, differences: tables.
        forest: plots of the differences.
        seeds: None when no method has two.
        matching: of models that read phrases.
        analyses: precision over all true matches, alignment, recall by length.
        discrimination: negative sentences that runs tell from true ones; often empty.
        curves: plots of the runs.
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
    analyses: Analyses
    discrimination: list[SpannedTable]
    curves: Curves


@dataclass(frozen=True)
class Mined:
    """Mined negatives.

    Attributes:
        minings: every mining run behind the evaluated runs.
        shown: the one whose examples are shown; None when no lists or no captions are there.
        examples: of `shown`, by list.
    """

    minings: list[Mining]
    shown: Mining | None
    examples: dict[str, list[Example]]


@dataclass(frozen=True)
class Retrieval:
    """Retrieval examples.

    Attributes:
        run: whose they are.
        has_baseline: whether the rank by its round one is known.
        examples: by direction; empty when the dataset was removed.
    """

    run: Run
    has_baseline: bool
    examples: dict[str, list[Example]]


@dataclass(frozen=True)
class Content:
    """A whole report.

    Attributes:
        title, dataset, date: the heading; the date is that of the last evaluation.
        level: of all intervals.
        groups: runs by test set.
        mined, retrieval: examples.
        false_negatives: estimates; None without a run that made some.
        phrases: what words are worth; None without a run that scored them.
        word_maps: where words look; None without a run that mapped them.
        synthetic: sentences that runs were trained or measured with; None without any.
        difficulty: how hard synthetic sentences were; None without a run that was trained with some.
        wrong_words: which words are wrong; None without a run that judged them.
        has_truth: whether the dataset knows all true matches.
        removed: artifacts that were removed since.
        provenance: costs, versions, commands and messages.
    """

    title: str
    dataset: str
    date: str
    level: float
    groups: list[Group]
    mined: Mined
    false_negatives: FalseNegatives | None
    retrieval: Retrieval
    phrases: PhraseView | None
    word_maps: WordMapView | None
    synthetic: Synthetic | None
    difficulty: Difficulty | None
    wrong_words: WrongWords | None
    has_truth: bool
    removed: list[Artifact]
    provenance: tables.Provenance


def gather(
    evaluations: Iterable[tuple[Path, Manifest]],
    baseline_method: str,
    options: Options,
    declared: Declared,
    find_root: Callable[[Artifact], Path | None],
    warn: Callable[[str], None],
) -> Content:
    """Follows the evaluations to everything they were made from and computes what a report says.

    Args:
        evaluations: folders of finished evaluations with their manifests.
        baseline_method: the method of round one.
        options: of the report.
        declared: settings of an artifact's configuration by the declarations.
        find_root: folder of the photographs of a dataset's artifact, or None when they are gone.
        warn: called with what is missing.

    Raises:
        MissingInputError: there is no evaluation.
        DataError: an artifact is damaged.
    """
    found = collect(evaluations, baseline_method, declared)
    runs = [run for members in found.values() for run in members]
    if not runs:
        raise MissingInputError("a report needs an evaluation; run `itrpipe evaluate` first")
    known = {name for run in runs for name in (run.label, run.evaluation.name)}
    for name in dict.fromkeys(each.name for each in options.published if each.run not in known):
        warn(f"published scores are given for {name!r}, but no such run is evaluated")
    libraries = _libraries(runs, find_root)
    pairings = [
        _pair(members, libraries[test_set.prepare], options, baseline_method) for test_set, members in found.items()
    ]
    marked = judged([each.compared for each in pairings])
    groups = [
        _group(members, replace(pairing, compared=compared), options, f"set{index}", baseline_method)
        for index, (members, pairing, compared) in enumerate(zip(found.values(), pairings, marked, strict=True))
    ]
    shown = _shown_run(groups)
    artifacts = all_artifacts(runs)
    content = Content(
        title=options.title or shown.manifest.dataset,
        dataset=shown.manifest.dataset,
        date=_date(run.manifest.finished for run in runs),
        level=options.interval_level,
        groups=groups,
        mined=_mined([shown, *runs], libraries, options),
        false_negatives=_false_negatives([shown, *runs], libraries, options),
        retrieval=_retrieval(shown, groups, libraries, options),
        phrases=_first_view(phrase_view, groups, libraries, options),
        word_maps=_first_view(word_map_view, groups, libraries, options),
        synthetic=synthetic_view([shown, *runs], libraries, options.examples, options.seed),
        difficulty=difficulty_of(models(runs)),
        wrong_words=_first_view(wrong_words_view, groups, libraries, options),
        has_truth=any(run.ranks(oracle=True) is not None for run in runs),
        removed=[artifact for artifact in artifacts if artifact.manifest is None],
        provenance=tables.provenance(artifacts),
    )
    _warn_of_photographs(libraries, warn)
    return content


def _libraries(runs: Iterable[Run], find_root: Callable[[Artifact], Path | None]) -> dict[str, Library | None]:
    """Datasets by the name of their artifact; None for those that were removed."""
    datasets = {run.prepare.name: run.prepare for run in runs}
    return {
        name: None if prepare.manifest is None else Library(prepare, find_root(prepare))
        for name, prepare in datasets.items()
    }


@dataclass(frozen=True)
class _Pairing:
    """The runs on one test set as series, and what is compared with what.

    Attributes:
        split: they were evaluated on; None when the dataset was removed.
        series: of the runs.
        compared: methods with round one and with controls.
    """

    split: Split | None
    series: list[Series[Run]]
    compared: list[SeedComparison]


def _pair(runs: list[Run], library: Library | None, options: Options, baseline_method: str) -> _Pairing:
    split = None if library is None else library.split(runs[0].settings["split"])
    if split is not None:
        check_rankings(runs, split)
    series, chances = series_of(runs), (options.bootstrap_samples, options.interval_level)
    return _Pairing(split, series, compare_with_references(series, split, *chances, baseline_method))


def _group(runs: list[Run], pairing: _Pairing, options: Options, prefix: str, baseline_method: str) -> Group:
    level, split, series = options.interval_level, pairing.split, pairing.series
    comparisons = compare(runs, split, options.bootstrap_samples, level)
    seeds = over_seeds(series, pairing.compared, split is not None, baseline_method)
    matching = matching_scores(series)
    return Group(
        description=_describe_test_set(runs[0]),
        overview=overview_of(series, pairing.compared, comparisons, options.published, baseline_method),
        runs=runs,
        comparisons=comparisons,
        conclusion=conclusion(comparisons, runs, split, level),
        of_recalls=of_recalls(comparisons, level),
        epochs=different_epochs((each.run, each.baseline) for each in comparisons),
        results=tables.result_tables(runs, options.published),
        differences=tables.difference_tables(comparisons, level),
        forest=plots.difference_plots(comparisons, prefix),
        seeds=None if seeds is None else _across_seeds(seeds, level),
        matching=Matching(matching, matching_tables(matching)),
        analyses=analyses_of(runs),
        discrimination=discrimination_tables(series),
        curves=curves_of(runs, prefix),
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


def _describe_test_set(run: Run) -> str:
    images, captions = (len(queries.ids) for queries in run.rankings.values())
    return f"{run.settings['split']} split of {run.manifest.dataset}, {images:,} images with {captions:,} captions"


def _shown_run(groups: Sequence[Group]) -> Run:
    """The first run of a later round, else the best one."""
    runs = groups[0].runs
    later = [run for run in runs if not run.is_baseline]
    return later[0] if later else max(runs, key=lambda run: run.metrics[tables.FULL]["rsum"]["value"])


def _mined(runs: Sequence[Run], libraries: Mapping[str, Library | None], options: Options) -> Mined:
    described, shown, examples = [], None, {}
    for artifact, run in minings(runs):
        library = libraries[run.prepare.name]
        gallery = None if library is None else library.gallery(MINED_SPLIT)
        described.append(describe(artifact, gallery))
        if shown is None and gallery is not None and artifact.manifest is not None:
            shown, examples = described[-1], mined_examples(artifact, gallery, options.examples, options.seed)
    return Mined(described, shown, examples)


def _false_negatives(
    runs: Sequence[Run], libraries: Mapping[str, Library | None], options: Options
) -> FalseNegatives | None:
    """Of every run once, the shown one first."""
    measured = list({run.label: run for run in runs if run.false_negatives is not None}.values())
    if not measured:
        return None
    library = libraries[measured[0].prepare.name]
    gallery = None if library is None else library.gallery(MINED_SPLIT)
    return estimated(measured, gallery, options.examples, options.seed)


def _retrieval(
    shown: Run, groups: Sequence[Group], libraries: Mapping[str, Library | None], options: Options
) -> Retrieval:
    partners = {each.run.label: each.baseline for group in groups for each in group.comparisons}
    baseline = partners.get(shown.label)
    library = libraries[shown.prepare.name]
    if library is None:
        return Retrieval(shown, baseline is not None, {})
    gallery = library.gallery(shown.settings["split"])
    found = retrieval_examples(shown, baseline, gallery, options.examples, options.seed)
    return Retrieval(shown, baseline is not None, found)


def _first_view(
    make: Callable[[Sequence[Run], int, Callable[[Run, str], Picture]], View | None],
    groups: Sequence[Group],
    libraries: Mapping[str, Library | None],
    options: Options,
) -> View | None:
    """Of the first test set on which a run scored, mapped or judged words."""

    def picture_of(run: Run, image: str) -> Picture:
        library = libraries[run.prepare.name]
        return Picture(image, None) if library is None else library.picture(image, run.evaluation.folder)

    found = (make(group.runs, options.examples, picture_of) for group in groups)
    return next((view for view in found if view is not None), None)


def _warn_of_photographs(libraries: Mapping[str, Library | None], warn: Callable[[str], None]) -> None:
    problems = [problem for library in libraries.values() if library for problem in library.album.problems]
    if problems:
        warn(f"{len(problems)} photographs cannot be read and are shown as placeholders ({problems[0]})")


def _date(finished: Iterable[str]) -> str:
    """The day of the latest of some ISO times, in words."""
    last = max(datetime.fromisoformat(each) for each in finished)
    return f"{last.day} {last:%B %Y}"
