"""The results in one table: a row for every method, a column for every backbone, RSum in each cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from itrpipe.evaluation.bootstrap import Interval
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import Comparison, signed
from itrpipe.reporting.departures import listed, shown
from itrpipe.reporting.expected import RSUM, Published
from itrpipe.reporting.plots import Plot, bars, looks_of
from itrpipe.reporting.seeds import SeedComparison, Spread, by_seed, spread
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import DASH, FULL, Cell, Row, Table
from itrpipe.reporting.verdicts import RULE, answer

TITLE = "RSum of every method"
_MOST_DRAWN = 6
"""Methods that the first drawing shows: the first training and the best."""
_CAPTION = (
    "RSum is the sum of six recalls, in percent: how often the right caption is among the first 1, 5 and 10 found for "
    "an image, and the right image among those found for a caption; 600 is perfect. Of several seeds the mean ± "
    "standard deviation, of one the bootstrap interval over images below it."
)
_DIFFERENCES = f"In its place the difference to the first training of the same backbone, where it was measured. {RULE}"
_PUBLISHED = "Published scores are quoted, not measured."


@dataclass(frozen=True)
class Gain:
    """A difference in RSum to the first training.

    Attributes:
        value: above zero where the later training is better.
        significant: see `itrpipe.evaluation.claims`.
    """

    value: float
    significant: bool


@dataclass(frozen=True)
class Overview:
    """The section.

    Attributes:
        answer: what a reader wants to know first.
        evidence: RSum of the methods as a drawing; None of one alone.
        table: methods by backbones.
        differing: name of a series, and its settings that are not as declared, or in which it differs from others of
            its method and backbone.
    """

    answer: str
    evidence: Plot | None
    table: Table
    differing: list[tuple[str, str]]


def overview_of(
    series: Sequence[Series[Run]],
    compared: Sequence[SeedComparison],
    comparisons: Sequence[Comparison],
    published: Sequence[Published],
    prefix: str,
) -> Overview:
    """All results of the runs on one test set.

    Args:
        series: of these runs.
        compared: methods with the first training and with baselines, judged.
        comparisons: single runs with their first training.
        published: scores of whichever runs.
        prefix: of the ids inside the drawing.
    """
    backbones = list(dict.fromkeys(each.first.backbone for each in series))
    gains = {each.name: gain for each in series if (gain := _gain(each, compared, comparisons)) is not None}
    cells = {(each.method, each.first.backbone): _cell(each, gains.get(each.name)) for each in series}
    quoted = {(each.method, each.first.backbone): _quoted(each, published) for each in series}
    rows = []
    for method in dict.fromkeys(each.method for each in series):
        rows.append(Row(method, [cells.get((method, name), Cell(name, DASH)) for name in backbones]))
        known = [quoted.get((method, name)) for name in backbones]
        if any(known):
            places = [each or Cell(name, DASH) for each, name in zip(known, backbones, strict=True)]
            rows.append(Row("published", places, published=True))
    parts = [_CAPTION, _DIFFERENCES if gains else "", _PUBLISHED if any(quoted.values()) else ""]
    differing = [(each.name, _settings(each)) for each in series]
    return Overview(
        answer(series, compared),
        _evidence(series, prefix),
        Table(TITLE, backbones, rows, " ".join(filter(None, parts))),
        [each for each in differing if each[1]],
    )


def _evidence(series: Sequence[Series[Run]], prefix: str) -> Plot | None:
    """RSum of the first training and of the best methods with intervals: over seeds, or over images."""
    if len(series) < 2:
        return None
    ranked = sorted(series, key=lambda each: _rsum(each).mean, reverse=True)
    first = next((each for each in ranked if each.first.is_baseline), None)
    best = [each for each in ranked if each is not first][: _MOST_DRAWN - (first is not None)]
    shown = [each for each in ranked if each in (*best, first)]
    seeds = [len(by_seed(each)) for each in shown]
    intervals = [(_over_images if min(seeds) == 1 else _over_seeds)(each) for each in shown]
    left_out = len(series) - len(shown)
    level = f"{100 * shown[0].first.settings['interval_level']:g} %"
    title = f"RSum with the {level} interval over images" if min(seeds) == 1 else "RSum ± one standard deviation"
    title += ", means over seeds" if max(seeds) > 1 else ""
    title += f"; the {len(shown)} best of {len(series)}" if left_out and first in (None, *ranked[:_MOST_DRAWN]) else ""
    one_backbone = len({each.first.backbone for each in series}) == 1
    looks = looks_of(series)
    return bars(
        f"{prefix}-evidence",
        title,
        [each.method if one_backbone else each.name for each in shown],
        intervals,
        [looks[each.name] for each in shown],
        reference=None if first is None else _rsum(first).mean,
    )


def _over_seeds(series: Series[Run]) -> Interval:
    rsum = _rsum(series)
    assert rsum.deviation is not None
    return Interval(rsum.mean, rsum.mean - rsum.deviation, rsum.mean + rsum.deviation)


def _over_images(series: Series[Run]) -> Interval:
    """The mean of the seeds, with the means of the ends of their intervals."""
    own = [run.metrics[FULL][RSUM] for run in by_seed(series).values()]
    return Interval(*(sum(each[end] for each in own) / len(own) for end in ("value", "low", "high")))


def _settings(series: Series[Run]) -> str:
    """What is not as declared with what is, then what else tells the series from others of its name."""
    others = [f"{key} {shown(value)}" for key, value in series.differing.items() if key not in series.departures]
    return ", ".join(filter(None, [listed(series.departures), *others]))


def _rsum(series: Series[Run]) -> Spread:
    return spread([run.metrics[FULL][RSUM]["value"] for run in by_seed(series).values()])


def _gain(series: Series[Run], compared: Sequence[SeedComparison], comparisons: Sequence[Comparison]) -> Gain | None:
    """The difference to the first training, over seeds where there are several; None where it was not measured."""
    for each in compared:
        if each.series is series and each.reference.first.is_baseline and len(each.seeds) > 1:
            return Gain(each.own[RSUM].value, each.own[RSUM].significant)
    runs = list(by_seed(series).values())
    for each in comparisons:
        if len(runs) == 1 and each.run is runs[0]:
            return Gain(each.own[RSUM].value, False)
    return None


def _cell(series: Series[Run], gain: Gain | None) -> Cell:
    """RSum, and its difference to the first training; where that was not measured the interval of a single run."""
    rsum = _rsum(series)
    if rsum.deviation is not None:
        text, interval = f"{rsum.mean:.1f} ± {rsum.deviation:.1f}", ""
    else:
        (run,) = by_seed(series).values()
        text = f"{rsum.mean:.1f}"
        interval = f"{run.metrics[FULL][RSUM]['low']:.1f}{DASH}{run.metrics[FULL][RSUM]['high']:.1f}"
    if gain is None:
        return Cell(series.first.backbone, text, interval)
    return Cell(series.first.backbone, text, f"{signed(gain.value)} to the first training", gain.significant)


def _quoted(series: Series[Run], published: Sequence[Published]) -> Cell | None:
    """The published RSum of the whole split, and where it stands; of several the first."""
    names = {name for run in series.all for name in (run.label, run.evaluation.name)}
    found = [each for each in published if each.run in names and each.protocol == FULL and RSUM in each.scores]
    return Cell(series.first.backbone, f"{found[0].scores[RSUM]:.1f}", found[0].source) if found else None
