"""The contract of stages: the settings, needs and sources of an artifact, and the work that makes it.

A module `itrpipe/stages/<stage>.py` has a class with the stage's name, such as `MineNegativesStage`. The module imports
nothing heavy at its top, because plans are made without torch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from itrpipe.config import Resolved, Settings
from itrpipe.datasets.captions import SPLITS
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.engine.run import PARTS, SharedExecution, make_parts
from itrpipe.engine.work import Made, Work
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import WORK, DigestCache, Location, Manifest, existing_input, open_artifact, read_manifest


@dataclass(frozen=True)
class Need:
    """Request for an artifact of another stage.

    Attributes:
        stage: which stage makes it.
        conf: with which configuration.
        settings: dotted keys that must have these values.
        named: inputs that are named models of the dataset: name of the input -> name of the model.
        without: settings of the reader that this artifact, a step of the reader's own stage, does not have. All other
            overrides and the named models of the reader apply to it too. Empty for artifacts that are no such step.
    """

    stage: str
    conf: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()


State = Literal["up to date", "missing", "interrupted", "running", "new settings", "stale", "damaged"]
"""`missing`: nothing of this name was ever made; `new settings`: another version of it was, which stays right; `stale`:
what was made is overtaken by a source that changed, by a newer version of a stage, or because something that it read
was made again with another result."""


@dataclass(frozen=True)
class Step:
    """One artifact of a plan.

    Attributes:
        need: what was asked for.
        settings, execution: validated.
        resolved: values with origins, for `itrpipe show`.
        inputs: input name -> step that makes it.
        sources: digests of files outside the data folder.
        definition: where those files lie.
        location: where the artifact lies or will lie.
        state, reason: what the plan found.
        model: name of the model that it trains, perhaps with other settings than the model was given; empty for none.
    """

    need: Need
    settings: Settings
    execution: Settings
    resolved: Resolved
    inputs: dict[str, Step]
    sources: dict[str, str]
    definition: StageDefinition | None
    location: Location
    state: State
    reason: str = ""
    model: str = ""

    @property
    def title(self) -> str:
        """Return stage and folder name of the artifact, for people."""
        return f"{self.location.stage}/{self.location.name}"

    @property
    def finished(self) -> Path | None:
        """Return the folder of the artifact; None while it is not whole."""
        folder = self.location.folder
        return folder if self.state != "damaged" and folder.exists() else None

    def upstream(self) -> Iterator[Step]:
        """Yield every step this one depends on, then itself, in an order in which they can run."""
        for step in self.inputs.values():
            yield from step.upstream()
        yield self


@dataclass(frozen=True)
class Artifact:
    """A finished artifact: its folder with its manifest."""

    folder: Path
    manifest: Manifest

    @classmethod
    def of(cls, folder: Path) -> Artifact:
        """Open the artifact of a folder.

        Raises:
            DataError: a file of it is damaged.
        """
        return cls(folder, open_artifact(folder))

    def input(self, name: str) -> Artifact:
        """Open an artifact that it was made from.

        Raises:
            MissingInputError: it was removed.
        """
        return Artifact.of(existing_input(self.folder, self.manifest, name))


@dataclass
class Job:
    """Everything a stage's `run` gets and gives back.

    Attributes:
        dataset: name of the dataset.
        conf: name of the configuration.
        settings: determine the result.
        execution: settings that do not change the result.
        inputs: input name -> finished artifact.
        definition: where outside files lie, for stages that read some.
        folder: the `.partial` folder to write the outputs to.
        reporter: prints messages and progress.
        sources: digests of files outside the data folder, as they were when the step was planned.
        metrics, messages: filled by the stage, recorded in the manifest.
        timings: `total`, the seconds of all runs.
        failed: image that could not be used -> reason; filled by the stage, recorded in the manifest.
    """

    dataset: str
    conf: str
    settings: Any
    execution: Any
    inputs: dict[str, Artifact]
    definition: StageDefinition | None
    folder: Path
    reporter: Reporter
    sources: Mapping[str, str] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        """Return the folder for what only resuming needs; it is gone from the finished artifact."""
        return self.folder / WORK

    def input_folders(self) -> dict[str, Path]:
        """Return the absolute folders of the inputs, by their names."""
        return {name: artifact.folder.absolute() for name, artifact in self.inputs.items()}

    def made(self, work: Work, folder: str = PARTS) -> Made:
        """Make every part of a map that is not there yet, where the execution settings say.

        A job that makes only a share ends here, so whatever is written before must be the same in every job.

        Args:
            work: the map.
            folder: below `work`, of the files of its parts.

        Raises:
            OthersMissing: this job makes a share of the parts, and has made it.
            ItrpipeError: see `make_parts`.
        """
        return make_parts(work, self.work / folder, self.execution, self.reporter, self.warn)

    def warn(self, message: str) -> None:
        """Keep a warning in the manifest and show it, once where several stages of a command have the same."""
        if message not in self.messages:
            self.messages.append(message)
        if message not in self.reporter.warnings:
            self.reporter.warnings.add(message)
            self.reporter.say(f"  warning: {message}", style="yellow")


class Stage:
    """Maker of the artifacts of one stage.

    Attributes:
        schema_version: raised when files change for equal settings; not where an optional file is new.
        settings: class of the settings that determine the result; `settings_class` may choose another one.
        execution: settings that do not change the result: a `MapExecution` says where maps are made, a
            `SharedExecution` also which share of them.
        has_versions: another artifact of the same name is an earlier version of this one.
        untimed: settings that do not decide how long it takes.
    """

    schema_version: ClassVar[int] = 2
    settings: ClassVar[type[Settings]] = Settings
    execution: ClassVar[type[Settings]] = SharedExecution
    has_versions: ClassVar[bool] = True
    untimed: ClassVar[frozenset[str]] = frozenset(("seed",))

    def settings_class(self, values: Mapping[str, Any]) -> type[Settings]:
        """Return the class of settings that a configuration of these values is bound to."""
        return self.settings

    def label(self, conf: str, settings: Any) -> str:
        """Return the readable part of an artifact's name."""
        return conf

    def needs(self, settings: Any, definition: DatasetDefinition) -> dict[str, Need]:
        """Return the artifacts that are read, by the names of inputs.

        Raises:
            UsageError: these settings or this dataset do not go together.
        """
        return {}

    def sources(self, settings: Any, definition: StageDefinition | None, cache: DigestCache) -> dict[str, str]:
        """Return the digests of files outside the data folder, by default of those that settings marked `Outside` name.

        Raises:
            MissingInputError: one is not there.
            DataError: one is damaged.
        """
        digests: dict[str, str] = {}
        for name, value, mark in settings.outside():
            digests |= mark.digests(name, value, cache)
        return digests

    def has_parts(self, step: Step) -> bool:
        """Return whether jobs can share the making of a step; else one job makes it, whatever its share."""
        return True

    def check_read(self, step: Step) -> None:
        """Refuse settings that the requested step does not read."""

    def check(self, step: Step) -> None:
        """Refuse what cannot work before anything runs for it.

        It is asked when a step is planned and, while the step waits, whenever another one is finished.
        """

    def run(self, job: Job) -> None:
        """Do the work inside `job.folder`."""
        raise NotImplementedError

    def show(self, folder: Path, reporter: Reporter) -> None:
        """Print the result of a finished artifact, when it is asked for again."""


@functools.cache
def load_stage(stage: str) -> Stage:
    """Return the stage of a declared name."""
    module = importlib.import_module(f"itrpipe.stages.{stage}")
    name = stage.title().replace("_", "")
    return getattr(module, f"{name}Stage")()


def prepare_need(definition: DatasetDefinition, split: str = "") -> Need:
    """Return the need of the dataset itself, prepared as it is defined.

    Args:
        definition: of the dataset.
        split: that is read, where it is one alone; of a dataset of embeddings alone nothing else is prepared then.

    Raises:
        MissingInputError: it was never defined.
    """
    if definition.prepare is None:
        raise MissingInputError("the dataset is not defined; run `itrpipe prepare --dataset NAME --source FOLDER`")
    conf = definition.prepare.conf
    settings = {}
    if split and conf == GIVEN:
        settings["only"] = split
    return Need("prepare", conf, settings)


def check_split(model: Step, split: str) -> None:
    """Refuse a split without images, if the dataset that a model is trained on is prepared.

    Args:
        model: a training, or embeddings.
        split: that is to be read.

    Raises:
        UsageError: the dataset has no images of this split.
    """
    prepared = model.inputs["prepare"].finished
    if prepared is None:
        return
    metrics = read_manifest(prepared).metrics
    splits = [name for name in SPLITS if name in metrics]
    if splits and split not in splits:
        raise UsageError(
            f"the dataset has no {split} images, only {' and '.join(splits)}; ask with --split {splits[-1]}, or add "
            "photographs, or a column split, and prepare again"
        )


def source_of(definition: StageDefinition | None, missing: str) -> Path:
    """Return the path of the outside files of a stage.

    Raises:
        MissingInputError: none are named; `missing` is the message.
    """
    if definition is None or definition.source is None:
        raise MissingInputError(missing)
    return Path(definition.source)


def reason_with_file(image_id: str, file: str, reason: str) -> str:
    """Return the reason for which an image could not be used, with its file unless that is its id."""
    if image_id == file:
        return reason
    return f"({file}) {reason}"
