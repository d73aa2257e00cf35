"""How models learned: loss and validation by epoch, and how hard written sentences were for them.

Sources: AOQ (Chen et al., ECCV 2020), Fig. 4; TAGS-DC (Fan et al., Findings of NAACL 2022), Fig. 3 and section 4.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from itrpipe.report.plots import Look, Panels, Plot, legend_of, lines, log_axis, panel, svg, zero_line
from itrpipe.report.runs import Model
from itrpipe.report.series import Series

_BY_EPOCH = {
    "loss": "Loss per pair",
    "val_rsum": "RSum on the validation split",
    "val_i2t_r1": "R@1 on the validation split, image to text",
    "val_t2i_r1": "R@1 on the validation split, text to image",
}
"""Columns of a history with what they are; the recalls are those of AOQ's Fig. 4."""
_QUARTILES = ("mean_gap_lower_quartile", "mean_gap_median", "mean_gap_upper_quartile")
"""Columns of a history: of the gaps of a step, mean over the steps of an epoch."""
_LOG_RATIO = 12.0
_MOST_MARKED = 40
"""Validations that bear a point each."""
_BEYOND = 1.03
"""Where the axis of epochs ends, as a share of the last one."""
_BAND = 0.14
_CURVES = (
    "Losses of different methods are different functions: compare their course, not their height. A large point is the "
    "epoch that validated best, whose weights are evaluated. Several seeds are thin lines around their mean."
)
_GAPS = (
    "The probability that a written sentence matches the image, less that of its caption, as the model sees the two in "
    "the step that trains it with them: the median of a step, mean over the steps of an epoch, and a band between the "
    "quartiles. Below 0 the model tells the sentence from the caption."
)


def training_curves(series: Sequence[Series], looks: Mapping[str, Look], prefix: str) -> list[Panels]:
    """Of the models that were trained and are still there; panels without any are left out.

    Args:
        series: of the runs on one test set.
        looks: of a series, by its name.
        prefix: of the ids inside the drawings.
    """
    trained = {each.name: found for each in series if (found := _models(each))}
    keys = legend_of({name: looks[name] for name in trained})
    drawn = [
        _by_epoch(f"{prefix}-{column}", title, column, own, looks)
        for column, title in _BY_EPOCH.items()
        if (own := {name: found for name, found in trained.items() if found[0].history[0].get(column) is not None})
    ]
    gaps = {name: found for name, found in trained.items() if all(each in found[0].history[0] for each in _QUARTILES)}
    panels = [Panels(drawn, keys, _CURVES)] if drawn else []
    return [*panels, *([_gaps(f"{prefix}-gaps", gaps, looks)] if gaps else [])]


def _models(series: Series) -> list[Model]:
    """One of every run of a single model, with its history."""
    own = {
        run.members[0].artifact.path: run.members[0] for run in series.all if len(run.members) == 1 and not run.rerank
    }
    return [model for model in own.values() if model.history]


def _column(model: Model, name: str) -> list[float]:
    return [row[name] for row in model.history]


def _by_epoch(name: str, title: str, column: str, drawn: Mapping[str, list[Model]], looks: Mapping[str, Look]) -> Plot:
    from matplotlib.ticker import MaxNLocator

    figure, axes = panel()
    for series, models in drawn.items():
        look, curves = looks[series], [_column(each, column) for each in models]
        epochs = max((_column(each, "epoch") for each in models), key=len)
        lines(axes, epochs, curves, look, marked=len(epochs) <= _MOST_MARKED)
        for model, curve in zip(models, curves, strict=True):
            chosen = max(number for number, row in enumerate(model.history) if row["best"])
            size = 4 if len(curves) > 1 else 7
            axes.plot([model.history[chosen]["epoch"]], [curve[chosen]], "o", markersize=size, color=look.colour)
    numbers = [value for models in drawn.values() for each in models for value in _column(each, column)]
    if min(numbers) > 0 and max(numbers) / min(numbers) > _LOG_RATIO:
        log_axis(axes)
        title += " (log scale)"
    last = max(each.history[-1]["epoch"] for models in drawn.values() for each in models)
    axes.set_xlim(0, max(last, 1) * _BEYOND)  # a model that was not trained is validated once, at epoch 0
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=last >= 1, min_n_ticks=1))
    return Plot(title, svg(figure, name, f"{title} by epoch"))


def _gaps(name: str, drawn: Mapping[str, list[Model]], looks: Mapping[str, Look]) -> Panels:
    """By step, medians in a band between the quartiles, means over seeds; a single epoch reaches across its steps."""
    figure, axes = panel()
    zero_line(axes)
    for series, models in drawn.items():
        epochs = min(len(each.history) for each in models)
        values = np.array([[_gap(row) for row in each.history[:epochs]] for each in models])  # [seeds, epochs, 3]
        steps = np.array(_column(models[0], "steps")[:epochs])
        middles = steps.cumsum() - steps / 2
        if epochs == 1:
            middles, values = np.array([0, 2 * middles[0]]), values.repeat(2, axis=1)
        lines(axes, middles.tolist(), values[..., 1].tolist(), looks[series], marked=epochs > 1)
        lower, _, upper = values.mean(axis=0).T
        axes.fill_between(middles, lower, upper, color=looks[series].colour, alpha=_BAND, linewidth=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("training step")
    axes.set_ylabel("s(sentence) − s(caption)")
    title = "Written sentences against their captions"
    return Panels([Plot(title, svg(figure, name, title))], legend_of({each: looks[each] for each in drawn}), _GAPS)


def _gap(row: Mapping[str, float]) -> list[float]:
    return [row[name] for name in _QUARTILES]
