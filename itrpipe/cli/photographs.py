"""Index photographs that have no captions, for the commands that search them."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from itrpipe.cli.asked import Asked, train_settings
from itrpipe.cli.options import AnyModelOptions, MakeOption, overrides_of
from itrpipe.config import EVERYWHERE, Override
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition, redefine
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.features.declaration import passes_of
from itrpipe.models.declaration import settings_of
from itrpipe.pipeline.planning import refuse_unused
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import MANIFEST, folders_in, is_finished, read_manifest

if TYPE_CHECKING:
    from itrpipe.search.gallery import Gallery

CONF, STAGE, CONFIG = "photographs", "index", "config.json"
_LONGEST = 48
"""Characters of a name of a folder in the name of an artifact."""


@dataclass
class SearchOptions(AnyModelOptions):
    """Options of every command that searches, and trains no model unless it is told to."""

    no_deps: MakeOption = True


PhotosOption = Annotated[Path | None, Option(metavar="FOLDER", help="Folder of photographs, which need no captions.")]


def refuse_with_photos(values: dict[str, Any]) -> None:
    """Refuse options of a dataset, given by name, beside --photos."""
    for name in (name for name, value in values.items() if value is not None):
        raise UsageError(f"{name} is for a dataset; leave it out with --photos")


def refuse_opened(given: AnyModelOptions) -> None:
    """Refuse a folder or hub id as --model where there are no photographs to search with it."""
    if given.opened is not None:
        raise UsageError(f"--model {given.opened} is no named model; add --photos FOLDER to search photographs with it")


@dataclass
class Indexed:
    """Photographs that a model has embedded.

    Attributes:
        photos: their folder.
        folder: artifact of the index.
        model: folder of the model.
        called: its name in the names of artifacts.
        reporter: shows what is done with them.
    """

    photos: Path
    folder: Path
    model: Path
    called: str
    reporter: Reporter

    def gallery(self, device: str | None) -> "Gallery":
        """Open all that can be searched."""
        from itrpipe.search.gallery import Gallery
        from itrpipe.search.model import load

        model = load(self.model, device=device or "auto")
        model.label = self.called
        return Gallery.of_folder(model, self.photos, self.folder)


def up_to_date(given: AnyModelOptions, photos: Path, *, as_json: bool = False, whole: bool = False) -> Indexed | None:
    """Make what is missing: the model, and the embeddings of photographs that are new or have changed.

    Args:
        given: the options; where they name no model, the only one that has indexed the folder is meant.
        photos: the folder.
        as_json: standard output is for JSON.
        whole: the index is what was asked for: it is made even with --no-deps, and its plan always shown.

    Returns:
        The index; None after a dry run.

    Raises:
        MissingInputError: there is no such folder, no photograph in it, or no such model.
        UsageError: no model is named and the folder has no single index, or the model has no embeddings.
        ItrpipeError: the model cannot be trained or opened.
    """
    from itrpipe.search.photos import list_photographs

    list_photographs(photos, given.data)  # which refuses a folder without any
    photos = photos.resolve()
    dataset = dataset_of(photos)
    told = overrides_of(given.settings, {"device": given.device}) + given.placed
    model = _model(given, photos, [item for item in told if item.scope not in (None, STAGE, CONF)], as_json)
    if model is None:
        return None
    folder, name = model

    def with_photographs(now: DatasetDefinition) -> DatasetDefinition:
        return now.model_copy(update={"photographs": StageDefinition(conf=CONF, source=str(photos))})

    told = [item for item in told if item.scope in (None, STAGE, CONF, EVERYWHERE)]
    known = load_definition(given.data, dataset)
    asked = Asked(given.data, dataset, told, as_json=as_json, **given.how, definition=with_photographs(known))
    step = asked.plan(STAGE, CONF, model=str(folder), called=name)
    if not asked.made(STAGE, whole=whole):
        return None
    if known.photographs is None:
        redefine(given.data, dataset, with_photographs)
    return Indexed(photos, step.location.folder, folder, name, asked.reporter)


def dataset_of(photos: Path) -> str:
    """Return the name of the folder below the data folder that holds the indexes of a folder of photographs.

    Args:
        photos: absolute, without links.
    """
    return f"photos-{_slug(photos.name)}-{_digest(str(photos))[:8]}"


def _model(given: AnyModelOptions, photos: Path, of_training: list[Override], as_json: bool) -> tuple[Path, str] | None:
    """Return the model, trained if it is missing, and its name; None where a dry run would train it.

    Raises:
        UsageError: none is named, and not one alone has indexed the folder.
    """
    from itrpipe.search.photos import no_embeddings, refuse_imported

    opened, name = given.opened, ""
    if opened is None and not given.trained:
        folders = filter(is_finished, folders_in(given.data / dataset_of(photos) / STAGE))
        made = sorted(map(read_manifest, folders), key=lambda each: each.finished)
        newest = {manifest.settings["called"]: manifest.settings for manifest in made}
        if len(newest) != 1:
            has = f"is indexed by {', '.join(sorted(newest))}" if newest else "is not indexed yet"
            raise UsageError(f"--photos {photos} {has}; name a model with --model")
        ((name, settings),) = newest.items()
        opened = settings["model"]
    if opened is not None:
        refuse_unused(item for item in of_training if item.scope != EVERYWHERE)
        return _opened(opened, name)
    known = given.known
    chosen = {**given.chosen(*given.shared), "method": None}
    told = [*(known.overrides(read=False) if known else []), *overrides_of(None, chosen), *of_training]
    asked = Asked(*given.where, told, as_json=as_json, **given.how)
    step = asked.plan("train", given.method)
    if not settings_of(train_settings(step).backbone).embeds:
        raise no_embeddings(asked.label)
    extract, seed = step.inputs["extract"], train_settings(step).seed
    refuse_imported(passes_of(extract.need.conf, extract.settings), f"{asked.label} on {extract.need.conf}")
    name = f"{given.dataset}.{known.name if known else asked.label}{f'.s{seed}' if known and seed else ''}"
    if step.state != "up to date" and not asked.made("train"):
        asked.reporter.say(f"{photos}: {STAGE} follows when the model is trained")
        return None
    return step.location.folder.resolve(), name


def _opened(model: str, name: str) -> tuple[Path, str]:
    """Open a model in a folder, or of the hub, which is fetched where it is not there yet."""
    folder = Path(model).expanduser()
    if not folder.is_dir():
        from itrpipe.search.model import fetch

        return fetch(model), name or _slug(model.replace("/", "--"))
    folder = folder.resolve()
    if not any((folder / file).is_file() for file in (MANIFEST, CONFIG)):
        raise MissingInputError(f"--model {model} holds no model: it has no {CONFIG}; name the folder of one")
    return folder, name or f"{_slug(folder.name)}.{_digest(str(folder))[:6]}"


def _slug(name: str) -> str:
    """Turn a name into a part of one that folders can have."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")[:_LONGEST] or "folder"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
