"""Captions against their hard negatives: a table for every benchmark, its categories against evaluated runs.

Source: SugarCrepe (Hsieh et al., 2023), ARO (Yuksekgonul et al., 2023), Winoground (Thrush et al., 2022).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from itrpipe.reporting.asked import Asked, Figures, asked_tables, counted
from itrpipe.reporting.collect import Run
from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import SpannedTable
from itrpipe.storage.artifact import BENCHMARKS

TITLE, ORDER = "Hard negatives", 165
READS = (BENCHMARKS,)
TITLES = {
    "aro": "ARO",
    "local": "Own hard negatives",
    "scenes": "Edited captions of the embedded dataset",
    "sugarcrepe": "SugarCrepe",
    "winoground": "Winoground",
}
"""Benchmarks for people; others by their name."""
_MEASURES = {
    "accuracy": "accuracy",
    "macro": "mean over groups",
    "text": "text score",
    "image": "image score",
    "group": "group score",
}
_ACCURACY = "In percent, how many negatives score below their caption with its image; 50 % is chance. "
_MEANINGS = {
    "aro": f"{_ACCURACY}The mean over groups is that of the accuracies of all relations, and pairs of attributes with "
    "25 cases or more. Ties count as wrong.",
    "winoground": "In percent of the examples: with both images the right caption scores higher (text), with both "
    "captions the right image (image), and both (group). Chance is 25, 25 and 16.7 %. Ties count as wrong.",
}
Question = tuple[str, str]
"""A category, empty for all pairs, and a measure."""


def view(source: Source) -> list[tuple[Group, list[SpannedTable]]] | None:
    """Groups with a run that was asked."""
    found = [(group, benchmark_tables(group.series)) for group in source.groups]
    return [(group, tables) for group, tables in found if tables] or None


def benchmark_tables(series: Sequence[Series[Run]]) -> list[SpannedTable]:
    """For every benchmark a row for each category and a column for each method, in several tables where there are many.

    Args:
        series: of all runs on one test set.
    """
    names = sorted({name for each in series for run in each.all for name in run.figures(BENCHMARKS) or ()})
    return [table for name in names for table in asked_tables(_asked(name), series)]


def figures_of(found: Mapping[str, Any]) -> Figures:
    """(category, measure) -> value, low and high."""
    own = {"": found} | found["categories"]
    return {(category, name): each[name] for category, each in own.items() for name in _MEASURES if name in each}


def row_title(question: Question) -> str:
    """`swap_att`; of measures other than accuracy with their name."""
    category, measure = question
    if measure == "accuracy":
        return category or "all pairs"
    return f"{category}, {_MEASURES[measure]}" if category else _MEASURES[measure]


def _asked(name: str) -> Asked:
    meaning = _MEANINGS.get(name, f"{_ACCURACY}Ties count as wrong.")
    return Asked(TITLES.get(name, name), meaning, partial(_figures, name), row_title, partial(_note, name), _order)


def _figures(name: str, run: Run) -> Figures:
    found = (run.figures(BENCHMARKS) or {}).get(name)
    return figures_of(found) if found else {}


def _order(question: Question) -> tuple[str, int]:
    return question[0], [*_MEASURES].index(question[1])


def _note(name: str, question: Question, runs: Sequence[Run]) -> str:
    """How many pairs there are, and whether the runs were measured with the same ones."""
    found = [(run.figures(BENCHMARKS) or {})[name] for run in runs]
    counts = [(each["categories"][question[0]] if question[0] else each)["pairs"] for each in found]
    read = {tuple(value for key, value in sorted(run.manifest.sources.items()) if _of(name, key)) for run in runs}
    return counted(min(counts), max(counts), "pairs", alike=len(read) == 1)


def _of(name: str, source: str) -> bool:
    return source in (f"benchmark {name}", f"benchmark {name} images")
