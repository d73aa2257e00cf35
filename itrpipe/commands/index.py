"""`itrpipe index`: the photographs of a folder, embedded by a model and ready to be searched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from itrpipe.commands.named import NamedModel
from itrpipe.commands.trained import make_missing, train_settings
from itrpipe.commands.upkeep import remove_unused
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, load_definition, redefine
from itrpipe.errors import DataError, IncompleteError, MissingInputError, UsageError
from itrpipe.plan.overrides import EVERYWHERE, refuse_unused
from itrpipe.plan.pipeline import run
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import Step
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
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


class OpenedModel(NamedTuple):
    """A model that is there.

    Attributes:
        folder: of it.
        called: its name in the names of artifacts.
    """

    folder: Path
    called: str


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
    folder, _ = found
    reporter.say(str(folder))
    if failed := read_manifest(folder).failed:
        file, reason = next(iter(failed.items()))
        raise IncompleteError(
            f"{quantity(len(failed), 'photograph')} of {photos} could not be used; the first: {file} {reason}. "
            f"All are listed as 'failed' in {folder / MANIFEST}; what is replaced is read by the next run"
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
) -> tuple[Path, OpenedModel] | None:
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
        The artifact of the index, and the model; None after a dry run.

    Raises:
        MissingInputError: there is no such folder, no photograph in it, or no such model.
        UsageError: no model is named and the folder has no single index, or the model has no embeddings.
        ItrpipeError: the model cannot be trained or opened.
    """
    from itrpipe.search.photos import list_photographs

    count = len(list_photographs(photos, root).photographs)
    photos = photos.resolve()
    dataset = dataset_of(photos)
    asked = asked if asked.named else replace(_only_model(root, photos, dataset), overrides=asked.overrides)
    model = _model(root, asked, reporter, no_deps=no_deps, dry_run=dry_run)
    if model is None:
        reporter.say(f"{photos}: an index of {quantity(count, 'photograph')} follows when the model is trained")
        return None

    def with_photographs(now: DatasetDefinition) -> DatasetDefinition:
        return now.model_copy(update={"photographs": StageDefinition(conf=CONF, source=str(photos))})

    definition = with_photographs(load_definition(root, dataset))
    planner = Planner(root, dataset, asked.of_index, definition, reporter, remember=not dry_run)
    step = planner.plan(Need(STAGE, CONF, {"model": str(model.folder), "called": model.called}))
    _refuse_unread(planner.unused_overrides())
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
    return step.location.folder, model


def dataset_of(photos: Path) -> str:
    """Name of the folder below the data folder that holds the indexes of a folder of photographs.

    Args:
        photos: absolute, without links.
    """
    return f"photos-{_slug(photos.name)}-{_digest(str(photos))[:8]}"


def _indexes(folder: Path) -> dict[Path, Manifest]:
    """Whole indexes of a folder, with their manifests; damaged ones, which `itrpipe status` tells, do not count."""
    found = {}
    for each in filter(is_finished, folders_in(folder)):
        with suppress(DataError):
            found[each] = read_manifest(each)
    return found


def _only_model(root: Path, photos: Path, dataset: str) -> AskedModel:
    """The model that has indexed a folder.

    Raises:
        UsageError: none has, or several have.
    """
    made = sorted(_indexes(root / dataset / STAGE).values(), key=lambda manifest: manifest.finished)
    newest = {manifest.settings["called"]: manifest.settings for manifest in made}
    if len(newest) != 1:
        has = f"is indexed by {', '.join(sorted(newest))}" if newest else "is not indexed yet"
        raise UsageError(f"--photos {photos} {has}; name a model with --model")
    (settings,) = newest.values()
    return AskedModel(opened=settings["model"], called=settings["called"])


def _model(root: Path, asked: AskedModel, reporter: Reporter, *, no_deps: bool, dry_run: bool) -> OpenedModel | None:
    """The model, trained if it is missing; None where a dry run would train it."""
    if asked.opened is not None:
        _refuse_unread(asked.of_training)
        return _opened(asked.opened, asked.called)
    known = asked.known
    dataset, method = (asked.dataset, asked.method) if known is None else (known.dataset, known.method)
    planner = Planner(root, dataset, asked.of_training, reporter=reporter, remember=not dry_run)
    step = planner.plan(Need("train", str(method)))
    _refuse_unread(planner.unused_overrides())
    _refuse_unfit(step)
    name = step.location.label if known is None else known.name
    seed = train_settings(step).seed if known is not None else 0
    called = f"{dataset}.{name}" + (f".s{seed}" if seed else "")
    if step.state != "up to date" and not make_missing(
        f"train {called}", [step], dataset, reporter, no_deps=no_deps, dry_run=dry_run
    ):
        return None
    return OpenedModel(step.location.folder.resolve(), called)


def _refuse_unread(overrides: Sequence[Override]) -> None:
    refuse_unused(item for item in overrides if item.scope != EVERYWHERE)


def _refuse_unfit(step: Step) -> None:
    """Refuses a model before it is trained that could not embed photographs."""
    if not settings_of(train_settings(step).backbone).embeds:
        from itrpipe.search.photos import no_embeddings

        raise no_embeddings(step.location.label)
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
    if not folder.is_dir():
        from itrpipe.search.model import fetch

        return OpenedModel(fetch(model), called or _slug(model.replace("/", "--")))
    folder = folder.resolve()
    if not any((folder / name).is_file() for name in (MANIFEST, CONFIG)):
        raise MissingInputError(f"--model {model} holds no model: it has no {CONFIG}; name the folder of one")
    return OpenedModel(folder, called or f"{_slug(folder.name)}.{_digest(str(folder))[:6]}")


def _remove_contained(folder: Path, reporter: Reporter) -> None:
    """Removes earlier indexes of the same model all of whose photographs are in this one, too.

    What holds photographs that are gone now stays until `itrpipe gc`: they may come back.
    """
    earlier = _indexes(folder.parent)
    own = earlier.pop(folder)
    of_own = (own.label, own.sources["model"])
    alike = [each for each, it in earlier.items() if (it.label, it.sources["model"]) == of_own]
    if not alike:
        return
    from itrpipe.search.photos import Rows

    listed = set(Rows.of_index(folder).photographs)
    for each in alike:
        if listed.issuperset(Rows.of_index(each).photographs) and remove_unused(each):
            reporter.say(f"  {each.name} is replaced by {folder.name}")


def _slug(name: str) -> str:
    """A name as a part of one that folders can have."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", name).strip(".-")[:_LONGEST] or "folder"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
