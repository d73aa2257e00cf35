"""Everything a report says, computed once for the page, the terminal and programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from itrpipe.errors import MissingInputError
from itrpipe.reporting import tables
from itrpipe.reporting.chain import Artifact
from itrpipe.reporting.collect import Run, all_artifacts, collect
from itrpipe.reporting.departures import Declared
from itrpipe.reporting.groups import Group, Options, make_group, pair
from itrpipe.reporting.library import Library
from itrpipe.reporting.sections.base import Source, sections
from itrpipe.reporting.seeds import judged
from itrpipe.storage.artifact import Manifest

_NAMED = 3
"""Backbones that the question names."""


@dataclass(frozen=True)
class Section:
    """A section that has something to show.

    Attributes:
        name: of its folder.
        module: its `section.py`.
        view: what it shows.
    """

    name: str
    module: ModuleType
    view: Any

    @property
    def anchor(self) -> str:
        """What links point to."""
        return self.name.replace("_", "-")

    @property
    def template(self) -> str:
        """Path below this folder."""
        return f"sections/{self.name}/{self.name}.html.j2"


@dataclass(frozen=True)
class Content:
    """A whole report.

    Attributes:
        title, dataset, date: the heading; the date is that of the last evaluation.
        level: of all intervals.
        groups: runs by test set.
        has_truth: whether the dataset knows all correct matches.
        removed: artifacts that were removed since.
        sections: of the page, in their order.
    """

    title: str
    dataset: str
    date: str
    level: float
    groups: list[Group]
    has_truth: bool
    removed: list[Artifact]
    sections: list[Section]

    @property
    def runs(self) -> int:
        """How many there are."""
        return sum(len(group.runs) for group in self.groups)

    @property
    def question(self) -> str:
        """What the page is to answer."""
        backbones = dict.fromkeys(run.backbone for group in self.groups for run in group.runs)
        if all(run.is_about_training for group in self.groups for run in group.runs):
            return f"How often are the right image and the right caption of {self.dataset} found?"
        *others, last = backbones
        named = f"{', '.join(others)} and {last}" if others else last
        named = named if len(backbones) <= _NAMED else "these models"
        return f"Do better negatives help {f'{named} ' if others else ''}to find more in {self.dataset}?"

    def view(self, name: str) -> Any:
        """What a section shows; None where it shows nothing."""
        return next((section.view for section in self.sections if section.name == name), None)


def gather(
    evaluations: Iterable[tuple[Path, Manifest]],
    baseline_method: str,
    options: Options,
    declared: Declared,
    names: Mapping[str, str],
    find_root: Callable[[Artifact], Path | None],
    warn: Callable[[str], None],
) -> Content:
    """Follows the evaluations to everything they were made from and computes what a report says.

    Args:
        evaluations: folders of finished evaluations with their manifests.
        baseline_method: the method of the first training.
        options: of the report.
        declared: settings of an artifact's configuration by the declarations.
        names: folder of a training artifact -> name of its model, where it has one.
        find_root: folder of the photographs of a dataset's artifact, or None when they are gone.
        warn: called with what is missing.

    Raises:
        MissingInputError: there is no evaluation.
        DataError: an artifact is damaged.
    """
    found = collect(evaluations, baseline_method, declared, names)
    runs = [run for members in found.values() for run in members]
    if not runs:
        raise MissingInputError("a report needs an evaluation; run `itrpipe evaluate` first")
    known = {name for run in runs for name in (run.label, run.evaluation.name)}
    for name in dict.fromkeys(each.name for each in options.published if each.run not in known):
        warn(f"published scores are given for {name!r}, but no such run is evaluated")
    libraries = _libraries(runs, find_root)
    pairings = [
        pair(members, libraries[test_set.prepare], options, baseline_method) for test_set, members in found.items()
    ]
    marked = judged([each.compared for each in pairings])
    groups = [
        make_group(members, replace(pairing, compared=compared), options, f"set{index}", baseline_method)
        for index, (members, pairing, compared) in enumerate(zip(found.values(), pairings, marked, strict=True))
    ]
    shown, artifacts = _shown_run(groups), all_artifacts(runs)
    source = Source(groups, shown, libraries, tables.provenance(artifacts), options)
    chosen = {name: module for name, module in sections().items() if name in (options.sections or sections())}
    views = [Section(name, module, module.view(source)) for name, module in chosen.items()]
    content = Content(
        title=options.title or shown.manifest.dataset,
        dataset=shown.manifest.dataset,
        date=_date(run.manifest.finished for run in runs),
        level=options.interval_level,
        groups=groups,
        has_truth=any(run.ranks(oracle=True) is not None for run in runs),
        removed=[artifact for artifact in artifacts if artifact.manifest is None],
        sections=[section for section in views if section.view is not None],
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


def _shown_run(groups: Sequence[Group]) -> Run:
    """The first run of a later training, else the best one."""
    runs = groups[0].runs
    later = [run for run in runs if not run.is_baseline]
    return later[0] if later else max(runs, key=lambda run: run.metrics[tables.FULL]["rsum"]["value"])


def _warn_of_photographs(libraries: dict[str, Library | None], warn: Callable[[str], None]) -> None:
    problems = [problem for library in libraries.values() if library for problem in library.album.problems]
    if problems:
        warn(f"{len(problems)} photographs cannot be read and are shown as placeholders ({problems[0]})")


def _date(finished: Iterable[str]) -> str:
    """The day of the latest of some ISO times, in words."""
    last = max(datetime.fromisoformat(each) for each in finished)
    return f"{last.day} {last:%B %Y}"
