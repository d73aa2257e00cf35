"""The image that a user names: of the dataset, or a photograph read by the extractor of the dataset's features."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from itrpipe.commands.trained import TrainedRun
from itrpipe.config import did_you_mean
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.stages import extract
from itrpipe.storage.artifact import read_manifest

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.store import FeatureFile

PHOTOGRAPH = "photograph"


@dataclass(frozen=True)
class Shown:
    """An image that a model is asked about.

    Attributes:
        image_id: of the dataset, or the path of a photograph.
        file: relative to the root of the dataset; of a photograph the absolute path.
        split: of the image, or `photograph`.
        features: hold a row of this id.
    """

    image_id: str
    file: str
    split: str
    features: FeatureFile


def find_image(trained: TrainedRun, dataset: str, image: str) -> Shown:
    """The image of the dataset with this id or file name, else the photograph at this path.

    Args:
        trained: whose dataset and features are meant.
        dataset: name, for the message.
        image: id, path in the source, file name, or path of a file.

    Raises:
        MissingInputError: there is neither, or the image has no features.
        UsageError: several images have this file name, or a photograph cannot be read as the dataset's images were.
        DataError: the photograph cannot be used.
    """
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.store import FEATURES, FeatureFile

    prepared, extracted = PreparedDataset.open(trained.input("prepare")), trained.input("extract")
    found = _named(prepared, image)
    if found is not None:
        features = FeatureFile.open(extracted / FEATURES)
        features.rows([found[0]])  # an image without features is told here, and not in the midst of a batch
        return Shown(*found, features)
    if os.path.isfile(image):  # unlike Path.is_file, no error for what cannot be a path
        path = Path(image)
        return Shown(str(path), str(path.absolute()), PHOTOGRAPH, photograph_features(path, extracted, trained.device))
    known = prepared.column("image_id")
    hint = did_you_mean(image, known) or f"; name an image by its id or file, such as {known[-1]}"
    raise MissingInputError(
        f"dataset {dataset!r} has no image {image!r} and there is no such file{hint}, or the file of any photograph"
    )


def _named(prepared: PreparedDataset, image: str) -> tuple[str, str, str] | None:
    """Id, file and split of an image: that of this id, else of this path in the source, else of this file name.

    Raises:
        UsageError: several have this file name.
    """
    rows = [
        (image_id, file, name)
        for name in prepared.splits
        for image_id, file in zip(prepared.split(name).image_ids.tolist(), prepared.split(name).files, strict=True)
    ]
    for matches in (
        [row for row in rows if row[0] == image],
        [row for row in rows if row[1] == image],
        [row for row in rows if PurePosixPath(row[1]).name == image],
    ):
        if len(matches) > 1:
            raise UsageError(
                f"--image {image}: {len(matches):,} images have this file name, {matches[0][0]} and {matches[1][0]} "
                "among them; name one by its id"
            )
        if matches:
            return matches[0]
    return None


def photograph_features(path: Path, folder: Path, device: str) -> FeatureFile:
    """The features of a photograph, by the extractors that made those of the dataset, in memory.

    Args:
        path: the photograph; also its id.
        folder: artifact of `extract`.
        device: `cpu` or `cuda`.

    Raises:
        UsageError: the features of the dataset were imported.
        DataError: the photograph cannot be used.
    """
    from itrpipe.features.photographs import Photographs

    manifest = read_manifest(folder)
    settings = extract.feature_settings(manifest.settings).model_validate(manifest.settings)
    parts = extract.passes_of(manifest.conf, settings)
    if imported := [part.kind for part in parts.values() if part.imported]:
        raise UsageError(
            f"--image {path}: the features of this dataset were imported ({imported[0]}), so those of a photograph "
            "cannot be made alike; name an image of the dataset"
        )
    try:
        (features,) = Photographs.by(manifest.conf, parts, device).features([path], batch=1, ids=[str(path)])
    except DataError as error:
        raise DataError(f"--image {error}") from None
    return features
