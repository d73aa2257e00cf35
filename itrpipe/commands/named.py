"""Named models: what `itrpipe train --name` was told is remembered, and `--model` stands for it in other commands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from itrpipe.artifacts.artifact import folders_in
from itrpipe.config import did_you_mean
from itrpipe.datasets.definition import DEFINITION, DatasetDefinition, ModelDefinition, check_name, load_definition
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.plan.overrides import EVERYWHERE, Override
from itrpipe.plan.planning import scoped_override
from itrpipe.training.settings import TrainExecution, canonical_backbone, usual_backbone

_NAMING = ("backbone", "features", "seed")
"""Settings by which every stage names the model that it reads."""
_FILES = ("initial", "model", "text", "tokenizer", "vision", "weights")
"""Last parts of keys whose values may be files or folders."""


@dataclass(frozen=True)
class NamedModel:
    """A model by its name.

    Attributes:
        name: of it.
        dataset: that it is trained on.
        definition: what it is.
    """

    name: str
    dataset: str
    definition: ModelDefinition

    @property
    def method(self) -> str:
        """Configuration of `train`."""
        return self.definition.method

    @property
    def backbone(self) -> str:
        """Its backbone, by the canonical name."""
        given = self.definition.settings.get("backbone")
        return canonical_backbone(given) if given else usual_backbone(self.method)

    @property
    def naming(self) -> dict[str, Any]:
        """The settings by which other stages name it: backbone, and features and seed where they were given."""
        given = {key: self.definition.settings[key] for key in _NAMING if key in self.definition.settings}
        return {**given, "backbone": self.backbone}

    def of_training(self) -> list[Override]:
        """What it was told, for the step that trains it when that step is the requested one."""
        return [*_overrides(self.definition.settings, self.name), self._called(None)]

    def of_reader(self) -> list[Override]:
        """The same for a plan of another step, which reads the model: what has no scope is limited to its training."""
        told = [
            item for item in _overrides(self.definition.settings, self.name) if item.key not in _NAMING or item.scope
        ]
        mine = [self._mine(item.key, item.value, item.origin) if item.scope is None else item for item in told]
        return [*mine, self._mine("name", self.name, _origin(self.name))]

    def _called(self, scope: str | None) -> Override:
        return Override(scope, "name", self.name, _origin(self.name))

    def _mine(self, key: str, value: Any, origin: str) -> Override:
        return Override(self.method, key, value, origin, self.backbone)


def define_model(
    root: Path, dataset: str, name: str, method: str | None, usual: str, overrides: Iterable[Override]
) -> tuple[NamedModel, list[Override]]:
    """What a model is, as `itrpipe train --name` was told; what it is not told stays as it was.

    Another method or backbone starts anew.

    Args:
        root: the data folder.
        dataset: its name.
        name: of the model.
        method: configuration of `train`; None where none was named.
        usual: the method of a new model where none was named.
        overrides: from the command line.

    Returns:
        The model, and the overrides that change nothing but how it is trained.

    Raises:
        UsageError: the name cannot be one.
    """
    known = load_definition(root, dataset).models.get(check_name(name))
    given = list(overrides)
    execution = [item for item in given if _is_execution(item)]
    own = {_key(item): _whole(item) for item in given if item not in execution}
    conf = method or (known.method if known else usual)
    same = known is not None and known.method == conf and own.get("backbone") in (None, known.settings.get("backbone"))
    settings = {**known.settings, **own} if known is not None and same else own
    trained = known.trained if known is not None and settings == known.settings else {}
    return NamedModel(name, dataset, ModelDefinition(method=conf, settings=settings, trained=trained)), execution


def find_model(root: Path, dataset: str | None, name: str) -> NamedModel:
    """The model of this name.

    Args:
        root: the data folder.
        dataset: its name; None for whichever has such a model.
        name: of the model.

    Raises:
        MissingInputError: there is none.
        UsageError: several datasets have one.
    """
    names = [dataset] if dataset else _datasets(root)
    definitions = {each: load_definition(root, each) for each in names}
    found = [each for each, definition in definitions.items() if name in definition.models]
    if len(found) > 1:
        raise UsageError(f"--model {name}: datasets {', '.join(found)} have a model of this name; add --dataset")
    if not found:
        raise MissingInputError(f"--model {name}: {_unknown(root, definitions, name, dataset)}")
    return NamedModel(name, found[0], definitions[found[0]].models[name])


def _unknown(root: Path, definitions: dict[str, DatasetDefinition], name: str, dataset: str | None) -> str:
    known = [each for definition in definitions.values() for each in definition.models]
    missing = f"dataset {dataset!r} has no model" if dataset else f"no dataset in {root} has a model"
    first = f"; the first is named by `itrpipe train --name {name}`" if not known else f"; known: {', '.join(known)}"
    return f"{missing} of this name{did_you_mean(name, known) or first}"


def _datasets(root: Path) -> list[str]:
    return [folder.name for folder in folders_in(root) if (folder / DEFINITION).exists()]


def _overrides(settings: dict[str, Any], name: str) -> list[Override]:
    return [scoped_override(key, value, _origin(name)) for key, value in settings.items()]


def _origin(name: str) -> str:
    return f"model {name}"


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
