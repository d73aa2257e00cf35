"""Artifacts that a command asks for: they are planned, and made where they are missing."""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from itrpipe.config import COMMAND_LINE, EVERYWHERE, Override, load_declaration
from itrpipe.datasets.archives import in_archive
from itrpipe.datasets.definition import (
    DatasetDefinition,
    StageDefinition,
    check_name,
    image_root,
    load_definition,
    remember,
    remember_model,
)
from itrpipe.engine.work import resolve_device
from itrpipe.errors import DataError, IncompleteError, MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, first_model, names_a_file
from itrpipe.pipeline.models import NAMING, NamedModel, data_option, options_of
from itrpipe.pipeline.planning import Planner, refuse_unused
from itrpipe.pipeline.run import run
from itrpipe.pipeline.steps import earlier_artifacts, latest_judged, only_finished
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.stages.base import Artifact, Need, Step, load_stage, prepare_need
from itrpipe.storage.artifact import MANIFEST, read_manifest

TWINS = "twins"
FROZEN = "frozen"
NEXT = {
    FROZEN: "train {dataset} --name first --method contrastive-batch --vision google/mobilenet_v2_1.0_224 --text "
    "sentence-transformers/all-MiniLM-L6-v2 --set freeze=both --set model.embed_dim=256",
    "prepare": "train {dataset} --name first --backbone vsepp --method contrastive-batch{features}",
    "extract": "train {dataset} --name {by} --backbone vsepp --method contrastive-batch{features}",
    "parse": "synthesize {dataset} --by graph-edits",
    "synthesize": "train {dataset} --name {by} --negatives synthetic --set sentences={by}",
    TWINS: "train {dataset} --name twins --negatives twins",
    "train": "evaluate {model}",
    "mine_negatives": "export-negatives {model} --to {name}-negatives{root}",
    "evaluate": "report {dataset}{compared}",
}
"""Stage, or its configuration where that is a key -> the command that comes next; of photographs without features that
of frozen encoders."""


@dataclass
class Asked:
    """Artifacts that a command asks for.

    Attributes:
        root: the data folder.
        dataset: its name.
        overrides: values given by the user; without a scope of the first step.
        no_deps: fail where something is missing.
        dry_run: print the plan and what it will cost, and make nothing.
        as_json: the answer is JSON on standard output, and everything else goes to standard error.
        asks: it reads what is there: the only lists, evaluation or sentences of a model are taken whatever their
            settings, unless the user gave some that differ; lists as the last judges marked them, unless the user named
            judges or decisions.
        definition: what is new about the dataset; remembered once the stage has succeeded with it.
        model: that is trained or read, if it has a name; its settings are among the overrides.
        steps: that were planned.
    """

    root: Path
    dataset: str
    overrides: Iterable[Override] = ()
    no_deps: bool = False
    dry_run: bool = False
    as_json: bool = False
    asks: bool = False
    definition: DatasetDefinition | None = None
    model: NamedModel | None = None
    steps: list[Step] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.reporter = Reporter(SafeConsole(stderr=self.as_json))
        folder = self.root / check_name(self.dataset)
        self.planner = Planner(
            self.root,
            self.dataset,
            [*self.overrides],
            self.definition or DatasetDefinition(),
            self.reporter,
            # A command that makes nothing leaves no folder behind where there was none.
            remember=not self.dry_run and (not self.no_deps or folder.is_dir()),
            model=self.model,
        )

    @property
    def step(self) -> Step:
        """Return the first step."""
        return self.steps[0]

    @property
    def label(self) -> str:
        """Return the label of its artifact."""
        return self.step.location.label

    def plan(
        self,
        stage: str,
        conf: str | None = None,
        *others: Need,
        inputs: Mapping[str, Step] | None = None,
        **settings: Any,
    ) -> Step:
        """Plan a step, and others that are asked beside it.

        Args:
            stage: of the step.
            conf: its configuration; None for the usual one.
            others: what is read beside it.
            inputs: steps that it reads beside those that the stage itself asks for.
            settings: that it must have.

        Raises:
            ItrpipeError: it cannot be planned, or an option is read by no step.
        """
        planner = self.planner
        first = Need(stage, conf or default_conf(planner.definition, stage), settings)
        self.steps = [planner.plan(first, inputs=inputs)]
        self.steps += [planner.plan(each, requested=False) for each in others]
        refuse_unused([each for each in planner.overrides if each not in planner.read], planner.settings)
        if self.asks and stage != "train":  # a training with other settings is another model
            for place, step in enumerate(self.steps):
                scopes = step.need.stage, step.need.conf, None if place == 0 else step.need.stage
                given = [item.key for item in planner.overrides if item.scope in scopes]
                self.steps[place] = only_finished(step, given)
                if step.need.stage == "mine_negatives" and not {"judges", "decisions"}.intersection(given):
                    judged = latest_judged(self.steps[place])
                    if judged is not None:
                        judges = judged.settings.model_dump()["judges"]
                        self.reporter.say(f"lists judged by {' and '.join(judges) or 'people'}; others: --judge")
                        self.steps[place] = judged
                        planner.overrides.append(Override("mine_negatives", "judges", judges))
        return self.step

    @property
    def device(self) -> str:
        """Return the device of a planned training: `cpu` or `cuda`.

        Raises:
            UsageError: CUDA was asked for and is not there.
        """
        return resolve_device(self.step.execution.model_dump()["device"])

    def made(self, what: str, *, whole: bool = False) -> list[Artifact]:
        """Make what is missing, unless `no_deps`, and return the artifacts of all steps; none after a dry run.

        Args:
            what: the command does, for the header of the plan.
            whole: it is what was asked for: it is made even with `no_deps`, and its plan shown also where it is there.

        Raises:
            UsageError: something is not up to date and `no_deps` is set.
            DataError: something is damaged and `no_deps` is set.
        """
        missing = [step for step in self.steps if step.state != "up to date"]
        if missing and self.no_deps and not (self.dry_run or whole):
            first = missing[0]
            if first.state == "damaged":
                raise DataError(first.reason)
            raise UsageError(
                f"{first.title} is not up to date ({first.reason or first.state}); run `{self.command_of(first)}`, or "
                "add --make to make it here"
            )
        if missing or self.dry_run or whole:
            self.reporter.say(f"{self.dataset}: {what} {self.label}", style="bold")
            self.run()
        if self.dry_run:
            return []
        return [Artifact.of(step.location.folder) for step in self.steps]

    def run(self, *, with_upstream: bool = True) -> Path:
        """Run what is missing, or print the plan and its costs; return the folder of the first step."""
        run(self.steps, self.reporter, dry_run=self.dry_run, with_upstream=with_upstream)
        return self.step.location.folder

    def run_stage(self, stage: str, conf: str | None = None) -> Path:
        """Plan one stage, run what is missing, and print the command that comes next.

        A named model that is trained is remembered once it is planned.

        Args:
            stage: its name.
            conf: its configuration; by default the only one of the stage, for `prepare` the dataset's own.

        Returns:
            The artifact's folder.

        Raises:
            IncompleteError: the artifact is finished but lacks images that could not be used.
            DataError: the same, and the step is strict.
        """
        known = self.planner.definition
        conf = conf or default_conf(known, stage)
        about, trained = "", None
        if stage == "train":
            trained = self.model
        if trained is not None:
            earlier = known.models.get(trained.name, trained.definition).method
            about = f" (model {trained.name})"
            if earlier != trained.method:
                about = f" (model {trained.name}, {earlier} before)"
        elif stage == "extract" and known.features[conf].settings:
            about = f" ({', '.join(f'{key}={value}' for key, value in known.features[conf].settings.items())})"
        self.reporter.say(f"{self.dataset}: {stage.replace('_', '-')} {conf}{about}", style="bold")
        step = self.plan(stage, conf)
        if trained is not None and not self.dry_run:
            remember_model(self.root, self.dataset, trained.name, trained.definition)
        folder = self.run(with_upstream=not self.no_deps)
        if self.dry_run:
            return folder
        defined = self.definition
        if defined is not None:
            if "embeddings" in step.inputs:
                place = step.inputs["embeddings"].location
                made = defined.embeddings[place.label].model_copy(update={"artifact": place.name})
                defined = defined.adding(embeddings={place.label: made})
            remember(self.root, self.dataset, defined, stage, conf)
        if folder.exists():
            if step.state == "up to date":
                load_stage(stage).show(folder, self.reporter)
            self.reporter.say(str(folder))
            command = self.next_command()
            if command:
                self.reporter.say(f"next: {command}")
            refuse_incomplete(
                folder,
                "image",
                f"correct these files, remove {folder} and run the same command again",
                strict=getattr(step.execution, "strict", False),
            )
        return folder

    def command_of(self, step: Step) -> str:
        """Return the command that makes a planned step."""
        stage = step.location.stage
        if stage == "index" and step.definition:
            settings = step.settings.model_dump()
            dataset, _, model = settings["called"].partition(".")
            if model not in load_definition(self.root, dataset).models:
                model = settings["model"]
            chosen = f"--photos {shlex.quote(str(step.definition.source))} --model {shlex.quote(model)}"
        elif stage == "synthesize":
            chosen = f"--dataset {self.dataset} --by {step.need.conf}{self._given_for(stage)}"
        else:
            chosen = self.model_options(step, stage)
        return f"itrpipe {stage.replace('_', '-')} {chosen}{data_option(self.root)}"

    def model_options(self, step: Step, stage: str) -> str:
        """Return the options by which the command of a stage names the model that a planned step trains or reads."""
        model = step if step.location.stage == "train" else first_model(step.inputs)
        is_unnamed = model.location.stage == "train" and not model.model
        return f"{options_of(model)}{self._given_for(stage, of_model=is_unnamed)}"

    def _given_for(self, stage: str, *, of_model: bool = True) -> str:
        """Return the given settings as options of another stage, those of the model only where it has no name."""
        own, options = self.step.location.stage, ""
        unsaid = ("method", "backbone", *load_stage(own).execution.model_fields)
        for item in self.planner.overrides:
            if item.origin != COMMAND_LINE or item.scope == EVERYWHERE or item.key in unsaid:
                continue
            scope, value = item.scope or own, item.value
            if item.scope is None and item.key in NAMING:
                if of_model:
                    options += f" --{item.key} {value}"
            elif scope == stage and item.key == "judges":
                for judge in value:
                    options += f" --judge {shlex.quote(judge)}"
            elif scope == stage or (of_model and scope != "evaluate"):
                text = value if isinstance(value, str) else json.dumps(value)
                options += f" --set {shlex.quote(f'{scope}.{item.key}={text}')}"
        return options

    def next_command(self) -> str:
        """Return the command that comes after the one that made the first step; empty where none does."""
        location, conf = self.step.location, self.step.need.conf
        definition, stage = load_definition(self.root, self.dataset), location.stage
        if definition.prepare is not None and definition.prepare.conf == GIVEN:
            return ""  # there are neither captions nor photographs
        values = {"dataset": f"--dataset {self.dataset}", "name": self.dataset, "by": conf}
        if stage in ("prepare", "extract"):
            features = [*definition.features]
            chosen = conf
            if stage == "prepare":
                chosen = features[-1] if features else ""
            values["features"] = "" if features == [chosen] else f" --features {chosen}"
            name = "first" if stage == "prepare" else conf
            if not chosen:
                stage = FROZEN
            if name in definition.models:
                stage, values["model"] = "train", f"--model {name}"
        elif stage == "mine_negatives":  # the only lists of a model are taken without their settings, if nobody judged
            several = len([*location.folder.parent.glob(f"{location.label}-????????")]) > 1
            is_judged = stage in self.step.inputs
            values["model"] = self.model_options(self.step, stage if several or is_judged else "")
            prepared = Artifact.of(location.folder).input("prepare")
            root = image_root(prepared.folder)
            values["root"] = f" --image-root {shlex.quote(str(root))}"
            if prepared.manifest.settings["kind"] == "files":
                from itrpipe.datasets.prepared import PreparedDataset  # it reads tables, which takes long to load

                if in_archive(root / PreparedDataset.open(prepared.folder).column("file")[0]):
                    values["root"] = ""
        elif stage == "train":
            values["model"] = self.model_options(self.step, "evaluate")
        elif stage == "evaluate":
            values["compared"] = self._compared(definition)
        if conf == TWINS:
            stage = TWINS
        if stage not in NEXT:
            return ""
        return f"itrpipe {NEXT[stage].format(**values)}{data_option(self.root)}"

    def _compared(self, definition: DatasetDefinition) -> str:
        """Return the option that compares an evaluated model with the one that mined for it; empty where none did."""
        model = first_model(self.step.inputs)
        if "mine_negatives" not in model.inputs:
            return ""
        named = definition.named_trainings()
        own = named.get(model.location.name)
        miner = named.get(first_model(model.inputs["mine_negatives"].inputs).location.name)
        if own is None or miner in (None, own):
            return ""
        evaluations = earlier_artifacts(self.step.location.folder.parent).values()
        evaluated = {first_model(each.inputs).name for each in evaluations}
        if evaluated.isdisjoint(definition.models[miner].trained.values()):
            return ""
        return f" --compare {miner} {own}"


def default_conf(definition: DatasetDefinition, stage: str) -> str:
    """Return the configuration that a stage runs with when none is named."""
    return prepare_need(definition).conf if stage == "prepare" else next(iter(load_declaration(stage).confs))


def refuse_incomplete(folder: Path, what: str, remedy: str, *, strict: bool = False) -> None:
    """End a command whose result lacks images that could not be used.

    Raises:
        IncompleteError: there are such images.
        DataError: there are, and the command is strict.
    """
    failed = read_manifest(folder).failed
    for image, reason in failed.items():
        told = (
            f"{quantity(len(failed), what)} could not be used; the first: {image} {reason}. All are listed as "
            f"'failed' in {folder / MANIFEST}; {remedy}"
        )
        if strict:
            raise DataError(f"--strict was given, and {told}")
        raise IncompleteError(f"finished, but {told}")


def remembered(
    stage: str, defined: StageDefinition, known: StageDefinition | None, overrides: Iterable[Override]
) -> tuple[StageDefinition, list[Override]]:
    """Return a definition with the settings that it was told now, and before unless it reads other files by now.

    What is told of execution, and of other stages, is not remembered. The overrides name files by their whole paths.
    """
    parts, execution = defined.conf.split("+"), load_stage(stage).execution.model_fields
    settings = {}
    if known and (known.conf, known.source) == (defined.conf, defined.source):
        settings |= known.settings
    whole = []
    for item in overrides:
        if item.scope in (None, stage, *parts) and item.key not in execution:
            if names_a_file(item.key.rpartition(".")[2], item.value):
                item = replace(item, value=whole_file(item.value))
            key = item.name if len(parts) > 1 and item.scope in parts else item.key
            # What was said last counts, also where it is spelled otherwise (`grid`, `hog.grid`).
            settings.pop(key, None)
            settings[key] = item.value
        whole.append(item)
    return defined.model_copy(update={"settings": settings}), whole


def whole_file(value: Any) -> Any:
    """Return a file or folder by its whole path, since later commands may run elsewhere; a hub id as it is."""
    if value and Path(value).expanduser().exists():
        return str(Path(value).expanduser().resolve())
    return value


def whole_judges(names: list[str] | None) -> list[str] | None:
    """Return names of judges, the models of which are folders by their whole paths."""
    found = []
    for name in names or ():
        kind, colon, model = name.partition(":")
        found.append(f"{kind}{colon}{whole_file(model)}")
    return found or None


def place_of(option: str, path: Path) -> str:
    """Return a file or folder that an option names, by its whole path.

    Raises:
        MissingInputError: it is not there.
    """
    if not path.exists():
        raise MissingInputError(f"{option} {path} does not exist; name what is, absolute or below {Path.cwd()}")
    return str(path.resolve())
