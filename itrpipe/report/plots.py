"""Plots as inline SVG in one visual language: a colour is a model on all of a page, the first one grey, and a dash a
backbone. Runs of several seeds are thin lines around their thick mean.

Matplotlib draws with marker colours that are then replaced by the page's CSS variables, so that one drawing
serves a light and a dark page.
"""

from __future__ import annotations

import io
import itertools
import math
import re
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from itrpipe.evaluation.metrics import RSUM
from itrpipe.evaluation.results import FULL
from itrpipe.report.runs import TrainedModel
from itrpipe.report.series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_COLOURS = 6
"""Distinguishable colours beside the grey of the first training; more than that start over."""
_INK, _MUTED, _RULE = "#010101", "#020202", "#030303"
_VARIABLES = {
    _INK: "ink",
    _MUTED: "muted",
    _RULE: "rule",
}
_COLOURS = []
"""The first is the grey of the first training."""
for _index in range(MAX_COLOURS + 1):
    _COLOURS.append(f"#05050{_index}")
    _VARIABLES[f"#05050{_index}"] = f"series-{_index}"
_MOST_DRAWN = 4
"""Series in one drawing of intervals, the best and the baseline."""
_WIDTH, _HEIGHT = 5.0, 3.1  # inches of 72 points: 360 points wide, legible unscaled on a phone
_TICKS = 6
_DASHES = ((), (4, 2), (1, 1.6), (6, 2, 1, 2))
_LABEL_LENGTH, _LABEL_LINE = 28, 0.32
"""Labels beside an axis: characters of a line, and how much of a row each line after the first takes."""
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "itrpipe",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _MUTED,
    "axes.grid": True,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "text.color": _INK,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True)
class Plot:
    """One panel.

    Attributes:
        title: above it.
        svg: the drawing, safe to put into a page as it is.
    """

    title: str
    svg: str


@dataclass(frozen=True)
class LineStyle:
    """The line of a series: its colour, and dashes in line widths."""

    colour: str
    dashes: tuple[float, ...]

    @property
    def variable(self) -> str:
        """Return the colour on the page, as a variable of its style."""
        return _VARIABLES[self.colour]


@dataclass(frozen=True)
class Panels:
    """Plots beside each other.

    Attributes:
        plots: of it.
        styles: of the legend below them, by name.
        note: below both.
    """

    plots: Sequence[Plot]
    styles: Mapping[str, LineStyle]
    note: str


def line_styles(all_series: Sequence[Series]) -> dict[str, LineStyle]:
    """Return colour and dashes of each series, by its name.

    Where there are more methods than colours, dashes tell those of one colour apart, too.
    """
    # Of several first trainings of a backbone, which differ in their settings, one is grey.
    backbones = []
    grey_of_backbone = {}
    for series in all_series:
        backbone = series.first_run.backbone
        if backbone not in backbones:
            backbones.append(backbone)
        if "first training" in series.first_run.roles:
            grey_of_backbone.setdefault(backbone, series.name)
    greys = grey_of_backbone.values()
    methods = list(dict.fromkeys(series.method for series in all_series if series.name not in greys))
    rounds = max(1, math.ceil(len(methods) / MAX_COLOURS))  # how often the colours are gone through

    styles = {}
    for series in all_series:
        colour, round_number = 0, 0
        if series.name not in greys:
            round_number, place = divmod(methods.index(series.method), MAX_COLOURS)
            colour = place + 1
        dashes = backbones.index(series.first_run.backbone) * rounds + round_number
        styles[series.name] = LineStyle(_COLOURS[colour], _DASHES[dashes % len(_DASHES)])
    return styles


def interval_plot(
    name: str,
    all_series: Sequence[Series],
    styles: Mapping[str, LineStyle],
    baseline: Series | None,
) -> Plot:
    """Draw the RSum of the best models and of the baseline with intervals over images, below each other.

    Args:
        name: of the drawing.
        all_series: of all runs on a test set.
        styles: of a series, by its name.
        baseline: that they are compared with, drawn across, too; or None.
    """
    figure, axes = panel()
    level = 100 * all_series[0].first_run.settings["interval_level"]
    title = f"RSum with {level:g} % intervals over images, means over seeds"
    if baseline is not None:
        title += f"; shaded: {baseline.name}"
    has_one_backbone = len({series.first_run.backbone for series in all_series}) == 1

    # The best, and the baseline however it ranks.
    drawn = []
    room = _MOST_DRAWN if baseline is None else _MOST_DRAWN - 1
    for series in sorted(all_series, key=Series.rsum, reverse=True):
        if series is baseline:
            drawn.append(series)
        elif room > 0:
            drawn.append(series)
            room -= 1

    places, labels, wrapped_labels = [], [], []
    bottom = 0.0
    for series in drawn:
        label = series.method if has_one_backbone else series.name
        lines = textwrap.wrap(label, _LABEL_LENGTH)
        height = 1 + _LABEL_LINE * (len(lines) - 1)
        place = bottom + height / 2
        bottom += height
        labels.append(label)
        places.append(place)
        wrapped_labels.append("\n".join(lines))
        rsum = series.score()
        colour = styles[series.name].colour
        axes.plot(_rsum_interval(series), [place, place], color=colour, linewidth=2.2)
        axes.plot(
            [rsum.value],
            [place],
            "o",
            color=colour,
            markersize=6.5,
            markeredgewidth=1.6,
        )
        axes.annotate(
            rsum.text,
            xy=(rsum.value, place),
            fontsize=8.0,
            color=_INK,
            xytext=(0, 6),
            textcoords="offset points",
            horizontalalignment="center",
        )
    if baseline is not None:
        axes.axvline(
            baseline.rsum(),
            color=_MUTED,
            linewidth=0.9,
            linestyle=(0, (1, 2)),
            zorder=1,
        )
        axes.axvspan(*_rsum_interval(baseline), color=_RULE, alpha=0.5, linewidth=0)
    figure.set_figheight(0.5 + 0.34 * max(bottom, 2))
    axes.set_yticks(places, wrapped_labels)
    axes.set_ylim(bottom, -0.3)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    return Plot(title, svg(figure, name, f"{title}: {', '.join(labels)}"))


def _rsum_interval(series: Series) -> tuple[float, float]:
    """Return the ends of the interval of its RSum over images: means of those of its seeds."""
    lows, highs = [], []
    for run in series.run_of_seed.values():
        rsum = run.metrics[FULL][RSUM]
        lows.append(rsum["low"])
        highs.append(rsum["high"])
    return fmean(lows), fmean(highs)


def panel() -> tuple[Any, Axes]:
    """Return a figure with one pair of axes, as wide as a phone."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", _STYLE]):  # whatever a matplotlibrc says
        figure = Figure(figsize=(_WIDTH, _HEIGHT), layout="constrained")
        axes = figure.add_subplot()
        axes.locator_params(axis="x", nbins=_TICKS)  # else other ticks than those that the layout left room for
        return figure, axes


def svg(
    figure: Any,
    name: str,
    description: str,
) -> str:
    """Draw a figure as part of a page: no header, no background, ids of its own, colours by CSS."""
    from markupsafe import escape
    from matplotlib import style

    buffer = io.StringIO()
    with style.context(["default", _STYLE]):
        no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=no_metadata)
    drawing = buffer.getvalue()
    view_box = re.search(r'viewBox="([^"]+)"', drawing)
    body = re.search(r"<svg[^>]*>(.*)</svg>", drawing, re.DOTALL)
    assert view_box is not None
    assert body is not None
    # Comments, and a style element that would apply to the whole page.
    content = re.sub(r"<!--.*?-->\s*|<style.*?</style>\s*", "", body[1], flags=re.DOTALL)
    content = content.replace("xlink:href=", "href=")
    content = re.sub(r'\bid="', f'id="{name}-', content)
    content = re.sub(r'href="#|url\(#', lambda match: f"{match[0]}{name}-", content)
    content = content.replace("'DejaVu Sans'", "var(--sans)")
    for colour, variable in _VARIABLES.items():
        content = content.replace(colour, f"var(--{variable})")
    return f'<svg viewBox="{view_box[1]}" role="img" aria-label="{escape(description)}">{content}</svg>'


_BY_EPOCH = {
    "loss": "Loss per pair",
    "val_rsum": "RSum on the validation split",
    "val_i2t_r1": "R@1 on the validation split, image to text",
    "val_t2i_r1": "R@1 on the validation split, text to image",
    "mean_gap_median": "Score of written sentences less their caption's",
}
"""Columns of a history with what they are: the recalls of AOQ's Fig. 4, and of the gaps the median of a step, mean over
the steps of an epoch."""
_MOST_MARKED = 40
"""Validations that bear a point each, which says that nothing was measured between them."""


def training_curves(
    all_series: Sequence[Series],
    styles: Mapping[str, LineStyle],
    prefix: str,
) -> list[Panels]:
    """Draw the curves of models that were trained and are still there, without panels that have none.

    Args:
        all_series: of the runs on one test set.
        styles: of a series, by its name.
        prefix: of the ids inside the drawings.
    """
    trained = defaultdict(list)
    for series in all_series:
        for run in series.runs:
            model = run.model
            if len(run.members) == 1 and not run.rerank and model.history:
                trained[series.name].append(model)
    plots = []
    for column, title in _BY_EPOCH.items():
        measured = {}
        for name, models in trained.items():
            if models[0].history[0].get(column) is not None:
                measured[name] = models
        if measured:
            plots.append(_curves_by_epoch(f"{prefix}-{column}", title, column, measured, styles))
    if not plots:
        return []
    note = (
        "Losses of different methods are different functions: compare their course, not their height. A large point is "
        "the epoch that validated best, whose weights are evaluated. Several seeds are thin lines around their mean."
    )
    return [Panels(plots, {name: styles[name] for name in trained}, note)]


def _curves_by_epoch(
    name: str,
    title: str,
    column: str,
    trained: Mapping[str, list[TrainedModel]],
    styles: Mapping[str, LineStyle],
) -> Plot:
    """Draw one thick line for each series; of several seeds thin ones and their mean, as far as all of them go."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    figure, axes = panel()
    last_epoch = 0
    values = []
    for model in itertools.chain.from_iterable(trained.values()):
        for row in model.history:
            last_epoch = max(last_epoch, row["epoch"])
            values.append(row[column])
    if min(values) > 0 and max(values) / min(values) > 12:
        title += " (log scale)"
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")

    for series_name, models in trained.items():
        style = styles[series_name]
        curves = []
        marker_size = 4 if len(models) > 1 else 7
        for model in models:
            epochs = [row["epoch"] for row in model.history]
            values = [row[column] for row in model.history]
            curves.append(values)
            if len(models) > 1:
                axes.plot(
                    epochs,
                    values,
                    color=style.colour,
                    linewidth=0.8,
                    alpha=0.6,
                )
            best = [row for row in model.history if row["best"]][-1]
            axes.plot(
                [best["epoch"]],
                [best[column]],
                "o",
                markersize=marker_size,
                color=style.colour,
            )

        shared = min(map(len, curves))
        middle = np.mean([values[:shared] for values in curves], axis=0)
        epochs = [row["epoch"] for row in models[0].history[:shared]]
        dashes = (0, style.dashes) if style.dashes else "-"
        marker = "o" if shared <= _MOST_MARKED else ""
        axes.plot(
            epochs,
            middle,
            color=style.colour,
            linestyle=dashes,
            marker=marker,
            markersize=3.2,
        )
    # The axis ends a little behind the last epoch. A model that was not trained is validated once, at epoch 0.
    axes.set_xlim(0, max(last_epoch, 1) * 1.03)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=last_epoch >= 1))
    return Plot(title, svg(figure, name, f"{title} by epoch"))


def reliability_plot(
    title: str,
    bins: Sequence[Sequence[float]],
    name: str,
) -> Plot:
    """Draw probabilities against the shares that people found right.

    Args:
        title: above the plot.
        bins: mean probability, share and number of decisions of each, see `itrpipe.judging.calibration.Bin`.
        name: prefix of the ids inside the drawing.
    """
    figure, axes = panel()
    probabilities, shares, decisions = np.transpose(bins)
    axes.plot([0, 1], [0, 1], color=_MUTED, linewidth=0.8)
    axes.scatter(probabilities, shares, s=8 * decisions, color=_COLOURS[1])
    axes.set_xlabel("probability by the judge")
    axes.set_ylabel("share found right")
    return Plot(title, svg(figure, name, title))
