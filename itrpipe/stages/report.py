"""The stage of `itrpipe report`: one self-contained HTML page over evaluated runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.config import Settings, bind, declared_stages, load_declaration, resolve
from itrpipe.datasets.definition import StageDefinition, image_root
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.models.declaration import backbone_names
from itrpipe.progress import Reporter
from itrpipe.report.published import ReportSettings, compare_published, expected_json
from itrpipe.stages.base import Job, Stage, load_stage
from itrpipe.storage.artifact import SUMMARY, DigestCache, Manifest, open_artifact
from itrpipe.storage.disk import write_json, write_text

if TYPE_CHECKING:
    from itrpipe.report.chain import ChainArtifact
    from itrpipe.report.names import Declared

PAGE = "index.html"
MARKDOWN = "summary.md"
RESULTS = "results.json"
EXPECTED = "expected.json"
COMPARED = ("prepare", "train", "embeddings", "mine_negatives", "synthesize")
"""Stages whose settings are compared with their declarations."""


class ReportStage(Stage):
    """Writes the page."""

    schema_version = 22
    has_versions = False  # a page over other models is another page
    settings = ReportSettings
    execution = Settings  # every setting changes the page

    def sources(self, settings: Settings, definition: StageDefinition | None, cache: DigestCache) -> dict[str, str]:
        """Return the digests of the declarations that settings are compared with, also of those of plug-ins."""
        files = [declared_stages()[stage] for stage in COMPARED]
        digests = {"declarations": cache.combined(files, files[0].parent, "hashing declarations")}
        of_plugins = set()
        for stage in COMPARED:
            of_plugins.update(load_declaration(stage).plugin_files.values())
        for file in sorted(of_plugins):
            folder = file.parent
            digests[f"declarations of {folder.parent.name}.{folder.name}"] = cache.digest(file)
        return digests

    def run(self, job: Job) -> None:
        """Write the page, its results as plain text and as Markdown, and its numbers as JSON."""
        from itrpipe.report.contents import report_of
        from itrpipe.report.page import html, markdown, results, text

        settings = job.settings
        report = report_of(
            [(each.folder, each.manifest) for each in job.inputs.values()],
            settings,
            _declared(job),
            lambda prepare: _photographs(job, prepare),
            job.warn,
        )
        write_text(job.folder / PAGE, html(report))
        write_text(job.folder / SUMMARY, text(report))
        write_text(job.folder / MARKDOWN, markdown(report))
        write_json(job.folder / RESULTS, results(report))
        if settings.published:
            evaluations = {}
            for evaluation in job.inputs.values():
                evaluations[evaluation.manifest.label] = evaluation.folder
                evaluations[evaluation.folder.name] = evaluation.folder
            tolerance = settings.tolerance
            compared = compare_published(settings.published, evaluations, tolerance, tiny=settings.tiny)
            write_json(job.folder / EXPECTED, expected_json(compared, tolerance, tiny=settings.tiny))
        job.metrics |= {"runs": len(job.inputs), "kilobytes": round((job.folder / PAGE).stat().st_size / 1000)}

    def show(self, folder: Path, reporter: Reporter) -> None:
        """Print the tables of a report and the path of its page."""
        open_artifact(folder)
        reporter.say_lines((folder / SUMMARY).read_text(encoding="utf-8"))
        reporter.say(f"report: {folder / PAGE}")


def _declared(job: Job) -> Declared:
    """Return a function of the declared settings of an artifact; it warns where they are not valid alone."""
    known: dict[str, Mapping[str, Any]] = {}

    def declared(manifest: Manifest) -> Mapping[str, Any]:
        if manifest.fingerprint not in known:
            known[manifest.fingerprint] = {}
            try:
                known[manifest.fingerprint] = _declared_settings(manifest)
            except UsageError as error:
                job.warn(f"{manifest.label} is not compared with what is declared: {error}")
        return known[manifest.fingerprint]

    return declared


def _declared_settings(manifest: Manifest) -> dict[str, Any]:
    """Return the settings that are declared for the configuration of an artifact on its backbone and dataset.

    Returns:
        The settings; empty where there is no such configuration any more.

    Raises:
        UsageError: a value has to be given beside the declared ones.
    """
    declaration = load_declaration(manifest.stage)
    if manifest.conf not in declaration.confs:
        return {}
    settings = manifest.settings
    named = {key: settings[key] for key in ("backbone", "features", "seed") if key in settings}
    backbone = settings.get("backbone")
    resolved = resolve(
        declaration, manifest.conf, backbones=backbone_names(), backbone=backbone, dataset=manifest.dataset
    )
    resolved.merge(named, manifest.label)
    settings_class = load_stage(manifest.stage).settings_class(resolved.values)
    settings = bind(settings_class, resolved, f"{manifest.stage} {manifest.conf}")
    return settings.model_dump(mode="json")


def _photographs(job: Job, prepare: ChainArtifact) -> Path | None:
    """Return the folder of a dataset's photographs; None, with a warning, when its source cannot be read any more."""
    try:
        return image_root(prepare.folder)
    except (MissingInputError, DataError) as error:
        job.warn(f"the page shows no images: {error}")
        return None
