"""What a second round gains over the strongest control of the same setting, along everything that was varied."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import interval_text, signed
from itrpipe.reporting.measures import oracle_rsum, rsum
from itrpipe.reporting.plots import Key, Look, Plot, legend_of, looks_by_name, panel, plain_ticks, point, svg, zero_line
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.study import (
    ACCURACY,
    BATCH,
    ORACLE,
    RSUM,
    Gain,
    Setting,
    Study,
    Tried,
    study_of,
)
from itrpipe.reporting.tables import DASH, Cell, Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE, ORDER = "When a second round pays", 5
READS = ()
TRAIN = "train"
RATIO = "training images for each pair of a batch"
_CAPTIONS = {
    RSUM: "Gain in RSum over the strongest control of the same setting, with its interval over seeds, of one seed over "
    "test images. Bold: significant against every control.",
    ORACLE: "The same with every true match counted as right.",
    ACCURACY: "Gain in the percentage of edited captions that score below their caption (--benchmark scenes), with its "
    "interval over seeds.",
}
_HEADROOM = ("RSum", "a perfect ranking", "every true match", "a perfect ranking, so")
_OF_HEADROOM = (
    "Of the best control, beside what a perfect ranking may expect. Where only the own image or caption counts as "
    "right, that is less than 600: of several images that a caption is true of, its own is the first no more often "
    "than by chance. A model that prefers what tells more can be above it."
)
PERFECT = 600.0
_LARGEST_STEP = 3
"""Values of a factor from this ratio on stand on a logarithmic axis."""


@dataclass(frozen=True)
class StudyView:
    """The section.

    Attributes:
        study: what was tried.
        said: what was found, in sentences.
        keys: how each method is drawn.
        panels: backbone -> measure -> plots along each factor.
        tables: backbone -> a table for each measure.
    """

    study: Study
    said: list[str]
    keys: list[Key]
    panels: dict[str, list[Plot]]
    tables: dict[str, list[Table]]


def view(source: Source) -> StudyView | None:
    """Shown where methods were compared with controls in two settings or more."""
    images = {
        name: len(library.split(TRAIN).image_ids) for name, library in source.libraries.items() if library is not None
    }
    study = study_of(source.groups, images, _ceilings(source))
    if study is None:
        return None
    looks = looks_by_name(study.methods)
    return StudyView(
        study=study,
        said=[said_of(study, backbone) for backbone in study.backbones],
        keys=legend_of(looks),
        panels={backbone: gain_plots(study, backbone, looks) for backbone in study.backbones},
        tables={backbone: [headroom(study, backbone), *gain_tables(study, backbone)] for backbone in study.backbones},
    )


def _ceilings(source: Source) -> dict[str, float]:
    """Of the test sets whose true matches are known."""
    found = {}
    for run in (group.runs[0] for group in source.groups):
        gallery = source.gallery(run, run.settings["split"])
        if gallery is not None and gallery.truth is not None:
            found[run.prepare.name] = gallery.truth.ceiling(gallery.split.caption_image)
    return found


def headroom(study: Study, backbone: str) -> Table:
    """How far the best control of each setting is below what could be reached at all."""
    rows = []
    for setting in (each for each in study.settings if each.backbone == backbone):
        known = study.references.get(setting, {})
        best, true = (_best(known, measure) for measure in (rsum, oracle_rsum))
        values = (best, study.ceilings.get(setting), true, None if true is None else PERFECT)
        rows.append(
            Row(
                setting.name,
                [
                    Cell(name, DASH if value is None else f"{value:.1f}")
                    for name, value in zip(_HEADROOM, values, strict=True)
                ],
            )
        )
    return Table(f"{backbone}: headroom", list(_HEADROOM), rows, _OF_HEADROOM)


def _best(series: Mapping[str, Mapping[int, Run]], measure: Callable[[Run], float | None]) -> float | None:
    """The highest mean over seeds; None where a run has no such number."""
    values = [[measure(run) for run in runs.values()] for runs in series.values()]
    means = [sum(filter(None, each)) / len(each) for each in values if None not in each]
    return max(means, default=None) if len(means) == len(values) else None


def said_of(study: Study, backbone: str) -> str:
    """In how many settings which method gained, in one sentence."""
    own = [each for each in study.tried if each.setting.backbone == backbone]
    parts = []
    for method in dict.fromkeys(each.method for each in own):
        gains = [each.gains[RSUM] for each in own if each.method == method]
        up, sure = sum(each.value > 0 for each in gains), sum(each.significant for each in gains)
        best = max(gains, key=lambda each: each.value)
        significant = f", {sure} significantly" if sure else ""
        parts.append(f"{method} in {up} of {len(gains)}{significant} (at best {signed(best.value)})")
    return f"{backbone}, RSum above the strongest control: {'; '.join(parts)}."


def gain_plots(study: Study, backbone: str, looks: dict[str, Look]) -> list[Plot]:
    """For each measure a plot along each factor that varies, and one over the images for each pair of a batch."""
    plots = []
    measures = [name for name in _CAPTIONS if any(name in each.gains for each in study.tried)]
    slug = "".join(filter(str.isalnum, backbone.lower()))
    for measure in measures:
        for factor in study.factors(backbone):
            tried = [each for each in study.along(backbone, factor) if measure in each.gains]
            name = f"study-{slug}-{measure[:6].strip()}-{factor.replace(' ', '-')}".replace(" ", "").replace(",", "")
            if len({each.setting for each in tried}) > 1:
                plots.append(_plot(name, measure, factor, tried, lambda each, key=factor: each.values[key], looks))
        tried = [each for each in study.tried if each.setting.backbone == backbone and measure in each.gains]
        if len({each.setting.values[BATCH] for each in tried}) > 1:
            name = f"study-{slug}-{measure[:6].strip()}-ratio".replace(",", "").replace(" ", "")
            plots.append(_plot(name, measure, RATIO, tried, lambda each: each.ratio, looks))
    return plots


def gain_tables(study: Study, backbone: str) -> list[Table]:
    """Settings by methods, one table for each measure."""
    own = [each for each in study.tried if each.setting.backbone == backbone]
    methods = list(dict.fromkeys(each.method for each in own))
    found = []
    for measure, caption in _CAPTIONS.items():
        gains = {(each.setting, each.method): each for each in own if measure in each.gains}
        settings = list(dict.fromkeys(setting for setting, _ in gains))
        rows = [
            Row(setting.name, [_cell(method, gains.get((setting, method)), measure) for method in methods])
            for setting in settings
        ]
        if rows:
            found.append(Table(f"{backbone}: {measure}", methods, rows, caption))
    return found


def _cell(method: str, tried: Tried | None, measure: str) -> Cell:
    if tried is None:
        return Cell(method, DASH)
    gain = tried.gains[measure]
    return Cell(
        method, signed(gain.value), "" if gain.interval is None else interval_text(gain.interval), gain.significant
    )


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
    values = sorted({place(each.setting) for each in tried})
    numeric = all(isinstance(value, int | float) for value in values)
    logarithmic = numeric and min(values) > 0 and max(values) / min(values) > _LARGEST_STEP
    methods = list(dict.fromkeys(each.method for each in tried))
    for number, method in enumerate(methods):
        own = sorted((each for each in tried if each.method == method), key=lambda each: place(each.setting))
        aside = (number - (len(methods) - 1) / 2) * 0.012
        at = [_shifted(place(each.setting), values, aside, logarithmic, numeric) for each in own]
        _points(axes, at, [each.gains[measure] for each in own], looks[method], joined=factor != RATIO)
    if logarithmic:
        axes.set_xscale("log")
        plain_ticks(axes, values if len(values) < 8 else values[:: math.ceil(len(values) / 7)])
    elif numeric:
        axes.set_xticks(values, [f"{value:g}" for value in values])
    else:
        axes.set_xticks(range(len(values)), list(map(str, values)))
    axes.set_xlabel(f"{factor} (log scale)" if logarithmic else factor)
    axes.set_ylabel(f"gain in {'percentage points' if measure == ACCURACY else 'RSum'}")
    title = f"{measure}, by {factor}"
    return Plot(title, svg(figure, name, f"{title}: gain over the strongest control"))


def _shifted(value: Any, values: Sequence[Any], aside: float, logarithmic: bool, numeric: bool) -> float:
    """A place on the axis, a little aside so that intervals of several methods do not hide each other."""
    if not numeric:
        return values.index(value) + aside * len(values)
    if logarithmic:
        return value * (max(values) / min(values)) ** aside
    return value + aside * ((max(values) - min(values)) or 1)


def _points(axes: Axes, at: Sequence[float], gains: Sequence[Gain], look: Look, *, joined: bool) -> None:
    if joined:
        axes.plot(at, [each.value for each in gains], **look.line())
    for x, each in zip(at, gains, strict=True):
        point(axes, x, each.interval, each.value, look, filled=each.significant)
