"""Vectors of a frozen encoder, which trainings read instead of running the encoder."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.engine.run import Device, SharedExecution
from itrpipe.stages.base import Job, Need, Stage, prepare_need
from itrpipe.storage.artifact import LOCAL_MODEL
from itrpipe.training.settings import OF_START


class EncodeSettings(Settings):
    """Settings that determine the vectors.

    Attributes:
        side: `vision` makes vectors of images, `text` of captions.
        encoder, revision: hub id or folder of a pretrained encoder; empty where a training has left it.
        pool: of its tokens.
        normalisation: of colours.
        clean_captions, max_words: part of a caption that it reads, see the settings of the model.
        start_from: configuration of the training that has left the encoder, with its pooling and reading; empty: none.
        start_backbone, start_seed, start_features, start_train_share: of that training.
    """

    side: Literal["vision", "text"]
    encoder: Annotated[str, LOCAL_MODEL] = ""
    revision: str = "main"
    pool: str = "auto"
    normalisation: Literal["own", "clip"] = "own"
    clean_captions: bool = True
    max_words: int = Field(default=30, ge=1)
    start_from: str = ""
    start_backbone: str = ""
    start_seed: int = Field(default=0, ge=0)
    start_features: str = ""
    start_train_share: float = Field(default=1.0, gt=0, le=1)


class EncodeExecution(SharedExecution):
    """Settings that do not change the result beyond rounding.

    Attributes:
        device: `auto` takes CUDA when there is one.
        block: images or captions per forward pass.
    """

    device: Device
    block: int = Field(ge=1, le=1_000_000)


class EncodeStage(Stage):
    """Encodes the images or captions of every split once."""

    schema_version = 3
    settings = EncodeSettings
    execution = EncodeExecution
    has_versions = False  # other vectors are of another encoder

    def needs(self, settings: EncodeSettings, definition: DatasetDefinition) -> dict[str, Need]:
        """Ask for the dataset, and for the training that has left the encoder."""
        needs = {"prepare": prepare_need(definition)}
        if settings.start_from:
            training = {name: getattr(settings, f"start_{name}") for name in OF_START}
            needs["start"] = Need("train", settings.start_from, training)
        return needs

    def run(self, job: Job) -> None:
        """Write vectors.arrays and encoder/."""
        from itrpipe.training.frozen import FrozenEncoding

        work = FrozenEncoding(job.settings, job.input_folders(), job.execution.block, job.execution.device)
        job.metrics |= work.join(job.made(work).paths, job.folder)
