"""`itrpipe extract`: visual features of every image, computed or imported, as one memory-mapped HDF5 file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.datasets.definition import EMBEDDED, DatasetDefinition, StageDefinition, load_definition
from itrpipe.engine.execution import SharedExecution
from itrpipe.engine.part import OthersMissing
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.registry import extractor_package, feature_settings, importer_module, passes_of
from itrpipe.stages.base import PARTS, Job, Need, prepare_need, reason_with_file
from itrpipe.stages.checks import check_extraction
from itrpipe.storage.artifact import NOTES
from itrpipe.storage.disk import read_stamped_json, require_space, write_stamped_json
from itrpipe.storage.sources import DigestCache

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.extraction import ImageFiles
    from itrpipe.features.importers.base import FeatureSource
    from itrpipe.features.importers.matching import WantedImage
    from itrpipe.features.store import FeatureSpec

SCHEMA_VERSION = 1
JOURNAL = "rows_done.json"
IMPORTED_BLOCK = 64
settings_class, check = feature_settings, check_extraction


class Execution(SharedExecution):
    """Settings that do not change the result beyond rounding.

    Attributes:
        device: `auto` takes CUDA when there is one.
        batch: images per forward pass, or per block of an import; 0 takes what suits the extractor.
        decoders: threads of each worker that decode images.
        strict: stop at the first image that cannot be used.
    """

    device: Literal["auto", "cpu", "cuda"]
    batch: int = Field(ge=0, le=1_000_000)
    decoders: int = Field(ge=1, le=1_024)
    strict: bool


def label(conf: str, settings: Settings) -> str:
    """The name under which these features are known."""
    return conf


def needs(settings: Settings, definition: DatasetDefinition) -> dict[str, Need]:
    """The images and captions.

    Raises:
        DataError: the detector of the embedded dataset was asked for photographs.
        UsageError: an importer was combined with something else.
    """
    need = prepare_need(definition)
    parts = passes_of("", settings)
    for each in parts.values():
        if each.drawings_only and need.conf != EMBEDDED:
            source = definition.prepare.source if definition.prepare else None
            raise DataError(
                f"{source} holds photographs and the detector of `{each.kind}` knows drawings only; choose another "
                "extractor with --features, or import features with `itrpipe extract --from PATH`"
            )
        if each.imported and len(parts) > 1:
            raise UsageError(f"imported features ({each.kind}) cannot be combined with others; import them alone")
    return {"prepare": need}


def sources(settings: Settings, definition: StageDefinition | None, cache: DigestCache) -> dict[str, str]:
    """Digests of imported files, and of weights that lie in files of this machine."""
    digests: dict[str, str] = {}
    for name, part in passes_of("", settings).items():
        prefix = f"{name} " if name else ""
        for key, file in part.own_files().items():
            digests[f"{prefix}{key}"] = cache.digest(file)
        if part.imported:
            path = _source(definition)
            files = importer_module(part.kind).files(path)
            if not files:
                raise MissingInputError(
                    f"{path} holds no features that {part.kind} reads; see `itrpipe extract --help`"
                )
            digests[part.kind] = cache.combined(files, path, "hashing features")
            digests |= {key: cache.digest(file) for key, file in part.beside(path).items()}
        for key, weights in part.local_files().items():
            digests[f"{prefix}{key}"] = _digest(weights, cache)
    return digests


def fingerprinted(settings: Settings) -> dict[str, Any]:
    """The settings as the fingerprint sees them. Of a plug-in, name and version count."""
    parts = passes_of("", settings)
    values = {name: part.fingerprinted() | _brought(part.kind) for name, part in parts.items()}
    return values.get("", values)


def _brought(kind: str) -> dict[str, str]:
    package = extractor_package(kind)
    return {"package": package} if package else {}


def run(job: Job) -> None:
    """Writes features.h5."""
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.store import FEATURES, FeatureFile

    prepared = PreparedDataset.open(job.inputs["prepare"].folder)
    parts = passes_of(job.conf, job.settings)
    if any(part.imported for part in parts.values()):
        _import(job, prepared)
    else:
        _extract(job, prepared, parts)
    file = FeatureFile.open(job.folder / FEATURES)
    job.metrics["images"] = len(file)
    for name in sorted(file.spec.groups()):
        job.metrics[name] = " x ".join(map(str, file.spec.shapes()[name]))


def _extract(job: Job, prepared: PreparedDataset, parts: Mapping[str, Any]) -> None:
    """Runs the extractors one after the other and joins what they found."""
    from itrpipe.features.computed import extraction_passes, notes_of
    from itrpipe.features.passes import join_features, merge
    from itrpipe.features.store import FEATURES

    execution, images = job.execution, _image_files(job, prepared)
    options = {"batch": execution.batch, "decoders": execution.decoders, "strict": execution.strict}
    works = extraction_passes(parts, images, device=execution.device, **options)
    notes = notes_of(works)
    for note in notes:
        job.warn(note)
    ids, every = prepared.image_ids(), merge({name: each.spec for name, each in works.items()})
    require_space(job.folder, 2 * every.bytes_needed(len(ids)), "the features, once in parts and once joined,")
    _require_equal_notes(job, notes)
    passes: dict[str, tuple[FeatureSpec, list[Path]]] = {}
    others: list[OthersMissing] = []
    for name, (work, spec) in works.items():
        try:
            made = job.made(work, f"{PARTS}/{name}")
        except OthersMissing as each:  # no extractor waits for another
            others.append(each)
            continue
        if made.rows:
            job.timings[name] = round(made.seconds, 3)
            job.metrics[f"{name} images/s"] = round(made.rows / made.seconds, 2)
        passes[name] = (spec, made.paths)
    if others:
        paths = [path for each in others for path in each.paths]
        raise OthersMissing(others[0].share, max(each.rows for each in others), "images", paths, more=False)
    with job.reporter.task("joining", len(ids) * len(works), "rows") as task:
        failed = join_features(job.folder / FEATURES, ids, passes, _kinds(job), task.advance)
    job.failed |= {
        ids[row]: reason_with_file(ids[row], images.files[row], reason) for row, reason in sorted(failed.items())
    }


def _require_equal_notes(job: Job, notes: list[str]) -> None:
    """Keeps the notes for later runs; they name the commit of a model of the hub, which must not change meanwhile."""
    path = job.work / NOTES
    remedy = f"remove {job.folder} and run the same command again"
    begun = list(read_stamped_json(path, remedy)) if path.exists() else notes
    if begun != notes:
        raise DataError(
            f"{job.folder} was begun with ({'; '.join(begun)}) and would go on with ({'; '.join(notes)}); "
            "pin the model with --set revision=COMMIT, or remove that folder"
        )
    write_stamped_json(path, dict.fromkeys(notes, ""))


def _import(job: Job, prepared: PreparedDataset) -> None:
    """Copies the features of every image out of published files."""
    import numpy as np

    from itrpipe.features.imported import ImportedFile
    from itrpipe.features.importers.matching import match
    from itrpipe.features.store import FEATURES, FeatureWriter

    if job.execution.part:
        raise UsageError("imported features are copied in one go; leave --part out")
    path = job.folder / FEATURES
    source: FeatureSource = importer_module(job.settings.kind).open_source(_source(job.definition), job.settings)
    job.reporter.say(f"  {source.summary}")
    wanted, sizes = _wanted_images(prepared), prepared.sizes()
    found = match(source, wanted)
    if found.by_captions:
        job.warn(f"{found.by_captions:,} of {len(wanted):,} images were found by their captions, not by an id")
    target = ImportedFile(path, job.work / JOURNAL, prepared.image_ids())
    target.create(source.spec, job.settings.kind)
    journal = target.checked_journal(job.reporter, job.warn)
    # Reading a file of 30 GB from its beginning to its end is what disks are fast at.
    order = np.argsort(found.entries, kind="stable")
    todo, started = order[~journal.done[order]], time.monotonic()
    with (
        FeatureWriter(path) as writer,
        job.reporter.task("importing", len(wanted), "images", len(wanted) - len(todo)) as task,
    ):
        block = job.execution.batch or IMPORTED_BLOCK
        for start in range(0, len(todo), block):
            rows = todo[start : start + block]
            arrays = source.read(found.entries[rows], sizes[rows])
            if "count" in arrays and not arrays["count"].all():
                image = wanted[int(rows[int(np.argmin(arrays["count"]))])].image_id
                raise DataError(f"{source.path}: image '{image}' has no region (its count is 0); extract it again")
            sums = writer.write(rows, {name: arrays[name] for name in source.spec.shapes()})
            journal.record(rows, sums, writer)
            task.advance(len(rows))
        journal.save(writer)
    if len(todo):
        seconds = time.monotonic() - started
        job.timings["import"] = round(seconds, 3)
        job.metrics["import images/s"] = round(len(todo) / seconds, 2)


def _wanted_images(prepared: PreparedDataset) -> list[WantedImage]:
    from itrpipe.features.importers.matching import WantedImage

    wanted = []
    for name in prepared.splits:
        split = prepared.split(name)
        offsets = split.captions_of_image
        wanted += [
            WantedImage(image_id, file, split.texts[offsets[row] : offsets[row + 1]])
            for row, (image_id, file) in enumerate(zip(split.image_ids.tolist(), split.files, strict=True))
        ]
    return wanted


def _image_files(job: Job, prepared: PreparedDataset) -> ImageFiles:
    from itrpipe.features.extraction import ImageFiles
    from itrpipe.stages.prepare import image_root

    prepare = job.inputs["prepare"]
    # data/<dataset>/<stage>/<name>: the definition lies in the folder of the dataset.
    definition = load_definition(prepare.folder.parents[2], job.dataset)
    root = image_root(prepare.manifest.settings, prepare.folder, definition)
    return ImageFiles(root.absolute(), prepared.files(), prepared.sizes(), drawn=root == prepare.folder)


def _kinds(job: Job) -> str:
    """Name of the extractors, as the feature file keeps it."""
    return "+".join(part.kind for part in passes_of("", job.settings).values())


def _source(definition: StageDefinition | None) -> Path:
    if definition is None or definition.source is None:
        raise MissingInputError("these features have no source; run `itrpipe extract --from PATH`")
    return Path(definition.source)


def _digest(path: Path, cache: DigestCache) -> str:
    if path.is_dir():
        return cache.combined([file for file in path.iterdir() if file.is_file()], path, "hashing weights")
    return cache.digest(path)
