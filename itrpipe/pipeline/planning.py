"""Plan what a command needs, and say what is up to date, missing or stale and why.

A plan is a graph of steps. Every fingerprint in it is computed from settings and sources alone, so
planning runs nothing and imports no deep-learning library.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from itrpipe.config import (
    COMMAND_LINE,
    Resolved,
    Settings,
    bind,
    complete_key,
    declared_stages,
    did_you_mean,
    leaves,
    load_declaration,
    parse_assignment,
    resolve,
)
from itrpipe.datasets.definition import WITHOUT_CHOICE, DatasetDefinition, StageDefinition, load_definition
from itrpipe.engine.work import CUDA, resolve_device
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, NOT_HERE, is_given
from itrpipe.pipeline.steps import pending_steps, state_of
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need, Stage, Step, load_stage
from itrpipe.storage import artifact as artifacts
from itrpipe.storage.artifact import Location, Manifest, folders_in
from itrpipe.storage.integrity import DigestCache
from itrpipe.training.settings import backbones, canonical_backbone, usual_features

EVERYWHERE = "*"
"""Scope of execution settings of all steps that have them, upstream ones included."""


@dataclass(frozen=True)
class Override:
    """One value that replaces what the declarations say.

    Attributes:
        scope: a stage or configuration name it is limited to; None for the requested step only; `EVERYWHERE`.
        key: dotted or short name of the setting.
        value: the value.
        origin: where it was given, for messages.
        backbone: it is limited to steps that are asked for with this one; empty for any.
    """

    scope: str | None
    key: str
    value: Any
    origin: str = COMMAND_LINE
    backbone: str = ""


def refuse_unused(overrides: Iterable[Override], known: Iterable[str] = ()) -> None:
    """Refuses overrides that no step reads.

    Args:
        overrides: likewise.
        known: settings that the steps have.

    Raises:
        UsageError: there is one.
    """
    for item in overrides:
        name = f"{item.scope}.{item.key}" if item.scope else item.key
        remedy = did_you_mean(item.key, known) or "; leave it out"
        raise UsageError(f"setting {name} (from {item.origin}) is read by no step of this plan{remedy}")


def is_execution(override: Override, stage: Stage) -> bool:
    """Whether a value changes how a step is executed, and not its result."""
    return override.key.removeprefix("execution.") in stage.execution.model_fields


def has_setting(settings: Settings, key: str) -> bool:
    """Whether a step has a setting of this dotted key; tables of free names have every key."""
    value: Any = settings
    for part in key.split("."):
        if not isinstance(value, Settings):
            return isinstance(value, Mapping)
        if part not in type(value).model_fields:
            return False
        value = getattr(value, part)
    return True


SOURCE_CACHE = "sources.json"
_WITHOUT_DATASET = ("index", "report")
"""Stages that read no prepared dataset."""


@dataclass
class Planner:
    """Plans the steps of one dataset.

    Args:
        root: the data folder.
        dataset: dataset name.
        overrides: values from the command line or a recipe.
        definition: read from the data folder unless given (a recipe brings its own).
        reporter: shows progress when sources have to be hashed.
        remember: keep the hashes of sources for the next plan; off when nothing may be written.
        digests: hashes of sources that planners of one dataset share.
    """

    root: Path
    dataset: str
    overrides: list[Override] = field(default_factory=list)
    definition: DatasetDefinition = field(default_factory=DatasetDefinition)
    reporter: Reporter | None = None
    remember: bool = True
    digests: DigestCache | None = None

    def __post_init__(self) -> None:
        if self.definition == DatasetDefinition():
            self.definition = load_definition(self.root, self.dataset)
        self._cache = self.digests or DigestCache(self.root / self.dataset / SOURCE_CACHE, self.reporter)
        self._known: dict[tuple, Step] = {}
        self._underway: list[tuple] = []
        self._above: set[str] = set()
        self._applied: set[int] = set()  # overrides by their id
        self._settings: set[str] = set()  # dotted keys of all steps

    def plan(self, need: Need, *, requested: bool = True, inputs: Mapping[str, Step] | None = None) -> Step:
        """Plans a step and everything upstream of it.

        Args:
            need: the artifact wanted.
            requested: whether overrides without a scope apply to it.
            inputs: steps to read beside those the stage itself asks for.

        Raises:
            UsageError: an unknown stage, configuration or setting, a value out of range, or a step that cannot work.
            MissingInputError: the dataset, one of its sources or a finished artifact that is read is not there.
        """
        if inputs:
            return self._plan(need, requested, inputs)
        asked = ((k, str(v)) for k, v in (*need.settings.items(), *need.pinned.items(), *need.named.items()))
        key = (need.stage, need.conf, tuple(sorted(asked)), requested)
        if key not in self._known:
            if key in self._underway:
                raise UsageError(f"{need.stage} {need.conf} would be made from itself; give it another start_from")
            self._underway.append(key)
            try:
                given = {}
                for name, place in need.pinned.items():
                    folder = self.root / self.dataset / place
                    if not folder.is_dir():
                        raise MissingInputError(f"{folder} was removed; make it again, or name another model")
                    given[name] = pinned_step(self.root, artifacts.read_manifest(folder))
                # Trainings of named models have their own settings, and the seed of the step that reads them.
                for name, model in need.named.items():
                    given[name] = self.of_model(model, need.settings["seed"])
                self._known[key] = self._plan(need, requested, given)
            finally:
                self._underway.pop()
            if not self._underway:
                load_stage(need.stage).check_read(self._known[key])  # whether or not it has to run
                refuse_hopeless(pending_steps([self._known[key]]))
            if self.remember:
                self._cache.save()
        return self._known[key]

    def _plan(self, need: Need, requested: bool, given: Mapping[str, Step]) -> Step:
        stage = load_stage(need.stage)
        if need.stage not in _WITHOUT_DATASET:
            stage_definition(self.definition, Need("prepare", ""), self.dataset, self.root)
        definition = stage_definition(self.definition, need, self.dataset, self.root)
        resolved, execution = self.configure(need, definition, requested)
        self._fill_features(resolved)
        where = f"{need.stage} {need.conf}"
        settings = bind(stage.settings_class(resolved.values), resolved, where)
        needs = stage.needs(settings, self.definition)
        wanted = {name: upstream for name, upstream in needs.items() if name not in given}
        inputs = {name: self.plan(upstream, requested=False) for name, upstream in wanted.items()} | dict(given)
        sources = stage.sources(settings, definition, self._cache)
        digests = {name: step.location.fingerprint for name, step in inputs.items()}
        digests |= {f"source {name}": digest for name, digest in sources.items()}
        location = Location(
            self.root,
            self.dataset,
            need.stage,
            stage.label(need.conf, settings),
            artifacts.fingerprint(need.stage, stage.schema_version, stage.fingerprinted(settings), digests),
        )
        step = Step(need, settings, execution, resolved, inputs, sources, definition, location, "missing")
        formers = {name: self._former(each) for name, each in inputs.items()}
        read = {name: (inputs[name].location.name, each) for name, each in formers.items() if each is not None}
        state, reason = state_of(step, self._former(step), read)
        # To be replaced by artifacts of the same names and perhaps of other bytes.
        outdated = [name for name, each in inputs.items() if each.state == "stale" and each.location.folder.exists()]
        if state == "up to date" and outdated:
            state, reason = "stale", f"{outdated[0]} is to be made again"
        return replace(step, state=state, reason=reason)

    def _former(self, step: Step) -> str | None:
        """The artifact that has the name of a step's model by now, empty for none; None where it has no name."""
        name = getattr(step.execution, "name", "")
        known = self.definition.models.get(name)
        trained = {} if known is None else known.trained
        return trained.get(step.location.label, "") if name else None

    def of_model(self, model: str, seed: int) -> Step:
        """The training of a named model as the dataset's definition tells it, whatever else is planned.

        Args:
            model: its name.
            seed: of the training.

        Raises:
            UsageError: it would be made from itself, or cannot be planned.
            MissingInputError: what it reads is not there.
        """
        above = self._above | {item.value for item in self.overrides if item.key == "name"}
        if model in above:
            raise UsageError(f"model {model} would be made from itself; name another model with --negatives-from")
        known = self.definition.models[model]
        told = [item for item in self.overrides if item.scope == EVERYWHERE]
        told += [scoped_override(key, value, f"model {model}") for key, value in known.settings.items()]
        told += [Override(None, "name", model, f"model {model}"), Override(None, "seed", seed, COMMAND_LINE)]
        other = replace(self, overrides=told, digests=self._cache)
        other._above = above
        other._underway.append(("model", model))  # what cannot work is refused by the plan that this is part of
        return other.plan(Need("train", known.method))

    def configure(
        self, need: Need, definition: StageDefinition | None, requested: bool = True
    ) -> tuple[Resolved, Settings]:
        """Resolves the layers of one step: declarations, dataset definition, need, overrides.

        Returns:
            The result settings with their origins, and the validated execution settings.
        """
        stage = load_stage(need.stage)
        declaration = load_declaration(need.stage)
        conf = definition.conf if definition else need.conf
        layers = [(need.settings, "required by the step that reads it")]
        remembered = definition.settings if definition else {}
        scopes = {need.stage, need.conf, *conf.split("+")}
        fitting = [item for item in self.overrides if item.backbone in ("", need.settings.get("backbone"))]
        chosen = [
            item
            for item in fitting
            if (requested if item.scope is None else item.scope in scopes)
            or (item.scope == EVERYWHERE and item.key in stage.execution.model_fields)
        ]
        # What is said of a stage holds for those of its steps that have such a setting.
        self._applied.update(id(item) for item in chosen if item.scope != need.stage or is_execution(item, stage))
        execution, others = Resolved(), []
        execution.merge(declaration.execution, f"{declaration.path.name} [execution]")
        for item in [Override(None, key, value, "dataset.json") for key, value in remembered.items()] + chosen:
            if is_execution(item, stage):
                execution.merge({item.key.removeprefix("execution."): item.value}, item.origin)
            elif item.scope in conf.split("+") and item.scope != conf:  # of a part of a combination `a+b`
                others.append(replace(item, key=f"{item.scope}.{item.key}"))
            else:
                others.append(item)

        def resolve_with(backbone: str | None, settings: list) -> Resolved:
            return resolve(
                declaration, conf, backbones=backbones(), backbone=backbone, dataset=self.dataset, overrides=settings
            )

        plain = [({item.key: item.value}, item.origin) for item in others]
        backbone = resolve_with(None, layers + plain).values.get("backbone")
        backbone = canonical_backbone(backbone) if isinstance(backbone, str) else None
        chosen_backbone = [layer for layer in plain if "backbone" in layer[0]]
        declared = resolve_with(backbone, layers + chosen_backbone)
        own = bind(stage.settings_class(declared.values), declared, f"{need.stage} {need.conf}")
        # Those with a default in the code included.
        known = {*declared.origins, *(key for key, _ in leaves(own.model_dump()))}
        self._settings |= known
        completed = []
        for item in others:
            key = complete_key(item.key, known)
            if item.scope == need.stage and not has_setting(own, key):
                continue
            # An input that is not what its reader asked for would carry a name that it does not deserve.
            if not requested and need.settings.get(key, item.value) != item.value:
                raise UsageError(
                    f"{need.stage}.{key} = {item.value!r} (from {item.origin}) contradicts {key} = "
                    f"{need.settings[key]!r} of the step that reads it; set {key} of that step instead"
                )
            self._applied.add(id(item))
            completed.append(({key: item.value}, item.origin))
        resolved = resolve_with(backbone, layers + completed)
        return resolved, bind(stage.execution, execution, need.stage)

    def unused_overrides(self) -> list[Override]:
        """Overrides that are scoped to a stage or configuration that nothing planned so far has."""
        return [item for item in self.overrides if id(item) not in self._applied]

    def refuse_unused_overrides(self) -> None:
        """Call once everything is planned.

        Raises:
            UsageError: an override is scoped to a stage or configuration that no planned step has.
        """
        refuse_unused(self.unused_overrides(), self._settings)

    def configure_checked(
        self, need: Need, definition: StageDefinition | None = None
    ) -> tuple[Settings, Settings, Resolved]:
        """Settings, execution settings and origins of one step, validated, without planning what it needs."""
        known = self.definition.prepare
        if definition is None and need.stage == "prepare" and known and known.conf == need.conf:
            definition = known
        resolved, execution = self.configure(need, definition)
        settings_class = load_stage(need.stage).settings_class(resolved.values)
        return bind(settings_class, resolved, f"{need.stage} {need.conf}"), execution, resolved

    def _fill_features(self, resolved: Resolved) -> None:
        """Chooses the dataset's only features for a stage that reads features and was told none."""
        values = resolved.values
        if "features" not in values or values["features"] or is_given(values.get("backbone", "")):
            return
        if "method" in values:
            method, backbone = (str(values[name]) for name in ("method", "backbone"))
            values["features"] = usual_features(method, backbone, self.dataset)
            resolved.origins["features"] = f"features of {backbone or method}"
        if not values["features"]:
            made = {folder.name.rpartition("-")[0] for folder in folders_in(self.root / self.dataset / "extract")}
            unasked = [name for name in WITHOUT_CHOICE if name in made]  # but read by a model
            values["features"] = self.definition.default_features(self.dataset, unasked)
            resolved.origins["features"] = "dataset.json"


def stage_definition(definition: DatasetDefinition, need: Need, dataset: str, root: Path) -> StageDefinition | None:
    """The part of a dataset's definition that belongs to a step, for the stages that read outside files.

    Args:
        definition: of the dataset.
        need: the step.
        dataset: its name.
        root: the data folder, for messages.

    Raises:
        MissingInputError: the dataset was never prepared, or has no features or embeddings of this name.
    """
    if need.stage == "prepare":
        if definition.prepare is None:
            hint = did_you_mean(dataset, [folder.name for folder in folders_in(root)])
            raise MissingInputError(
                f"dataset {dataset!r} is not defined in {root.resolve()}{f'{hint} If not,' if hint else ';'} run "
                f"`itrpipe prepare --dataset {dataset} --source FOLDER`, or name another folder with --data"
            )
        return definition.prepare
    if need.stage == "extract":
        if need.conf in WITHOUT_CHOICE and need.conf not in definition.features:
            return StageDefinition(conf=need.conf)
        if need.conf not in definition.features:
            known = [*definition.features, *(name for name in WITHOUT_CHOICE if name not in definition.features)]
            hint = did_you_mean(need.conf, known) or f"; run `itrpipe extract --dataset {dataset} --features NAME`"
            raise MissingInputError(
                f"dataset {dataset!r} has no features {need.conf!r} (has: {', '.join(known)}){hint}"
            )
        return definition.features[need.conf]
    if need.stage == "index":
        return definition.photographs
    if need.stage == "train" and need.conf == GIVEN:
        raise UsageError(f"{NOT_HERE}, and take files by --embeddings")
    if need.stage == "embeddings":
        name, split = need.settings["name"], need.settings["split"]
        if f"{name}.{split}" not in definition.embeddings:
            known = ", ".join(definition.embeddings) or "none"
            raise MissingInputError(
                f"dataset {dataset!r} knows no embeddings {name!r} of split {split!r}, and has {known}; name their "
                "files with --embeddings"
            )
        return definition.embeddings[f"{name}.{split}"]
    return None


def pinned_step(root: Path, manifest: Manifest) -> Step:
    """A finished artifact as a step of a plan, taken as it is whatever the declarations say today."""
    location = Location(root, manifest.dataset, manifest.stage, manifest.label, manifest.fingerprint)
    need = Need(manifest.stage, manifest.conf, manifest.settings)
    return Step(need, Settings(), Settings(), Resolved(), {}, manifest.sources, None, location, "up to date")


def parse_override(text: str) -> Override:
    """Reads `key=value`, `stage.key=value` or `conf.key=value`.

    Raises:
        UsageError: not of this form.
    """
    return scoped_override(*parse_assignment(text), COMMAND_LINE)


def scoped_override(key: str, value: Any, origin: str) -> Override:
    """Splits a leading stage or configuration name off a key."""
    scope, dot, rest = key.partition(".")
    if dot and scope.replace("-", "_") in declared_stages():
        return Override(scope.replace("-", "_"), rest, value, origin)
    if dot and any(scope in load_declaration(stage).confs for stage in declared_stages()):
        return Override(scope, rest, value, origin)
    return Override(None, key, value, origin)


def refuse_hopeless(steps: Sequence[Step]) -> None:
    """Lets every stage that has a check look at its steps before any of them runs.

    Args:
        steps: that have to run, in order. The last are looked at first: they know best what the others are for.

    Raises:
        UsageError: one of them cannot work, as far as its settings and what is finished by now tell, or there is no
            CUDA device and it was asked for.
        MissingInputError: one reads a model that is neither here nor on the hub.
    """
    for step in reversed(steps):
        if getattr(step.execution, "device", "") == CUDA:
            resolve_device(CUDA)
        load_stage(step.need.stage).check(step)
