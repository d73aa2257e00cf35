"""Sources of negatives by objectives and weights: what each combination reaches, costs, and draws that is true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from itrpipe.evaluation.claims import seed_interval, verdict
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import interval_text, signed
from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.seeds import SeedComparison, Spread, by_seed, pairs_by_seed, spread
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import DASH, FULL, ORACLE, Cell, Row, Table, duration
from itrpipe.reporting.titles import choices_of

TITLE, ORDER = "Combinations", 25
Measure = Callable[[Run], float | None]
READS = ()
_RSUM = "rsum"
_BATCH = "in-batch negatives"
_SHARES = ("mean_text_match_share", "mean_image_match_share")


@dataclass(frozen=True)
class Combination:
    """Runs of one combination.

    Attributes:
        series: of them.
        row: where negatives come from, or the title of a baseline.
        column: what is minimised, and how candidates are weighed.
        compared: with baselines.
    """

    series: Series[Run]
    row: str
    column: str
    compared: Sequence[SeedComparison]

    def spread_of(self, measure: Measure) -> Spread | None:
        """Mean and deviation of a number over seeds; None where a run has none."""
        values = [measure(run) for run in by_seed(self.series).values()]
        known = [value for value in values if value is not None]
        return spread(known) if known and len(known) == len(values) else None

    def against(self, measure: Measure, level: float) -> str:
        """By how much a number is above that of the strongest baseline, with its interval over seeds; often empty."""
        found = [_differences(self.series, each.reference, measure) for each in self.compared]
        single = min(filter(None, found), key=np.mean, default=[])
        if len(single) < 2:
            return ""
        return f"{signed(float(np.mean(single)))}, {interval_text(seed_interval(single, level))}"


def _differences(series: Series[Run], reference: Series[Run], measure: Measure) -> list[float]:
    """Of runs with the same seed; empty where one has no such number."""
    pairs = [(measure(own), measure(other)) for other, own in pairs_by_seed(reference, series).values()]
    single = [one - other for one, other in pairs if one is not None and other is not None]
    return single if len(single) == len(pairs) else []


def view(source: Source) -> list[tuple[Group, dict[str, list[Table]]]] | None:
    """Groups with several combinations on one backbone."""
    level = source.options.interval_level
    found = [(group, _by_backbone(group, level)) for group in source.groups]
    return [(group, tables) for group, tables in found if tables] or None


def combination_tables(combinations: Sequence[Combination], level: float) -> list[Table]:
    """A table for every number that was measured, with a row for every source and a column for every objective.

    Args:
        combinations: on one backbone.
        level: of intervals.
    """
    tables = [_table(each, combinations, level) for each in _SHOWN]
    return [table for table in tables if any(cell.is_measured for row in table.rows for cell in row.cells)]


def _by_backbone(group: Group, level: float) -> dict[str, list[Table]]:
    compared = group.seeds.found.comparisons if group.seeds else []
    known = [each for series in group.series if (each := _combination(series, compared)) is not None]
    names = dict.fromkeys(each.series.first.backbone for each in known)
    parts = {name: [each for each in known if each.series.first.backbone == name] for name in names}
    return {name: combination_tables(part, level) for name, part in parts.items() if len(part) > 2}


def _combination(series: Series[Run], compared: Sequence[SeedComparison]) -> Combination | None:
    """Of a single model whose method has choices; None of any other."""
    first, *others = series.first.members
    manifest = first.artifact.manifest
    choices = {} if manifest is None or others else choices_of(manifest.settings)
    if not choices:
        return None
    row = ", ".join(filter(None, (choices["negatives"], choices["batches"]))) or _BATCH
    column = ", ".join(filter(None, (choices["objective"], choices["weights"])))
    own = [each for each in compared if each.series is series and each.is_controlled]
    return Combination(series, first.method if first.is_control else row, column, own)


def _table(shown: _Shown, combinations: Sequence[Combination], level: float) -> Table:
    """The combinations of one row and one column, such as several batch sizes, stand in rows of their own."""
    columns = sorted({each.column for each in combinations})
    rows: list[Row] = []
    for name in _ordered(combinations):
        own = [each for each in combinations if each.row == name]
        places = {column: [each for each in own if each.column == column] for column in columns}
        for number in range(max(map(len, places.values()))):
            found = {column: each[number] for column, each in places.items() if len(each) > number}
            cells = [
                _cell(shown, found[column], level) if column in found else Cell(column, DASH) for column in columns
            ]
            rows.append(Row(name, cells, _note(list(found.values()), number > 0 or _several(places))))
    return Table(shown.title, columns, rows, shown.caption)


def _ordered(combinations: Sequence[Combination]) -> list[str]:
    """Names of rows: baselines, then what reaches the highest RSum in some column."""
    best: dict[str, tuple[bool, float]] = {}
    for each in combinations:
        found = each.spread_of(_own_rsum)
        assert found is not None
        place = not each.series.first.is_control, -found.mean
        best[each.row] = min(best.get(each.row, place), place)
    return sorted(best, key=best.__getitem__)


def _several(places: dict[str, list[Combination]]) -> bool:
    return any(len(each) > 1 for each in places.values())


def _note(combinations: Sequence[Combination], differ: bool) -> str:
    """What the user calls these models, and the settings that tell them from others of the same row."""
    names = [each.series.first.members[0].named for each in combinations]
    settings = combinations[0].series.differing.items() if differ else ()
    return ", ".join([*filter(None, names), *(f"{key} {value}" for key, value in settings)])


def _own_rsum(run: Run) -> float:
    return run.metrics[FULL][_RSUM]["value"]


def _oracle_rsum(run: Run) -> float | None:
    return run.metrics[ORACLE][_RSUM]["value"] if ORACLE in run.metrics else None


def _match_share(run: Run) -> float | None:
    """Percent of the gradient of negatives that correct matches got over the training; None where not counted."""
    rows = run.members[0].history or []
    values = [row[name] for row in rows for name in _SHARES if row.get(name) is not None]
    return 100 * float(np.mean(values)) if values else None


def _processor_seconds(run: Run) -> float | None:
    return run.processor_seconds


def _cell(shown: _Shown, combination: Combination, level: float) -> Cell:
    """The number, and its difference to the strongest baseline."""
    found = combination.spread_of(shown.measure)
    if found is None:
        return Cell(combination.column, DASH)
    against = combination.against(shown.measure, level) if shown.compared else ""
    rsums = [each.own[_RSUM] for each in combination.compared] if shown.measure is _own_rsum else []
    return Cell(combination.column, shown.text(found), against, bool(rsums) and verdict(rsums) == "better")


def _with_deviation(found: Spread) -> str:
    return f"{found.mean:.1f}" if found.deviation is None else f"{found.mean:.1f} ± {found.deviation:.1f}"


@dataclass(frozen=True)
class _Shown:
    """A table.

    Attributes:
        title, caption: of it.
        measure: of a run.
        compared: whether it is compared with baselines.
        text: of mean and deviation.
    """

    title: str
    caption: str
    measure: Measure
    compared: bool = True
    text: Callable[[Spread], str] = _with_deviation


_SHOWN = (
    _Shown(
        "RSum",
        "Mean ± standard deviation over seeds, and the difference to the strongest baseline, which has in-batch "
        "negatives, with its interval over seeds. Bold: significant against every baseline.",
        _own_rsum,
    ),
    _Shown("RSum, all correct matches", "The same with all correct matches counted.", _oracle_rsum),
    _Shown(
        "Correct matches among the negatives",
        "Percent of the gradient of all negatives that went to captions and images that match in truth, over the whole "
        "training. Only a dataset that knows all matches tells this.",
        _match_share,
        compared=False,
    ),
    _Shown(
        "Processor time",
        "Mean of one seed: training and embedding, with the model whose lists were mined, mining, and sentences.",
        _processor_seconds,
        compared=False,
        text=lambda found: duration(found.mean),
    ),
)
