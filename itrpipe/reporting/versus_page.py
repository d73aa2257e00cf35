"""One model against another as a page, as lines for the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from itrpipe.reporting.collect import DIRECTIONS
from itrpipe.reporting.page import page_environment
from itrpipe.reporting.summary import wrapped
from itrpipe.reporting.tables import Table
from itrpipe.reporting.versus import Versus

TEMPLATE = "versus.html.j2"
_NAME, _NUMBER = 16, 8
_LISTED = 6
"""Settings that lines for the terminal name; the page has all."""
_FIRST = ("method", "backbone", "epochs", "max_updates")
"""Settings that are named first: whether both learned by the same method, and for as long."""
_KINDS = {"better": "moved up", "worse": "moved down"}


def render(found: Versus) -> str:
    """The page: one file that needs no script. Whatever comes from a dataset is escaped."""
    environment = page_environment()
    return environment.get_template(TEMPLATE).render(found=found, directions=DIRECTIONS, kinds=_KINDS)


def lines(found: Versus) -> Iterator[str]:
    """Title, the tables of scores, settings that differ, and the answer."""
    yield from wrapped(found.title)
    yield f"on the {found.test_set}"
    for spanned in found.tables:
        yield ""
        yield spanned.table.title.lower()
        yield from _rows(spanned.table)
    yield ""
    yield "queries, in percent, whose right answer stands first"
    yield from _rows(found.turned)
    if found.settings:
        yield ""
        yield from wrapped(f"settings that differ (first; second): {_listed(found.settings)}")
    yield ""
    yield from wrapped(str(found.answer))


def as_json(found: Versus) -> dict[str, Any]:
    """The numbers, unrounded."""
    comparison = found.comparison
    return {
        "title": found.title,
        "dataset": found.dataset,
        "first": found.before.name,
        "second": found.after.name,
        "seeds": comparison.seeds,
        "own": {name: asdict(each) for name, each in comparison.own.items()},
        "oracle": comparison.oracle and {name: asdict(each) for name, each in comparison.oracle.items()},
        "settings": {key: {"first": first, "second": second} for key, first, second in found.settings},
    }


def _listed(settings: Sequence[tuple[str, str, str]]) -> str:
    """Each setting with the values of both models, and how many more there are."""
    ordered = sorted(settings, key=lambda each: _FIRST.index(each[0]) if each[0] in _FIRST else len(_FIRST))
    named = [f"{key} ({first}; {second})" for key, first, second in ordered[:_LISTED]]
    more = len(ordered) - _LISTED
    return ", ".join(named) + (f"; and {more} more on the page" if more > 0 else "")


def _rows(table: Table) -> Iterator[str]:
    """Numbers below their headings; long names have a line of their own."""
    headings = [cell.heading for cell in table.rows[0].cells]
    width = max(_NUMBER, *(len(each) + 1 for each in headings))
    yield " " * _NAME + "".join(each.rjust(width) for each in headings)
    for row in table.rows:
        if len(row.name) >= _NAME:
            yield from wrapped(row.name)
        name = row.name if len(row.name) < _NAME else ""
        yield name.ljust(_NAME) + "".join(cell.text.rjust(width) for cell in row.cells)
