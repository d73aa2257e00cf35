"""`itrpipe extract`: visual features of every image, computed or imported, as one memory-mapped HDF5 file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.datasets.definition import EMBEDDED, DatasetDefinition, StageDefinition
from itrpipe.disk import read_json, write_json
from itrpipe.errors import DataError, MissingInputError
from itrpipe.sources import DigestCache
from itrpipe.stages.base import Job, Need, prepare_need

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.store import FeatureSpec, FeatureWriter

SCHEMA_VERSION = 1
DONE_FILE = "rows_done.json"
FLUSH_SECONDS = 5.0


class ScenesSettings(Settings):
    """The region detector of the embedded dataset; its weights are in the package."""

    kind: Literal["scenes"]


class PrecompSettings(Settings):
    """Import of a `*_precomp` folder as SCAN, VSRN and AOQ publish them."""

    kind: Literal["precomp"]


class Execution(Settings):
    """Settings that do not change the result beyond rounding.

    Attributes:
        device: `auto` takes CUDA when there is one.
        batch: images per forward pass or block.
        workers: decoding threads.
    """

    device: Literal["auto", "cpu", "cuda"]
    batch: int = Field(ge=1)
    workers: int = Field(ge=1)


_SETTINGS: dict[str, type[Settings]] = {"scenes": ScenesSettings, "precomp": PrecompSettings}


def settings_class(values: Mapping[str, Any]) -> type[Settings]:
    """The settings of the configuration's kind."""
    return _SETTINGS[values["kind"]]


def label(conf: str, settings: Settings) -> str:
    """The configuration's name."""
    return conf


def needs(settings: Settings, definition: DatasetDefinition) -> dict[str, Need]:
    """The images and captions.

    Raises:
        DataError: the detector of the embedded dataset was asked for photographs.
    """
    need = prepare_need(definition)
    if isinstance(settings, ScenesSettings) and need.conf != EMBEDDED:
        source = definition.prepare.source if definition.prepare else None
        raise DataError(
            f"{source} holds photographs and the detector of `scenes` knows drawings only; "
            "import features with `itrpipe extract --from FOLDER`"
        )
    return {"prepare": need}


def sources(settings: Settings, definition: StageDefinition | None, cache: DigestCache) -> dict[str, str]:
    """Digest of the imported files or of the detector's weights."""
    if isinstance(settings, ScenesSettings):
        from itrpipe.features.weights import SCENES_DETECTOR

        return {"weights": cache.digest(SCENES_DETECTOR)}
    folder = _source_folder(definition)
    files = sorted([*folder.glob("*.npy"), *folder.glob("*.txt")])
    if not files:
        raise MissingInputError(f"{folder} holds no features; name a folder with train_ims.npy and so on")
    return {"precomp": cache.combined(files, folder, "hashing features")}


def run(job: Job) -> None:
    """Writes features.h5."""
    _RUN[job.settings.kind](job)


def _run_scenes(job: Job) -> None:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features import scenes
    from itrpipe.features.extraction import extract_files
    from itrpipe.stages.prepare import image_root
    from itrpipe.stages.train import resolve_device

    prepared = PreparedDataset.open(job.inputs["prepare"].folder)
    manifest = job.inputs["prepare"].manifest
    root = image_root(manifest.settings, job.inputs["prepare"].folder, DatasetDefinition())
    files = [root / file for name in prepared.splits for file in prepared.split(name).files]
    extractor = scenes.build(resolve_device(job.execution.device))

    def work(writer: FeatureWriter, start: int, on_written: Callable[[int], None]) -> None:
        extract_files(
            files,
            extractor,
            writer,
            start=start,
            batch=job.execution.batch,
            workers=job.execution.workers,
            on_written=on_written,
        )

    _write_rows(job, prepared, extractor.spec, work)


def _run_precomp(job: Job) -> None:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.precomp import WantedImage, iterate_blocks, match_images, read_precomp

    prepared = PreparedDataset.open(job.inputs["prepare"].folder)
    folder = read_precomp(_source_folder(job.definition))
    wanted = []
    for name in prepared.splits:
        split = prepared.split(name)
        offsets = split.captions_of_image
        wanted += [
            WantedImage(image_id, file, split.texts[offsets[row] : offsets[row + 1]])
            for row, (image_id, file) in enumerate(zip(split.image_ids.tolist(), split.files, strict=True))
        ]
    match = match_images(folder, wanted)
    if match.by_captions:
        job.warn(f"{match.by_captions:,} of {len(wanted):,} images were found by their captions, not by an id")

    def work(writer: FeatureWriter, start: int, on_written: Callable[[int], None]) -> None:
        for first, arrays in iterate_blocks(folder, match, start, job.execution.batch):
            writer.write(first, arrays)
            on_written(first + len(arrays["count"]))

    _write_rows(job, prepared, folder.spec, work)


_RUN = {"scenes": _run_scenes, "precomp": _run_precomp}


def _write_rows(
    job: Job,
    prepared: PreparedDataset,
    spec: FeatureSpec,
    work: Callable[[FeatureWriter, int, Callable[[int], None]], None],
) -> None:
    """Creates or reopens the feature file and lets `work` fill it from the first missing row on."""
    from itrpipe.features.store import FEATURES, FeatureWriter, create_features

    ids = [image_id for name in prepared.splits for image_id in prepared.split(name).image_ids.tolist()]
    path, journal = job.folder / FEATURES, job.work / DONE_FILE
    if not path.exists():
        create_features(path, ids, spec, job.conf)
        journal.unlink(missing_ok=True)
    done = read_json(journal) if journal.exists() else 0
    started, flushed = time.monotonic(), time.monotonic()
    with FeatureWriter(path) as writer, job.reporter.task("extracting", len(ids), "images", done) as task:
        seen = done

        def on_written(rows: int) -> None:
            nonlocal seen, flushed
            task.advance(rows - seen)
            seen = rows
            if time.monotonic() - flushed >= FLUSH_SECONDS:
                writer.flush()
                write_json(journal, rows)
                flushed = time.monotonic()

        work(writer, done, on_written)
        writer.flush()
    seconds = time.monotonic() - started
    job.metrics |= {"images": len(ids), "regions": spec.regions, "region_dim": spec.region_dim}
    if len(ids) > done:
        job.metrics["images_per_second"] = round((len(ids) - done) / seconds, 1)


def _source_folder(definition: StageDefinition | None) -> Path:
    if definition is None or definition.source is None:
        raise MissingInputError("these features have no source; run `itrpipe extract --from FOLDER`")
    return Path(definition.source)
