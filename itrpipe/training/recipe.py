"""One training from beginning to end: `train` opens its inputs, runs a `Trainer` and writes the artifact.

A step of training is `Trainer._step`, and reads from top to bottom:

1. the method computes the losses of a batch with the model, in a forward pass (`method.losses`);
2. their sum is carried back, and gradients of `accumulate` batches add up;
3. the gradient is clipped, and the optimiser moves the weights at the rate of the schedule;
4. an average of weights, and copies of the model that a method keeps, follow;
5. running sums of losses and statistics are kept on the device, for the next validation.

Of several processes each runs the same program. `SharedModel` stands for the model then: a call of it encodes a share
of the batch and gathers the rest, so that the losses are those of the whole batch in every process.

Resuming is exact: the order of an epoch and the draws of a batch come from generators seeded by (seed, epoch)
and (seed, epoch, step), so the position alone restores them; an order by mined lists follows from the lists of its
epoch. Everything else that has a state (weights, optimiser moments, tensors of the method, dropout's generator, running
sums) is in the checkpoint. The best weights are written once, as the file of the finished model; the checkpoint knows
their digest.
"""

from __future__ import annotations

import math
import os
import time
from contextlib import closing, nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from torch import Tensor, nn

from itrpipe.config import leaves
from itrpipe.datasets.vocabulary import tell_unknown_words
from itrpipe.engine.work import CUDA, resolve_device
from itrpipe.errors import DataError
from itrpipe.evaluation.metrics import metrics, ranks
from itrpipe.features.embeddings import EMBEDDINGS
from itrpipe.methods.base import Batch, Method, MomentumTwin
from itrpipe.methods.declaration import FirstEpochs
from itrpipe.models.base import EmbeddingModel
from itrpipe.models.captions import CaptionTokens, PieceIds
from itrpipe.progress import PLAIN_INTERVAL_SECONDS, Reporter, Task
from itrpipe.storage.artifact import HISTORY, PARTIAL
from itrpipe.storage.disk import file_digest
from itrpipe.training.assembly import Refreshing, assemble, chunk_of, compile_for, feature_sizes, sources_of
from itrpipe.training.batches import epoch_batches, feed
from itrpipe.training.data import SplitData, longer_captions
from itrpipe.training.distributed import AnyMatcher, Processes, SharedModel, others_run
from itrpipe.training.encoding import Encoding, SplitEncoder
from itrpipe.training.optimizers import (
    WeightAverage,
    learning_rate,
    limit_training,
    merge_adapters,
    optimizer_of,
    warmup_updates,
)
from itrpipe.training.saved import (
    MODEL,
    Position,
    chosen_precision,
    encoders_of,
    load_checkpoint,
    load_weights,
    save_adapters,
    save_checkpoint,
    save_description,
    save_model,
    save_weights,
    states_of,
)
from itrpipe.training.settings import AS_TRAINED, NO_AVERAGE, NOTHING, LoopSettings
from itrpipe.training.tracking import TrackedRun, Tracking

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
BETTER = "better.safetensors"
TRACKING = "tracking"

_NO_MORE = 1e-9
"""Score by which a validation is no better: the same recalls may be summed in another order."""
_STATISTICS_PAIRS = 10_000
"""Pairs that the statistics of BatchNorm are taken from; with more they hardly change.

Source: Wu and Johnson, "Rethinking 'Batch' in BatchNorm", 2021, section 3.
"""


def train(job: Any) -> None:
    """Train a model, keep the weights that validated best, and embed every split with them where the model embeds.

    Of several processes of a launcher all train; the first does all else.

    Args:
        job: see `itrpipe.stages.base.Job`; the settings are `TrainSettings`. The model is written to its folder.

    Raises:
        MissingInputError: there is no training or validation split.
        UsageError: settings do not fit the data or the model, or a tracker did not start.
        DataError: a file is damaged, or the loss became NaN or infinite.
    """
    settings = job.settings
    with others_run(_train_along, replace(job, reporter=None)):
        trainer, splits, tokens = trainer_of(job)
        model = trainer.run()
    history = trainer.position.history
    best = history[trainer.position.best_row]

    sizes = {"image_dim": splits["train"].image_dim}
    if settings.model.opens_encoders:
        if settings.adapts:
            save_adapters(job.folder, model, settings)
            merge_adapters(model)
        if best.get("mean_temperature"):  # not every method has a scale of logits
            for encoder in encoders_of(model).values():
                encoder.set_scale(1 / best["mean_temperature"], best.get("mean_bias") or 0.0)
        save_model(job.folder, model, sources_of(job).frozen)
        sizes |= feature_sizes(job)
    save_description(job.folder, model, tokens, settings.model_dump(mode="json"), sizes)

    # Rows may differ in their columns, where the first epochs have another loss.
    columns = {}
    for name in dict.fromkeys(chain.from_iterable(history)):
        columns[name] = [row.get(name) for row in history]
    pq.write_table(pa.table(columns), job.folder / HISTORY)

    if isinstance(model, EmbeddingModel):
        encoder = None  # a compiled model rounds otherwise than the saved one, which is opened then
        if not trainer.compiled:
            encoder = replace(trainer.encoder, model=model)
        execution = job.execution
        work = Encoding(
            job.folder.absolute(), sources_of(job), execution.encode_block, execution.device, splits, encoder
        )
        work.join(job.made(work).paths, job.folder / EMBEDDINGS, model.measure)
    job.metrics["validation_rsum"] = best["val_rsum"]
    job.metrics["best_epoch"] = best["epoch"]
    job.metrics["epochs"] = history[-1]["epoch"] if settings.loss.trains else 0
    reason = trainer.ended_early()
    if reason:
        job.warn(reason)
    if not isinstance(tokens, PieceIds):
        for name, data in splits.items():
            if name != "train":
                tell_unknown_words(job, name, data.unknown_words())


def _train_along(job: Any) -> None:
    """Train in one of the other processes, without a word."""
    job.reporter = Reporter(Console(quiet=True))
    trainer, _, _ = trainer_of(job)
    trainer.run()


def trainer_of(job: Any) -> tuple[Trainer, dict[str, SplitData], CaptionTokens]:
    """Return the trainer of a job's model, its splits, and the reader of its captions.

    Raises:
        MissingInputError, UsageError, DataError: see `train`.
    """
    settings = job.settings
    execution = job.execution
    processes = Processes.joined()
    if execution.threads:
        torch.set_num_threads(execution.threads)
    torch.manual_seed(settings.seed)
    model, method, splits, tokens = assemble(job)
    loss = settings.loss
    if loss.trains and (settings.adapts or settings.freeze != NOTHING):
        limit_training(model, settings)
        trained = sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
        everything = sum(weights.numel() for weights in model.parameters())
        job.metrics["trained_weights"] = trained
        job.reporter.say(f"  {trained:,} of {everything:,} weights are trained")

    device = torch.device(resolve_device(execution.device))
    if device.type == CUDA:  # with several of them, that of this process
        device = torch.device(CUDA, int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    train_data = splits["train"]
    precision = chosen_precision(settings.precision, device)
    if settings.precision == "auto":
        job.metrics["precision"] = precision
        job.reporter.say(f"  precision {precision}")
    values = {**dict(settings), **dict(execution), "precision": precision}
    values["encode_chunk"] = chunk_of(job, model, train_data, device, precision)
    if not loss.trains:
        values |= {"epochs": 0, "layer_decay": 1.0, "average": NO_AVERAGE}
    train_data.processes = processes
    train_data.device = device

    tracking = None
    if execution.trackers and processes.leads:
        folder = job.folder.parents[1] / TRACKING
        if execution.track_to:
            folder = Path(execution.track_to).expanduser()
        job.reporter.say(f"  followed by {' and '.join(execution.trackers)} in {folder}")
        run = TrackedRun(
            name=job.folder.name.removesuffix(PARTIAL),
            project=f"itrpipe-{job.dataset}",
            folder=folder,
            settings=dict(leaves(settings.model_dump(mode="json"))),
            work=job.work,
        )
        tracking = Tracking(execution.trackers, run, job.warn)
    refreshing = None
    mined = loss.mined()
    if mined and mined.refresh_every:
        refreshing = Refreshing(job, train_data, mined.refresh_every)
    trainer = Trainer(
        LoopSettings.model_construct(**values),
        model,
        method,
        train_data,
        splits["val"],
        device,
        job.work,
        job.reporter,
        tracking,
        refreshing,
        # Encoders of transformers become folders in the end.
        best=None if settings.model.opens_encoders else job.folder / MODEL,
    )
    trainer.compiled = compile_for(job, model, train_data, device, trainer.steps)
    for reason in (longer_captions(splits), trainer.never_warm()):
        if reason:
            job.warn(reason)
    return trainer, splits, tokens


class Losses(nn.Module):
    """The losses of a batch as a module that has all that is trained.

    Args:
        model: as the method calls it.
        method: of the losses.
        further: modules that the method keeps between steps.
    """

    def __init__(self, model: nn.Module, method: Method[Any], further: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.further = further
        self._method = method

    def forward(self, batch: Batch, epoch: int) -> dict[str, Tensor]:
        """Return named loss terms of a batch of an epoch (0-based)."""
        return self._method.losses(self.model, batch, epoch)


class Trainer:
    """Trains one model with one method, alone or as one of several processes.

    Of several each makes the same trainer. All of them compute losses of the same batches, and encode or score a share
    of each batch; the first writes checkpoints and decides.

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
        best: file of the weights that validated best; None for one in `work`.

    Attributes:
        position: how far training has come.
        encoder: runs the model over splits; a share of them in each process.
        compiled: whether torch has compiled the encoders.
        steps: of the whole training.
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
        best: Path | None = None,
    ) -> None:
        self._settings = settings
        self._method = method
        self._work = work
        self._reporter = reporter
        self._train = train
        self._validation = validation
        self._best = best or work / BEST
        self._better = work / BETTER
        self._tracking = tracking
        self._refreshing = refreshing
        self.device = torch.device(device)
        self._processes = Processes.joined()
        self._model = model.to(self.device)
        self._shared = SharedModel(model, self._processes, int(settings.encode_chunk))
        embed_precision = settings.embed_precision
        if embed_precision == AS_TRAINED:
            embed_precision = settings.precision
        self.encoder = SplitEncoder(
            self._shared, self.device, settings.encode_block, settings.score_precision, embed_precision
        )

        # The method may keep modules of its own, of which some are trained and some follow the model.
        further = method.attach(self._shared)
        losses = Losses(self._shared, method, further)
        self._parameters = list(losses.parameters())
        self._losses = self._processes.averaging_gradients(losses)
        self._average = WeightAverage(settings.average, self._model)
        self._parts: dict[str, nn.Module] = {"model": self._model, "average": self._average, "method": further}
        self._frozen = nn.ModuleList(model.encoders()[side] for side in settings.frozen)
        self._following: list[WeightAverage | MomentumTwin] = [self._average]
        self._following += [part for part in further.modules() if isinstance(part, MomentumTwin)]
        self._optimizer = optimizer_of(settings, self._model, further.parameters())

        self.position = Position()
        self.compiled = False
        # Seconds of the steps since the last validation, and those of them that passed in waiting for data.
        self._stepped = 0.0
        self._waited = 0.0
        self._said = -math.inf  # the first validation is printed
        # Validations of the first epochs are no reason to end; where all epochs are such, they are the method itself.
        self._first_epochs = 0
        loss = method.settings
        if isinstance(loss, FirstEpochs) and loss.first_epochs() < settings.epochs:
            self._first_epochs = loss.first_epochs()

        # Steps of every epoch that is begun, and updates of all.
        self._sizes = train.pair_sizes() if settings.batch_by == "tokens" else None
        self._steps: list[int] = []
        self._total_updates = 0
        self.steps = 0
        steps = 0
        for epoch in range(settings.epochs):
            if epoch == 0 or self._sizes is not None:  # batches of so many pairs are as many in every epoch
                steps = len(self._batches(epoch))
            self._steps.append(steps)
            updates = math.ceil(steps / settings.accumulate)
            left = settings.max_updates - self._total_updates
            if 0 < left <= updates:
                self.steps += min(steps, left * settings.accumulate)
                self._total_updates = settings.max_updates
                break
            self._total_updates += updates
            self.steps += steps

    def run(self) -> AnyMatcher:
        """Train to the last epoch, or until validation is flat, and return the model with its best weights.

        Raises:
            DataError: the loss became NaN or infinite.
            UsageError: a tracker did not start.
        """
        position = self.position
        checkpoint = self._work / CHECKPOINT
        if checkpoint.exists():
            position = load_checkpoint(checkpoint, self._parts, self._frozen, self._optimizer)
            self.position = position
            # Weights that a kill left beside the best ones are kept if the checkpoint names them, and dropped if not.
            if self._processes.leads and self._better.exists():
                if file_digest(self._better) != position.best_digest:
                    self._better.unlink()
                self._keep_best()
            self._reporter.say(f"  going on in epoch {position.epoch + 1} after step {position.step}")
        steps_done = sum(self._steps[: position.epoch]) + position.step
        with (
            nullcontext() if self._tracking is None else self._tracking.following(position),
            self._reporter.task("training", self.steps, "steps", steps_done) as task,
        ):
            if not self._settings.epochs:  # nothing of the model is to be changed
                row = {"epoch": 0.0, "steps": 0, "learning_rate": 0.0, "loss": None}
                for name, value in self.validate().items():
                    row[f"val_{name}"] = value
                row["best"] = True
                position.history = [row]
                self._save_best()
                self._keep_best()
            while self._has_more() and not self._is_flat():
                self._train_epoch(task)
        digest = self._processes.agreed(position.best_digest)  # when the first process has written them
        load_weights(self._best, self._model, digest)  # moments and the method's state stay
        return self._model.eval()

    def ended_early(self) -> str:
        """Return a note on a training that `patience` has ended; empty where it came to its end."""
        if not self._is_flat() or not self._has_more():
            return ""
        epochs = self.position.history[-1]["epoch"]
        return f"ended after {epochs:g} epochs: validation has not risen for {self._settings.patience}"

    def never_warm(self) -> str:
        """Return a note on a training that ends before its rate has risen; empty where it has."""
        updates = self._total_updates
        warmup = warmup_updates(self._settings, updates)
        if not updates or warmup <= updates:
            return ""
        return (
            f"warmup_updates = {warmup:,}, and all epochs together have {updates:,} updates: the learning rate ends at "
            f"{100 * updates / warmup:.0f} % of its height; set fewer, such as 0.1 for a tenth, or a smaller batch_size"
        )

    def validate(self) -> dict[str, float]:
        """Return metrics on the first images of the validation split, with `r1+r5`: all recalls at 1 and 5 summed."""
        self._shared.eval()
        data = self._validation
        limit = self._settings.validation_images
        images = np.arange(min(limit, data.num_images))
        captions = np.flatnonzero(data.caption_image < limit)
        encoded_images = self.encoder.images(data, images)
        encoded_texts = self.encoder.texts(data, captions)
        scores = self.encoder.scores(encoded_images, encoded_texts)
        values = metrics(ranks(scores, data.caption_image[captions]))
        values["r1+r5"] = values["rsum"] - values["i2t_r10"] - values["t2i_r10"]
        return self._processes.agreed(values)

    def _has_more(self) -> bool:
        """Return whether epochs and updates are left."""
        return self.position.epoch < self._settings.epochs and self.position.updates < self._total_updates

    def _is_flat(self) -> bool:
        """Return whether the last `patience` validations were no better; the history alone decides."""
        patience = self._settings.patience
        since_best = self.position.history[self.position.best_row + 1 :]
        counting = [row for row in since_best if row["epoch"] > self._first_epochs]
        return 0 < patience <= len(counting)

    def _batches(self, epoch: int) -> list[np.ndarray]:
        """Return the caption rows of every batch of an epoch."""
        settings = self._settings
        order = self._method.order(settings.seed, epoch)
        return epoch_batches(self._train.num_captions, settings.batch_size, settings.seed, epoch, self._sizes, order)

    def _train_epoch(self, task: Task) -> None:
        """Take the steps that the epoch has left, and validate at its end and where `validate_every` says."""
        settings = self._settings
        position = self.position
        method = self._method
        self._saved = time.monotonic()
        self._shared.eval()
        if self._refreshing is not None:
            lists = self._refreshing.lists(position.epoch, position.step, self.encoder)
            if lists is not None:
                method.refresh(lists)
        batches = self._batches(position.epoch)  # in an order that lists may decide

        def make_batch(step: int) -> Batch:
            rng = np.random.default_rng([settings.seed, position.epoch, step])
            return method.collate(batches[step], rng)

        self._sums: dict[str, Tensor] = {}
        for name, value in position.sums.items():
            self._sums[name] = torch.tensor(value, dtype=torch.float64, device=self.device)
        self._first_broken_step = torch.tensor(math.inf, device=self.device)
        self._shared.train()
        if position.step == 0:
            method.start_epoch(position.epoch)
        validate_every = settings.validate_every or self._total_updates
        # Beside a training on processors more than one would take its cores.
        readers = 1 if self.device.type == "cpu" else max(1, settings.prefetch // 2)
        steps = range(position.step, len(batches))
        with closing(feed(make_batch, steps, settings.prefetch, self.device, readers)) as ready:
            while True:
                started = time.monotonic()
                batch = next(ready, None)
                if batch is None:
                    break
                self._waited += time.monotonic() - started
                updated = self._step(batch, len(batches))
                self._stepped += time.monotonic() - started
                task.advance(1, f"epoch {position.epoch + 1}/{settings.epochs}")
                if self._tracking is not None:
                    self._tracking.send_step(position, self._sums)
                if position.updates == self._total_updates:
                    break
                # Between two updates there is a gradient, which no checkpoint holds.
                if not updated or position.step == len(batches):
                    continue
                if position.updates % validate_every == 0:
                    self._validate_and_save()
                    if self._is_flat():
                        break
                    self._shared.train()
                    self._sums = {}
                elif self._processes.leads and time.monotonic() - self._saved >= settings.checkpoint_seconds:
                    self._collect_sums()
                    self._save()
        if not self._is_flat():
            self._validate_and_save()

    def _step(self, batch: Batch, steps: int) -> bool:
        """Add the gradient of a batch of an epoch of `steps`, and return whether it made an update of the weights."""
        settings = self._settings
        position = self.position
        first_of_update = position.step - position.step % settings.accumulate
        # An epoch may end before its last update has as many batches.
        batches_of_update = min(settings.accumulate, steps - first_of_update)
        is_update = position.step + 1 == first_of_update + batches_of_update
        # Only where rows of a step are divided: one process draws from the generator that checkpoints hold.
        self._shared.division.seed_step(settings.seed, position.epoch, position.step)
        if position.step == first_of_update:
            self._optimizer.zero_grad()

        # The losses of the batch, and the gradient of their sum. Processes exchange gradients before an update alone.
        with nullcontext() if is_update or self._processes.size == 1 else self._losses.no_sync():
            with torch.autocast(self.device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
                losses = self._losses(batch, position.epoch)
            total = torch.stack(list(losses.values())).sum() / batches_of_update
            total.backward()
        position.step += 1

        # Running sums, from which the next validation takes the means.
        pairs = len(batch.images)
        sums: dict[str, Any] = {"pairs": pairs, "steps": 1}
        for name, loss in losses.items():
            # Behind a gradient that is not finite, no loss is, and the sum is to name the first one.
            value = torch.where(self._first_broken_step.isinf(), loss.detach(), 0.0)
            sums[f"loss_{name}"] = value * pairs if self._method.means else value
        for name, value in batch.statistics.items():
            sums[f"mean_{name}"] = value

        # The update.
        if is_update:
            self._learning_rate = learning_rate(settings, position.epoch, position.updates, self._total_updates)
            for group in self._optimizer.param_groups:
                group["lr"] = self._learning_rate * group.get("scale", 1.0)
            norm = nn.utils.clip_grad_norm_(self._parameters, settings.gradient_clip)
            broken_step = self._first_broken_step.clamp(max=position.step)
            self._first_broken_step = torch.where(norm.isfinite(), self._first_broken_step, broken_step)
            self._optimizer.step()
            for following in self._following:
                following.follow()
            position.updates += 1
            sums |= {"updates": 1, "gradient_norm": norm}

        # In double precision on the device, so that no step waits for it.
        for name, value in sums.items():
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            self._sums[name] += value.detach() if isinstance(value, Tensor) else value
        return is_update

    def _collect_sums(self) -> None:
        """Move the running sums into the position.

        Raises:
            DataError: one of them is NaN or infinite.
        """
        position = self.position
        position.sums = {name: total.item() for name, total in self._sums.items()}
        for name, total in position.sums.items():
            if not math.isfinite(total):
                first = ""
                if self._first_broken_step.isfinite():
                    first = f" (first at step {self._first_broken_step:.0f})"
                raise DataError(
                    f"{name} is {total} in epoch {position.epoch + 1}{first}; lower --set learning_rate or check "
                    "the features for extreme values"
                )

    def _validate_and_save(self) -> None:
        """Validate, keep the weights if they are the best so far, write history and checkpoint."""
        position = self.position
        selection = self._settings.selection
        steps_of_epoch = self._steps[position.epoch]
        epoch_ends = position.step == steps_of_epoch
        epochs = position.epoch + (1 if epoch_ends else round(position.step / steps_of_epoch, 3))
        self._collect_sums()
        with self._average.applied(self._encode_batches):
            values = self.validate()
            score = values[selection]
            best = score > position.best_score + _NO_MORE
            if best:
                position.best_score = score
                position.best_row = len(position.history)
                self._save_best()

        sums = position.sums
        position.sums = {}
        losses = {}
        means = {}
        for name, total in sums.items():
            if name.startswith("loss_"):
                losses[name] = total / sums["pairs"]
            elif name.startswith("mean_"):
                means[name] = total / sums["steps"]
        mean_loss = sum(losses.values())
        # A row holds no times, so that a resumed run writes the same bytes.
        row = {
            "epoch": epochs,
            "steps": int(sums["steps"]),
            "learning_rate": self._learning_rate,
            "loss": mean_loss,
            **losses,
            **means,
            "gradient_norm": sums["gradient_norm"] / sums["updates"],
        }
        for name, value in values.items():
            row[f"val_{name}"] = value
        row["best"] = best
        position.history.append(row)
        if epoch_ends:
            position.epoch += 1
            position.step = 0
        self._save()
        # After the checkpoint: an epoch that a kill undoes must not have been sent.
        if self._tracking is not None:
            self._tracking.send_epochs(position.history)
        note = " (best)" if best else ""
        loss_changes = epoch_ends and epochs == self._first_epochs
        if loss_changes:
            note += "; from here on the loss is another"
        is_last = not self._has_more() or self._is_flat()
        is_time = time.monotonic() - self._said >= PLAIN_INTERVAL_SECONDS
        if is_time or is_last or loss_changes:
            self._reporter.say(
                f"  epoch {epochs}: loss {mean_loss:.4f} per pair, validation {selection} {score:.1f}{note}; "
                f"waited {self._waited:.1f} s for data, {self._waited / max(self._stepped, 1e-9):.0%} of the time"
            )
            self._said = time.monotonic()
            self._stepped = 0.0
            self._waited = 0.0

    @torch.no_grad()
    def _encode_batches(self) -> None:
        """Encode training pairs as they are, with nothing drawn, so that a run that goes on sees the same."""
        pairs = 0
        for captions in self._batches(self.position.epoch):
            images, texts = self._train.pairs(self._train.caption_image[captions], captions)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self._settings.precision == "bf16"):
                self._shared.encode_images(images.to(self.device))
                self._shared.encode_texts(texts.to(self.device))
            pairs += len(captions)
            if pairs >= _STATISTICS_PAIRS:
                return

    def _save(self) -> None:
        """Write a checkpoint, and then keep the best weights that it names."""
        if self._processes.leads:
            save_checkpoint(self._work / CHECKPOINT, self._parts, self._frozen, self._optimizer, self.position)
            self._keep_best()
        self._saved = time.monotonic()

    def _save_best(self) -> None:
        """Write the best weights beside the last best ones, which the checkpoint names until it is written anew."""
        if self._processes.leads:
            weights = states_of({MODEL: self._model}, self._frozen)[MODEL]
            self.position.best_digest = save_weights(self._better, weights)

    def _keep_best(self) -> None:
        """Put best weights that the checkpoint names by now in the place of the last ones."""
        if self._processes.leads and self._better.exists():
            os.replace(self._better, self._best)
