"""Definitions of datasets: all that the user said about one, kept in `data/<dataset>/dataset.json` for later commands.

Locations of sources are remembered here and nowhere else: an artifact's fingerprint depends on the
content of its sources, never on where they lie.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from itrpipe.errors import MissingInputError, UsageError
from itrpipe.storage.artifact import DEFINITION, read_manifest
from itrpipe.storage.disk import make_folder, read_stamped_json, reading, write_stamped_json
from itrpipe.storage.locks import changing

EMBEDDED = "scenes"
WITHOUT_CHOICE = ("hog",)
"""Features that need no weights, and are made where a model reads them, without having been asked for."""
LONGEST_NAME = 100
"""Characters of a name, which folders hold beside what else their names say."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._+@-]{{,{LONGEST_NAME - 1}}}")


class StageDefinition(BaseModel, extra="forbid", frozen=True):
    """A configuration of a stage that reads files from outside the data folder.

    Attributes:
        conf: name of the configuration.
        source: absolute path of the file or folder it reads, None for the embedded dataset.
        settings: values given on the command line, by dotted key.
        artifact: of embeddings, the folder that was made of them last.
    """

    conf: str
    source: str | None = None
    settings: dict[str, Any] = {}
    artifact: str = ""


class ModelDefinition(BaseModel, extra="forbid", frozen=True):
    """A model that `itrpipe train --name` was told of.

    Attributes:
        method: configuration of `train`.
        settings: values given on the command line, by dotted key; those without a scope are of the training itself.
        trained: label of a training under this name, such as `aoq.vsepp.s1` -> folder of its latest artifact.
    """

    method: str
    settings: dict[str, Any] = {}
    trained: dict[str, str] = {}

    @property
    def seed(self) -> int:
        """Return the seed that its name alone stands for."""
        return self.settings.get("seed", 0)


class DatasetDefinition(BaseModel, extra="forbid", frozen=True):
    """Definition of a dataset: its source, its features and its named models.

    Attributes:
        prepare: None until `itrpipe prepare` was run, except for the embedded dataset.
        features: configuration name -> how these features are extracted or imported.
        models: by name.
        embeddings: label of an artifact of `embeddings`, such as `given-own.test` -> files that another program made.
        photographs: the folder whose photographs are indexed, where this is no dataset with captions.
        commands: recipe -> the last command that ran all of it.
    """

    prepare: StageDefinition | None = None
    features: dict[str, StageDefinition] = {}
    embeddings: dict[str, StageDefinition] = {}
    models: dict[str, ModelDefinition] = {}
    photographs: StageDefinition | None = None
    commands: dict[str, str] = {}

    def adding(self, **entries: dict[str, Any]) -> DatasetDefinition:
        """Return the definition with further entries in its dictionaries; each replaces one of the same key."""
        update = {}
        for field, added in entries.items():
            update[field] = {**getattr(self, field), **added}
        return self.model_copy(update=update)

    def named_trainings(self) -> dict[str, str]:
        """Return the name of the model of each training artifact by its folder; of equal models the first one."""
        names = {}
        for name, model in self.models.items():
            for folder in model.trained.values():
                names.setdefault(folder, name)
        return names

    def names_of(self, trained: str) -> set[str]:
        """Return the names of all models that are this training artifact, by its folder."""
        return {name for name, model in self.models.items() if trained in model.trained.values()}

    def default_features(self, dataset: str, unasked: Sequence[str] = ()) -> str:
        """Return the name of the features to train on when none is named.

        Args:
            dataset: its name, for messages.
            unasked: features that are there though they were not asked for, taken where there are no others.

        Raises:
            MissingInputError: the dataset has none.
            UsageError: it has several.
        """
        features = list(self.features) or list(unasked)
        if len(features) == 1:
            return features[0]
        if features:
            raise UsageError(f"dataset {dataset!r} has features {', '.join(self.features)}; choose with --features")
        raise MissingInputError(
            f"dataset {dataset!r} has no features yet; run `itrpipe extract --dataset {dataset} --features NAME`, or "
            "add --features hog, which needs no weights"
        )


def check_name(name: str) -> str:
    """Check that the name of a dataset, of features or of a model can be a folder name, and return it.

    Raises:
        UsageError: it holds a separator, begins with a dot, is empty or too long.
    """
    if not _NAME.fullmatch(name):
        if len(name) > LONGEST_NAME:
            name = f"{name[:20]}…"
        raise UsageError(f"name {name!r} must be letters, digits, '.', '_', '+', '@' and '-', {LONGEST_NAME} at most")
    return name


def load_definition(root: Path, dataset: str) -> DatasetDefinition:
    """Read the definition of a dataset; the embedded dataset has one from the start.

    Raises:
        DataError: the file is corrupt.
    """
    path = root / check_name(dataset) / DEFINITION
    if not path.exists():
        if dataset == EMBEDDED:
            stage = StageDefinition(conf=EMBEDDED)
            return DatasetDefinition(prepare=stage, features={EMBEDDED: stage})
        return DatasetDefinition()
    remedy = f"remove it and run `itrpipe prepare --dataset {dataset}` and `itrpipe extract` as at first"
    with reading(path, "what is known of a dataset", remedy):
        # A definition that was written by hand has no checksum.
        return DatasetDefinition.model_validate(read_stamped_json(path, remedy, strict=False))


def redefine(root: Path, dataset: str, change: Callable[[DatasetDefinition], DatasetDefinition]) -> None:
    """Change the definition of a dataset; every writer goes through here, so that none undoes the work of another.

    Args:
        root: the data folder.
        dataset: its name.
        change: function of the current definition, which may differ from the one that a run began with.

    Raises:
        DataError: the file is corrupt.
        UnavailableError: it cannot be written.
    """
    path = root / check_name(dataset) / DEFINITION
    if path.exists():
        definition = load_definition(root, dataset)
        if change(definition) == definition:
            return  # also where nothing can be written
    make_folder(path.parent)
    with changing(path):
        write_stamped_json(path, change(load_definition(root, dataset)).model_dump(mode="json"))


def remember(root: Path, dataset: str, definition: DatasetDefinition, stage: str, conf: str) -> None:
    """Save the part of `definition` that belongs to one stage.

    Args:
        root: the data folder.
        dataset: its name.
        definition: holds the new part.
        stage: `prepare`, `extract`, or one that embeddings were given to.
        conf: for `extract` the name of the features.
    """

    def change(now: DatasetDefinition) -> DatasetDefinition:
        if stage == "prepare":
            return now.model_copy(update={"prepare": definition.prepare})
        if stage == "extract":
            return now.adding(features={conf: definition.features[conf]})
        return now.adding(embeddings=definition.embeddings).model_copy(update={"prepare": definition.prepare})

    redefine(root, dataset, change)


def remember_model(root: Path, dataset: str, name: str, model: ModelDefinition) -> None:
    """Save the definition of a named model."""
    redefine(root, dataset, lambda now: now.adding(models={name: model}))


def remember_training(root: Path, dataset: str, name: str, label: str, folder: str) -> None:
    """Save which artifact a training under a name is, unless the name was forgotten meanwhile."""

    def change(now: DatasetDefinition) -> DatasetDefinition:
        if name not in now.models:
            return now
        trained = now.models[name].trained | {label: folder}
        return now.adding(models={name: now.models[name].model_copy(update={"trained": trained})})

    redefine(root, dataset, change)


def image_root(folder: Path) -> Path:
    """Return the folder that the `file` column of `images.parquet` is relative to.

    Args:
        folder: a prepared dataset.

    Raises:
        MissingInputError: its source is not there, or it was made of embeddings alone.
        DataError: its source holds other data by now.
    """
    from itrpipe.datasets.formats.annotations import source_root

    settings = read_manifest(folder).settings
    if settings["kind"] == "scenes":
        return folder
    if settings["kind"] == "given":
        raise MissingInputError(
            "the dataset was made of embeddings alone and has no photographs; prepare captions and photographs with "
            "`itrpipe prepare`, and give that dataset the embeddings"
        )
    # data/<dataset>/<stage>/<name>: the definition lies in the folder of the dataset.
    dataset = folder.parents[1]
    prepare = load_definition(dataset.parent, dataset.name).prepare
    if prepare is None or prepare.source is None:
        raise MissingInputError("the dataset has no source; run `itrpipe prepare --dataset NAME --source FOLDER`")
    return source_root(Path(prepare.source), settings["format"])
