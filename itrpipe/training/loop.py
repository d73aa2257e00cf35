"""The training loop: the same for every method and backbone, and resumable at the exact step.

What makes resuming exact: the order of an epoch and the draws of a step come from generators seeded by
(seed, epoch) and (seed, epoch, step), so the position alone restores them; everything else that has a
state (weights, optimiser moments, tensors of the method, dropout's generator, running sums) is in the checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from itrpipe.errors import DataError
from itrpipe.evaluation.metrics import metrics, ranks
from itrpipe.methods.base import Batch, Method, MomentumTwin, OrderingMethod, RefreshedMethod, StatefulMethod
from itrpipe.progress import Reporter, Task
from itrpipe.training.data import Feed, SplitData, epoch_batches
from itrpipe.training.distributed import AnyMatcher, World, spread
from itrpipe.training.encoding import Encoder, Refreshing
from itrpipe.training.optimizers import OPTIMIZERS, Trained, WeightAverage, learning_rate, rising
from itrpipe.training.saved import Position, load_checkpoint, load_weights, save_checkpoint, save_weights
from itrpipe.training.settings import AS_TRAINED, PLATEAU, LoopSettings
from itrpipe.training.tracking import Tracking

CHECKPOINT, BEST = "checkpoint.safetensors", "best.safetensors"

PLATEAUS = 2
"""How often validation is flat before schedule `plateau` ends the training."""
_WAITED = 0.01
"""Share of a training, spent in waiting for data, from which on it is said."""
_NO_MORE = 1e-9
"""Score by which a validation is no better: the same recalls may be summed in another order."""
_STATISTICS_PAIRS = 10_000
"""Pairs that the statistics of BatchNorm are taken from; with more they hardly change.

Source: Wu and Johnson, "Rethinking 'Batch' in BatchNorm", 2021, section 3.
"""


class Trainer:
    """Trains one model with one method, alone or as one of several processes.

    Of several each makes the same trainer. All of them compute losses of the same batches, the same ones or each those
    of its anchors, and encode or score a share of each batch; the first writes checkpoints and decides.

    Args:
        settings: see `LoopSettings`.
        model: freshly initialised.
        method: gives batches and losses.
        train, validation: the data.
        device: where to train.
        work: folder for checkpoints.
        reporter: prints.
        tracking: gets every number of the history, and the loss in between.
        refreshing: mines again before some epochs, for a method that goes on with other lists.

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
        device: torch.device | str,
        work: Path,
        reporter: Reporter,
        tracking: Tracking | None = None,
        refreshing: Refreshing | None = None,
    ) -> None:
        self._settings, self._method, self._work, self._reporter = settings, method, work, reporter
        self._train, self._validation = train, validation
        self._tracking, self._refreshing = tracking or Tracking.off(), refreshing
        self.device, self._world = torch.device(device), World.joined()
        self._model = model.to(self.device)
        embed_precision = settings.precision if settings.embed_precision == AS_TRAINED else settings.embed_precision
        precisions = settings.score_precision, embed_precision
        self._encoder = Encoder(self._model, self.device, settings.encode_block, *precisions)
        self._spread = spread(self._model, self._world, int(settings.encode_chunk), getattr(method, "local", False))
        kept = method.attach(self._model) if isinstance(method, StatefulMethod) else None
        self._twins = [] if kept is None else [each for each in kept.modules() if isinstance(each, MomentumTwin)]
        self._trained = Trained(self._model, method, kept, settings.layer_decay)
        self._losses = self._world.summing(self._trained)
        self._average = WeightAverage(settings.average, self._model)
        self._parts = {"model": self._model, "average": self._average, **({} if kept is None else {"method": kept})}
        self._optimizer = OPTIMIZERS[settings.optimizer](self._trained, settings.learning_rate, settings.weight_decay)
        self._learning_rate = 0.0
        self.position = Position()
        self.waited_seconds = 0.0
        self.trained_seconds = 0.0
        self._saved = 0.0
        self._totals: dict[str, Tensor] = {}
        self._broken = torch.tensor(math.inf)
        # Validations of the first epochs are no reason to end; where all epochs are such, they are the method itself.
        self._first_epochs = settings.first_epochs if settings.first_epochs < settings.epochs else 0
        self._sizes = train.pair_sizes() if settings.batch_by == "tokens" else None
        self._steps, self._total_updates = self._count_steps()

    def run(self) -> AnyMatcher:
        """Trains to the last epoch, or until validation is flat; returns the model with its best weights.

        Raises:
            DataError: the loss became NaN or infinite.
            UsageError: a tracker did not start.
        """
        checkpoint = self._work / CHECKPOINT
        if checkpoint.exists():
            self.position = load_checkpoint(checkpoint, self._parts, self._optimizer)
            self._reporter.say(f"  going on in epoch {self.position.epoch + 1} after step {self.position.step}")
        done = sum(self._steps[: self.position.epoch]) + self.position.step
        with (
            self._tracking.following(self.position),
            self._reporter.task("training", self.steps, "steps", done) as task,
        ):
            if not self._settings.epochs:  # nothing of the model is to be changed
                found = {f"val_{name}": value for name, value in self.validate().items()}
                row = {"epoch": 0.0, "steps": 0, "learning_rate": 0.0, "loss": None, **found, "best": True}
                self.position.history = [row]
                self._save_best()
            while self._has_more and not self._is_flat:
                self._train_epoch(task)
        if (waited := self.waited_seconds / max(self.trained_seconds, 1e-9)) >= _WAITED:
            self._reporter.say(f"  {waited:.0%} of the training was spent in waiting for data")
        self._load_best()
        self._spread.end(self._model)
        self._model.eval()
        return self._model

    def ended_early(self) -> str:
        """What is to be known of a training that `patience` has ended; empty where it came to its end."""
        if not self._is_flat or not self._has_more:
            return ""
        epochs = self.position.history[-1]["epoch"]
        return f"ended after {epochs:g} epochs: validation has been flat for {self._settings.patience}"

    def never_warm(self) -> str:
        """What is to be known of a training that ends before its rate has risen; empty where it has."""
        updates, wanted = self._total_updates, rising(self._settings, self._total_updates)
        if not updates or wanted <= updates:
            return ""
        return (
            f"warmup_updates = {wanted:,}, and all epochs together have {updates:,} updates: the learning rate ends at "
            f"{100 * updates / wanted:.0f} % of its height; set fewer, such as 0.1 for a tenth, or a smaller batch_size"
        )

    @property
    def steps(self) -> int:
        """Of the whole training."""
        return min(sum(self._steps), self._total_updates * self._settings.accumulate)

    @property
    def _has_more(self) -> bool:
        return self.position.epoch < self._settings.epochs and self.position.updates < self._total_updates

    @property
    def _is_flat(self) -> bool:
        """Whether the last `patience` validations were no better; what is in the history is all that decides."""
        position, patience = self.position, self._settings.patience
        since = max(position.best_row + 1, *position.plateaus, 0)
        return 0 < patience <= sum(row["epoch"] > self._first_epochs for row in position.history[since:])

    def _save_best(self) -> None:
        if self._world.leads:
            save_weights(self._work / BEST, self._model, unfinished=True)

    def _load_best(self) -> None:
        """Takes the weights that validated best; moments and the method's state stay."""
        self._world.wait()  # until the first process has written them
        load_weights(self._work / BEST, self._model, unfinished=True)

    def validate(self) -> dict[str, float]:
        """Metrics on the first images of the validation split, with the four-recall sum `r1+r5`."""
        self._model.eval()
        data, limit, encoder = self._validation, self._settings.validation_images, self._encoder
        images, captions = np.arange(min(limit, data.num_images)), np.flatnonzero(data.caption_image < limit)
        scores = encoder.scores(encoder.images(data, images), encoder.texts(data, captions))
        found = metrics(ranks(scores, data.caption_image[captions]))
        found["r1+r5"] = found["rsum"] - found["i2t_r10"] - found["t2i_r10"]
        return self._world.agreed(found)

    @torch.no_grad()
    def _encode_batches(self) -> None:
        """Encodes training pairs as they are, with nothing drawn, so that a run that goes on sees the same."""
        pairs = 0
        for captions in self._batches(self.position.epoch):
            images, texts = self._train.pairs(self._train.caption_image[captions], captions)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self._settings.precision == "bf16"):
                self._model.encode_images(images.to(self.device))
                self._model.encode_texts(texts.to(self.device))
            pairs += len(captions)
            if pairs >= _STATISTICS_PAIRS:
                return

    def _train_epoch(self, task: Task) -> None:
        """Takes the steps that the epoch has left, and validates at its end and where `validate_every` says."""
        settings, position, method = self._settings, self.position, self._method
        batches = self._batches(position.epoch)
        last = self._saved = time.monotonic()
        self._model.eval()
        if self._refreshing is not None and isinstance(method, RefreshedMethod):
            lists = self._refreshing.lists(position.epoch, position.step, self._encoder, self._train)
            if lists is not None:
                method.refresh(lists)

        def make(step: int) -> Batch:
            rng = np.random.default_rng([settings.seed, position.epoch, step])
            return method.collate(batches[step], rng)

        self._totals = {
            name: torch.tensor(value, dtype=torch.float64, device=self.device) for name, value in position.sums.items()
        }
        self._broken = torch.tensor(math.inf, device=self.device)
        self._model.train()
        if isinstance(method, StatefulMethod) and position.step == 0:
            method.start_epoch(position.epoch)
        every = settings.validate_every or self._total_updates
        # Beside a training on processors more than one would take its cores.
        readers = 1 if self.device.type == "cpu" else max(1, settings.prefetch // 2)
        feed = Feed(make, range(position.step, len(batches)), settings.prefetch, self.device, readers)
        with closing(iter(feed)) as ready:
            for batch in ready:
                updated = self._step(batch, len(batches))
                self.trained_seconds += time.monotonic() - last
                task.advance(1, f"epoch {position.epoch + 1}/{settings.epochs}")
                self._tracking.send_step(position, self._totals)
                if position.updates == self._total_updates:
                    break
                # Between two updates there is a gradient, which no checkpoint holds.
                if updated and position.step < len(batches):
                    if position.updates % every == 0:
                        self._validate_and_save()
                        if self._is_flat:
                            break
                        self._model.train()
                        self._totals = {}
                    elif self._world.leads and time.monotonic() - self._saved >= settings.checkpoint_seconds:
                        self._collect()
                        self._save()
                last = time.monotonic()
        self.waited_seconds += feed.waited_seconds
        if not self._is_flat:
            self._validate_and_save()

    def _count_steps(self) -> tuple[list[int], int]:
        """Steps of every epoch that is begun, and updates of all."""
        settings, updates, steps = self._settings, 0, []
        for epoch in range(settings.epochs):
            # Batches of so many pairs are as many in every epoch.
            steps.append(len(self._batches(epoch)) if self._sizes is not None or not steps else steps[0])
            updates += -(-steps[-1] // settings.accumulate)
            if 0 < settings.max_updates <= updates:
                return steps, settings.max_updates
        return steps, updates

    def _batches(self, epoch: int) -> list[np.ndarray]:
        settings, order = self._settings, None
        if isinstance(self._method, OrderingMethod):
            order = self._method.order(settings.seed, epoch)
        return epoch_batches(self._train.num_captions, settings.batch_size, settings.seed, epoch, self._sizes, order)

    def _step(self, batch: Batch, steps: int) -> bool:
        """Adds the gradient of a batch of an epoch of `steps`; whether it was the last before an update."""
        settings, position = self._settings, self.position
        first = position.step - position.step % settings.accumulate
        gathered = min(settings.accumulate, steps - first)  # an epoch may end before its last update is full
        self._spread.begin_step(settings.seed, position.epoch, position.step)
        if position.step == first:
            self._optimizer.zero_grad()
        updated = position.step + 1 == first + gathered
        with nullcontext() if updated or self._world.size == 1 else self._losses.no_sync():
            with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                losses = self._losses(batch, position.epoch)
            (torch.stack(list(losses.values())).sum() / gathered).backward()
        position.step += 1
        statistics: Mapping[str, float | Tensor] = batch.statistics
        if self._spread.local:  # what is not finite in one process is not in any of them
            losses, statistics = self._spread.averaged(losses, statistics)
        self._count("pairs", len(batch.images))
        self._count("steps", 1)
        weight = len(batch.images) if self._method.means else 1
        for name, loss in losses.items():
            # Behind a gradient that is not finite, no loss is, and the sum is to name the first one.
            self._count(f"loss_{name}", torch.where(self._broken.isinf(), loss.detach(), 0.0) * weight)
        for name, value in statistics.items():
            self._count(f"mean_{name}", value)
        if updated:
            self._update()
        return updated

    def _update(self) -> None:
        position = self.position
        place = position.epoch, position.updates, self._total_updates, len(position.plateaus)
        self._learning_rate = learning_rate(self._settings, *place)
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate * group.get("scale", 1.0)
        norm = nn.utils.clip_grad_norm_(self._trained.parameters(), self._settings.gradient_clip)
        self._broken = torch.where(norm.isfinite(), self._broken, self._broken.clamp(max=position.step))
        self._optimizer.step()
        for following in (self._average, *self._twins):
            following.follow()
        position.updates += 1
        self._count("updates", 1)
        self._count("gradient_norm", norm)

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
                first = f" (first at step {self._broken:.0f})" if self._broken.isfinite() else ""
                raise DataError(
                    f"{name} is {total} in epoch {self.position.epoch + 1}{first}; lower --set learning_rate or check "
                    "the features for extreme values"
                )

    def _save(self) -> None:
        if self._world.leads:
            save_checkpoint(self._work / CHECKPOINT, self._parts, self._optimizer, self.position)
        self._saved = time.monotonic()

    def _validate_and_save(self) -> None:
        """Validates, keeps the weights if they are the best so far, writes history and checkpoint."""
        position = self.position
        ends = position.step == self._steps[position.epoch]
        epochs = position.epoch + (1 if ends else round(position.step / self._steps[position.epoch], 3))
        self._collect()
        with self._average.applied(self._encode_batches):
            found = self.validate()
            score = found[self._settings.selection]
            best = score > position.best_score + _NO_MORE
            if best:
                position.best_score, position.best_row = score, len(position.history)
                self._save_best()
        sums, position.sums = position.sums, {}
        pairs, steps, updates = (sums.pop(name) for name in ("pairs", "steps", "updates"))
        losses = {name: total / pairs for name, total in sums.items() if name.startswith("loss_")}
        means = {name: total / steps for name, total in sums.items() if name.startswith("mean_")}
        # A row holds no times, so that a resumed run writes the same bytes.
        row = {"epoch": epochs, "steps": int(steps), "learning_rate": self._learning_rate, "loss": sum(losses.values())}
        row |= losses | means | {"gradient_norm": sums["gradient_norm"] / updates}
        position.history.append(row | {f"val_{name}": value for name, value in found.items()} | {"best": best})
        if ends:
            position.epoch, position.step = position.epoch + 1, 0
        falls = self._settings.schedule == PLATEAU and self._is_flat and len(position.plateaus) < PLATEAUS - 1
        if falls:
            position.plateaus.append(len(position.history))
            self._load_best()
        self._save()
        # After the checkpoint: an epoch that a kill undoes must not have been sent.
        self._tracking.send_epochs(position.history)
        self._reporter.say(
            f"  epoch {epochs}: loss {position.history[-1]['loss']:.4f} per pair, "
            f"validation {self._settings.selection} {score:.1f}{' (best)' if best else ''}"
            f"{'; flat: on from the best, at a lower rate' if falls else ''}"
            f"{'; from here on the loss is another' if epochs == self._first_epochs else ''}"
        )
