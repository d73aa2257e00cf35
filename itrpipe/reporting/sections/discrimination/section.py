"""Which sentences a model tells from true ones: generators of negative sentences against evaluated runs.

Source: TAGS-DC (Fan et al., Findings of NAACL 2022), Table 4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from itrpipe.artifacts.files import DISCRIMINATION
from itrpipe.declared import conf_title
from itrpipe.reporting.collect import Run
from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.seeds import Spread, by_seed, spread
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import DASH, Cell, Row, SpannedTable, Table
from itrpipe.reporting.titles import method_title

TITLE, ORDER = "True or not", 160
READS = (DISCRIMINATION,)
MOST_COLUMNS = 6
"""Runs beside each other; more of them make a further table."""
_INPUT = "sentences_"
_TITLE = "Sentences told from their captions"
_CAPTION = (
    "Negative sentences that were made of captions of the split; in percent, how many score below their caption "
    "with its image. Ties count as wrong; 50 % is chance."
)


@dataclass(frozen=True)
class Told:
    """What the runs of one series tell from true captions.

    Attributes:
        series: of the method.
        runs: generator -> the newest run of every seed that was measured with it.
    """

    series: Series[Run]
    runs: dict[str, list[Run]]

    def figures(self, generator: str) -> list[dict[str, Any]]:
        """What each of the runs measured with a generator that wrote sentences for it."""
        found = [
            run.figures(DISCRIMINATION)[generator]
            for run in self.runs.get(generator, [])
            if run.figures(DISCRIMINATION)
        ]
        return [each for each in found if each["percent"] is not None]

    def percent(self, generator: str) -> Spread | None:
        """Mean over seeds; None where it was not measured."""
        values = [each["percent"]["value"] for each in self.figures(generator)]
        return spread(values) if values else None


def view(source: Source) -> list[tuple[Group, list[SpannedTable]]] | None:
    """Groups with a run that was asked."""
    found = [(group, discrimination_tables(group.series)) for group in source.groups]
    return [(group, tables) for group, tables in found if tables] or None


def discrimination_tables(series: Sequence[Series[Run]]) -> list[SpannedTable]:
    """A row for every generator and a column for every method, in several tables where there are many.

    Args:
        series: of all runs on one test set.
    """
    told = [each for each in map(_told, series) if each.runs]
    generators = sorted({name for each in told for name in each.runs})
    parts = [told[start : start + MOST_COLUMNS] for start in range(0, len(told), MOST_COLUMNS)]
    return [SpannedTable(_table(generators, part), [("", len(part))]) for part in parts]


def generator_title(name: str) -> str:
    """For people: `phrases.tags.s1` is what its configuration is shown as, who wrote it, and the seed."""
    conf, *rest = name.split(".")
    details = [
        f"seed {part[1:]}" if re.fullmatch("s[0-9]+", part) else f"written by {method_title(part, '')}" for part in rest
    ]
    return ", ".join([conf_title("synthesize", conf) or conf, *details])


def _told(series: Series[Run]) -> Told:
    names = sorted({name for run in series.all for name in run.figures(DISCRIMINATION) or ()})
    measured = {name: tuple(run for run in series.all if name in (run.figures(DISCRIMINATION) or ())) for name in names}
    return Told(series, {name: list(by_seed(replace(series, all=runs)).values()) for name, runs in measured.items()})


def _table(generators: Sequence[str], told: Sequence[Told]) -> Table:
    rows = [_row(name, told) for name in generators if any(name in each.runs for each in told)]
    return Table(_TITLE, [each.series.name for each in told], rows, _caption(told))


def _row(generator: str, told: Sequence[Told]) -> Row:
    means = [each.percent(generator) for each in told]
    best = max((mean.mean for mean in means if mean is not None), default=None)
    cells = [
        Cell(each.series.name, DASH)
        if mean is None
        else Cell(
            each.series.name, f"{mean.mean:.1f}", _below(each, generator, mean), len(told) > 1 and mean.mean == best
        )
        for each, mean in zip(told, means, strict=True)
    ]
    return Row(generator_title(generator), cells, _note(generator, told))


def _below(told: Told, generator: str, mean: Spread) -> str:
    """The interval of one run, or the deviation over several."""
    if mean.deviation is not None:
        return f"± {mean.deviation:.1f}"
    (figures,) = told.figures(generator)
    return f"{figures['percent']['low']:.1f}{DASH}{figures['percent']['high']:.1f}"


def _note(generator: str, told: Sequence[Told]) -> str:
    """How many sentences there are, and whether the runs were measured with the same ones."""
    counts = [each["sentences"] for one in told for each in one.figures(generator)]
    low, high = min(counts, default=0), max(counts, default=0)
    runs = [run for one in told for run in one.runs.get(generator, [])]
    read = {run.manifest.inputs[f"{_INPUT}{generator}"].fingerprint for run in runs}
    number = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{number} sentences{', not the same for all runs' if len(read) > 1 else ''}"


def _caption(told: Sequence[Told]) -> str:
    parts = [_CAPTION]
    measured = [runs for each in told for runs in each.runs.values()]
    if any(len(runs) == 1 for runs in measured):
        levels = sorted({run.settings["interval_level"] for runs in measured for run in runs})
        percent = " or ".join(f"{100 * level:g} %" for level in levels)
        parts.append(f"Below a number of one seed its {percent} bootstrap interval over the test images.")
    if any(len(runs) > 1 for runs in measured):
        parts.append("Of several seeds mean ± standard deviation.")
    if len(told) > 1:
        parts.append("Bold: best of the row.")
    return " ".join(parts)
