"""Hubness: the share of queries that the few items which are returned most often answer."""

from __future__ import annotations

from collections.abc import Sequence

from itrpipe.evaluation.collapse import MOST, is_alike, random_share
from itrpipe.reporting.collapse import answered_by_hubs
from itrpipe.reporting.collect import DIRECTIONS, Run
from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.tables import Cell, Row, SpannedTable, Table

TITLE, ORDER = "Hubness", 65
READS = ()
_SHOWN = {"i2t": "Captions for images", "t2i": "Images for captions"}
_CAPTION = (
    f"Percent of the queries whose first answer is one of the {MOST} items that stand first most often; for random "
    "answers the mean, which is high where there are few items. Bold: more than half of the way from there to all."
)


def view(source: Source) -> list[tuple[Group, SpannedTable]]:
    """All groups."""
    return [(group, hubs_of(group.runs)) for group in source.groups]


def hubs_of(runs: Sequence[Run]) -> SpannedTable:
    """A row for every run, with shares that are a collapse marked, and one for random answers.

    Args:
        runs: on one test set.
    """
    rows = [Row(run.name, [_cell(run, side) for side in DIRECTIONS], run.label) for run in runs]
    images, captions = runs[0].size
    random = {"i2t": random_share(captions, images), "t2i": random_share(images, captions)}
    cells = [Cell(title, f"{100 * random[side]:.1f}") for side, title in _SHOWN.items()]
    rows.append(Row("random answers", cells, published=True))
    table = Table("Answers that come again", list(_SHOWN.values()), rows, _CAPTION)
    return SpannedTable(table, [("", len(_SHOWN))])


def _cell(run: Run, side: str) -> Cell:
    share, items, queries = answered_by_hubs(run, side)
    return Cell(_SHOWN[side], f"{100 * share:.1f}", marked=is_alike(share, items, queries))
