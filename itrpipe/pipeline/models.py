"""Models by their names: `itrpipe train --name` remembers one, `--model` finds it, and printed commands name it."""

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
            read: the plan is of a step that reads the model; settings without a scope are then limited to its
                training, and those that name the model are left out, since the step has them itself. Otherwise the
                plan is of its training.
        """
        overrides = []
        for key, value in self.definition.settings.items():
            origin = COMMAND_LINE if key in self.typed else f"model {self.name}"
            override = scoped_override(key, value, origin)
            if read and override.scope is None:
                if override.key in NAMING:
                    continue
                override = replace(override, scope=self.method, backbone=self.backbone)
            overrides.append(override)
        return overrides


def define_model(
    root: Path, dataset: str, name: str, method: str, overrides: Iterable[Override], like: NamedModel | None = None
) -> tuple[NamedModel, list[Override]]:
    """Define the model of `itrpipe train --name`; settings that the command line does not give stay as they were.

    Another method or backbone starts anew. A model that is like another starts with the settings of that one, without
    those of the loss if its method is another.

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
    previous = load_definition(root, dataset).models.get(check_name(name))
    settings = {}
    execution = []
    for override in overrides:
        if override.scope == EVERYWHERE or override.key in TrainExecution.model_fields:
            execution.append(override)
        else:
            settings[override.name] = override.value
    typed = frozenset(settings)
    if like is not None:
        if like.name == name:
            raise UsageError(f"--like {name} is the model itself, which keeps its settings anyway; leave it out")
        previous = None
        inherited = like.definition.settings
        if method != like.method:
            inherited = {key: value for key, value in inherited.items() if not key.startswith(_LOSS)}
        settings = inherited | settings
    trained = {}
    if previous is not None and previous.method == method:
        if settings.get("backbone") in (None, previous.settings.get("backbone")):
            settings = previous.settings | settings
        if settings == previous.settings:
            trained = previous.trained
    if name in (settings.get("teacher"), settings.get(f"{_LOSS}teacher")):
        raise UsageError(f"--negatives-from {name} is the model itself; name another that it is mined with")
    model = ModelDefinition(method=method, settings=settings, trained=trained)
    return NamedModel(name, dataset, model, typed), execution


def options_of(model: Step) -> str:
    """Return the options by which a command names the model that a planned step trains, or that made embeddings."""
    settings = model.settings
    location = model.location
    if location.stage == "embeddings":
        name = model.need.settings["name"].removeprefix(f"{GIVEN}-")
        return f"--dataset {location.dataset} --model {name}"
    assert isinstance(settings, TrainSettings)
    name = model.model
    if not name:
        return f"--dataset {location.dataset} --method {model.need.conf} --backbone {settings.backbone}"
    definition = load_definition(location.root, location.dataset).models.get(name)
    default_seed = definition.seed if definition else 0
    if settings.seed == default_seed:
        return f"--model {name}"
    return f"--model {name} --seed {settings.seed}"


def data_option(root: Path) -> str:
    """Return the option that a printed command needs for this data folder; empty for the default one."""
    if root == Path("data"):
        return ""
    return f" --data {shlex.quote(str(root))}"


def home_of(root: Path, name: str) -> str | None:
    """Return the dataset that has a model of this name, or seeds of it, `NAME@SEED`; None where none has.

    Raises:
        UsageError: several have one.
    """
    homes = []
    for dataset in datasets_of(root):
        models = load_definition(root, dataset).models
        if name in models or name in {model.partition("@")[0] for model in models}:
            homes.append(dataset)
    if not homes:
        return None
    if len(homes) > 1:
        raise UsageError(f"datasets {', '.join(homes)} have a model {name}; add --dataset")
    return homes[0]


def forget_model(root: Path, dataset: str | None, name: str) -> str:
    """Remove the name of a model, and return its dataset; artifacts that were trained under the name stay.

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
        models = dict(now.models)
        models.pop(name, None)
        return now.model_copy(update={"models": models})

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
    datasets = [dataset] if dataset else datasets_of(root)
    homes = []
    known = []
    for each in datasets:
        models = models_of(load_definition(root, each))
        known += models
        if name in models:
            homes.append(NamedModel(name, each, models[name]))
    if len(homes) > 1:
        several = ", ".join(home.dataset for home in homes)
        raise UsageError(f"{option} {name}: datasets {several} have a model of this name; add --dataset")
    if not homes:
        where = f"datasets in {root} have"
        if dataset:
            where = f"dataset {dataset!r} has"
        raise MissingInputError(
            f"{option} {name}: {where} no model of this name; known: {', '.join(known) or 'none yet'}"
        )
    return homes[0]


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
