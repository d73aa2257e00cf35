"""Plan the steps that a command needs, and find which are up to date, missing or stale, and why.

A plan is a graph of steps. Every fingerprint in it is computed from settings and sources alone, so planning runs
nothing and imports no deep-learning library.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from itrpipe.config import (
    EVERYWHERE,
    Override,
    Resolved,
    Settings,
    bind,
    complete_key,
    declared_backbone,
    did_you_mean,
    load_declaration,
    resolve,
    setting_keys,
)
from itrpipe.datasets.definition import WITHOUT_CHOICE, DatasetDefinition, StageDefinition, load_definition
from itrpipe.engine.work import CUDA, resolve_device
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, NOT_HERE, is_given
from itrpipe.models.declaration import backbone_names, canonical_backbone
from itrpipe.pipeline.models import NamedModel
from itrpipe.pipeline.steps import pending_steps, state_of
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need, Step, load_stage
from itrpipe.storage.artifact import DigestCache, Location, Manifest, fingerprint, folders_in


def refuse_unused(overrides: Iterable[Override], known: Iterable[str] = ()) -> None:
    """Refuse overrides that no step reads.

    Args:
        overrides: that no step has read.
        known: settings that the steps have.

    Raises:
        UsageError: there is one.
    """
    for override in overrides:
        remedy = did_you_mean(override.key, known) or "; leave it out"
        raise UsageError(f"setting {override.name} (from {override.origin}) is read by no step of this plan{remedy}")


SOURCE_CACHE = "sources.json"
_REQUIRED = "required by the step that reads it"
"""Origin of settings."""
_WITHOUT_DATASET = ("index", "report")
"""Stages that read no prepared dataset."""


@dataclass
class Planner:
    """Planner of the steps of one dataset.

    Args:
        root: the data folder.
        dataset: dataset name.
        overrides: values from the command line or a recipe.
        definition: read from the data folder unless given (a recipe brings its own).
        reporter: shows progress when sources have to be hashed.
        remember: keep the hashes of sources for the next plan; off when nothing may be written.
        digests: hashes of sources that planners of one dataset share.
        model: that is trained or read, if it has a name; its settings are among the overrides.
        above: names of models whose training is part of what these plans are for.
    """

    root: Path
    dataset: str
    overrides: list[Override] = field(default_factory=list)
    definition: DatasetDefinition = field(default_factory=DatasetDefinition)
    reporter: Reporter | None = None
    remember: bool = True
    digests: DigestCache | None = None
    model: NamedModel | None = None
    above: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.definition == DatasetDefinition():
            self.definition = load_definition(self.root, self.dataset)
        self._cache = self.digests or DigestCache(self.root / self.dataset / SOURCE_CACHE, self.reporter)
        self._known: dict[str, Step] = {}
        self._underway: list[str] = []
        self.read: set[Override] = set()  # overrides that a step reads
        self.settings: set[str] = set()  # dotted keys of all steps, for messages

    def plan(self, need: Need, *, requested: bool = True, inputs: Mapping[str, Step] | None = None) -> Step:
        """Plan a step and everything upstream of it.

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
        key = repr((need, requested))
        if key not in self._known:
            if key in self._underway:
                raise UsageError(f"{need.stage} {need.conf} would be made from itself; give it another start_from")
            self._underway.append(key)
            try:
                trainings = {}
                # Trainings of named models have their own settings, and the seed of the step that reads them.
                for name, model in need.named.items():
                    trainings[name] = self.of_model(model, need.settings["seed"])
                self._known[key] = self._plan(need, requested, trainings)
            finally:
                self._underway.pop()
            if not self._underway:
                load_stage(need.stage).check_read(self._known[key])  # whether or not it has to run
                refuse_hopeless(pending_steps([self._known[key]]))
            if self.remember:
                self._cache.save()
        return self._known[key]

    def _plan(self, need: Need, requested: bool, planned: Mapping[str, Step]) -> Step:
        """Plan a step and its inputs, of which some are planned already."""
        stage = load_stage(need.stage)
        if need.stage not in _WITHOUT_DATASET:
            self._definition_of(Need("prepare", ""))
        definition = self._definition_of(need)
        settings, execution, resolved = self.configure(need, definition, requested=requested, fill=True)
        inputs = dict[str, Step]()
        for name, upstream in stage.needs(settings, self.definition).items():
            if name in planned:
                continue
            start = inputs.get("start")
            if upstream.stage == "encode" and start is not None and name in start.inputs:
                inputs[name] = start.inputs[name]  # the training before froze this encoder, too, and left it as it was
            elif upstream.without:
                inputs[name] = self.plan(replace(upstream, named=need.named), requested=requested)
            else:
                inputs[name] = self.plan(upstream, requested=False)
        inputs |= planned
        key = repr((need.stage, settings, definition))
        if key not in self._cache.of_steps:
            self._cache.of_steps[key] = stage.sources(settings, definition, self._cache)
        sources = self._cache.of_steps[key]
        digests = {}
        for name, upstream in inputs.items():
            digests[name] = upstream.location.fingerprint
        for name, digest in sources.items():
            digests[f"source {name}"] = digest
        location = Location(
            self.root,
            self.dataset,
            need.stage,
            stage.label(need.conf, settings),
            fingerprint(need.stage, stage.schema_version, settings.counted(), digests),
        )
        model = ""
        if self.model is not None and (need.stage, need.conf) == ("train", self.model.method):
            is_its_backbone = need.settings.get("backbone") == self.model.backbone
            if requested or is_its_backbone:
                model = self.model.name  # also where the command line changes its settings
        step = Step(need, settings, execution, resolved, inputs, sources, definition, location, "missing", model=model)
        read = {}
        for name, upstream in inputs.items():
            trained = self._trained_before(upstream)
            if trained is not None:
                read[name] = (upstream.location.name, trained)
        state, reason = state_of(step, self._trained_before(step), read)
        if state == "up to date":
            for name, upstream in inputs.items():
                # It will be replaced by an artifact of the same name and perhaps of other bytes.
                if upstream.state == "stale" and upstream.location.folder.exists():
                    return replace(step, state="stale", reason=f"{name} is to be made again")
        return replace(step, state=state, reason=reason)

    def _trained_before(self, step: Step) -> str | None:
        """Return the artifact that has the name of a step's model so far, or "" if none has.

        None if the step trains no named model.
        """
        if not step.model:
            return None
        model = self.definition.models.get(step.model)
        if model is None:
            return ""
        return model.trained.get(step.location.label, "")

    def of_model(self, name: str, seed: int) -> Step:
        """Plan the training of a named model by the dataset's definition, whatever else is planned.

        Args:
            name: of the model.
            seed: of the training.

        Raises:
            UsageError: it would be made from itself, or cannot be planned.
            MissingInputError: what it reads is not there.
        """
        above = self.above
        if self.model:
            above |= {self.model.name}
        if name in above:
            raise UsageError(f"model {name} would be made from itself; name another model with --negatives-from")
        model = NamedModel(name, self.dataset, self.definition.models[name])
        overrides = [override for override in self.overrides if override.scope == EVERYWHERE]
        overrides += model.overrides(read=False)
        overrides.append(Override(None, "seed", seed))
        other = replace(self, overrides=overrides, digests=self._cache, model=model, above=above)
        other._underway.append(name)  # what cannot work is refused by the plan that this is part of
        return other.plan(Need("train", model.method))

    def _definition_of(self, need: Need) -> StageDefinition | None:
        """Return the part of the dataset's definition that belongs to a step, for the stages that read outside files.

        Raises:
            MissingInputError: the dataset was never prepared, or has no features or embeddings of this name.
        """
        definition = self.definition
        dataset = self.dataset
        if need.stage == "prepare":
            if definition.prepare is None:
                hint = did_you_mean(dataset, [folder.name for folder in folders_in(self.root)])
                otherwise = f"{hint} If not," if hint else ";"
                raise MissingInputError(
                    f"dataset {dataset!r} is not defined in {self.root.resolve()}{otherwise} "
                    f"run `itrpipe prepare --dataset {dataset} --source FOLDER`, or name another folder with --data"
                )
            return definition.prepare
        if need.stage == "extract":
            if need.conf in definition.features:
                return definition.features[need.conf]
            if need.conf in WITHOUT_CHOICE:
                return StageDefinition(conf=need.conf)
            known = list(dict.fromkeys([*definition.features, *WITHOUT_CHOICE]))
            hint = did_you_mean(need.conf, known) or f"; run `itrpipe extract --dataset {dataset} --features NAME`"
            raise MissingInputError(
                f"dataset {dataset!r} has no features {need.conf!r} (has: {', '.join(known)}){hint}"
            )
        if need.stage == "index":
            return definition.photographs
        if need.stage == "train" and need.conf == GIVEN:
            raise UsageError(f"{NOT_HERE}, and take files by --embeddings")
        if need.stage == "embeddings":
            name = need.settings["name"]
            split = need.settings["split"]
            label = f"{name}.{split}"
            if label in definition.embeddings:
                return definition.embeddings[label]
            known = ", ".join(definition.embeddings) or "none"
            raise MissingInputError(
                f"dataset {dataset!r} knows no embeddings {name!r} of split {split!r}, and has {known}; name their "
                "files with --embeddings"
            )
        return None

    def configure(
        self, need: Need, definition: StageDefinition | None = None, *, requested: bool = True, fill: bool = False
    ) -> tuple[Settings, Settings, Resolved]:
        """Configure one step by the declarations, its reader's need, the dataset's definition and the overrides.

        Args:
            need: the step.
            definition: of the dataset, as far as it is about the step.
            requested: whether overrides without a scope apply to it.
            fill: choose the dataset's features where none are named and some are read.

        Returns:
            Settings, execution settings, and the values of the former with their origins.

        Raises:
            UsageError: an unknown setting or a value out of range.
        """
        prepare = self.definition.prepare
        if definition is None and need.stage == "prepare" and prepare and prepare.conf == need.conf:
            definition = prepare
        stage = load_stage(need.stage)
        declaration = load_declaration(need.stage)
        conf = definition.conf if definition else need.conf
        parts = conf.split("+")
        execution = Resolved()
        execution.merge(declaration.execution, f"{declaration.path.name} [execution]")
        backbone = need.settings.get("backbone", declared_backbone(declaration, conf, backbone_names(), self.dataset))
        chosen: list[tuple[Override, str]] = []
        for override in self._overrides_of(need, definition, requested):
            key = override.key
            if key in stage.execution.model_fields:
                execution.merge({key: override.value}, override.origin)
                self.read.add(override)
                continue
            if key == "backbone":
                backbone = override.value
            if override.scope in parts and override.scope != conf:  # of a part of a combination `a+b`
                key = override.name
            chosen.append((override, key))

        backbone = canonical_backbone(backbone) if isinstance(backbone, str) else None
        resolved = resolve(declaration, conf, backbones=backbone_names(), backbone=backbone, dataset=self.dataset)
        resolved.merge(need.settings, _REQUIRED)
        values = {**resolved.values, "backbone": backbone}
        known = {*resolved.origins, *setting_keys(stage.settings_class(values), values)}
        self.settings |= known
        for override, short in chosen:
            key = complete_key(short, known)
            is_setting = any(f"{name}.".startswith(f"{key}.") or key.startswith(f"{name}.") for name in known)
            if override.scope == need.stage and not is_setting:
                continue  # an override of a stage applies to those of its steps that have such a setting
            # An input with other settings than its reader asked for would carry a name that it does not deserve.
            if not requested and need.settings.get(key, override.value) != override.value:
                raise UsageError(
                    f"{need.stage}.{key} = {override.value!r} (from {override.origin}) contradicts {key} = "
                    f"{need.settings[key]!r} of the step that reads it; set {key} of that step instead"
                )
            self.read.add(override)
            resolved.merge({key: override.value}, override.origin)
        settings = bind(stage.settings_class(resolved.values), resolved, f"{need.stage} {need.conf}")
        if fill and "features" in resolved.values:
            features, origin = self._features_of(need, settings, resolved.origins["features"])
            resolved.merge({"features": features}, origin)
            settings = bind(type(settings), resolved, f"{need.stage} {need.conf}")
        return settings, bind(stage.execution, execution, need.stage), resolved

    def _overrides_of(self, need: Need, definition: StageDefinition | None, requested: bool) -> Iterator[Override]:
        """Yield the overrides that hold for a step, the weakest first."""
        conf = need.conf
        if definition is not None:
            conf = definition.conf
            for key, value in definition.settings.items():
                yield Override(None, key, value, "dataset.json")
        scopes: set[str | None] = {need.stage, need.conf, *conf.split("+")}
        if requested:
            scopes.add(None)
        execution = load_stage(need.stage).execution.model_fields
        for override in self.overrides:
            if override.backbone not in ("", need.settings.get("backbone")) or override.key in need.without:
                continue
            if override.scope in scopes or (override.scope == EVERYWHERE and override.key in execution):
                yield override

    def _features_of(self, need: Need, settings: Any, origin: str) -> tuple[str, str]:
        """Return the features that a step or the model behind it reads, and the origin of this choice.

        Where no features are named, these are the only ones of the dataset; for a model of photographs, none.

        Raises:
            UsageError: the dataset has several and none are named, or some are named for a model of photographs.
            MissingInputError: the dataset has none.
        """
        training: Any = settings
        if is_given(getattr(settings, "backbone", "")):
            return settings.features, origin
        if need.stage != "train" and hasattr(settings, "method"):
            model = Need("train", settings.method, {"backbone": settings.backbone})
            training, _, _ = self.configure(model, requested=False)
        if getattr(training, "reads_photographs", False):
            if settings.features and origin != _REQUIRED:
                raise UsageError(
                    f"{need.conf} of {settings.backbone} reads the photographs themselves, and no features; leave "
                    f"--features {settings.features} out, or name a --backbone that reads features"
                )
            return "", origin
        if settings.features:
            return settings.features, origin
        extracted = {folder.name.rpartition("-")[0] for folder in folders_in(self.root / self.dataset / "extract")}
        # Nobody named these features to `itrpipe extract`, but a model has read them.
        unnamed = [name for name in WITHOUT_CHOICE if name in extracted]
        return self.definition.default_features(self.dataset, unnamed), "dataset.json"


def pinned_step(root: Path, manifest: Manifest) -> Step:
    """Return a finished artifact as a step of a plan, taken as it is whatever the declarations say today."""
    location = Location(root, manifest.dataset, manifest.stage, manifest.label, manifest.fingerprint)
    need = Need(manifest.stage, manifest.conf, manifest.settings)
    return Step(need, Settings(), Settings(), Resolved(), {}, manifest.sources, None, location, "up to date")


def refuse_hopeless(steps: Sequence[Step]) -> None:
    """Let every stage check its steps before any of them runs.

    Args:
        steps: that have to run, in order. The last are checked first: they know best what the others are for.

    Raises:
        UsageError: one of them cannot work, as far as its settings and what is finished by now tell, or there is no
            CUDA device and it was asked for.
        MissingInputError: one reads a model that is neither here nor on the hub.
    """
    for step in reversed(steps):
        if getattr(step.execution, "device", "") == CUDA:
            resolve_device(CUDA)
        load_stage(step.need.stage).check(step)
