"""Named models: what `itrpipe train --name` was told is remembered, and `--model` stands for it in other commands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from itrpipe.config import COMMAND_LINE, did_you_mean
from itrpipe.datasets.definition import (
    DEFINITION,
    EMBEDDED,
    DatasetDefinition,
    ModelDefinition,
    check_name,
    load_definition,
    redefine,
)
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN
from itrpipe.plan.overrides import EVERYWHERE, Override
from itrpipe.plan.planning import scoped_override
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

    @property
    def told(self) -> list[Override]:
        """Settings of its definition as overrides."""
        settings = self.definition.settings
        origins = {key: COMMAND_LINE if key in self.typed else f"model {self.name}" for key in settings}
        return [scoped_override(key, value, origins[key]) for key, value in settings.items()]

    def of_training(self) -> list[Override]:
        """What it was told, for the step that trains it when that step is the requested one."""
        return [*self.told, self._called]

    def of_reader(self) -> list[Override]:
        """The same for a plan of another step, which reads the model: what has no scope is limited to its training."""
        told = [item for item in self.told if item.scope or item.key not in NAMING]
        return [
            item if item.scope else replace(item, scope=self.method, backbone=self.backbone)
            for item in (*told, self._called)
        ]

    @property
    def _called(self) -> Override:
        return Override(None, "name", self.name, f"model {self.name}")


def define_model(
    root: Path,
    dataset: str,
    name: str,
    method: str | None,
    usual: str,
    overrides: Iterable[Override],
    like: str | None = None,
) -> tuple[NamedModel, list[Override]]:
    """What a model is, as `itrpipe train --name` was told; what it is not told stays as it was.

    Another method or backbone starts anew. A model that is `like` another starts with the settings of that, of another
    method without those of the loss.

    Args:
        root: the data folder.
        dataset: its name.
        name: of the model.
        method: configuration of `train`; None where none was named.
        usual: the method of a new model where none was named.
        overrides: from the command line.
        like: name of another model of any dataset; None: the model is like none.

    Returns:
        The model, and the overrides that change nothing but how it is trained.

    Raises:
        UsageError: the name cannot be one, or is also that of the model that it is to be like or mined with.
        MissingInputError: there is no such model.
    """
    known = load_definition(root, dataset).models.get(check_name(name))
    given = list(overrides)
    execution = [item for item in given if _is_execution(item)]
    own = {_key(item): _whole(item) for item in given if item not in execution}
    typed = frozenset(own)
    if like is not None:
        if like == name:
            raise UsageError(f"--like {like} is the model itself, which keeps its settings anyway; leave it out")
        base = _first_with(root, dataset, like).definition
        same_method = method in (None, base.method)
        kept = {key: value for key, value in base.settings.items() if same_method or not key.startswith(_LOSS)}
        method, own, known = method or base.method, {**kept, **own}, None
    conf = method or (known.method if known else usual)
    same = known is not None and known.method == conf and own.get("backbone") in (None, known.settings.get("backbone"))
    settings = {**known.settings, **own} if known is not None and same else own
    if name in (settings.get("teacher"), settings.get(f"{_LOSS}teacher")):
        raise UsageError(f"--negatives-from {name} is the model itself; name another that it is mined with")
    unchanged = known is not None and (conf, settings) == (known.method, known.settings)
    trained = known.trained if known is not None and unchanged else {}
    definition = ModelDefinition(method=conf, settings=settings, trained=trained)
    return NamedModel(name, dataset, definition, typed), execution


def method_of_name(root: Path, dataset: str, name: str, like: str | None) -> str | None:
    """The method of a model where none is named: its own, or that of the model that it is to be like."""
    if like is not None:
        return _first_with(root, dataset, like).method
    known = load_definition(root, dataset).models.get(check_name(name))
    return known.method if known else None


def home_of(root: Path, name: str) -> str | None:
    """The dataset that has a model of this name; None where none has.

    Raises:
        UsageError: several have one.
    """
    found = [each for each in _datasets(root) if name in load_definition(root, each).models]
    if len(found) > 1:
        raise UsageError(f"--name {name}: datasets {', '.join(found)} have a model of this name; add --dataset")
    return found[0] if found else None


def forget_model(root: Path, dataset: str | None, name: str) -> str:
    """Removes a name; what was trained under it stays and has none. Returns that, for people.

    Args:
        root: the data folder.
        dataset: its name; None for whichever has such a model.
        name: of the model.

    Raises:
        MissingInputError: there is no such model.
        UsageError: several datasets have one.
    """
    dataset = dataset or home_of(root, name)
    now = load_definition(root, dataset) if dataset else DatasetDefinition()
    if dataset is None or name not in now.models:
        known = (
            [*now.models]
            if dataset
            else [own for each in _datasets(root) for own in load_definition(root, each).models]
        )
        raise MissingInputError(f"--forget {name}: {_unknown(root, known, name, dataset)}")

    def without(now: DatasetDefinition) -> DatasetDefinition:
        return now.model_copy(update={"models": {each: own for each, own in now.models.items() if each != name}})

    redefine(root, dataset, without)
    return (
        f"{dataset}: {name} is forgotten; what was trained and evaluated stays, and the same training as --name {name} "
        "remembers it again"
    )


def only_model(root: Path, dataset: str, method: str | None = None) -> str | None:
    """The name of the one model of a dataset; None where none has a name.

    Args:
        root: the data folder.
        dataset: its name.
        method: only models that were trained with this one count; None: all do.

    Raises:
        UsageError: it has several.
    """
    models = load_definition(root, dataset).models
    names = [name for name, model in models.items() if method in (None, model.method)]
    if len(names) > 1:
        raise UsageError(
            f"dataset {dataset!r} has models {', '.join(names)}; name one with --model, or a configuration with "
            "--method"
        )
    return names[0] if names else None


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
    names = [dataset] if dataset else _datasets(root)
    definitions = {each: load_definition(root, each) for each in names}
    models = {each: models_of(definition) for each, definition in definitions.items()}
    found = [each for each in names if name in models[each]]
    if len(found) > 1:
        raise UsageError(f"{option} {name}: datasets {', '.join(found)} have a model of this name; add --dataset")
    if not found:
        known = [each for own in models.values() for each in own]
        raise MissingInputError(f"{option} {name}: {_unknown(root, known, name, dataset)}")
    return NamedModel(name, found[0], models[found[0]][name])


def refuse_unnamed(root: Path, *, dataset: bool = False) -> None:
    """Refuses to take a model of the embedded dataset for granted where models of other datasets have names.

    Args:
        root: the data folder.
        dataset: the message asks for a dataset and not for a model.

    Raises:
        UsageError: there are some, and none of the embedded dataset.
    """
    models = {each: list(models_of(load_definition(root, each))) for each in _datasets(root)}
    others = [name for dataset, names in models.items() if dataset != EMBEDDED for name in names]
    if others and not models.get(EMBEDDED):
        first = next(each for each in models if each != EMBEDDED and models[each])
        named = f"the dataset, such as --dataset {first}" if dataset else f"a model, such as --model {others[0]}"
        raise UsageError(
            f"name {named}; where nothing is named, the drawings of --dataset {EMBEDDED} are meant, and none of their "
            "models has a name"
        )


def _first_with(root: Path, dataset: str, name: str) -> NamedModel:
    """The model of this name, of this dataset before all others."""
    own = name in models_of(load_definition(root, dataset))
    return find_model(root, dataset if own else None, name, "--like")


def models_of(definition: DatasetDefinition) -> dict[str, ModelDefinition]:
    """The named models of a dataset, and behind them embeddings from files by their names."""
    given = {
        each.removeprefix(f"{GIVEN}-"): ModelDefinition(method=GIVEN, settings={"backbone": each})
        for each in definition.embeddings
    }
    return definition.models | {name: each for name, each in given.items() if name not in definition.models}


def _unknown(root: Path, known: list[str], name: str, dataset: str | None) -> str:
    missing = f"dataset {dataset!r} has no model" if dataset else f"no dataset in {root} has a model"
    first = f"; the first is named by `itrpipe train --name {name}`" if not known else f"; known: {', '.join(known)}"
    return f"{missing} of this name{did_you_mean(name, known) or first}"


def _datasets(root: Path) -> list[str]:
    return [folder.name for folder in folders_in(root) if (folder / DEFINITION).exists()]


def _key(item: Override) -> str:
    return f"{item.scope}.{item.key}" if item.scope else item.key


def _is_execution(item: Override) -> bool:
    return item.scope == EVERYWHERE or item.key.removeprefix("execution.") in TrainExecution.model_fields


def _whole(item: Override) -> Any:
    """The value, of a file or folder its whole path: later commands may run elsewhere."""
    if not isinstance(item.value, str) or not item.value or item.key.rpartition(".")[2] not in _FILES:
        return item.value
    path = Path(item.value).expanduser()
    return str(path.resolve()) if path.exists() else item.value


def seed_option(seed: int, definition: ModelDefinition | None = None) -> list[str]:
    """The option that a command needs to mean this seed: none where the model's name, or no name, stands for it.

    Args:
        seed: of a training.
        definition: of the model that the command names; None where it names none.
    """
    usual = 0 if definition is None else definition.seed
    return ["--seed", str(seed)] if seed != usual else []
