"""Names of backbones and methods for people, and the settings of trained models that no such name tells.

A model is named by its method and backbone, and its name tells nothing of what somebody set. So that no reader compares
unlike with like, the report says of every model what differs from `stages/*.toml`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from itrpipe.config import DATASET_SELECTORS, backbone_shown_as, conf_title, leaves
from itrpipe.features.declaration import GIVEN, is_given
from itrpipe.methods.contrastive.declaration import CHOICES, Contrastive
from itrpipe.methods.declaration import MethodSettings, methods
from itrpipe.report.chain import ChainArtifact
from itrpipe.storage.artifact import Manifest
from itrpipe.training.settings import unread

Declared = Callable[[Manifest], Mapping[str, Any]]
"""Gives what is declared of the configuration, backbone and dataset of an artifact; empty where they do not say."""
MOST_LISTED = 12
"""Settings of a run that the page lists; toy models differ in dozens."""
_TOLD_ELSEWHERE = {"method", "backbone", "features", "seed", "name", "split", "judges", "loss.teacher"}
"""Settings that runs are named by, or that the step asks for that reads an artifact."""
_PREFIXES = {"mine_negatives": "mining ", "synthesize": "sentences "}
"""Stage -> what its settings begin with in the departures of a model."""


def backbone_title(name: str) -> str:
    """Return a backbone as papers write it, with its variant: `scan-i2t` is `SCAN i2t`; given embeddings by name."""
    if is_given(name):
        return name.removeprefix(f"{GIVEN}-")
    parts = name.split("-")
    for end in range(len(parts), 0, -1):
        title = backbone_shown_as("-".join(parts[:end]))
        if title:
            return " ".join([title, *parts[end:]])
    return " ".join([parts[0].upper(), *parts[1:]])


def model_title(backbone: str, method: str) -> str:
    """Return the titles of a backbone and a method as one name; a method named after its backbone stands alone."""
    if method == backbone or method.startswith((f"{backbone} ", f"{backbone}, ")):
        return method
    return f"{backbone}, {method}"


def method_title(name: str) -> str:
    """Return what the declaration of `train` shows a configuration as: `first training` for that of the first."""
    return conf_title("train", name) or name.upper()


def loss_of(settings: Mapping[str, Any]) -> MethodSettings | None:
    """Return the options of the method of a trained model; None of a removed model or plug-in.

    Args:
        settings: of the trained model; empty when it was removed.
    """
    method = methods().get(settings.get("method", ""))  # given embeddings have none
    return None if method is None else method.model_construct(**settings.get("loss", {}))


def choices_of(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what the method of a trained model was put together from, see `Contrastive.choices`; often nothing."""
    loss = loss_of(settings)
    return loss.choices() if isinstance(loss, Contrastive) else {}


def title_by_choices(name: str, settings: Mapping[str, Any]) -> str:
    """Return the choices of a model as a name, where its configuration is that of the method itself; often empty.

    Args:
        name: of the configuration.
        settings: of the trained model.
    """
    if settings.get("method") != name:
        return ""
    return ", ".join(filter(None, choices_of(settings).values()))


@dataclass(frozen=True)
class Departure:
    """A setting that is not as declared.

    Attributes:
        value: it was made with.
        declared: by `stages/*.toml`.
    """

    value: Any
    declared: Any

    def __str__(self) -> str:
        return f"{value_text(self.value)} instead of {value_text(self.declared)}"


def departures(model: ChainArtifact, declared: Declared) -> dict[str, Departure]:
    """Return what is not as declared of a model and of the models, mined lists and sentences that it was trained with.

    Args:
        model: artifact of `train`.
        declared: settings by the declarations.

    Returns:
        By dotted key, the model's own first and of these its epochs; those of other artifacts with their kind before
        the key (`mining num_texts`, `first training epochs`), unless the model departs to the same value. Of removed
        artifacts nothing.
    """
    of_model = _departures_of(model, declared)
    collected = dict(sorted(of_model.items(), key=lambda item: item[0] != "epochs"))
    for artifact in reversed(list(model.chain())):
        prefix = _key_prefix(artifact, model)
        if artifact.path == model.path or prefix is None:
            continue
        for key, departure in _departures_of(artifact, declared).items():
            if key not in of_model or of_model[key].value != departure.value:
                collected.setdefault(f"{prefix}{key}", departure)
    return collected


def _departures_of(artifact: ChainArtifact, declared: Declared) -> dict[str, Departure]:
    """Return the departures that no name tells; none on a dataset of a user, which no declaration speaks of."""
    manifest = artifact.manifest
    if manifest is None or manifest.dataset not in DATASET_SELECTORS:
        return {}
    skipped = set(_TOLD_ELSEWHERE)
    if artifact.stage == "train":
        skipped |= unread(manifest.settings)
        loss = loss_of(manifest.settings)
        if isinstance(loss, Contrastive) and title_by_choices(manifest.conf, manifest.settings):
            for key in CHOICES:  # the title tells them
                skipped.add(f"loss.{key}")

    values = dict(leaves(manifest.settings))
    differing = {}
    for key, declared_value in leaves(declared(manifest)):
        # No declaration can name the files of given embeddings.
        if key in skipped or key.startswith("files."):
            continue
        # A setting that is newer than the artifact says nothing about it.
        if key in values and values[key] != declared_value:
            differing[key] = Departure(values[key], declared_value)
    return differing


def _key_prefix(artifact: ChainArtifact, model: ChainArtifact) -> str | None:
    """Return what stands before the keys of an artifact behind a model; None where its settings do not count."""
    if artifact.stage != "train" or artifact.manifest is None or model.manifest is None:
        return _PREFIXES.get(artifact.stage)
    backbone = artifact.manifest.settings["backbone"]
    title = method_title(artifact.manifest.conf)
    if backbone == model.manifest.settings["backbone"]:
        return f"{title} "
    return f"{backbone_title(backbone)} {title} "


def join_departures(departures_by_key: Mapping[str, Departure], most: int = MOST_LISTED) -> str:
    """Return departures as a list: `epochs 1 instead of 6, loss.alpha 0.4 instead of 0.3, 3 more`."""
    return join_some([f"{key} {departure}" for key, departure in departures_by_key.items()], most)


def distinctions(
    titles: Sequence[str], facts: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield for each of several things the facts in which things of its title differ, and as many as tell it apart.

    Args:
        titles: of the things.
        facts: of the things.
    """
    facts_by_title = defaultdict(list)
    for title, facts_of_one in zip(titles, facts, strict=True):
        if facts_of_one:
            facts_by_title[title].append(facts_of_one)
    for title, facts_of_one in zip(titles, facts, strict=True):
        rivals = facts_by_title[title]  # itself is one of them
        differing = {}
        for key, value in facts_of_one.items():
            if len({str(rival.get(key)) for rival in rivals}) > 1:
                differing[key] = value
        parts = []
        for key, value in differing.items():
            if len(rivals) > 1:
                parts.append(f"{key} {value_text(value)}")
                rivals = [rival for rival in rivals if str(rival.get(key)) == str(value)]
        yield differing, parts


def join_some(
    items: Sequence[str],
    most: int,
    separator: str = ", ",
) -> str:
    """Join the first of some items, and say how many more there are."""
    named = list(items[:most])
    if len(items) > most:
        named.append(f"{len(items) - most} more")
    return separator.join(named)


def value_text(value: Any) -> str:
    """Return a value as text; of files and folders of one machine only the name, and lists without brackets."""
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if value is None:
        return "none"
    if value == "":
        return "empty"
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name
    return str(value)
