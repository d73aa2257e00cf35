"""The model that questions are asked of, and the questions that there are."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from itrpipe.engine.work import resolve_device
from itrpipe.evaluation.tables import Number, as_lines
from itrpipe.features.declaration import first_model, is_given
from itrpipe.models.declaration import BackboneSettings, settings_of
from itrpipe.storage.artifact import open_input
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores
    from itrpipe.synthesis.blind import Trigrams
    from itrpipe.training.data import Sources, SplitData
    from itrpipe.training.saved import SavedModel


SENTENCES = "sentences_"
"""Begins the name of an input: the sentences of a generator, whose name follows."""


class EvaluatedModel:
    """A model that is evaluated, trained or given embeddings, or the first of several whose scores are averaged.

    Args:
        job: the `itrpipe.stages.base.Job` of the evaluation.

    Attributes:
        job: which has the folder for answers, the progress, and the metrics that tables show.
        settings: of the evaluation.
        prepare: folder of the dataset.
        trained, manifest: the model's artifact.
        folder: where answers go.
        block: images or captions per forward pass.
        warn: shows a warning and keeps it.
    """

    def __init__(self, job: Any) -> None:
        model = first_model(job.inputs)
        self.job = job
        self.settings = job.settings
        self.prepare: Path = job.inputs["prepare"].folder
        self.trained: Path = model.folder
        self.manifest = model.manifest
        self.folder: Path = job.folder
        self.block = job.execution.encode_block
        self.warn = job.warn

    @property
    def is_single(self) -> bool:
        """Tell whether one model is evaluated; most questions are about one."""
        return not self.settings.ensemble_with

    @property
    def sampling(self) -> tuple[int, float]:
        """Return how many test sets are resampled, and the share of them inside an interval."""
        return self.settings.bootstrap_samples, self.settings.interval_level

    @property
    def backbone(self) -> type[BackboneSettings]:
        """Return the declaration of the backbone; for given embeddings the base class, since nothing more is known."""
        if is_given(self.settings.backbone):
            return BackboneSettings
        return settings_of(self.settings.backbone)

    @functools.cached_property
    def place(self) -> str:
        """Return the device, `cpu` or `cuda`."""
        return resolve_device(self.job.execution.device)

    @functools.cached_property
    def saved(self) -> SavedModel:
        """Open the model in evaluation mode, on the device."""
        from itrpipe.training.saved import load_model

        saved = load_model(self.trained)
        saved.model.to(self.place)
        return saved

    def existing(self, name: str) -> Path:
        """Return the folder of an artifact that the model was trained on.

        Raises:
            MissingInputError: it was removed since.
        """
        return open_input(self.trained, self.manifest, name)

    def sources(self, parse: Path | None = None) -> Sources:
        """Return the folders of the data that the model was trained on.

        Args:
            parse: folder of scene graphs, for models that read phrases.

        Raises:
            MissingInputError: it was removed since.
        """
        from itrpipe.training.data import Sources

        extracted = None
        if "extract" in self.manifest.inputs:
            extracted = self.existing("extract")
        return Sources(self.existing("prepare"), extracted, parse)

    def data(self, parse: Path | None = None) -> SplitData:
        """Open the evaluated split as the model reads it.

        Args:
            parse: see `sources`.

        Raises:
            MissingInputError: what the model was trained on was removed since.
        """
        from itrpipe.training.data import reopened

        split = self.settings.split
        return reopened(self.saved, self.sources(parse), [split])[split]


BLIND = "without the image"
BESIDE = (
    "Without the image: what n-grams of words answer, or vectors of a text encoder where one was named. Bold: above "
    "55 %, with an interval above 50 %. The words alone give these negatives away, and they count in no sum."
)


def blind_number(accuracy: Any) -> Number | None:
    """Return the number that models without images reach, see `itrpipe.synthesis.blind.blind_accuracy`."""
    if accuracy is None:
        return None
    return Number.of(accuracy, marked=accuracy["guessed"])


def trigrams_of(evaluation: EvaluatedModel, split: SplitScores) -> Trigrams:
    """Return trigrams of the training captions; a training caption is judged by those of other images.

    Args:
        evaluation: of the model.
        split: whose captions are judged.
    """
    import numpy as np

    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.synthesis.blind import Trigrams

    dataset = PreparedDataset.open(evaluation.existing("prepare"))
    train = dataset.split("train").share(evaluation.manifest.settings["train_share"])
    if evaluation.settings.split != train.name:
        return Trigrams(train.captions["tokens"])
    others = np.setdiff1d(train.image_ids, split.image_ids)
    judged = train.without(others.tolist())
    return Trigrams(judged.captions["tokens"], judged.caption_image)


@functools.cache
def questions() -> tuple[ModuleType, ...]:
    """Return all questions, by name."""
    names = {path.stem for path in Path(__file__).parent.glob("*.py")}
    names -= {"__init__", "base"}
    return tuple(importlib.import_module(f"{__package__}.{name}") for name in sorted(names))


def answer_questions(evaluation: EvaluatedModel, split: SplitScores) -> str:
    """Answer all questions that can be asked of a model, and return their tables as lines.

    Args:
        evaluation: of the model.
        split: scores that were ranked.
    """
    lines = []
    for question in questions():
        figures = question.answer(evaluation, split)
        if figures is None:
            continue
        for shown in question.SHOWN:
            write_json(evaluation.folder / shown.file, figures)
            table = shown.table([("this model", [figures])])
            if table is not None and not shown.usual:
                lines += ["", *as_lines(table)]
    return "\n".join(lines)
