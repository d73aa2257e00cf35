"""Sources of negatives by objectives and weights: what each combination reaches, costs, and draws that is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from itrpipe.evaluation.claims import verdict
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import signed
from itrpipe.reporting.groups import Group
from itrpipe.reporting.model import Model
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.seeds import SeedComparison, Spread, by_seed, spread
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import DASH, FULL, ORACLE, Cell, Row, Table, duration
from itrpipe.reporting.titles import choices_of

TITLE, ORDER = "Combinations", 25
READS = ()
_RSUM = "rsum"
_BATCH = "batch alone"
_SHARES = ("mean_text_match_share", "mean_image_match_share")


@dataclass(frozen=True)
class Combination:
    """Runs of one combination.

    Attributes:
        series: of them.
        row: where negatives come from, or the title of a control.
        column: what is minimised, and how candidates are weighed.
        compared: with controls.
    """

    series: Series[Run]
    row: str
    column: str
    compared: Sequence[SeedComparison]

    def spread_of(self, measure: Callable[[Run], float | None]) -> Spread | None:
        """Mean and deviation of a number over seeds; None where a run has none."""
        values = [measure(run) for run in by_seed(self.series).values()]
        known = [value for value in values if value is not None]
        return spread(known) if known and len(known) == len(values) else None


def view(source: Source) -> list[tuple[Group, dict[str, list[Table]]]] | None:
    """Groups with several combinations on one backbone."""
    found = [(group, _by_backbone(group)) for group in source.groups]
    return [(group, tables) for group, tables in found if tables] or None


def combination_tables(combinations: Sequence[Combination]) -> list[Table]:
    """A table for every number that was measured, with a row for every source and a column for every objective.

    Args:
        combinations: on one backbone.
    """
    tables = [_table(title, caption, combinations, cell) for title, caption, cell in _TABLES]
    return [table for table in tables if any(cell.is_measured for row in table.rows for cell in row.cells)]


def _by_backbone(group: Group) -> dict[str, list[Table]]:
    compared = group.seeds.found.comparisons if group.seeds else []
    known = [each for series in group.series if (each := _combination(series, compared)) is not None]
    names = dict.fromkeys(each.series.first.backbone for each in known)
    parts = {name: [each for each in known if each.series.first.backbone == name] for name in names}
    return {name: combination_tables(part) for name, part in parts.items() if len(part) > 2}


def _combination(series: Series[Run], compared: Sequence[SeedComparison]) -> Combination | None:
    """Of a single model whose method has choices; None of any other."""
    first, *others = series.first.members
    manifest = first.artifact.manifest
    choices = {} if manifest is None or others else choices_of(manifest.settings)
    if not choices:
        return None
    row = ", ".join(filter(None, (choices["negatives"], choices["batches"]))) or _BATCH
    column = ", ".join(filter(None, (choices["objective"], choices["weights"])))
    own = [each for each in compared if each.series is series and each.reference.first.is_control]
    return Combination(series, first.method if first.is_control else row, column, own)


def _table(title: str, caption: str, combinations: Sequence[Combination], cell: Callable[[Combination], Cell]) -> Table:
    """The combinations of one row and one column, such as several batch sizes, stand in rows of their own."""
    columns = list(dict.fromkeys(each.column for each in combinations))
    rows: list[Row] = []
    for name in dict.fromkeys(each.row for each in combinations):
        own = [each for each in combinations if each.row == name]
        places = {column: [each for each in own if each.column == column] for column in columns}
        for number in range(max(map(len, places.values()))):
            found = {column: each[number] for column, each in places.items() if len(each) > number}
            cells = [cell(found[column]) if column in found else Cell(column, DASH) for column in columns]
            rows.append(Row(name, cells, _note(list(found.values())) if number or _several(places) else ""))
    return Table(title, columns, rows, caption)


def _several(places: dict[str, list[Combination]]) -> bool:
    return any(len(each) > 1 for each in places.values())


def _note(combinations: Sequence[Combination]) -> str:
    """The settings that tell these from others of the same name."""
    series = combinations[0].series
    return ", ".join(f"{key} {value}" for key, value in series.differing.items())


def _rsum(combination: Combination) -> Cell:
    """RSum, and how much more that is than the strongest control's."""
    found = combination.spread_of(lambda run: run.metrics[FULL][_RSUM]["value"])
    assert found is not None
    if not combination.compared:
        return _cell(combination, found)
    worst = min((each.own[_RSUM] for each in combination.compared), key=lambda each: each.value)
    better = verdict([each.own[_RSUM] for each in combination.compared]) == "better"
    return Cell(combination.column, _text(found), f"{signed(worst.value)} to the strongest control", better)


def _oracle(combination: Combination) -> Cell:
    measured = combination.spread_of(lambda run: run.metrics[ORACLE][_RSUM]["value"] if ORACLE in run.metrics else None)
    return _cell(combination, measured)


def _share(combination: Combination) -> Cell:
    return _cell(combination, combination.spread_of(lambda run: _match_share(run.members[0])))


def _seconds(combination: Combination) -> Cell:
    found = combination.spread_of(lambda run: run.processor_seconds)
    return Cell(combination.column, DASH if found is None else duration(found.mean))


def _match_share(model: Model) -> float | None:
    """Percent of the gradient of negatives that true matches got, over the training; None where it was not counted."""
    rows = model.history or []
    values = [row[name] for row in rows for name in _SHARES if row.get(name) is not None]
    return 100 * float(np.mean(values)) if values else None


def _cell(combination: Combination, found: Spread | None) -> Cell:
    return Cell(combination.column, DASH if found is None else _text(found))


def _text(found: Spread) -> str:
    return f"{found.mean:.1f}" if found.deviation is None else f"{found.mean:.1f} ± {found.deviation:.1f}"


_TABLES: list[tuple[str, str, Callable[[Combination], Cell]]] = [
    (
        "RSum",
        "Mean ± standard deviation over seeds. Below it the difference to the strongest control, which has the "
        "negatives of the batch alone. Bold: significant against every control.",
        _rsum,
    ),
    ("RSum, every true match", "The same with every true match counted as right.", _oracle),
    (
        "True matches among the negatives",
        "Percent of the gradient of all negatives that went to captions and images that match in truth, over the whole "
        "training. Only a dataset that knows all matches tells this.",
        _share,
    ),
    (
        "Processor time",
        "Mean of one seed: training and embedding, with the model whose lists were mined, mining, and sentences.",
        _seconds,
    ),
]
