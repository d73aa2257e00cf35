"""How models learned: loss and validation by epoch, and how hard written sentences were for them.

Sources: AOQ (Chen et al., ECCV 2020), Fig. 4; TAGS-DC (Fan et al., Findings of NAACL 2022), Fig. 3 and section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from itrpipe.report.plots import Look, Panels, Plot, panel, svg
from itrpipe.report.runs import Model
from itrpipe.report.series import Series

_BY_EPOCH = {
    "loss": "Loss per pair",
    "val_rsum": "RSum on the validation split",
    "val_i2t_r1": "R@1 on the validation split, image to text",
    "val_t2i_r1": "R@1 on the validation split, text to image",
    "mean_gap_median": "Score of written sentences less their caption's",
}
"""Columns of a history with what they are: the recalls of AOQ's Fig. 4, and of the gaps the median of a step, mean over
the steps of an epoch."""
_LOG_RATIO = 12.0
_MOST_MARKED = 40
"""Validations that bear a point each, which says that nothing was measured between them."""
_BEYOND = 1.03
"""Where the axis of epochs ends, as a share of the last one."""
_CURVES = (
    "Losses of different methods are different functions: compare their course, not their height. A large point is the "
    "epoch that validated best, whose weights are evaluated. Several seeds are thin lines around their mean."
)


def training_curves(series: Sequence[Series], looks: Mapping[str, Look], prefix: str) -> list[Panels]:
    """Of the models that were trained and are still there; panels without any are left out.

    Args:
        series: of the runs on one test set.
        looks: of a series, by its name.
        prefix: of the ids inside the drawings.
    """
    trained = {each.name: found for each in series if (found := _models(each))}
    drawn = [
        _by_epoch(f"{prefix}-{column}", title, column, own, looks)
        for column, title in _BY_EPOCH.items()
        if (own := {name: found for name, found in trained.items() if found[0].history[0].get(column) is not None})
    ]
    return [Panels(drawn, {name: looks[name] for name in trained}, _CURVES)] if drawn else []


def _models(series: Series) -> list[Model]:
    """That of every run of a single model, with its history."""
    alone = [run.members[0] for run in series.all if len(run.members) == 1 and not run.rerank]
    return [model for model in alone if model.history]


def _by_epoch(name: str, title: str, column: str, drawn: Mapping[str, list[Model]], looks: Mapping[str, Look]) -> Plot:
    """One thick line for each series; of several seeds thin ones and their thick mean, as far as all of them go."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    figure, axes = panel()
    rows = [row for models in drawn.values() for each in models for row in each.history]
    last, numbers = max(row["epoch"] for row in rows), [row[column] for row in rows]
    if min(numbers) > 0 and max(numbers) / min(numbers) > _LOG_RATIO:
        title += " (log scale)"
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
    for series, models in drawn.items():
        look, several = looks[series], len(models) > 1
        for model in models:
            epochs, values = ([row[key] for row in model.history] for key in ("epoch", column))
            if several:
                axes.plot(epochs, values, color=look.colour, linewidth=0.8, alpha=0.6)
            best = max(number for number, row in enumerate(model.history) if row["best"])
            axes.plot([epochs[best]], [values[best]], "o", markersize=4 if several else 7, color=look.colour)
        shared = min(len(model.history) for model in models)
        middle = np.mean([[row[column] for row in model.history[:shared]] for model in models], axis=0)
        epochs = [row["epoch"] for row in models[0].history[:shared]]
        axes.plot(epochs, middle, **look.line(), marker="o" if shared <= _MOST_MARKED else "", markersize=3.2)
    axes.set_xlim(0, max(last, 1) * _BEYOND)  # a model that was not trained is validated once, at epoch 0
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=last >= 1))
    return Plot(title, svg(figure, name, f"{title} by epoch"))
