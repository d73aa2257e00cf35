"""Embeddings of any model, as `--embeddings` names them: which files they are, and what a dataset knows by them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, check_name, load_definition
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import GIVEN, GivenFiles
from itrpipe.models.declaration import GivenEmbeddings

ALONE = "embeddings"
"""Dataset of embeddings that none is named for."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_ARRAYS = (".parquet", ".npy", ".h5", ".hdf5")
_IN_FOLDER = {
    "images": [f"images{end}" for end in _ARRAYS],
    "texts": [f"{name}{end}" for end in _ARRAYS for name in ("captions", "texts")],
    "owners": [f"owners{end}" for end in (".npy", ".json", ".txt")],
}


@dataclass(frozen=True)
class Named:
    """What the command line says of embeddings.

    Attributes:
        images: file of those of the images; or file or folder of both, where there is no other.
        texts: file of those of the captions.
        owners: file that says which image each caption describes.
        name: to know them by, for several models side by side.
        measure: how they are compared; None as usual.
    """

    images: Path
    texts: Path | None
    owners: Path | None
    name: str | None
    measure: str | None


def named(
    embeddings: Path | None, texts: Path | None, owners: Path | None, name: str | None, measure: str | None
) -> Named | None:
    """What was given; None where no embeddings were.

    Raises:
        UsageError: there is no --embeddings and something that belongs to it, or a word that is no file.
    """
    if embeddings is not None:
        return Named(embeddings, texts, owners, name, measure)
    if texts is not None and not texts.suffix and not texts.exists():
        raise UsageError(
            f"{texts} belongs to no option; name a model as --model {texts}, or a dataset as --dataset {texts}"
        )
    if name is not None:
        raise UsageError(
            f"--name {name} names what --embeddings gives, which is not given; a trained model is --model {name}"
        )
    alone = {"": texts, "--owners ": owners, "--measure ": measure}
    for option, value in alone.items():
        if value is not None:
            raise UsageError(f"{option}{value} belongs to --embeddings, which is not given; add it or leave this out")
    return None


def define_embeddings(root: Path, dataset: str, split: str, given: Named) -> tuple[DatasetDefinition, str]:
    """Defines embeddings of a split, and where nothing else defines the dataset also that.

    The files are opened, so that what cannot be read or does not belong together is told before anything is made.

    Args:
        root: the data folder.
        dataset: its name.
        split: that the files are of.
        given: by the command line.

    Returns:
        The definition, and the name of the embeddings as a backbone.

    Raises:
        UsageError: the name or measure is none, or a folder does not say which files are meant.
        MissingInputError: a file is not there, or has no such split.
        DataError: see `GivenSplit`.
    """
    from itrpipe.features.given import GivenSplit

    if given.name is not None and not _NAME.fullmatch(check_name(given.name)):
        raise UsageError(f"--name {given.name!r} must be lower-case letters, digits, '_' and '-'")
    measures = get_args(GivenEmbeddings.model_fields["measure"].annotation)
    if given.measure not in (None, *measures):
        raise UsageError(f"--measure {given.measure}: there is none of this name; known: {', '.join(measures)}")
    files = _files(given)
    opened = GivenSplit(files, split)
    backbone = GIVEN if given.name is None else f"{GIVEN}-{given.name}"
    known = load_definition(root, dataset)
    about = {f"model.files.{name}": path for name, path in files.model_dump().items()}
    about |= {"model.measure": given.measure} if given.measure else {}
    told = {backbone: {**known.embeddings.get(backbone, {}), split: StageDefinition(conf=GIVEN, settings=about)}}
    changed: dict[str, object] = {"embeddings": {**known.embeddings, **told}}
    if known.prepare is None or known.prepare.conf == GIVEN:
        changed["prepare"] = _alone(known, backbone, split, files)
    if changed.get("prepare") != known.prepare and "prepare" in changed:
        opened.alone()
    return known.model_copy(update=changed), backbone


def _alone(known: DatasetDefinition, backbone: str, split: str, files: GivenFiles) -> StageDefinition:
    """A dataset that is known by embeddings alone.

    What is in a split, the first ones of it say, and later ones of their name; others have to be of the same images and
    captions.
    """
    settings = {} if known.prepare is None else known.prepare.settings
    before = known.embeddings.get(backbone, {}).get(split)
    by = {name: settings.get(f"{split}.{name}", "") for name in GivenFiles.model_fields}
    own = before is not None and all(before.settings[f"model.files.{name}"] == value for name, value in by.items())
    if any(by.values()) and not own:
        assert known.prepare is not None
        return known.prepare
    told = {f"{split}.{name}": path for name, path in files.model_dump().items()}
    return StageDefinition(conf=GIVEN, settings={**settings, **told})


def _files(given: Named) -> GivenFiles:
    """The files by absolute path."""
    images, texts, owners = given.images, given.texts, given.owners
    for option, path in (("--embeddings", images), ("--embeddings", texts), ("--owners", owners)):
        if path is not None and not path.exists():
            raise MissingInputError(
                f"{option} {path} does not exist; name a file or folder, absolute or below {Path.cwd()}"
            )
    if texts is None:
        images, texts, beside = _both(images)
        owners = owners or beside
    return GivenFiles(
        images=str(images.resolve()), texts=str(texts.resolve()), owners=str(owners.resolve()) if owners else ""
    )


def _both(path: Path) -> tuple[Path, Path, Path | None]:
    """Files of the images and the captions, and of owners if there is one, in a file or folder of both."""
    if not path.is_dir():
        if path.suffix in (".npy", ".parquet"):
            raise UsageError(f"--embeddings {path} holds one side; name the files of images and captions")
        return path, path, None
    folder = path / ALONE if (path / ALONE).is_dir() else path  # of `itrpipe export`
    whole = folder / "embeddings.h5"
    if whole.is_file():
        return whole, whole, None
    found = {side: [folder / name for name in names if (folder / name).is_file()] for side, names in _IN_FOLDER.items()}
    for side in ("images", "texts"):
        if len(found[side]) != 1:
            has = f"both {found[side][0].name} and {found[side][1].name}" if found[side] else "no embeddings.h5"
            wanted = "" if found[side] else f" and no {', '.join(_IN_FOLDER[side])}"
            raise UsageError(f"--embeddings {path} has {has}{wanted}; name the files: --embeddings IMAGES CAPTIONS")
    return found["images"][0], found["texts"][0], next(iter(found["owners"]), None)
