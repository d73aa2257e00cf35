"""A trained model that a command asks: what is missing of it is made on the way, and what it read is found again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.artifacts import Manifest, existing_input, read_manifest
from itrpipe.errors import UsageError
from itrpipe.pipeline import run
from itrpipe.planning import Step
from itrpipe.progress import Reporter
from itrpipe.training.settings import TrainExecution, TrainSettings

if TYPE_CHECKING:
    from itrpipe.training.canary import TrainedModel


@dataclass(frozen=True)
class TrainedRun:
    """A finished training.

    Attributes:
        label: its name, such as `aoq.vsrn.s1`.
        folder: artifact of `train`.
        manifest: of that artifact.
        device: `cpu` or `cuda`, where to compute.
    """

    label: str
    folder: Path
    manifest: Manifest
    device: str

    def input(self, name: str) -> Path:
        """Folder of an artifact that it was trained on: `prepare`, `extract`, of some also `parse`.

        Raises:
            MissingInputError: it was removed since.
        """
        return existing_input(self.folder, self.manifest, name)


def train_settings(step: Step) -> TrainSettings:
    """The settings of a planned training."""
    assert isinstance(step.settings, TrainSettings)
    return step.settings


def trained_run(step: Step, dataset: str, reporter: Reporter, *, no_deps: bool) -> TrainedRun:
    """The model that a planned training makes; it is trained first where it is not up to date.

    Args:
        step: of `train`.
        dataset: name, for the message.
        reporter: shows the plan and the progress.
        no_deps: fail instead of training.

    Raises:
        UsageError: it is not up to date and `no_deps` is set, or CUDA was asked for and is not there.
    """
    from itrpipe.stages.train import resolve_device

    execution, location = step.execution, step.location
    assert isinstance(execution, TrainExecution)
    if step.state != "up to date":
        if no_deps:
            backbone = train_settings(step).backbone
            command = f"itrpipe train --dataset {dataset} --method {step.need.conf} --backbone {backbone}"
            raise UsageError(
                f"train/{location.name} is {step.state} and --no-deps was given; run `{command}` with the same settings"
            )
        run([step], reporter)
    return TrainedRun(location.label, location.folder, read_manifest(location.folder), resolve_device(execution.device))


def evaluated_model(folder: Path, device: str | None) -> TrainedModel:
    """The model of an evaluation with the split that it was evaluated on, to be asked once more.

    Args:
        folder: artifact of `evaluate`, of a single model.
        device: `auto`, `cpu` or `cuda`; None is `auto`.

    Raises:
        MissingInputError: what the model was trained on was removed.
    """
    from itrpipe.stages.train import resolve_device
    from itrpipe.training.canary import TrainedModel
    from itrpipe.training.splits import Sources

    evaluated = read_manifest(folder)
    trained = existing_input(folder, evaluated, "train")
    manifest = read_manifest(trained)
    prepare, extract = (existing_input(trained, manifest, name) for name in ("prepare", "extract"))
    parse = existing_input(trained, manifest, "parse") if "parse" in manifest.inputs else None
    place = resolve_device(device or "auto")
    return TrainedModel.open(trained, Sources(prepare, extract, parse), evaluated.settings["split"], place)
