"""Named models: what `itrpipe train --name` was told is remembered, and `--model` stands for it in other commands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from itrpipe.cli.datasets import whole_file
from itrpipe.config import COMMAND_LINE
from itrpipe.datasets.definition import (
    DEFINITION,
    DatasetDefinition,
    ModelDefinition,
    check_name,
    load_definition,
    redefine,
)
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN
from itrpipe.pipeline.planning import EVERYWHERE, Override, scoped_override
from itrpipe.storage.artifact import folders_in
from itrpipe.training.settings import Model, TrainExecution

NAMING = ("backbone", "features", "seed")
"""Settings by which every stage names the model that it reads."""
_FILES = ("initial", "model", "text", "tokenizer", "vision", "weights")
"""Last parts of keys whose values may be files or folders."""
_LOSS = "loss."


@dataclass(frozen=True)
class NamedModel:
    """A model by its name.

    Attributes:
        name: of it.
        dataset: that it is trained on.
        definition: what it is.
        typed: keys of its settings that the command itself gives, as messages say.
    """

    name: str
    dataset: str
    definition: ModelDefinition
    typed: frozenset[str] = frozenset()

    @property
    def method(self) -> str:
        """Configuration of `train`."""
        return self.definition.method

    @property
    def backbone(self) -> str:
        """Its backbone, by the canonical name."""
        return Model.defined_by(self.definition, 0).backbone

    @property
    def naming(self) -> dict[str, Any]:
        """The settings by which other stages name it: backbone, and features and seed where they were given."""
        given = {key: self.definition.settings[key] for key in NAMING if key in self.definition.settings}
        return {**given, "backbone": self.backbone}

    def of_training(self) -> list[Override]:
        """What it was told, for the step that trains it when that step is the requested one."""
        told = [
            scoped_override(key, value, COMMAND_LINE if key in self.typed else f"model {self.name}")
            for key, value in self.definition.settings.items()
        ]
        return [*told, Override(None, "name", self.name, f"model {self.name}")]

    def of_reader(self) -> list[Override]:
        """The same for a plan of another step, which reads the model: what has no scope is limited to its training."""
        if self.method == GIVEN:
            return []  # nothing is told of given embeddings but how they are named
        return [
            item if item.scope else replace(item, scope=self.method, backbone=self.backbone)
            for item in self.of_training()
            if item.scope or item.key not in NAMING
        ]


def define_model(
    root: Path, dataset: str, name: str, method: str, overrides: Iterable[Override], like: str | None = None
) -> tuple[NamedModel, list[Override]]:
    """What a model is, as `itrpipe train --name` was told; what it is not told stays as it was.

    Another method or backbone starts anew. A model that is `like` another starts with the settings of that, of another
    method without those of the loss.

    Args:
        root: the data folder.
        dataset: its name.
        name: of the model.
        method: configuration of `train`.
        overrides: from the command line.
        like: name of another model of any dataset; None: the model is like none.

    Returns:
        The model, and the overrides that change nothing but how it is trained.

    Raises:
        UsageError: the name cannot be one, or is also that of the model that it is to be like or mined with.
        MissingInputError: there is no such model.
    """
    known = load_definition(root, dataset).models.get(check_name(name))
    own, execution = {}, []
    for item in overrides:
        if item.scope == EVERYWHERE or item.key.removeprefix("execution.") in TrainExecution.model_fields:
            execution.append(item)
        else:
            of_file = isinstance(item.value, str) and item.key.rpartition(".")[2] in _FILES
            key = f"{item.scope}.{item.key}" if item.scope else item.key
            own[key] = whole_file(item.value) if of_file else item.value
    typed = frozenset(own)
    if like is not None:
        if like == name:
            raise UsageError(f"--like {like} is the model itself, which keeps its settings anyway; leave it out")
        base, known = _like(root, dataset, like).definition, None
        lost = () if method == base.method else (_LOSS,)
        own = {key: value for key, value in base.settings.items() if not key.startswith(lost)} | own
    same = known and known.method == method and own.get("backbone") in (None, known.settings.get("backbone"))
    settings = {**known.settings, **own} if known and same else own
    if name in (settings.get("teacher"), settings.get(f"{_LOSS}teacher")):
        raise UsageError(f"--negatives-from {name} is the model itself; name another that it is mined with")
    trained = known.trained if known and (method, settings) == (known.method, known.settings) else {}
    model = ModelDefinition(method=method, settings=settings, trained=trained)
    return NamedModel(name, dataset, model, typed), execution


def method_of_name(root: Path, dataset: str, name: str, like: str | None) -> str | None:
    """The method of a model where none is named: its own, or that of the model that it is to be like."""
    if like is not None:
        return _like(root, dataset, like).method
    known = load_definition(root, dataset).models.get(check_name(name))
    return known.method if known else None


def teacher_of(root: Path, dataset: str, like: str) -> list[Override]:
    """What a model mines with that is like another: with that one, unless it has a teacher itself or is not of here."""
    known = load_definition(root, dataset).models.get(like)
    if known is None or not {"teacher", f"{_LOSS}teacher"}.isdisjoint(known.settings):
        return []
    return [Override(None, f"{_LOSS}teacher", like)]


def _like(root: Path, dataset: str, name: str) -> NamedModel:
    """The model of this name, of this dataset before all others."""
    own = name in models_of(load_definition(root, dataset))
    return find_model(root, dataset if own else None, name, "--like")


def home_of(root: Path, name: str) -> str | None:
    """The dataset that has a model of this name, or seeds of it, `NAME@SEED`; None where none has.

    Raises:
        UsageError: several have one.
    """
    found = []
    for dataset in datasets_of(root):
        models = load_definition(root, dataset).models
        if name in models or any(own.partition("@")[0] == name for own in models):
            found.append(dataset)
    if len(found) > 1:
        raise UsageError(f"datasets {', '.join(found)} have a model {name}; add --dataset")
    return found[0] if found else None


def forget_model(root: Path, dataset: str | None, name: str) -> str:
    """Removes a name; what was trained under it stays and has none. Returns the dataset.

    Args:
        root: the data folder.
        dataset: its name; None for whichever has such a model.
        name: of the model.

    Raises:
        MissingInputError: there is no such model.
        UsageError: several datasets have one.
    """
    dataset = dataset or home_of(root, name)
    if dataset is None or name not in load_definition(root, dataset).models:
        raise MissingInputError(f"--forget {name}: no model of {dataset or root} has this name; see `itrpipe status`")

    def without(now: DatasetDefinition) -> DatasetDefinition:
        return now.model_copy(update={"models": {each: own for each, own in now.models.items() if each != name}})

    redefine(root, dataset, without)
    return dataset


def find_model(root: Path, dataset: str | None, name: str, option: str = "--model") -> NamedModel:
    """The model of this name.

    Args:
        root: the data folder.
        dataset: its name; None for whichever has such a model.
        name: of the model.
        option: that named it, for messages.

    Raises:
        MissingInputError: there is none.
        UsageError: several datasets have one.
    """
    models = {each: models_of(load_definition(root, each)) for each in ([dataset] if dataset else datasets_of(root))}
    found = [each for each in models if name in models[each]]
    if len(found) > 1:
        raise UsageError(f"{option} {name}: datasets {', '.join(found)} have a model of this name; add --dataset")
    if not found:
        where = f"dataset {dataset!r} has" if dataset else f"datasets in {root} have"
        known = ", ".join(each for own in models.values() for each in own) or "none yet"
        raise MissingInputError(f"{option} {name}: {where} no model of this name; known: {known}")
    return NamedModel(name, found[0], models[found[0]][name])


def models_of(definition: DatasetDefinition) -> dict[str, ModelDefinition]:
    """The named models of a dataset, and behind them embeddings from files by their names."""
    given = {}
    for label in definition.embeddings:
        backbone = label.partition(".")[0]
        given[backbone.removeprefix(f"{GIVEN}-")] = ModelDefinition(method=GIVEN, settings={"backbone": backbone})
    return definition.models | {name: each for name, each in given.items() if name not in definition.models}


def datasets_of(root: Path) -> list[str]:
    """Datasets of a data folder that commands have defined."""
    return [folder.name for folder in folders_in(root) if (folder / DEFINITION).exists()]
