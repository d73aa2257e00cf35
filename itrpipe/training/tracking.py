"""Send the numbers of a running training to TensorBoard, MLflow or Weights & Biases.

`history.parquet` stays the truth: trackers get copies of its rows, and the loss of the steps between them, and nothing
is read back. It is recorded how much every tracker has been given, so that after a kill, or when it follows a run that
began without it, it gets what it lacks and nothing twice; and one that fails is left behind without the others.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from itrpipe.errors import UsageError, reason_of
from itrpipe.progress import PLAIN_INTERVAL_SECONDS
from itrpipe.storage.disk import make_folder, read_stamped_json, write_stamped_json
from itrpipe.training.saved import Position

RECORD = "tracked.json"
RUNNING_LOSS = "train/running_loss"
_MLFLOW_SERVER = "MLFLOW_TRACKING_URI"
_MLFLOW_PARAMETERS = 100
"""Parameters that MLflow takes at once."""


@dataclass(frozen=True)
class TrackedRun:
    """A training, as trackers are told of it.

    Attributes:
        name: of the run: the artifact's.
        project: runs of one project are compared with each other: MLflow's experiment, the project of Weights & Biases.
        folder: where what trackers keep on this machine goes.
        settings: dotted key -> value.
        work: of the artifact, for the record of what was sent.
    """

    name: str
    project: str
    folder: Path
    settings: Mapping[str, Any]
    work: Path


class Tracker(NamedTuple):
    """A tracker that has begun to follow a run.

    Attributes:
        log: takes numbers by name, and the step that they are of.
        finish: closes it.
    """

    log: Callable[[dict[str, float], int], object]
    finish: Callable[[], object]


@dataclass
class Sent:
    """The part of a training that one tracker has been given.

    Attributes:
        run: the name by which the tracker finds its run again, where it chose one itself.
        epochs: rows of the history.
        step: the last step of the training with a number; -1 before the first.
    """

    run: str = ""
    epochs: int = 0
    step: int = -1


class Tracking:
    """Follows one training with any number of trackers.

    Args:
        names: of `OPENERS`; their packages are installed.
        run: the training, as trackers are told of it.
        warn: called with the reason when a tracker fails during the training, which goes on without it.
    """

    def __init__(self, names: Iterable[str], run: TrackedRun, warn: Callable[[str], None]) -> None:
        self._names = tuple(names)
        self._run = run
        self._warn = warn
        self._trackers: dict[str, Tracker] = {}
        self._sent: dict[str, Sent] = {}
        self._before = (0.0, 0.0)
        self._due = 0.0

    @contextlib.contextmanager
    def following(self, position: Position) -> Iterator[None]:
        """Start every tracker, bring it up to date with the epochs trained so far, and close it at the end.

        Args:
            position: where the training begins or goes on.

        Raises:
            UsageError: one of them did not start.
        """
        path = self._run.work / RECORD
        self._sent = {}
        if path.exists():
            record = read_stamped_json(path, "remove it and run the same command again")
            if record["folder"] == str(self._run.folder):
                self._sent = {name: Sent(**values) for name, values in record["trackers"].items()}
        make_folder(self._run.folder)
        settings = {}
        for key, value in self._run.settings.items():
            # Trackers accept lists, and values that are not there, as text.
            settings[key] = value if isinstance(value, bool | int | float | str) else str(value)
        try:
            for name in self._names:
                has_settings = name in self._sent
                sent = self._sent.setdefault(name, Sent())
                try:
                    self._trackers[name] = OPENERS[name](self._run, sent, {} if has_settings else settings)
                # Every library has errors of its own: no account, a server that does not answer, a run that is gone.
                except Exception as error:
                    raise UsageError(
                        f"--track {name}: {name} did not start: {reason_of(error)}; see to that or leave it out"
                    ) from error
                self._write_record()
            self.send_epochs(position.history)
            self._before = _pairs_and_loss(position.sums)
            yield
        finally:
            for name, tracker in list(self._trackers.items()):
                self._attempt(name, tracker.finish)

    def send_step(self, position: Position, sums: Mapping[str, Tensor]) -> None:
        """Send the mean loss of a pair since the last time, if that was long enough ago.

        Args:
            position: how far the training has come.
            sums: running sums since the last validation, `steps`, `pairs` and every `loss_…` among them.
        """
        if not self._trackers or time.monotonic() < self._due:
            return
        self._due = time.monotonic() + PLAIN_INTERVAL_SECONDS  # as often as a training prints a line
        pairs_before, loss_before = self._before
        pairs, loss = _pairs_and_loss(sums)
        self._before = pairs, loss
        values = {RUNNING_LOSS: (loss - loss_before) / (pairs - pairs_before)}
        step = sum(row["steps"] for row in position.history) + int(sums["steps"])
        for name in list(self._trackers):
            # A resumed run repeats the steps since its checkpoint.
            if step > self._sent[name].step:
                self._send(name, values, step)

    def send_epochs(self, history: list[dict[str, Any]]) -> None:
        """Send the rows of the history that each tracker has not got yet, each at its last step.

        Args:
            history: one row per validation, all of which a checkpoint holds.
        """
        for name in list(self._trackers):
            sent_before = self._sent[name].epochs
            step = 0
            for number, row in enumerate(history):
                step += row["steps"]
                if number >= sent_before:
                    values = {metric_name(column): float(value) for column, value in row.items()}
                    self._send(name, values, step, epochs=1)
        self._before = (0.0, 0.0)

    def _send(
        self,
        name: str,
        values: dict[str, float],
        step: int,
        epochs: int = 0,
    ) -> None:
        """Send numbers to a tracker, unless it has failed, and record it."""
        tracker = self._trackers.get(name)
        if tracker is not None and self._attempt(name, tracker.log, values, step):
            sent = self._sent[name]
            sent.step = max(sent.step, step)
            sent.epochs += epochs
            self._write_record()

    def _attempt(self, name: str, action: Callable[..., object], *arguments: Any) -> bool:
        """Let a tracker do something and return whether it did; one that failed is left behind, with a warning."""
        try:
            action(*arguments)
        except Exception as error:  # any of a library; hours of training are worth more than a curve of them
            del self._trackers[name]
            self._warn(f"{name} is left behind: {reason_of(error)}; history.parquet will hold every epoch")
            return False
        return True

    def _write_record(self) -> None:
        trackers = {name: asdict(sent) for name, sent in self._sent.items()}
        record = {"folder": str(self._run.folder), "trackers": trackers}
        write_stamped_json(self._run.work / RECORD, record)


def metric_name(column: str) -> str:
    """Return the name of a column of the history in trackers: `loss` is `train/loss`, `val_r1+r5` is `val/r1_r5`.

    The part before the slash groups plots; MLflow refuses characters that others accept.
    """
    group = "val" if column.startswith("val_") else "train"
    name = re.sub(r"[^-.\w]", "_", column.removeprefix("val_"))
    return f"{group}/{name}"


def _pairs_and_loss(sums: Mapping[str, Any]) -> tuple[float, float]:
    """Return the pairs since the last validation and the sum of their losses."""
    losses = [float(total) for name, total in sums.items() if name.startswith("loss_")]
    return float(sums.get("pairs", 0)), sum(losses)


def _tensorboard(run: TrackedRun, sent: Sent, settings: dict[str, Any]) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    # Hides what was written after the last record of it, or by a run of this name that has been removed.
    writer = SummaryWriter(str(run.folder / run.name), purge_step=sent.step + 1)

    if settings:
        writer.add_hparams(settings, metric_dict={})

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, global_step=step)
        writer.flush()

    return Tracker(log, writer.close)


def _mlflow(run: TrackedRun, sent: Sent, settings: dict[str, Any]) -> Tracker:
    import mlflow  # pyright: ignore[reportMissingImports]

    artifacts = None
    if _MLFLOW_SERVER not in os.environ:
        mlflow.set_tracking_uri(f"sqlite:///{(run.folder / 'mlflow.db').resolve()}")
        # It sets the variable too; the next training of this process may have another folder.
        os.environ.pop(_MLFLOW_SERVER, None)
        artifacts = str((run.folder / "mlflow-artifacts").resolve())
    project = os.environ.get("MLFLOW_EXPERIMENT_NAME", run.project)
    experiment = mlflow.get_experiment_by_name(project)
    if experiment is None:
        experiment_id = mlflow.create_experiment(project, artifact_location=artifacts)
    else:
        experiment_id = experiment.experiment_id
    started = mlflow.start_run(run_id=sent.run or None, experiment_id=experiment_id, run_name=run.name)
    sent.run = started.info.run_id

    names = list(settings)
    for start in range(0, len(names), _MLFLOW_PARAMETERS):
        part = names[start : start + _MLFLOW_PARAMETERS]
        mlflow.log_params({name: settings[name] for name in part})
    return Tracker(mlflow.log_metrics, mlflow.end_run)


def _wandb(run: TrackedRun, sent: Sent, settings: dict[str, Any]) -> Tracker:
    import wandb  # pyright: ignore[reportMissingImports]

    sent.run = sent.run or uuid.uuid4().hex
    # It would read the repository with git, which runs what the repository's configuration names.
    os.environ.setdefault("WANDB_DISABLE_GIT", "true")
    followed = wandb.init(
        project=os.environ.get("WANDB_PROJECT", run.project),
        name=run.name,
        id=sent.run,
        resume="allow",
        dir=str(run.folder.resolve()),
    )

    followed.config.update(settings, allow_val_change=True)
    return Tracker(followed.log, followed.finish)


OPENERS: dict[str, Callable[[TrackedRun, Sent, dict[str, Any]], Tracker]] = {
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
"""Name of `itrpipe.training.settings.TRACKERS` -> starts it with the settings of the run; a run that it has followed
before goes on, without them."""
