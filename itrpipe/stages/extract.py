"""`itrpipe extract`: visual features of every image, computed or imported, as one memory-mapped HDF5 file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, create_model, field_validator

from itrpipe.artifacts.disk import make_folder, read_stamped_json, write_stamped_json
from itrpipe.artifacts.sources import DigestCache
from itrpipe.config import Settings
from itrpipe.datasets.definition import EMBEDDED, DatasetDefinition, StageDefinition, load_definition
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.declaration import FeatureSettings
from itrpipe.features.registry import extractor_module, extractor_package, extractors, importer_module, importers
from itrpipe.features.shard import Shard, parse_shard
from itrpipe.stages.base import Job, Need, prepare_need, reason_with_file

if TYPE_CHECKING:
    import numpy as np
    import torch

    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.extraction import ImageFiles
    from itrpipe.features.extractors.base import Extractor
    from itrpipe.features.importers.base import FeatureSource
    from itrpipe.features.importers.matching import WantedImage
    from itrpipe.features.journal import RowJournal
    from itrpipe.features.passes import Target
    from itrpipe.features.store import FeatureSpec

SCHEMA_VERSION = 1
JOURNAL, FAILED, NOTES, FINISHED = "rows_done.json", "failed.json", "notes.json", "finished.json"
IMPORTED_BLOCK = 64


class Execution(Settings):
    """Settings that do not change the result beyond rounding.

    Attributes:
        device: `auto` takes CUDA when there is one.
        batch: images per forward pass or block; 0 takes what suits the extractor.
        workers: decoding processes; 0 decodes in the main one.
        shard: `i/n` extracts one of n parts only; empty for all.
        strict: stop at the first image that cannot be used.
    """

    device: Literal["auto", "cpu", "cuda"]
    batch: int = Field(ge=0, le=1_000_000)
    workers: int = Field(ge=0, le=1_024)
    shard: str
    strict: bool

    @field_validator("shard")
    @classmethod
    def _is_shard(cls, value: str) -> str:
        return str(parse_shard(value)) if value else ""

    @property
    def part(self) -> str:
        """Name of the part of the artifact that this process makes."""
        return parse_shard(self.shard).name if self.shard else ""


def settings_class(values: Mapping[str, Any]) -> type[Settings]:
    """The settings of the configuration's kind; for several, `a+b`, the settings of each under its name.

    Raises:
        UsageError: there is no such kind.
    """
    if "kind" in values:
        return _settings_of(values["kind"])
    parts = {name: table for name, table in values.items() if isinstance(table, Mapping) and "kind" in table}
    fields: dict[str, Any] = {name: (_settings_of(table["kind"]), ...) for name, table in parts.items()}
    return create_model("Combined", __base__=Settings, **fields)


def _settings_of(kind: Any) -> type[Settings]:
    known = extractors() | importers()
    found = known.get(str(kind).replace("_", "-"))
    if found is None:
        raise UsageError(f"extract: kind = {kind!r} is none of {', '.join(known)}; leave it out")
    return found


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


def passes_of(name: str, settings: Settings) -> dict[str, FeatureSettings]:
    """The settings of every extractor of a configuration; a single one goes by `name`."""
    if isinstance(settings, FeatureSettings):
        return {name: settings}
    return {part: getattr(settings, part) for part in type(settings).model_fields}


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
    if job.unfinished:
        return
    file = FeatureFile.open(job.folder / FEATURES)
    job.metrics["images"] = len(file)
    for name in sorted(file.spec.groups()):
        job.metrics[name] = " x ".join(map(str, file.spec.shapes()[name]))


@dataclass(frozen=True)
class _Extraction:
    """What the three ways to extract have in common.

    Attributes:
        images: of all splits, in the order of the rows.
        ids: their ids.
        extractors: name -> extractor, one pass over the images each.
        specs: name -> what it contributes to the file.
        device: where they compute.
    """

    images: ImageFiles
    ids: list[str]
    extractors: dict[str, Extractor]
    specs: dict[str, FeatureSpec]
    device: torch.device

    def batches(self, name: str, batch: int) -> list[np.ndarray]:
        """The rows of each batch of one extractor over the whole dataset."""
        from itrpipe.features.extraction import plan_batches

        extractor = self.extractors[name]
        return plan_batches(self.images.sizes, extractor.group, batch or extractor.batch)


def _extract(job: Job, prepared: PreparedDataset, parts: Mapping[str, Any]) -> None:
    """Runs the extractors one after the other, or one shard of their work, or joins shards."""
    from itrpipe.features.passes import check_in_place, find_shards
    from itrpipe.features.store import FEATURES

    if (job.folder / FEATURES).exists():  # killed between the last row and the manifest
        check_in_place(job.folder / FEATURES, job.work / FINISHED)
        job.failed |= _noted(job, FAILED)
        for note in _noted(job, NOTES):
            job.warn(note)
        return
    shards = [] if job.execution.shard else find_shards(job.work)
    work = _build(job, prepared, parts)
    if job.execution.shard:
        _extract_shard(job, work)
    elif shards:
        _join(job, work, shards)
    else:
        _extract_whole(job, work)


def _build(job: Job, prepared: PreparedDataset, parts: Mapping[str, Any]) -> _Extraction:
    import torch

    from itrpipe.features.passes import divide
    from itrpipe.training.device import resolve_device

    device = torch.device(resolve_device(job.execution.device))
    extractors = {name: extractor_module(part.kind).build(part, device) for name, part in parts.items()}
    notes = [f"{name}: {note}" for name, extractor in extractors.items() for note in extractor.notes]
    for note in notes:
        job.warn(note)
    _require_equal_notes(job, notes)
    specs = divide({name: extractor.spec for name, extractor in extractors.items()})
    return _Extraction(_image_files(job, prepared), prepared.image_ids(), extractors, specs, device)


def _require_equal_notes(job: Job, notes: list[str]) -> None:
    """Keeps the notes for later runs; they name the commit of a model of the hub, which must not change meanwhile."""
    path = job.work / NOTES
    begun = list(_noted(job, NOTES)) if path.exists() else notes
    if begun != notes:
        raise DataError(
            f"{job.folder} was begun with ({'; '.join(begun)}) and would go on with ({'; '.join(notes)}); "
            "pin the model with --set revision=COMMIT, or remove that folder"
        )
    write_stamped_json(path, dict.fromkeys(notes, ""))


def _noted(job: Job, name: str) -> dict[str, str]:
    return read_stamped_json(job.work / name, f"remove {job.folder} and run the same command again")


def _extract_whole(job: Job, work: _Extraction) -> None:
    import numpy as np

    from itrpipe.features.passes import Target, merge
    from itrpipe.features.store import FEATURES

    path = job.work / FEATURES
    failed: dict[int, str] = {}
    for name in work.extractors:
        target = Target(path, job.work / f"{name}.json", np.arange(len(work.ids)))
        target.create(work.ids, merge(work.specs), _kinds(job))
        failed |= _run_pass(job, work, name, target, work.batches(name, job.execution.batch)).failed
    _finish(job, work, failed)


def _extract_shard(job: Job, work: _Extraction) -> None:
    from itrpipe.features.passes import SHARDS, shard_target

    shard, images = parse_shard(job.execution.shard), 0
    # Also where there are fewer batches than shards, so that joining finds every shard.
    make_folder(job.work / SHARDS / shard.name)
    for name, spec in work.specs.items():
        target, batches = shard_target(job.work, shard, name, work.batches(name, job.execution.batch))
        if len(target.rows):
            target.create(work.ids, spec, _kinds(job))
            _run_pass(job, work, name, target, batches)
            images = max(images, len(target.rows))
    rest = f"when all {shard.count} are, the same command without --shard joins them"
    job.unfinished = f"shard {shard} is done ({images:,} images); {rest}"


def _join(job: Job, work: _Extraction, shards: list[Shard]) -> None:
    import numpy as np

    from itrpipe.features.passes import Target, merge, open_shards
    from itrpipe.features.store import FEATURES, FeatureWriter

    # All of them are looked at before the whole file takes its place on the disk.
    finished = {
        name: open_shards(job.work, shards, name, work.ids, spec, work.batches(name, job.execution.batch))
        for name, spec in work.specs.items()
    }
    target = Target(job.work / FEATURES, job.work / JOURNAL, np.arange(len(work.ids)))
    target.create(work.ids, merge(work.specs), _kinds(job))
    failed: dict[int, str] = {}
    with FeatureWriter(target.path) as writer:
        for name, parts in finished.items():
            with job.reporter.task(f"joining {name}", len(work.ids), "images") as task:
                for part in parts:
                    part.copy(writer, task.advance)
                    failed |= part.failed
    _finish(job, work, failed)


def _run_pass(job: Job, work: _Extraction, name: str, target: Target, batches: list[np.ndarray]) -> RowJournal:
    """Runs one extractor over the images of a target that are not yet done."""
    from itrpipe.features.extraction import extract_images
    from itrpipe.features.store import FeatureWriter

    datasets = frozenset(work.specs[name].shapes())
    journal = target.checked_journal(datasets, job.reporter, job.warn)
    done, started = int(journal.done.sum()), time.monotonic()
    with (
        FeatureWriter(target.path) as writer,
        job.reporter.task(f"extracting {name}", len(target.rows), "images", done) as task,
    ):
        extract_images(
            work.images,
            work.extractors[name],
            batches,
            writer,
            journal,
            slots=target.slots(len(work.ids)),
            datasets=datasets,
            workers=job.execution.workers,
            device=work.device,
            strict=job.execution.strict,
            on_done=task.advance,
        )
    _record_rate(job, name, len(target.rows) - done, time.monotonic() - started)
    return journal


def _record_rate(job: Job, name: str, images: int, seconds: float) -> None:
    if images:
        job.timings[name] = round(seconds, 3)
        job.metrics[f"{name} images/s"] = round(images / seconds, 2)


def _finish(job: Job, work: _Extraction, failed: Mapping[int, str]) -> None:
    """Puts the file in its place and remembers the images that are not in it."""
    from itrpipe.features.passes import put_in_place, without_failed
    from itrpipe.features.store import FEATURES

    job.failed |= {
        work.ids[row]: reason_with_file(work.ids[row], work.images.files[row], reason)
        for row, reason in sorted(failed.items())
    }
    write_stamped_json(job.work / FAILED, job.failed)
    whole = without_failed(job.work / FEATURES, failed)
    put_in_place(whole, job.folder / FEATURES, job.work / FINISHED)
    (job.work / FEATURES).unlink(missing_ok=True)


def _import(job: Job, prepared: PreparedDataset) -> None:
    """Copies the features of every image out of published files."""
    import numpy as np

    from itrpipe.features.importers.matching import match
    from itrpipe.features.passes import Target
    from itrpipe.features.store import FEATURES, FeatureWriter

    if job.execution.shard:
        raise UsageError("imported features are copied in one go; leave --shard out")
    path = job.folder / FEATURES
    source: FeatureSource = importer_module(job.settings.kind).open_source(_source(job.definition), job.settings)
    job.reporter.say(f"  {source.summary}")
    wanted, sizes = _wanted_images(prepared), prepared.sizes()
    found = match(source, wanted)
    if found.by_captions:
        job.warn(f"{found.by_captions:,} of {len(wanted):,} images were found by their captions, not by an id")
    target = Target(path, job.work / JOURNAL, np.arange(len(wanted)))
    target.create(prepared.image_ids(), source.spec, job.settings.kind)
    journal = target.checked_journal(frozenset(source.spec.shapes()), job.reporter, job.warn)
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
    _record_rate(job, "import", len(todo), time.monotonic() - started)


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
    return ImageFiles(root, prepared.files(), prepared.sizes(), drawn=root == prepare.folder)


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
