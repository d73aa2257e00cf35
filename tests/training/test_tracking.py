"""Trackers get every number of the history once, through kills and failures, and change nothing of the training."""

from __future__ import annotations

import importlib.util
import math
import shutil
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from accelerate.tracking import GeneralTracker

from itrpipe.errors import UsageError
from itrpipe.methods.triplet import method as triplet
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.progress import Reporter
from itrpipe.storage.disk import read_json
from itrpipe.training import tracking as module
from itrpipe.training.loop import CHECKPOINT, Trainer
from itrpipe.training.saved import Position
from itrpipe.training.tracking import RECORD, RUNNING_LOSS, Sent, TrackedRun, Tracking, metric_name
from tests.training.test_loop import SETTINGS, Pairs, Toy, interrupt

EPOCHS, STEPS = 3, 3
CHOSEN = {"learning_rate": 0.01, "decay_at": [1, 2], "start_from": None, "loss.max_violation": True}
LAST = [STEPS, 2 * STEPS, 3 * STEPS]
"""The last step of each epoch."""


class Fake(GeneralTracker):
    """Remembers what it was given; fails at a step if told so."""

    name, requires_logging_directory = "fake", False

    def __init__(self) -> None:
        super().__init__()
        self.settings: list[dict[str, Any]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.starts: list[Sent] = []
        self.finished, self.fails_at, self.refuses = 0, math.inf, False

    @property
    def tracker(self) -> None:
        return None

    def open(self, run: TrackedRun, sent: Sent) -> Fake:
        if self.refuses:
            raise PermissionError("no account")
        self.starts.append(Sent(**vars(sent)))
        sent.run = "one"
        return self

    def store_init_configuration(self, values: dict) -> None:
        self.settings.append(values)

    def log(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        if step is not None and step >= self.fails_at:
            raise ConnectionError("the server is gone")
        self.rows.append((step or 0, values))

    def finish(self) -> None:
        self.finished += 1

    def epochs(self) -> list[tuple[int, dict[str, float]]]:
        return [row for row in self.rows if RUNNING_LOSS not in row[1]]

    def running(self) -> list[tuple[int, float]]:
        return [(step, values[RUNNING_LOSS]) for step, values in self.rows if RUNNING_LOSS in values]


@pytest.fixture(autouse=True)
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.0)


Start = Callable[..., Trainer]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Makes a trainer in the work folder of one run, which goes on where an earlier one stopped."""
    warnings: list[str] = []

    def make(*trackers: Fake, work: str = "work", folder: str = "tracking") -> Trainer:
        (tmp_path / work).mkdir(exist_ok=True)
        torch.manual_seed(0)
        data, run = Pairs(0), TrackedRun("triplet", "tiny", tmp_path / folder, CHOSEN, tmp_path / work)
        names = [f"fake{number}" for number in range(len(trackers))]
        for name, each in zip(names, trackers, strict=True):
            monkeypatch.setitem(module.OPENERS, name, each.open)
        tracking = Tracking(names, run, warnings.append) if trackers else None
        settings = SETTINGS.model_copy(update={"optimizer": "adam", "checkpoint_seconds": 0.0})
        method = triplet.build(Triplet(), data, {})  # pyright: ignore
        given: Any = (settings, Toy(), method, data, Pairs(1), "cpu", tmp_path / work, Reporter(), tracking)
        made = Trainer(*given)
        made.warnings = warnings  # pyright: ignore
        return made

    return make


def expected(history: list[dict[str, Any]]) -> list[tuple[int, dict[str, float]]]:
    """The history as trackers should have it."""
    names = {"val_r1+r5": "val/r1_r5"}
    names |= {key: f"val/{key[4:]}" if key[:4] == "val_" else f"train/{key}" for key in history[0] if "+" not in key}
    steps = accumulate(row["steps"] for row in history)
    return [(step, {names[key]: value for key, value in row.items()}) for step, row in zip(steps, history, strict=True)]


def test_a_tracker_gets_the_settings_once_every_row_of_the_history_and_the_losses_of_the_pairs_between(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Fake()
    run = start(fake)
    run.run()
    assert fake.settings == [{**CHOSEN, "decay_at": "[1, 2]", "start_from": "None"}]
    assert fake.epochs() == expected(run.position.history)
    assert [step for step, _ in fake.epochs()] == LAST
    assert fake.finished == 1
    assert [step for step, _ in fake.running()] == list(range(1, 1 + STEPS * EPOCHS))
    by_epoch = np.array([loss for _, loss in fake.running()]).reshape(EPOCHS, STEPS)
    means = np.average(by_epoch, axis=1, weights=[8, 8, 4])  # pairs of the steps
    np.testing.assert_allclose(means, [row["loss"] for row in run.position.history], rtol=1e-9)
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 3600.0)
    start(rare := Fake(), work="rare").run()
    assert [step for step, _ in rare.running()] == [1]
    assert len(rare.epochs()) == EPOCHS


@pytest.mark.parametrize("after", [STEPS, STEPS + 2])
def test_a_resumed_run_sends_nothing_twice_and_leaves_nothing_out(start: Start, after: int, tmp_path: Path) -> None:
    whole, fake, late = Fake(), Fake(), Fake()
    start(whole, work="whole").run()
    interrupt(start(fake), after)
    resumed = start(fake, late)  # another one joins, and gets the epochs before it
    resumed.run()
    assert fake.epochs() == late.epochs() == expected(resumed.position.history)
    assert fake.rows == whole.rows
    assert (len(fake.settings), fake.finished) == (1, 2)
    assert fake.starts == [Sent(), Sent("one", after // STEPS, after)]
    assert late.running()[0][0] == after + 1
    (tmp_path / "work" / CHECKPOINT).unlink()  # steps that were sent are not sent again
    start(fake).run()
    assert fake.rows == whole.rows


def test_another_folder_begins_a_new_run_there(start: Start) -> None:
    interrupt(start(Fake()), STEPS)
    other = Fake()
    run = start(other, folder="elsewhere")
    run.run()
    assert other.starts == [Sent()]
    assert other.epochs() == expected(run.position.history)


def test_a_tracker_that_fails_is_left_behind_with_a_warning_and_catches_up_later(start: Start) -> None:
    broken, sound = Fake(), Fake()
    broken.fails_at = STEPS + 1
    run = start(broken, sound)
    run.run()
    said = "fake0 is left behind: the server is gone; history.parquet will hold every epoch"
    assert run.warnings == [said]  # pyright: ignore
    assert [len(each.epochs()) for each in (broken, sound)] == [1, EPOCHS]
    broken.fails_at = math.inf
    start(broken, sound).run()
    assert broken.epochs() == sound.epochs() == expected(run.position.history)


def test_a_tracker_that_does_not_start_stops_the_run_with_one_line_and_the_others_are_closed(start: Start) -> None:
    fake, refusing = Fake(), Fake()
    refusing.refuses = True
    run = start(fake, refusing)
    with pytest.raises(UsageError, match=r"^--track fake1: fake1 did not start: no account; see to"):
        run.run()
    assert (fake.finished, run.position.history) == (1, [])


def test_names_of_columns_are_free_of_what_trackers_refuse() -> None:
    assert metric_name("mean_gap (median)") == "train/mean_gap__median_"


# Real trackers

HISTORY = [{"epoch": k + 1, "steps": STEPS, "loss": 1 / (k + 1), "val_r1+r5": 10.0 * k, "best": True} for k in range(3)]
VALUES = list(zip(LAST, [0.0, 10.0, 20.0], strict=True))


TENSORBOARD = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")


def follow(name: str, folder: Path, first: int, last: int) -> TrackedRun:
    """Tracks epochs `first` to `last` of the history as a process of its own would, with one running loss in each."""
    (folder / "work").mkdir(parents=True, exist_ok=True)
    run = TrackedRun("triplet.vsepp-12345678", "itrpipe-tiny", folder / "tracking", CHOSEN, folder / "work")
    warnings: list[str] = []
    tracking = Tracking([name], run, warnings.append)
    with tracking.following(Position(history=HISTORY[:first])):
        for epoch in range(first, last):
            totals = {"steps": torch.tensor(1.0), "pairs": torch.tensor(4.0), "loss_triplet": torch.tensor(2.0 + epoch)}
            tracking.send_step(Position(epoch, 1, history=HISTORY[:epoch]), totals)
            tracking.send_epochs(HISTORY[: epoch + 1])
    assert warnings == []
    return run


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [(event.step, event.value) for event in EventAccumulator(str(folder)).Reload().Scalars(tag)]


@TENSORBOARD
def test_tensorboard_shows_a_resumed_run_as_one_and_a_repeated_one_once(tmp_path: Path) -> None:
    for first, last in ((0, 2), (2, 3)):
        run = follow("tensorboard", tmp_path, first, last)
    folder = run.folder / run.name
    for _ in range(2):
        assert scalars(folder, "val/r1_r5") == VALUES
        assert scalars(folder, RUNNING_LOSS) == [(1, 0.5), (STEPS + 1, 0.75), (2 * STEPS + 1, 1.0)]
        # The artifact was removed, and with it the record of what was sent; the same run is trained again.
        (run.work / RECORD).unlink()
        follow("tensorboard", tmp_path, 0, 3)


@pytest.mark.parametrize(("name", "kind"), [("mlflow", "MLflowTracker"), ("wandb", "WandBTracker")])
def test_a_resumed_run_goes_on_under_its_first_id(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the classes of Accelerate are given, since neither library needs to be here."""
    given: list[dict[str, Any]] = []

    class Recording(Fake):
        tracker: Any = SimpleNamespace(info=SimpleNamespace(run_id="chosen"))

        def __init__(self, run: str, **options: Any) -> None:
            super().__init__()
            given.append({"run": run, **options})

    places: list[str] = []
    monkeypatch.setattr(module, kind, Recording)
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(set_tracking_uri=places.append))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    for first, last in ((0, 2), (2, 3)):
        run = follow(name, tmp_path, first, last)
    kept = read_json(run.work / RECORD)["trackers"][name]
    assert (kept["epochs"], kept["step"], {each["run"] for each in given}) == (3, 3 * STEPS, {run.project})
    if name == "mlflow":
        assert [each["run_id"] for each in given] == [None, "chosen"]
        assert places == [f"sqlite:///{run.folder / 'mlflow.db'}"] * 2
    else:
        assert [(each["id"], each["resume"]) for each in given] == [(kept["run"], "allow")] * 2


# The command line


def train_arguments(root: Path, *more: str) -> list[str]:
    sets = ["epochs=1", "batch_size=16", "model.embed_dim=8", "model.word_dim=8", "min_word_count=1", "device=cpu"]
    chosen = ["train", "--method", "triplet", "--backbone", "vsepp", "--dataset", "tiny", "--data", str(root)]
    return [*chosen, *(f"--set={each}" for each in sets), *more]


@TENSORBOARD
def test_track_writes_the_same_artifact_and_tracks_beside_it(
    chain: Path, finished_chain: Path, invoke: Callable[..., Any], tmp_path: Path
) -> None:
    (made,) = chain.glob("tiny/train/triplet.vsepp-*")
    for folder, more in (
        (chain / "tiny" / "tracking", ()),
        (tmp_path / "other", (f"--set=execution.track_to={tmp_path / 'other'}",)),
    ):
        shutil.rmtree(made)
        done = invoke(*train_arguments(chain, "--track", "tensorboard", *more))
        assert (done.code, f"followed by tensorboard in {folder}" in done.out) == (0, True), done.err
        for file in ("history.parquet", "model.safetensors"):
            alone = finished_chain / "data" / made.relative_to(chain) / file
            assert (made / file).read_bytes() == alone.read_bytes()
        (row,) = pq.read_table(made / "history.parquet").to_pylist()
        found = scalars(folder / made.name, "val/rsum")
        assert found == [(row["steps"], pytest.approx(row["val_rsum"], rel=1e-6))]
    assert "tracking" not in invoke("status", "--dataset", "tiny", "--data", chain).out
    assert invoke("gc", "--dataset", "tiny", "--data", chain, "--yes").code == 0
    assert list((chain / "tiny" / "tracking" / made.name).glob("events*"))


@pytest.mark.parametrize(
    ("name", "spec", "said"),
    [
        ("tensorbord", None, "did you mean 'tensorboard'?"),
        ("wandb", None, "wandb is not installed; run `pip install wandb` or leave it out"),
        ("wandb", ModuleSpec("wandb", None), "wandb is not installed"),  # a folder of this name
    ],
)
def test_a_tracker_that_is_unknown_or_not_installed_is_named_before_anything_runs(
    defined: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, name: str, spec: Any, said: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda each, *more: spec if each == "wandb" else find(each, *more))
    done = invoke(*train_arguments(defined, "--track", name))
    assert (done.code, len(done.err.strip().splitlines())) == (2, 1)
    assert said in done.err
    assert not list(defined.glob("tiny/*/*"))
