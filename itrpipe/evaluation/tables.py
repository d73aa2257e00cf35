"""Tables with numbers in them, and how a terminal, Markdown and JSON show them; the page has a macro of its own.

A number knows its value, its uncertainty and its digits. What is shown of it is decided here and nowhere else.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

DASH, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"
WIDTH = 80
"""Columns of a terminal that no line exceeds, but for a number that is wider."""
_NAME, _INDENT = 24, 2


@dataclass(frozen=True)
class Number:
    """A number as a table holds it, unrounded.

    Attributes:
        value: of it.
        low, high: its interval, or None.
        deviation: standard deviation over seeds, or None.
        digits: shown behind the point.
        signed: it is a difference.
        unit: behind it, such as ` %`.
        marked: best of its column, significant, or a reason to worry: shown bold.
    """

    value: float
    low: float | None = None
    high: float | None = None
    deviation: float | None = None
    digits: int = 1
    signed: bool = False
    unit: str = ""
    marked: bool = False

    @classmethod
    def of(cls, measured: Mapping[str, float] | float | None, **shown: Any) -> Number | None:
        """Of what an evaluation wrote: a number, or value, low and high; None where there was nothing to measure."""
        if measured is None:
            return None
        if not isinstance(measured, Mapping):
            return cls(measured, **shown)
        return cls(measured["value"], measured.get("low"), measured.get("high"), **shown)

    @property
    def text(self) -> str:
        """The number without its uncertainty."""
        return f"{self._digits(self.value)}{self.unit}"

    @property
    def spread(self) -> str:
        """Return its deviation or its interval; empty where it has none."""
        if self.deviation is not None:
            return f"± {self.deviation:.{self.digits}f}"
        if self.low is None or self.high is None:
            return ""
        return f"{self._digits(self.low)}{' to ' if self.signed else DASH}{self._digits(self.high)}"

    def _digits(self, value: float) -> str:
        return signed(value, self.digits) if self.signed else with_minus(value, self.digits)


def with_minus(value: float, digits: int) -> str:
    """Return a number with thousands apart and a real minus; zero has none."""
    return f"{value:z,.{digits}f}".replace("-", MINUS)


def signed(value: float, digits: int = 1) -> str:
    """Return a difference with its sign; zero has none."""
    text = f"{value:+z,.{digits}f}".replace("-", MINUS)
    return text if text.strip("+0.") else text[1:]


def mean(numbers: Sequence[Number | None]) -> Number | None:
    """Over seeds, with their standard deviation; a single one stays, with its interval; None where one is missing."""
    known = [each for each in numbers if each is not None]
    if len(known) < len(numbers) or not known:
        return None
    if len(known) == 1:
        return known[0]
    values = [each.value for each in known]
    middle = sum(values) / len(values)
    deviation = (sum((each - middle) ** 2 for each in values) / (len(values) - 1)) ** 0.5
    return replace(known[0], value=middle, low=None, high=None, deviation=deviation)


Cell = Number | str | None
"""A number, words, or nothing known."""


@dataclass(frozen=True)
class Row:
    """One line: a model, or what was published for it.

    Attributes:
        name: of it.
        cells: one for each column.
        note: below the name, or empty.
        quoted: not measured here: published, or what chance gives.
    """

    name: str
    cells: Sequence[Cell]
    note: str = ""
    quoted: bool = False


@dataclass(frozen=True)
class Table:
    """A table with its explanation.

    Attributes:
        title: above it.
        columns: their headings.
        rows: of it.
        caption: below it.
        spans: headings of groups of columns, each with how many it covers; empty where columns stand alone.
        head: of the column of names.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    caption: str = ""
    spans: Sequence[tuple[str, int]] = ()
    head: str = "model"

    @property
    def full_columns(self) -> list[str]:
        """Headings as they are understood alone: with the heading of their group."""
        groups = [title for title, count in self.spans for _ in range(count)] or [""] * len(self.columns)
        return [f"{group} {own}".strip() for group, own in zip(groups, self.columns, strict=True)]


Cells = Mapping[tuple[str, str], Cell]
"""By the heading of a group of columns, empty where they stand alone, and their own."""


@dataclass(frozen=True)
class Measured:
    """The rows and columns by which a table shows what evaluations wrote.

    Attributes:
        title, caption: of the table.
        file: JSON in the folder of an evaluation.
        cells: of its content; none where it does not hold them.
        turned: models are columns, and what was measured is rows; else the other way round.
        marks: the best of a column is marked; else what `cells` marks.
        beside: heading and cells of a first column that is no model's, of a turned table.
        usual: every evaluation has it, so that only the report shows it.
    """

    title: str
    file: str
    cells: Callable[[Any], Cells]
    caption: str
    turned: bool = False
    marks: bool = True
    beside: tuple[str, Callable[[Any], Cells]] | None = None
    usual: bool = False

    def table(self, found: Sequence[tuple[str, Sequence[Any]]]) -> Table | None:
        """Return what several models wrote, means over seeds.

        Args:
            found: models by name, each with the content of the file of every seed.

        Returns:
            None where no model has numbers.
        """
        models = {name: own for name, contents in found if (own := _over_seeds(self.cells, contents))}
        keys = list(dict.fromkeys(key for own in models.values() for key in own))
        if not keys:
            return None
        if self.beside:
            heading, cells = self.beside
            shared = (_over_seeds(cells, contents) for _, contents in reversed(found))
            models = {heading: {key: cell for own in shared for key, cell in own.items()}} | models
        if self.turned:
            rows = [Row(" ".join(filter(None, key)), [own.get(key) for own in models.values()]) for key in keys]
            return Table(self.title, list(models), rows, self.caption, head="")
        groups = [(group, sum(1 for _ in own)) for group, own in groupby(keys, key=lambda key: key[0])]
        rows = [Row(name, [own.get(key) for key in keys]) for name, own in models.items()]
        spans = groups if any(group for group, _ in groups) else ()
        table = Table(self.title, [heading for _, heading in keys], rows, self.caption, spans)
        return with_best(table) if self.marks else table


def _over_seeds(cells: Callable[[Any], Cells], contents: Sequence[Any]) -> Cells:
    seeds, found = [own for each in contents if (own := cells(each))], dict[tuple[str, str], Cell]()
    for key in seeds[0] if seeds else ():
        every = [own.get(key) for own in seeds]
        numbers = [each for each in every if isinstance(each, Number)]
        found[key] = mean(numbers) if len(numbers) == len(every) else every[0] if not numbers else None
    return found


def with_best(table: Table) -> Table:
    """Return the table with the best number of each column marked, as it is shown, where not all are equal."""
    columns = []
    for place in range(len(table.columns)):
        column = [row.cells[place] for row in table.rows]
        values = {round(cell.value, cell.digits) for cell in column if isinstance(cell, Number)}
        best = max(values) if len(values) > 1 else None
        for number, cell in enumerate(column):
            if isinstance(cell, Number):
                column[number] = replace(cell, marked=round(cell.value, cell.digits) == best)
        columns.append(column)
    cells = zip(*columns, strict=True)
    return replace(table, rows=[replace(row, cells=own) for row, own in zip(table.rows, cells, strict=True)])


def parts_of(cell: Cell) -> tuple[str, str]:
    """Return what a cell shows first, and its uncertainty, which may be empty."""
    if isinstance(cell, Number):
        return cell.text, cell.spread
    return (DASH if cell is None else cell), ""


def whole_text(cell: Cell) -> str:
    """Return a cell with its uncertainty on one line: a deviation as it is, an interval in brackets."""
    text, spread = parts_of(cell)
    if not spread:
        return text
    return f"{text} {spread}" if spread.startswith("±") else f"{text} ({spread})"


def as_lines(table: Table) -> list[str]:
    """Return lines for a terminal: in blocks of as many columns as fit, uncertainties and long names on their own."""
    cells = [[parts_of(cell) for cell in row.cells] for row in table.rows]
    longest = []
    for place, heading in enumerate(table.full_columns):
        words = heading.split()
        for row in cells:
            words += row[place]
        longest.append(max(map(len, words)))
    name = min(_NAME, 1 + max(len(each) for each in (table.head, *(row.name for row in table.rows))))
    # As narrow as it takes; names of wide tables have lines of their own.
    for names, gap in ((name, 2), (name, 1), (_INDENT, 2)):
        if names + sum(longest) + gap * len(longest) <= WIDTH:
            break
    blocks: list[list[tuple[int, int]]] = []
    taken = WIDTH
    for place, width in enumerate(longest):
        taken += gap + width
        if taken > WIDTH:
            blocks.append([])
            taken = names + gap + width
        blocks[-1].append((place, gap + width))

    lines = wrapped(table.title)
    for block in blocks:
        if block is not blocks[0]:
            lines.append("")
        headings = [textwrap.wrap(table.full_columns[place], width - 2) or [""] for place, width in block]
        height = max(map(len, headings))
        for number in range(height):
            head = table.head if number == height - 1 and len(table.head) <= names else ""
            texts = [([""] * (height - len(words)) + words)[number] for words in headings]
            lines.append(_line(head, names, texts, block))
        lines.append("-" * (names + sum(width for _, width in block)))
        for row, own in zip(table.rows, cells, strict=True):
            name = row.name
            if len(name) >= names:
                lines += wrapped(name)
                name = ""
            lines.append(_line(name, names, [own[place][0] for place, _ in block], block))
            spreads = [own[place][1] for place, _ in block]
            if any(spreads):
                lines.append(_line("", names, spreads, block))
    return lines


def _line(name: str, names: int, texts: Sequence[str], block: Sequence[tuple[int, int]]) -> str:
    cells = [text.rjust(width) for text, (_, width) in zip(texts, block, strict=True)]
    return f"{name:<{names}}{''.join(cells)}".rstrip()


def wrapped(text: str) -> list[str]:
    """Lines for a terminal."""
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def as_markdown(table: Table) -> str:
    """In the form of GitHub."""
    named = [f"{row.name} ({row.note})" if row.note else row.name for row in table.rows]
    body = [[name, *map(whole_text, row.cells)] for name, row in zip(named, table.rows, strict=True)]
    lines = [[table.head, *table.full_columns], ["---", *["---:"] * len(table.columns)], *body]
    escaped = [[each.replace("|", r"\|") for each in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def as_json(table: Table) -> dict[str, Any]:
    """Return rows by name, their numbers by column, unrounded; words as they are."""
    rows = []
    for row in table.rows:
        cells = {}
        for heading, cell in zip(table.full_columns, row.cells, strict=True):
            cells[heading] = cell
            if isinstance(cell, Number):
                facts = {"value": cell.value, "low": cell.low, "high": cell.high, "deviation": cell.deviation}
                cells[heading] = {name: value for name, value in facts.items() if value is not None}
        rows.append({"name": row.name, "note": row.note, "quoted": row.quoted, "cells": cells})
    return {"title": table.title, "rows": rows}


def duration(value: float) -> str:
    """A duration: `0.23 s`, `48.5 s`, `12 min 05 s` or `3 h 20 min`."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
