"""`itrpipe report`: over all runs of a dataset, over those of one backbone, or of one model against another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from itrpipe.commands.named import home_of
from itrpipe.commands.stages import default_conf
from itrpipe.config import did_you_mean
from itrpipe.datasets.definition import EMBEDDED, DatasetDefinition, check_name
from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.declaration import GIVEN, is_given
from itrpipe.plan.costs import say_costs
from itrpipe.plan.pipeline import run
from itrpipe.plan.planning import Override, Planner, pinned_step
from itrpipe.plan.steps import pending_steps
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need, load_stage
from itrpipe.stages.report import MARKDOWN
from itrpipe.storage.artifact import Manifest, check_artifact, folders_in, is_finished
from itrpipe.storage.disk import require_writable, write_text
from itrpipe.storage.integrity import checked
from itrpipe.training.settings import canonical_backbone


def report_dataset(
    root: Path,
    dataset: str,
    overrides: list[Override],
    *,
    backbone: str | None = None,
    into: Path | None = None,
    dry_run: bool = False,
) -> None:
    """Writes the report over every finished evaluation of a dataset, or over those of one backbone.

    Args:
        root: the data folder.
        dataset: dataset name.
        overrides: values given by the user.
        backbone: the report compares models of this one only.
        into: document that gets the table of results between the two lines that ask for it.
        dry_run: print the plan and what it will cost.

    Raises:
        MissingInputError: there is no evaluation, or no such document.
        UnavailableError: the document cannot be written.
        DataError: the document does not ask for the table.
    """
    asked = dataset if backbone is None else f"{dataset} {canonical_backbone(backbone)}"
    reporter = Reporter()
    if into is not None:
        _with_tables(into, asked, "")
        require_writable(into, "--into")
    evaluations = _evaluations(root, dataset)
    if backbone is not None:
        evaluations = _of_backbone(evaluations, canonical_backbone(backbone), dataset)
    planner = Planner(root, dataset, overrides, reporter=reporter, remember=not dry_run)
    folder = _report(planner, evaluations, {}, reporter, dry_run=dry_run)
    _say_unevaluated(planner.definition.named_trainings(), evaluations, reporter)
    if into is not None and folder is not None:
        write_text(into, _with_tables(into, asked, checked(folder / MARKDOWN).read_text(encoding="utf-8")))
        reporter.say(f"table: {into}")


def report_of_two(
    root: Path, dataset: str, overrides: list[Override], compared: tuple[str, str], *, dry_run: bool = False
) -> None:
    """Writes the report that sets one model against another.

    Args:
        root: the data folder.
        dataset: dataset name; in the place of the embedded one, which nobody has to name, that which has both models.
        overrides: values given by the user.
        compared: names of models, labels or folders of evaluations; the second is set against the first.
        dry_run: print the plan and what it will cost.

    Raises:
        MissingInputError: one of them is not evaluated.
    """
    homes = {home_of(root, each) for each in compared}
    if dataset == EMBEDDED and len(homes) == 1:
        dataset = homes.pop() or dataset
    reporter = Reporter()
    planner = Planner(root, dataset, overrides, reporter=reporter, remember=not dry_run)
    evaluations = _evaluations(root, dataset)
    first, second = _on_one_split(*(_called(root, each, evaluations, planner.definition, dataset) for each in compared))
    _report(planner, [*{**first, **second}.values()], {"compare": sorted(first)}, reporter, dry_run=dry_run)


def _on_one_split(first: dict[str, Manifest], second: dict[str, Manifest]) -> tuple[dict[str, Manifest], ...]:
    """The evaluations on a split that both have: test where both have it; all where they have none in common."""
    both = {each.settings["split"] for each in first.values()} & {each.settings["split"] for each in second.values()}
    chosen = next((split for split in ("test", "val", "train") if split in both), None)
    return tuple(
        {folder: each for folder, each in one.items() if chosen in (None, each.settings["split"])}
        for one in (first, second)
    )


def _report(
    planner: Planner, evaluations: list[Manifest], settings: dict[str, Any], reporter: Reporter, *, dry_run: bool
) -> Path | None:
    """Writes a report over evaluations; None where it was only planned."""
    steps = [pinned_step(planner.root, manifest) for manifest in evaluations]
    inputs = {step.location.name: step for step in steps}
    trained = {each.name for manifest in evaluations for each in manifest.inputs.values() if each.stage == "train"}
    names = sorted(each for each in planner.definition.named_trainings().items() if each[0] in trained)
    conf = default_conf(planner.definition, planner.dataset, "report")
    step = planner.plan(Need("report", conf, {"names": names, **settings}), inputs=inputs)
    planner.refuse_unused_overrides()
    (folder,) = run([step], reporter, dry_run=dry_run)
    if dry_run:
        say_costs(pending_steps([step]), reporter)
        return None
    load_stage("report").show(folder, reporter)
    return folder


def _say_unevaluated(named: Mapping[str, str], evaluations: list[Manifest], reporter: Reporter) -> None:
    """Says which models with names the report is silent about, because none of their trainings was evaluated."""
    read = {own.name for each in evaluations for own in each.inputs.values() if own.stage == "train"}
    silent = set(named.values()) - {named.get(name) for name in read}
    for name in sorted(silent):
        reporter.say(
            f"not evaluated, and not in the report: {name}; run `itrpipe evaluate --model {name}`", style="yellow"
        )


def _evaluations(root: Path, dataset: str) -> list[Manifest]:
    folders = folders_in(root / check_name(dataset) / "evaluate")
    found = [check_artifact(folder) for folder in folders if is_finished(folder)]
    if not found:
        known = [folder.name for folder in folders_in(root)]
        if dataset not in known and (hint := did_you_mean(dataset, known)):
            raise MissingInputError(f"there is no dataset {dataset!r} in {root}{hint}")
        raise MissingInputError(
            f"dataset {dataset!r} has no evaluation yet; run `itrpipe evaluate --dataset {dataset}`"
        )
    return found


def _called(
    root: Path, name: str, evaluations: list[Manifest], definition: DatasetDefinition, dataset: str
) -> dict[str, Manifest]:
    """Evaluations of a model by folder: by its own name, by METHOD.BACKBONE of any seed, or by that of a folder.

    Embeddings from files have names of their own, with `given-` before them or without. The mean of several models is
    named by its label alone, and what was re-ranked only where it was not evaluated without.
    """
    found = {}
    for each in evaluations:
        folder = pinned_step(root, each).location.name
        names = {each.label, folder}
        if not each.settings.get("ensemble_with"):
            names |= definition.names_of(each.inputs["train"].name)
            backbone = each.settings["backbone"]
            names |= {backbone, backbone.removeprefix(f"{GIVEN}-")} if is_given(backbone) else set()
        if name in names or re.fullmatch(rf"{re.escape(name)}\.s\d+", each.label):
            found[folder] = each
    found = {folder: each for folder, each in found.items() if not each.settings.get("rerank")} or found
    if not found and name in definition.models:
        raise MissingInputError(f"--compare: {name!r} is not evaluated yet; run `itrpipe evaluate --model {name}`")
    if not found:
        known = sorted({*definition.models, *(each.label for each in evaluations)})
        hint = did_you_mean(name, known) or f"; evaluated are {', '.join(known)}"
        raise MissingInputError(f"--compare: {name!r} is not evaluated on {dataset!r}{hint}")
    return found


def _of_backbone(evaluations: list[Manifest], backbone: str, dataset: str) -> list[Manifest]:
    of = {each.settings["backbone"] for each in evaluations}
    if backbone not in of:
        raise MissingInputError(
            f"dataset {dataset!r} has no evaluation of {backbone}, only of {', '.join(sorted(of))}; "
            f"run `itrpipe evaluate --backbone {backbone} --dataset {dataset}`"
        )
    return [each for each in evaluations if each.settings["backbone"] == backbone]


def _with_tables(path: Path, asked: str, tables: str) -> str:
    """A document with these tables in the place of those that it has of a dataset, or of one backbone on it."""
    from itrpipe.report.page import BEGIN, END, inserted

    if not path.is_file():
        raise MissingInputError(f"--into {path} is not there; name a Markdown file")
    try:
        found = inserted(path.read_text(encoding="utf-8"), asked, tables)
    except UnicodeDecodeError as error:
        raise DataError(f"--into {path} is not UTF-8 at byte {error.start}; name a Markdown file") from None
    if found is None:
        lines = f"{BEGIN.format(asked=asked)} and {END}"
        raise DataError(f"--into {path} does not say where the table belongs; write two lines into it: {lines}")
    return found
