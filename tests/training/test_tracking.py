"""Trackers get every number of the history once, through kills and failures, and change nothing of the training."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.tracking import GeneralTracker

from itrpipe.cli.choices import followed_by
from itrpipe.errors import UsageError
from itrpipe.methods.triplet import method as triplet
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.plan.planning import Override, parse_override
from itrpipe.progress import Reporter
from itrpipe.testing import IMAGE_DIM, LOOP_SETTINGS, VOCABULARY, ToyPairs
from itrpipe.training import tracking as module
from itrpipe.training.loop import Trainer
from itrpipe.training.tracking import RUNNING_LOSS, Sent, TrackedRun, Tracking, metric_name
from tests.training.interrupting import interrupt

IMAGES = 12
STEPS = 3  # of 24 pairs, eight in each
SETTINGS = LOOP_SETTINGS.model_copy(
    update={
        "epochs": 3,
        "batch_size": 8,
        "learning_rate": 0.01,
        "decay_every": 2,
        "max_updates": 0,
        "validation_images": IMAGES,
        "encode_block": 7,
        "prefetch": 2,
    }
)
CHOSEN = {"learning_rate": 0.01, "decay_at": [1, 2], "start_from": None, "loss.max_violation": True}


class Fake(GeneralTracker):
    """Remembers what it was given; fails at a step if told so."""

    name = "fake"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()
        self.settings: list[dict[str, Any]] = []
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.starts: list[Sent] = []
        self.finished = 0
        self.fails_at = math.inf

    @property
    def tracker(self) -> None:
        return None

    def open(self, run: TrackedRun, sent: Sent) -> Fake:
        self.starts.append(Sent(**vars(sent)))
        sent.run = "one"
        return self

    def store_init_configuration(self, values: dict) -> None:
        self.settings.append(values)

    def log(self, values: dict, step: int | None = None, **kwargs: Any) -> None:
        if step is not None and step >= self.fails_at:
            raise ConnectionError("the server is gone\nand more")
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
def start(tmp_path: Path) -> Start:
    """Makes a trainer in the work folder of one run, which goes on where an earlier one stopped."""
    warnings: list[str] = []

    def make(*trackers: Fake, work: str = "work", folder: str = "tracking") -> Trainer:
        (tmp_path / work).mkdir(exist_ok=True)
        torch.manual_seed(0)
        train, val = (ToyPairs(seed, IMAGES) for seed in (0, 1))
        model = vsepp.build(Vsepp(embed_dim=16, word_dim=8), IMAGE_DIM, VOCABULARY)
        run = TrackedRun("triplet.vsepp-12345678", "itrpipe-tiny", tmp_path / folder, CHOSEN, tmp_path / work)
        names = {f"fake{number}" if number else "fake": each.open for number, each in enumerate(trackers)}
        tracking = Tracking(names, run, warnings.append)
        made = Trainer(
            *(SETTINGS, model, triplet.build(Triplet(), train, {}), train, val, "cpu"),  # pyright: ignore
            *(tmp_path / work, Reporter(), tracking if trackers else None),
        )
        made.warnings = warnings  # pyright: ignore
        return made

    return make


def expected(history: list[dict[str, Any]]) -> list[tuple[int, dict[str, float]]]:
    """The history as trackers should have it."""
    names = {"val_r1+r5": "val/r1_r5"}
    names |= {key: f"val/{key[4:]}" if key[:4] == "val_" else f"train/{key}" for key in history[0] if "+" not in key}
    steps = accumulate(row["steps"] for row in history)
    return [(step, {names[key]: value for key, value in row.items()}) for step, row in zip(steps, history, strict=True)]


def test_a_tracker_gets_the_settings_once_and_every_row_of_the_history(start: Start) -> None:
    fake = Fake()
    run = start(fake)
    run.run()
    assert fake.settings == [{**CHOSEN, "decay_at": "[1, 2]", "start_from": "None"}]
    assert len(run.position.history) == SETTINGS.epochs
    assert fake.epochs() == expected(run.position.history)
    assert [step for step, _ in fake.epochs()] == [STEPS, 2 * STEPS, 3 * STEPS]
    assert fake.finished == 1


def test_running_losses_are_those_of_the_pairs_since_the_last_one(start: Start) -> None:
    fake = Fake()
    run = start(fake)
    run.run()
    assert [step for step, _ in fake.running()] == list(range(1, 1 + STEPS * SETTINGS.epochs))
    by_epoch = np.array([loss for _, loss in fake.running()]).reshape(SETTINGS.epochs, STEPS)
    assert len(np.unique(by_epoch)) > STEPS
    np.testing.assert_allclose(by_epoch.mean(1), [row["loss"] for row in run.position.history], rtol=1e-9)


def test_running_losses_keep_their_distance(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 3600.0)
    fake = Fake()
    start(fake).run()
    assert [step for step, _ in fake.running()] == [1]
    assert len(fake.epochs()) == SETTINGS.epochs


@pytest.mark.parametrize("after", [1, STEPS, STEPS + 2])
def test_a_resumed_run_sends_nothing_twice_and_leaves_nothing_out(start: Start, after: int) -> None:
    whole, fake = Fake(), Fake()
    start(whole, work="whole").run()
    interrupt(start(fake), after)
    resumed = start(fake)
    resumed.run()
    assert fake.epochs() == expected(resumed.position.history)
    assert fake.rows == whole.rows
    assert len(fake.settings) == 1
    assert fake.starts == [Sent(), Sent("one", after // STEPS, after)]
    assert fake.finished == 2


def test_a_step_that_was_sent_is_not_sent_again_when_its_checkpoint_is_older(start: Start, tmp_path: Path) -> None:
    fake = Fake()
    interrupt(start(fake), STEPS + 2)
    (tmp_path / "work" / "checkpoint.safetensors").unlink()
    start(fake).run()
    assert [step for step, _ in fake.running()] == list(range(1, 1 + STEPS * SETTINGS.epochs))
    assert [step for step, _ in fake.epochs()] == [STEPS, 2 * STEPS, 3 * STEPS]


def test_a_tracker_that_joins_later_gets_the_epochs_before_it(start: Start) -> None:
    first, second = Fake(), Fake()
    interrupt(start(first), 2 * STEPS)
    run = start(first, second)
    run.run()
    assert first.epochs() == second.epochs() == expected(run.position.history)
    assert second.running()[0][0] == 2 * STEPS + 1


def test_another_folder_begins_a_new_run_there(start: Start) -> None:
    fake, other = Fake(), Fake()
    interrupt(start(fake), STEPS)
    run = start(other, folder="elsewhere")
    run.run()
    assert other.starts == [Sent()]
    assert other.epochs() == expected(run.position.history)


def test_a_tracker_that_fails_is_left_behind_with_a_warning_and_catches_up_later(start: Start) -> None:
    broken, sound = Fake(), Fake()
    broken.fails_at = STEPS + 1
    run = start(broken, sound)
    run.run()
    warnings = run.warnings  # pyright: ignore
    (warning,) = warnings
    assert warning == (
        "fake is left behind: ConnectionError: the server is gone; history.parquet will hold every epoch"
    )
    assert len(run.position.history) == SETTINGS.epochs
    assert [len(each.epochs()) for each in (broken, sound)] == [1, SETTINGS.epochs]
    broken.fails_at = math.inf
    start(broken, sound).run()
    assert broken.epochs() == sound.epochs() == expected(run.position.history)


def test_a_tracker_that_does_not_start_stops_the_run_with_one_line_and_the_others_are_closed(start: Start) -> None:
    class Refusing(Fake):
        def open(self, run: TrackedRun, sent: Sent) -> Fake:
            raise PermissionError("no account\nsee the manual")

    fake = Fake()
    run = start(fake, Refusing())
    with pytest.raises(UsageError) as caught:
        run.run()
    assert str(caught.value) == (
        "--track fake1: fake1 did not start: PermissionError: no account; see to that or leave it out"
    )
    assert fake.finished == 1
    assert run.position.history == []


def test_names_of_columns_are_grouped_and_free_of_what_trackers_refuse() -> None:
    assert metric_name("loss_triplet") == "train/loss_triplet"
    assert metric_name("val_r1+r5") == "val/r1_r5"
    assert metric_name("mean_gap (median)") == "train/mean_gap__median_"


def test_the_trackers_follow_every_training_of_the_chain() -> None:
    (assignment,) = followed_by(["tensorboard", "wandb"])
    assert parse_override(assignment) == Override("train", "trackers", ["tensorboard", "wandb"])
    assert followed_by(None) == []
