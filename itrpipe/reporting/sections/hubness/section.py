"""Hubness: the share of queries that the few items which are returned most often answer.

Source: Radovanović et al., "Hubs in space", JMLR 2010; a model whose items are hubs returns the same for every query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from itrpipe.reporting.collect import DIRECTIONS, Queries, Run
from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.tables import Cell, Row, SpannedTable, Table

TITLE, ORDER = "Hubness", 65
READS = ()
MOST = 10
"""Items that are returned most often."""
MANY = 0.5
"""Of the way from the share in random answers to all queries, from which on there is a warning."""
_DRAWS = 200
"""Random answers to all queries, whose mean share is shown."""
_SHOWN = {"i2t": "Captions for images", "t2i": "Images for captions"}
_CAPTION = (
    f"Percent of the queries whose first answer is one of the {MOST} items that stand first most often; for random "
    "answers the mean, which is high where there are few items. Bold: more than half of the way from there to all."
)


@dataclass(frozen=True)
class Hubs:
    """What is shown of one test set.

    Attributes:
        table: the shares, those that are a warning marked.
        warning: one sentence where models return the same for many queries; else empty.
    """

    table: SpannedTable
    warning: str


def view(source: Source) -> list[tuple[Group, Hubs]]:
    """All groups."""
    return [(group, hubs_of(group.runs)) for group in source.groups]


def hubs_of(runs: Sequence[Run]) -> Hubs:
    """A row for every run, and one for random answers.

    Args:
        runs: on one test set.
    """
    random = {side: random_share(runs[0].rankings, side) for side in DIRECTIONS}
    shares = [{side: share_of_hubs(run.rankings[side]) for side in DIRECTIONS} for run in runs]
    warned = [
        (run, side, own[side])
        for run, own in zip(runs, shares, strict=True)
        for side in DIRECTIONS
        if _is_warning(own[side], random[side])
    ]
    rows = [Row(run.name, _cells(own, random), run.label) for run, own in zip(runs, shares, strict=True)]
    rows.append(Row("random answers", _cells(random, random), published=True))
    table = Table("Answers that come again", list(_SHOWN.values()), rows, _CAPTION)
    return Hubs(SpannedTable(table, [("", len(_SHOWN))]), _warning(warned, random))


def _is_warning(share: float, random: float) -> bool:
    return share > random + MANY * (1 - random)


def _warning(warned: Sequence[tuple[Run, str, float]], random: dict[str, float]) -> str:
    if not warned:
        return ""
    names = list(dict.fromkeys(run.name for run, _, _ in warned))
    if len(names) > 1:
        return (
            f"In {len(names)} runs, {MOST} captions or {MOST} images are the first answer to far more queries than in "
            "random answers (bold under Hubness): these runs tell few of them apart."
        )
    said = " and ".join(
        f"{MOST} {'captions' if side == 'i2t' else 'images'} are the first answer to {100 * share:.0f} % of the "
        f"queries, in random answers to {100 * random[side]:.0f} %"
        for _, side, share in warned
    )
    return f"{names[0]}: {said}. It tells few of them apart."


def share_of_hubs(queries: Queries) -> float:
    """Share of queries, 0..1, whose first answer is one of the `MOST` items that stand first most often."""
    first = Counter(candidates[0] for candidates in queries.candidates if candidates)
    return sum(count for _, count in first.most_common(MOST)) / len(queries.ids)


def random_share(rankings: dict[str, Queries], side: str) -> float:
    """The share, on average, where every query is answered with some item or other."""
    items, queries = len(rankings["t2i" if side == "i2t" else "i2t"].ids), len(rankings[side].ids)
    rng = np.random.default_rng(0)
    first = [np.bincount(rng.integers(items, size=queries), minlength=items) for _ in range(_DRAWS)]
    return float(np.mean([np.sort(counts)[-MOST:].sum() for counts in first])) / queries


def _cells(shares: dict[str, float], random: dict[str, float]) -> list[Cell]:
    return [
        Cell(title, f"{100 * shares[side]:.1f}", marked=_is_warning(shares[side], random[side]))
        for side, title in _SHOWN.items()
    ]
