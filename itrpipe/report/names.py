"""Names of backbones and methods for people, and the settings of trained models that no such name tells.

A model is named by its method and backbone, and its name tells nothing of what somebody set. So that no reader compares
unlike with like, the report says of every model what differs from `stages/*.toml`.
"""

from __future__ import annotations

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


def backbone_title(name: str) -> str:
    """A backbone as papers write it, with its variant: `scan-i2t` is `SCAN i2t`; the name of given embeddings."""
    if is_given(name):
        return name.removeprefix(f"{GIVEN}-")
    parts = name.split("-")
    for end in range(len(parts), 0, -1):
        if title := backbone_shown_as("-".join(parts[:end])):
            return " ".join([title, *parts[end:]])
    return " ".join([parts[0].upper(), *parts[1:]])


def model_title(backbone: str, method: str) -> str:
    """Titles of a backbone and a method as one name; a method that bears the name of its backbone stands alone."""
    named_after_it = method == backbone or method.startswith((f"{backbone} ", f"{backbone}, "))
    return method if named_after_it else f"{backbone}, {method}"


def method_title(name: str) -> str:
    """Return what the declaration of `train` shows a configuration as: `first training` for that of the first."""
    return conf_title("train", name) or name.upper()


def loss_of(settings: Mapping[str, Any]) -> MethodSettings | None:
    """Return the options of the method of a trained model; None of a removed model or plug-in.

    Args:
        settings: of the trained model; empty when it was removed.
    """
    declared = methods().get(settings.get("method", ""))  # given embeddings have none
    return None if declared is None else declared.model_construct(**settings.get("loss", {}))


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
    return ", ".join(choice for choice in choices_of(settings).values() if choice)


Declared = Callable[[Manifest], Mapping[str, Any]]
"""Gives what is declared of the configuration, backbone and dataset of an artifact; empty where they do not say."""
EPOCHS = "epochs"
MOST_LISTED = 12
"""Settings of a run that the page lists; toy models differ in dozens."""
_TOLD = {"method", "backbone", "features", "seed", "name", "split", "judges", "loss.teacher"}
"""Settings that runs are named by, or that the step asks for that reads an artifact."""
_FILES = "files."
"""Begins the keys of the files of given embeddings, which no declaration can name."""
_TRAIN = "train"
_PREFIXES = {"mine_negatives": "mining ", "synthesize": "sentences "}


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
        return f"{shown(self.value)} instead of {shown(self.declared)}"


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
    own = _of(model, declared)
    found = dict(sorted(own.items(), key=lambda item: item[0] != EPOCHS))
    for artifact in reversed(list(model.chain())):
        kind = _kind(artifact, model)
        if artifact.path == model.path or kind is None:
            continue
        for key, each in _of(artifact, declared).items():
            if key not in own or own[key].value != each.value:
                found.setdefault(f"{kind}{key}", each)
    return found


def listed(found: Mapping[str, Departure], most: int = MOST_LISTED) -> str:
    """The departures as a list: `epochs 1 instead of 6, loss.alpha 0.4 instead of 0.3, 3 more`."""
    return some([f"{key} {each}" for key, each in found.items()], most)


def distinctions(
    titles: Sequence[str], facts: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield for each of several things the facts in which things of its title differ, and as many as tell it apart.

    Args:
        titles: of the things.
        facts: of the things.
    """
    for title, own in zip(titles, facts, strict=True):
        rivals = [other for name, other in zip(titles, facts, strict=True) if name == title and other]
        differing, parts = {}, []
        for key, value in own.items():
            if len({str(each.get(key)) for each in rivals}) > 1:
                differing[key] = value
        for key, value in differing.items():
            if len(rivals) > 1:  # itself is one
                parts.append(f"{key} {shown(value)}")
                rivals = [each for each in rivals if str(each.get(key)) == str(value)]
        yield differing, parts


def some(items: Sequence[str], most: int, apart: str = ", ") -> str:
    """Join the first of some items, and say how many more there are."""
    named = list(items[:most])
    if len(items) > most:
        named.append(f"{len(items) - most} more")
    return apart.join(named)


def shown(value: Any) -> str:
    """Return a value as text; of files and folders of one machine only the name, and lists without brackets."""
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if value == "":
        return "empty"
    if isinstance(value, str) and Path(value).is_absolute():
        return Path(value).name
    return "none" if value is None else str(value)


def _of(artifact: ChainArtifact, declared: Declared) -> dict[str, Departure]:
    """Return departures that no name tells, on a dataset that declarations speak of; on others its owner declares."""
    manifest = artifact.manifest
    if manifest is None or manifest.dataset not in DATASET_SELECTORS:
        return {}
    skipped = set(_TOLD)
    if artifact.stage == _TRAIN:
        skipped |= unread(manifest.settings)
        loss = loss_of(manifest.settings)
        if isinstance(loss, Contrastive) and title_by_choices(manifest.conf, manifest.settings):  # which tells them
            skipped |= {f"loss.{key}" for key in CHOICES}
    given = dict(leaves(manifest.settings))
    found = {}
    for key, value in leaves(declared(manifest)):
        # A setting that is newer than the artifact says nothing about it.
        if key in given and key not in skipped and not key.startswith(_FILES) and given[key] != value:
            found[key] = Departure(given[key], value)
    return found


def _kind(artifact: ChainArtifact, model: ChainArtifact) -> str | None:
    """Return what stands before the keys of an artifact behind a model; None where its settings do not count."""
    if artifact.stage != _TRAIN or artifact.manifest is None or model.manifest is None:
        return _PREFIXES.get(artifact.stage)
    backbone, title = artifact.manifest.settings["backbone"], method_title(artifact.manifest.conf)
    if backbone == model.manifest.settings["backbone"]:
        return f"{title} "
    return f"{backbone_title(backbone)} {title} "
