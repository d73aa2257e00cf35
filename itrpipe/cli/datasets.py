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
    """Defines a dataset as `itrpipe prepare` was told.

    Returns:
        The definition, and the overrides.

    Raises:
        MissingInputError: a dataset that is neither known nor embedded has no source, or the source is not there.
        UsageError: the embedded dataset was given a source.
    """
    definition = load_definition(root, dataset)
    known = definition.prepare
    if source is None and known is None:
        raise MissingInputError(f"dataset {dataset!r} is not known yet; give --source with its caption file or folder")
    if source is not None and dataset == EMBEDDED:
        raise UsageError("the dataset 'scenes' is generated and takes no --source; choose another --dataset name")
    if source is not None:
        conf, place = "files", _place("--source", source)
    else:
        assert known is not None
        conf, place = known.conf, known.source
    stage, overrides = _told("prepare", conf, place, known, overrides)
    return definition.model_copy(update={"prepare": stage}), overrides


def define_features(
    root: Path, dataset: str, features: str | None, source: Path | None, name: str | None, overrides: Iterable[Override]
) -> tuple[DatasetDefinition, str, list[Override]]:
    """Defines where a dataset's features come from, as `itrpipe extract` was told.

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
        conf = _importer_of(source, features)
    elif features is None or (features in definition.features and name in (None, features)):
        name = features or definition.default_features(dataset)
        conf, place = definition.features[name].conf, definition.features[name].source
    else:
        _check_conf(features)
        conf, place = features, None
    name = check_name(name or conf)
    known = definition.features.get(name)
    stage, overrides = _told("extract", conf, place, known, overrides)
    if not named and stage != known and (readers := _readers(root / dataset, definition, name)):
        raise UsageError(
            f"features {name} would change, and model {', '.join(readers)} was trained on them; add --name NAME for "
            f"further features, or --name {name} to replace these"
        )
    return definition.adding(features={name: stage}), name, overrides


def _readers(folder: Path, definition: DatasetDefinition, features: str) -> list[str]:
    """Named models of a dataset that were trained on features of this name."""
    trained = {name: folder / "train" / own for own, name in definition.named_trainings().items()}
    read = {name: read_manifest(own).inputs.get("extract") for name, own in trained.items() if own.is_dir()}
    return [name for name, own in read.items() if own and own.name.rpartition("-")[0] == features]


def _told(
    stage: str, conf: str, place: str | None, known: StageDefinition | None, overrides: Iterable[Override]
) -> tuple[StageDefinition, list[Override]]:
    """A configuration with the settings that it was told now, and before unless it reads other files by now.

    What is told of execution, and of other stages, is not remembered. The overrides name files by their whole paths.
    """
    parts, execution = conf.split("+"), load_stage(stage).execution.model_fields
    own: dict[str, Any] = {}
    whole = []
    for item in overrides:
        if item.scope in (None, stage, *parts) and item.key not in execution:
            if names_a_file(item.key.rpartition(".")[2], item.value):
                item = replace(item, value=whole_file(item.value))
            own[f"{item.scope}.{item.key}" if len(parts) > 1 and item.scope in parts else item.key] = item.value
        whole.append(item)
    earlier = known.settings if known and (known.conf, known.source) == (conf, place) else {}
    # What was said last counts, also where it is spelled otherwise (`height`, `pixels.height`).
    settings = {key: value for key, value in earlier.items() if key not in own} | own
    return StageDefinition(conf=conf, source=place, settings=settings), whole


def whole_file(value: Any) -> Any:
    """A file or folder by its whole path, since later commands may run elsewhere; a hub id as it is."""
    path = Path(value).expanduser() if value else None
    return str(path.resolve()) if path and path.exists() else value


def _place(option: str, path: Path) -> str:
    """A file or folder that an option names, by its whole path.

    Raises:
        MissingInputError: it is not there.
    """
    if not path.exists():
        raise MissingInputError(f"{option} {path} does not exist; name what is, absolute or below {Path.cwd()}")
    return str(path.resolve())


def _importer_of(source: Path, features: str | None) -> str:
    """The importer that reads `source`: the one that was named, else the only one whose layout is there or complete."""
    known = [name for name in load_declaration("extract").confs if _imports(name)]
    if features is not None:
        if features not in known:
            raise UsageError(f"--from imports files: {unknown('importer --features', features, known)}")
        return features
    kinds = {name: kind_of(load_declaration("extract"), name) for name in known}
    layouts = {name: IMPORTERS.module(kind).layout(source) for name, kind in kinds.items()}
    found = {name: layout for name, layout in layouts.items() if layout is not None}
    shown = [f"{name} ({layout})" for name, layout in found.items()]
    complete = [name for name, layout in found.items() if len(found) == 1 or not layout.lacks]
    if len(complete) != 1:
        what = f"holds {' and '.join(shown)}" if found else "is of no format that is recognised"
        raise UsageError(f"--from {source} {what}; name one with --features {' | '.join(complete or found or known)}")
    if len(found) > 1:
        Reporter().say(f"--from {source} holds {' and '.join(shown)}; {complete[0]} alone is complete and is imported")
    return complete[0]


def _imports(conf: str) -> bool:
    return kind_of(load_declaration("extract"), conf).replace("_", "-") in IMPORTERS.classes


def _check_conf(conf: str) -> None:
    """Refuses names that no extractor has, importers without a source, and doubled names."""
    known, parts = load_declaration("extract").confs, conf.split("+")
    for part in parts:
        if part not in known:
            raise UsageError(unknown("extractor", part, known))
        if _imports(part):
            raise MissingInputError(f"--features {part} imports files; name them with --from PATH")
    if len(set(parts)) < len(parts):
        raise UsageError(f"--features {conf} names an extractor twice; name each once")


def define_embeddings(
    root: Path, dataset: str, split: str, files: GivenFiles, name: str | None, measure: str | None
) -> tuple[DatasetDefinition, str]:
    """Defines embeddings of a split, and where nothing else defines the dataset also that.

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
        if other != backbone and other.partition("@")[0] == stem and not (is_seed and "@" in other):
            raise UsageError(
                f"--name {name}: {other.removeprefix(f'{GIVEN}-')} is there, and seeds share no name with a model "
                "without one; choose another name"
            )
    about = {f"model.files.{side}": path for side, path in files.model_dump().items()}
    about |= {"model.measure": measure} if measure else {}
    told = {**known.embeddings.get(backbone, {}), split: StageDefinition(conf=GIVEN, settings=about)}
    prepare = known.prepare
    if prepare is None or prepare.conf == GIVEN:
        prepare = _alone(known, backbone, split, files)
    if prepare != known.prepare:
        opened.alone()
    return known.model_copy(update={"embeddings": {**known.embeddings, backbone: told}, "prepare": prepare}), backbone


def _alone(known: DatasetDefinition, backbone: str, split: str, files: GivenFiles) -> StageDefinition:
    """A dataset that is known by embeddings alone.

    What is in a split, the first ones of it say while their files are there, and later ones of their name; others have
    to be of the same images and captions.
    """
    settings = {} if known.prepare is None else known.prepare.settings
    before = known.embeddings.get(backbone, {}).get(split)
    by = {name: settings.get(f"{split}.{name}", "") for name in GivenFiles.model_fields}
    own = before is not None and all(before.settings[f"model.files.{name}"] == value for name, value in by.items())
    are_there = all(Path(path).exists() for path in by.values() if path)
    if any(by.values()) and are_there and not own:
        assert known.prepare is not None
        return known.prepare
    told = {f"{split}.{name}": path for name, path in files.model_dump().items()}
    return StageDefinition(conf=GIVEN, settings={**settings, **told})


def given_files(images: Path, texts: Path | None, owners: Path | None) -> GivenFiles:
    """Files of embeddings by absolute path.

    Args:
        images: file of those of the images; or file or folder of both, where there is no other.
        texts: file of those of the captions.
        owners: file that says which image each caption describes.

    Raises:
        MissingInputError: one is not there.
        UsageError: a folder does not say which files are meant, or one file holds one side.
    """
    places = {"images": _place("--embeddings", images)}
    if texts is None:
        places = {side: str(path.resolve()) for side, path in _both(images).items()}
    else:
        places["texts"] = _place("--embeddings", texts)
    return GivenFiles(**places | ({"owners": _place("--owners", owners)} if owners else {}))


def _both(path: Path) -> dict[str, Path]:
    """Files of the images and the captions, and of owners if there is one, in a file or folder of both."""
    if not path.is_dir():
        if path.suffix in (".npy", ".parquet"):
            raise UsageError(f"--embeddings {path} holds one side; name the files of images and captions")
        return {"images": path, "texts": path}
    folder = path / ALONE if (path / ALONE).is_dir() else path  # of `itrpipe export`
    whole = folder / "embeddings.h5"
    if whole.is_file():
        return {"images": whole, "texts": whole}
    found = {side: [folder / name for name in names if (folder / name).is_file()] for side, names in _IN_FOLDER.items()}
    for side in ("images", "texts"):
        if len(found[side]) != 1:
            has = f"{len(found[side])} of {', '.join(_IN_FOLDER[side])}"
            raise UsageError(f"--embeddings {path} has {has}; name the files: --embeddings IMAGES CAPTIONS")
    return {side: paths[0] for side, paths in found.items() if paths}
