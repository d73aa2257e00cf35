"""What a second round gains over the strongest control of the same setting, along everything that was varied."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from itrpipe.evaluation.claims import seed_interval
from itrpipe.reporting.collect import Run
from itrpipe.reporting.comparisons import interval_text, signed
from itrpipe.reporting.measures import oracle_rsum, rsum
from itrpipe.reporting.plots import Key, Plot, legend_of, looks_by_name
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.sections.study.plots import REASONS, gain_plots, reason_plots
from itrpipe.reporting.sections.study.rules import rule_table
from itrpipe.reporting.study import ACCURACY, I2T_MAP, ORACLE, RSUM, T2I_MAP, Study, Tried, methods_of, study_of
from itrpipe.reporting.tables import DASH, Cell, Row, Table

TITLE, ORDER = "When a second round pays", 5
READS = ()
TRAIN = "train"
_CAPTIONS = {
    RSUM: "Gain in RSum over the strongest control of the same setting, with its intervals over seeds and over test "
    "images. Bold: significant against every control. The last row has the interval over settings. The strongest "
    "of several controls is strong by chance, too, so that a mean somewhat below zero is no loss.",
    ORACLE: "The same with every true match counted as right.",
    I2T_MAP: "Gain in mAP@R of the captions that are true of an image, in percentage points, with its interval over "
    "seeds. Recall asks for the first true match; mAP@R asks whether all R of them are the first R.",
    T2I_MAP: "The same of the images that a caption is true of.",
    ACCURACY: "Gain in the percentage of edited captions that score below their caption (--benchmark scenes), with its "
    "interval over seeds.",
}
_HEADROOM = ("RSum", "a perfect ranking", "every true match", "a perfect ranking, so")
_OF_HEADROOM = (
    "Of the best control, beside what a perfect ranking may expect. Where only the own image or caption counts as "
    "right, that is less than 600: of several images that a caption is true of, its own is the first no more often "
    "than by chance. A model that prefers what tells more can be above it. Names say what differs from most settings."
)
PERFECT = 600.0
ALL = "mean of all settings"
_SPOKEN_OF = 3
"""Settings in which a method was tried that the answer names."""


@dataclass(frozen=True)
class StudyView:
    """The section.

    Attributes:
        study: what was tried.
        said: what was found, in sentences.
        keys: how each method is drawn.
        panels: backbone -> plots of gains along each factor.
        tables: backbone -> its headroom, and a table of gains for each measure.
        reason_keys, reasons: what round one told beforehand, by backbone; those whose mining models were evaluated.
        rules: how often single numbers of that told the sign of the gain in settings they were not fitted to; None
            where too few were tried.
    """

    study: Study
    said: list[str]
    keys: list[Key]
    panels: dict[str, list[Plot]]
    tables: dict[str, list[Table]]
    reason_keys: list[Key]
    reasons: list[Plot]
    rules: Table | None


def view(source: Source) -> StudyView | None:
    """Shown where methods were compared with controls in two settings or more."""
    images = {
        name: len(library.split(TRAIN).image_ids)
        for name, library in source.libraries.items()
        if library is not None and TRAIN in library.splits
    }
    study = study_of(source.groups, images, _ceilings(source))
    if study is None:
        return None
    looks, reasons = looks_by_name(study.methods), looks_by_name(list(REASONS))
    return StudyView(
        study=study,
        said=[said_of(study, backbone, source.options.interval_level) for backbone in study.backbones],
        keys=legend_of(looks),
        panels={backbone: gain_plots(study, backbone, looks) for backbone in study.backbones},
        tables=_tables(study, source.options.interval_level),
        reason_keys=legend_of(reasons),
        reasons=[plot for backbone in study.backbones for plot in reason_plots(study, backbone, reasons)],
        rules=rule_table(study),
    )


def _tables(study: Study, level: float) -> dict[str, list[Table]]:
    """Backbone -> its tables; what they mean stands at the first of each kind alone."""
    found, told = {}, set()
    for backbone in study.backbones:
        found[backbone] = []
        for table in (headroom(study, backbone), *gain_tables(study, backbone, level)):
            found[backbone].append(replace(table, caption="") if table.caption in told else table)
            told.add(table.caption)
    return found


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
                study.name_of(setting),
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


def said_of(study: Study, backbone: str, level: float) -> str:
    """How many gains are significant, then what the methods that were tried in most settings gain over these.

    Args:
        study: all of it.
        backbone: that is spoken of.
        level: of the interval over settings.
    """
    own = [each for each in study.tried if each.setting.backbone == backbone]
    gains = {
        method: [each.gains[study.primary].value for each in own if each.method == method] for method in methods_of(own)
    }
    sure = sum(each.gains[study.primary].significant for each in own)
    settings = len({each.setting for each in own})
    where = f"{settings} settings" if settings > 1 else "one setting"
    many = "no gain" if not sure else "one gain" if sure == 1 else f"{sure} gains"
    counted = ", every true match counted as right" if study.primary == ORACLE else ""
    fewest = min(_SPOKEN_OF, max(map(len, gains.values())))
    told = {method: found for method, found in gains.items() if len(found) >= fewest}
    parts = [_mean_said(method, told[method], level) for method in sorted(told, key=lambda each: -np.mean(told[each]))]
    rounds = f"of {len(own)} second rounds" if len(own) > 1 else "of one second round"
    return (
        f"{backbone}: {rounds} in {where}, {many} over the strongest control "
        f"{'are' if sure > 1 else 'is'} significant. Mean gain in RSum{counted}: {'; '.join(parts)}."
    )


def _mean_said(method: str, gains: Sequence[float], level: float) -> str:
    if len(gains) == 1:
        return f"{method} {signed(gains[0])} (one setting)"
    up = f"above zero in {sum(gain > 0 for gain in gains)} of {len(gains)} settings"
    between = interval_text(seed_interval(gains, level))
    return f"{method} {signed(float(np.mean(gains)))} ({between} over settings, {up})"


def gain_tables(study: Study, backbone: str, level: float) -> list[Table]:
    """Settings by methods, one table for each measure, with the mean over settings in its last row.

    Args:
        study: all of it.
        backbone: that the tables are of.
        level: of the interval over settings.
    """
    own = [each for each in study.tried if each.setting.backbone == backbone]
    methods, found = methods_of(own), []
    for measure, caption in _CAPTIONS.items():
        gains = {(each.setting, each.method): each for each in own if measure in each.gains}
        settings = list(dict.fromkeys(setting for setting, _ in gains))
        rows = [
            Row(study.name_of(setting), [_cell(method, gains.get((setting, method)), measure) for method in methods])
            for setting in settings
        ]
        if len(rows) > 1:
            values = [
                [gains[setting, method].gains[measure].value for setting in settings if (setting, method) in gains]
                for method in methods
            ]
            rows.append(Row(ALL, [_mean_cell(method, own, level) for method, own in zip(methods, values, strict=True)]))
        if rows:
            found.append(Table(f"{backbone}: {measure}", methods, rows, caption))
    return found


def _mean_cell(method: str, gains: Sequence[float], level: float) -> Cell:
    """The mean over settings with its interval over these, Student's t."""
    if len(gains) < 2:
        return Cell(method, DASH)
    found = seed_interval(gains, level)
    return Cell(method, signed(found.value), interval_text(found))


def _cell(method: str, tried: Tried | None, measure: str) -> Cell:
    if tried is None:
        return Cell(method, DASH)
    gain = tried.gains[measure]
    over_seeds = f" {interval_text(gain.interval)}" if gain.interval and gain.seeds > 1 else ""
    parts = [f"{gain.seeds} seed{'s' if gain.seeds > 1 else ''}{over_seeds}"]
    parts += [f"images {interval_text(gain.images)}"] if gain.images else []
    return Cell(method, signed(gain.value), "; ".join(parts), gain.significant)
