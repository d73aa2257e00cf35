"""Hubness: the share of queries that the few items which are returned most often answer.

Source: Radovanović et al., "Hubs in space", JMLR 2010; a model whose items are hubs returns the same for every query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from itrpipe.reporting.collect import DIRECTIONS, Queries, Run
from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.tables import Cell, Row, SpannedTable, Table

TITLE, ORDER = "Hubness", 65
READS = ()
MOST = 10
"""Items that are returned most often."""
MANY, TIMES = 0.5, 2.0
"""Share of the queries, and times the even share, from which on there is a warning."""
_SHOWN = {"i2t": "Captions for images", "t2i": "Images for captions"}
_CAPTION = (
    f"Percent of the queries whose first answer is one of the {MOST} items that stand first most often. An even share "
    "is that of a model that returns every item equally often."
)


@dataclass(frozen=True)
class Hubs:
    """What is shown of one test set.

    Attributes:
        table: the shares.
        warnings: one sentence for each run that returns the same for many queries.
    """

    table: SpannedTable
    warnings: list[str]

    @property
    def summary(self) -> str:
        """The first warning, and how many more there are; empty where there is none."""
        more = len(self.warnings) - 1
        others = f" {more} more such warning{'s' if more > 1 else ''}:" if more > 0 else ""
        return f"{self.warnings[0]}{others}" if self.warnings else ""


def view(source: Source) -> list[tuple[Group, Hubs]]:
    """All groups."""
    return [(group, hubs_of(group.runs)) for group in source.groups]


def hubs_of(runs: Sequence[Run]) -> Hubs:
    """A row for every run, and one for the even share.

    Args:
        runs: on one test set.
    """
    even = {side: even_share(runs[0].rankings, side) for side in DIRECTIONS}
    shares = [{side: share_of_hubs(run.rankings[side]) for side in DIRECTIONS} for run in runs]
    rows = [Row(run.name, _cells(own), run.label) for run, own in zip(runs, shares, strict=True)]
    rows.append(Row("even share", _cells(even), published=True))
    warnings = [
        f"{run.name}: {MOST} {'captions' if side == 'i2t' else 'images'} are the first answer to "
        f"{100 * own[side]:.0f} % of the queries. It tells few of them apart; train longer, or look at its loss."
        for run, own in zip(runs, shares, strict=True)
        for side in DIRECTIONS
        if own[side] > MANY and own[side] > TIMES * even[side]
    ]
    table = Table("Answers that come again", list(_SHOWN.values()), rows, _CAPTION)
    return Hubs(SpannedTable(table, [("", len(_SHOWN))]), warnings)


def share_of_hubs(queries: Queries) -> float:
    """Share of queries, 0..1, whose first answer is one of the `MOST` items that stand first most often."""
    first = Counter(candidates[0] for candidates in queries.candidates if candidates)
    return sum(count for _, count in first.most_common(MOST)) / len(queries.ids)


def even_share(rankings: dict[str, Queries], side: str) -> float:
    """The share where every item stands first equally often: each for as many queries, or for one or none."""
    items = len(rankings["t2i" if side == "i2t" else "i2t"].ids)
    return min(1.0, MOST / min(items, len(rankings[side].ids)))


def _cells(shares: dict[str, float]) -> list[Cell]:
    return [Cell(title, f"{100 * shares[side]:.1f}") for side, title in _SHOWN.items()]
