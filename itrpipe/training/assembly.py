"""Puts together what a training begins with: data, model and method, from the settings and inputs of a job."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.truth import known_matches
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.methods.base import Method
from itrpipe.methods.declaration import method_module, methods
from itrpipe.mining.files import FILES, read_list
from itrpipe.mining.filters import DuplicateCaptions
from itrpipe.models.declaration import RANDOM
from itrpipe.models.registry import network_module
from itrpipe.review import Decided
from itrpipe.training.captions import (
    CaptionTokens,
    caption_masks,
    ends_of,
    read_sentences,
    token_captions,
)
from itrpipe.training.data import Sources, SplitData, load_splits
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.encoding import Refreshing
from itrpipe.training.mining import mine_again
from itrpipe.training.saved import build_model, max_tokens_of, start_from

if TYPE_CHECKING:
    from itrpipe.models.dual_encoder.network import Encoders

_HARD_PART = 0.1
"""Share of the captions, and of the images, of a training set that are negatives to be mined at most."""
_SHORTEST_LIST = 10
_STRETCHED = 0.01
"""Change of an image's shape, relative, from which on it is worth telling."""


def assembled(job: Any) -> tuple[AnyMatcher, Method, dict[str, SplitData], CaptionTokens]:
    """Return model, method, splits and what reads captions, from the settings and inputs of a job.

    Raises:
        MissingInputError: there is no training or validation split.
        UsageError: settings do not fit the data or the model.
        DataError: a file is damaged.
    """
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
    train = splits["train"]
    model = _model(job, train.image_dim, tokens, encoders)
    return model, _method(job, train, tokens, model), splits, tokens


def _open_encoders(job: Any) -> Encoders | None:
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


def _stretched(job: Any, frame: tuple[int, int]) -> bool:
    """Whether photographs change their shape in a frame of this height and width."""
    known = PreparedDataset.open(job.inputs["prepare"].folder).sizes()
    known = known[known.min(axis=1) > 0]
    return bool((abs(known[:, 0] / known[:, 1] * frame[1] / frame[0] - 1) > _STRETCHED).any())


def sources_of(job: Any) -> Sources:
    """The artifacts that data are read from."""
    read = ("prepare", "extract", "parse")
    folders = {name: job.inputs[name].folder.absolute() for name in read if name in job.inputs}
    return Sources(**folders, train_share=job.settings.train_share)


def _model(job: Any, image_dim: int, tokens: CaptionTokens, encoders: Encoders | None) -> AnyMatcher:
    """The model with the weights that it starts from."""
    settings = job.settings.model_dump(mode="json")
    model = build_model(settings, image_dim, len(tokens), encoders)
    longest, room = job.settings.loss.longest_made(), max_tokens_of(model)
    if longest > room:
        raise UsageError(
            f"loss.max_tokens = {longest}, but the text encoder reads {room} tokens at most; give "
            f"--set loss.max_tokens={room} or less"
        )
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


def _method(job: Any, train: SplitData, tokens: CaptionTokens, model: Any) -> Method:
    """The method, and in the training set what it reads: masks, sentences, their writer, lists and matches."""
    loss, masked, inputs = job.settings.loss, job.settings.loss.masked(), job.inputs
    if loss.joins_captions():
        train.ends, train.max_tokens = ends_of(tokens), max_tokens_of(model)
    if loss.reads_sentences():
        mirrors = train.mirrors and job.settings.model.sees_sides()
        train.sentences = read_sentences(inputs["synthesize"].folder, train.split, tokens, mirrors)
        if getattr(loss, "twins", 0) and not mirrors:
            job.warn("twins that are mirror images are left out: this model does not see where things are")
        if getattr(loss, "twins", 0) and not (train.sentences.twins >= 0).any():
            raise UsageError(
                f"sentences = {job.settings.sentences} has no twins that this model can read; give --set "
                "train.sentences=twins"
            )
    if masked is not None:
        captions = token_captions(train.split, tokens, model)
        graphs = inputs["parse"].folder if masked.units == "phrases" else None
        train.masks = caption_masks(captions, tokens, graphs, masked.compare)
    if "writer" in inputs:
        train.writer = copy.deepcopy(model).requires_grad_(False).eval()
        start_from(inputs["writer"].folder, train.writer, job.settings.model_dump(mode="json"), tokens)
    if loss.counts_matches:
        train.matches = known_matches(inputs["prepare"].folder, train.split)
    lists: dict[str, np.ndarray] = {}
    if "mine_negatives" in inputs:
        folder, ids = inputs["mine_negatives"].folder, (train.split.image_ids, train.split.caption_ids)
        lists = _mined_lists(folder, train)
        if decided := Decided.read(folder, *ids):
            train.fitting = [decided.fits]
    if getattr(loss, "drop_duplicates", False):
        train.fitting = [*train.fitting, DuplicateCaptions(train.split.texts, train.caption_image)]
    return method_module(job.settings.method).build(loss, train, lists)


def _mined_lists(folder: Path, train: SplitData) -> dict[str, np.ndarray]:
    """The lists of both directions, with the probabilities that mining wrote.

    Of a small training set, lists of the usual length would hold most captions or images, which are no harder than any
    others; no list is longer than a part of them.

    Raises:
        DataError: they are of another training set.
    """
    lists, anchors = {}, (train.split.image_ids, train.split.caption_ids)
    for direction, ids, candidates in zip(FILES, anchors, (train.num_captions, train.num_images), strict=True):
        mined = read_list(folder, direction)
        most = max(_SHORTEST_LIST, int(_HARD_PART * candidates))
        if not np.array_equal(mined.anchor_ids, ids):
            raise DataError(f"{folder}: its {direction} are of another training set; run `itrpipe mine-negatives`")
        lists[direction] = mined.candidates[:, :most]
        if mined.false_negative_probability is not None:
            lists[f"{PROBABILITY_OF}{direction}"] = mined.false_negative_probability[:, :most]
    return lists


def refreshing_of(job: Any, train: SplitData) -> Refreshing | None:
    """Return what mines again while training goes on; None where the lists stay."""
    every = job.settings.loss.refreshes()

    def warn(message: str) -> None:
        if message not in job.messages:
            job.warn(message)

    def lists(folder: Path) -> dict[str, np.ndarray]:
        job.reporter.say("  mining again with the weights as they are")
        mined, prepare = job.inputs["mine_negatives"], job.inputs["prepare"]
        mine_again(folder, mined, prepare, job.execution.device, job.reporter, warn)
        return _mined_lists(folder, train)

    return Refreshing(every, job.work / "refreshed", lists) if every else None
