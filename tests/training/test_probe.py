"""How much a training has to do, and what a few seconds of it make of that. No time is measured here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from itrpipe.training import probe
from itrpipe.training.loop_settings import Course
from itrpipe.training.probe import Pace

PACE = Pace(start=5.0, first_step=0.25, step=0.5, validation=2.0, end=3.0)


class Clock:
    """Stands in for the module `time`; moves when it is told."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(probe, "time", made)
    return made


def costs(clock: Clock, seconds: Callable[[int], float], seen: list[int]) -> Callable[[int], None]:
    def do(count: int) -> None:
        seen.append(count)
        clock.now += seconds(count)

    return do


def test_seconds_grow_with_steps_and_validations_alone() -> None:
    course = Course(steps=100, first_steps=0, updates=100, epoch_updates=50, validations=2)
    assert PACE.seconds(course) == 5 + 50 + 4 + 3
    assert PACE.seconds(replace(course, steps=300)) - PACE.seconds(course) == 200 * PACE.step
    assert PACE.seconds(replace(course, validations=5)) - PACE.seconds(course) == 3 * PACE.validation
    assert PACE.seconds(replace(course, first_steps=40)) - PACE.seconds(course) == 40 * (PACE.first_step - PACE.step)
    assert PACE.seconds(Course(0, 0, 0, 0, 1)) == 5 + 2 + 3


@pytest.mark.parametrize(("power", "seconds"), [(1, 0.05), (2, 0.001)])
def test_what_takes_long_is_measured_with_a_few(clock: Clock, power: int, seconds: float) -> None:
    seen: list[int] = []
    do = costs(clock, lambda count: seconds * count**power, seen)
    assert probe._grown(do, 1_000, torch.device("cpu"), power) == pytest.approx(seconds * 1_000**power)
    assert max(seen) < 40


def test_what_takes_no_time_is_measured_whole(clock: Clock) -> None:
    seen: list[int] = []
    assert probe._grown(costs(clock, lambda count: 1e-6 * count, seen), 100, torch.device("cpu")) == pytest.approx(1e-4)
    assert seen == [4, 4, 8, 16, 32, 64, 100]
    few: list[int] = []
    assert probe._grown(costs(clock, lambda count: 1.0, few), 3, torch.device("cpu")) == 1
    assert few == [3, 3]


MANY = 1_000


class Toy:
    """A trainer whose steps take the given times."""

    device = torch.device("cpu")

    def __init__(self, clock: Clock, seconds: list[float]) -> None:
        self.position = type("Position", (), {"epoch": 0, "step": 0, "updates": 0})()
        self._clock, self._seconds = clock, iter(seconds)
        self.begun = 0

    def steps(self):
        self.begun += 1
        assert (self.position.step, self.position.updates) == (0, 0)
        for number in range(2):
            self._clock.now += next(self._seconds)
            self.position.step, self.position.updates = number + 1, number + 1
            yield True


def test_a_step_is_the_median_of_groups_and_the_first_is_apart(clock: Clock) -> None:
    toy = Toy(clock, [1.0, 0.5, 0.5, 2.0, 0.5, 0.5])
    assert probe._steps(toy, 7, MANY) == (1.0, 0.5)  # pyright: ignore[reportArgumentType]
    assert toy.position.epoch == 7
    assert toy.begun == 3


def test_slow_steps_end_the_measurement(clock: Clock) -> None:
    toy = Toy(clock, [60.0, 40.0, 99.0])
    assert probe._steps(toy, 7, MANY) == (60.0, 40.0)  # pyright: ignore[reportArgumentType]


def test_no_more_steps_are_timed_than_a_training_has(clock: Clock) -> None:
    toy = Toy(clock, [1.0, 0.25, 0.25, 0.5])
    assert probe._steps(toy, 7, 3) == (1.0, 0.375)  # pyright: ignore[reportArgumentType]
    toy = Toy(clock, [1.0, 0.5])
    assert probe._steps(toy, 7, 1) == (1.0, 0.5)  # pyright: ignore[reportArgumentType]


def test_fast_steps_are_timed_together(clock: Clock) -> None:
    toy = Toy(clock, np.full(1_000, 0.01).tolist())
    first, step = probe._steps(toy, 7, MANY)  # pyright: ignore[reportArgumentType]
    assert (first, step) == (pytest.approx(0.01), pytest.approx(0.01))
    assert clock.now == pytest.approx(0.01 + probe._GROUPS * probe._GROUP, abs=0.1)
