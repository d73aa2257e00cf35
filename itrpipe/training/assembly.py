"""Puts together what trains a model: data, model, method and loop, from the settings and inputs of a job."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from itrpipe.config import leaves
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.truth import known_matches
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary
from itrpipe.engine.work import CUDA, has_bfloat16_units, resolve_device
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.methods.base import Method
from itrpipe.methods.declaration import Mined
from itrpipe.methods.registry import method_module, methods
from itrpipe.models.registry import network_module
from itrpipe.negatives.lists import FILES, PROBABILITY_OF, read_list
from itrpipe.progress import Reporter
from itrpipe.review.pairs import Decided
from itrpipe.storage.artifact import PARTIAL, Manifest
from itrpipe.training.adapters import limit_training, trained_weights
from itrpipe.training.captions import CaptionTokens, ends_of, named_tokens
from itrpipe.training.chunks import chosen_chunk
from itrpipe.training.data import SplitData
from itrpipe.training.encode import AnyMatcher
from itrpipe.training.loop import LoopSettings, Trainer, training_device
from itrpipe.training.masked_captions import caption_masks, read_sentences, token_captions
from itrpipe.training.refresh import Refreshing
from itrpipe.training.saved import build_model, max_tokens_of, start_from
from itrpipe.training.settings import TrainExecution, TrainSettings
from itrpipe.training.splits import Sources, load_encoder_splits, load_phrase_splits, load_splits
from itrpipe.training.tracking import TrackedRun, Tracking, tracking_with
from itrpipe.training.world import World

if TYPE_CHECKING:
    from itrpipe.models.dual_encoder.network import Encoders

TRACKING = "tracking"
_STRETCHED = 0.01
"""Change of an image's shape, relative, from which on it is worth telling."""


class Read(Protocol):
    """A finished artifact that is read."""

    @property
    def folder(self) -> Path:
        """Where it lies."""
        ...

    @property
    def manifest(self) -> Manifest:
        """What is known of it."""
        ...


class TrainingJob(Protocol):
    """What a training is told, and what it tells; see `itrpipe.stages.base.Job`."""

    dataset: str
    conf: str
    settings: TrainSettings
    execution: TrainExecution
    folder: Path
    reporter: Reporter
    metrics: dict[str, Any]

    @property
    def inputs(self) -> Mapping[str, Read]:
        """Input name -> finished artifact."""
        ...

    @property
    def work(self) -> Path:
        """Folder for what only resuming needs."""
        ...

    def warn(self, message: str) -> None:
        """Shows a warning and keeps it."""
        ...


Mine = Callable[[Path], None]
"""Mines in a folder that holds the embeddings of the training split, as the lists were mined that training reads."""


def trainer_of(job: TrainingJob, mine: Mine) -> tuple[Trainer, dict[str, SplitData], CaptionTokens]:
    """What trains the model, with the data.

    Raises:
        MissingInputError: there is no training or validation split.
        UsageError: settings do not fit the data or the model.
        DataError: a file is damaged.
    """
    if job.execution.threads:
        torch.set_num_threads(job.execution.threads)
    torch.manual_seed(job.settings.seed)
    encoders = open_encoders(job)
    splits, tokens = load_job_splits(job, encoders)
    _require_words(tokens, job.settings.min_word_count)
    for split in ("train", "val"):
        if split not in splits:
            raise MissingInputError(
                f"dataset {job.dataset!r} has no {split} split, which training needs; "
                "add images, or give a column split, and prepare it again"
            )
    image_dim = splits["train"].image_dim
    settings = job.settings.model_dump(mode="json")
    model = build_model(settings, image_dim, len(tokens), encoders)
    _require_room_for_joined_captions(job.settings, model)
    if published := job.settings.model.published_weights():
        job.reporter.say(
            f"  {network_module(job.settings.backbone).load_published(model, Path(published).expanduser())}"
        )
    if "start" in job.inputs:
        start_from(job.inputs["start"].folder, model, settings, tokens)
        _start_heads(job, model)
    _read_captions(job, splits["train"], tokens, model)
    if "writer" in job.inputs:
        splits["train"].writer = _frozen(job.inputs["writer"].folder, model, settings, tokens)
    method = _build_method(job, splits["train"])
    _limit_training(job, model)
    device = resolve_device(job.execution.device)
    precision = _precision(job, device)
    chunk = _encode_chunk(job, model, splits["train"], precision)
    splits["train"].train_on(World.joined(), training_device(device))
    trainer = Trainer(
        _loop_settings(job, precision, chunk),
        model,
        method,
        splits["train"],
        splits["val"],
        device,
        job.work,
        job.reporter,
        _tracking(job),
        _refreshing(job, splits["train"], mine),
    )
    if reason := splits["train"].cut("training captions"):
        job.warn(reason)
    if reason := trainer.idle_patience() or trainer.never_warm():
        job.warn(reason)
    if reason := _hardly_hard(job.conf, job.settings.loss.mined(), splits["train"]):
        job.warn(reason)
    return trainer, splits, tokens


def _hardly_hard(conf: str, mined: Mined | None, train: SplitData) -> str:
    """What is to be known of lists that hold a large part of a small training set; empty where they do not."""
    shorter = {} if mined is None else mined.shorter(train.num_captions, train.num_images)
    if mined is None or not shorter:
        return ""
    return (
        f"mined negatives are drawn from the first {mined.texts:,} of {train.num_captions:,} captions and the first "
        f"{mined.images:,} of {train.num_images:,} images, which are hardly harder than others; draw from fewer, such "
        f"as {' '.join(f'--set {conf}.loss.{name}={count}' for name, count in shorter.items())}"
    )


def open_encoders(job: TrainingJob) -> Encoders | None:
    """The encoders of transformers that the model is made of, where it is."""
    if not job.settings.model.opens_encoders:
        return None
    held = FeatureFile.open(job.inputs["extract"].folder / FEATURES).arrays
    has = held["global"].shape[1] if "global" in held else 0, "boxes" in held
    encoders = network_module(job.settings.backbone).open_encoders(job.settings.model, *has)
    for note in (*encoders.notes, _framed_otherwise(job, getattr(encoders, "vision", None))):
        if note:
            job.warn(note)
    return encoders


def _framed_otherwise(job: TrainingJob, vision: Any) -> str:
    """That an encoder was trained on the middle of images and sees these stretched; empty where that is not so."""
    pixels = job.inputs["extract"].manifest.settings
    if not getattr(vision, "crops", False) or pixels.get("fit") != "stretch":
        return ""
    sizes = PreparedDataset.open(job.inputs["prepare"].folder).sizes()
    shape, known = pixels["height"] / pixels["width"], sizes[sizes.min(axis=1) > 0]
    stretched = int((abs(known[:, 0] / known[:, 1] / shape - 1) > _STRETCHED).sum())
    if not stretched:
        return ""
    return (
        f"the vision encoder was trained on the middle of photographs, and {stretched:,} of {len(known):,} are "
        "stretched here, so that it is not quite the model that was published; crop them once, before you train the "
        f"models that you compare: itrpipe extract --dataset {job.dataset} --features pixels --set fit=crop"
    )


def _require_words(tokens: CaptionTokens, min_word_count: int) -> None:
    """Refuses captions of which no word would be known."""
    vocabulary = getattr(tokens, "vocabulary", tokens)
    if isinstance(vocabulary, Vocabulary) and len(vocabulary) == len(SPECIALS):
        raise UsageError(
            f"no word occurs min_word_count = {min_word_count:,} times in the captions, so a model would know none; "
            "lower --set train.min_word_count"
        )


def load_job_splits(job: TrainingJob, encoders: Encoders | None) -> tuple[dict[str, SplitData], CaptionTokens]:
    """The data of every split, and what reads captions."""
    settings, sources = job.settings, sources_of(job)
    if encoders is not None:
        return load_encoder_splits(sources, settings.min_word_count, job.warn, settings.model, encoders)
    if not settings.model.reads_phrases:
        return load_splits(sources, settings.min_word_count, job.warn, named_tokens(settings.model))
    model: Any = settings.model
    words = {"max_words": model.max_words, "with_phrases": model.phrases}
    return load_phrase_splits(sources, settings.min_word_count, job.warn, **words)


def sources_of(job: TrainingJob) -> Sources:
    """The artifacts that data are read from."""
    read = ("prepare", "extract", "parse")
    folders = {name: job.inputs[name].folder.absolute() for name in read if name in job.inputs}
    return Sources(**folders, train_share=job.settings.train_share)


def _require_room_for_joined_captions(settings: TrainSettings, model: AnyMatcher) -> None:
    room, longest = max_tokens_of(model), settings.loss.longest_made()
    if longest > room:
        raise UsageError(
            f"loss.max_tokens = {longest}, but the text encoder reads {room} tokens at most; give "
            f"--set loss.max_tokens={room} or less"
        )


def _start_heads(job: TrainingJob, model: Any) -> None:
    """Heads that the run which this one starts from has not trained begin as copies of those that it has."""
    trained = methods()[job.inputs["start"].manifest.settings["method"]].heads
    if new := job.settings.loss.heads - trained:
        model.derive_heads(new)


def _frozen(folder: Path, model: AnyMatcher, settings: Mapping[str, Any], tokens: CaptionTokens) -> Any:
    """A model like the given one, with the weights of another training."""
    frozen = copy.deepcopy(model).requires_grad_(False).eval()
    start_from(folder, frozen, settings, tokens)
    return frozen


def _limit_training(job: TrainingJob, model: AnyMatcher) -> None:
    """Freezes and adapts encoders as the settings say, and tells how much is left to train."""
    settings = job.settings
    if settings.loss.trains and (settings.adapts or settings.freeze != "none"):
        limit_training(model, settings)
        trained, everything = trained_weights(model)
        job.metrics["trained_weights"] = trained
        job.reporter.say(f"  {trained:,} of {everything:,} weights are trained")


def _read_captions(job: TrainingJob, train: SplitData, tokens: CaptionTokens, model: Any) -> None:
    """Gives the training set what methods mask, the sentences they read, and what they make captions by."""
    loss, masked = job.settings.loss, job.settings.loss.masked()
    if loss.joins_captions():
        train.ends, train.max_tokens = ends_of(tokens), max_tokens_of(model)
    if loss.reads_sentences():
        train.sentences = read_sentences(job.inputs["synthesize"].folder, train.split, tokens)
    if masked is not None:
        captions = token_captions(train.split, tokens, model)
        graphs = job.inputs["parse"].folder if masked.units == "phrases" else None
        train.masks = caption_masks(captions, tokens, graphs, masked.compare)


def _build_method(job: TrainingJob, train: SplitData) -> Method:
    lists = _mined_lists(job.inputs["mine_negatives"].folder, train) if "mine_negatives" in job.inputs else {}
    if job.settings.loss.counts_matches:
        train.matches = known_matches(job.inputs["prepare"].folder, train.split)
    if lists:
        ids = train.split.image_ids, train.split.caption_ids
        decided = Decided.read(job.inputs["mine_negatives"].folder, *ids)
        train.decided_matches = None if decided is None else decided.fits.lists(len(ids[1]))
    method = method_module(job.settings.method).build(job.settings.loss, train, lists)
    if not hasattr(method, "means"):
        raise UsageError(
            f"method {job.settings.method!r} does not say whether its losses are means over a batch; define `means` in "
            f"{type(method).__name__}"
        )
    return method


def _mined_lists(folder: Path, train: SplitData) -> dict[str, np.ndarray]:
    """The lists of both directions, with the probabilities that mining wrote.

    Raises:
        DataError: they are of another training set.
    """
    lists, anchors = {}, (train.split.image_ids, train.split.caption_ids)
    for direction, ids in zip(FILES, anchors, strict=True):
        mined = read_list(folder, direction)
        if not np.array_equal(mined.anchor_ids, ids):
            raise DataError(f"{folder}: its {direction} are of another training set; run `itrpipe mine-negatives`")
        lists[direction] = mined.candidates
        if mined.false_negative_probability is not None:
            lists[f"{PROBABILITY_OF}{direction}"] = mined.false_negative_probability
    return lists


def _refreshing(job: TrainingJob, train: SplitData, mine: Mine) -> Refreshing | None:
    """What mines again while training goes on."""
    every = job.settings.loss.refreshes()

    def lists(folder: Path) -> dict[str, np.ndarray]:
        job.reporter.say("  mining again with the weights as they are")
        mine(folder)
        return _mined_lists(folder, train)

    return Refreshing(every, job.work / "refreshed", lists) if every else None


def _precision(job: TrainingJob, device: str) -> str:
    """That of the settings; for `auto` that of the device, which is told and recorded.

    On a processor it is single precision even where bfloat16 is faster, so that all processors train the same model.
    """
    if job.settings.precision != "auto":
        return job.settings.precision
    job.metrics["precision"] = chosen = "bf16" if device == CUDA and has_bfloat16_units(device) else "fp32"
    job.reporter.say(f"  precision {chosen}")
    return chosen


def _encode_chunk(job: TrainingJob, model: AnyMatcher, data: SplitData, precision: str) -> int:
    """That of the settings; for `auto` what fits in memory, which is told and recorded."""
    settings, world, asked, rows = job.settings, World.joined(), job.execution.encode_chunk, 0
    if isinstance(asked, int):
        return asked
    if world.leads:
        pairs = settings.batch_size
        if settings.batch_by == "tokens":
            pairs = int(pairs / data.pair_sizes().mean())
        device = training_device(resolve_device(job.execution.device))
        rows = chosen_chunk(model, data, -(-pairs // world.size), device, precision)
    job.metrics["encode_chunk"] = rows = world.agreed(rows)
    job.reporter.say(f"  encode_chunk {rows} ({'by free memory' if rows else 'the whole batch'})")
    return rows


def _loop_settings(job: TrainingJob, precision: str, encode_chunk: int) -> LoopSettings:
    chosen = {"precision": precision, "encode_chunk": encode_chunk}
    values = {**job.settings.model_dump(), **job.execution.model_dump(), **chosen}
    values["first_epochs"] = job.settings.loss.first_epochs()
    if not job.settings.loss.trains:
        values |= {"epochs": 0, "layer_decay": 1.0, "average": "none"}
    return LoopSettings(**{field.name: values[field.name] for field in dataclasses.fields(LoopSettings)})


def _tracking(job: TrainingJob) -> Tracking:
    """What follows the training; in one folder for all trainings of the dataset, where trackers compare them."""
    execution = job.execution
    if not World.joined().leads:
        return Tracking.off()
    folder = Path(execution.track_to).expanduser() if execution.track_to else job.folder.parents[1] / TRACKING
    if execution.trackers:
        job.reporter.say(f"  followed by {' and '.join(execution.trackers)} in {folder}")
    run = TrackedRun(
        name=job.folder.name.removesuffix(PARTIAL),
        project=f"itrpipe-{job.dataset}",
        folder=folder,
        settings=dict(leaves(job.settings.model_dump(mode="json"))),
        work=job.work,
    )
    return tracking_with(execution.trackers, run, job.warn)
