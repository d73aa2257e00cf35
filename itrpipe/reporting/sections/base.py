"""What a section is made of, and the sections that there are."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from itrpipe.reporting.collect import Run
from itrpipe.reporting.examples import Gallery
from itrpipe.reporting.groups import Group, Options
from itrpipe.reporting.library import Library
from itrpipe.reporting.tables import Provenance
from itrpipe.reporting.thumbnails import Picture

View = TypeVar("View")


@dataclass(frozen=True)
class Source:
    """A report, before its sections.

    Attributes:
        groups: runs by test set.
        shown: the run that examples are of where one is enough.
        libraries: datasets by the name of their artifact; None for those that were removed.
        provenance: of everything that the runs were made from.
        options: of the report.
    """

    groups: Sequence[Group]
    shown: Run
    libraries: Mapping[str, Library | None]
    provenance: Provenance
    options: Options

    @property
    def runs(self) -> list[Run]:
        """The shown run, then all of them."""
        return [self.shown, *(run for group in self.groups for run in group.runs)]

    def gallery(self, run: Run, split: str) -> Gallery | None:
        """Images and captions of a split of a run's dataset; None where that was removed."""
        library = self.libraries[run.prepare.name]
        return None if library is None else library.gallery(split)

    def picture(self, run: Run, image: str) -> Picture:
        """An image of a run's dataset, a placeholder where that was removed."""
        library = self.libraries[run.prepare.name]
        return Picture(image, None) if library is None else library.picture(image, run.evaluation.folder)

    def first_view(
        self, make: Callable[[Sequence[Run], int, Callable[[Run, str], Picture]], View | None]
    ) -> View | None:
        """The view of the first group that has something to show."""
        found = (make(group.runs, self.options.examples, self.picture) for group in self.groups)
        return next((view for view in found if view is not None), None)


@functools.cache
def sections() -> dict[str, ModuleType]:
    """Folder name -> its section, in the order of the page."""
    names = sorted(path.parent.name for path in Path(__file__).parent.glob("*/section.py"))
    modules = {name: importlib.import_module(f"{__package__}.{name}.section") for name in names}
    return dict(sorted(modules.items(), key=lambda each: each[1].ORDER))
