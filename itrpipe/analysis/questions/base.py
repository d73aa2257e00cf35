"""What a question is told, and the questions that there are."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from itrpipe.engine.work import resolve_device
from itrpipe.methods.declaration import MethodSettings
from itrpipe.models.declaration import BackboneSettings
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import Manifest, existing_input, input_folder, read_manifest
from itrpipe.training.settings import method_of, settings_of

if TYPE_CHECKING:
    from itrpipe.engine.run import Made
    from itrpipe.scene_graph.build import SentenceParser
    from itrpipe.training.data import Sources

GRAPHS = "graphs"
"""Folder for the scene graphs of sentences, which only resuming needs."""


@dataclass(frozen=True)
class Evaluation:
    """A trained model that is evaluated, or the first of several whose scores are averaged.

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

    settings: Any
    prepare: Path
    trained: Path
    manifest: Manifest
    sentences: Mapping[str, Path]
    folder: Path
    work: Path
    device: str
    block: int
    made: Callable[..., Made]
    reporter: Reporter
    warn: Callable[[str], None]
    metrics: dict[str, Any]

    @property
    def is_single(self) -> bool:
        """Whether one model is evaluated; most questions are about one."""
        return not self.settings.ensemble_with

    @property
    def backbone(self) -> type[BackboneSettings]:
        """What the backbone declares."""
        return settings_of(self.settings.backbone)

    @property
    def method(self) -> type[MethodSettings]:
        """What the method declares."""
        return method_of(self.settings.method)

    @functools.cached_property
    def place(self) -> str:
        """The device, `cpu` or `cuda`."""
        return resolve_device(self.device)

    def read_by(self, name: str) -> Path:
        """Where the artifact lies or lay that the model was trained on."""
        return input_folder(self.trained, self.manifest, name)

    def existing(self, name: str) -> Path:
        """The artifact that the model was trained on.

        Raises:
            MissingInputError: it was removed since.
        """
        return existing_input(self.trained, self.manifest, name)

    def sentence_parser(self) -> SentenceParser | None:
        """Makes scene graphs of sentences, for a model that reads phrases; None for others.

        Raises:
            UsageError: the captions' own graphs came out of a file, or another version of the parser made them.
            MissingInputError: they were removed since.
        """
        from itrpipe.scene_graph.build import SentenceParser

        if not self.backbone.reads_phrases:
            return None
        graphs = self.existing("parse")
        return SentenceParser(graphs, read_manifest(graphs), self.work / GRAPHS, self.reporter)

    def sources_for(self, file: str, *, graphs: bool = False) -> Sources | None:
        """What the model was trained on; None, with a warning that a file is left out, where some of that is gone.

        The metrics of models with embeddings do not need it, so that their evaluation does without.
        """
        from itrpipe.training.data import Sources

        prepare, extract = self.read_by("prepare"), self.read_by("extract")
        parse = self.read_by("parse") if graphs else None
        missing = [folder for folder in (prepare, extract, parse) if folder is not None and not folder.exists()]
        if missing:
            self.warn(f"{file} is left out: {missing[0]}, which the model was trained on, is not there")
            return None
        return Sources(prepare, extract, parse)


@functools.cache
def questions() -> tuple[ModuleType, ...]:
    """All questions, by name."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("*.py"))
    modules = (importlib.import_module(f"{__package__}.{name}") for name in names if name not in ("__init__", "base"))
    return tuple(modules)


def say(folder: Path, reporter: Reporter) -> None:
    """Prints what was answered in an evaluation."""
    for question in questions():
        if hasattr(question, "say"):
            question.say(folder, reporter)
