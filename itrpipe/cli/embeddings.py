"""Options for embeddings from files or of another library, which mining and evaluation take for a trained model."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from typer import Argument, Option

from itrpipe.cli.options import OF_TRAINING, File, ModelOptions, Text
from itrpipe.cli.request import absolute_path, place_of
from itrpipe.datasets.captions import SPLITS
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, check_name, load_definition
from itrpipe.errors import UsageError
from itrpipe.features.declaration import EMBEDDER_PREFIXES, GIVEN, SENTENCE_TRANSFORMERS, GivenFiles

Measure = Literal["cosine", "inner-product", "order"]
ALONE = "embeddings"
"""Dataset of embeddings if no dataset is named."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*(@[0-9]+)?")
_IN_FOLDER = {
    "images": ("images.parquet", "images.npy", "images.h5", "images.hdf5"),
    "texts": (
        "captions.parquet",
        "texts.parquet",
        "captions.npy",
        "texts.npy",
        "captions.h5",
        "texts.h5",
        "captions.hdf5",
        "texts.hdf5",
    ),
    "owners": ("owners.npy", "owners.json", "owners.txt"),
}
"""Side -> names that its file may have in a folder."""


class EmbedderName(NamedTuple):
    """A model of another library, as `--model` names it.

    Attributes:
        library: configuration of `embeddings`.
        model: hub id or folder.
        revision: branch, tag or commit of the hub id; empty where none is named.
    """

    library: str
    model: str
    revision: str


def embedder_of(name: str) -> EmbedderName | None:
    """Read the name of a model of another library: `st:` or `oc:` before ID, ID@REVISION or a folder.

    An id of sentence-transformers without an owner means one of its own models. None for any other name.
    """
    for prefix, library in EMBEDDER_PREFIXES.items():
        if not name.startswith(prefix):
            continue
        model = name.removeprefix(prefix)
        if Path(model).expanduser().is_dir():
            return EmbedderName(library, model, "")
        model, _, revision = model.partition("@")
        if library == SENTENCE_TRANSFORMERS and "/" not in model:
            model = f"{SENTENCE_TRANSFORMERS}/{model}"
        return EmbedderName(library, model, revision)
    return None


@dataclass
class GivenOptions(ModelOptions):
    """Options of every command that takes embeddings from files or of `st:ID` for a trained model."""

    named: Annotated[
        Text,
        Option("--model", help="A saved model, or st:ID of sentence-transformers, oc:ID of open_clip.", metavar="NAME"),
    ] = None
    embeddings: Annotated[File, Option(help="Files of any model's embeddings.", metavar="IMAGES [CAPTIONS]")] = None
    captions: Annotated[File, Argument(metavar="CAPTIONS", help="With --embeddings: of the captions.")] = None
    owners: Annotated[File, Option(help="With --embeddings: row or id of each caption's image.", metavar="FILE")] = None
    name: Annotated[Text, Option(help="With --embeddings: for those of several models, NAME@1 for a seed.")] = None
    measure: Annotated[
        Measure | None,
        Option(help="With --embeddings: cosine (default), inner-product or order."),
    ] = None
    embedder: EmbedderName | None = field(default=None, init=False)

    def complete(self) -> None:
        """Take the settings of the model of `--model`, unless it is one of another library."""
        self.embedder = embedder_of(self.named or "")
        if self.embedder is not None:
            self.named = None
        super().complete()

    def defined(self, split: str) -> DatasetDefinition | None:
        """Define the embeddings of --embeddings or of an embedder, and name them; else choose the model, return None.

        Files define the dataset, too, if nothing else does. They are opened, so that errors of theirs are shown before
        anything is made.

        Args:
            split: that the files are of.

        Raises:
            UsageError: an option of --embeddings was given without it, other options name a model too, or the name
                is not valid.
            MissingInputError: a file is not there, or has no such split.
            DataError: see `GivenSplit`.
        """
        if self.embeddings is None:
            self._refuse_further("captions", "owners")
            if self.embedder is not None:
                return self._defined_by_embedder(self.embedder)
            self._refuse_further("name", "measure")
            self.choose()
            return None
        self._refuse_other_models("--embeddings", ("named", *OF_TRAINING))
        if "dataset" not in self.given:
            self.dataset = ALONE
        files = self._files(self.embeddings)
        definition = self._call_embeddings(self.name)
        from itrpipe.features.given import GivenSplit

        opened = GivenSplit(files, split)
        paths = files.model_dump()
        label = f"{self.backbone}.{split}"
        prepare = definition.prepare or StageDefinition(conf=GIVEN)
        if prepare.conf == GIVEN:
            # The first files of a split decide which images and captions are in a dataset of embeddings alone, while
            # they are there; later files of their name take their place, others must have the same images and captions.
            earlier = {side: prepare.settings.get(f"{split}.{side}", "") for side in paths}
            same_name = {}
            if label in definition.embeddings:
                same_name = definition.embeddings[label].settings
            are_replaced = all(same_name.get(f"files.{side}") == path for side, path in earlier.items())
            are_gone = not all(Path(path).exists() for path in earlier.values() if path)
            if are_replaced or are_gone or not earlier["images"]:
                settings = dict(prepare.settings)
                for side, path in paths.items():
                    settings[f"{split}.{side}"] = path
                prepare = StageDefinition(conf=GIVEN, settings=settings)
                if prepare != definition.prepare:
                    opened.alone()
        about = {f"files.{side}": path for side, path in paths.items()}
        if self.measure:
            about["measure"] = self.measure
        embeddings = StageDefinition(conf=GIVEN, settings=about)
        return definition.adding(embeddings={label: embeddings}).model_copy(update={"prepare": prepare})

    def _refuse_further(self, *options: str) -> None:
        """Refuse options that belong to --embeddings."""
        for option in options:
            value = getattr(self, option)
            if value is not None:
                named = value if option == "captions" else f"--{option} {value}"
                raise UsageError(f"{named} belongs to --embeddings; add it, or leave this out")

    def _refuse_other_models(self, flag: str, options: tuple[str, ...]) -> None:
        """Refuse options that name a model beside the one that this flag names."""
        for option in options:
            if option in self.given:
                other = "model" if option == "named" else option
                raise UsageError(f"--{other} and {flag} both name a model; leave one of them out")

    def _defined_by_embedder(self, embedder: EmbedderName) -> DatasetDefinition:
        """Define the embeddings of all splits by a model of another library, and name them after it."""
        self._refuse_other_models(f"--model {embedder.model}", OF_TRAINING)
        last_part = embedder.model.rstrip("/").rpartition("/")[2].lower()
        name = self.name or re.sub(r"[^a-z0-9_-]+", "-", last_part).strip("-")
        known = self._call_embeddings(name)
        about = {"model": absolute_path(embedder.model)}
        if embedder.revision:
            about["revision"] = embedder.revision
        if self.measure:
            about["measure"] = self.measure
        definition = StageDefinition(conf=embedder.library, settings=about)
        return known.adding(embeddings={f"{self.backbone}.{split}": definition for split in SPLITS})

    def _call_embeddings(self, name: str | None) -> DatasetDefinition:
        """Call embeddings by a name, as if it were a trained model, and return the dataset's definition.

        Raises:
            UsageError: the name is not valid, or is that of another model, with a seed or without.
        """
        if name is not None and not _NAME.fullmatch(check_name(name)):
            raise UsageError(
                f"--name {name!r} must be lower-case letters, digits, '_' and '-', or such a name and a seed: NAME@1"
            )
        self.method = GIVEN
        self.backbone = GIVEN
        if name is not None:
            self.backbone = f"{GIVEN}-{name}"
        definition = load_definition(*self.where)
        stem = self.backbone.partition("@")[0]
        for label in definition.embeddings:
            other = label.partition(".")[0]
            if other == self.backbone or other.partition("@")[0] != stem:
                continue
            if "@" in self.backbone and "@" in other:
                continue  # seeds of one model
            raise UsageError(
                f"--name {name}: {other.removeprefix(f'{GIVEN}-')} is there, and seeds share no name with a model "
                "without one; choose another name"
            )
        return definition

    def _files(self, images: Path) -> GivenFiles:
        """Return the files of embeddings by absolute path.

        Args:
            images: file of the images' embeddings; or file or folder of both sides, if captions have no file.

        Raises:
            MissingInputError: a file is not there.
            UsageError: a folder has no or several files of a side, or the only file holds one side.
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
