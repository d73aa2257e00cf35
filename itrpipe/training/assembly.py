"""Puts together what a training begins with: data, model and method, from the settings and inputs of a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.methods.base import Method
from itrpipe.methods.declaration import method_module, methods, mined_by, named_inputs
from itrpipe.models.captions import CaptionTokens
from itrpipe.models.declaration import RANDOM, network_module
from itrpipe.training.data import Sources, SplitData, load_splits
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.encoding import Refreshing
from itrpipe.training.inputs import longest_used, method_inputs
from itrpipe.training.mining import mine_again
from itrpipe.training.saved import build_model, start_from

if TYPE_CHECKING:
    from itrpipe.models.dual_encoder.network import Encoders

_STRETCHED = 0.01
"""Change of an image's shape, relative, from which on it is worth telling."""


def assembled(job: Any) -> tuple[AnyMatcher, Method, dict[str, SplitData], CaptionTokens]:
    """Return model, method, splits and what reads captions, from the settings and inputs of a job.

    Raises:
        MissingInputError: there is no training or validation split.
        UsageError: settings do not fit the data or the model.
        DataError: a file is damaged.
    """
    build = method_module(job.settings.method).build
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
    method = build(job.settings.loss, train, **method_inputs(job, named_inputs(build), train, tokens, model))
    return model, method, splits, tokens


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


def refreshing_of(job: Any, train: SplitData) -> Refreshing | None:
    """Return what mines again while training goes on; None where the lists stay."""
    mined = mined_by(job.settings.loss)
    if mined is None or not mined.refresh_every:
        return None

    def warn(message: str) -> None:
        if message not in job.messages:
            job.warn(message)

    def mine(images: np.ndarray, texts: np.ndarray, folder: Path) -> dict[str, np.ndarray]:
        job.reporter.say("  mining again with the weights as they are")
        lists, prepared = job.inputs["mine_negatives"], job.inputs["prepare"].folder
        device, reporter = job.execution.device, job.reporter
        return longest_used(mine_again(images, texts, train.split, lists, prepared, folder, device, reporter, warn))

    return Refreshing(mined.refresh_every, job.work / "refreshed", mine)
