"""The training loop: the same for every method and backbone, and resumable at the exact step.

What makes resuming exact: the order of an epoch and the draws of a step come from generators seeded by
(seed, epoch) and (seed, epoch, step), so the position alone restores them; everything else that has a
state (weights, optimiser moments, dropout's generator, running sums) is in the checkpoint.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor

from itrpipe.errors import DataError, UsageError
from itrpipe.evaluation import protocols
from itrpipe.evaluation.ranks import ranks
from itrpipe.methods.base import Batch, Method
from itrpipe.progress import Reporter, Task
from itrpipe.training.checkpoint import Position, load_checkpoint, load_weights, save_checkpoint, save_weights
from itrpipe.training.data import SplitData, epoch_batches
from itrpipe.training.encode import AnyMatcher, score_split
from itrpipe.training.prefetch import Prefetcher
from itrpipe.training.schedule import step_decay

CHECKPOINT, BEST = "checkpoint.safetensors", "best.safetensors"


@dataclass(frozen=True)
class LoopSettings:
    """What the loop itself needs to know.

    Attributes:
        epochs, batch_size, learning_rate, decay_every, decay_factor, gradient_clip: as in the papers.
        precision: `fp32` or `bf16` (autocast around the encoders).
        selection: `rsum` (six recalls) or `r1+r5` (four), summed over both directions on the validation split.
        validation_images: validate on the first so many images.
        seed: of everything random.
        encode_block: rows per forward pass outside training.
        prefetch: batches made ahead.
        checkpoint_seconds: time between checkpoints inside an epoch.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    decay_every: int
    decay_factor: float
    gradient_clip: float
    precision: str
    selection: str
    validation_images: int
    seed: int
    encode_block: int
    prefetch: int
    checkpoint_seconds: float


class Trainer:
    """Trains one model with one method.

    Args:
        settings: see `LoopSettings`.
        model: freshly initialised.
        method: gives batches and losses.
        train, validation: the data.
        device: `cpu` or `cuda`.
        work: folder for checkpoints.
        reporter: prints.

    Attributes:
        position: how far training has come.
        waited_seconds: time spent waiting for data in this process.
        trained_seconds: time spent in training steps in this process, waiting included.
    """

    def __init__(
        self,
        settings: LoopSettings,
        model: AnyMatcher,
        method: Method,
        train: SplitData,
        validation: SplitData,
        device: str,
        work: Path,
        reporter: Reporter,
    ) -> None:
        self._settings, self._method, self._work, self._reporter = settings, method, work, reporter
        self._train, self._validation = train, validation
        self._accelerator = start_accelerator(device, settings.precision)
        optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, fused=True)
        self._model, self._optimizer = self._accelerator.prepare(model, optimizer)
        self.device = self._accelerator.device
        self.position = Position()
        self.waited_seconds = 0.0
        self.trained_seconds = 0.0
        self._totals: dict[str, Tensor] = {}

    def run(self) -> AnyMatcher:
        """Trains to the last epoch and returns the model with the weights that validated best.

        Raises:
            DataError: the loss became NaN or infinite.
        """
        checkpoint = self._work / CHECKPOINT
        if checkpoint.exists():
            self.position = load_checkpoint(checkpoint, self._model, self._optimizer.optimizer)
            self._reporter.say(f"  going on in epoch {self.position.epoch + 1} after step {self.position.step}")
        per_epoch = len(epoch_batches(self._train.num_captions, self._settings.batch_size, 0, 0))
        done = self.position.epoch * per_epoch + self.position.step
        with self._reporter.task("training", self._settings.epochs * per_epoch, "steps", done) as task:
            while self.position.epoch < self._settings.epochs:
                self._train_epoch(task)
                self._finish_epoch()
        load_weights(self._work / BEST, self._model)
        self._model.eval()
        return self._model

    def validate(self) -> dict[str, float]:
        """Metrics on the first `validation_images` images of the validation split, with the four-recall sum `r1+r5`."""
        self._model.eval()
        data, block, limit = self._validation, self._settings.encode_block, self._settings.validation_images
        captions = np.flatnonzero(data.caption_image < limit)
        scores = score_split(self._model, data, self.device, block, min(limit, data.num_images), captions)
        metrics = protocols.metrics(ranks(scores, data.caption_image[captions]))
        metrics["r1+r5"] = metrics["rsum"] - metrics["i2t_r10"] - metrics["t2i_r10"]
        return metrics

    def _train_epoch(self, task: Task) -> None:
        settings, position = self._settings, self.position
        batches = epoch_batches(self._train.num_captions, settings.batch_size, settings.seed, position.epoch)
        rate = step_decay(
            settings.learning_rate, position.epoch, every=settings.decay_every, factor=settings.decay_factor
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate

        def make(step: int) -> Batch:
            return self._method.collate(batches[step], np.random.default_rng([settings.seed, position.epoch, step]))

        self._totals = {
            name: torch.tensor(value, dtype=torch.float64, device=self.device) for name, value in position.sums.items()
        }
        self._model.train()
        prefetcher = Prefetcher(make, range(position.step, len(batches)), settings.prefetch)
        start = saved = time.monotonic()
        for batch in prefetcher:
            self._step(batch)
            position.step += 1
            task.advance(1, f"epoch {position.epoch + 1}/{settings.epochs}")
            if time.monotonic() - saved >= settings.checkpoint_seconds and position.step < len(batches):
                self._collect()
                self._save()
                saved = time.monotonic()
        self.waited_seconds += prefetcher.waited_seconds
        self.trained_seconds += time.monotonic() - start

    def _step(self, batch: Batch) -> None:
        count = len(batch.images)
        with self._accelerator.autocast():
            losses = self._method.losses(self._model, batch.to(self.device), self.position.epoch)
        total = torch.stack(list(losses.values())).sum()
        self._optimizer.zero_grad()
        self._accelerator.backward(total)
        norm = self._accelerator.clip_grad_norm_(self._model.parameters(), self._settings.gradient_clip)
        self._optimizer.step()
        self._count("pairs", count)
        self._count("steps", 1)
        self._count("gradient_norm", norm)
        for name, loss in losses.items():
            self._count(f"loss_{name}", loss)
        for name, value in batch.statistics.items():
            self._count(f"mean_{name}", value)

    def _count(self, name: str, value: Any) -> None:
        """Adds to a running sum, kept in double precision on the device so that no step waits for it."""
        if name not in self._totals:
            self._totals[name] = torch.zeros((), dtype=torch.float64, device=self.device)
        self._totals[name] += value.detach() if isinstance(value, Tensor) else value

    def _collect(self) -> None:
        """Moves the running sums into the position.

        Raises:
            DataError: one of them is NaN or infinite.
        """
        self.position.sums = {name: total.item() for name, total in self._totals.items()}
        for name, total in self.position.sums.items():
            if not math.isfinite(total):
                raise DataError(
                    f"{name} is {total} in epoch {self.position.epoch + 1}; "
                    "lower --set learning_rate or check the features for extreme values"
                )

    def _save(self) -> None:
        save_checkpoint(self._work / CHECKPOINT, self._model, self._optimizer.optimizer, self.position)

    def _finish_epoch(self) -> None:
        """Validates, keeps the weights if they are the best so far, writes history and checkpoint."""
        position = self.position
        self._collect()
        metrics = self.validate()
        score = metrics[self._settings.selection]
        best = score > position.best_score
        position.history.append(self._history_row(metrics, best))
        if best:
            position.best_score, position.best_epoch = score, position.epoch
            save_weights(self._work / BEST, self._model)
        position.epoch, position.step, position.sums = position.epoch + 1, 0, {}
        self._save()
        self._reporter.say(
            f"  epoch {position.epoch}: loss {position.history[-1]['loss']:.4f} per pair, validation rsum "
            f"{metrics['rsum']:.1f}{' (best)' if best else ''}"
        )

    def _history_row(self, metrics: dict[str, float], best: bool) -> dict[str, Any]:
        """One row of `history.parquet`; it holds no times, so that a resumed run writes the same bytes."""
        sums = dict(self.position.sums)
        pairs, steps = sums.pop("pairs"), sums.pop("steps")
        losses = {name: total / pairs for name, total in sums.items() if name.startswith("loss_")}
        means = {name: total / steps for name, total in sums.items() if not name.startswith("loss_")}
        rate = self._optimizer.param_groups[0]["lr"]
        return {
            "epoch": self.position.epoch + 1,
            "steps": int(steps),
            "learning_rate": rate,
            "loss": sum(losses.values()),
            **losses,
            **means,
            **{f"val_{name}": value for name, value in metrics.items()},
            "best": best,
        }


def start_accelerator(device: str, precision: str) -> Accelerator:
    """Starts Accelerate for one process.

    Args:
        device: `cpu` or `cuda`.
        precision: `fp32` or `bf16`.

    Raises:
        UsageError: CUDA was asked for and is not there, or several processes were launched.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: no CUDA device is visible; use --device cpu or check `itrpipe doctor`")
    # Accelerate keeps its settings for the whole process; a pipeline trains several models in one.
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision="bf16" if precision == "bf16" else "no")
    if accelerator.num_processes > 1:
        raise UsageError(
            f"{accelerator.num_processes} processes were launched, but a run trains on one device; "
            "start `itrpipe train` without a launcher"
        )
    return accelerator
