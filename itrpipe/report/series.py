"""Series: runs that differ in nothing but their seed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from itrpipe.config import leaves
from itrpipe.report.names import Departure, model_title, shown
from itrpipe.report.runs import Run, member_prefix
from itrpipe.training.settings import newer_defaults, unread

SEED = "seed"


@dataclass(frozen=True)
class Series:
    """Runs of one method and one backbone with equal settings, re-ranked alike.

    Attributes:
        name: for people: backbone, method, and of the settings in which it differs from series of the same as many as
            tell it apart; where none of these departs from the declarations and another does, also that.
        all: of every seed; several of one seed when a model was trained again.
        known: whether their settings are; those of removed models are not.
        differing: all settings in which it differs from series of the same, by their dotted keys.
        departures: all settings that are not as declared.
    """

    name: str
    all: tuple[Run, ...]
    known: bool
    differing: Mapping[str, Any] = field(default_factory=dict, compare=False)
    departures: Mapping[str, Departure] = field(default_factory=dict, compare=False)

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
    groups: dict[str, list[Run]] = {}
    known: dict[str, dict[str, Any] | None] = {}
    for index, item in enumerate(items):
        facts = _facts(item)
        key = _key(item, facts) or str(index)
        groups.setdefault(key, []).append(item)
        known.setdefault(key, facts)
    named = _names([(group[0], known[key]) for key, group in groups.items()])
    return [
        Series(name, tuple(group), known[key] is not None, differing, group[0].departures)
        for (name, differing), (key, group) in zip(named, groups.items(), strict=True)
    ]


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


def _names(items: Sequence[tuple[Run, dict[str, Any] | None]]) -> list[tuple[str, dict[str, Any]]]:
    """Backbone and method, with the settings that tell series of the same backbone and method apart."""
    plain = [model_title(item.backbone, item.method) for item, _ in items]
    names = []
    for name, (item, own) in zip(plain, items, strict=True):
        rivals = [facts for (_, facts), theirs in zip(items, plain, strict=True) if theirs == name]
        known = [facts for facts in rivals if facts is not None]
        keys = [key for key in own or {} if len({str(facts.get(key)) for facts in known}) > 1]
        differing = {key: own[key] for key in keys if own}
        # A name that the user has given says as much; of two models of one name the settings tell which is which.
        named = all(member.named for member in item.members)
        details = _details(differing, known, {} if named else item.departures) if differing or not named else ""
        names.append((f"{name} ({details})" if details else name, differing))
    return names


def _details(
    differing: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]], departures: Mapping[str, Departure]
) -> str:
    """The first of the settings, as many as no rival shares all of, and one that departs; how many more there are."""
    chosen: dict[str, Any] = {}
    for key, value in differing.items():
        chosen[key] = value
        rivals = [facts for facts in rivals if str(facts.get(key)) == str(value)]
        if len(rivals) < 2:  # itself is one
            break
    if departures and not chosen.keys() & departures.keys():
        first = next(iter(departures))
        chosen[first] = departures[first].value
    more = len(differing.keys() | departures.keys()) - len(chosen)
    parts = [f"{key} {shown(value)}" for key, value in chosen.items()]
    return ", ".join(parts) + (f", {more} more setting{'s' if more > 1 else ''}" if more else "")
