"""Models by their names: `itrpipe train --name` remembers one, `--model` means it, and printed commands name it."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from itrpipe.config import COMMAND_LINE, EVERYWHERE, Override, scoped_override
from itrpipe.datasets.definition import (
    DatasetDefinition,
    ModelDefinition,
    check_name,
    load_definition,
    redefine,
)
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN
from itrpipe.stages.base import Step
from itrpipe.storage.artifact import DEFINITION, folders_in
from itrpipe.training.settings import ModelName, TrainExecution, TrainSettings

NAMING = ("backbone", "features", "seed")
"""Settings by which every stage names the model that it reads."""
_LOSS = "loss."


@dataclass(frozen=True)
class NamedModel:
    """A model by its name.

    Attributes:
        name: by which `--model` finds it.
        dataset: that it is trained on.
        definition: its method and settings, as they are remembered.
        typed: keys of settings that the command itself gives, as messages say.
    """

    name: str
    dataset: str
    definition: ModelDefinition
    typed: frozenset[str] = frozenset()

    @property
    def method(self) -> str:
        """Return its configuration of `train`."""
        return self.definition.method

    @property
    def backbone(self) -> str:
        """Return the canonical name of its backbone."""
        return ModelName.defined_by(self.definition, 0).backbone

    def overrides(self, *, read: bool) -> list[Override]:
        """Return its settings as overrides of a plan.

        Args:
            read: the plan is of a step that reads the model; what has no scope is then limited to its training, and
                what names the model is said by its reader. Else the plan is of its training.
        """
        told = []
        for key, value in self.definition.settings.items():
            origin = COMMAND_LINE if key in self.typed else f"model {self.name}"
            override = scoped_override(key, value, origin)
            if read and override.scope is None:
                if override.key in NAMING:
                    continue
                override = replace(override, scope=self.method, backbone=self.backbone)
            told.append(override)
        return told


def define_model(
    root: Path, dataset: str, name: str, method: str, overrides: Iterable[Override], like: NamedModel | None = None
) -> tuple[NamedModel, list[Override]]:
    """Define a model as `itrpipe train --name` was told; what it was not told stays as it was.

    Another method or backbone starts anew. A model that is like another starts with the settings of that, of another
    method without those of the loss.

    Args:
        root: the data folder.
        dataset: its name.
        name: of the model.
        method: configuration of `train`.
        overrides: from the command line.
        like: model whose settings it begins with, of any dataset; None for none.

    Returns:
        The model, and the overrides that change nothing but how it is trained.

    Raises:
        UsageError: the name cannot be one, or is also that of the model that it is to be like or mined with.
    """
    known = load_definition(root, dataset).models.get(check_name(name))
    own = {}
    execution = []
    for item in overrides:
        if item.scope == EVERYWHERE or item.key in TrainExecution.model_fields:
            execution.append(item)
        else:
            own[item.name] = item.value
    typed = frozenset(own)
    if like is not None:
        if like.name == name:
            raise UsageError(f"--like {name} is the model itself, which keeps its settings anyway; leave it out")
        known = None
        lost = () if method == like.method else (_LOSS,)
        own = {key: value for key, value in like.definition.settings.items() if not key.startswith(lost)} | own
    same = known and known.method == method and own.get("backbone") in (None, known.settings.get("backbone"))
    settings = {**known.settings, **own} if known and same else own
    if name in (settings.get("teacher"), settings.get(f"{_LOSS}teacher")):
        raise UsageError(f"--negatives-from {name} is the model itself; name another that it is mined with")
    trained = known.trained if known and (method, settings) == (known.method, known.settings) else {}
    model = ModelDefinition(method=method, settings=settings, trained=trained)
    return NamedModel(name, dataset, model, typed), execution


def options_of(model: Step) -> str:
    """Return the options by which a command names the model that a planned step trains, or that made embeddings."""
    settings = model.settings
    location = model.location
    name = model.model
    if location.stage == "embeddings":
        name = model.need.settings["name"].removeprefix(f"{GIVEN}-")
        return f"--dataset {location.dataset} --model {name}"
    assert isinstance(settings, TrainSettings)
    if name:
        known = load_definition(location.root, location.dataset).models.get(name)
        usual = known.seed if known else 0
        return f"--model {name}" if settings.seed == usual else f"--model {name} --seed {settings.seed}"
    return f"--dataset {location.dataset} --method {model.need.conf} --backbone {settings.backbone}"


def data_option(root: Path) -> str:
    """Return the option of a printed command, where the data folder is not the usual one; else nothing."""
    return "" if root == Path("data") else f" --data {shlex.quote(str(root))}"


def home_of(root: Path, name: str) -> str | None:
    """Return the dataset that has a model of this name, or seeds of it, `NAME@SEED`; None where none has.

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
    """Remove a name, and return its dataset; what was trained under it stays and has none.

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
    """Find the model of a name.

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
    """Return the named models of a dataset, and behind them embeddings from files by their names."""
    models = dict(definition.models)
    for label in definition.embeddings:
        backbone = label.partition(".")[0]
        embeddings = ModelDefinition(method=GIVEN, settings={"backbone": backbone})
        models.setdefault(backbone.removeprefix(f"{GIVEN}-"), embeddings)
    return models


def datasets_of(root: Path) -> list[str]:
    """Return the datasets of a data folder that commands have defined."""
    return [folder.name for folder in folders_in(root) if (folder / DEFINITION).exists()]
