"""Index photographs that have no captions, and open the index for the commands that search it."""

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from itrpipe.cli.options import OF_TRAINING, MakeOption, ModelOptions, overrides_of
from itrpipe.cli.request import Request, refuse_incomplete
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

CONF = "photographs"
STAGE = "index"
_MAX_LENGTH = 48
"""Characters of a folder's name in the name of an artifact."""


@dataclass
class IndexOptions(ModelOptions):
    """Options of every command whose --model may also be a folder or hub id, for photographs without captions."""

    def complete(self) -> None:
        """Complete the options as `ModelOptions` does; a folder or hub id stays in `named`, and `known` is None.

        Raises:
            UsageError, MissingInputError: see `ModelOptions.complete`.
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
        """Return the folder or hub id of a model; None if the options name a training."""
        if self.known is not None:
            return None
        return self.named

    def gallery(self, request: Request, photos: Path) -> "Gallery":
        """Open the gallery of a folder of photographs, by the request of its index."""
        from itrpipe.search.gallery import Gallery
        from itrpipe.search.model import load

        settings = request.step.settings.model_dump()
        model = load(settings["model"], device=self.device or "auto")
        model.label = settings["called"]
        return Gallery.of_folder(model, photos.resolve(), request.step.location.folder)

    def indexed(self, photos: Path, *, as_json: bool = False, whole: bool = False) -> Request | None:
        """Make the model if it is missing, and the embeddings of photographs that are new or have changed.

        If the options name no model, the only one that has indexed the folder is meant.

        Args:
            photos: the folder.
            as_json: standard output is for JSON.
            whole: the index is the command's very result: it is made even with --no-deps, and its plan always shown.

        Returns:
            The request whose step is the index; None after a dry run.

        Raises:
            MissingInputError: there is no such folder, no photograph in it, or no such model.
            UsageError: no model is named and the folder has no single index, or the model has no embeddings.
            ItrpipeError: the model cannot be trained or opened.
        """
        from itrpipe.search.photos import list_photographs

        list_photographs(photos, self.data)  # refuses a folder without photographs
        photos = photos.resolve()
        dataset = dataset_of(photos)
        overrides = overrides_of(self.settings, {"device": self.device}) + self.placed
        of_training = [each for each in overrides if each.scope not in (None, STAGE, CONF)]
        model = self._model(photos, of_training, as_json)
        if model is None:
            return None
        folder, name = model
        of_index = [each for each in overrides if each.scope in (None, STAGE, CONF, EVERYWHERE)]
        before = load_definition(self.data, dataset)
        change = {"photographs": StageDefinition(conf=CONF, source=str(photos))}
        definition = before.model_copy(update=change)
        request = Request(self.data, dataset, of_index, as_json=as_json, **self.how, definition=definition)
        request.plan(STAGE, CONF, model=str(folder), called=name)
        if not request.made(STAGE, whole=whole):
            return None
        if before.photographs is None:
            redefine(self.data, dataset, lambda now: now.model_copy(update=change))
        return request

    def _model(self, photos: Path, of_training: list[Override], as_json: bool) -> tuple[Path, str] | None:
        """Return the folder of the model, trained or fetched if it is missing, and its name.

        None if a dry run would train it.

        Raises:
            UsageError: no model is named, and none or several have indexed the folder.
        """
        opened = self.opened
        name = ""
        if self.named is None and self.given.isdisjoint(OF_TRAINING):
            name, opened = self._only_model(photos)
        if opened is None:
            return self._trained(photos, of_training, as_json)
        refuse_unused(override for override in of_training if override.scope != EVERYWHERE)
        folder = Path(opened).expanduser()
        if not folder.is_dir():
            return fetch_folder(opened), name or _slug(opened.replace("/", "--"))
        folder = folder.resolve()
        if not any((folder / file).is_file() for file in (MANIFEST, CONFIG)):
            raise MissingInputError(f"--model {opened} holds no model: it has no {CONFIG}; name the folder of one")
        return folder, name or f"{_slug(folder.name)}.{_digest(str(folder))[:6]}"

    def _only_model(self, photos: Path) -> tuple[str, str]:
        """Return name and folder of the only model that has indexed some photographs.

        Raises:
            UsageError: none or several have.
        """
        folders = filter(is_finished, folders_in(self.data / dataset_of(photos) / STAGE))
        models = {}
        for manifest in sorted(map(read_manifest, folders), key=lambda manifest: manifest.finished):
            models[manifest.settings["called"]] = manifest.settings["model"]
        if not models:
            raise UsageError(f"--photos {photos} is not indexed yet; name a model with --model")
        if len(models) > 1:
            names = ", ".join(sorted(models))
            raise UsageError(f"--photos {photos} is indexed by {names}; name a model with --model")
        return models.popitem()

    def _trained(self, photos: Path, of_training: list[Override], as_json: bool) -> tuple[Path, str] | None:
        """Return the folder of a training, made if it is missing, and its name; None if a dry run would make it."""
        from itrpipe.search.photos import no_embeddings, refuse_imported

        overrides = overrides_of(None, {**self.chosen(*self.shared), "method": None}) + of_training
        if self.known:
            overrides = self.known.overrides(read=False) + overrides
        request = Request(*self.where, overrides, as_json=as_json, **self.how)
        step = request.plan("train", self.method)
        settings = step.settings.model_dump()
        if not settings_of(settings["backbone"]).embeds:
            raise no_embeddings(request.label)
        extract = step.inputs.get("extract")
        if extract is not None:
            reader = f"{request.label} on {extract.need.conf}"
            refuse_imported(passes_of(extract.need.conf, extract.settings), reader)
        name = request.label
        if self.known:
            name = self.known.name
            if settings["seed"]:
                name += f".s{settings['seed']}"
        if step.state != "up to date" and not request.made("train"):
            request.reporter.say(f"{photos}: {STAGE} follows when the model is trained")
            return None
        return step.location.folder.resolve(), f"{self.dataset}.{name}"


def dataset_of(photos: Path) -> str:
    """Return the name of the folder below the data folder that holds the indexes of a folder of photographs.

    Args:
        photos: absolute, without links.
    """
    return f"photos-{_slug(photos.name)}-{_digest(str(photos))[:8]}"


def _slug(name: str) -> str:
    """Turn a name into a part of a folder's name."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")[:_MAX_LENGTH] or "folder"


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
        request = self.indexed(self.photos, whole=True)
        if request is None:
            return
        folder = request.step.location.folder
        request.reporter.say(str(folder))
        query = "'a dog on a beach'"
        if not reads_side(read_config(Path(request.step.settings.model_dump()["model"]) / CONFIG), "text"):
            query = "--image FILE"
        photos = shlex.quote(str(self.photos))
        request.reporter.say(f"next: itrpipe search {query} --photos {photos}{data_option(self.data)}")
        refuse_incomplete(folder, "photograph", "what is replaced is read by the next run")


PhotosOption = Annotated[Path | None, Option(metavar="FOLDER", help="Folder of photographs, which need no captions.")]


@dataclass
class SearchOptions(IndexOptions):
    """Options of every command that searches, and trains no model without --make."""

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
