"""The contents of a report, gathered once for the page, a terminal, Markdown and programs."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from itrpipe.analysis.questions import discrimination
from itrpipe.analysis.questions.base import questions
from itrpipe.datasets.prepared import LEAKED, PreparedDataset
from itrpipe.errors import MissingInputError
from itrpipe.evaluation.tables import Measured, Table
from itrpipe.exporting.places import text_without_places
from itrpipe.report import negatives, scores
from itrpipe.report.chain import ChainArtifact, commands_of
from itrpipe.report.claims import (
    TIME,
    UPDATES,
    Comparison,
    SeriesPair,
    answer,
    compare_with_baselines,
    decision_notes,
    mark_significant,
    pairs_with_baselines,
    rsum_of,
    two_compared,
)
from itrpipe.report.names import Declared, join_departures, join_some, value_text
from itrpipe.report.negatives import EditedSentences
from itrpipe.report.pictures import Album, Examples, LikelyPairs, SplitPictures, retrieval_examples
from itrpipe.report.plots import Panels, Plot, interval_plot, line_styles, training_curves
from itrpipe.report.published import ReportSettings
from itrpipe.report.runs import EvaluatedRun, Series, all_artifacts, contents_of, group_runs, newest_by_seed, series_of
from itrpipe.storage.artifact import DISCRIMINATION, Manifest
from itrpipe.training.checks import why_longer

_MOST_SHOWN = 4
"""Models that the first drawing shows, the best and the baseline, and that a note names."""
_MOST_NAMED = 2
"""Artifacts that one warning names."""


@dataclass(frozen=True)
class Facts:
    """Names with what there is to say of each.

    Attributes:
        title: above them.
        items: of it.
        note: below the title.
        code: both are names that programs read.
    """

    title: str
    items: Sequence[tuple[str, str]]
    note: str = ""
    code: bool = False


Part = Table | Panels | Examples | LikelyPairs | EditedSentences | Facts


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
class Group:
    """The runs on one test set.

    Attributes:
        description: of the test set, one phrase.
        series: of the runs.
        claims: of models against their baselines.
        timed: against baselines of as much time.
        decided: models against the same trainings without people's decisions.
        answer: what a page says first.
        evidence: drawing of the best models beside their baseline; None of one model alone.
        notes: sentences to know before the answer is used.
        table: all models.
        curves: of trainings.
    """

    description: str
    series: list[Series]
    claims: list[Comparison]
    timed: list[Comparison]
    decided: list[Comparison]
    answer: str
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
        groups: the test sets.
        sections: of the page, in their order.
        removed: artifacts that were removed since.
    """

    title: str
    dataset: str
    date: str
    level: float
    groups: list[Group]
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
    test_sets = group_runs(shown, declared, dict(options.names))
    if not test_sets:
        raise MissingInputError("a report needs an evaluation; run `itrpipe evaluate` first")
    names = set()
    for run in itertools.chain.from_iterable(test_sets):
        names.update(run.names)
    for published in options.published:
        if published.run not in names:
            names.add(published.run)  # one warning for each
            warn(f"published scores are given for {published.run!r}, but no such run is evaluated")

    data = ShownData(find_root)
    earlier_runs = {}
    for run in itertools.chain.from_iterable(group_runs(earlier, declared, {})):
        earlier_runs[run.evaluation.name] = run
    runs_before = {after: earlier_runs[name] for after, name in before.items()}
    compared = []
    for test_set in test_sets:
        compared.append(_compared(test_set, runs_before, data, options))
    models, claims, timed, decided = zip(*compared, strict=True)
    runs = []
    for series in itertools.chain.from_iterable(models):
        runs += series.all
    artifacts = all_artifacts(runs)
    marked = mark_significant([*claims, *decided])
    claims = marked[: len(models)]
    decided = marked[len(models) :]
    groups = []
    for number, comparisons in enumerate(zip(models, claims, timed, decided, strict=True)):
        groups.append(_group(*comparisons, data, options, f"set{number}"))

    last = max(datetime.fromisoformat(run.manifest.finished) for run in runs)
    dataset = runs[0].manifest.dataset
    report = ReportPage(
        title=options.title or dataset,
        dataset=dataset,
        date=f"{last.day} {last:%B %Y}",
        level=options.interval_level,
        groups=groups,
        sections=[section for section in _sections(groups, data, artifacts, options) if section.parts],
        removed=[artifact for artifact in artifacts if artifact.manifest is None],
    )
    problems = []
    for _, album in data.datasets.values():
        problems += album.problems
    if problems:
        warn(f"{len(problems)} images cannot be read and are shown as placeholders ({problems[0]})")
    return report


def _compared(
    runs: Sequence[EvaluatedRun],
    runs_before: Mapping[str, EvaluatedRun],
    data: ShownData,
    options: ReportSettings,
) -> tuple[list[Series], list[Comparison], list[Comparison], list[Comparison]]:
    """Return the models on one test set, and their comparisons.

    These are with baselines of as many updates, with baselines of as much time, and with the same trainings without
    people's decisions, where these were evaluated, too (`runs_before`, by the names of evaluations with decisions).
    """
    series = series_of(runs)
    gallery = data.gallery(runs[0].evaluation, runs[0].settings["split"])
    if options.compare:
        series = list(two_compared(series, options.compare))
    if gallery is None:
        return series, [], [], []
    how = gallery.split, options.bootstrap_samples, options.interval_level
    if options.compare:
        return series, compare_with_baselines([SeriesPair(*series)], *how), [], []
    of_updates = compare_with_baselines(pairs_with_baselines(series, UPDATES), *how)
    (of_time,) = mark_significant([compare_with_baselines(pairs_with_baselines(series, TIME), *how)])

    # Of a model, only the seeds that were evaluated both with and without decisions.
    pairs = []
    for model in series:
        runs = []
        earlier = []
        for run in newest_by_seed(model).values():
            if run.evaluation.name in runs_before:
                runs.append(run)
                earlier.append(runs_before[run.evaluation.name])
        if runs:
            with_decisions = replace(model, all=tuple(runs))
            without = Series(f"{model.name} without decisions", tuple(earlier))
            pairs.append(SeriesPair(without, with_decisions))
    return series, of_updates, of_time, compare_with_baselines(pairs, *how)


def _group(
    series: list[Series],
    claims: list[Comparison],
    timed: list[Comparison],
    decided: list[Comparison],
    data: ShownData,
    options: ReportSettings,
    prefix: str,
) -> Group:
    """Return what the page says first of a test set."""
    # Kinds of edits that a model tells from captions more, or less often, than its baseline.
    sentences = []
    for claim in claims:
        of_model = contents_of(claim.series.all, DISCRIMINATION)
        of_baseline = contents_of(claim.baseline.all, DISCRIMINATION)
        gained, lost = discrimination.gained_and_lost(of_model, of_baseline)
        if gained:
            sentences.append(f"{claim.series.name} prefers captions to edits of {'; '.join(gained)}.")
        if lost:
            sentences.append(f"{claim.series.name} prefers captions less often to edits of {'; '.join(lost)}.")
    sentences.append(answer(series, claims))

    styles = line_styles(series)
    evidence = None
    if len(series) > 1:
        baseline = claims[0].baseline if claims else None
        evidence = interval_plot(
            f"{prefix}-evidence",
            series,
            styles,
            baseline,
            _MOST_SHOWN,
        )

    run = series[0].first
    images, captions = run.size
    description = (
        f"{run.settings['split']} split of {run.manifest.dataset}, {images:,} images with {captions:,} captions"
    )
    if options.compare and claims:
        description += f"; seeds compared: {', '.join(map(str, claims[0].seeds))}"
    return Group(
        description=description,
        series=series,
        claims=claims,
        timed=timed,
        decided=decided,
        answer=" ".join(sentences),
        evidence=evidence,
        notes=[*_notes(series, data, options), *decision_notes(series, decided)],
        table=scores.overview_table(series, claims, timed, options.published),
        curves=training_curves(series, styles, prefix),
    )


def _notes(
    series: Sequence[Series],
    data: ShownData,
    options: ReportSettings,
) -> list[str]:
    """Return sentences to know before the answer is used: leaks, models that were stopped early, hard negatives."""
    notes = []
    prepare = series[0].first.prepare
    if prepare.manifest is not None and prepare.manifest.metrics.get("leaks"):
        notes.append(f"{LEAKED.format(prepare.manifest.metrics['leaks'])}.")

    unfinished = []
    for each in series:
        model = each.first.model
        if not model.history:
            continue
        gallery = data.gallery(model.artifact, "val")
        if gallery is not None:
            reason = why_longer(model.history, model.settings, len(gallery.split.image_ids))
            if reason:
                unfinished.append(f"{each.name}: {reason}")
    if unfinished:
        notes.append(f"Train longer first. {join_some(unfinished, _MOST_SHOWN, '; ')}.")
    return notes + negatives.hardness_notes(series, dict(options.names))


# -- Sections


def _sections(
    groups: Sequence[Group],
    data: ShownData,
    artifacts: Sequence[ChainArtifact],
    options: ReportSettings,
) -> Iterator[Section]:
    sentences = negatives.sentence_parts(artifacts, data.gallery, options.examples, options.seed)
    details = _measured(groups, discrimination.SHOWN)
    if details:
        details += sentences[1:]
        sentences = sentences[:1]
    yield Section("Details", details, open=True)

    # Queries of a model that has a baseline, else of the best.
    first_group = groups[0]
    baseline = None
    if first_group.claims:
        claim = first_group.claims[0]
        series = claim.series
        baseline = claim.baseline
    else:
        series = max(first_group.series, key=rsum_of)
    gallery = data.gallery(series.first.evaluation, series.first.settings["split"])
    names = dict(options.names)
    found, likely = [], []
    if gallery is not None:
        found = retrieval_examples(series, baseline, gallery, options.examples)
        likely = negatives.likely_answers(series, gallery, names, options.examples)
    hardest, likely_mined = negatives.mining_parts(artifacts, names, data.gallery, options.examples)
    yield Section("Likelier right than not", [*likely, *likely_mined], open=True)
    yield Section("What it finds", found, open=True)
    yield Section("The hardest negatives", hardest, open=True)

    all_scores, curves, costs = [], [], []
    for group in groups:
        all_scores += scores.score_tables(group.series, options.published)
        all_scores += scores.recall_differences(group.claims)
        all_scores += _settings_that_differ(group.series)
        curves += group.curves
        costs.append(scores.cost_table(group.series))
    yield Section("All scores", all_scores)
    others = []
    for question in questions():
        for measured in getattr(question, "SHOWN", ()):
            if measured not in discrimination.SHOWN:
                others.append(measured)
    yield Section("More measures", _measured(groups, others))
    yield Section("Training", curves)
    yield Section("Written sentences", sentences)
    yield Section("Cost", costs, timed=True)
    yield Section("Provenance", list(_provenance(artifacts)))


def _measured(groups: Sequence[Group], shown: Sequence[Measured]) -> list[Part]:
    tables: list[Part] = []
    for group in groups:
        tables += scores.measured_tables(shown, group.series)
    return tables


def _settings_that_differ(series: Sequence[Series]) -> list[Facts]:
    """Return which settings of models are not as declared, and which tell them from others of their name."""
    facts = []
    for each in series:
        departures = each.first.departures
        differing = []
        if departures:
            differing.append(join_departures(departures))
        for key, value in each.differing.items():
            if key not in departures:
                differing.append(f"{key} {value_text(value)}")
        if differing:
            facts.append((each.name, ", ".join(differing)))
    if not facts:
        return []
    return [Facts("Settings that differ", facts, "From those in stages/*.toml, or from models of the same name.")]


def _provenance(artifacts: Sequence[ChainArtifact]) -> Iterator[Facts]:
    # Each version, and each artifact, once and in the order of the artifacts.
    versions: dict[str, dict[str, None]] = defaultdict(dict)
    paths: dict[str, list[str]] = defaultdict(list)
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
