"""Tables of precision over all correct matches of a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from itrpipe.evaluation.rsum import CUTOFFS
from itrpipe.reporting.collect import DIRECTIONS, Run
from itrpipe.reporting.tables import DASH, ORACLE, Cell, Row, SpannedTable, Table
from itrpipe.storage.artifact import ECCV_CAPTION

PRECISION = {"map_at_r": "mAP@R", "r_precision": "R-P"}
RECALLS = {f"r{k}": f"R@{k}" for k in CUTOFFS}
_MEANINGS = (
    "Of the R correct matches of a query, R-P (R-Precision) is the share among its first R candidates; mAP@R also "
    "counts in which of these R places they stand. In percent, mean over queries."
)
_ORACLE_CAPTION = f"{_MEANINGS} Recall looks at the best match alone. Below each number its bootstrap interval."
_ECCV_CAPTION = (
    f"{_MEANINGS} With the matches that people found for 1,261 images and 1,332 captions of the 5K test split of COCO "
    "(Chun et al., ECCV 2022)."
)
_CXC_CAPTION = "Recall in percent with the matches of Crisscrossed Captions on the 5K test split of COCO."


def precision_tables(runs: Sequence[Run]) -> list[SpannedTable]:
    """Tables of runs on one test set: with all correct matches, if known, and with those of ECCV Caption and CxC."""
    measured = [
        _by_direction(runs, _oracle_precision, PRECISION, "All correct matches gathered", _ORACLE_CAPTION),
        _by_direction(runs, _part("eccv_caption"), PRECISION | {"r1": "R@1"}, "ECCV Caption", _ECCV_CAPTION),
        _by_direction(runs, _part("cxc"), RECALLS, "CxC", _CXC_CAPTION),
    ]
    return [table for table in measured if table]


def _oracle_precision(run: Run) -> Mapping[str, Any] | None:
    found = run.metrics.get(ORACLE, {})
    return found if f"i2t_{next(iter(PRECISION))}" in found else None


def _part(name: str) -> Callable[[Run], Mapping[str, Any] | None]:
    return lambda run: None if run.figures(ECCV_CAPTION) is None else run.figures(ECCV_CAPTION)[name]


def _by_direction(
    runs: Sequence[Run],
    figures: Callable[[Run], Mapping[str, Any] | None],
    columns: Mapping[str, str],
    title: str,
    caption: str,
) -> SpannedTable | None:
    """One row for each run that has figures, with the same columns for both directions."""
    shown = [(run, found) for run in runs if (found := figures(run)) is not None]
    if not shown:
        return None
    rows = [
        Row(
            run.name,
            [
                _percent(f"{side[0]}→{side[2]} {heading}", found[f"{side}_{name}"])
                for side in DIRECTIONS
                for name, heading in columns.items()
            ],
            run.label,
        )
        for run, found in shown
    ]
    table = Table(title, list(columns.values()) * len(DIRECTIONS), rows, caption)
    return SpannedTable(table, [(direction, len(columns)) for direction in DIRECTIONS.values()])


def _percent(heading: str, value: float | Mapping[str, float]) -> Cell:
    if isinstance(value, Mapping):
        return Cell(heading, f"{value['value']:.1f}", f"{value['low']:.1f}{DASH}{value['high']:.1f}")
    return Cell(heading, f"{value:.1f}")
