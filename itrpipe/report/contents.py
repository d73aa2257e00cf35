"""What a report says, gathered once for the page, a terminal, Markdown and programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import chain
from pathlib import Path

from itrpipe.analysis.questions import discrimination
from itrpipe.analysis.questions.base import questions
from itrpipe.analysis.questions.discrimination import gained_and_lost
from itrpipe.datasets.prepared import LEAKED, PreparedDataset
from itrpipe.errors import MissingInputError
from itrpipe.evaluation.tables import Measured, Number, Row, Table, duration
from itrpipe.exporting.places import text_without_places
from itrpipe.progress import PEAK_MEMORY
from itrpipe.report import negatives, scores
from itrpipe.report.chain import Artifact, commands_of
from itrpipe.report.claims import TIME, Claim, answer, claims_of, judged, rsum_of, score_of, two
from itrpipe.report.names import Declared, listed, shown, some
from itrpipe.report.pictures import Album, Examples, Gallery, Picture, retrieval_examples
from itrpipe.report.plots import Look, Panels, Plot, intervals, looks_of, training_curves
from itrpipe.report.published import Published, ReportSettings
from itrpipe.report.runs import Run, Series, all_artifacts, collect, series_of
from itrpipe.report.words import ColouredWords, WordMaps, scored_words, word_maps, wrong_words
from itrpipe.storage.artifact import DISCRIMINATION, Manifest
from itrpipe.training.convergence import why_longer

_MOST_SHOWN = 4
"""Models that the first drawing and the first table show: the best, and the baseline."""
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


Part = Table | Panels | Examples | ColouredWords | WordMaps | Facts


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
        """What links point to."""
        return re.sub(r"\W+", "-", self.title.lower())


@dataclass(frozen=True)
class Group:
    """The runs on one test set.

    Attributes:
        description: of the test set, one phrase.
        series: of the runs.
        claims: of models against their baselines.
        timed: against baselines of as much time.
        published: scores of whichever runs.
        notes: sentences to know before the answer is used.
        prefix: of the names in its drawings.
    """

    description: str
    series: list[Series]
    claims: list[Claim]
    timed: list[Claim]
    published: Sequence[Published]
    notes: list[str]
    prefix: str

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [run for each in self.series for run in each.all]

    @cached_property
    def looks(self) -> dict[str, Look]:
        """How each series is drawn, by its name."""
        return looks_of(self.series)

    @cached_property
    def answer(self) -> str:
        """What a page says first of a test set."""
        said = []
        for each in self.claims:
            own, others = (
                [run.wrote(DISCRIMINATION) for run in side.all if run.wrote(DISCRIMINATION)]
                for side in (each.series, each.baseline)
            )
            for often, kinds in zip(("", "less often "), gained_and_lost(own, others), strict=True):
                if kinds:
                    said.append(f"{each.series.name} prefers captions {often}to edits of {'; '.join(kinds)}.")
        return " ".join([*said, answer(self.series, self.claims)])

    @cached_property
    def baseline(self) -> Series | None:
        """That of the first model that has one."""
        return self.claims[0].baseline if self.claims else None

    @cached_property
    def best(self) -> list[Series]:
        """The best models and the baseline, which a page shows first, by RSum."""
        ranked = sorted(self.series, key=rsum_of, reverse=True)
        others = [each for each in ranked if each is not self.baseline]
        shown = others[: _MOST_SHOWN - (self.baseline is not None)]
        return [each for each in ranked if each in shown or each is self.baseline]

    @cached_property
    def table(self) -> Table:
        """All models below the answer."""
        return self._glance(self.series)

    @cached_property
    def tables(self) -> list[Table]:
        """The same in two: the models that a page shows first, and the others, if there are any."""
        others = [each for each in self.series if each not in self.best]
        return [self._glance(each) for each in (self.best, others) if each]

    def _glance(self, series: Sequence[Series]) -> Table:
        return scores.glance(series, self.claims, self.timed, self.published)

    @cached_property
    def evidence(self) -> Plot | None:
        """RSum of the best models and of the baseline, whose interval is drawn across; None of one model alone."""
        if len(self.series) < 2:
            return None
        one_backbone = len({each.first.backbone for each in self.series}) == 1
        return intervals(
            f"{self.prefix}-evidence",
            "RSum" if self.baseline is None else f"RSum; shaded: {self.baseline.name}, with its interval",
            [each.method if one_backbone else each.name for each in self.best],
            [found for each in self.best if (found := score_of(each)) is not None],
            [self.looks[each.name] for each in self.best],
            None if self.baseline is None else score_of(self.baseline),
        )


@dataclass(frozen=True)
class Report:
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
    removed: list[Artifact]

    @property
    def question(self) -> str:
        """What the page is to answer."""
        if any(group.claims for group in self.groups):
            return f"Which model finds more in {self.dataset}?"
        return f"How often are the right image and the right caption of {self.dataset} found?"


def gather(
    evaluations: Iterable[tuple[Path, Manifest]],
    options: ReportSettings,
    declared: Declared,
    names: Mapping[str, str],
    find_root: Callable[[Artifact], Path | None],
    warn: Callable[[str], None],
) -> Report:
    """Follows the evaluations to everything they were made from and computes what a report says.

    Args:
        evaluations: folders of finished evaluations with their manifests.
        options: of the report.
        declared: settings of an artifact's configuration by the declarations.
        names: folder of a training artifact -> name of its model, where it has one.
        find_root: folder of the photographs of a dataset's artifact, or None when they are gone.
        warn: called with what is missing.

    Raises:
        MissingInputError: there is no evaluation.
        DataError: an artifact is damaged.
    """
    found = collect(evaluations, declared, names)
    runs = [run for members in found for run in members]
    if not runs:
        raise MissingInputError("a report needs an evaluation; run `itrpipe evaluate` first")
    known = {name for run in runs for name in (run.label, run.evaluation.name)}
    for name in dict.fromkeys(each.run for each in options.published if each.run not in known):
        warn(f"published scores are given for {name!r}, but no such run is evaluated")
    source, artifacts = Source(options, names, find_root), all_artifacts(runs)
    groups = [source.group(members, f"set{number}") for number, members in enumerate(found)]
    claimed = judged([each.claims for each in groups])
    groups = [replace(group, claims=claims) for group, claims in zip(groups, claimed, strict=True)]
    last = max(datetime.fromisoformat(run.manifest.finished) for run in runs)
    report = Report(
        title=options.title or runs[0].manifest.dataset,
        dataset=runs[0].manifest.dataset,
        date=f"{last.day} {last:%B %Y}",
        level=options.interval_level,
        groups=groups,
        sections=[section for section in _sections(groups, source, artifacts) if section.parts],
        removed=[artifact for artifact in artifacts if artifact.manifest is None],
    )
    problems = [problem for album in source.albums.values() for problem in album.problems]
    if problems:
        warn(f"{len(problems)} photographs cannot be read and are shown as placeholders ({problems[0]})")
    return report


@dataclass(frozen=True)
class Source:
    """What sections are made from: see `gather`.

    Attributes:
        datasets, albums: that were opened, and their photographs, by the name of the artifact.
        galleries: their splits, by this name and their own.
    """

    options: ReportSettings
    names: Mapping[str, str]
    find_root: Callable[[Artifact], Path | None]
    datasets: dict[str, PreparedDataset] = field(default_factory=dict)
    albums: dict[str, Album] = field(default_factory=dict)
    galleries: dict[tuple[str, str], Gallery] = field(default_factory=dict)

    def gallery(self, artifact: Artifact, split: str) -> Gallery | None:
        """Images and captions of a split of the dataset that an artifact was made from; None where that was removed."""
        prepare = artifact.input("prepare")
        if prepare is None or prepare.manifest is None:
            return None
        if (key := (prepare.name, split)) not in self.galleries:
            if prepare.name not in self.albums:
                dataset = self.datasets[prepare.name] = PreparedDataset.open(prepare.folder)
                images = (
                    zip(each.image_ids.tolist(), each.files, strict=True) for each in map(dataset.split, dataset.splits)
                )
                self.albums[prepare.name] = Album(self.find_root(prepare), dict(chain.from_iterable(images)))
            dataset = self.datasets[prepare.name]
            self.galleries[key] = Gallery(dataset.split(split), self.albums[prepare.name], prepare.folder)
        return self.galleries[key]

    def evaluated(self, run: Run) -> Gallery | None:
        """Those that a run was evaluated on."""
        return self.gallery(run.evaluation, run.settings["split"])

    def picture(self, run: Run, image: str) -> Picture:
        """An image that a run was evaluated on, a placeholder where the dataset was removed."""
        gallery = self.evaluated(run)
        return Picture(image, None) if gallery is None else gallery.picture(gallery.image_row[image])

    def group(self, runs: Sequence[Run], prefix: str) -> Group:
        """The runs on one test set beside their baselines."""
        gallery, options = self.evaluated(runs[0]), self.options
        series, images, captions = series_of(runs), *runs[0].size
        place = f"{runs[0].settings['split']} split of {runs[0].manifest.dataset}"
        claims, timed = [], []
        chances = gallery and gallery.split, options.bootstrap_samples, options.interval_level
        if options.compare:
            first, second = two(series, options.compare)
            series, claims = [first, second], claims_of([second], *chances, first)
        else:
            claims, timed = claims_of(series, *chances), claims_of(series, *chances, TIME)
        description = f"{place}, {images:,} images with {captions:,} captions"
        notes = [*self._unfinished(series), *negatives.hardness(series, self.names)]
        prepared = runs[0].prepare.manifest
        if prepared is not None and prepared.metrics.get("leaks"):
            notes.insert(0, f"{LEAKED.format(prepared.metrics['leaks'])}.")
        return Group(description, series, claims, timed, options.published, notes, prefix)

    def _unfinished(self, series: Sequence[Series]) -> list[str]:
        """Name the models whose training is to go on before they are compared."""
        found = []
        for each in series:
            model = each.first.members[0]
            validated = self.gallery(model.artifact, "val") if model.history else None
            if validated is None:
                continue
            images = len(validated.split.image_ids)
            if reason := why_longer(model.history, model.settings, images):
                found.append(f"{each.name}: {reason}")
        return [f"Train longer first. {some(found, _MOST_SHOWN, '; ')}."] if found else []


# -- Sections


def _sections(groups: Sequence[Group], source: Source, artifacts: Sequence[Artifact]) -> Iterator[Section]:
    runs = [run for group in groups for run in group.runs]
    chosen = (source.gallery, source.options.examples, source.options.seed)
    hardest = [*negatives.mined(artifacts, source.names, *chosen), *negatives.estimated(runs, *chosen)]
    told = [part for group in groups for part in _measures(group, discrimination.SHOWN)]
    written = negatives.written(artifacts, *chosen)
    tables, pictures = ([part for part in written if isinstance(part, Table) is known] for known in (True, False))
    yield Section("Details", [*told, *pictures] if told else [], open=True)
    # Queries of a model that has a baseline, else of the best.
    claim = groups[0].claims[0] if groups[0].claims else None
    series = claim.series if claim else max(groups[0].series, key=rsum_of)
    gallery = source.evaluated(series.first)
    found = [] if gallery is None else retrieval_examples(series, claim and claim.baseline, gallery, *chosen[1:])
    yield Section("What it finds", found, open=True)
    yield Section("The hardest negatives", hardest, open=True)
    yield Section("All scores", [part for group in groups for part in _scores(group)])
    measured = [each for question in questions() for each in getattr(question, "SHOWN", ())]
    others = [each for each in measured if each not in discrimination.SHOWN]
    yield Section("More measures", [part for group in groups for part in _measures(group, others)])
    curves = [training_curves(group.series, group.looks, group.prefix) for group in groups]
    yield Section("Training", [panels for each in curves for panels in each])
    yield Section("Written sentences", tables if told else written)
    yield Section("Words", _words(groups, source))
    yield Section("Cost", [*(scores.cost_table(group.series) for group in groups), _cost(artifacts)], timed=True)
    yield Section("Provenance", list(_provenance(artifacts)))


def _scores(group: Group) -> Iterator[Part]:
    yield from scores.score_tables(group.series, group.published)
    yield from filter(None, (scores.recall_differences(group.claims, oracle=oracle) for oracle in (False, True)))
    facts = []
    for each in group.series:  # what is not as declared, then what else tells a series from others of its name
        departures = each.first.departures
        others = [f"{key} {shown(value)}" for key, value in each.differing.items() if key not in departures]
        if told := ", ".join(filter(None, [listed(departures), *others])):
            facts.append((each.name, told))
    if facts:
        yield Facts("Settings that differ", facts, "From those in stages/*.toml, or from models of the same name.")


def _measures(group: Group, measured: Iterable[Measured]) -> Iterator[Part]:
    return filter(None, (scores.measured_table(each, group.series) for each in measured))


def _words(groups: Sequence[Group], source: Source) -> list[Part]:
    """Of each view the first group that has something to show."""
    found: list[Part] = []
    for make in (scored_words, wrong_words, word_maps):
        views = (make(group.runs, source.options.examples, source.picture) for group in groups)
        found += [view for view in views if view is not None][:1]
    return found


def _cost(artifacts: Sequence[Artifact]) -> Table:
    rows, seconds = [], 0.0
    for each in artifacts:
        cells = [None, None]
        if each.manifest is not None:
            total, gib = each.manifest.timings["total"], each.manifest.metrics.get(PEAK_MEMORY)
            cells, seconds = [duration(total), Number.of(gib, digits=2, unit=" GiB")], seconds + total
        rows.append(Row(each.path, cells))
    return Table("What was made", ["time", "peak memory"], rows, f"{duration(seconds)} in all.", head="artifact")


def _provenance(artifacts: Sequence[Artifact]) -> Iterator[Facts]:
    known = [(each, each.manifest) for each in artifacts if each.manifest is not None]
    versions: dict[str, dict[str, None]] = {}
    for _, manifest in known:
        for package, version in manifest.versions.items():
            versions.setdefault(package, {})[version] = None
    paths: dict[str, list[str]] = {}
    for each, manifest in known:
        for message in manifest.messages:
            paths.setdefault(text_without_places(message), []).append(each.path)
    messages = [(some(which, _MOST_NAMED), message) for message, which in paths.items()]
    commands = [("", each) for each in commands_of(artifacts)]
    yield Facts("Commands", commands, "In the order in which they finished.", code=True)
    if messages:
        yield Facts("Warnings", messages)
    yield Facts("Fingerprints", [(each.path, each.fingerprint) for each in artifacts], code=True)
    yield Facts("Versions", [(package, " and ".join(own)) for package, own in sorted(versions.items())])
