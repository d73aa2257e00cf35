"""Plots of a study: gains along everything that was varied, and what round one told beforehand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from itrpipe.evaluation.second_round import Signals, signals
from itrpipe.reporting.plots import Look, Plot, panel, plain_ticks, point, svg, zero_line
from itrpipe.reporting.study import BATCH, MEASURES, PERCENT, Gain, Setting, Study, Tried, ordered

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RATIO = "training images for each pair of a batch"
REASONS: dict[str, Callable[[Signals], float | None]] = {
    "pairs beaten by the hardest of all": lambda found: found.dataset_beaten,
    "pairs beaten by the hardest of a batch": lambda found: found.batch_beaten,
    "true matches among the hardest of all": lambda found: found.dataset_false,
    "true matches among the hardest of a batch": lambda found: found.batch_false,
}
"""What round one told, in percent."""
_LARGEST_STEP = 3
"""Values of a factor from this ratio on stand on a logarithmic axis."""


def gain_plots(study: Study, backbone: str, looks: dict[str, Look]) -> list[Plot]:
    """For each measure a plot along each factor that varies, and one over the images for each pair of a batch."""
    plots = []
    measures = [name for name in MEASURES if any(name in each.gains for each in study.tried)]
    for measure in measures:
        for factor in study.factors(backbone):
            tried = [each for each in study.along(backbone, factor) if measure in each.gains]
            name = f"study-{_slug(backbone)}-{_slug(measure)}-{_slug(factor)}"
            if len({each.setting for each in tried}) > 1:
                plots.append(_plot(name, measure, factor, tried, lambda each, key=factor: each.values[key], looks))
        tried = [each for each in study.tried if each.setting.backbone == backbone and measure in each.gains]
        if len({each.setting.values[BATCH] for each in tried}) > 1:
            name = f"study-{_slug(backbone)}-{_slug(measure)}-ratio"
            plots.append(_plot(name, measure, RATIO, tried, lambda each: each.ratio, looks))
    return plots


def reason_plots(study: Study, backbone: str, looks: Mapping[str, Look]) -> list[Plot]:
    """How hard the hardest negatives of a batch and of all are for round one, and how many of them are true matches."""
    plots = []
    for factor in study.factors(backbone):
        found = {each.setting: signals(each.told) for each in study.along(backbone, factor) if each.told is not None}
        if len(found) < 2:
            continue
        figure, axes = panel()
        values = ordered(setting.values[factor] for setting in found)
        places = sorted(found, key=lambda setting: values.index(setting.values[factor]))
        logarithmic = _is_logarithmic(values)
        at = values if _is_numeric(values) else range(len(values))
        for name, read in REASONS.items():
            shares = [read(found[setting]) for setting in places]
            known = [share for share in shares if share is not None]
            if len(known) == len(shares):
                axes.plot(at, known, marker="o", markersize=4, **looks[name].line())
        _mark(axes, values, factor, logarithmic)
        axes.set_ylim(0, 100)
        axes.set_ylabel("%")
        title = f"{backbone}, by {factor}"
        plots.append(Plot(title, svg(figure, f"study-why-{_slug(backbone)}-{_slug(factor)}", f"Round one: {title}")))
    return plots


def _plot(
    name: str,
    measure: str,
    factor: str,
    tried: Sequence[Tried],
    place: Callable[[Setting], Any],
    looks: dict[str, Look],
) -> Plot:
    """Gains of every method by one factor, as points with intervals; those of one method are joined."""
    figure, axes = panel()
    zero_line(axes)
    values = ordered(place(each.setting) for each in tried)
    numeric, logarithmic = _is_numeric(values), _is_logarithmic(values)
    methods = list(dict.fromkeys(each.method for each in tried))
    for number, method in enumerate(methods):
        own = sorted(
            (each for each in tried if each.method == method), key=lambda each: values.index(place(each.setting))
        )
        aside = (number - (len(methods) - 1) / 2) * 0.012
        at = [_shifted(place(each.setting), values, aside, logarithmic, numeric) for each in own]
        _points(axes, at, [each.gains[measure] for each in own], looks[method], joined=factor != RATIO)
    _mark(axes, values, factor, logarithmic)
    _limit(axes, [each.gains[measure] for each in tried])
    axes.set_ylabel(f"gain in {'percentage points' if measure in PERCENT else 'RSum'}")
    title = f"{measure}, by {factor}"
    return Plot(title, svg(figure, name, f"{title}: gain over the strongest control"))


def _limit(axes: Axes, gains: Sequence[Gain]) -> None:
    """Leaves out the ends of intervals over two seeds, which are six times as wide as over three."""
    ends = [each.value for each in gains]
    ends += [
        end for each in gains if each.interval and each.seeds != 2 for end in (each.interval.low, each.interval.high)
    ]
    room = 0.08 * (max(ends) - min(*ends, 0.0) or 1.0)
    axes.set_ylim(min(*ends, 0.0) - room, max(*ends, 0.0) + room)


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) for value in values)


def _is_logarithmic(values: Sequence[Any]) -> bool:
    return _is_numeric(values) and min(values) > 0 and max(values) / min(values) > _LARGEST_STEP


def _mark(axes: Axes, values: Sequence[Any], factor: str, logarithmic: bool) -> None:
    """The values below the axis, all of them where they are few."""
    if logarithmic:
        axes.set_xscale("log")
        plain_ticks(axes, values)
    elif _is_numeric(values):
        axes.set_xticks(values, [f"{value:,}" for value in values])
    else:
        axes.set_xticks(range(len(values)), list(map(str, values)))
    axes.set_xlabel(f"{factor} (log scale)" if logarithmic else factor)


def _shifted(value: Any, values: Sequence[Any], aside: float, logarithmic: bool, numeric: bool) -> float:
    """A place on the axis, a little aside so that intervals of several methods do not hide each other."""
    if not numeric:
        return values.index(value) + aside * len(values)
    if logarithmic:
        return value * (max(values) / min(values)) ** aside
    return value + aside * ((max(values) - min(values)) or 1)


def _slug(text: str) -> str:
    return "".join(filter(str.isalnum, text.lower()))


def _points(axes: Axes, at: Sequence[float], gains: Sequence[Gain], look: Look, *, joined: bool) -> None:
    if joined:
        axes.plot(at, [each.value for each in gains], **look.line())
    for x, each in zip(at, gains, strict=True):
        point(axes, x, each.interval, each.value, look, filled=each.significant)
