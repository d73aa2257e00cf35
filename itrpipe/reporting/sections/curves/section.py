"""Curves of runs: training by epoch, recall by K, and how often positive pairs have which rank."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.evaluation.chance import random_recall, random_recalls
from itrpipe.evaluation.cross_retrieval import rank_histogram
from itrpipe.evaluation.recall import recall
from itrpipe.reporting.collect import DIRECTIONS, Run, models
from itrpipe.reporting.groups import Group
from itrpipe.reporting.library import Library
from itrpipe.reporting.model import Model
from itrpipe.reporting.plots import (
    CHANCE,
    Key,
    Look,
    Plot,
    legend,
    log_axis,
    looks_of,
    panel,
    plain_ticks,
    svg,
)
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.series import Series, series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE, ORDER = "Curves", 80
READS = ()
MAX_K = 50
_BY_EPOCH = {
    "loss": "Loss per pair",
    "val_rsum": "RSum on the validation split",
    "val_i2t_r1": "R@1 on the validation split, image to text",
    "val_t2i_r1": "R@1 on the validation split, text to image",
}
"""Columns of a history with what they are; the recalls are what AOQ's Fig. 4 shows."""
_LOG_RATIO = 12.0
_THIN: Any = {"linewidth": 0.8, "alpha": 0.6}
_POINTS: Any = {"marker": "o", "markersize": 3.2}
_MOST_MARKED = 40
"""Validations that bear a point each."""
_VALIDATED = "val_"
_BEYOND = 1.03
"""Where the axis of epochs ends, as a share of the last one."""


@dataclass(frozen=True)
class Curves:
    """Plots of the runs on one test set.

    Attributes:
        model_keys, keys: how the trained models, and the runs, are drawn.
        training: by epoch, of models.
        recalls, cross_ranks: of runs.
        without_history: models that were removed.
        without_cross_ranks: runs whose evaluation did not write these ranks.
    """

    model_keys: list[Key]
    keys: list[Key]
    training: list[Plot]
    recalls: list[Plot]
    cross_ranks: list[Plot]
    without_history: list[Model]
    without_cross_ranks: list[Run]


def view(source: Source) -> list[tuple[Group, Curves]]:
    """Every group has some."""
    return [(group, curves_of(group.runs, group.prefix, source.libraries)) for group in source.groups]


def curves_of(runs: Sequence[Run], prefix: str, libraries: Mapping[str, Library | None]) -> Curves:
    """All plots of the runs on one test set.

    Args:
        runs: of one test set.
        prefix: of the ids inside the drawings, different for every test set.
        libraries: datasets by the name of their artifact; None for those that were removed.
    """
    library = libraries[runs[0].prepare.name]
    validation = library.split("val") if library is not None and "val" in library.splits else None
    trained = models(runs)
    series, model_series = series_of(runs), series_of(trained)
    return Curves(
        model_keys=legend(model_series),
        keys=legend(series),
        training=training_plots(model_series, prefix, validation),
        recalls=recall_plots(series, prefix),
        cross_ranks=cross_rank_plots(series, prefix),
        without_history=[model for model in trained if model.history is None],
        without_cross_ranks=without_cross_ranks(runs),
    )


def training_plots(series: Sequence[Series[Model]], prefix: str, validation: Split | None) -> list[Plot]:
    """Loss, validation RSum and validation R@1 of both directions by epoch, of the models that are still there.

    Args:
        series: of models.
        prefix: of the ids inside the drawings, different for every test set.
        validation: their validation split, whose size is that of chance; None when the dataset was removed.
    """
    looks = looks_of(series)
    plots = []
    for column, title in _BY_EPOCH.items():
        drawn = [(each, _columns(each, column)) for each in series]
        drawn = [(each, values) for each, values in drawn if values]
        if drawn:
            chances = _chances([each for each, _ in drawn], column, validation)
            plots.append(_by_epoch(f"{prefix}-{column}", title, drawn, looks, chances))
    return plots


def recall_plots(series: Sequence[Series[Run]], prefix: str) -> list[Plot]:
    """Recall at every K up to 50, one panel per direction."""
    looks = looks_of(series)
    ks = range(1, MAX_K + 1)
    plots = []
    for direction, title in DIRECTIONS.items():
        figure, axes = panel()
        for each in series:
            ranks = [run.rankings[direction].rank for run in each.all]
            rows = [[recall(rank, k) for k in ks] for rank in ranks]
            lines(axes, ks, rows, looks[each.name])
        images, captions = series[0].first.size
        axes.plot(ks, [random_recall(direction, images, captions, k) for k in ks], **CHANCE)
        axes.set_xscale("log")
        plain_ticks(axes, [1, 2, 5, 10, 20, 50])
        axes.set_xlim(1, MAX_K)
        axes.set_xlabel("K (log scale); dotted: chance")
        axes.set_ylabel("recall at K, %")
        axes.set_ylim(bottom=0)
        plots.append(Plot(title, svg(figure, f"{prefix}-{direction}", f"{title}: recall at K")))
    return plots


def cross_rank_plots(series: Sequence[Series[Run]], prefix: str) -> list[Plot]:
    """Share of the positive pairs by cross-retrieval rank, one panel per backbone; runs without these ranks left out.

    Source: AOQ Fig. 5.
    """
    looks = looks_of(series)
    plots = []
    for index, backbone in enumerate(dict.fromkeys(each.first.backbone for each in series)):
        shares = {each.name: _shares(each.all) for each in series if each.first.backbone == backbone}
        shares = {name: values for name, values in shares.items() if values}
        if not shares:
            continue
        figure, axes = panel()
        for name, values in shares.items():
            lines(axes, _sides(len(values[0])), [np.repeat(each, 2).tolist() for each in values], looks[name])
        labels = _bin_labels(next(run for each in series for run in each.all if run.cross_ranks is not None))
        axes.set_xticks(range(len(labels)), labels, fontsize=7.6)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        axes.set_xlabel("cross-retrieval rank")
        axes.set_ylabel("positive pairs, %")
        axes.set_ylim(bottom=0)
        plots.append(Plot(backbone, svg(figure, f"{prefix}-cross-{index}", f"{backbone}: cross-retrieval ranks")))
    return plots


def without_cross_ranks(runs: Iterable[Run]) -> list[Run]:
    """Runs whose evaluation wrote no cross-retrieval ranks."""
    return [run for run in runs if run.cross_ranks is None]


def _columns(series: Series[Model], column: str) -> list[tuple[Model, list[float]]]:
    """A column of the history of every model that is there and has it."""
    known = [(model, model.history) for model in series.all if model.history]
    return [(model, [row[column] for row in rows]) for model, rows in known if rows[0].get(column) is not None]


def _epochs(model: Model) -> list[float]:
    """How many epochs were done at each validation."""
    return [row["epoch"] for row in model.history or ()]


def _by_epoch(
    name: str,
    title: str,
    drawn: Sequence[tuple[Series[Model], list[tuple[Model, list[float]]]]],
    looks: Mapping[str, Look],
    chances: Sequence[float],
) -> Plot:
    from matplotlib.ticker import MaxNLocator

    figure, axes = panel()
    for each, curves in drawn:
        look = looks[each.name]
        epochs = max((_epochs(model) for model, _ in curves), key=len)
        lines(axes, epochs, [own for _, own in curves], look, marked=len(epochs) <= _MOST_MARKED)
        for model, own in curves:
            chosen = max(number for number, row in enumerate(model.history or ()) if row["best"])
            axes.plot(
                [_epochs(model)[chosen]], [own[chosen]], "o", markersize=4 if len(curves) > 1 else 7, color=look.colour
            )
    numbers = [value for _, curves in drawn for _, own in curves for value in own]
    if min(numbers) > 0 and max(numbers) / min(numbers) > _LOG_RATIO:
        log_axis(axes)
        title += " (log scale)"
    for chance in chances:
        axes.axhline(chance, **CHANCE)
    last = max(_epochs(model)[-1] for _, curves in drawn for model, _ in curves)
    axes.set_xlim(0, max(last, 1) * _BEYOND)  # a model that was not trained is validated once, at epoch 0
    axes.set_xlabel("epoch; dotted: chance" if chances else "epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=last >= 1, min_n_ticks=1))
    return Plot(title, svg(figure, name, f"{title} by epoch"))


def _chances(series: Sequence[Series[Model]], column: str, validation: Split | None) -> list[float]:
    """What chance gives on the validation split, for each number of its images that models were validated with."""
    if validation is None or not column.startswith(_VALIDATED):
        return []
    images, captions = len(validation.image_ids), len(validation.caption_ids)
    limits = {model.validation_images or images for each in series for model in each.all}
    sizes = sorted({min(images, limit) for limit in limits})
    found = [random_recalls(size, captions * size // images) for size in sizes]
    return [each[column.removeprefix(_VALIDATED)] for each in found]


def lines(
    axes: Axes, positions: Sequence[float], rows: Sequence[Sequence[float]], look: Look, *, marked: bool = False
) -> None:
    """One thick line; of several rows thin ones and their thick mean, as far as all of them go.

    Args:
        axes: to draw on.
        positions: of the longest row.
        rows: heights.
        look: of the lines.
        marked: with a point for each value of the thick line, which says that nothing was measured between them.
    """
    if len(rows) > 1:
        for row in rows:
            axes.plot(positions[: len(row)], row, color=look.colour, **_THIN)
    shared = min(map(len, rows))
    mean = np.mean([row[:shared] for row in rows], axis=0)
    axes.plot(positions[:shared], mean, **look.line(), **(_POINTS if marked else {}))


def _sides(bins: int) -> list[float]:
    """Left and right side of every bin, bin b reaching from b - 0.5 to b + 0.5."""
    return [place + side for place in range(bins) for side in (-0.5, 0.5)]


def _shares(runs: Iterable[Run]) -> list[list[float]]:
    """Percent of the positive pairs in every bin, of every run that has the ranks."""
    counts = [rank_histogram(run.cross_ranks).counts for run in runs if run.cross_ranks is not None]
    return [(100.0 * each / each.sum()).tolist() for each in counts]


def _bin_labels(run: Run) -> list[str]:
    """`1`, `3–5` and so on, and `> 200` for the last bin."""
    assert run.cross_ranks is not None
    edges = rank_histogram(run.cross_ranks).edges.tolist()
    bins = list(itertools.pairwise(edges))
    inner = [f"{low}" if high == low + 1 else f"{low}–{high - 1}" for low, high in bins[:-1]]
    return [*inner, f"> {bins[-1][0] - 1}"]
