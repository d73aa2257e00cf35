"""The model that questions are asked of, and the questions that there are."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from itrpipe.engine.work import resolve_device
from itrpipe.evaluation.tables import Number, as_lines
from itrpipe.features.declaration import is_given, read_model
from itrpipe.methods.declaration import MethodSettings
from itrpipe.models.declaration import BackboneSettings, settings_of
from itrpipe.storage.artifact import Manifest, existing_input
from itrpipe.storage.integrity import read_checked_json
from itrpipe.training.settings import method_of

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores
    from itrpipe.synthesis.blind import Trigrams
    from itrpipe.training.saved import SavedModel


SENTENCES = "sentences_"
"""What the input name of a generator's sentences begins with; its name follows."""


class EvaluatedModel:
    """A model that is evaluated, trained or given embeddings, or the first of several whose scores are averaged.

    Args:
        job: the `itrpipe.stages.base.Job` of the evaluation.

    Attributes:
        settings: of the evaluation.
        prepare: folder of the dataset.
        trained, manifest: the model's artifact.
        sentences: generator -> folder of its negative sentences.
        folder: where answers go.
        work: where what only resuming needs goes.
        device: as users name it, `auto` too.
        block: images or captions per forward pass.
        made: makes the parts of a map, in a folder of that name; see `itrpipe.stages.base.Job`.
        reporter: shows progress.
        warn: shows a warning and keeps it.
        metrics: numbers that tables show; a question may add some.
    """

    def __init__(self, job: Any) -> None:
        self.settings, trained = job.settings, read_model(job.inputs)
        self.prepare: Path = job.inputs["prepare"].folder
        self.trained: Path = trained.folder
        self.manifest: Manifest = trained.manifest
        self.sentences: dict[str, Path] = {
            name: job.inputs[f"{SENTENCES}{name}"].folder for name in job.settings.discriminate
        }
        self.folder: Path = job.folder
        self.work: Path = job.work
        self.device, self.block = job.execution.device, job.execution.encode_block
        self.made, self.reporter, self.warn, self.metrics = job.made, job.reporter, job.warn, job.metrics

    @property
    def is_single(self) -> bool:
        """Tell whether one model is evaluated; most questions are about one."""
        return not self.settings.ensemble_with

    @property
    def backbone(self) -> type[BackboneSettings]:
        """Return what the backbone declares; of given embeddings what all have, since nothing more is known."""
        return BackboneSettings if is_given(self.settings.backbone) else settings_of(self.settings.backbone)

    @property
    def method(self) -> type[MethodSettings]:
        """Return what the method declares; of given embeddings what all have."""
        return MethodSettings if is_given(self.settings.backbone) else method_of(self.settings.method)

    @functools.cached_property
    def place(self) -> str:
        """The device, `cpu` or `cuda`."""
        return resolve_device(self.device)

    @functools.cached_property
    def saved(self) -> SavedModel:
        """The model, in evaluation mode, on the device."""
        from itrpipe.training.saved import load_model

        saved = load_model(self.trained)
        saved.model.to(self.place)
        return saved

    def existing(self, name: str) -> Path:
        """The artifact that the model was trained on.

        Raises:
            MissingInputError: it was removed since.
        """
        return existing_input(self.trained, self.manifest, name)


BLIND = "without the image"
BESIDE = (
    "Without the image: what n-grams of words answer. Bold: above 55 %, with an interval above 50 %. The words alone "
    "give these negatives away, and they count in no sum."
)


def blind_number(found: Mapping[str, Any] | None) -> Number | None:
    """Return what models without images reach, see `itrpipe.synthesis.blind.blind_accuracy`."""
    return None if found is None else Number.of(found, marked=found["guessed"])


def trigrams_of(evaluation: EvaluatedModel, split: SplitScores) -> Trigrams:
    """Return trigrams of the captions that the model was trained on; captions of these are judged by those of others.

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
    judged = train.without(np.setdiff1d(train.image_ids, split.image_ids).tolist())
    return Trigrams(judged.captions["tokens"], judged.caption_image)


@functools.cache
def questions() -> tuple[ModuleType, ...]:
    """All questions, by name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    modules = (importlib.import_module(f"{__package__}.{name}") for name in names if name not in ("__init__", "base"))
    return tuple(modules)


def answers_text(folder: Path) -> str:
    """Return what was measured in an evaluation, as lines."""
    found = []
    for shown in (each for question in questions() for each in getattr(question, "SHOWN", ())):
        path = folder / shown.file
        table = shown.table([("this model", [read_checked_json(path)])]) if path.is_file() else None
        if table is not None and not shown.usual:
            found += ["", *as_lines(table)]
    return "\n".join(found)
