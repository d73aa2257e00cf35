"""One model against another as a page, as lines for the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from itrpipe.reporting.collect import DIRECTIONS
from itrpipe.reporting.page import commands, page_environment
from itrpipe.reporting.summary import wrapped
from itrpipe.reporting.tables import Table
from itrpipe.reporting.versus import Versus

TEMPLATE = "versus.html.j2"
_NAME, _NUMBER = 16, 8
_KINDS = {"better": "moved up", "worse": "moved down"}


def render(found: Versus) -> str:
    """The page: one file that needs no script. Whatever comes from a dataset is escaped."""
    environment = page_environment()
    environment.filters["commands"] = commands
    return environment.get_template(TEMPLATE).render(found=found, directions=DIRECTIONS, kinds=_KINDS)


def lines(found: Versus) -> Iterator[str]:
    """Title, answer, and the tables of scores."""
    yield from wrapped(found.title)
    yield f"on the {found.test_set}"
    for spanned in found.tables:
        yield ""
        yield spanned.table.title.lower()
        yield from _rows(spanned.table)
    yield ""
    yield "queries, in percent, whose right answer stands first"
    yield from _rows(found.turned)
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
