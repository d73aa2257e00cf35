"""How long a training will take: its own loop and its own data, for a few seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.base import DualEncoder
from itrpipe.negatives.lists import FILES, MinedList, write_list
from itrpipe.training.assembly import TrainingJob, sources_of, trainer_of
from itrpipe.training.data import SplitData
from itrpipe.training.encode import encode_images, encode_texts, pairs_of
from itrpipe.training.loop import Trainer
from itrpipe.training.loop_settings import Course
from itrpipe.training.splits import usable

_GROUP, _GROUPS, _ENOUGH = 0.4, 5, 5.0
"""Seconds of steps that are timed together, how many such groups, and after how many seconds there are no more."""
_LONG_ENOUGH, _FEWEST = 1.0, 4
"""Seconds after which a measurement is not repeated with twice as many images, and how many it begins with."""


@dataclass(frozen=True)
class Pace:
    """Seconds of the parts of a training.

    Attributes:
        start: until it steps evenly: data, model, and what the first step takes more than others.
        first_step: of a batch of the first epochs.
        step: of a batch of the others.
        validation: of one.
        end: embeddings of all splits; 0 of a model that has none.
    """

    start: float
    first_step: float
    step: float
    validation: float
    end: float

    def seconds(self, course: Course) -> float:
        """Of a training that nothing ends early."""
        return self.start + self.steps(course) + course.validations * self.validation + self.end

    def steps(self, course: Course) -> float:
        """Of all its steps."""
        return course.first_steps * self.first_step + (course.steps - course.first_steps) * self.step


@dataclass(frozen=True)
class Probed:
    """What a few seconds of a training tell.

    Attributes:
        course: how much there is to do.
        pace: how long that takes here.
        test_pairs: of images and captions of the test split, 0 where there is none.
        pair: seconds of a pair in validation, of a model that scores pair by pair; 0 of others.
    """

    course: Course
    pace: Pace
    test_pairs: int
    pair: float


def probe(job: TrainingJob) -> Probed:
    """Trains for a few steps, validates and embeds a little, and keeps nothing of it.

    Args:
        job: of the training, with a folder for the time being.

    Raises:
        ItrpipeError: this cannot be trained, see `trainer_of`.
    """
    begun = time.monotonic()
    trainer, splits = assembled(job)
    opened, course = time.monotonic() - begun, trainer.course
    embeds = isinstance(trainer.model, DualEncoder)
    later = course.steps - course.first_steps
    start, step = _steps(trainer, trainer.last_epoch, later or course.steps) if course.steps else (0.0, 0.0)
    first_step = _steps(trainer, 0, course.first_steps)[1] if 0 < course.first_steps < course.steps else step
    images = min(job.settings.validation_images, splits["val"].num_images)
    validation = _grown(lambda count: trainer.validate(count), images, trainer.device, power=1 if embeds else 2)
    end = _embedding(trainer, splits, job.execution.encode_block) if embeds else 0.0
    captions = int((splits["val"].caption_image < images).sum())
    test_pairs = pairs_of(splits["test"]) if "test" in splits else 0
    pace = Pace(opened + max(0.0, start - step), first_step, step, validation, end)
    return Probed(course, pace, test_pairs, 0.0 if embeds else validation / (images * captions))


def assembled(job: TrainingJob) -> tuple[Trainer, dict[str, SplitData]]:
    """What trains the model, before its first step, with the data; it warns of what can be seen by then.

    Raises:
        ItrpipeError: this cannot be trained, see `trainer_of`.
    """
    trainer, splits, _ = trainer_of(job, _mine_nothing)
    return trainer, splits


def write_drawn_lists(job: TrainingJob, folder: Path, widths: Mapping[str, int], guarded: bool) -> None:
    """Writes lists of random candidates in the place of mined ones: a draw from them takes as long.

    Args:
        job: of the training.
        folder: for the files.
        widths: direction -> candidates of an anchor.
        guarded: whether each has a probability to be a false negative.
    """
    sources, rng = sources_of(job), np.random.default_rng(0)
    features = FeatureFile.open(sources.extract / FEATURES)
    split = usable(PreparedDataset.open(sources.prepare).split("train"), features, sources.train_share)
    sides = split.image_ids, split.caption_ids
    for direction, anchors, others in zip(FILES, sides, sides[::-1], strict=True):
        shape = len(anchors), widths[direction]
        drawn = rng.integers(len(others), size=shape, dtype=np.int32)
        zeros = np.zeros(shape, dtype=np.float16)
        write_list(
            folder, direction, MinedList(np.asarray(anchors, dtype=str), drawn, zeros, zeros if guarded else None)
        )


def _mine_nothing(folder: Path) -> None:
    raise AssertionError("a probe does not mine")


def _steps(trainer: Trainer, epoch: int, most: int) -> tuple[float, float]:
    """Seconds of the first step of an epoch, 0-based, and of a later one: the median of groups, of `most` at most."""
    paces, left, begun = [], most, time.monotonic()
    with closing(_endless(trainer, epoch)) as steps:
        first, _ = _pace(steps, trainer.device, 0, 1)
        while not paces or (left > 0 and len(paces) < _GROUPS and time.monotonic() - begun < _ENOUGH):
            pace, count = _pace(steps, trainer.device, _GROUP, max(1, left))
            paces.append(pace)
            left -= count
    return first, statistics.median(paces)


def _endless(trainer: Trainer, epoch: int) -> Generator[bool, None, None]:
    """Steps of one epoch, again and again."""
    position = trainer.position
    position.epoch = epoch
    while True:
        position.step = position.updates = 0
        yield from trainer.steps()


def _pace(steps: Iterator[bool], device: torch.device, seconds: float, most: int) -> tuple[float, int]:
    """Seconds of a step, and how many it is of: those that begin in the given time, one at least and `most` at most."""
    count, begun = 0, time.monotonic()
    while not count or (count < most and time.monotonic() - begun < seconds):
        next(steps)
        count += 1
    _wait(device)
    return (time.monotonic() - begun) / count, count


def _embedding(trainer: Trainer, splits: Mapping[str, SplitData], block: int) -> float:
    """Seconds that the embeddings of all splits take."""
    model: Any = trainer.model.eval()
    data, sides = splits["train"], ((encode_images, "num_images"), (encode_texts, "num_captions"))
    seconds = 0.0
    for encode, count in sides:
        own, every = getattr(data, count), sum(getattr(each, count) for each in splits.values())

        def some(rows: int, encode: Any = encode) -> None:
            for _ in encode(model, data, trainer.device, block, np.arange(rows)):
                pass

        seconds += _grown(some, own, trainer.device) * every / own
    return seconds


def _grown(do: Callable[[int], object], most: int, device: torch.device, power: int = 1) -> float:
    """Seconds that something takes with `most` images or captions, measured with as few as tell it.

    Args:
        do: it, with so many.
        most: as many as there are.
        device: where it computes.
        power: of their number that the time grows with.
    """
    count = min(_FEWEST, most)
    do(count)  # libraries take their time for the first product
    while True:
        begun = time.monotonic()
        do(count)
        _wait(device)
        seconds = time.monotonic() - begun
        if seconds > _LONG_ENOUGH or count == most:
            return seconds * (most / count) ** power
        count = min(2 * count, most)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
