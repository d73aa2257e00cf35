"""The stage of `itrpipe extract`: visual features of every image, computed or imported, as one HDF5 file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from itrpipe.config import Settings
from itrpipe.datasets.definition import EMBEDDED, DatasetDefinition, StageDefinition, image_root
from itrpipe.encoders.folders import require_model
from itrpipe.engine.run import Device, OthersMissing, SharedExecution
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.declaration import IMPORTERS, feature_settings, passes_of
from itrpipe.stages.base import PARTS, Job, Need, Stage, Step, prepare_need, reason_with_file, source_of
from itrpipe.storage.artifact import NOTES, DigestCache
from itrpipe.storage.disk import read_stamped_json, require_space, write_stamped_json

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.features.extraction import Extraction
    from itrpipe.features.importers.base import Import

NO_SOURCE = "these features have no source; run `itrpipe extract --from PATH`"


class ExtractExecution(SharedExecution):
    """Settings that do not change the result beyond rounding.

    Attributes:
        device: `auto` takes CUDA when there is one.
        batch: images per forward pass; 0 takes what suits the extractor.
        decoders: threads of each worker that decode images; 0 takes as many as it has cores, up to 32.
        strict: stop at the first image that cannot be used.
    """

    device: Device
    batch: int = Field(ge=0, le=1_000_000)
    decoders: int = Field(ge=0, le=1_024)
    strict: bool


class ExtractStage(Stage):
    """Computes or imports the features of every image."""

    execution = ExtractExecution

    def settings_class(self, values: Mapping[str, Any]) -> type[Settings]:
        """Return the settings class of the extractor, or one that joins the classes of a combination."""
        return feature_settings(values)

    def check(self, step: Step) -> None:
        """Refuse extractors whose model is neither here nor on the hub."""
        for part in passes_of("", step.settings).values():
            for model, revision in part.from_hub().items():
                require_model(model, revision)

    def needs(self, settings: Settings, definition: DatasetDefinition) -> dict[str, Need]:
        """Ask for the images and captions.

        Raises:
            DataError: the detector of the embedded dataset was asked for photographs.
            UsageError: an importer was combined with something else.
        """
        need = prepare_need(definition)
        parts = passes_of("", settings)
        for part in parts.values():
            if part.drawings_only and need.conf != EMBEDDED:
                source = definition.prepare.source if definition.prepare else None
                raise DataError(
                    f"{source} holds photographs and the detector of `{part.kind}` knows synthetic images only; choose "
                    "another extractor with --features, or import features with `itrpipe extract --from PATH`"
                )
            if part.imported and len(parts) > 1:
                raise UsageError(f"imported features ({part.kind}) cannot be combined with others; import them alone")
        return {"prepare": need}

    def sources(self, settings: Settings, definition: StageDefinition | None, cache: DigestCache) -> dict[str, str]:
        """Return the digests of imported files, and of weights in files of this machine."""
        digests: dict[str, str] = {}
        for name, part in passes_of("", settings).items():
            prefix = f"{name} " if name else ""
            path = None
            if part.imported:
                path = source_of(definition, NO_SOURCE)
                layout = IMPORTERS.module(part.kind).layout(path)
                if layout is None or layout.lacks:
                    lacking = f" ({layout})" if layout else ""
                    raise MissingInputError(
                        f"{path} holds no features that {part.kind} reads{lacking}; see `itrpipe extract --help`"
                    )
                digests[part.kind] = cache.combined(layout.files, path, "hashing features")
            for key, file in part.further_files(path).items():
                digests[f"{prefix}{key}"] = cache.digest(file)
            for key, weights in part.local_files().items():
                digests[f"{prefix}{key}"] = cache.place(weights, "hashing weights")
        return digests

    def run(self, job: Job) -> None:
        """Write features.h5: run the extractors or the importer, one after the other, and join their parts."""
        from itrpipe.datasets.prepared import PreparedDataset
        from itrpipe.features.extraction import join_features, notes_of
        from itrpipe.features.store import FEATURES, GROUPS, FeatureFile

        prepared = PreparedDataset.open(job.inputs["prepare"].folder)
        works = _works(job, prepared)
        ids = prepared.column("image_id")
        files = prepared.column("file")
        notes = notes_of(works)
        for note in notes:
            job.warn(note)
        needed = sum(work.spec.bytes_needed(len(ids)) for work in works.values())
        require_space(job.folder, 2 * needed, "the features, once in parts and once joined,")
        _require_equal_notes(job, notes)
        parts: list[Path] = []
        others = None
        for name, work in works.items():
            try:
                made = job.made(work, f"{PARTS}/{name}")
            except OthersMissing as each:  # no extractor waits for another
                if others is not None:
                    each.paths += others.paths
                    each.rows = max(each.rows, others.rows)
                others = each
                continue
            if made.rows:
                job.metrics[f"{name} images/s"] = round(made.rows / made.seconds, 2)
            parts += made.paths
        if others is not None:
            raise others
        kinds = "+".join(part.kind for part in passes_of("", job.settings).values())
        with job.reporter.task("joining", len(ids) * len(works), "rows") as task:
            failed = join_features(job.folder / FEATURES, ids, parts, kinds, task.advance)
        for row, reason in sorted(failed.items()):
            job.failed[ids[row]] = reason_with_file(ids[row], files[row], reason)
        file = FeatureFile.open(job.folder / FEATURES)
        job.metrics["images"] = len(file)
        for name in sorted(GROUPS & file.arrays.keys()):
            job.metrics[name] = " x ".join(map(str, file.arrays[name].shape[1:]))


def _works(job: Job, prepared: PreparedDataset) -> Mapping[str, Extraction | Import]:
    """Return extractor -> its map over the images; or the configuration of an importer -> its map."""
    from itrpipe.features.extraction import ImageFiles, extractions
    from itrpipe.features.importers.base import Import, WantedImage

    parts = passes_of(job.conf, job.settings)
    execution = job.execution
    if any(part.imported for part in parts.values()):
        images = []
        for name in prepared.splits:
            split = prepared.split(name)
            offsets = split.captions_of_image
            for row, image_id in enumerate(split.image_ids.tolist()):
                texts = split.texts[offsets[row] : offsets[row + 1]]
                images.append(WantedImage(image_id, split.files[row], texts))
        source = source_of(job.definition, NO_SOURCE)
        work = Import(f"importing {job.conf}", job.settings, source, images, prepared.sizes())
        job.reporter.say(f"  {work.source.summary}")
        return {job.conf: work}
    root = image_root(job.inputs["prepare"].folder)
    files = ImageFiles(root.absolute(), prepared.column("file"), prepared.sizes())
    return extractions(
        parts,
        files,
        device=execution.device,
        batch=execution.batch,
        decoders=execution.decoders,
        strict=execution.strict,
    )


def _require_equal_notes(job: Job, notes: list[str]) -> None:
    """Keep the notes for later runs; they name the commit of a model of the hub, which must not change meanwhile.

    Raises:
        DataError: an interrupted run has noted something else.
    """
    path = job.work / NOTES
    if path.exists():
        begun = list(read_stamped_json(path, f"remove {job.folder} and run the same command again"))
        if begun != notes:
            raise DataError(
                f"{job.folder} was begun with ({'; '.join(begun)}) and would go on with ({'; '.join(notes)}); "
                "pin the model with --set revision=COMMIT, or remove that folder"
            )
    write_stamped_json(path, dict.fromkeys(notes, ""))
