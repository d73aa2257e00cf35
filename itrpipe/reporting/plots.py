"""Plots as inline SVG in one visual language: colour names the backbone, a dashed line is round one,
a solid, dotted or dash-dotted one a later method.

Matplotlib draws with marker colours that are then replaced by the page's CSS variables, so that one drawing
serves a light and a dark page. A hollow point is a difference whose interval includes zero.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from itrpipe.evaluation.bootstrap import Interval
from itrpipe.evaluation.recall import recall
from itrpipe.reporting.collect import DIRECTIONS, Run
from itrpipe.reporting.comparisons import RECALLS, Comparison, excludes_zero

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_K = 50
SERIES = 6
"""Distinguishable colours; more backbones than that start over."""
_INK, _MUTED, _RULE, _PAPER = "#010101", "#020202", "#030303", "#040404"
_COLOURS = [f"#05050{index + 1}" for index in range(SERIES)]
_VARIABLES = {_INK: "ink", _MUTED: "muted", _RULE: "rule", _PAPER: "paper"} | {
    colour: f"series-{index + 1}" for index, colour in enumerate(_COLOURS)
}
_WIDTH, _HEIGHT = 5.0, 3.1  # inches of 72 points: 360 points wide, legible unscaled on a phone
_LOG_RATIO = 12.0
_DASHED = (4, 2.4)
_LATER_DASHES = ((), (1, 1.6), (6, 2, 1, 2))
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
class Key:
    """One line of a legend.

    Attributes:
        name: of the run.
        colour: CSS variable.
        dashes: of its line, as SVG writes them; empty for a solid one.
    """

    name: str
    colour: str
    dashes: str


@dataclass(frozen=True)
class _Look:
    """How the line of a run is drawn: colour, and dashes in line widths."""

    colour: str
    dashes: tuple[float, ...]

    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": (0, self.dashes) if self.dashes else "-"}


def legend(runs: Sequence[Run]) -> list[Key]:
    """How each run is drawn; seeds of one model share their look."""
    looks = _looks(runs)
    keys = [
        Key(f"{run.backbone}, {run.method}", _VARIABLES[look.colour], " ".join(map(str, look.dashes)))
        for run, look in ((run, looks[run.label]) for run in runs)
    ]
    return list(dict.fromkeys(keys))


def training_plots(runs: Sequence[Run], prefix: str) -> list[Plot]:
    """Loss and validation RSum by epoch of the runs whose models are still there.

    Args:
        runs: of one test set.
        prefix: of the ids inside the drawings, different for every test set.
    """
    histories = [(run, run.history) for run in runs if run.history]
    if not histories:
        return []
    looks = _looks(runs)
    loss = [(run, [row["loss"] for row in rows]) for run, rows in histories]
    rsum = [(run, [row["val_rsum"] for row in rows]) for run, rows in histories]
    return [
        _by_epoch(f"{prefix}-loss", "Loss per pair", loss, looks),
        _by_epoch(f"{prefix}-validation", "RSum on the validation split", rsum, looks),
    ]


def recall_plots(runs: Sequence[Run], prefix: str) -> list[Plot]:
    """Recall at every K up to 50, one panel per direction."""
    looks = _looks(runs)
    plots = []
    for direction, title in DIRECTIONS.items():
        figure, axes = _panel()
        ks = np.arange(1, MAX_K + 1)
        for run in runs:
            ranks = run.rankings[direction].rank
            axes.plot(ks, [recall(ranks, int(k)) for k in ks], **looks[run.label].line())
        axes.set_xscale("log")
        _plain_ticks(axes, [1, 2, 5, 10, 20, 50])
        axes.set_xlabel("K (log scale)")
        axes.set_ylabel("recall at K, %")
        axes.set_ylim(bottom=0)
        plots.append(Plot(title, _svg(figure, f"{prefix}-{direction}", f"{title}: recall at K")))
    return plots


def difference_plots(comparisons: Sequence[Comparison], prefix: str) -> list[Plot]:
    """RSum of all comparisons, then the recalls of each, on one scale."""
    if not comparisons:
        return []
    colours = _colours([each.run for each in comparisons])
    names = [f"{'i→t' if name.startswith('i2t') else 't→i'}  R@{name.rpartition('r')[2]}" for name in RECALLS]
    rows = [[each.own[name] for name in RECALLS] for each in comparisons]
    bound = max(max(abs(interval.low), abs(interval.high)) for row in rows for interval in row) * 1.08 or 1.0
    plots = [_rsum_plot(comparisons, colours, f"{prefix}-difference-rsum")]
    for index, (each, row) in enumerate(zip(comparisons, rows, strict=True)):
        title = f"{each.run.name}: recalls"
        svg = _forest(f"{prefix}-difference-{index}", names, row, [colours[each.run.backbone]] * len(row), bound, title)
        plots.append(Plot(title, svg))
    return plots


def _rsum_plot(comparisons: Sequence[Comparison], colours: Mapping[str, str], name: str) -> Plot:
    rsum = [each.own["rsum"] for each in comparisons]
    bound = max(max(abs(interval.low), abs(interval.high)) for interval in rsum) * 1.08 or 1.0
    labels = [each.run.name for each in comparisons]
    colour_list = [colours[each.run.backbone] for each in comparisons]
    return Plot("RSum", _forest(name, labels, rsum, colour_list, bound, "RSum"))


def _forest(
    name: str, labels: Sequence[str], rows: Sequence[Interval], colours: Sequence[str], bound: float, title: str
) -> str:
    """Points with intervals around the line of no difference; hollow where the interval includes zero."""
    figure, axes = _panel(height=0.75 + 0.36 * max(len(rows), 2))
    axes.axvline(0, color=_INK, linewidth=0.9)
    for place, (interval, colour) in enumerate(zip(rows, colours, strict=True)):
        axes.plot([interval.low, interval.high], [place, place], color=colour, linewidth=2.2)
        face = colour if excludes_zero(interval) else _PAPER
        axes.plot(
            [interval.value], [place], "o", color=colour, markersize=6.5, markerfacecolor=face, markeredgewidth=1.6
        )
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(-bound, bound)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("difference in percentage points" if title != "RSum" else "difference in RSum")
    return _svg(figure, name, f"{title}: differences with intervals")


def _by_epoch(name: str, title: str, series: Sequence[tuple[Run, Sequence[float]]], looks: Mapping[str, _Look]) -> Plot:
    from matplotlib.ticker import MaxNLocator

    figure, axes = _panel()
    for run, values in series:
        epochs = range(1, len(values) + 1)
        line = looks[run.label].line()
        axes.plot(epochs, values, marker="o", markersize=3.0, **line)
        chosen = max(epoch for epoch, row in zip(epochs, run.history or (), strict=True) if row["best"])
        axes.plot([chosen], [values[chosen - 1]], "o", markersize=7, color=line["color"])
    numbers = [value for _, values in series for value in values]
    if min(numbers) > 0 and max(numbers) / min(numbers) > _LOG_RATIO:
        _log_axis(axes)
        title += " (log scale)"
    longest = max(len(values) for _, values in series)
    axes.set_xlim(0.7, longest + 0.3)
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return Plot(title, _svg(figure, name, f"{title} by epoch"))


def _colours(runs: Sequence[Run]) -> dict[str, str]:
    """A colour for each backbone, in the order of the runs."""
    backbones = dict.fromkeys(run.backbone for run in runs)
    return {backbone: _COLOURS[index % SERIES] for index, backbone in enumerate(backbones)}


def _looks(runs: Sequence[Run]) -> dict[str, _Look]:
    """Colour and dashes of each run, by its label."""
    colours = _colours(runs)
    later = list(dict.fromkeys(run.method for run in runs if not run.is_baseline))
    return {
        run.label: _Look(
            colours[run.backbone],
            _DASHED if run.is_baseline else _LATER_DASHES[later.index(run.method) % len(_LATER_DASHES)],
        )
        for run in runs
    }


def _plain_ticks(axes: Axes, ticks: Sequence[int]) -> None:
    axes.set_xticks(list(ticks), [str(tick) for tick in ticks])
    axes.set_xticks([], minor=True)


def _log_axis(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")


def _panel(height: float = _HEIGHT) -> tuple[Any, Axes]:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        return figure, figure.add_subplot()


def _svg(figure: Any, name: str, description: str) -> str:
    """Draws a figure and makes it part of a page: no header, no background, ids of its own, colours by CSS."""
    import matplotlib
    from markupsafe import escape

    buffer = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
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
