"""Index photographs that have no captions, and open the index for the commands that search it."""

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from itrpipe.cli.asked import Asked, refuse_incomplete
from itrpipe.cli.options import OF_TRAINING, MakeOption, ModelOptions, overrides_of
from itrpipe.config import EVERYWHERE, Override
from itrpipe.datasets.definition import StageDefinition, load_definition, redefine
from itrpipe.encoders.folders import CONFIG, fetch_folder, read_config, reads_side
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import passes_of
from itrpipe.models.declaration import settings_of
from itrpipe.pipeline.models import data_option
from itrpipe.pipeline.planning import refuse_unused
from itrpipe.storage.artifact import MANIFEST, folders_in, is_finished, read_manifest

if TYPE_CHECKING:
    from itrpipe.search.gallery import Gallery

CONF, STAGE = "photographs", "index"
_LONGEST = 48
"""Characters of a name of a folder in the name of an artifact."""


@dataclass
class IndexOptions(ModelOptions):
    """Options of every command whose --model may also be a folder or hub id, for photographs without captions."""

    def complete(self) -> None:
        """Complete the options as `ModelOptions` does; a folder or hub id stays in `named`, and `known` is None.

        Raises:
            UsageError, MissingInputError: as there.
        """
        try:
            super().complete()
            return
        except MissingInputError:
            if self.named is None or not (Path(self.named).expanduser().is_dir() or "/" in self.named):
                raise
        for name in sorted(self.given.intersection(OF_TRAINING)):
            raise UsageError(f"--model {self.named} is trained already; leave --{name} out")

    @property
    def opened(self) -> str | None:
        """Return the folder or hub id of a model; None where options name a training."""
        return self.named if self.known is None else None

    def gallery(self, asked: Asked, photos: Path) -> "Gallery":
        """Open all that can be searched of photographs, by what was asked for to index them."""
        from itrpipe.search.gallery import Gallery
        from itrpipe.search.model import load

        settings = asked.step.settings.model_dump()
        model = load(settings["model"], device=self.device or "auto")
        model.label = settings["called"]
        return Gallery.of_folder(model, photos.resolve(), asked.step.location.folder)

    def indexed(self, photos: Path, *, as_json: bool = False, whole: bool = False) -> Asked | None:
        """Make what is missing: the model, and the embeddings of photographs that are new or have changed.

        Where the options name no model, the only one that has indexed the folder is meant.

        Args:
            photos: the folder.
            as_json: standard output is for JSON.
            whole: the index is what was asked for: it is made even with --no-deps, and its plan always shown.

        Returns:
            What was asked for, whose step is the index; None after a dry run.

        Raises:
            MissingInputError: there is no such folder, no photograph in it, or no such model.
            UsageError: no model is named and the folder has no single index, or the model has no embeddings.
            ItrpipeError: the model cannot be trained or opened.
        """
        from itrpipe.search.photos import list_photographs

        list_photographs(photos, self.data)  # which refuses a folder without any
        photos = photos.resolve()
        dataset = dataset_of(photos)
        told = overrides_of(self.settings, {"device": self.device}) + self.placed
        model = self._model(photos, [item for item in told if item.scope not in (None, STAGE, CONF)], as_json)
        if model is None:
            return None
        folder, name = model
        told = [item for item in told if item.scope in (None, STAGE, CONF, EVERYWHERE)]
        known = load_definition(self.data, dataset)
        change = {"photographs": StageDefinition(conf=CONF, source=str(photos))}
        definition = known.model_copy(update=change)
        asked = Asked(self.data, dataset, told, as_json=as_json, **self.how, definition=definition)
        asked.plan(STAGE, CONF, model=str(folder), called=name)
        if not asked.made(STAGE, whole=whole):
            return None
        if known.photographs is None:
            redefine(self.data, dataset, lambda now: now.model_copy(update=change))
        return asked

    def _model(self, photos: Path, of_training: list[Override], as_json: bool) -> tuple[Path, str] | None:
        """Return the model, trained if it is missing, and its name; None where a dry run would train it.

        A model of the hub is fetched where it is not there yet.

        Raises:
            UsageError: none is named, and not one alone has indexed the folder.
        """
        from itrpipe.search.photos import no_embeddings, refuse_imported

        opened, name = self.opened, ""
        if self.named is None and self.given.isdisjoint(OF_TRAINING):
            folders = filter(is_finished, folders_in(self.data / dataset_of(photos) / STAGE))
            newest = {}
            for manifest in sorted(map(read_manifest, folders), key=lambda each: each.finished):
                newest[manifest.settings["called"]] = manifest.settings["model"]
            if len(newest) != 1:
                has = f"is indexed by {', '.join(sorted(newest))}" if newest else "is not indexed yet"
                raise UsageError(f"--photos {photos} {has}; name a model with --model")
            ((name, opened),) = newest.items()
        if opened is not None:
            refuse_unused(item for item in of_training if item.scope != EVERYWHERE)
            folder = Path(opened).expanduser()
            if not folder.is_dir():
                return fetch_folder(opened), name or _slug(opened.replace("/", "--"))
            folder = folder.resolve()
            if not any((folder / file).is_file() for file in (MANIFEST, CONFIG)):
                raise MissingInputError(f"--model {opened} holds no model: it has no {CONFIG}; name the folder of one")
            return folder, name or f"{_slug(folder.name)}.{_digest(str(folder))[:6]}"
        told = overrides_of(None, {**self.chosen(*self.shared), "method": None}) + of_training
        if self.known:
            told = self.known.overrides(read=False) + told
        asked = Asked(*self.where, told, as_json=as_json, **self.how)
        step = asked.plan("train", self.method)
        settings = step.settings.model_dump()
        if not settings_of(settings["backbone"]).embeds:
            raise no_embeddings(asked.label)
        extract = step.inputs.get("extract")
        if extract is not None:
            refuse_imported(passes_of(extract.need.conf, extract.settings), f"{asked.label} on {extract.need.conf}")
        name = asked.label
        if self.known:
            name = self.known.name
            if settings["seed"]:
                name += f".s{settings['seed']}"
        if step.state != "up to date" and not asked.made("train"):
            asked.reporter.say(f"{photos}: {STAGE} follows when the model is trained")
            return None
        return step.location.folder.resolve(), f"{self.dataset}.{name}"


def dataset_of(photos: Path) -> str:
    """Return the name of the folder below the data folder that holds the indexes of a folder of photographs.

    Args:
        photos: absolute, without links.
    """
    return f"photos-{_slug(photos.name)}-{_digest(str(photos))[:8]}"


def _slug(name: str) -> str:
    """Turn a name into a part of one that folders can have."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")[:_LONGEST] or "folder"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(kw_only=True)
class Index(IndexOptions):
    """Embed all photographs below a folder, for search --photos.

    The model is a named one, which is trained if it is missing, the folder of one (of itrpipe export or train, or a
    CLIP or SigLIP of transformers), or the hub id of a CLIP or SigLIP. A vision encoder finds photographs like one.

    The same command again encodes new and changed photographs only, and goes on where it was interrupted. Photographs
    that cannot be read are listed and left out. The folder itself stays as it is; the index lies in the data folder.

    Example: itrpipe index --photos photos --model laion/CLIP-ViT-B-32-laion2B-s34B-b79K
    """

    photos: Annotated[Path, Option(metavar="FOLDER", help="Folder of photographs.")]

    def run(self) -> None:
        asked = self.indexed(self.photos, whole=True)
        if asked is None:
            return
        folder = asked.step.location.folder
        asked.reporter.say(str(folder))
        query = "'a dog on a beach'"
        if not reads_side(read_config(Path(asked.step.settings.model_dump()["model"]) / CONFIG), "text"):
            query = "--image FILE"
        asked.reporter.say(
            f"next: itrpipe search {query} --photos {shlex.quote(str(self.photos))}{data_option(self.data)}"
        )
        refuse_incomplete(folder, "photograph", "what is replaced is read by the next run")


PhotosOption = Annotated[Path | None, Option(metavar="FOLDER", help="Folder of photographs, which need no captions.")]


@dataclass
class SearchOptions(IndexOptions):
    """Options of every command that searches, and trains no model unless it is told to."""

    no_deps: MakeOption = True

    def refuse_opened(self) -> None:
        """Refuse a folder or hub id as --model where there are no photographs to search with it."""
        if self.opened is not None:
            raise UsageError(
                f"--model {self.opened} is no named model; add --photos FOLDER to search photographs with it"
            )


def refuse_with_photos(values: dict[str, Any]) -> None:
    """Refuse options of a dataset, given by name, beside --photos."""
    for name, value in values.items():
        if value is not None:
            raise UsageError(f"{name} is for a dataset; leave it out with --photos")
