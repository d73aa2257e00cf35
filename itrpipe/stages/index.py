"""`itrpipe index`: embeddings of the photographs of a folder, of which earlier indexes have most already."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.engine.run import MapExecution
from itrpipe.errors import DataError, MissingInputError
from itrpipe.retrieval.photo_folder import PhotoFolder, list_photographs
from itrpipe.stages.base import PARTS, Job, Need, Planned
from itrpipe.storage.artifact import MANIFEST, Manifest, check_artifact, folders_in, is_finished, read_manifest
from itrpipe.storage.integrity import DigestCache, folder_digests

if TYPE_CHECKING:
    from itrpipe.retrieval.photo_rows import KnownRows

SCHEMA_VERSION = 1
KEPT = "kept"
MODEL, PHOTOGRAPHS = "model", "photographs"
"""Sources: digest of the model, and of paths, sizes and times of the photographs."""
RATE = "photographs/s"


class IndexSettings(Settings):
    """How a folder is indexed.

    Attributes:
        index: what faiss searches.
        model: folder of the model.
        called: name of the model, in the name of the artifact.
        name: of a named model, empty for others.
        dataset: that the named model is of.
    """

    index: Literal["flat", "ivf"]
    model: str = ""
    called: str = ""
    name: str = ""
    dataset: str = ""


class Execution(MapExecution):
    """Settings that do not change the result beyond rounding.

    Attributes:
        device: `auto` takes CUDA when there is one.
        batch: photographs per forward pass.
        block: photographs per part.
    """

    device: Literal["auto", "cpu", "cuda"]
    batch: int = Field(ge=1, le=100_000)
    block: int = Field(ge=1, le=1_000_000)


def settings_class(values: Mapping[str, Any]) -> type[Settings]:
    """Every configuration binds to `IndexSettings`."""
    return IndexSettings


def label(conf: str, settings: IndexSettings) -> str:
    """The model's name, so that indexes of several models stand side by side; with the kind of a special index."""
    called = settings.called or conf
    return called if settings.index == "flat" else f"{called}.{settings.index}"


def needs(settings: IndexSettings, definition: DatasetDefinition) -> dict[str, Need]:
    """Nothing of this data set: the model is one of another, or of none."""
    return {}


def sources(settings: IndexSettings, definition: StageDefinition | None, cache: DigestCache) -> dict[str, str]:
    """Digests of the model and of what lies in the folder."""
    if not settings.model:
        raise MissingInputError("an index needs a model; run `itrpipe index --photos FOLDER --model NAME`")
    listed = list_photographs(_folder(definition), cache.path.parents[1])
    return {MODEL: model_digest(Path(settings.model), cache), PHOTOGRAPHS: listed.digest}


def model_digest(folder: Path, cache: DigestCache) -> str:
    """Digest of all files of a model; the manifest of a training knows it."""
    if (folder / MANIFEST).is_file():
        return read_manifest(folder).digest
    return folder_digests({MODEL: folder}, cache)[MODEL]


def fingerprinted(settings: IndexSettings) -> dict[str, Any]:
    """The settings as the fingerprint sees them: where the model lies and what it is called does not count."""
    return settings.model_dump(mode="json", include={"index"})


def check(step: Planned) -> None:
    """Refuses to begin without faiss."""
    from itrpipe.mining.faiss_engine import load_faiss

    load_faiss()


def run(job: Job) -> None:
    """Encodes the photographs that no earlier index has, and joins all."""
    from itrpipe.retrieval.photo_index import Encoding, write_index
    from itrpipe.retrieval.photo_rows import PartRows, write_rows

    folder, listed = _folder(job.definition), _listed(job)
    known = _known(job)
    every = listed.photographs
    todo = [each for each in every if each not in known]
    if len(known):
        job.reporter.say(f"  {len(every) - len(todo):,} of {len(every):,} photographs are encoded already")
    options = {"device": job.execution.device, "batch": job.execution.batch, "block": job.execution.block}
    work = Encoding(folder, todo, Path(job.settings.model), job.sources[MODEL], **options)
    failed: dict[str, str] = {}
    if todo:
        made = job.made(work)
        for path in made.paths:
            rows = PartRows(path)
            failed |= rows.failed
            known.add(rows)
        job.timings["encode"] = round(made.seconds, 3)
        job.metrics[RATE] = round(made.rows / made.seconds, 2)
    whole = [each for each in every if each.file not in failed]
    if not whole:
        file, reason = next(iter(failed.items()))
        raise DataError(f"none of the {len(every):,} photographs of {folder} can be used; the first: {file} {reason}")
    with job.reporter.task("joining", len(whole), "photographs") as task:
        width = write_rows(job.folder, whole, known, task.advance)
    if known.measured_by_product:
        write_index(job.folder, job.settings.index)
    job.failed |= listed.unusable | failed
    counts = {"photographs": len(whole), "encoded": len(todo) - len(failed), "kept": len(every) - len(todo)}
    job.metrics = {**counts, **job.metrics, "width": width, "measure": known.measure}
    if listed.outside:
        job.warn(f"{listed.outside:,} links lead out of {folder}; they were left out")


def _folder(definition: StageDefinition | None) -> Path:
    if definition is None or definition.source is None:
        raise MissingInputError("no photographs are named; run `itrpipe index --photos FOLDER --model NAME`")
    return Path(definition.source)


def _listed(job: Job) -> PhotoFolder:
    """The photographs as they were planned.

    Raises:
        DataError: the folder has changed since.
    """
    folder = _folder(job.definition)
    listed = list_photographs(folder, job.folder.parents[2])
    if listed.digest != job.sources[PHOTOGRAPHS]:
        raise DataError(f"{folder} has changed since this run began; run the same command again")
    return listed


def _known(job: Job) -> KnownRows:
    """Rows of earlier indexes of the model, and of parts of runs that were interrupted.

    The parts are moved into the work of this job, where its own new parts do not replace them.
    """
    from itrpipe.retrieval.photo_rows import IndexRows, KnownRows, kept_parts

    known = KnownRows()
    for folder, manifest in _earlier(job):
        known.add(IndexRows(folder, manifest.metrics["measure"]))
    partials = sorted(job.folder.parent.glob(f"*-{'[0-9a-f]' * 8}.partial"))
    for rows in kept_parts(partials, job.folder, (PARTS, KEPT), job.sources[MODEL], job.work / KEPT, job.warn):
        known.add(rows)
    return known


def _earlier(job: Job) -> list[tuple[Path, Manifest]]:
    """Whole indexes of the same model, with their manifests; damaged ones, which `status` tells, do not count."""
    found = []
    for folder in filter(is_finished, folders_in(job.folder.parent)):
        with contextlib.suppress(DataError):
            manifest = check_artifact(folder)
            if manifest.sources.get(MODEL) == job.sources[MODEL] and manifest.schema_version == SCHEMA_VERSION:
                found.append((folder, manifest))
    return found
