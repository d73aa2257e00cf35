"""A study: what a second round gains in many settings, each against the strongest control of the same setting.

A setting is a backbone with its features, so many training images, a batch size, and whatever else the data were
prepared with. Several of them make a study.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from itrpipe.artifacts.files import BENCHMARKS, SECOND_ROUND
from itrpipe.config import leaves
from itrpipe.evaluation.bootstrap import Interval
from itrpipe.evaluation.claims import Difference, seed_interval, significances, verdict
from itrpipe.reporting.collect import Run
from itrpipe.reporting.departures import shown
from itrpipe.reporting.groups import Group
from itrpipe.reporting.measures import map_at_r, told_from_edits
from itrpipe.reporting.seeds import SeedComparison, by_seed, pairs_by_seed
from itrpipe.reporting.series import Series

IMAGES, BATCH = "training images", "batch"
TRAIN = "train"
RSUM, ORACLE = "RSum", "RSum, every true match"
I2T_MAP, T2I_MAP = "mAP@R, image to text", "mAP@R, text to image"
ACCURACY = "hard negatives told"
PERCENT: dict[str, Callable[[Run], float | None]] = {
    I2T_MAP: partial(map_at_r, "i2t"),
    T2I_MAP: partial(map_at_r, "t2i"),
    ACCURACY: lambda run: told_from_edits(run.figures(BENCHMARKS)),
}
"""Measures in percent, whose gains have intervals over seeds alone."""
MEASURES = (RSUM, ORACLE, *PERCENT)
"""What gains are measured in."""
_SIZES = frozenset(("train", "val", "test"))


@dataclass(frozen=True)
class Setting:
    """What a second round is tried in.

    Attributes:
        backbone: as papers write it.
        features: that it reads.
        factors: what differs among the settings of a study, with the training images and the batch size.
    """

    backbone: str
    features: str
    factors: tuple[tuple[str, Any], ...]

    @property
    def values(self) -> dict[str, Any]:
        """Factor -> its value."""
        return dict(self.factors)

    @property
    def ratio(self) -> float:
        """N/B: training images for each pair of a batch."""
        return self.values[IMAGES] / self.values[BATCH]


@dataclass(frozen=True)
class Gain:
    """What a method gains in one setting over the strongest of its controls there.

    Attributes:
        value: mean over seeds.
        interval: over seeds; of a single one over images, where these were resampled.
        seeds: how many.
        control: the strongest one, that with the smallest gain.
        differences: from every control, where test images were resampled.
        images: interval over images, likewise.
        significant: over every control, see `itrpipe.evaluation.claims`, among all differences of the study.
    """

    value: float
    interval: Interval | None
    seeds: int
    control: str
    differences: tuple[Difference, ...] = ()
    images: Interval | None = None
    significant: bool = False


@dataclass(frozen=True)
class Tried:
    """A method in a setting.

    Attributes:
        setting: that it was trained in.
        method: for people.
        gains: measure -> gain over the strongest control by that measure; those that were measured.
        runs: of it, by seed.
        told: what the model whose lists it learned from told of them before, see `itrpipe.analysis.second_round`; None
            of methods that learn from no lists.
    """

    setting: Setting
    method: str
    gains: Mapping[str, Gain]
    runs: Mapping[int, Run]
    told: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Study:
    """Everything that was tried.

    Attributes:
        tried: methods in settings, in the order of the settings.
        references: setting -> runs of round one and of controls, by the name of their series.
        ceilings: setting -> RSum that a perfect ranking may expect; settings whose true matches are known.
    """

    tried: Sequence[Tried]
    references: Mapping[Setting, Mapping[str, Mapping[int, Run]]]
    ceilings: Mapping[Setting, float]

    @property
    def primary(self) -> str:
        """What gains are judged in: every true match counts as right where these are known in all settings."""
        return ORACLE if all(ORACLE in each.gains for each in self.tried) else RSUM

    @property
    def settings(self) -> list[Setting]:
        """Those in which something was compared with a control, by backbone, data, size and batch."""
        return list(dict.fromkeys(each.setting for each in self.tried))

    @property
    def backbones(self) -> list[str]:
        """Their names, in the order of the runs."""
        return list(dict.fromkeys(each.backbone for each in self.settings))

    @property
    def methods(self) -> list[str]:
        """Their names, those first that were tried in the most settings."""
        return methods_of(self.tried)

    def name_of(self, setting: Setting) -> str:
        """A setting for people: images, batch, and what the data were not prepared with as in most settings."""
        values = setting.values
        counts = {key: Counter(each.values.get(key) for each in self.settings) for key in values}
        usual = {key: counted.most_common(1)[0][0] for key, counted in counts.items()}
        others = [
            f"{key} {value}" for key, value in values.items() if key not in (IMAGES, BATCH) and value != usual[key]
        ]
        return ", ".join([f"{values[IMAGES]:,} images", f"batch {values[BATCH]}", *others])

    def factors(self, backbone: str) -> dict[str, list[Any]]:
        """Factors that differ among the settings of a backbone, with their values in order."""
        found: dict[str, set[Any]] = {}
        for each in self.settings:
            if each.backbone == backbone:
                for key, value in each.factors:
                    found.setdefault(key, set()).add(value)
        return {key: ordered(values) for key, values in found.items() if len(values) > 1}

    def along(self, backbone: str, factor: str) -> list[Tried]:
        """What was tried with a backbone where every other factor has the value that it has most often."""
        own = [each for each in self.tried if each.setting.backbone == backbone]
        counts: dict[str, Counter[Any]] = {}
        for setting in dict.fromkeys(each.setting for each in own):
            for key, value in setting.factors:
                counts.setdefault(key, Counter())[value] += 1
        usual = {key: counted.most_common(1)[0][0] for key, counted in counts.items() if key != factor}
        return [each for each in own if all(each.setting.values.get(key) == value for key, value in usual.items())]


def methods_of(tried: Iterable[Tried]) -> list[str]:
    """Their names, those first that were tried in the most settings."""
    return [method for method, _ in Counter(each.method for each in tried).most_common()]


def study_of(groups: Sequence[Group], images: Mapping[str, int], ceilings: Mapping[str, float]) -> Study | None:
    """What was tried in several settings.

    Args:
        groups: runs by test set.
        images: of the training split, by the name of the dataset's artifact; those that were removed are left out.
        ceilings: RSum that a perfect ranking may expect on the test split, likewise, where all true matches are known.

    Returns:
        None where there is one setting only.
    """
    varied = _varied([_prepared(group.runs[0]) for group in groups])
    tried: list[Tried] = []
    references: dict[Setting, dict[str, dict[int, Run]]] = {}
    highest: dict[Setting, float] = {}
    for group in groups:
        prepared = group.runs[0].prepare.name
        if prepared not in images:
            continue
        for series in group.series:
            first = series.first
            if series.known and len(first.members) == 1 and not first.rerank:
                setting = _setting(first, images[prepared], varied)
                highest |= {setting: ceilings[prepared]} if prepared in ceilings else {}
                if first.is_baseline or first.is_control:
                    references.setdefault(setting, {})[series.name] = by_seed(series)
        for name in dict.fromkeys(id(each.series) for each in group.compared):
            own = [each for each in group.compared if id(each.series) == name]
            first = own[0].series.first
            setting = _setting(first, images[prepared], varied)
            fair = [each for each in own if _setting(each.reference.first, images[prepared], varied) == setting]
            # Round one alone is no control: it was trained for one round.
            if any(each.is_controlled for each in fair):
                rivals = [
                    each for each in group.series if _is_rival(each, own[0].series, setting, images[prepared], varied)
                ]
                tried.append(Tried(setting, _told_apart(own[0].series, rivals), _gains(fair), by_seed(own[0].series)))
    told = {
        run.members[0].artifact.path: figures
        for known in references.values()
        for runs in known.values()
        for run in runs.values()
        if (figures := run.figures(SECOND_ROUND)) is not None
    }
    tried = [replace(each, told=_told(each, told)) for each in _judged(tried)]
    found = Study(sorted(tried, key=lambda each: _place(each.setting)), references, highest)
    return found if len(found.settings) > 1 else None


def _is_rival(other: Series[Run], series: Series[Run], setting: Setting, images: int, varied: Sequence[str]) -> bool:
    """Whether another series has the same method in the same setting."""
    first = other.first
    alike = other is not series and other.known and first.method == series.first.method
    return alike and len(first.members) == 1 and _setting(first, images, varied) == setting


def _told_apart(series: Series[Run], rivals: Sequence[Series[Run]]) -> str:
    """The method, with the settings in which it differs from others of its name in the same setting."""
    differing = [
        f"{key} {shown(value)}"
        for key, value in series.differing.items()
        if any(str(other.differing.get(key)) != str(value) for other in rivals)
    ]
    return f"{series.first.method} ({', '.join(differing)})" if differing else series.first.method


def ordered(values: Iterable[Any]) -> list[Any]:
    """Different values of a factor, numbers first."""
    return sorted(
        set(values),
        key=lambda each: (not isinstance(each, int | float), each if isinstance(each, int | float) else 0, str(each)),
    )


def _told(tried: Tried, told: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Of the first seed whose mining model was evaluated."""
    for run in tried.runs.values():
        mining = run.members[0].mining
        teacher = None if mining is None else mining.input(TRAIN)
        if teacher is not None and teacher.path in told:
            return told[teacher.path]
    return None


def _place(setting: Setting) -> tuple[Any, ...]:
    values = setting.values
    others = [value for key, value in setting.factors if key not in (IMAGES, BATCH)]
    return (setting.backbone, setting.features, *map(str, others), values[IMAGES], values[BATCH])


def _prepared(run: Run) -> dict[str, Any]:
    """Settings of the data by dotted key, those that an earlier version did not have as they are declared."""
    manifest = run.prepare.manifest
    if manifest is None:
        return {}
    return dict(leaves(run.declared(manifest) or {})) | dict(leaves(manifest.settings))


def _varied(prepared: Iterable[Mapping[str, Any]]) -> list[str]:
    """Settings of the data, by dotted key, that are not the same in all of them; sizes count as images."""
    values: dict[str, set[str]] = {}
    for settings in prepared:
        for key, value in settings.items():
            if key not in _SIZES:
                values.setdefault(key, set()).add(str(value))
    return [key for key, found in values.items() if len(found) > 1]


def _setting(run: Run, images: int, varied: Sequence[str]) -> Setting:
    member = run.members[0]
    assert member.artifact.manifest is not None
    trained, prepared = member.artifact.manifest.settings, _prepared(run)
    used = round(trained.get("train_share", 1.0) * images)
    factors = [(IMAGES, used), (BATCH, trained.get("batch_size", 0)), *((key, prepared.get(key)) for key in varied)]
    return Setting(run.backbone, run.settings["features"], tuple(factors))


def _gains(compared: Sequence[SeedComparison]) -> dict[str, Gain]:
    found = {RSUM: _smallest(compared, [each.own["rsum"] for each in compared])}
    oracle = [each.oracle["rsum"] for each in compared if each.oracle]
    if len(oracle) == len(compared):
        found[ORACLE] = _smallest(compared, oracle)
    for measure, read in PERCENT.items():
        differences = [_differences(each, read) for each in compared]
        if all(differences):
            number = int(np.argmin([np.mean(each) for each in differences]))
            single, control = differences[number], compared[number].reference.method
            interval = seed_interval(single, compared[number].own["rsum"].level) if len(single) > 1 else None
            found[measure] = Gain(float(np.mean(single)), interval, len(single), control)
    return found


def _smallest(compared: Sequence[SeedComparison], differences: Sequence[Difference]) -> Gain:
    number = int(np.argmin([each.value for each in differences]))
    least, control = differences[number], compared[number].reference.method
    return Gain(least.value, least.seeds or least.images, least.count, control, tuple(differences), least.images)


def _judged(tried: Sequence[Tried]) -> list[Tried]:
    """Marks the gains that are significant, each measure by itself; the study was made to answer for all settings."""
    found = list(tried)
    for measure in (RSUM, ORACLE):
        single = [each for one in found if measure in one.gains for each in one.gains[measure].differences]
        marks = iter(significances(single))
        for place, one in enumerate(found):
            if measure in one.gains:
                gain = one.gains[measure]
                marked = [replace(each, significant=next(marks)) for each in gain.differences]
                gain = replace(gain, differences=tuple(marked), significant=verdict(marked) == "better")
                found[place] = replace(one, gains={**one.gains, measure: gain})
    return found


def _differences(compared: SeedComparison, read: Callable[[Run], float | None]) -> list[float]:
    """Of runs with the same seed; empty where one has no such number."""
    runs = pairs_by_seed(compared.reference, compared.series)
    pairs = [(read(own), read(other)) for other, own in runs.values()]
    known = [one - other for one, other in pairs if one is not None and other is not None]
    return known if len(known) == len(pairs) else []
