"""What a command asks of stages: it is planned, and made where it is missing."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from itrpipe.cli.named import NamedModel
from itrpipe.config import load_declaration
from itrpipe.datasets.definition import DatasetDefinition, check_name, load_definition, remember, remember_model
from itrpipe.engine.work import resolve_device
from itrpipe.errors import DataError, IncompleteError, UsageError
from itrpipe.pipeline.planning import Override, Planner
from itrpipe.pipeline.run import run, say_costs
from itrpipe.pipeline.steps import pending_steps
from itrpipe.printable import quantity
from itrpipe.progress import Reporter, SafeConsole
from itrpipe.stages.base import Need, Step, load_stage, prepare_need
from itrpipe.storage.artifact import MANIFEST, read_manifest
from itrpipe.training.settings import TrainExecution, TrainSettings


@dataclass
class Asked:
    """What a command asks.

    Attributes:
        root: the data folder.
        dataset: its name.
        overrides: values given by the user; without a scope of the first step.
        no_deps: fail where something is missing.
        dry_run: print the plan and what it will cost, and make nothing.
        as_json: the answer is JSON on standard output, and everything else goes to standard error.
        definition: of the dataset, if it is another than the data folder knows.
        steps: that were planned.
    """

    root: Path
    dataset: str
    overrides: Iterable[Override] = ()
    no_deps: bool = False
    dry_run: bool = False
    as_json: bool = False
    definition: DatasetDefinition = field(default_factory=DatasetDefinition)
    steps: list[Step] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.reporter = Reporter(SafeConsole(stderr=self.as_json))
        dataset = check_name(self.dataset)
        # A command that makes nothing leaves no folder behind where there was none.
        remembered = not self.dry_run and (not self.no_deps or (self.root / dataset).is_dir())
        self.planner = Planner(self.root, dataset, [*self.overrides], self.definition, self.reporter, remembered)

    @property
    def step(self) -> Step:
        """The first step."""
        return self.steps[0]

    @property
    def label(self) -> str:
        """The name of its artifact."""
        return self.step.location.label

    def plan(self, stage: str, conf: str | None = None, *others: Need, **settings: str) -> Step:
        """Plans a step, and others that are asked beside it.

        Args:
            stage: of the step.
            conf: its configuration; None for the usual one.
            others: what is read beside it.
            settings: that it must have.

        Raises:
            ItrpipeError: it cannot be planned, or an option is read by no step.
        """
        need = Need(stage, conf or default_conf(self.planner.definition, stage), settings)
        self.steps = [self.planner.plan(need), *(self.planner.plan(each, requested=False) for each in others)]
        self.planner.refuse_unused_overrides()
        return self.step

    def made(self, what: str, *, whole: bool = False) -> bool:
        """Whether everything is there, which after a dry run it is not; what is missing is made, unless `no_deps`.

        Args:
            what: the command does, for the header of the plan.
            whole: it is what was asked for: it is made even with `no_deps`, and its plan shown also where it is there.

        Raises:
            UsageError: something is not up to date and `no_deps` is set.
            DataError: something is damaged, likewise.
        """
        missing = [step for step in self.steps if step.state != "up to date"]
        if missing and self.no_deps and not (self.dry_run or whole):
            location = missing[0].location
            if missing[0].state == "damaged":
                raise DataError(missing[0].reason)
            reason = missing[0].reason or missing[0].state
            remedy = f"run {_command(missing[0])}, or add --make to make it here"
            raise UsageError(f"{location.stage}/{location.name} is not up to date ({reason}); {remedy}")
        if missing or self.dry_run or whole:
            self.reporter.say(f"{self.dataset}: {what} {self.label}", style="bold")
            self.run()
        return not self.dry_run

    def run(self, *, with_upstream: bool = True) -> Path:
        """Runs what is missing, or prints the plan and its costs; returns the folder of the first step."""
        folder, *_ = run(self.steps, self.reporter, dry_run=self.dry_run, with_upstream=with_upstream)
        if self.dry_run:
            say_costs(pending_steps(self.steps), self.reporter)
        return folder


def _command(step: Step) -> str:
    """The command that makes a step."""
    location, settings = step.location, step.settings.model_dump()
    command, data = f"itrpipe {location.stage.replace('_', '-')}", data_option(location.root)
    if location.stage == "index" and step.definition:
        dataset, _, named = settings["called"].partition(".")
        named = named if named in load_definition(location.root, dataset).models else settings["model"]
        return f"`{command} --photos {shlex.quote(str(step.definition.source))} --model {shlex.quote(named)}{data}`"
    model = step if location.stage == "train" else step.inputs.get("train", step)
    if name := getattr(model.execution, "name", ""):
        usual = load_definition(location.root, location.dataset).models.get(name)
        seed = train_settings(model).seed
        chosen = ["--model", name, *(["--seed", str(seed)] if seed != (usual.seed if usual else 0) else [])]
    else:
        chosen = ["--dataset", location.dataset, "--by", step.need.conf]
        if location.stage != "synthesize":
            method = step.need.conf if location.stage == "train" else settings["method"]
            chosen[2:] = ["--method", method, "--backbone", settings["backbone"]]
    return f"`{command} {shlex.join(chosen)}{data}` with the same settings"


def data_option(root: Path) -> str:
    """The option of a command that is printed, where the data folder is not the usual one; else nothing."""
    return "" if root == Path("data") else f" --data {shlex.quote(str(root))}"


def default_conf(definition: DatasetDefinition, stage: str) -> str:
    """The configuration a stage runs with when none is named."""
    return prepare_need(definition).conf if stage == "prepare" else next(iter(load_declaration(stage).confs))


def train_settings(step: Step) -> TrainSettings:
    """The settings of a planned training."""
    assert isinstance(step.settings, TrainSettings)
    return step.settings


def called(step: Step) -> str:
    """What the user calls a planned training, or its label."""
    return getattr(step.execution, "name", "") or step.location.label


def device_of(step: Step) -> str:
    """Where a planned training would compute: `cpu` or `cuda`.

    Raises:
        UsageError: CUDA was asked for and is not there.
    """
    assert isinstance(step.execution, TrainExecution)
    return resolve_device(step.execution.device)


def run_stage(
    root: Path,
    dataset: str,
    stage: str,
    overrides: Sequence[Override],
    *,
    conf: str | None = None,
    definition: DatasetDefinition | None = None,
    model: NamedModel | None = None,
    dry_run: bool = False,
    no_deps: bool = False,
) -> Path:
    """Plans one stage and runs what is missing.

    Args:
        root: the data folder.
        dataset: dataset name.
        stage: stage name.
        overrides: values given by the user.
        conf: configuration; by default the only one of the stage, for `prepare` the dataset's own.
        definition: what is new about the dataset; remembered once the stage has succeeded with it.
        model: that is trained, if it has a name; remembered once it is planned.
        dry_run: print the plan and what it will cost.
        no_deps: fail when something upstream is missing.

    Returns:
        The artifact's folder.

    Raises:
        IncompleteError: the artifact is finished but lacks images that could not be used.
        DataError: likewise, and the step is strict.
    """
    asked = Asked(root, dataset, overrides, no_deps, dry_run, definition=definition or DatasetDefinition())
    conf, reporter = conf or default_conf(asked.planner.definition, stage), asked.reporter
    of_name = ""
    if model is not None:
        known = asked.planner.definition.models.get(model.name, model.definition)
        of_name = f" (model {model.name}{f', {known.method} before' if known.method != model.method else ''})"
    if stage == "extract" and (told := asked.planner.definition.features[conf].settings):
        of_name = f" ({', '.join(f'{key}={value}' for key, value in told.items())})"
    reporter.say(f"{dataset}: {stage.replace('_', '-')} {conf}{of_name}", style="bold")
    step = asked.plan(stage, conf)
    if model is not None and not dry_run:
        remember_model(root, dataset, model.name, model.definition)
    folder = asked.run(with_upstream=not no_deps)
    if dry_run:
        return folder
    if definition is not None:
        remember(root, dataset, definition, stage, conf)
    if folder.exists():
        if step.state == "up to date":
            load_stage(stage).show(folder, reporter)
        reporter.say(str(folder))
        remedy = f"correct these files, remove {folder} and run the same command again"
        refuse_incomplete(folder, "image", remedy, strict=getattr(step.execution, "strict", False))
    return folder


def refuse_incomplete(folder: Path, what: str, remedy: str, *, strict: bool = False) -> None:
    """Ends a command whose result lacks images that could not be used.

    Raises:
        IncompleteError, DataError: likewise.
    """
    if failed := read_manifest(folder).failed:
        image, reason = next(iter(failed.items()))
        kind, so_far = (DataError, "--strict was given, and") if strict else (IncompleteError, "finished, but")
        raise kind(
            f"{so_far} {quantity(len(failed), what)} could not be used; the first: {image} {reason}. All are listed as "
            f"'failed' in {folder / MANIFEST}; {remedy}"
        )
