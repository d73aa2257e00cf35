"""Trackers get every number of the history once, through kills and failures, and change nothing of the training."""

from __future__ import annotations

import importlib.util
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from itrpipe.errors import UsageError
from itrpipe.training import tracking as module
from itrpipe.training.saved import Position
from itrpipe.training.tracking import RECORD, RUNNING_LOSS, Sent, TrackedRun, Tracker, Tracking, metric_name

CHOSEN = {"learning_rate": 0.01, "decay_at": [1, 2], "start_from": None, "loss.max_violation": True}
HISTORY = [{"epoch": k + 1, "steps": 3, "loss": 1 / (k + 1), "val_r1+r5": 10.0 * k, "best": True} for k in range(3)]
WARNINGS: list[str] = []


class Fake:
    """Remembers what it was given; fails at a step if told so."""

    def __init__(self) -> None:
        self.settings: list[dict[str, Any]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.starts: list[Sent] = []
        self.finished, self.fails_at = 0, math.inf

    def open(self, run: TrackedRun, sent: Sent, settings: dict[str, Any]) -> Tracker:
        if self.fails_at < 0:
            raise PermissionError("no account")
        self.starts.append(Sent(**vars(sent)))
        sent.run = "one"
        self.settings += [settings] if settings else []
        return Tracker(self.log, self.finish)

    def log(self, values: dict[str, float], step: int) -> None:
        if step >= self.fails_at:
            raise ConnectionError("the server is gone")
        self.rows.append((step, values))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[Fake]:
    """Two of them, which are the trackers `a` and `b`."""
    made = [Fake(), Fake()]
    for name, each in zip("ab", made, strict=True):
        monkeypatch.setitem(module.OPENERS, name, each.open)
    return made


@pytest.fixture(autouse=True)
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLAIN_INTERVAL_SECONDS", 0.0)
    WARNINGS.clear()


def follow(
    names: str | tuple[str, ...], root: Path, first: int = 0, last: int = 3, steps: int = 0, to: str = "tracking"
) -> TrackedRun:
    """Tracks the history from one epoch to another as a process of its own would, with two running losses in each.

    Of the first epoch so many steps are trained already.
    """
    (root / "work").mkdir(parents=True, exist_ok=True)
    run = TrackedRun("triplet.vsepp-12345678", "itrpipe-tiny", root / to, CHOSEN, root / "work")
    sums = [{"steps": k, "pairs": 4.0 * k, "loss_triplet": 2.0 * k * k} for k in range(3)]
    tracking = Tracking([names] if isinstance(names, str) else names, run, WARNINGS.append)
    with tracking.following(Position(history=HISTORY[:first], sums=sums[steps])):
        for epoch in range(first, last):
            for step in range(1 + (steps if epoch == first else 0), 3):
                totals = {name: torch.tensor(value) for name, value in sums[step].items()}
                tracking.send_step(Position(epoch, step, history=HISTORY[:epoch]), totals)
            tracking.send_epochs(HISTORY[: epoch + 1])
    return run


def sent(first: int = 0, last: int = 3) -> list[tuple[int, dict[str, float]]]:
    """What trackers should have of some epochs."""
    found = []
    for epoch, row in enumerate(HISTORY[first:last], first):
        named = {("val/r1_r5" if name == "val_r1+r5" else f"train/{name}"): value for name, value in row.items()}
        found += [(3 * epoch + 1, {RUNNING_LOSS: 0.5}), (3 * epoch + 2, {RUNNING_LOSS: 1.5}), (3 * epoch + 3, named)]
    return found


def test_a_tracker_gets_the_settings_once_every_row_of_the_history_and_the_losses_of_the_pairs_between(
    fakes: list[Fake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow("a", tmp_path)
    assert fakes[0].settings == [{**CHOSEN, "decay_at": "[1, 2]", "start_from": "None"}]
    assert (fakes[0].rows, fakes[0].finished) == (sent(), 1)
    monkeypatch.setattr(module, "PLAIN_INTERVAL_SECONDS", 3600.0)
    follow("b", tmp_path / "rare")
    assert fakes[1].rows == [sent()[0], *sent()[2::3]]
    assert metric_name("mean_gap (median)") == "train/mean_gap__median_"


@pytest.mark.parametrize("steps", [0, 1])
def test_a_resumed_run_sends_nothing_twice_and_leaves_nothing_out(
    fakes: list[Fake], tmp_path: Path, steps: int
) -> None:
    follow("a", tmp_path, 0, 2)
    follow(("a", "b"), tmp_path, 2, 3, steps)  # another one joins, and gets the epochs before it
    first, late = fakes
    assert first.rows == [each for each in sent() if each[0] != 7 or not steps]
    assert late.rows == [*sent()[2:6:3], *sent(2)[steps:]]
    assert first.starts == [Sent(), Sent("one", 2, 6)]
    assert (len(first.settings), first.finished) == (1, 2)
    follow("a", tmp_path)  # steps that were sent are not sent again
    assert len(first.rows) == 9 - steps
    follow("b", tmp_path, to="elsewhere")  # another folder begins a new run there
    assert late.starts == [Sent(), Sent()]
    assert late.rows[-9:] == sent()


def test_a_tracker_that_fails_is_left_behind_with_a_warning_and_catches_up_later(
    fakes: list[Fake], tmp_path: Path
) -> None:
    fakes[0].fails_at = 4
    follow(("a", "b"), tmp_path)
    assert WARNINGS == ["a is left behind: the server is gone; history.parquet will hold every epoch"]
    assert (fakes[0].rows, fakes[1].rows) == (sent(0, 1), sent())
    fakes[0].fails_at = math.inf
    follow(("a", "b"), tmp_path, 3)
    assert fakes[0].rows == [*sent(0, 1), *sent()[5::3]]
    assert fakes[1].rows == sent()


def test_a_tracker_that_does_not_start_stops_the_run_with_one_line_and_the_others_are_closed(
    fakes: list[Fake], tmp_path: Path
) -> None:
    fakes[1].fails_at = -1
    with pytest.raises(UsageError, match=r"^--track b: b did not start: no account; see to"):
        follow(("a", "b"), tmp_path)
    assert (fakes[0].finished, fakes[0].rows) == (1, [])


# Real trackers

TENSORBOARD = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [(event.step, event.value) for event in EventAccumulator(str(folder)).Reload().Scalars(tag)]


@TENSORBOARD
def test_tensorboard_shows_a_resumed_run_as_one_and_a_repeated_one_once(tmp_path: Path) -> None:
    for first, last in ((0, 2), (2, 3)):
        run = follow("tensorboard", tmp_path, first, last)
    for _ in range(2):
        assert scalars(run.folder / run.name, "val/r1_r5") == [(3, 0.0), (6, 10.0), (9, 20.0)]
        assert [step for step, _ in scalars(run.folder / run.name, RUNNING_LOSS)] == [1, 2, 4, 5, 7, 8]
        # The artifact was removed, and with it the record of what was sent; the same run is trained again.
        (run.work / RECORD).unlink()
        follow("tensorboard", tmp_path)


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
        assert [step for step, _ in scalars(folder / made.name, RUNNING_LOSS)] == [*range(1, row["steps"] + 1)]
    assert "tracking" not in invoke("status", "--dataset", "tiny", "--data", chain).out
    assert invoke("gc", "--dataset", "tiny", "--data", chain, "--yes").code == 0
    assert list((chain / "tiny" / "tracking" / made.name).glob("events*"))
