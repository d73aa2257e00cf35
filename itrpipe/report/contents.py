"""What a report says, gathered once for the page, a terminal, Markdown and programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from itrpipe.analysis.questions.base import questions
from itrpipe.analysis.second_round import recommend
from itrpipe.datasets.prepared import Split
from itrpipe.errors import DataError, MissingInputError
from itrpipe.evaluation.metrics import RECALLS
from itrpipe.evaluation.tables import (
    Number,
    Row,
    Table,
    duration,
)
from itrpipe.exporting.places import text_without_places
from itrpipe.progress import PEAK_MEMORY
from itrpipe.report import negatives, scores
from itrpipe.report.chain import Artifact, commands_of
from itrpipe.report.claims import TIME, Claim, answer, claims_of, judged, rsum_of, score_of, two, why_collapsed
from itrpipe.report.curves import training_curves
from itrpipe.report.maps import WordMapView, word_map_view
from itrpipe.report.names import Declared, listed, shown
from itrpipe.report.pictures import Examples, Gallery, Library, Picture, retrieval_examples
from itrpipe.report.plots import Panels, Plot, intervals, looks_of
from itrpipe.report.published import Published
from itrpipe.report.runs import Run, all_artifacts, collect
from itrpipe.report.series import Series, series_of
from itrpipe.report.words import ColouredWords, scored_words, wrong_words
from itrpipe.storage.artifact import FALSE_NEGATIVES, SECOND_ROUND, Manifest

_MOST_DRAWN = 6
"""Models that the first drawing shows: the best, and the baseline."""
_MOST_PANELS = 8
"""Models that get a drawing of their recalls; more have the table."""


@dataclass(frozen=True)
class Options:
    """Settings of a report, see `itrpipe.stages.report.ReportSettings`."""

    title: str
    examples: int
    seed: int
    bootstrap_samples: int
    interval_level: float
    published: Sequence[Published]
    compare: Sequence[str] = ()


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


Part = Table | Panels | Examples | ColouredWords | WordMapView | Facts


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading, folded unless it is `open`."""

    title: str
    parts: Sequence[Part]
    open: bool = False

    @property
    def anchor(self) -> str:
        """What links point to."""
        return re.sub(r"\W+", "-", self.title.lower())


@dataclass(frozen=True)
class Group:
    """The runs on one test set.

    Attributes:
        description: of the test set, one phrase.
        split: they were evaluated on; None when the dataset was removed.
        series: of the runs.
        claims: of models against their baselines.
        timed: against baselines of as much time.
        prefix: of the names in its drawings.
    """

    description: str
    split: Split | None
    series: list[Series]
    claims: list[Claim]
    timed: list[Claim]
    prefix: str

    @property
    def runs(self) -> list[Run]:
        """All of them."""
        return [run for each in self.series for run in each.all]


@dataclass(frozen=True)
class Head:
    """What a page says first of a test set: the answer, one table, and a drawing, or None of one model alone."""

    group: Group
    answer: str
    table: Table
    evidence: Plot | None


@dataclass(frozen=True)
class Report:
    """A whole report.

    Attributes:
        title, dataset, date: the heading; the date is that of the last evaluation.
        level: of all intervals.
        heads: of the test sets.
        sections: of the page, in their order.
        removed: artifacts that were removed since.
    """

    title: str
    dataset: str
    date: str
    level: float
    heads: list[Head]
    sections: list[Section]
    removed: list[Artifact]

    @property
    def question(self) -> str:
        """What the page is to answer."""
        if any(head.group.claims for head in self.heads):
            return f"Do better negatives find more in {self.dataset}?"
        return f"How often are the right image and the right caption of {self.dataset} found?"


def gather(
    evaluations: Iterable[tuple[Path, Manifest]],
    options: Options,
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
    runs = [run for members in found.values() for run in members]
    if not runs:
        raise MissingInputError("a report needs an evaluation; run `itrpipe evaluate` first")
    known = {name for run in runs for name in (run.label, run.evaluation.name)}
    for name in dict.fromkeys(each.run for each in options.published if each.run not in known):
        warn(f"published scores are given for {name!r}, but no such run is evaluated")
    source = Source.of(runs, options, find_root)
    groups = [source.group(members, f"set{number}") for number, members in enumerate(found.values())]
    claimed = judged([each.claims for each in groups])
    groups = [replace(group, claims=claims) for group, claims in zip(groups, claimed, strict=True)]
    artifacts = all_artifacts(runs)
    report = Report(
        title=options.title or runs[0].manifest.dataset,
        dataset=runs[0].manifest.dataset,
        date=_date(run.manifest.finished for run in runs),
        level=options.interval_level,
        heads=[_head(group, options.published) for group in groups],
        sections=[section for section in _sections(groups, source, artifacts) if section.parts],
        removed=[artifact for artifact in artifacts if artifact.manifest is None],
    )
    problems = [problem for library in source.libraries.values() if library for problem in library.album.problems]
    if problems:
        warn(f"{len(problems)} photographs cannot be read and are shown as placeholders ({problems[0]})")
    return report


@dataclass(frozen=True)
class Source:
    """What sections are made from: the datasets by the name of their artifact, None for those that were removed."""

    libraries: Mapping[str, Library | None]
    options: Options

    @classmethod
    def of(cls, runs: Iterable[Run], options: Options, find_root: Callable[[Artifact], Path | None]) -> Source:
        """Opens the datasets of runs."""
        datasets = {run.prepare.name: run.prepare for run in runs}
        opened = {
            name: None if prepare.manifest is None else Library(prepare, find_root(prepare))
            for name, prepare in datasets.items()
        }
        return cls(opened, options)

    def group(self, runs: Sequence[Run], prefix: str) -> Group:
        """The runs on one test set beside their baselines."""
        gallery = self.gallery(runs[0], runs[0].settings["split"])
        split = None if gallery is None else gallery.split
        if split is not None:
            _check_rankings(runs, split)
        series, images, captions = series_of(runs), *runs[0].size
        chances = split, self.options.bootstrap_samples, self.options.interval_level
        place = f"{runs[0].settings['split']} split of {runs[0].manifest.dataset}"
        description = f"{place}, {images:,} images with {captions:,} captions"
        if self.options.compare:
            first, second = two(series, self.options.compare)
            return Group(description, split, [first, second], claims_of([second], *chances, first), [], prefix)
        return Group(description, split, series, claims_of(series, *chances), claims_of(series, *chances, TIME), prefix)

    def gallery(self, run: Run, split: str) -> Gallery | None:
        """Images and captions of a split of a run's dataset; None where that was removed."""
        library = self.libraries[run.prepare.name]
        return None if library is None else library.gallery(split)

    def picture(self, run: Run, image: str) -> Picture:
        """An image of a run's dataset, a placeholder where that was removed."""
        library = self.libraries[run.prepare.name]
        return Picture(image, None) if library is None else library.picture(image, run.evaluation.folder)


def _check_rankings(runs: Iterable[Run], split: Split) -> None:
    """Makes sure that the rankings of runs are of the images and captions of a split, in their order."""
    ids = {"i2t": split.image_ids.tolist(), "t2i": split.caption_ids.tolist()}
    for run in runs:
        if any(run.rankings[side].ids != ids[side] for side in ids):
            raise DataError(
                f"{run.evaluation.folder}: its rankings are not of {run.prepare.path} {split.name}; evaluate again"
            )


def _head(group: Group, published: Sequence[Published]) -> Head:
    table = scores.glance(group.series, group.claims, group.timed, published)
    return Head(group, answer(group.series, group.claims), table, _evidence(group))


def _evidence(group: Group) -> Plot | None:
    """RSum of the best models and of the baseline, whose interval is drawn across."""
    if len(group.series) < 2:
        return None
    ranked = sorted(group.series, key=rsum_of, reverse=True)
    baseline = group.claims[0].baseline if group.claims else None
    drawn = [each for each in ranked if each is not baseline][: _MOST_DRAWN - (baseline is not None)]
    drawn = [each for each in ranked if each in drawn or each is baseline]
    rows = [found for each in drawn if (found := score_of(each)) is not None]
    looks, one_backbone = looks_of(group.series), len({each.first.backbone for each in group.series}) == 1
    title = "RSum" if baseline is None else f"RSum; shaded: the baseline, {baseline.method}, with its interval"
    return intervals(
        f"{group.prefix}-evidence",
        title,
        [each.method if one_backbone else each.name for each in drawn],
        rows,
        [looks[each.name] for each in drawn],
        None if baseline is None else score_of(baseline),
    )


# -- Sections


def _sections(groups: Sequence[Group], source: Source, artifacts: Sequence[Artifact]) -> Iterator[Section]:
    runs = [run for group in groups for run in group.runs]
    yield Section("What it finds", _finds(groups[0], source), open=True)
    yield Section("The hardest negatives", _mined(runs, source), open=True)
    yield Section("All scores", [part for group in groups for part in _scores(group, source)])
    yield Section("More measures", [part for group in groups for part in _measures(group)])
    yield Section("Training", [part for group in groups for part in _training(group)])
    yield Section("Is a second training worth it?", _advice(runs))
    yield Section("Written sentences", _written(runs, source))
    yield Section("Words", _words(groups, source))
    yield Section("Cost", [_cost(artifacts)])
    yield Section("Provenance", list(_provenance(artifacts)))


def _finds(group: Group, source: Source) -> list[Part]:
    """Queries of a model that has a baseline, else of the best."""
    claim = group.claims[0] if group.claims else None
    run = claim.series.first if claim else max(group.series, key=rsum_of).first
    gallery, options = source.gallery(run, run.settings["split"]), source.options
    if gallery is None:
        return []
    return [*retrieval_examples(run, claim and claim.baseline.first, gallery, options.examples, options.seed)]


def _mined(runs: Sequence[Run], source: Source) -> list[Part]:
    """How hard mined candidates are, with examples of the first lists; and of the first run that estimates false "
    "ones."""
    rows, examples, options = [], [], source.options
    for artifact, run in negatives.minings(runs):
        name, gallery = negatives.mining_name(artifact, run.names), source.gallery(run, negatives.TRAIN)
        rows += negatives.mined_rows(artifact, name, gallery)
        if gallery is not None and not examples:
            examples = negatives.mined_examples(artifact, name, gallery, options.examples, options.seed)
    estimated = next((run for run in runs if run.figures(FALSE_NEGATIVES) is not None), None)
    gallery = None if estimated is None else source.gallery(estimated, negatives.TRAIN)
    if estimated is not None and gallery is not None:
        examples += negatives.estimated_examples(estimated, gallery, options.examples, options.seed)
    return [*([negatives.mined_table(rows)] if rows else []), *examples]


def _scores(group: Group, source: Source) -> Iterator[Part]:
    yield from scores.score_tables(group.series, source.options.published)
    yield from filter(None, (scores.recall_differences(group.claims, oracle=oracle) for oracle in (False, True)))
    if 0 < len(group.claims) <= _MOST_PANELS:
        looks = looks_of(group.series)
        plots = [_recalls(each, looks, f"{group.prefix}-difference-{n}") for n, each in enumerate(group.claims)]
        yield Panels(plots, [], "Differences to the baseline in percentage points; hollow: the interval includes zero.")
    differing = [(each.name, _settings(each)) for each in group.series]
    facts = [each for each in differing if each[1]]
    if facts:
        yield Facts("Settings that differ", facts, "From those in stages/*.toml, or from models of the same name.")


def _recalls(claim: Claim, looks: Mapping[str, Any], name: str) -> Plot:
    labels = [f"{each[0]}→{each[2]} R@{each.rpartition('r')[2]}" for each in RECALLS]
    rows = [Number(d.value, d.images.low, d.images.high, signed=True) for d in (claim.own[each] for each in RECALLS)]
    return intervals(name, claim.series.name, labels, rows, [looks[claim.series.name]] * len(rows), None)


def _settings(series: Series) -> str:
    """What is not as declared with what is, then what else tells the series from others of its name."""
    others = [f"{key} {shown(value)}" for key, value in series.differing.items() if key not in series.departures]
    return ", ".join(filter(None, [listed(series.departures), *others]))


def _measures(group: Group) -> Iterator[Part]:
    measured = [each for question in questions() for each in getattr(question, "SHOWN", ())]
    yield from filter(None, (scores.measured_table(each, group.series) for each in measured))
    yield scores.hub_table(group.series)


def _training(group: Group) -> list[Part]:
    curves = training_curves(group.series, looks_of(group.series), group.prefix)
    return [scores.cost_table(group.series), *curves]


def _advice(runs: Sequence[Run]) -> list[Part]:
    """Of every first training that has not collapsed, told by its batches, its training set and its validation."""
    items, evidence = {}, ""
    for run in runs:
        found = run.figures(SECOND_ROUND)
        if found and not why_collapsed(run):
            advice = recommend(found, run.members[0].named)
            items.setdefault(run.name, advice.sentence)
            evidence = evidence or advice.evidence
    note = f"Told by the first training alone, without the test split. {evidence}".rstrip()
    return [Facts("By the first training", [*items.items()], note)] if items else []


def _written(runs: Sequence[Run], source: Source) -> list[Part]:
    found = negatives.written(runs)
    if not found:
        return []
    examples = None
    for artifact in found:
        prepare = artifact.input("prepare")
        library = None if prepare is None else source.libraries.get(prepare.name)
        if library is not None and examples is None:
            gallery = library.gallery(negatives.split_of(artifact))
            examples = negatives.written_examples(artifact, gallery, source.options.examples, source.options.seed)
    return [negatives.written_table(found), *([examples] if examples else [])]


def _words(groups: Sequence[Group], source: Source) -> list[Part]:
    """Of each view the first group that has something to show."""
    found: list[Part] = []
    for make in (scored_words, wrong_words, word_map_view):
        views = (make(group.runs, source.options.examples, source.picture) for group in groups)
        found += filter(None, [next((view for view in views if view is not None), None)])
    return found


def _cost(artifacts: Sequence[Artifact]) -> Table:
    rows = []
    for each in artifacts:
        manifest = each.manifest
        cells = [None, None]
        if manifest is not None:
            gib = manifest.metrics.get(PEAK_MEMORY)
            cells = [duration(manifest.timings["total"]), Number.of(gib, digits=2, unit=" GiB")]
        rows.append(Row(each.path, cells))
    total = duration(sum(each.manifest.timings["total"] for each in artifacts if each.manifest is not None))
    return Table("What was made", ["time", "peak memory"], rows, f"{total} in all.", head="artifact")


def _provenance(artifacts: Sequence[Artifact]) -> Iterator[Facts]:
    known = [(each, each.manifest) for each in artifacts if each.manifest is not None]
    versions: dict[str, dict[str, None]] = {}
    for _, manifest in known:
        for package, version in manifest.versions.items():
            versions.setdefault(package, {})[version] = None
    messages = [(each.path, text_without_places(text)) for each, manifest in known for text in manifest.messages]
    yield Facts(
        "Commands",
        [("", each) for each in commands_of(artifacts)],
        "In the order in which they finished.",
        code=True,
    )
    if messages:
        yield Facts("Warnings", messages)
    yield Facts("Fingerprints", [(each.path, each.fingerprint) for each in artifacts], code=True)
    yield Facts("Versions", [(package, " and ".join(own)) for package, own in sorted(versions.items())])


def _date(finished: Iterable[str]) -> str:
    """The day of the latest of some ISO times, in words."""
    last = max(datetime.fromisoformat(each) for each in finished)
    return f"{last.day} {last:%B %Y}"
