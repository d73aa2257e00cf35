"""Tables of what some evaluations were asked: a row for every question, a column for every method.

A cell has the mean over seeds with its deviation, or of one seed the figure with its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from itrpipe.reporting.collect import Run
from itrpipe.reporting.seeds import by_seed, spread
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import DASH, Cell, Row, SpannedTable, Table

MOST_COLUMNS = 6
"""Methods beside each other; more of them make a further table."""
Figures = Mapping[Any, Mapping[str, float] | None]
"""Question -> value, low and high; None where there was nothing to measure."""


@dataclass(frozen=True)
class Asked:
    """What runs were asked.

    Attributes:
        title: of the tables.
        caption: what a number means.
        figures: of a run; empty where it was not asked.
        row: of a question, for people.
        note: of a question and of all runs that answer it: what stands below the row's name.
        order: of questions.
    """

    title: str
    caption: str
    figures: Callable[[Run], Figures]
    row: Callable[[Any], str]
    note: Callable[[Any, Sequence[Run]], str]
    order: Callable[[Any], Any] = lambda question: question


@dataclass(frozen=True)
class _Column:
    """A method: question -> the newest run of every seed that answers it."""

    series: Series[Run]
    runs: dict[Any, list[Run]]


def asked_tables(asked: Asked, series: Sequence[Series[Run]]) -> list[SpannedTable]:
    """Several tables where there are many methods; none where no run was asked.

    Args:
        asked: the questions.
        series: of all runs on one test set.
    """
    columns = [each for each in (_column(asked, own) for own in series) if each.runs]
    questions = sorted({question for each in columns for question in each.runs}, key=asked.order)
    parts = [columns[start : start + MOST_COLUMNS] for start in range(0, len(columns), MOST_COLUMNS)]
    return [SpannedTable(_table(asked, questions, part), [("", len(part))]) for part in parts]


def _column(asked: Asked, series: Series[Run]) -> _Column:
    questions = dict.fromkeys(question for run in series.all for question in asked.figures(run))
    answered = {each: tuple(run for run in series.all if each in asked.figures(run)) for each in questions}
    return _Column(series, {each: list(by_seed(replace(series, all=runs)).values()) for each, runs in answered.items()})


def _table(asked: Asked, questions: Sequence[Any], columns: Sequence[_Column]) -> Table:
    rows = [_row(asked, each, columns) for each in questions if any(each in column.runs for column in columns)]
    return Table(asked.title, [each.series.name for each in columns], rows, _caption(asked, columns))


def _row(asked: Asked, question: Any, columns: Sequence[_Column]) -> Row:
    found = [_figures(asked, question, each) for each in columns]
    means = [spread([figure["value"] for figure in each]) if each else None for each in found]
    values = {mean.mean for mean in means if mean is not None}
    best = max(values) if len(values) > 1 else None
    cells = []
    for column, figures, mean in zip(columns, found, means, strict=True):
        if mean is None:
            cells.append(Cell(column.series.name, DASH))
            continue
        interval = f"{figures[0]['low']:.1f}{DASH}{figures[0]['high']:.1f}"
        below = interval if mean.deviation is None else f"± {mean.deviation:.1f}"
        cells.append(Cell(column.series.name, f"{mean.mean:.1f}", below, mean.mean == best))
    runs = [run for column in columns for run in column.runs.get(question, [])]
    return Row(asked.row(question), cells, asked.note(question, runs))


def _figures(asked: Asked, question: Any, column: _Column) -> list[Mapping[str, float]]:
    found = (asked.figures(run)[question] for run in column.runs.get(question, []))
    return [each for each in found if each is not None]


def _caption(asked: Asked, columns: Sequence[_Column]) -> str:
    parts = [asked.caption]
    answered = [runs for each in columns for runs in each.runs.values()]
    if any(len(runs) == 1 for runs in answered):
        levels = sorted({run.settings["interval_level"] for runs in answered for run in runs})
        percent = " or ".join(f"{100 * level:g} %" for level in levels)
        parts.append(f"Below a number of one seed its {percent} bootstrap interval over the images.")
    if any(len(runs) > 1 for runs in answered):
        parts.append("Of several seeds mean ± standard deviation.")
    if len(columns) > 1:
        parts.append("Bold: best of the row.")
    return " ".join(parts)


def counted(low: int, high: int, unit: str, *, alike: bool) -> str:
    """A note: `900 sentences, not the same for all runs`."""
    number = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{number} {unit}{'' if alike else ', not the same for all runs'}"
