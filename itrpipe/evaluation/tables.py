"""Tables with numbers in them, and how a terminal, Markdown and JSON show them; the page has a macro of its own.

A number knows its value, its uncertainty and its digits. What is shown of it is decided here and nowhere else.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean, stdev
from typing import Any

DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"
WIDTH = 80
"""Columns of a terminal that no line exceeds, but for a number that is wider."""
_NAME = 24
_INDENT = 2


@dataclass(frozen=True)
class Number:
    """A number as a table holds it, unrounded.

    Attributes:
        value: the measured value.
        low, high: its interval, or None.
        deviation: standard deviation over seeds, or None.
        digits: shown behind the point.
        signed: it is a difference.
        unit: behind it, such as ` %`.
        marked: significant, or a reason to worry: shown bold.
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
    def of(cls, measured: Measurement, **shown: Any) -> Number | None:
        """Return the number that an evaluation wrote, alone or as value, low and high; None where it wrote None.

        Args:
            measured: content of the file.
            shown: how it is shown, as attributes.
        """
        if measured is None or isinstance(measured, Number):
            return measured
        if isinstance(measured, Mapping):
            return cls(
                measured["value"],
                measured.get("low"),
                measured.get("high"),
                **shown,
            )
        return cls(measured, **shown)

    @property
    def text(self) -> str:
        """Return the number without its uncertainty."""
        return f"{self._digits(self.value)}{self.unit}"

    @property
    def spread(self) -> str:
        """Return its deviation or its interval; empty where it has none."""
        if self.deviation is not None:
            return f"± {self.deviation:.{self.digits}f}"
        if self.low is None or self.high is None:
            return ""
        low = self._digits(self.low)
        high = self._digits(self.high)
        if self.signed:
            return f"{low} to {high}"
        return f"{low}{DASH}{high}"

    def _digits(self, value: float) -> str:
        if self.signed:
            return signed(value, self.digits)
        return with_minus(value, self.digits)


def with_minus(value: float, digits: int) -> str:
    """Return a number with thousands apart and a real minus; zero has none."""
    return f"{value:z,.{digits}f}".replace("-", MINUS)


def signed(value: float, digits: int = 1) -> str:
    """Return a difference with its sign; zero has none."""
    text = f"{value:+z,.{digits}f}".replace("-", MINUS)
    if text.strip("+0."):
        return text
    return text[1:]


def mean(numbers: Sequence[Number | None]) -> Number | None:
    """Return the mean over seeds with its standard deviation; a single number as it is; None where one is missing."""
    values = []
    for number in numbers:
        if number is None:
            return None
        values.append(number.value)
    first = next(iter(numbers), None)
    if first is None or len(values) == 1:
        return first
    return replace(
        first,
        value=fmean(values),
        low=None,
        high=None,
        deviation=stdev(values),
    )


Cell = Number | str | None
"""A number, words, or nothing known."""


@dataclass(frozen=True)
class Row:
    """One line: a model, or a published result of it.

    Attributes:
        name: name of the model.
        cells: one for each column.
        note: below the name, or empty.
        quoted: not measured here: published, or expected by chance.
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
        rows: lines below the headings.
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
        """Return headings as they are understood alone: with the heading of their group."""
        groups = []
        for group, count in self.spans or [("", len(self.columns))]:
            groups += [group] * count
        headings = []
        for group, heading in zip(groups, self.columns, strict=True):
            headings.append(f"{group} {heading}".strip())
        return headings


Measurement = Number | Mapping[str, float] | float | None
"""A number, or what an evaluation wrote of it: see `Number.of`."""
Key = tuple[str, str]
"""Headings of a group of columns, empty where they stand alone, and of one of them."""
Cells = Mapping[Key, Measurement]
Content = Mapping[str, Any]
"""The JSON of a file of an evaluation."""


@dataclass(frozen=True)
class Measured:
    """A table of numbers in the files of evaluations.

    Attributes:
        title, caption: text above and below the table.
        file: JSON in the folder of an evaluation.
        cells: function that returns the cells of the file's content, none where it lacks them.
        turned: models are columns, and what was measured is rows; else the other way round.
        beside: heading and cells of a first column, of a turned table, that belongs to no model.
        usual: every evaluation has it, so that only the report shows it.
    """

    title: str
    file: str
    cells: Callable[[Content], Cells]
    caption: str
    turned: bool = False
    beside: tuple[str, Callable[[Content], Cells]] | None = None
    usual: bool = False

    def table(self, models: Sequence[tuple[str, Sequence[Content]]]) -> Table | None:
        """Return the table of several models, means over seeds.

        Args:
            models: names, each with the content of the file of every seed.

        Returns:
            None where no model has numbers.
        """
        cells_by_model = {}
        keys = {}
        for name, contents in models:
            cells = _mean_cells(self.cells, contents)
            if cells:
                cells_by_model[name] = cells
                keys |= dict.fromkeys(cells)
        if not cells_by_model:
            return None
        if self.beside:
            heading, cells_beside = self.beside
            shared = {}
            for _, contents in reversed(models):
                shared |= _mean_cells(cells_beside, contents)
            cells_by_model = {heading: shared} | cells_by_model
        rows = []
        if self.turned:
            for group, heading in keys:
                numbers = [cells.get((group, heading)) for cells in cells_by_model.values()]
                rows.append(Row(f"{group} {heading}".strip(), numbers))
            return Table(self.title, list(cells_by_model), rows, self.caption, head="")

        for name, cells in cells_by_model.items():
            rows.append(Row(name, [cells.get(key) for key in keys]))
        groups = [group for group, _ in keys]
        headings = [heading for _, heading in keys]
        spans = []
        if any(groups):
            for group, columns in groupby(groups):
                spans.append((group, len(list(columns))))
        return Table(self.title, headings, rows, self.caption, spans)


def _mean_cells(
    cells: Callable[[Content], Cells],
    contents: Sequence[Content],
) -> dict[Key, Number | None]:
    """Return the means over seeds of the cells in their files; the first file with cells says which there are."""
    seeds = []
    for content in contents:
        seed = cells(content)
        if seed:
            seeds.append(seed)
    means = {}
    for key in next(iter(seeds), ()):
        means[key] = mean([Number.of(seed.get(key)) for seed in seeds])
    return means


def parts_of(cell: Cell) -> tuple[str, str]:
    """Return the text of a cell, and its uncertainty, which may be empty."""
    if cell is None:
        return DASH, ""
    if isinstance(cell, Number):
        return cell.text, cell.spread
    return cell, ""


def whole_text(cell: Cell) -> str:
    """Return a cell with its uncertainty on one line: a deviation as it is, an interval in brackets."""
    text, spread = parts_of(cell)
    if not spread:
        return text
    if spread.startswith("±"):
        return f"{text} {spread}"
    return f"{text} ({spread})"


def as_lines(table: Table) -> list[str]:
    """Return lines for a terminal: in blocks of as many columns as fit, uncertainties and long names on their own."""
    columns = []
    for index, heading in enumerate(table.full_columns):
        cells = [parts_of(row.cells[index]) for row in table.rows]
        words = heading.split()
        for texts in cells:
            words += texts
        width = max(map(len, words))
        columns.append((heading, cells, width))

    total = sum(width for _, _, width in columns)
    longest = max(len(table.head), *(len(row.name) for row in table.rows))
    names = min(_NAME, 1 + longest)
    gap = 2
    if names + total + gap * len(columns) > WIDTH:
        gap = 1
    if names + total + gap * len(columns) > WIDTH:
        names = _INDENT  # names of wide tables have lines of their own
        gap = 2

    blocks = []
    taken = WIDTH
    for heading, cells, width in columns:
        width += gap
        taken += width
        if taken > WIDTH:
            blocks.append([])
            taken = names + width
        blocks[-1].append((heading, cells, width))

    lines = wrapped(table.title)
    for block in blocks:
        if block is not blocks[0]:
            lines.append("")
        widths = [names]
        headings = []
        for heading, _, width in block:
            widths.append(width)
            headings.append(textwrap.wrap(heading, width - gap) or [""])
        height = max(map(len, headings))
        heads = [""] * height
        if len(table.head) <= names:
            heads[-1] = table.head
        padded = [[""] * (height - len(words)) + words for words in headings]
        for texts in zip(heads, *padded, strict=True):
            lines.append(_line(texts, widths))
        lines.append("-" * sum(widths))
        for index, row in enumerate(table.rows):
            name = row.name
            if len(name) >= names:
                lines += wrapped(name)
                name = ""
            texts = [name]
            spreads = [""]
            for _, cells, _ in block:
                text, spread = cells[index]
                texts.append(text)
                spreads.append(spread)
            lines.append(_line(texts, widths))
            if any(spreads):
                lines.append(_line(spreads, widths))
    return lines


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of cells: the first to the left, others to the right."""
    line = texts[0].ljust(widths[0])
    for text, width in zip(texts[1:], widths[1:], strict=True):
        line += text.rjust(width)
    return line.rstrip()


def wrapped(text: str) -> list[str]:
    """Return a text as lines for a terminal."""
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def as_markdown(table: Table) -> str:
    """Return a table in the Markdown of GitHub."""
    rows = [
        [table.head, *table.full_columns],
        ["---", *["---:"] * len(table.columns)],
    ]
    for row in table.rows:
        name = row.name
        if row.note:
            name += f" ({row.note})"
        rows.append([name, *map(whole_text, row.cells)])
    lines = []
    for cells in rows:
        escaped = [cell.replace("|", r"\|") for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    return "\n".join(lines)


def as_json(table: Table) -> dict[str, Any]:
    """Return rows by name, their numbers by column, unrounded; words as they are."""
    rows = []
    for row in table.rows:
        cells = {}
        for heading, cell in zip(table.full_columns, row.cells, strict=True):
            cells[heading] = cell
            if isinstance(cell, Number):
                cells[heading] = {}
                for fact in ("value", "low", "high", "deviation"):
                    value = getattr(cell, fact)
                    if value is not None:
                        cells[heading][fact] = value
        rows.append(
            {
                "name": row.name,
                "note": row.note,
                "quoted": row.quoted,
                "cells": cells,
            }
        )
    return {"title": table.title, "rows": rows}


def duration(value: float) -> str:
    """Return a duration as `0.23 s`, `48.5 s`, `12 min 05 s` or `3 h 20 min`."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
