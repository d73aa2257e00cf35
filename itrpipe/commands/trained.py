"""A trained model that a command asks: what is missing of it is made on the way, and what it read is found again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from itrpipe.commands.named import seed_option
from itrpipe.datasets.definition import load_definition
from itrpipe.errors import UsageError
from itrpipe.plan.costs import say_costs
from itrpipe.plan.pipeline import run
from itrpipe.plan.steps import Step, pending_steps
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import Manifest, existing_input, read_manifest
from itrpipe.training.settings import TrainExecution, TrainSettings


@dataclass(frozen=True)
class TrainedRun:
    """A finished training.

    Attributes:
        label: its name, such as `aoq.vsrn.s1`.
        folder: artifact of `train`.
        manifest: of that artifact.
        device: `cpu` or `cuda`, where to compute.
        called: what the user calls it, or its label.
    """

    label: str
    folder: Path
    manifest: Manifest
    device: str
    called: str

    def input(self, name: str) -> Path:
        """Folder of an artifact that it was trained on: `prepare`, `extract`, of some also `parse`.

        Raises:
            MissingInputError: it was removed since.
        """
        return existing_input(self.folder, self.manifest, name)


SPLITS = ("test", "val", "train")


def check_split(split: str | None) -> None:
    """Refuses what is no split; None leaves the choice to the declaration.

    Raises:
        UsageError: likewise.
    """
    if split not in (None, *SPLITS):
        raise UsageError(f"--split {split}: there is no such split; give {', '.join(SPLITS[:-1])} or {SPLITS[-1]}")


def train_settings(step: Step) -> TrainSettings:
    """The settings of a planned training."""
    assert isinstance(step.settings, TrainSettings)
    return step.settings


def data_option(root: Path) -> str:
    """The option of a command that is printed, where the data folder is not the usual one; else nothing."""
    return "" if root == Path("data") else f" --data {shlex.quote(str(root))}"


def make_missing(
    what: str, steps: list[Step], dataset: str, reporter: Reporter, *, no_deps: bool, dry_run: bool
) -> bool:
    """Shows the plan of what a command asks where something of it is missing, and makes that.

    Args:
        what: the command asks, for the header: `explain tags-dc.uniter`.
        steps: trainings, or an evaluation.
        dataset: name.
        reporter: shows the plan and the progress.
        no_deps: fail instead of making anything.
        dry_run: print the plan and what it will cost, even where nothing is missing, and make nothing.

    Returns:
        Whether everything is there now, which it is not after a dry run.

    Raises:
        UsageError: something is not up to date and `no_deps` is set.
    """
    missing = [step for step in steps if step.state != "up to date"]
    if missing and no_deps and not dry_run:
        location = missing[0].location
        remedy = f"run {_command(missing[0], dataset)}, or add --make to make it here"
        raise UsageError(f"{location.stage}/{location.name} is not up to date; {remedy}")
    if missing or dry_run:
        reporter.say(f"{dataset}: {what}", style="bold")
        run(steps, reporter, dry_run=dry_run)
    if dry_run:
        say_costs(pending_steps(steps), reporter)
    return not dry_run


def _command(step: Step, dataset: str) -> str:
    settings, stage, data = step.settings.model_dump(), step.need.stage, data_option(step.location.root)
    command = f"itrpipe {stage.replace('_', '-')}"
    model = step if stage == "train" else step.inputs.get("train", step)
    if name := getattr(model.execution, "name", ""):
        seed = seed_option(train_settings(model).seed, load_definition(step.location.root, dataset).models.get(name))
        return f"`{command} {shlex.join(['--model', name, *seed])}{data}`"
    chosen = f"--by {step.need.conf}"
    if stage != "synthesize":
        method = step.need.conf if stage == "train" else settings["method"]
        chosen = f"--method {method} --backbone {settings['backbone']}"
    return f"`{command} --dataset {dataset} {chosen}{data}` with the same settings"


def trained_run(step: Step) -> TrainedRun:
    """The model that a planned training has made.

    Raises:
        UsageError: CUDA was asked for and is not there.
    """
    from itrpipe.engine.work import resolve_device

    execution, location = step.execution, step.location
    assert isinstance(execution, TrainExecution)
    manifest, called = read_manifest(location.folder), execution.name or location.label
    return TrainedRun(location.label, location.folder, manifest, resolve_device(execution.device), called)
