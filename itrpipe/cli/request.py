"""A command's request for artifacts: these are planned, and made if they are missing."""

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
"""Stage -> the command that comes next; `twins` is a configuration of `synthesize`, and `frozen` stands for a dataset
of photographs without features."""


@dataclass
class Request:
    """A command's request for an artifact, and for others that it reads with it.

    Attributes:
        root: the data folder.
        dataset: its name.
        overrides: values given by the user; without a scope of the first step.
        no_deps: fail if something upstream is missing.
        dry_run: print the plan with its cost, and make nothing.
        as_json: the answer is JSON on standard output, and everything else goes to standard error.
        takes_finished: the only lists, evaluation or sentences of a model are taken whatever their settings, unless the
            user gave some that differ; lists are taken as the last judges marked them, unless the user named judges or
            decisions.
        definition: of the dataset, with the command's changes; remembered once the stage has succeeded with it.
        model: that is trained or read, if it has a name; its settings are among the overrides.
        steps: that were planned.
    """

    root: Path
    dataset: str
    overrides: Iterable[Override] = ()
    no_deps: bool = False
    dry_run: bool = False
    as_json: bool = False
    takes_finished: bool = False
    definition: DatasetDefinition | None = None
    model: NamedModel | None = None
    steps: list[Step] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.reporter = Reporter(SafeConsole(stderr=self.as_json))
        folder = self.root / check_name(self.dataset)
        # A command that makes nothing leaves no folder behind where there was none.
        may_write = not self.dry_run and (not self.no_deps or folder.is_dir())
        self.planner = Planner(
            self.root,
            self.dataset,
            [*self.overrides],
            self.definition or DatasetDefinition(),
            self.reporter,
            remember=may_write,
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
        """Plan a step, and others that the command reads beside it.

        Args:
            stage: of the step.
            conf: its configuration; None for the default one.
            others: needs of the other steps.
            inputs: steps that it reads beside those that the stage itself asks for.
            settings: that the step must have.

        Raises:
            ItrpipeError: it cannot be planned, or an option is read by no step.
        """
        planner = self.planner
        first = Need(stage, conf or default_conf(planner.definition, stage), settings)
        self.steps = [planner.plan(first, inputs=inputs)]
        self.steps += [planner.plan(each, requested=False) for each in others]
        unread = [each for each in planner.overrides if each not in planner.read]
        refuse_unused(unread, planner.settings)
        if self.takes_finished and stage != "train":  # a training with other settings is another model
            for place, step in enumerate(self.steps):
                self.steps[place] = self._finished(step, is_first=place == 0)
        return self.step

    def _finished(self, step: Step, *, is_first: bool) -> Step:
        """Return the finished artifact that a planned step may stand for, lists as they were judged last."""
        stage = step.need.stage
        scopes: list[str | None] = [stage, step.need.conf]
        if is_first:
            scopes.append(None)
        given = [override.key for override in self.planner.overrides if override.scope in scopes]
        finished = only_finished(step, given)
        if stage != "mine_negatives" or "judges" in given or "decisions" in given:
            return finished
        judged = latest_judged(finished)
        if judged is None:
            return finished
        judges = judged.settings.model_dump()["judges"]
        self.reporter.say(f"lists judged by {' and '.join(judges) or 'people'}; others: --judge")
        self.planner.overrides.append(Override("mine_negatives", "judges", judges))
        return judged

    @property
    def device(self) -> str:
        """Return the device of a planned training: `cpu` or `cuda`.

        Raises:
            UsageError: CUDA is named and is not there.
        """
        return resolve_device(self.step.execution.model_dump()["device"])

    def made(self, what: str, *, whole: bool = False) -> list[Artifact]:
        """Make missing artifacts, unless `no_deps`, and return those of all steps; none after a dry run.

        Args:
            what: word for the command's work, for the header of the plan.
            whole: the artifact is the command's very result: it is made even with `no_deps`, and its plan always shown.

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
        definition = self.planner.definition
        conf = conf or default_conf(definition, stage)
        trained = self.model if stage == "train" else None
        about = ""
        if trained is not None:
            about = f" (model {trained.name})"
            earlier = definition.models.get(trained.name, trained.definition).method
            if earlier != trained.method:
                about = f" (model {trained.name}, {earlier} before)"
        elif stage == "extract" and definition.features[conf].settings:
            settings = [f"{key}={value}" for key, value in definition.features[conf].settings.items()]
            about = f" ({', '.join(settings)})"
        self.reporter.say(f"{self.dataset}: {stage.replace('_', '-')} {conf}{about}", style="bold")
        step = self.plan(stage, conf)
        if trained is not None and not self.dry_run:
            remember_model(self.root, self.dataset, trained.name, trained.definition)
        folder = self.run(with_upstream=not self.no_deps)
        if self.dry_run:
            return folder
        if self.definition is not None:
            changed = self.definition
            if "embeddings" in step.inputs:
                location = step.inputs["embeddings"].location
                embeddings = changed.embeddings[location.label].model_copy(update={"artifact": location.name})
                changed = changed.adding(embeddings={location.label: embeddings})
            remember(self.root, self.dataset, changed, stage, conf)
        if folder.exists():
            if step.state == "up to date":
                load_stage(stage).show(folder, self.reporter)
            self.reporter.say(str(folder))
            command = self.next_command()
            if command:
                self.reporter.say(f"next: {command}")
            remedy = f"correct these files, remove {folder} and run the same command again"
            refuse_incomplete(folder, "image", remedy, strict=getattr(step.execution, "strict", False))
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
        """Return the given settings as options of another stage, those of the model only if it has no name."""
        first_stage = self.step.location.stage
        left_out = ("method", "backbone", *load_stage(first_stage).execution.model_fields)
        options = ""
        for override in self.planner.overrides:
            key = override.key
            value = override.value
            if override.origin != COMMAND_LINE or override.scope == EVERYWHERE or key in left_out:
                continue
            scope = override.scope or first_stage
            if override.scope is None and key in NAMING:
                if of_model:
                    options += f" --{key} {value}"
            elif scope == stage and key == "judges":
                for judge in value:
                    options += f" --judge {shlex.quote(judge)}"
            elif scope == stage or (of_model and scope != "evaluate"):
                text = value if isinstance(value, str) else json.dumps(value)
                assignment = f"{scope}.{key}={text}"
                options += f" --set {shlex.quote(assignment)}"
        return options

    def next_command(self) -> str:
        """Return the command that comes after the one that made the first step; empty if there is none."""
        location = self.step.location
        stage = location.stage
        conf = self.step.need.conf
        definition = load_definition(self.root, self.dataset)
        if definition.prepare is not None and definition.prepare.conf == GIVEN:
            return ""  # there are neither captions nor photographs
        values = {"dataset": f"--dataset {self.dataset}", "name": self.dataset, "by": conf}
        if stage in ("prepare", "extract"):
            features = [*definition.features]
            name = conf
            chosen = conf
            if stage == "prepare":
                name = "first"
                chosen = features[-1] if features else ""
                if not chosen:
                    stage = FROZEN
            is_only = features == [chosen]
            values["features"] = "" if is_only else f" --features {chosen}"
            if name in definition.models:
                stage = "train"
                values["model"] = f"--model {name}"
        elif stage == "mine_negatives":  # the only lists of a model are taken without their settings, if nobody judged
            lists = [*location.folder.parent.glob(f"{location.label}-????????")]
            is_judged = stage in self.step.inputs
            values["model"] = self.model_options(self.step, stage if len(lists) > 1 or is_judged else "")
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
        """Return the option that compares an evaluated model with the one that mined for it; empty if none did."""
        model = first_model(self.step.inputs)
        if "mine_negatives" not in model.inputs:
            return ""
        trainings = definition.named_trainings()
        name = trainings.get(model.location.name)
        miner = trainings.get(first_model(model.inputs["mine_negatives"].inputs).location.name)
        if name is None or miner in (None, name):
            return ""
        evaluations = earlier_artifacts(self.step.location.folder.parent).values()
        evaluated = {first_model(each.inputs).name for each in evaluations}
        if evaluated.isdisjoint(definition.models[miner].trained.values()):
            return ""
        return f" --compare {miner} {name}"


def default_conf(definition: DatasetDefinition, stage: str) -> str:
    """Return the configuration that a stage runs with when none is named."""
    if stage == "prepare":
        return prepare_need(definition).conf
    return next(iter(load_declaration(stage).confs))


def refuse_incomplete(folder: Path, what: str, remedy: str, *, strict: bool = False) -> None:
    """End a command whose result lacks images that could not be used.

    Raises:
        IncompleteError: there are such images.
        DataError: there are, and the command is strict.
    """
    failed = read_manifest(folder).failed
    if not failed:
        return
    image, reason = next(iter(failed.items()))
    problem = (
        f"{quantity(len(failed), what)} could not be used; the first: {image} {reason}. All are listed as 'failed' in "
        f"{folder / MANIFEST}; {remedy}"
    )
    if strict:
        raise DataError(f"--strict was given, and {problem}")
    raise IncompleteError(f"finished, but {problem}")


def remembered(
    stage: str, defined: StageDefinition, known: StageDefinition | None, overrides: Iterable[Override]
) -> tuple[StageDefinition, list[Override]]:
    """Add the given settings of a stage to its definition, and make the files that they name absolute.

    Earlier settings stay, unless the stage reads other files now. Settings of execution and of other stages are not
    remembered.

    Args:
        stage: its name.
        defined: the definition, by the command's other options.
        known: the earlier definition; None if there is none.
        overrides: from the command line.

    Returns:
        The definition, and the overrides with absolute paths.
    """
    parts = defined.conf.split("+")
    execution = load_stage(stage).execution.model_fields
    settings = {}
    if known and (known.conf, known.source) == (defined.conf, defined.source):
        settings |= known.settings
    absolute = []
    for override in overrides:
        if override.scope in (None, stage, *parts) and override.key not in execution:
            if names_a_file(override.key.rpartition(".")[2], override.value):
                override = replace(override, value=absolute_path(override.value))
            is_of_part = len(parts) > 1 and override.scope in parts
            key = override.name if is_of_part else override.key
            # The last value counts, also where the key is spelled otherwise (`grid`, `hog.grid`).
            settings.pop(key, None)
            settings[key] = override.value
        absolute.append(override)
    return defined.model_copy(update={"settings": settings}), absolute


def absolute_path(value: Any) -> Any:
    """Return the absolute path of a file or folder, since later commands may run elsewhere; a hub id as it is."""
    if not value:
        return value
    path = Path(value).expanduser()
    return str(path.resolve()) if path.exists() else value


def absolute_judges(names: list[str] | None) -> list[str] | None:
    """Return names of judges with absolute paths of models that are folders."""
    judges = []
    for name in names or ():
        kind, colon, model = name.partition(":")
        judges.append(f"{kind}{colon}{absolute_path(model)}")
    return judges or None


def place_of(option: str, path: Path) -> str:
    """Return the absolute path of a file or folder that an option names.

    Raises:
        MissingInputError: it is not there.
    """
    if not path.exists():
        raise MissingInputError(f"{option} {path} does not exist; name what is, absolute or below {Path.cwd()}")
    return str(path.resolve())
