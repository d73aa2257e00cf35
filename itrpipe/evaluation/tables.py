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
    def of(cls, measured: Mapping[str, float] | float | None, **shown: Any) -> Number | None:
        """Return what an evaluation wrote: a number, or value, low and high; None where there was nothing to measure.

        Args:
            measured: what it wrote.
            shown: how it is shown, as attributes.
        """
        if measured is None:
            return None
        if not isinstance(measured, Mapping):
            return cls(measured, **shown)
        return cls(measured["value"], measured.get("low"), measured.get("high"), **shown)

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
        if self.signed:
            return f"{self._digits(self.low)} to {self._digits(self.high)}"
        return f"{self._digits(self.low)}{DASH}{self._digits(self.high)}"

    def _digits(self, value: float) -> str:
        write = signed if self.signed else with_minus
        return write(value, self.digits)


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
    known = [each for each in numbers if each is not None]
    if len(known) < len(numbers) or not known:
        return None
    if len(known) == 1:
        return known[0]
    values = [each.value for each in known]
    return replace(known[0], value=fmean(values), low=None, high=None, deviation=stdev(values))


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
        """Return headings as they are understood alone: with the heading of their group."""
        groups = []
        for group, count in self.spans or [("", len(self.columns))]:
            groups += [group] * count
        return [f"{group} {own}".strip() for group, own in zip(groups, self.columns, strict=True)]


Cells = Mapping[tuple[str, str], Number | None]
"""By the heading of a group of columns, empty where they stand alone, and their own."""


@dataclass(frozen=True)
class Measured:
    """The rows and columns by which a table shows what evaluations wrote.

    Attributes:
        title, caption: of the table.
        file: JSON in the folder of an evaluation.
        cells: of its content; none where it does not hold them.
        turned: models are columns, and what was measured is rows; else the other way round.
        beside: heading and cells of a first column that is no model's, of a turned table.
        usual: every evaluation has it, so that only the report shows it.
    """

    title: str
    file: str
    cells: Callable[[Any], Cells]
    caption: str
    turned: bool = False
    beside: tuple[str, Callable[[Any], Cells]] | None = None
    usual: bool = False

    def table(self, found: Sequence[tuple[str, Sequence[Any]]]) -> Table | None:
        """Return the table of several models, means over seeds.

        Args:
            found: models by name, each with the content of the file of every seed.

        Returns:
            None where no model has numbers.
        """
        models = {}
        keys = dict[tuple[str, str], None]()
        for name, contents in found:
            cells = _over_seeds(self.cells, contents)
            if cells:
                models[name] = cells
                keys |= dict.fromkeys(cells)
        if not models:
            return None
        if self.beside:
            heading, cells_beside = self.beside
            shared = {}
            for _, contents in reversed(found):
                shared |= _over_seeds(cells_beside, contents)
            models = {heading: shared} | models
        if self.turned:
            rows = []
            for group, heading in keys:
                cells = [own.get((group, heading)) for own in models.values()]
                rows.append(Row(f"{group} {heading}".strip(), cells))
            return Table(self.title, list(models), rows, self.caption, head="")
        rows = [Row(name, [own.get(key) for key in keys]) for name, own in models.items()]
        groups = [group for group, _ in keys]
        spans = ()
        if any(groups):
            spans = [(group, len(list(columns))) for group, columns in groupby(groups)]
        return Table(self.title, [heading for _, heading in keys], rows, self.caption, spans)


def _over_seeds(cells: Callable[[Any], Cells], contents: Sequence[Any]) -> Cells:
    """Return the means over seeds of what each of them wrote; those of the first that has some say what there is."""
    seeds = [cells(content) for content in contents]
    seeds = [seed for seed in seeds if seed]
    return {key: mean([seed.get(key) for seed in seeds]) for key in next(iter(seeds), ())}


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
    if spread.startswith("±"):
        return f"{text} {spread}"
    return f"{text} ({spread})"


def as_lines(table: Table) -> list[str]:
    """Return lines for a terminal: in blocks of as many columns as fit, uncertainties and long names on their own."""
    columns = []
    for place, heading in enumerate(table.full_columns):
        cells = [parts_of(row.cells[place]) for row in table.rows]
        words = heading.split()
        for texts in cells:
            words += texts
        columns.append((heading, cells, max(map(len, words))))
    longest = sum(width for _, _, width in columns)
    name = min(_NAME, 1 + max(len(table.head), *(len(row.name) for row in table.rows)))
    # As narrow as it takes; names of wide tables have lines of their own.
    for names, gap in ((name, 2), (name, 1), (_INDENT, 2)):
        if names + longest + gap * len(columns) <= WIDTH:
            break
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
        widths = [names, *(width for _, _, width in block)]
        headings = [textwrap.wrap(heading, width - gap) or [""] for heading, _, width in block]
        height = max(map(len, headings))
        padded = [[""] * (height - len(words)) + words for words in headings]
        heads = [""] * height
        if len(table.head) <= names:
            heads[-1] = table.head
        lines += [_line(texts, widths) for texts in zip(heads, *padded, strict=True)]
        lines.append("-" * sum(widths))
        for number, row in enumerate(table.rows):
            name = row.name
            if len(name) >= names:
                lines += wrapped(name)
                name = ""
            texts, spreads = zip(*(cells[number] for _, cells, _ in block), strict=True)
            lines.append(_line([name, *texts], widths))
            if any(spreads):
                lines.append(_line(["", *spreads], widths))
    return lines


def _line(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Return a line of cells: the first to the left, others to the right."""
    name, *cells = texts
    first, *others = widths
    columns = [cell.rjust(width) for cell, width in zip(cells, others, strict=True)]
    return "".join([name.ljust(first), *columns]).rstrip()


def wrapped(text: str) -> list[str]:
    """Return a text as lines for a terminal."""
    return textwrap.wrap(text, WIDTH, break_on_hyphens=False)


def as_markdown(table: Table) -> str:
    """Return a table in the Markdown of GitHub."""
    lines = [[table.head, *table.full_columns], ["---", *["---:"] * len(table.columns)]]
    for row in table.rows:
        name = row.name
        if row.note:
            name += f" ({row.note})"
        lines.append([name, *map(whole_text, row.cells)])
    text = []
    for line in lines:
        escaped = [cell.replace("|", r"\|") for cell in line]
        text.append(f"| {' | '.join(escaped)} |")
    return "\n".join(text)


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
