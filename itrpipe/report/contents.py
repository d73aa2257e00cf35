"""The contents of a report, gathered once for the page, a terminal, Markdown and programs."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from itrpipe.analysis.questions import discrimination
from itrpipe.analysis.questions.base import questions
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import MissingInputError
from itrpipe.evaluation.tables import Measured, Table
from itrpipe.exporting.places import text_without_places
from itrpipe.report import negatives, scores
from itrpipe.report.chain import ChainArtifact, commands_of
from itrpipe.report.comparisons import ComparedSeries, compare_runs, mark_significant
from itrpipe.report.headline import decision_notes, headline, training_notes
from itrpipe.report.names import Declared, join_departures, join_some, value_text
from itrpipe.report.pictures import Album, Examples, LikelyPairs, SplitPictures, retrieval_examples
from itrpipe.report.plots import Panels, Plot, interval_plot, line_styles, training_curves
from itrpipe.report.published import ReportSettings
from itrpipe.report.runs import all_artifacts, contents_of, group_runs
from itrpipe.report.series import Series
from itrpipe.storage.artifact import DISCRIMINATION, Manifest

_MOST_NAMED = 2
"""Artifacts that one warning names."""


@dataclass(frozen=True)
class Facts:
    """A list of names, each with a text.

    Attributes:
        title: above the list.
        items: name and text of each.
        note: below the title.
        code: names and texts are for programs, and are shown as code.
    """

    title: str
    items: Sequence[tuple[str, str]]
    note: str = ""
    code: bool = False


Part = Table | Panels | Examples | LikelyPairs | negatives.EditedSentences | Facts


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading.

    Attributes:
        title: the heading.
        parts: below it.
        open: not folded.
        timed: it says how long something took, so that it is no part of what a resumed run writes byte by byte.
    """

    title: str
    parts: Sequence[Part]
    open: bool = False
    timed: bool = False

    @property
    def anchor(self) -> str:
        """Return what links point to."""
        return re.sub(r"\W+", "-", self.title.lower())


@dataclass(frozen=True)
class TestSet:
    """The runs on one test set, as a page shows them.

    Attributes:
        description: of the test set, one phrase.
        compared: the series of the runs, and their comparisons.
        headline: what a page says first.
        evidence: drawing of the best series beside their baseline; None of one series alone.
        notes: sentences to know before the headline is used.
        table: all series.
        curves: of trainings.
    """

    description: str
    compared: ComparedSeries
    headline: str
    evidence: Plot | None
    notes: list[str]
    table: Table
    curves: list[Panels]


@dataclass(frozen=True)
class ReportPage:
    """A whole report.

    Attributes:
        title, dataset, date: the heading; the date is that of the last evaluation.
        level: of all intervals.
        test_sets: that runs were evaluated on.
        sections: of the page, in their order.
        removed: artifacts that were removed since.
    """

    title: str
    dataset: str
    date: str
    level: float
    test_sets: list[TestSet]
    sections: list[Section]
    removed: list[ChainArtifact]


@dataclass(frozen=True)
class ShownData:
    """Datasets and photographs that a report shows.

    Attributes:
        find_root: folder of the photographs of a dataset's artifact, or None when they are gone.
        datasets: that were opened, with their photographs, by the name of the artifact.
        galleries: their splits, by this name and their own.
    """

    find_root: Callable[[ChainArtifact], Path | None]
    datasets: dict[str, tuple[PreparedDataset, Album]] = field(default_factory=dict)
    galleries: dict[tuple[str, str], SplitPictures] = field(default_factory=dict)

    def gallery(self, artifact: ChainArtifact, split: str) -> SplitPictures | None:
        """Return a split of the dataset that an artifact was made from; None where that was removed."""
        prepare = artifact.inputs.get("prepare")
        if prepare is None or prepare.manifest is None:
            return None
        key = prepare.name, split
        if key not in self.galleries:
            if prepare.name not in self.datasets:
                dataset = PreparedDataset.open(prepare.opened)
                files = dict(zip(dataset.column("image_id"), dataset.column("file"), strict=True))
                self.datasets[prepare.name] = dataset, Album(self.find_root(prepare), files)
            dataset, album = self.datasets[prepare.name]
            self.galleries[key] = SplitPictures(dataset.split(split), album, prepare.folder)
        return self.galleries[key]


def report_of(
    evaluations: Iterable[tuple[Path, Manifest]],
    options: ReportSettings,
    declared: Declared,
    find_root: Callable[[ChainArtifact], Path | None],
    warn: Callable[[str], None],
) -> ReportPage:
    """Follow the evaluations to everything they were made from and compute what a report says.

    Args:
        evaluations: folders of finished evaluations with their manifests.
        options: of the report.
        declared: settings of an artifact's configuration by the declarations.
        find_root: folder of the photographs of a dataset's artifact, or None when they are gone.
        warn: called with what is missing.

    Raises:
        MissingInputError: there is no evaluation.
        DataError: an artifact is damaged.
    """
    before = dict(options.before)
    shown = []
    earlier = []
    for evaluation in evaluations:
        folder, _ = evaluation
        if folder.name in before.values():
            earlier.append(evaluation)
        else:
            shown.append(evaluation)
    groups = group_runs(shown, declared, dict(options.names))
    if not groups:
        raise MissingInputError("a report needs an evaluation; run `itrpipe evaluate` first")
    names = set()
    for run in itertools.chain.from_iterable(groups):
        names.update(run.names)
    for published in options.published:
        if published.run not in names:
            names.add(published.run)  # one warning for each
            warn(f"published scores are given for {published.run!r}, but no such run is evaluated")

    earlier_runs = {}
    for run in itertools.chain.from_iterable(group_runs(earlier, declared, {})):
        earlier_runs[run.evaluation.name] = run
    runs_without_decisions = {name: earlier_runs[earlier_name] for name, earlier_name in before.items()}

    data = ShownData(find_root)
    all_compared, comparisons, decision_comparisons, runs = [], [], [], []
    for group in groups:
        gallery = data.gallery(group[0].evaluation, group[0].settings["split"])
        compared = compare_runs(
            group,
            runs_without_decisions,
            gallery,
            options,
        )
        all_compared.append(compared)
        comparisons.append(compared.comparisons)
        decision_comparisons.append(compared.decision_comparisons)
        for series in compared.series:
            runs += series.runs
    artifacts = all_artifacts(runs)

    # The p-values of all test sets are corrected together; comparisons with baselines of as much time have their marks.
    marked = mark_significant([*comparisons, *decision_comparisons])
    test_sets = []
    for number, compared in enumerate(all_compared):
        compared = replace(
            compared,
            comparisons=marked[number],
            decision_comparisons=marked[len(all_compared) + number],
        )
        test_sets.append(_test_set(compared, data, options, f"set{number}"))

    last = max(datetime.fromisoformat(run.manifest.finished) for run in runs)
    dataset = runs[0].manifest.dataset
    report = ReportPage(
        title=options.title or dataset,
        dataset=dataset,
        date=f"{last.day} {last:%B %Y}",
        level=options.interval_level,
        test_sets=test_sets,
        sections=[section for section in _sections(test_sets, data, artifacts, options) if section.parts],
        removed=[artifact for artifact in artifacts if artifact.manifest is None],
    )
    problems = []
    for _, album in data.datasets.values():
        problems += album.problems
    if problems:
        warn(f"{len(problems)} images cannot be read and are shown as placeholders ({problems[0]})")
    return report


def _test_set(
    compared: ComparedSeries,
    data: ShownData,
    options: ReportSettings,
    prefix: str,
) -> TestSet:
    """Return what a page shows of a test set; `prefix` begins the ids inside its drawings."""
    all_series, comparisons = compared.series, compared.comparisons

    # Kinds of edits that a model tells from captions more, or less often, than its baseline.
    sentences = []
    for comparison in comparisons:
        name = comparison.series.name
        of_series = contents_of(comparison.series.runs, DISCRIMINATION)
        of_baseline = contents_of(comparison.baseline.runs, DISCRIMINATION)
        gained, lost = discrimination.gained_and_lost(of_series, of_baseline)
        if gained:
            sentences.append(f"{name} prefers captions to edits of {'; '.join(gained)}.")
        if lost:
            sentences.append(f"{name} prefers captions less often to edits of {'; '.join(lost)}.")
    sentences.append(headline(all_series, comparisons))

    styles = line_styles(all_series)
    evidence = None
    if len(all_series) > 1:
        baseline = comparisons[0].baseline if comparisons else None
        evidence = interval_plot(
            f"{prefix}-evidence",
            all_series,
            styles,
            baseline,
        )

    run = all_series[0].first_run
    images, captions = run.size
    description = (
        f"{run.settings['split']} split of {run.manifest.dataset}, {images:,} images with {captions:,} captions"
    )
    if options.compare and comparisons:
        description += f"; seeds compared: {', '.join(map(str, comparisons[0].seeds))}"
    return TestSet(
        description=description,
        compared=compared,
        headline=" ".join(sentences),
        evidence=evidence,
        notes=[
            *training_notes(all_series, data.gallery),
            *negatives.hardness_notes(all_series, dict(options.names)),
            *decision_notes(all_series, compared.decision_comparisons),
        ],
        table=scores.overview_table(compared, options.published),
        curves=training_curves(all_series, styles, prefix),
    )


# -- Sections


def _sections(
    test_sets: Sequence[TestSet],
    data: ShownData,
    artifacts: Sequence[ChainArtifact],
    options: ReportSettings,
) -> Iterator[Section]:
    """Yield the sections of a page in their order, also those without parts."""
    sentences = negatives.sentence_parts(artifacts, data.gallery, options.examples, options.seed)
    details = _measured(test_sets, discrimination.SHOWN)
    if details:
        details += sentences[1:]
        sentences = sentences[:1]
    yield Section("Details", details, open=True)

    # Queries of a series that has a baseline, else of the best.
    first = test_sets[0].compared
    if first.comparisons:
        series = first.comparisons[0].series
        baseline = first.comparisons[0].baseline
    else:
        series = max(first.series, key=Series.rsum)
        baseline = None
    gallery = data.gallery(series.first_run.evaluation, series.first_run.settings["split"])
    names = dict(options.names)
    retrieved, likely = [], []
    if gallery is not None:
        retrieved = retrieval_examples(series, baseline, gallery, options.examples)
        likely = negatives.likely_answers(series, gallery, names, options.examples)
    hardest, likely_mined = negatives.mining_parts(artifacts, names, data.gallery, options.examples)
    yield Section("Likelier right than not", [*likely, *likely_mined], open=True)
    yield Section("What it finds", retrieved, open=True)
    yield Section("The hardest negatives", hardest, open=True)

    all_scores, curves, costs = [], [], []
    for test_set in test_sets:
        all_series = test_set.compared.series
        all_scores += scores.score_tables(all_series, options.published)
        all_scores += scores.recall_differences(test_set.compared.comparisons)
        all_scores += _setting_facts(all_series)
        curves += test_set.curves
        costs.append(scores.cost_table(all_series))
    yield Section("All scores", all_scores)
    more_measures = []
    for question in questions():
        for measured in getattr(question, "SHOWN", ()):
            if measured not in discrimination.SHOWN:
                more_measures.append(measured)
    yield Section("More measures", _measured(test_sets, more_measures))
    yield Section("Training", curves)
    yield Section("Written sentences", sentences)
    yield Section("Cost", costs, timed=True)
    yield Section("Provenance", list(_provenance(artifacts)))


def _measured(test_sets: Sequence[TestSet], shown: Sequence[Measured]) -> list[Part]:
    tables: list[Part] = []
    for test_set in test_sets:
        tables += scores.measured_tables(shown, test_set.compared.series)
    return tables


def _setting_facts(all_series: Sequence[Series]) -> list[Facts]:
    """Return the settings of series that are not as declared, or that tell them from others of their name."""
    facts = []
    for series in all_series:
        departures = series.first_run.departures
        differing = []
        if departures:
            differing.append(join_departures(departures))
        for key, value in series.differing.items():
            if key not in departures:
                differing.append(f"{key} {value_text(value)}")
        if differing:
            facts.append((series.name, ", ".join(differing)))
    if not facts:
        return []
    return [Facts("Settings that differ", facts, "From those in stages/*.toml, or from models of the same name.")]


def _provenance(artifacts: Sequence[ChainArtifact]) -> Iterator[Facts]:
    # Each version, and each artifact, once and in the order of the artifacts.
    versions = defaultdict(dict)
    paths = defaultdict(list)
    fingerprints = []
    for artifact in artifacts:
        fingerprints.append((artifact.path, artifact.fingerprint))
        if artifact.manifest is not None:
            for package, version in artifact.manifest.versions.items():
                versions[package][version] = None
            for message in artifact.manifest.messages:
                paths[text_without_places(message)].append(artifact.path)
    commands = [("", command) for command in commands_of(artifacts)]
    yield Facts("Commands", commands, "In the order in which they finished.", code=True)
    warnings = []
    for message, names in paths.items():
        warnings.append((join_some(names, _MOST_NAMED), message))
    if warnings:
        yield Facts("Warnings", warnings)
    yield Facts("Fingerprints", fingerprints, code=True)
    yield Facts("Versions", [(package, " and ".join(known)) for package, known in sorted(versions.items())])
