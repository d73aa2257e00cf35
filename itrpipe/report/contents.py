"""The contents of a report, gathered once for the page, a terminal, Markdown and programs."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
from itrpipe.report.claims import TIME, Comparison, answer, claims_of, judged, rsum_of, two
from itrpipe.report.names import Declared, listed, shown, some
from itrpipe.report.negatives import EditedSentences
from itrpipe.report.pictures import Album, Examples, LikelyPairs, SplitPictures, retrieval_examples
from itrpipe.report.plots import Look, Panels, Plot, intervals, looks_of, training_curves
from itrpipe.report.published import ReportSettings
from itrpipe.report.runs import Run, Series, all_artifacts, collect, contents_of, series_of
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
        looks: how each series is drawn, by its name.
        answer: what a page says first.
        evidence: drawing of the best models beside their baseline; None of one model alone.
        notes: sentences to know before the answer is used.
        table: all models.
        prefix: of the names in its drawings.
    """

    description: str
    series: list[Series]
    claims: list[Comparison]
    timed: list[Comparison]
    looks: dict[str, Look]
    answer: str
    evidence: Plot | None
    notes: list[str]
    table: Table
    prefix: str


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
    names = dict(options.names)
    sets = collect(evaluations, declared, names)
    if not sets:
        raise MissingInputError("a report needs an evaluation; run `itrpipe evaluate` first")
    known = set(itertools.chain.from_iterable(run.names for run in itertools.chain.from_iterable(sets)))
    for name in dict.fromkeys(each.run for each in options.published):
        if name not in known:
            warn(f"published scores are given for {name!r}, but no such run is evaluated")
    data = ShownData(find_root)
    compared = [_compared(members, data, options) for members in sets]
    runs = []
    for series, _, _ in compared:
        runs += itertools.chain.from_iterable(each.all for each in series)
    artifacts = all_artifacts(runs)
    # Significance is corrected over all comparisons of the page.
    marked = judged([claims for _, claims, _ in compared])
    groups = []
    for number, ((series, _, timed), claims) in enumerate(zip(compared, marked, strict=True)):
        groups.append(_group(series, claims, timed, data, options, f"set{number}"))

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
    problems = [problem for _, album in data.datasets.values() for problem in album.problems]
    if problems:
        warn(f"{len(problems)} images cannot be read and are shown as placeholders ({problems[0]})")
    return report


def _compared(
    runs: Sequence[Run], data: ShownData, options: ReportSettings
) -> tuple[list[Series], list[Comparison], list[Comparison]]:
    """Return the models on one test set, and their differences to baselines of as many updates, and of as much time."""
    series = series_of(runs)
    gallery = data.gallery(runs[0].evaluation, runs[0].settings["split"])
    chances = gallery and gallery.split, options.bootstrap_samples, options.interval_level
    if options.compare:
        first, second = two(series, options.compare)
        return [first, second], claims_of([second], *chances, first), []
    timed = judged([claims_of(series, *chances, TIME)])
    return series, claims_of(series, *chances), timed[0]


def _group(
    series: list[Series],
    claims: list[Comparison],
    timed: list[Comparison],
    data: ShownData,
    options: ReportSettings,
    prefix: str,
) -> Group:
    said = []
    for each in claims:
        sides = [contents_of(side.all, DISCRIMINATION) for side in (each.series, each.baseline)]
        for often, kinds in zip(("", "less often "), discrimination.gained_and_lost(*sides), strict=True):
            if kinds:
                said.append(f"{each.series.name} prefers captions {often}to edits of {'; '.join(kinds)}.")

    looks = looks_of(series)
    evidence = None
    if len(series) > 1:
        baseline = claims[0].baseline if claims else None
        evidence = intervals(f"{prefix}-evidence", series, looks, baseline, _MOST_SHOWN)

    notes = negatives.hardness(series, dict(options.names))
    unfinished = []
    for each in series:
        model = each.first.members[0]
        validated = data.gallery(model.artifact, "val") if model.history else None
        if validated is not None:
            reason = why_longer(model.history, model.settings, len(validated.split.image_ids))
            if reason:
                unfinished.append(f"{each.name}: {reason}")
    if unfinished:
        notes.insert(0, f"Train longer first. {some(unfinished, _MOST_SHOWN, '; ')}.")
    run = series[0].first
    if run.prepare.manifest is not None and run.prepare.manifest.metrics.get("leaks"):
        notes.insert(0, f"{LEAKED.format(run.prepare.manifest.metrics['leaks'])}.")

    images, captions = run.size
    place = f"{run.settings['split']} split of {run.manifest.dataset}"
    description = f"{place}, {images:,} images with {captions:,} captions"
    if options.compare and claims:
        description += f"; seeds compared: {', '.join(map(str, claims[0].seeds))}"
    return Group(
        description,
        series,
        claims,
        timed,
        looks,
        " ".join([*said, answer(series, claims)]),
        evidence,
        notes,
        scores.glance(series, claims, timed, options.published),
        prefix,
    )


# -- Sections


def _sections(
    groups: Sequence[Group], data: ShownData, artifacts: Sequence[ChainArtifact], options: ReportSettings
) -> Iterator[Section]:
    sentences = negatives.written(artifacts, data.gallery, options.examples, options.seed)
    details = _measured(groups, discrimination.SHOWN)
    if details:
        details, sentences = [*details, *sentences[1:]], sentences[:1]
    yield Section("Details", details, open=True)
    # Queries of a model that has a baseline, else of the best.
    claim = groups[0].claims[0] if groups[0].claims else None
    series = claim.series if claim else max(groups[0].series, key=rsum_of)
    gallery = data.gallery(series.first.evaluation, series.first.settings["split"])
    found, likely = [], []
    if gallery is not None:
        found = retrieval_examples(series, claim and claim.baseline, gallery, options.examples)
        likely = negatives.likely_answers(series, gallery, options.examples)
    hardest, likely_mined = negatives.mined(artifacts, dict(options.names), data.gallery, options.examples)
    yield Section("Likelier right than not", [*likely, *likely_mined], open=True)
    yield Section("What it finds", found, open=True)
    yield Section("The hardest negatives", hardest, open=True)
    all_scores: list[Part] = []
    for group in groups:
        all_scores += scores.score_tables(group.series, options.published)
        all_scores += scores.recall_differences(group.claims)
        all_scores += _settings_that_differ(group.series)
    yield Section("All scores", all_scores)
    measured = [each for question in questions() for each in getattr(question, "SHOWN", ())]
    others = [each for each in measured if each not in discrimination.SHOWN]
    yield Section("More measures", _measured(groups, others))
    curves = []
    for group in groups:
        curves += training_curves(group.series, group.looks, group.prefix)
    yield Section("Training", curves)
    yield Section("Written sentences", sentences)
    yield Section("Cost", [scores.cost_table(group.series) for group in groups], timed=True)
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
        differing = [f"{key} {shown(value)}" for key, value in each.differing.items() if key not in departures]
        if departures:
            differing.insert(0, listed(departures))
        if differing:
            facts.append((each.name, ", ".join(differing)))
    note = "From those in stages/*.toml, or from models of the same name."
    return [Facts("Settings that differ", facts, note)] if facts else []


def _provenance(artifacts: Sequence[ChainArtifact]) -> Iterator[Facts]:
    # Each version, and each artifact, once and in the order of the artifacts.
    versions: dict[str, dict[str, None]] = defaultdict(dict)
    paths: dict[str, list[str]] = defaultdict(list)
    for each in artifacts:
        if each.manifest is not None:
            for package, version in each.manifest.versions.items():
                versions[package][version] = None
            for message in each.manifest.messages:
                paths[text_without_places(message)].append(each.path)
    commands = [("", each) for each in commands_of(artifacts)]
    yield Facts("Commands", commands, "In the order in which they finished.", code=True)
    if paths:
        yield Facts("Warnings", [(some(which, _MOST_NAMED), message) for message, which in paths.items()])
    yield Facts("Fingerprints", [(each.path, each.fingerprint) for each in artifacts], code=True)
    yield Facts("Versions", [(package, " and ".join(known)) for package, known in sorted(versions.items())])
