"""The commands that are stages: they define a dataset, plan a stage with what it needs, and run it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from itrpipe.commands.named import NamedModel
from itrpipe.config import Settings, declared_stages, did_you_mean, kind_of, leaves, load_declaration, unknown
from itrpipe.datasets.definition import (
    EMBEDDED,
    DatasetDefinition,
    StageDefinition,
    check_name,
    load_definition,
    remember,
    remember_model,
)
from itrpipe.errors import DataError, IncompleteError, MissingInputError, UsageError
from itrpipe.features.declaration import IMPORTERS, names_a_file
from itrpipe.plan.costs import say_costs
from itrpipe.plan.pipeline import run
from itrpipe.plan.planning import Override, Planner
from itrpipe.plan.steps import pending_steps
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need, load_stage, prepare_need
from itrpipe.storage.artifact import MANIFEST, read_manifest
from itrpipe.training.settings import TrainSettings


def run_stage(
    root: Path,
    dataset: str,
    stage: str,
    overrides: list[Override],
    *,
    conf: str | None = None,
    definition: DatasetDefinition | None = None,
    model: NamedModel | None = None,
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
        model: that is trained, if it has a name; remembered once it is planned.
        dry_run: print the plan and what it will cost.
        no_deps: fail when something upstream is missing.

    Returns:
        The artifact's folder.

    Raises:
        IncompleteError: the artifact is finished but lacks images that could not be used.
        DataError: likewise, and the step is strict.
    """
    reporter = Reporter()
    planner = Planner(root, check_name(dataset), overrides, definition or DatasetDefinition(), reporter, not dry_run)
    need = Need(stage, conf or default_conf(planner.definition, dataset, stage))
    called = "" if model is None else f" (model {model.name})"
    reporter.say(f"{dataset}: {stage.replace('_', '-')} {need.conf}{called}", style="bold")
    step = planner.plan(need)
    planner.refuse_unused_overrides()
    if model is not None and not dry_run:
        remember_model(root, dataset, model.name, model.definition)
    (folder,) = run([step], reporter, dry_run=dry_run, with_upstream=not no_deps)
    if dry_run:
        say_costs(pending_steps([step]), reporter)
        return folder
    if definition is not None:
        remember(root, dataset, definition, stage, need.conf)
    if folder.exists():
        if step.state == "up to date":
            load_stage(stage).show(folder, reporter)
        reporter.say(str(folder))
        _refuse_incomplete(folder, strict=getattr(step.execution, "strict", False))
    return folder


def _refuse_incomplete(folder: Path, *, strict: bool) -> None:
    failed = read_manifest(folder).failed
    if failed:
        image, reason = next(iter(failed.items()))
        what = f"{len(failed):,} image{'s' if len(failed) > 1 else ''} could not be used and"
        were = "were" if len(failed) > 1 else "was"
        rest = f"the first: {image} {reason}. All are listed as 'failed' in {folder / MANIFEST}"
        remedy = f"restore the files, remove {folder} and run the same command again"
        if strict:
            raise DataError(f"{what} --strict was given; {rest}; {remedy}")
        raise IncompleteError(f"{what} {were} left out; {rest}; go on without, or {remedy}")


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
    fields = load_stage("prepare").execution.model_fields
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
    root: Path, dataset: str, features: str | None, source: Path | None, name: str | None, overrides: list[Override]
) -> tuple[DatasetDefinition, str, list[Override]]:
    """Defines where a dataset's features come from, as `itrpipe extract` was told; what it is not told stays as it was.

    Args:
        root: the data folder.
        dataset: its name.
        features: features already known, or an extractor, importer or combination `a+b` of extractors.
        source: files to import.
        name: to know these features by; by default the name of what makes them.
        overrides: from the command line.

    Returns:
        The definition, the name of the features, and the overrides.

    Raises:
        MissingInputError: the source is not there, or no features are known and none were named.
        UsageError: there is no such extractor, or it and the source exclude each other.
    """
    definition = load_definition(root, dataset)
    if features is None and source is None and name in definition.features:
        features = name
    if source is not None:
        conf, place = _importer_of(source, features), str(source.resolve())
    elif features is None or (features in definition.features and name in (None, features)):
        name = features or definition.default_features(dataset)
        conf, place = definition.features[name].conf, definition.features[name].source
    else:
        _check_conf(features)
        conf, place = features, None
    name = check_name(name or conf)
    own, overrides = _of_features(conf, overrides)
    known = definition.features.get(name)
    earlier = known.settings if known and (known.conf, known.source) == (conf, place) else {}
    # What was said last counts, also where it is spelled otherwise (`height`, `pixels.height`).
    settings = {key: value for key, value in earlier.items() if key not in own} | own
    stage = StageDefinition(conf=conf, source=place, settings=settings)
    return definition.adding(features={name: stage}), name, overrides


def _importer_of(source: Path, features: str | None) -> str:
    """The importer that reads `source`: the one that was named, else the only one whose layout is there or complete."""
    if not source.exists():
        raise MissingInputError(
            f"--from {source} does not exist; name a file or folder, absolute or below {Path.cwd()}"
        )
    known = [name for name in load_declaration("extract").confs if _imports(name)]
    if features is not None:
        if features not in known:
            hint = did_you_mean(features, known) or f"; importers: {', '.join(known)}"
            raise UsageError(f"--from imports files and --features {features} is no importer{hint}")
        return features
    kinds = {name: kind_of(load_declaration("extract"), name) for name in known}
    layouts = {name: IMPORTERS.module(kind).layout(source) for name, kind in kinds.items()}
    found = {name: layout for name, layout in layouts.items() if layout is not None}
    shown = [f"{name} ({layout})" for name, layout in found.items()]
    complete = [name for name, layout in found.items() if len(found) == 1 or not layout.lacks]
    if len(complete) != 1:
        what = f"holds {' and '.join(shown)}" if found else "is of no format that is recognised"
        raise UsageError(f"--from {source} {what}; name one with --features {' | '.join(complete or found or known)}")
    if len(found) > 1:
        Reporter().say(f"--from {source} holds {' and '.join(shown)}; {complete[0]} alone is complete and is imported")
    return complete[0]


def _imports(conf: str) -> bool:
    return kind_of(load_declaration("extract"), conf).replace("_", "-") in IMPORTERS.classes


def _check_conf(conf: str) -> None:
    """Refuses names that no extractor has, importers without a source, and doubled names."""
    known, parts = load_declaration("extract").confs, conf.split("+")
    for part in parts:
        if part not in known:
            raise UsageError(unknown("extractor", part, known))
        if _imports(part):
            raise MissingInputError(f"--features {part} imports files; name them with --from PATH")
    if len(set(parts)) < len(parts):
        raise UsageError(f"--features {conf} names an extractor twice; name each once")


def _of_features(conf: str, overrides: list[Override]) -> tuple[dict[str, Any], list[Override]]:
    """Settings that are to be remembered with the features, and all overrides, with files as absolute paths.

    Later commands may run in another folder.
    """
    parts, fields = conf.split("+"), load_stage("extract").execution.model_fields
    own: dict[str, Any] = {}
    absolute = []
    for item in overrides:
        if item.scope in (None, "extract", *parts) and item.key.removeprefix("execution.") not in fields:
            item = replace(item, value=_absolute(item.key, item.value))
            own[f"{item.scope}.{item.key}" if len(parts) > 1 and item.scope in parts else item.key] = item.value
        absolute.append(item)
    return own, absolute


def _absolute(key: str, value: Any) -> Any:
    if not names_a_file(key.rpartition(".")[2], value):
        return value
    path = Path(value).expanduser()
    return str(path.resolve()) if path.exists() else value


def _unread(settings: Settings) -> set[str]:
    """Keys of the method that it does not read as it is set."""
    if not isinstance(settings, TrainSettings):
        return set()
    return {f"loss.{name}" for name in (*settings.loss.unread_options(), *settings.loss.unused_options())}


def show_configuration(root: Path, dataset: str, stage: str, conf: str | None, overrides: list[Override]) -> None:
    """Prints every value of a configuration with its origin, or the names of all configurations of a stage.

    Raises:
        UsageError: there is no such stage or configuration.
    """
    if stage not in declared_stages():
        raise UsageError(unknown("stage", stage, [name.replace("_", "-") for name in declared_stages()]))
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
    definition = known if known and (stage == "extract" or known.conf == conf) else None
    settings, execution, resolved = planner.configure_checked(need, definition)
    unread = _unread(settings)
    rows = [each for each in leaves(settings.model_dump(mode="json")) if each[0] not in unread]
    width = max((len(key) for key, _ in rows), default=0)
    reporter.say(f"{stage} {conf}, dataset {dataset}", style="bold")
    for key, value in rows:
        reporter.say(f"  {key:<{width}}  {value!s:<24} {resolved.origins.get(key, 'default')}")
    reporter.say("execution (not part of the fingerprint)", style="bold")
    for key, value in leaves(execution.model_dump(mode="json")):
        reporter.say(f"  {key:<{width}}  {value}")
