"""What a dataset is, as `prepare`, `extract` and `--embeddings` are told: what they are not told stays as it was."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from itrpipe.config import Override, kind_of, load_declaration, unknown
from itrpipe.datasets.definition import EMBEDDED, DatasetDefinition, StageDefinition, check_name, load_definition
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, IMPORTERS, GivenFiles, names_a_file
from itrpipe.progress import Reporter
from itrpipe.stages.base import load_stage
from itrpipe.storage.artifact import read_manifest

ALONE = "embeddings"
"""Dataset of embeddings that none is named for."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(@[0-9]+)?")
_ARRAYS = (".parquet", ".npy", ".h5", ".hdf5")
_IN_FOLDER = {
    "images": [f"images{end}" for end in _ARRAYS],
    "texts": [f"{name}{end}" for end in _ARRAYS for name in ("captions", "texts")],
    "owners": [f"owners{end}" for end in (".npy", ".json", ".txt")],
}


def define_dataset(
    root: Path, dataset: str, source: Path | None, overrides: Iterable[Override]
) -> tuple[DatasetDefinition, list[Override]]:
    """Define a dataset as `itrpipe prepare` was told.

    Returns:
        The definition, and the overrides.

    Raises:
        MissingInputError: a dataset that is neither known nor embedded has no source, or the source is not there.
        UsageError: the embedded dataset was given a source.
    """
    definition = load_definition(root, dataset)
    defined = definition.prepare
    if source is not None:
        if dataset == EMBEDDED:
            raise UsageError("the dataset 'scenes' is generated and takes no --source; choose another --dataset name")
        defined = StageDefinition(conf="files", source=_place("--source", source))
    elif defined is None:
        raise MissingInputError(f"dataset {dataset!r} is not known yet; give --source with its caption file or folder")
    stage, overrides = _told("prepare", defined, definition.prepare, overrides)
    return definition.model_copy(update={"prepare": stage}), overrides


def define_features(
    root: Path, dataset: str, features: str | None, source: Path | None, name: str | None, overrides: Iterable[Override]
) -> tuple[DatasetDefinition, str, list[Override]]:
    """Define where a dataset's features come from, as `itrpipe extract` was told.

    Args:
        root: the data folder.
        dataset: its name.
        features: features already known, or an extractor, importer or combination `a+b` of extractors.
        source: files to import.
        name: to know these features by; by default the name of what makes them.
        overrides: from the command line.

    Returns:
        The definition, the name of the features, and the overrides.

    Raises:
        MissingInputError: the source is not there, or no features are known and none were named.
        UsageError: there is no such extractor, or it and the source exclude each other; or features that were not named
            would change below a trained model that has a name.
    """
    definition, named = load_definition(root, dataset), name is not None
    if features is None and source is None and name in definition.features:
        features = name
    if source is not None:
        place = _place("--from", source)
        defined = StageDefinition(conf=_importer_of(source, features), source=place)
    elif features is None or (features in definition.features and name in (None, features)):
        name = features or definition.default_features(dataset)
        defined = definition.features[name]
    else:
        extractors, parts = load_declaration("extract").confs, features.split("+")
        for part in parts:
            if part not in extractors:
                raise UsageError(unknown("extractor", part, extractors))
            if part in _importers():
                raise MissingInputError(f"--features {part} imports files; name them with --from PATH")
        if len(set(parts)) < len(parts):
            raise UsageError(f"--features {features} names an extractor twice; name each once")
        defined = StageDefinition(conf=features)
    name = check_name(name or defined.conf)
    known = definition.features.get(name)
    stage, overrides = _told("extract", defined, known, overrides)
    changed = definition.adding(features={name: stage})
    readers = []
    if not named and stage != known:
        for trained, model in definition.named_trainings().items():
            folder = root / dataset / "train" / trained
            if folder.is_dir() and read_manifest(folder).inputs["extract"].name.rpartition("-")[0] == name:
                readers.append(model)
    if readers:
        raise UsageError(
            f"features {name} would change, and model {', '.join(readers)} was trained on them; add --name NAME for "
            f"further features, or --name {name} to replace these"
        )
    return changed, name, overrides


def _told(
    stage: str, defined: StageDefinition, known: StageDefinition | None, overrides: Iterable[Override]
) -> tuple[StageDefinition, list[Override]]:
    """Return a definition with the settings that it was told now, and before unless it reads other files by now.

    What is told of execution, and of other stages, is not remembered. The overrides name files by their whole paths.
    """
    parts, execution = defined.conf.split("+"), load_stage(stage).execution.model_fields
    settings: dict[str, Any] = {}
    if known and (known.conf, known.source) == (defined.conf, defined.source):
        settings |= known.settings
    whole = []
    for item in overrides:
        if item.scope in (None, stage, *parts) and item.key not in execution:
            if names_a_file(item.key.rpartition(".")[2], item.value):
                item = replace(item, value=whole_file(item.value))
            key = item.name if len(parts) > 1 and item.scope in parts else item.key
            # What was said last counts, also where it is spelled otherwise (`height`, `pixels.height`).
            settings.pop(key, None)
            settings[key] = item.value
        whole.append(item)
    return defined.model_copy(update={"settings": settings}), whole


def whole_file(value: Any) -> Any:
    """Return a file or folder by its whole path, since later commands may run elsewhere; a hub id as it is."""
    if value and Path(value).expanduser().exists():
        return str(Path(value).expanduser().resolve())
    return value


def _place(option: str, path: Path) -> str:
    """Return a file or folder that an option names, by its whole path.

    Raises:
        MissingInputError: it is not there.
    """
    if not path.exists():
        raise MissingInputError(f"{option} {path} does not exist; name what is, absolute or below {Path.cwd()}")
    return str(path.resolve())


def _importer_of(source: Path, features: str | None) -> str:
    """Find the importer that reads `source`: as named, else the only one whose layout is there or complete."""
    known = _importers()
    if features is not None:
        if features not in known:
            raise UsageError(f"--from imports files: {unknown('importer --features', features, known)}")
        return features
    found = {}
    for name, kind in known.items():
        layout = IMPORTERS.module(kind).layout(source)
        if layout is not None:
            found[name] = layout
    if not found:
        raise UsageError(
            f"--from {source} is of no format that is recognised; name one with --features {' | '.join(known)}"
        )
    if len(found) == 1:
        return next(iter(found))
    holds = f"--from {source} holds {' and '.join(f'{name} ({layout})' for name, layout in found.items())}"
    complete = [name for name, layout in found.items() if not layout.lacks]
    if len(complete) != 1:
        raise UsageError(f"{holds}; name one with --features {' | '.join(complete or found)}")
    Reporter().say(f"{holds}; {complete[0]} alone is complete and is imported")
    return complete[0]


def _importers() -> dict[str, str]:
    """Return the kind of every configuration of `extract` that imports features."""
    declaration, importers = load_declaration("extract"), {}
    for conf in declaration.confs:
        kind = kind_of(declaration, conf)
        if kind.replace("_", "-") in IMPORTERS.classes:
            importers[conf] = kind
    return importers


def define_embeddings(
    root: Path, dataset: str, split: str, files: GivenFiles, name: str | None, measure: str | None
) -> tuple[DatasetDefinition, str]:
    """Define embeddings of a split, and where nothing else defines the dataset also that.

    The files are opened, so that what cannot be read or does not belong together is told before anything is made.

    Args:
        root: the data folder.
        dataset: its name.
        split: that the files are of.
        files: of the embeddings.
        name: to know them by, for several models side by side; `NAME@SEED` where it was trained with several seeds.
        measure: how they are compared; None as usual.

    Returns:
        The definition, and the name of the embeddings as a backbone.

    Raises:
        UsageError: the name is none.
        MissingInputError: a file is not there, or has no such split.
        DataError: see `GivenSplit`.
    """
    from itrpipe.features.given import GivenSplit

    if name is not None and not _NAME.fullmatch(check_name(name)):
        raise UsageError(
            f"--name {name!r} must be lower-case letters, digits, '_' and '-', or such a name and a seed: NAME@1"
        )
    opened = GivenSplit(files, split)
    backbone = GIVEN if name is None else f"{GIVEN}-{name}"
    known = load_definition(root, dataset)
    stem, is_seed, _ = backbone.partition("@")
    for other in known.embeddings:
        other = other.partition(".")[0]
        if other != backbone and other.partition("@")[0] == stem and not (is_seed and "@" in other):
            raise UsageError(
                f"--name {name}: {other.removeprefix(f'{GIVEN}-')} is there, and seeds share no name with a model "
                "without one; choose another name"
            )
    paths = files.model_dump()
    label = f"{backbone}.{split}"
    changed = {}
    if known.prepare is None or known.prepare.conf == GIVEN:
        # What is in a split of a dataset of embeddings alone, the first ones say while their files are there, and
        # later ones of their name; others have to be of the same images and captions.
        settings = {} if known.prepare is None else known.prepare.settings
        earlier = {side: settings.get(f"{split}.{side}", "") for side in paths}
        own = known.embeddings[label].settings if label in known.embeddings else {}
        are_own = all(own.get(f"files.{side}") == path for side, path in earlier.items())
        are_gone = not all(Path(path).exists() for path in earlier.values() if path)
        if are_own or are_gone or not earlier["images"]:
            told = {f"{split}.{side}": path for side, path in paths.items()}
            prepare = StageDefinition(conf=GIVEN, settings=settings | told)
            if prepare != known.prepare:
                opened.alone()
                changed["prepare"] = prepare
    about = {f"files.{side}": path for side, path in paths.items()}
    if measure:
        about["measure"] = measure
    given = known.adding(embeddings={label: StageDefinition(conf=GIVEN, settings=about)})
    return given.model_copy(update=changed), backbone


def given_files(images: Path, texts: Path | None, owners: Path | None) -> GivenFiles:
    """Return files of embeddings by absolute path.

    Args:
        images: file of those of the images; or file or folder of both, where there is no other.
        texts: file of those of the captions.
        owners: file that says which image each caption describes.

    Raises:
        MissingInputError: one is not there.
        UsageError: a folder does not say which files are meant, or one file holds one side.
    """
    places = {"images": _place("--embeddings", images)}
    if texts is not None:
        places["texts"] = _place("--embeddings", texts)
    elif images.is_dir():
        places = _in_folder(images)
    elif images.suffix in (".npy", ".parquet"):
        raise UsageError(f"--embeddings {images} holds one side; name the files of images and captions")
    else:
        places["texts"] = places["images"]
    if owners is not None:
        places["owners"] = _place("--owners", owners)
    return GivenFiles(**places)


def _in_folder(folder: Path) -> dict[str, str]:
    """Return the files of the images and the captions in a folder, and of owners if there is one."""
    within = folder / ALONE  # of `itrpipe export`
    if not within.is_dir():
        within = folder
    whole = within / "embeddings.h5"
    if whole.is_file():
        return dict.fromkeys(("images", "texts"), str(whole.resolve()))
    places = {}
    for side, names in _IN_FOLDER.items():
        paths = [within / name for name in names if (within / name).is_file()]
        if side != "owners" and len(paths) != 1:
            has = f"{len(paths)} of {', '.join(names)}"
            raise UsageError(f"--embeddings {folder} has {has}; name the files: --embeddings IMAGES CAPTIONS")
        if paths:
            places[side] = str(paths[0].resolve())
    return places
