"""The results as tables of Markdown, for a README or a paper's repository."""

from __future__ import annotations

import re

from itrpipe.reporting.content import Content, Group
from itrpipe.reporting.tables import Row, Table

BEGIN, END = "<!-- itrpipe report {asked} -->", "<!-- end of itrpipe report -->"
"""The lines between which a document gets the tables of a dataset; or of a backbone, named behind it."""


def markdown(content: Content) -> str:
    """The scores of every method on every test set, over seeds where there are several, and what they allow to say.

    Sources of negatives under several objectives are shown as a matrix for each number.
    """
    parts = []
    matrices = {group.prefix: tables for group, tables in content.view("combinations") or ()}
    for group in content.groups:
        title = f"**{content.title}**: {group.description}." if len(content.groups) > 1 else ""
        said = group.seeds.summary if group.seeds else group.overview.answer
        found = [table for tables in matrices.get(group.prefix, {}).values() for table in tables]
        parts += [title, *map(_titled, found), *([] if found else [_table(_scores(group))]), said]
    return "\n\n".join(filter(None, parts)) + "\n"


def inserted(document: str, asked: str, tables: str) -> str | None:
    """A document with the tables between the two lines that ask for them.

    Args:
        document: its text.
        asked: dataset, or dataset and backbone with a space between.
        tables: Markdown.

    Returns:
        None where it has no such lines.
    """
    begin = BEGIN.format(asked=asked)
    block = re.compile(f"^{re.escape(begin)}$.*?^{re.escape(END)}$", re.MULTILINE | re.DOTALL)
    found, count = block.subn(lambda _: f"{begin}\n\n{tables.strip()}\n\n{END}", document)
    return found if count else None


def _titled(table: Table) -> str:
    return f"**{table.title}.** {table.caption}".rstrip() + f"\n\n{_table(table)}"


def _scores(group: Group) -> Table:
    return group.seeds.scores if group.seeds else group.results[0]


def _table(table: Table) -> str:
    """A table in the form of GitHub; deviations and intervals stand behind their numbers."""
    headings = [cell.heading for cell in table.rows[0].cells]
    lines = [["", *headings], ["---", *["---:"] * len(headings)], *map(_line, table.rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _line(row: Row) -> list[str]:
    name = f"{row.name} ({row.note})" if row.note else row.name
    cells = [f"{cell.text} {_uncertainty(cell.interval)}".rstrip() for cell in row.cells]
    return [each.replace("|", r"\|") for each in (name, *cells)]


def _uncertainty(interval: str) -> str:
    """A deviation as it is, an interval in brackets."""
    return f"({interval})" if interval and not interval.startswith("±") else interval
