"""How hard synthetic sentences are for the model that is trained with them, from its first step to its last.

Source: TAGS-DC (Fan et al., Findings of NAACL 2022), Fig. 3 and section 4.1.

Shapes: E epochs, S seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from itrpipe.reporting.collect import models
from itrpipe.reporting.model import Model
from itrpipe.reporting.plots import Key, Look, Plot, legend, looks_of, panel, svg, zero_line
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.sections.curves.section import lines
from itrpipe.reporting.series import Series, series_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE, ORDER = "Difficulty", 140
READS = ()
QUARTILES = ("mean_gap_lower_quartile", "mean_gap_median", "mean_gap_upper_quartile")
"""Columns of a history: of the gaps of a step, mean over the steps of an epoch."""
STEPS = "steps"
_BAND = 0.14
_TITLE = "Sentences against their captions"


@dataclass(frozen=True)
class Difficulty:
    """The section.

    Attributes:
        plot: gaps by step.
        keys: how each series is drawn, and where its sentences are from.
        artifacts: paths of the models whose histories hold the numbers.
    """

    plot: Plot
    keys: list[Key]
    artifacts: list[str]


@dataclass(frozen=True)
class _Course:
    """What a series of models went through.

    Attributes:
        series: of those that were trained with sentences.
        steps: float64 [E], the middle of every epoch.
        gaps: float64 [S, E, 3], `QUARTILES`; NaN in an epoch without sentences.
    """

    series: Series[Model]
    steps: np.ndarray
    gaps: np.ndarray


def view(source: Source) -> Difficulty | None:
    """Shows all groups."""
    return difficulty_of(models(source.runs[1:]))


def difficulty_of(models: Sequence[Model]) -> Difficulty | None:
    """Draws how hard the sentences were that models were trained with.

    Args:
        models: of a report.

    Returns:
        None where no model that is still there was trained with sentences.
    """
    series = series_of(models)
    courses = [_course(each) for each in series if any(map(_measured, each.all))]
    if not courses:
        return None
    looks, keys = looks_of(series), {key.name: key for key in legend(series)}
    figure, axes = panel()
    zero_line(axes)
    for course in courses:
        _draw(axes, course, looks[course.series.name])
    axes.set_xlim(left=0)
    axes.set_xlabel("training step")
    axes.set_ylabel("s(sentence) − s(caption)")
    return Difficulty(
        plot=Plot(_TITLE, svg(figure, "difficulty", "Gap of sentences to their captions by training step")),
        keys=[_key(course.series, keys[course.series.name]) for course in courses],
        artifacts=[model.artifact.path for course in courses for model in course.series.all if _measured(model)],
    )


def _measured(model: Model) -> bool:
    return bool(model.history) and all(name in model.history[0] for name in QUARTILES)


def _course(series: Series[Model]) -> _Course:
    """Margins of all models of a series, up to the last epoch that each of them reached."""
    histories = [model.history for model in series.all if model.history and _measured(model)]
    epochs = min(map(len, histories))
    gaps = np.array(
        [[[row[name] for name in QUARTILES] for row in history[:epochs]] for history in histories], dtype=np.float64
    )
    steps = np.array([row[STEPS] for row in histories[0][:epochs]])
    return _Course(series, steps.cumsum() - steps / 2, gaps)


def _draw(axes: Axes, course: _Course, look: Look) -> None:
    """Medians in a band between the quartiles, means over seeds; a single epoch reaches across its steps."""
    steps, gaps = course.steps, course.gaps
    if len(steps) == 1:
        steps, gaps = np.array([0, 2 * steps[0]]), gaps.repeat(2, axis=1)
    lines(axes, steps.tolist(), gaps[..., 1].tolist(), look)
    lower, median, upper = gaps.mean(axis=0).T
    axes.fill_between(steps, lower, upper, color=look.colour, alpha=_BAND, linewidth=0)
    axes.plot(course.steps, median[: len(course.steps)], "o", markersize=4, color=look.colour)


def _key(series: Series[Model], key: Key) -> Key:
    manifest = next(model.artifact.manifest for model in series.all if _measured(model))
    assert manifest is not None
    return replace(key, name=f"{key.name}: {manifest.settings['loss']['generator']} generator")
