"""Read embeddings from files in the place of a trained model, for the commands that mine and evaluate."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from itrpipe.cli.asked import place_of
from itrpipe.cli.options import OF_TRAINING, File, ModelOptions, Text
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, check_name, load_definition
from itrpipe.errors import UsageError
from itrpipe.features.declaration import GIVEN, GivenFiles

Measure = Literal["cosine", "inner-product", "order"]
ALONE = "embeddings"
"""Dataset of embeddings that none is named for."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(@[0-9]+)?")
_ARRAYS = (".parquet", ".npy", ".h5", ".hdf5")
_IN_FOLDER = {
    "images": [f"images{end}" for end in _ARRAYS],
    "texts": [f"{name}{end}" for end in _ARRAYS for name in ("captions", "texts")],
    "owners": [f"owners{end}" for end in (".npy", ".json", ".txt")],
}


@dataclass
class GivenOptions(ModelOptions):
    """Options of every command that takes embeddings from files in the place of a trained model."""

    embeddings: Annotated[File, Option(help="Files of any model's embeddings.", metavar="IMAGES [CAPTIONS]")] = None
    captions: Annotated[File, Argument(metavar="CAPTIONS", help="With --embeddings: of the captions.")] = None
    owners: Annotated[File, Option(help="With --embeddings: row or id of each caption's image.", metavar="FILE")] = None
    name: Annotated[Text, Option(help="With --embeddings: for those of several models, NAME@1 for a seed.")] = None
    measure: Annotated[
        Measure | None,
        Option(help="With --embeddings: cosine (default), inner-product or order."),
    ] = None

    def defined(self, split: str) -> DatasetDefinition | None:
        """Define the embeddings of --embeddings, and name them; without the option choose the model, and return None.

        Where nothing else defines the dataset, they do. The files are opened, so that what cannot be read or does not
        belong together is told before anything is made.

        Args:
            split: that the files are of.

        Raises:
            UsageError: what belongs to --embeddings was given without it, other options name a model too, or the name
                is none.
            MissingInputError: a file is not there, or has no such split.
            DataError: see `GivenSplit`.
        """
        name = self.name
        if self.embeddings is None:
            for option in ("captions", "owners", "name", "measure"):
                value = getattr(self, option)
                if value is not None:
                    flag = "" if option == "captions" else f"--{option} "
                    raise UsageError(f"{flag}{value} belongs to --embeddings; add it, or leave this out")
            self.choose()
            return None
        for option in ("named", *OF_TRAINING):
            if option in self.given:
                flag = "model" if option == "named" else option
                raise UsageError(f"--{flag} and --embeddings both name a model; leave one of them out")
        if "dataset" not in self.given:
            self.dataset = ALONE
        files = self._files(self.embeddings)
        if name is not None and not _NAME.fullmatch(check_name(name)):
            raise UsageError(
                f"--name {name!r} must be lower-case letters, digits, '_' and '-', or such a name and a seed: NAME@1"
            )
        from itrpipe.features.given import GivenSplit

        opened = GivenSplit(files, split)
        self.method, self.backbone = GIVEN, GIVEN if name is None else f"{GIVEN}-{name}"
        known = load_definition(self.data, self.dataset)
        stem, is_seed, _ = self.backbone.partition("@")
        for other in known.embeddings:
            other = other.partition(".")[0]
            if other != self.backbone and other.partition("@")[0] == stem and not (is_seed and "@" in other):
                raise UsageError(
                    f"--name {name}: {other.removeprefix(f'{GIVEN}-')} is there, and seeds share no name with a model "
                    "without one; choose another name"
                )
        paths = files.model_dump()
        label = f"{self.backbone}.{split}"
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
        if self.measure:
            about["measure"] = self.measure
        given = known.adding(embeddings={label: StageDefinition(conf=GIVEN, settings=about)})
        return given.model_copy(update=changed)

    def _files(self, images: Path) -> GivenFiles:
        """Return the files of embeddings by absolute path.

        Args:
            images: file of those of the images; or file or folder of both, where there is no other.

        Raises:
            MissingInputError: one is not there.
            UsageError: a folder does not say which files are meant, or one file holds one side.
        """
        places = {"images": place_of("--embeddings", images)}
        if self.captions is not None:
            places["texts"] = place_of("--embeddings", self.captions)
        elif images.is_dir():
            places = _in_folder(images)
        elif images.suffix in (".npy", ".parquet"):
            raise UsageError(f"--embeddings {images} holds one side; name the files of images and captions")
        else:
            places["texts"] = places["images"]
        if self.owners is not None:
            places["owners"] = place_of("--owners", self.owners)
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
            raise UsageError(
                f"--embeddings {folder} has {len(paths)} of {', '.join(names)}; name the files: --embeddings IMAGES "
                "CAPTIONS"
            )
        if paths:
            places[side] = str(paths[0].resolve())
    return places
