"""What the commands of `itrpipe.cli` do, as functions."""

from __future__ import annotations

from pathlib import Path

from itrpipe.artifacts import PARTIAL, check_artifact, list_artifacts
from itrpipe.config import did_you_mean, leaves, load_declaration
from itrpipe.datasets.definition import (
    EMBEDDED,
    DatasetDefinition,
    StageDefinition,
    check_name,
    load_definition,
    save_definition,
)
from itrpipe.errors import MissingInputError, UsageError
from itrpipe.pipeline import run
from itrpipe.planning import Override, Planner, pinned_step
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need, load_stage, prepare_need
from itrpipe.stages.report import PAGE, SUMMARY

IMPORTED = "precomp"


def run_stage(
    root: Path,
    dataset: str,
    stage: str,
    overrides: list[Override],
    *,
    conf: str | None = None,
    definition: DatasetDefinition | None = None,
    dry_run: bool = False,
    no_deps: bool = False,
) -> Path:
    """Plans one stage and runs what is missing.

    Args:
        root: the data folder.
        dataset: dataset name.
        stage: stage name.
        overrides: values given by the user.
        conf: configuration; by default the only one of the stage, for `prepare` the dataset's own.
        definition: what is new about the dataset; remembered once the stage has succeeded with it.
        dry_run: print the plan only.
        no_deps: fail when something upstream is missing.

    Returns:
        The artifact's folder.
    """
    reporter = Reporter()
    planner = Planner(root, check_name(dataset), overrides, definition or DatasetDefinition(), reporter, not dry_run)
    need = Need(stage, conf or default_conf(planner.definition, dataset, stage))
    reporter.say(f"{dataset}: {stage.replace('_', '-')} {need.conf}", style="bold")
    step = planner.plan(need)
    planner.refuse_unused_overrides()
    (folder,) = run([step], reporter, dry_run=dry_run, with_upstream=not no_deps)
    if definition is not None and not dry_run:
        save_definition(root, dataset, definition)
    if not dry_run:
        reporter.say(str(folder))
    return folder


def default_conf(definition: DatasetDefinition, dataset: str, stage: str) -> str:
    """The configuration a stage runs with when none is named."""
    if stage == "prepare":
        return prepare_need(definition).conf
    return next(iter(load_declaration(stage).confs))


def define_dataset(
    root: Path, dataset: str, source: Path | None, overrides: list[Override]
) -> tuple[DatasetDefinition, list[Override]]:
    """Defines a dataset as `itrpipe prepare` was told; what it is not told stays as it was, a new source starts anew.

    Returns:
        The definition, and the overrides that concern execution only and do not belong to it.

    Raises:
        MissingInputError: a dataset that is neither known nor embedded has no source, or the source is not there.
        UsageError: the embedded dataset was given a source, or an override is of another stage.
    """
    known = load_definition(root, dataset)
    if source is None and known.prepare is None:
        raise MissingInputError(f"dataset {dataset!r} is not known yet; give --source with its caption file or folder")
    fields = load_stage("prepare").Execution.model_fields
    execution = [item for item in overrides if item.key.removeprefix("execution.") in fields]
    overrides = [item for item in overrides if item not in execution]
    if source is None and not overrides:
        return known, execution
    if source is not None and dataset == EMBEDDED:
        raise UsageError("the dataset 'scenes' is generated and takes no --source; choose another --dataset name")
    if source is not None and not source.exists():
        raise MissingInputError(f"--source {source} does not exist")
    conf = EMBEDDED if dataset == EMBEDDED else "files"
    foreign = [item for item in overrides if item.scope not in (None, "prepare", conf)]
    if foreign:
        raise UsageError(f"{foreign[0].scope}.{foreign[0].key}: prepare reads settings of its own only; leave it out")
    place = str(source.resolve()) if source else (known.prepare.source if known.prepare else None)
    earlier = known.prepare.settings if known.prepare and known.prepare.source == place else {}
    settings = {**earlier, **{item.key: item.value for item in overrides}}
    prepare = StageDefinition(conf=conf, source=place, settings=settings)
    return known.model_copy(update={"prepare": prepare}), execution


def define_features(
    root: Path, dataset: str, features: str | None, source: Path | None
) -> tuple[DatasetDefinition, str]:
    """Defines where a dataset's features come from.

    Returns:
        The definition, and the configuration of `extract` to run.

    Raises:
        MissingInputError: the source is not there, or no features are known and none were named.
        UsageError: an extractor and a source that exclude each other.
    """
    definition = load_definition(root, dataset)
    if source is None:
        conf = features or definition.default_features(dataset)
        if conf not in definition.features:
            if conf == IMPORTED:
                raise MissingInputError("--features precomp needs --from FOLDER with the *_ims.npy files")
            known = load_declaration("extract").confs
            if conf not in known:
                hint = did_you_mean(conf, known) or f"; known: {', '.join(known)}"
                raise UsageError(f"no extractor {conf!r}{hint}")
            definition = _with_features(definition, conf, StageDefinition(conf=conf))
        return definition, conf
    if features not in (None, IMPORTED):
        raise UsageError(f"--from imports a folder as {IMPORTED!r} and excludes --features {features}")
    if not source.exists():
        raise MissingInputError(f"--from {source} does not exist")
    features_definition = StageDefinition(conf=IMPORTED, source=str(source.resolve()))
    return _with_features(definition, IMPORTED, features_definition), IMPORTED


def show_configuration(root: Path, dataset: str, stage: str, conf: str | None, overrides: list[Override]) -> None:
    """Prints every value of a configuration with its origin, or the names of all configurations of a stage."""
    reporter = Reporter()
    declaration = load_declaration(stage)
    if conf is None:
        reporter.say(declaration.summary)
        for name in declaration.confs:
            reporter.say(f"  itrpipe show {stage.replace('_', '-')} {name}")
        return
    planner = Planner(root, dataset, overrides)
    need = Need(stage, conf)
    known = planner.definition.prepare if stage == "prepare" else planner.definition.features.get(conf)
    definition = known if known and known.conf == conf else None
    settings, execution, resolved = planner.configure_checked(need, definition)
    rows = list(leaves(settings.model_dump(mode="json")))
    width = max((len(key) for key, _ in rows), default=0)
    reporter.say(f"{stage} {conf}, dataset {dataset}", style="bold")
    for key, value in rows:
        reporter.say(f"  {key:<{width}}  {value!s:<24} {resolved.origins.get(key, 'default')}")
    reporter.say("execution (not part of the fingerprint)", style="bold")
    for key, value in leaves(execution.model_dump(mode="json")):
        reporter.say(f"  {key:<{width}}  {value}")


def report_dataset(root: Path, dataset: str, overrides: list[Override], *, dry_run: bool = False) -> None:
    """Writes the report over every finished evaluation of a dataset.

    Raises:
        MissingInputError: there is none.
    """
    reporter = Reporter()
    evaluations = [
        check_artifact(folder)
        for folder in list_artifacts(root, check_name(dataset))
        if folder.parent.name == "evaluate" and not folder.name.endswith(PARTIAL)
    ]
    if not evaluations:
        raise MissingInputError(
            f"dataset {dataset!r} has no evaluation yet; run `itrpipe evaluate --dataset {dataset}`"
        )
    planner = Planner(root, dataset, overrides, reporter=reporter, remember=not dry_run)
    steps = [pinned_step(root, manifest) for manifest in evaluations]
    inputs = {step.location.name: step for step in steps}
    step = planner.plan(Need("report", default_conf(planner.definition, dataset, "report")), inputs=inputs)
    planner.refuse_unused_overrides()
    (folder,) = run([step], reporter, dry_run=dry_run)
    if not dry_run:
        say_report(folder, reporter)


def say_report(folder: Path, reporter: Reporter) -> None:
    """Prints the table of a report and the path of its page."""
    reporter.say((folder / SUMMARY).read_text(encoding="utf-8"))
    reporter.say(f"report: {folder / PAGE}")


def _with_features(definition: DatasetDefinition, name: str, stage: StageDefinition) -> DatasetDefinition:
    return definition.model_copy(update={"features": {**definition.features, name: stage}})
