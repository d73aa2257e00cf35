"""Series: runs that differ in nothing but their seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from itrpipe.config import leaves
from itrpipe.report.names import model_title, shown
from itrpipe.report.runs import Run, member_prefix
from itrpipe.training.settings import newer_defaults, unread

SEED = "seed"


@dataclass(frozen=True)
class Series:
    """Runs of one method and one backbone with equal settings, re-ranked alike.

    Attributes:
        name: for people: backbone, method, and of the settings in which it differs from series of the same as many as
            tell it apart.
        all: of every seed; several of one seed when a model was trained again.
        differing: all settings in which it differs from series of the same, by their dotted keys.
    """

    name: str
    all: tuple[Run, ...]
    differing: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def first(self) -> Run:
        """One of them, for what they have in common."""
        return self.all[0]

    @property
    def method(self) -> str:
        """The name without the backbone."""
        return self.name.removeprefix(f"{self.first.backbone}, ")


def by_seed(series: Series) -> dict[int, Run]:
    """The newest run of every seed."""
    ordered = sorted(series.all, key=lambda run: run.manifest.finished)
    return dict(sorted({run.seed: run for run in ordered}.items()))


def series_of(items: Sequence[Run]) -> list[Series]:
    """Groups by method, backbones and settings, in the order of the first of each group.

    Members with different seeds, and removed models, whose settings are not known any more, stay alone.
    """
    groups: dict[str, tuple[str, dict[str, Any], list[Run]]] = {}
    for index, item in enumerate(items):
        facts = _facts(item)
        title = model_title(item.backbone, item.method)
        groups.setdefault(_key(item, facts) or str(index), (title, facts or {}, []))[2].append(item)
    found = []
    for title, own, runs in groups.values():
        rivals = [facts for name, facts, _ in groups.values() if name == title and facts]
        differing = {key: value for key, value in own.items() if len({str(each.get(key)) for each in rivals}) > 1}
        parts = []
        for key, value in differing.items():
            if len(rivals) > 1:  # itself is one
                parts.append(f"{key} {shown(value)}")
                rivals = [facts for facts in rivals if str(facts.get(key)) == str(value)]
        more = len(differing) - len(parts)
        parts += [f"{more} more setting{'s' if more > 1 else ''}"] if more else []
        found.append(Series(f"{title} ({', '.join(parts)})" if parts else title, tuple(runs), differing))
    return found


def _key(item: Run, facts: dict[str, Any] | None) -> str | None:
    if facts is None or len({member.seed for member in item.members}) > 1:
        return None
    names = [member.method_name for member in item.members]
    # The title of a run's method also says how it was re-ranked, which its models do not know.
    return json.dumps([item.method, names, facts], sort_keys=True, default=str)


def _facts(item: Run) -> dict[str, Any] | None:
    """Settings of training and mining but the seed, by their dotted keys; None when a model was removed.

    Of the models that they were made from, what is not as declared.
    """
    facts: dict[str, Any] = {}
    for number, member in enumerate(item.members, 1):
        if member.artifact.manifest is None:
            return None
        mining = member.mining.manifest if member.mining else None
        prefix = member_prefix(number)
        settings = member.artifact.manifest.settings
        read = {key: value for key, value in _but_seed(settings).items() if key not in unread(settings)}
        facts |= {f"{prefix}{key}": value for key, value in read.items()}
        if mining is not None:
            facts |= {f"{prefix}mining {key}": value for key, value in _but_seed(mining.settings).items()}
    return facts | {key: each.value for key, each in item.departures.items()}


def _but_seed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Without settings that earlier versions lacked, where they have their defaults: these models are no others."""
    return {key: value for key, value in leaves(settings) if key != SEED and (key, value) not in newer_defaults()}
