"""`itrpipe index`: the photographs of a folder, embedded by a model and ready to be searched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from itrpipe.commands.named import NamedModel, find_model
from itrpipe.commands.trained import make_missing, train_settings
from itrpipe.commands.upkeep import remove_unused
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition, redefine
from itrpipe.errors import DataError, IncompleteError, MissingInputError, UsageError
from itrpipe.plan.overrides import EVERYWHERE
from itrpipe.plan.pipeline import run
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import Step
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.retrieval.photo_folder import list_photographs, require_photographs
from itrpipe.stages.base import Need
from itrpipe.stages.extract import passes_of
from itrpipe.storage.artifact import MANIFEST, Manifest, folders_in, is_finished, read_manifest
from itrpipe.training.settings import settings_of

CONF, STAGE, CONFIG = "photographs", "index", "config.json"
_LONGEST = 48
"""Characters of a name of a folder in the name of an artifact."""


@dataclass(frozen=True)
class AskedModel:
    """The model that options name.

    Attributes:
        known: a named model.
        opened: folder or hub id of a model.
        called: its name in the names of artifacts, where that is known.
        method: configuration of `train`, where options say one or its backbone.
        dataset: that it is trained on.
        overrides: given by the user; without a scope of the index.
        naming: backbone, features and seed of the training, where given.
    """

    known: NamedModel | None = None
    opened: str | None = None
    called: str = ""
    method: str | None = None
    dataset: str = "scenes"
    overrides: list[Override] = field(default_factory=list)
    naming: dict[str, object] = field(default_factory=dict)

    @property
    def named(self) -> bool:
        """Whether an option names a model at all."""
        return bool(self.known or self.opened or self.method)

    @property
    def of_training(self) -> list[Override]:
        """What is said of the training of the model."""
        told = [] if self.known is None else self.known.of_training()
        given = [Override(None, key, value) for key, value in self.naming.items() if value is not None]
        return [*told, *given, *(item for item in self.overrides if item.scope not in (None, STAGE, CONF))]

    @property
    def of_index(self) -> list[Override]:
        """What is said of the index."""
        return [item for item in self.overrides if item.scope in (None, STAGE, CONF, EVERYWHERE)]


@dataclass(frozen=True)
class OpenedModel:
    """A model that is there.

    Attributes:
        folder: of it.
        called: its name in the names of artifacts.
        name, dataset: of a named model, else empty.
    """

    folder: Path
    called: str
    name: str = ""
    dataset: str = ""


@dataclass(frozen=True)
class Indexed:
    """An index that is up to date.

    Attributes:
        folder: the artifact.
        model: whose it is.
    """

    folder: Path
    model: OpenedModel


def index(root: Path, photos: Path, asked: AskedModel, *, no_deps: bool = False, dry_run: bool = False) -> None:
    """Indexes a folder; what is there already is not encoded again.

    Args:
        root: the data folder.
        photos: the folder.
        asked: the model; where it names none, the only one that has indexed the folder.
        no_deps: fail where the model is not trained.
        dry_run: print the plan.

    Raises:
        IncompleteError: the index is finished and lacks photographs that could not be used.
        ItrpipeError: see `up_to_date`.
    """
    reporter = Reporter()
    found = up_to_date(root, photos, asked, reporter, no_deps=no_deps, dry_run=dry_run)
    if found is None:
        return
    reporter.say(str(found.folder))
    failed = read_manifest(found.folder).failed
    if failed:
        file, reason = next(iter(failed.items()))
        raise IncompleteError(
            f"{quantity(len(failed), 'photograph')} of {photos} could not be used; the first: {file} {reason}. "
            f"All are listed as 'failed' in {found.folder / MANIFEST}; what is replaced is read by the next run"
        )


def up_to_date(
    root: Path,
    photos: Path,
    asked: AskedModel,
    reporter: Reporter,
    *,
    no_deps: bool = False,
    dry_run: bool = False,
    whole: bool = True,
) -> Indexed | None:
    """Makes what is missing: the model, and the embeddings of photographs that are new or have changed.

    Args:
        root: the data folder.
        photos: the folder.
        asked: the model.
        reporter: shows the plan and the progress.
        no_deps: fail where something is missing; of the index itself only if not `whole`.
        dry_run: print the plan, and make nothing.
        whole: the index is what was asked for, and its plan is shown also where it is up to date.

    Returns:
        The index; None after a dry run.

    Raises:
        MissingInputError: there is no such folder, no photograph in it, or no such model.
        UsageError: no model is named and the folder has no single index, or the model has no embeddings.
        ItrpipeError: the model cannot be trained or opened.
    """
    require_photographs(photos, root)
    photos = photos.resolve()
    dataset = dataset_of(photos)
    asked = asked if asked.named else replace(only_model(root, photos, dataset), overrides=asked.overrides)
    model = _model(root, asked, reporter, no_deps=no_deps, dry_run=dry_run)
    if model is None:
        count = len(list_photographs(photos, root).photographs)
        reporter.say(f"{photos}: an index of {quantity(count, 'photograph')} follows when the model is trained")
        return None

    def with_photographs(now: DatasetDefinition) -> DatasetDefinition:
        return now.model_copy(update={"photographs": StageDefinition(conf=CONF, source=str(photos))})

    definition = with_photographs(load_definition(root, dataset))
    step = _planned(root, dataset, definition, model, asked, reporter, dry_run)
    if step.state != "up to date" and no_deps and not whole and not dry_run:
        raise UsageError(
            f"the index of {photos} is not up to date ({step.reason or step.state}); run "
            f"`itrpipe index --photos {photos}`, or add --make"
        )
    if whole or step.state != "up to date" or dry_run:
        reporter.say(f"{photos}: {STAGE} with {model.called}", style="bold")
        if not dry_run:
            redefine(root, dataset, with_photographs)
        run([step], reporter, dry_run=dry_run)
    if dry_run:
        return None
    _remove_contained(step.location.folder, reporter)
    return Indexed(step.location.folder, model)


def dataset_of(photos: Path) -> str:
    """Name of the folder below the data folder that holds the indexes of a folder of photographs.

    Args:
        photos: absolute, without links.
    """
    return f"photos-{_slug(photos.name)}-{_digest(str(photos))[:8]}"


def only_model(root: Path, photos: Path, dataset: str) -> AskedModel:
    """The model that has indexed a folder.

    Raises:
        UsageError: none has, or several have.
    """
    newest: dict[str, Manifest] = {}
    for each in folders_in(root / dataset / STAGE):
        if is_finished(each):
            manifest = _readable(each)
            if manifest is not None:
                called = manifest.settings["called"]
                if called not in newest or newest[called].finished < manifest.finished:
                    newest[called] = manifest
    if len(newest) != 1:
        has = f"is indexed by {', '.join(sorted(newest))}" if newest else "is not indexed yet"
        raise UsageError(f"--photos {photos} {has}; name a model with --model")
    (settings,) = (manifest.settings for manifest in newest.values())
    if settings["name"]:
        return AskedModel(known=find_model(root, settings["dataset"], settings["name"]))
    return AskedModel(opened=settings["model"], called=settings["called"])


def _model(root: Path, asked: AskedModel, reporter: Reporter, *, no_deps: bool, dry_run: bool) -> OpenedModel | None:
    """The model, trained if it is missing; None where a dry run would train it."""
    if asked.opened is not None:
        _refuse(asked.of_training, EVERYWHERE, f"--model {asked.opened} is a model that is trained already")
        return _opened(asked.opened, asked.called)
    known = asked.known
    dataset, method = (asked.dataset, asked.method) if known is None else (known.dataset, known.method)
    planner = Planner(root, dataset, asked.of_training, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("train", str(method)))
    _refuse(planner.unused_overrides(), EVERYWHERE, f"no step of the training of {step.location.label} has it")
    _refuse_unfit(step)
    name = step.location.label if known is None else known.name
    seed = train_settings(step).seed if known is not None else 0
    called = f"{dataset}.{name}" + (f".s{seed}" if seed else "")
    if step.state != "up to date" and not make_missing(
        f"train {called}", [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run
    ):
        return None
    named = ("", "") if known is None or seed else (known.name, dataset)
    return OpenedModel(step.location.folder.resolve(), called, *named)


def _refuse(overrides: Sequence[Override], apart_from: str, why: str) -> None:
    for item in overrides:
        if item.scope != apart_from:
            name = f"{item.scope}.{item.key}" if item.scope else item.key
            raise UsageError(f"setting {name} (from {item.origin}) is read by nothing here: {why}; leave it out")


def _refuse_unfit(step: Step) -> None:
    """Refuses a model before it is trained that could not embed photographs."""
    settings = train_settings(step)
    if not settings_of(settings.backbone).embeds:
        raise UsageError(
            f"{step.location.label} scores images and texts together and has no embeddings to index; name a model "
            "with embeddings, such as vsrn or dual-encoder"
        )
    extract = step.inputs["extract"]
    imported = [part.kind for part in passes_of(extract.need.conf, extract.settings).values() if part.imported]
    if imported:
        raise UsageError(
            f"{step.location.label} reads the features {extract.need.conf!r}, which were imported ({imported[0]}), so "
            "those of a photograph cannot be made alike; name a model on features that itrpipe extracts"
        )


def _opened(model: str, called: str) -> OpenedModel:
    """A model in a folder, or of the hub, which is fetched where it is not there yet."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        folder = folder.resolve()
        if not (folder / MANIFEST).is_file() and not (folder / CONFIG).is_file():
            raise MissingInputError(f"--model {model} holds no model: it has no {CONFIG}; name the folder of one")
        if (folder / MANIFEST).is_file() and (stage := read_manifest(folder).stage) != "train":
            raise UsageError(f"--model {model} is an artifact of {stage} and holds no model; name one of train")
        return OpenedModel(folder, called or f"{_slug(folder.name)}.{_digest(str(folder))[:6]}")
    from itrpipe.retrieval.opening import fetch

    return OpenedModel(fetch(model), called or _slug(model.replace("/", "--")))


def _planned(
    root: Path,
    dataset: str,
    definition: DatasetDefinition,
    model: OpenedModel,
    asked: AskedModel,
    reporter: Reporter,
    dry_run: bool,
) -> Step:
    planner = Planner(root, dataset, asked.of_index, definition, reporter, remember=not dry_run)
    about = {"model": str(model.folder), "called": model.called, "name": model.name, "dataset": model.dataset}
    step = planner.plan(Need(STAGE, CONF, about))
    _refuse(planner.unused_overrides(), EVERYWHERE, "the index has no such setting")
    return step


def _remove_contained(folder: Path, reporter: Reporter) -> None:
    """Removes earlier indexes of the same model all of whose photographs are in this one, too.

    What holds photographs that are gone now stays until `itrpipe gc`: they may come back.
    """
    manifest = read_manifest(folder)
    for other in folders_in(folder.parent):
        if other == folder or not is_finished(other):
            continue
        earlier = _readable(other)
        if earlier is None or earlier.label != manifest.label or earlier.sources["model"] != manifest.sources["model"]:
            continue
        from itrpipe.retrieval.photo_rows import listed

        if listed(other) <= listed(folder) and remove_unused(other):
            reporter.say(f"  {other.name} is replaced by {folder.name}")


def _readable(folder: Path) -> Manifest | None:
    """The manifest of an index; damaged ones, which `itrpipe status` tells, say nothing."""
    try:
        return read_manifest(folder)
    except DataError:
        return None


def _slug(name: str) -> str:
    """A name as a part of one that folders can have."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")[:_LONGEST] or "folder"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
