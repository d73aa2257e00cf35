"""Series: the runs of a report that differ in nothing but their seed, and two series that are compared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from itrpipe.evaluation.metrics import RSUM
from itrpipe.evaluation.results import FULL
from itrpipe.evaluation.tables import Number, mean
from itrpipe.report.names import distinctions, model_title
from itrpipe.report.runs import EvaluatedRun, member_prefix
from itrpipe.training.settings import unread


@dataclass(frozen=True)
class Series:
    """Runs of one method and one backbone with equal settings, re-ranked alike.

    Attributes:
        name: for people: backbone, method, and as many of the differing settings as tell it apart.
        runs: of every seed; several of one seed when a model was trained again.
        differing: all settings in which it differs from other series of this backbone and method, by dotted key.
    """

    name: str
    runs: tuple[EvaluatedRun, ...]
    differing: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def first_run(self) -> EvaluatedRun:
        """Return one of the runs, for what all have in common."""
        return self.runs[0]

    @property
    def method(self) -> str:
        """Return the name without the backbone."""
        return self.name.removeprefix(f"{self.first_run.backbone}, ")

    def is_at_chance(self) -> bool:
        """Tell whether all runs are at chance."""
        return all(map(EvaluatedRun.is_at_chance, self.runs))

    @cached_property
    def run_of_seed(self) -> dict[int, EvaluatedRun]:
        """Return the newest run of every seed."""
        newest = {}
        for run in sorted(self.runs, key=lambda run: (run.seed, run.manifest.finished)):
            newest[run.seed] = run
        return newest

    def score(self, metric: str = RSUM) -> Number:
        """Return the mean of a metric over seeds; of one seed with its interval over images."""
        scores = []
        for run in self.run_of_seed.values():
            scores.append(Number.of(run.metrics[FULL][metric]))
        score = mean(scores)
        assert score is not None
        return score

    def rsum(self) -> float:
        """Return the mean RSum over seeds."""
        return self.score().value


class SeriesPair(NamedTuple):
    """A series behind the baseline that it is compared with, as differences are `second - first`."""

    baseline: Series
    series: Series

    def runs_by_seed(self) -> dict[int, tuple[EvaluatedRun, EvaluatedRun]]:
        """Return the runs of both by the seeds that they share; an untrained model is compared with every seed."""
        baselines = self.baseline.run_of_seed
        runs = self.series.run_of_seed
        if "untrained" in self.baseline.first_run.roles and len(baselines) == 1:
            baselines = dict.fromkeys(runs, *baselines.values())
        if "untrained" in self.series.first_run.roles and len(runs) == 1:
            runs = dict.fromkeys(baselines, *runs.values())
        return {seed: (baselines[seed], runs[seed]) for seed in baselines if seed in runs}


def series_of(runs: Sequence[EvaluatedRun]) -> list[Series]:
    """Group runs by method, backbones and settings, in the order of the first run of each series.

    A run whose members have different seeds makes a series alone, as does one of a removed model, whose settings are
    not known any more.
    """
    groups: dict[str, list[EvaluatedRun]] = {}
    titles, settings_of_groups = [], []
    for index, run in enumerate(runs):
        settings = _distinguishing_settings(run)
        key = str(index)
        if settings is not None and len({model.seed for model in run.members}) == 1:
            # The title of a run's method also says how it was re-ranked, which its models do not know.
            identity = [run.method, [model.method_name for model in run.members], settings]
            key = json.dumps(identity, sort_keys=True, default=str)
        if key not in groups:
            groups[key] = []
            titles.append(model_title(run.backbone, run.method))
            settings_of_groups.append(settings or {})
        groups[key].append(run)

    all_series = []
    distinguished = distinctions(titles, settings_of_groups)
    for title, group, (differing, parts) in zip(titles, groups.values(), distinguished, strict=True):
        more = len(differing) - len(parts)
        if more:
            parts.append(f"{more} more setting{'s' if more > 1 else ''}")
        if parts:
            title += f" ({', '.join(parts)})"
        all_series.append(Series(title, tuple(group), differing))
    return all_series


def _distinguishing_settings(run: EvaluatedRun) -> dict[str, Any] | None:
    """Return the settings that tell a run from others, by dotted key; None where one of its models was removed."""
    settings = {}
    for number, model in enumerate(run.members, 1):
        if model.artifact.manifest is None:
            return None
        if model.is_seed_elsewhere:
            continue  # the name of such a model says all
        skipped = unread(model.settings)
        for key, value in model.values.items():
            if key not in skipped:
                settings[f"{member_prefix(number)}{key}"] = value
    for key, departure in run.departures.items():
        settings[key] = departure.value
    return settings
