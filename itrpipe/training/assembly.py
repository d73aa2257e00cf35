"""Puts together what trains a model: data, model, method and loop, from the settings and inputs of a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from itrpipe.config import leaves
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary
from itrpipe.engine.work import CUDA, resolve_device
from itrpipe.errors import MissingInputError, UsageError, reason_of
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.methods.declaration import (
    FirstEpochs,
    method_module,
    methods,
    mined_by,
    named_inputs,
)
from itrpipe.models.captions import CaptionTokens
from itrpipe.models.declaration import RANDOM
from itrpipe.models.registry import network_module
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import PARTIAL
from itrpipe.training.data import Sources, SplitData, load_splits, longer_captions
from itrpipe.training.distributed import AnyMatcher, World, tensors_of
from itrpipe.training.encoding import Refreshing
from itrpipe.training.inputs import method_inputs, mined_lists
from itrpipe.training.loop import Trainer
from itrpipe.training.mining import mine_again
from itrpipe.training.optimizers import limit_training, trained_weights
from itrpipe.training.saved import build_model, chosen_precision, start_from
from itrpipe.training.settings import NO_AVERAGE, NOTHING, LoopSettings, TrainExecution, TrainSettings
from itrpipe.training.tracking import TrackedRun, Tracking

if TYPE_CHECKING:
    from itrpipe.models.dual_encoder.network import Encoders

TRACKING = "tracking"
_FEW, _MORE = 8, 32
_SHARE = 0.6
"""Of the free memory, for the encoders; scores, twins of a model and further captions of a method take the rest."""
_STATE = 8
"""Bytes that Adam keeps of each weight."""
_COMPILED_FROM = 2_000
"""Steps of a training from which on compiling pays."""
_WORDS_OF_A_TILE = 8
_STRETCHED = 0.01
"""Change of an image's shape, relative, from which on it is worth telling."""


class TrainingJob(Protocol):
    """What a training is told, and what it tells; see `itrpipe.stages.base.Job`."""

    dataset: str
    conf: str
    settings: TrainSettings
    execution: TrainExecution
    folder: Path
    reporter: Reporter
    metrics: dict[str, Any]
    messages: list[str]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Input name -> finished artifact, with its `folder` and `manifest`."""
        ...

    @property
    def work(self) -> Path:
        """Folder for what only resuming needs."""
        ...

    def warn(self, message: str) -> None:
        """Shows a warning and keeps it."""
        ...


def trainer_of(job: TrainingJob) -> tuple[Trainer, dict[str, SplitData], CaptionTokens]:
    """What trains the model, with the data.

    Raises:
        MissingInputError: there is no training or validation split.
        UsageError: settings do not fit the data or the model.
        DataError: a file is damaged.
    """
    build = method_module(job.settings.method).build
    if job.execution.threads:
        torch.set_num_threads(job.execution.threads)
    torch.manual_seed(job.settings.seed)
    encoders = _open_encoders(job)
    splits, tokens = load_splits(sources_of(job), job.settings.model, job.settings.min_word_count, job.warn, encoders)
    vocabulary = getattr(tokens, "vocabulary", tokens)
    if isinstance(vocabulary, Vocabulary) and len(vocabulary) == len(SPECIALS):
        raise UsageError(
            f"no word occurs min_word_count = {job.settings.min_word_count:,} times in the captions, so a model would "
            "know none; lower --set train.min_word_count"
        )
    for split in ("train", "val"):
        if split not in splits:
            raise MissingInputError(
                f"dataset {job.dataset!r} has no {split} split, which training needs; "
                "add images, or give a column split, and prepare it again"
            )
    train, loss = splits["train"], job.settings.loss
    model = _model(job, train.image_dim, tokens, encoders)
    method = build(loss, train, **method_inputs(job, named_inputs(build), train, tokens, model))
    if loss.trains and (job.settings.adapts or job.settings.freeze != NOTHING):
        limit_training(model, job.settings)
        trained, everything = trained_weights(model)
        job.metrics["trained_weights"] = trained
        job.reporter.say(f"  {trained:,} of {everything:,} weights are trained")
    place = torch.device(resolve_device(job.execution.device))
    if place.type == CUDA:  # with several of them, that of this process
        place = torch.device(CUDA, int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(place)
    precision = chosen_precision(job.settings.precision, place)
    if job.settings.precision == "auto":
        job.metrics["precision"] = precision
        job.reporter.say(f"  precision {precision}")
    first_epochs = loss.first_epochs() if isinstance(loss, FirstEpochs) else 0
    values = {**dict(job.settings), **dict(job.execution), "precision": precision, "first_epochs": first_epochs}
    values["encode_chunk"] = _encode_chunk(job, model, train, place, precision)
    if not loss.trains:
        values |= {"epochs": 0, "layer_decay": 1.0, "average": NO_AVERAGE}
    train.train_on(World.joined(), place)
    trainer = Trainer(
        LoopSettings.model_construct(**values),
        model,
        method,
        train,
        splits["val"],
        place,
        job.work,
        job.reporter,
        _tracking(job),
        _refreshing(job, train),
    )
    _compile(job, model, train, place, trainer.steps)
    captions = {f"{name} captions": data for name, data in splits.items()}
    for reason in (longer_captions(captions), trainer.never_warm()):
        if reason:
            job.warn(reason)
    return trainer, splits, tokens


def _open_encoders(job: TrainingJob) -> Encoders | None:
    """The encoders of transformers that the model is made of, where it is."""
    if not job.settings.model.opens_encoders:
        return None
    held = FeatureFile.open(job.inputs["extract"].folder / FEATURES).arrays
    has = held["global"].shape[1] if "global" in held else 0, "boxes" in held
    encoders = network_module(job.settings.backbone).open_encoders(job.settings.model, *has)
    for note in encoders.notes:
        job.warn(note)
    pixels = job.inputs["extract"].manifest.settings
    if "fit" not in pixels or getattr(job.settings.model, "vision", RANDOM) == RANDOM:
        return encoders
    stored, frame = (pixels["height"], pixels["width"]), encoders.vision.frame
    fit = "crop" if encoders.vision.crops else "stretch"
    if stored != frame or (fit == "crop" and pixels["fit"] == "stretch" and _stretched(job, stored)):
        job.warn(
            f"photographs are stored as {stored[1]} x {stored[0]} pixels ({pixels['fit']}), and the vision encoder was "
            f"trained on {frame[1]} x {frame[0]} ({fit}); store them in its way: itrpipe extract --dataset "
            f"{job.dataset} --features pixels --name pixels-{frame[0]} --set height={frame[0]} --set width={frame[1]} "
            f"--set fit={fit}, and train with --features pixels-{frame[0]}"
        )
    return encoders


def _stretched(job: TrainingJob, frame: tuple[int, int]) -> bool:
    """Whether photographs change their shape in a frame of this height and width."""
    known = PreparedDataset.open(job.inputs["prepare"].folder).sizes()
    known = known[known.min(axis=1) > 0]
    return bool((abs(known[:, 0] / known[:, 1] * frame[1] / frame[0] - 1) > _STRETCHED).any())


def sources_of(job: TrainingJob) -> Sources:
    """The artifacts that data are read from."""
    read = ("prepare", "extract", "parse")
    folders = {name: job.inputs[name].folder.absolute() for name in read if name in job.inputs}
    return Sources(**folders, train_share=job.settings.train_share)


def _model(job: TrainingJob, image_dim: int, tokens: CaptionTokens, encoders: Encoders | None) -> AnyMatcher:
    """The model with the weights that it starts from."""
    settings = job.settings.model_dump(mode="json")
    model = build_model(settings, image_dim, len(tokens), encoders)
    if published := job.settings.model.published_weights():
        told = network_module(job.settings.backbone).load_published(model, Path(published).expanduser())
        job.reporter.say(f"  {told}")
    if "start" in job.inputs:
        start_from(job.inputs["start"].folder, model, settings, tokens)
        # Heads that the run which this one starts from has not trained begin as copies of those that it has.
        trained = methods()[job.inputs["start"].manifest.settings["method"]].heads
        if new := job.settings.loss.heads - trained:
            model.derive_heads(new)  # pyright: ignore[reportCallIssue]
    return model


def _refreshing(job: TrainingJob, train: SplitData) -> Refreshing | None:
    """Returns what mines again while training goes on."""
    mined = mined_by(job.settings.loss)
    if mined is None or not mined.refresh_every:
        return None

    def warn(message: str) -> None:
        if message not in job.messages:
            job.warn(message)

    def mine(folder: Path) -> dict[str, np.ndarray]:
        job.reporter.say("  mining again with the weights as they are")
        lists, prepare = job.inputs["mine_negatives"], job.inputs["prepare"]
        mine_again(folder, lists, prepare, job.execution.device, job.reporter, warn)
        return mined_lists(folder, train)

    return Refreshing(mined.refresh_every, job.work / "refreshed", mine)


def _encode_chunk(job: TrainingJob, model: AnyMatcher, data: SplitData, device: torch.device, precision: str) -> int:
    """That of the settings; for `auto` what fits in memory, which is told and recorded."""
    settings, world, asked, rows = job.settings, World.joined(), job.execution.encode_chunk, 0
    if isinstance(asked, int):
        return asked
    if world.leads:
        each = data.pair_sizes().mean() if settings.batch_by == "tokens" else 1
        rows = chosen_chunk(model, data, -(-int(settings.batch_size / each) // world.size), device, precision)
    job.metrics["encode_chunk"] = rows = world.agreed(rows)
    job.reporter.say(f"  encode_chunk {rows} ({'by free memory' if rows else 'the whole batch'})")
    return rows


def chosen_chunk(model: AnyMatcher, data: SplitData, pairs: int, device: torch.device, precision: str) -> int:
    """Rows of a chunk with which a step fits in the free memory of a GPU; 0 where the whole batch does.

    Models that look at the whole batch, and processors, take whole batches. The model is left as it was, on its device.

    Args:
        model: as it will be trained.
        data: the training set.
        pairs: of a batch that this process encodes.
        device: where it is trained.
        precision: of the encoders.
    """
    if device.type != "cuda" or any(isinstance(module, _BatchNorm) for module in model.modules()):
        return 0
    model.to(device).train()
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    states = _STATE * sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
    return fitting_chunk(pairs, _SHARE * free - states, partial(_bytes, model, data, device, precision))


def fitting_chunk(pairs: int, room: float, needed: Callable[[int], float]) -> int:
    """The largest power of two of rows that fit; 0 where all pairs do, and 1 where nothing does.

    Args:
        pairs: of the batch.
        room: bytes.
        needed: bytes that so many rows need, which grow evenly with them.
    """
    few, more = needed(_FEW), needed(_MORE)
    each = (more - few) / (_MORE - _FEW)
    fitting = (room - few) / each + _FEW if each > 0 else pairs
    return 0 if fitting >= pairs else 1 << max(1, int(fitting)).bit_length() - 1


def _bytes(model: AnyMatcher, data: SplitData, device: torch.device, precision: str, rows: int) -> float:
    """Memory of a forward and backward pass through both encoders, of the longest captions."""
    longest = np.argsort(-data.pair_sizes(), kind="stable")[:rows]
    images, texts = data.pairs(data.caption_image[longest], longest)
    images, texts = images.to(device), texts.to(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with torch.random.fork_rng([device]):
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            encoded = [*tensors_of(model.encode_images(images)), *tensors_of(model.encode_texts(texts))]
        torch.stack([each.float().sum() for each in encoded if each.requires_grad]).sum().backward()
    model.zero_grad(set_to_none=True)
    return float(torch.cuda.max_memory_allocated(device) - before)


def _compile(job: TrainingJob, model: AnyMatcher, train: SplitData, place: torch.device, steps: int) -> None:
    """Compiles the encoders where that is asked for, or pays: those of transformers on a GPU, in a long training."""
    asked = job.execution.compile
    pays = place.type == CUDA and job.settings.model.opens_encoders and steps >= _COMPILED_FROM
    if not (pays if asked == "auto" else asked):
        return
    try:
        compile_encoders(model, place)
    except UsageError as error:
        if asked != "auto":
            raise
        job.warn(str(error))
    else:
        train.pad_texts(_WORDS_OF_A_TILE)
        job.reporter.say("  encoders are compiled, which takes a minute at the first steps")


def compile_encoders(model: AnyMatcher, device: torch.device) -> None:
    """Lets torch compile the parts of a model when they are first called; their weights and names stay as they are.

    A vision encoder is compiled for each size of a batch, since images are all of one shape; other parts for any size
    from the second one on. A copy of the model is not compiled.

    Args:
        model: is changed.
        device: where it is trained.

    Raises:
        UsageError: torch cannot compile for this device, for example because there is no compiler.
    """
    try:
        torch.compile(torch.sin, dynamic=True)(torch.zeros(8, device=device))
    except Exception as error:  # torch raises errors of its own, of the compiler and of the system
        raise UsageError(
            f"torch cannot compile encoders for {device.type} here ({reason_of(error)}), to be faster; install "
            "what it misses, or give --set train.compile=false"
        ) from None
    vision = model.encoders().get("vision")
    parts = list(model.children())
    for part in parts:  # grows: nothing calls a list, but what it holds
        if isinstance(part, (nn.ModuleList, nn.ModuleDict)):
            parts.extend(part.children())
        elif part is vision:
            part.compile(dynamic=False)
        else:
            part.compile()


def _tracking(job: TrainingJob) -> Tracking:
    """What follows the training; in one folder for all trainings of the dataset, where trackers compare them."""
    execution = job.execution
    names = execution.trackers if World.joined().leads else ()
    folder = Path(execution.track_to).expanduser() if execution.track_to else job.folder.parents[1] / TRACKING
    if names:
        job.reporter.say(f"  followed by {' and '.join(names)} in {folder}")
    run = TrackedRun(
        name=job.folder.name.removesuffix(PARTIAL),
        project=f"itrpipe-{job.dataset}",
        folder=folder,
        settings=dict(leaves(job.settings.model_dump(mode="json"))),
        work=job.work,
    )
    return Tracking(names, run, job.warn)
