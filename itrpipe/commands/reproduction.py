"""Runs a recipe: plans all its runs, makes what is missing, and says which published scores were reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from itrpipe.commands.estimates import estimate, print_costs
from itrpipe.commands.recipe_sources import check_sizes, define, remember_definition
from itrpipe.commands.recipes import ForBackbone, Recipe, RecipeRun, chosen_runs, for_backbone, load_recipe, placeholder
from itrpipe.commands.report import say_report
from itrpipe.datasets.definition import DatasetDefinition
from itrpipe.errors import ItrpipeError
from itrpipe.plan.pipeline import run
from itrpipe.plan.planning import (
    COMMAND_LINE,
    SOURCE_CACHE,
    Override,
    Planner,
    refuse_unused,
    scoped_override,
)
from itrpipe.plan.steps import Step, pending_steps
from itrpipe.progress import Reporter
from itrpipe.report.published import Published, reproductions, table_lines
from itrpipe.stages.base import Need
from itrpipe.stages.evaluate import EvaluateSettings, models_label
from itrpipe.storage.integrity import DigestCache
from itrpipe.training.settings import backbones, run_label

TOYS = " (toy models: no result)"
"""Ends the title of the page that `--tiny` makes."""


@dataclass(frozen=True)
class Options:
    """How a recipe is run.

    Attributes:
        source: folder that the user brings, for recipes that need one.
        overrides: from the command line; without a scope they apply to training.
        only: runs to make, as METHOD.BACKBONE, METHOD or .BACKBONE; empty for all of them.
        tiny: toy models on whatever data there are, in a data folder of their own.
        keep_going: go on with other runs where one fails.
        dry_run: print the plan and what it will cost.
    """

    source: Path | None = None
    overrides: Sequence[Override] = ()
    only: Sequence[str] = ()
    tiny: bool = False
    keep_going: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class PlannedRun:
    """One run with one seed.

    Attributes:
        run: of the recipe.
        title: its label and the settings that tell it from others.
        step: its evaluation; None where it cannot be planned.
        error: why it cannot be planned, or did not finish.
    """

    run: RecipeRun
    title: str
    step: Step | None
    error: ItrpipeError | None = None

    @property
    def folder(self) -> Path | None:
        """Of its evaluation."""
        return None if self.step is None else self.step.location.folder

    def published(self) -> list[Published]:
        """What was published for it, for the test split."""
        if self.step is not None and cast(EvaluateSettings, self.step.settings).split != "test":
            return []
        name = self.title if self.step is None else self.step.location.name
        return [each.model_copy(update={"run": name, "title": self.title}) for each in self.run.published]


@dataclass
class Reproduction:
    """A recipe with everything that its plans have in common.

    Attributes:
        recipe, name: what is run.
        options: how.
        root: the data folder; of toy models another one.
        runs: those that were chosen.
        definition: of the dataset.
        files: whole paths of the files that settings name in braces.
        reporter: prints.
    """

    recipe: Recipe
    name: str
    options: Options
    root: Path
    runs: list[RecipeRun]
    definition: DatasetDefinition
    files: dict[str, str]
    reporter: Reporter = field(default_factory=Reporter)
    _planners: dict[str, Planner] = field(default_factory=dict, init=False)
    _digests: DigestCache | None = field(default=None, init=False)

    def plan_runs(self) -> list[PlannedRun]:
        """Plans every chosen run with every seed.

        Raises:
            ItrpipeError: one of them cannot be planned and the others are not to go on.
        """
        self._digests = DigestCache(self.root / self.recipe.dataset / SOURCE_CACHE, self.reporter)
        self._planners = {}
        return [self._plan_run(each, seed) for each in self.runs for seed in each.seeds]

    def plan_report(self, planned: Sequence[PlannedRun]) -> Step:
        """Plans the report over the runs that did not fail; what was published for the others is `missing` there.

        Raises:
            UsageError: a setting is read by no run.
        """
        steps = [each.step for each in planned if each.step is not None and each.error is None]
        settings = {
            "title": f"{self.recipe.title}{TOYS if self.options.tiny else ''}",
            "published": [each.model_dump() for each in self.published(planned)],
            "tolerance": self.recipe.tolerance.model_dump(),
            "tiny": self.options.tiny,
        }
        common = self._planner(RecipeRun(method="", backbone=""))
        report = common.plan(Need("report", "page", settings), inputs={each.location.name: each for each in steps})
        if len(steps) == len(planned):
            self._refuse_unused()
        return report

    @staticmethod
    def published(planned: Sequence[PlannedRun]) -> list[Published]:
        """Everything that was published for these runs."""
        return [published for each in planned for published in each.published()]

    def _plan_run(self, each: RecipeRun, seed: int) -> PlannedRun:
        features = self.recipe.features_of(each, tiny=self.options.tiny)
        model = {"method": each.method, "backbone": each.backbone, "seed": seed, "features": features}
        need = Need("evaluate", "recall", {**model, "ensemble_with": list(each.ensemble_with)})
        try:
            step = self._planner(each).plan(need, requested=False)
        except ItrpipeError as error:
            if not self.options.keep_going:
                raise
            label = "+".join((run_label(each.method, each.backbone, seed), *each.ensemble_with))
            return PlannedRun(each, f"{label}{each.details}", None, error)
        return PlannedRun(each, f"{models_label(cast(EvaluateSettings, step.settings))}{each.details}", step)

    def _planner(self, each: RecipeRun) -> Planner:
        """The planner of all runs with the same overrides."""
        overrides = self._overrides(each)
        key = repr(overrides)
        if key not in self._planners:
            remember = not self.options.dry_run
            self._planners[key] = Planner(
                self.root, self.recipe.dataset, overrides, self.definition, self.reporter, remember, self._digests
            )
        return self._planners[key]

    def _overrides(self, each: RecipeRun) -> list[Override]:
        """Overrides of recipe, backbones, run, `--tiny` and command line: the weakest first."""
        recipe = self.recipe
        own = [*self._from(recipe.overrides), *self._of_backbones(recipe.backbones), *self._from(each.overrides)]
        if self.options.tiny:
            own += [*self._from(recipe.tiny.overrides), *self._of_backbones(recipe.tiny.backbones)]
        given = [replace(item, scope=item.scope or "train") for item in self.options.overrides]
        return [*own, *given]

    def _of_backbones(self, tables: Mapping[str, ForBackbone]) -> list[Override]:
        return [
            replace(item, backbone=backbone)
            for backbone in backbones()
            for item in self._from(for_backbone(tables, backbone).overrides)
        ]

    def _from(self, table: Mapping[str, Any]) -> list[Override]:
        """The overrides of a table, with paths for names in braces; without those of files that no chosen run reads."""
        values = {key: (value, placeholder(value)) for key, value in table.items()}
        filled = {key: self.files.get(name) if name else value for key, (value, name) in values.items()}
        origin = f"recipe {self.name}"
        return [scoped_override(key, value, origin) for key, value in filled.items() if value is not None]

    def _refuse_unused(self) -> None:
        """Refuses settings of the command line that no run reads, and those of a recipe whose runs were all planned."""
        unused = [(each.overrides, each.unused_overrides()) for each in self._planners.values()]
        read = [item for overrides, left in unused for item in overrides if item not in left]
        never = [item for _, left in unused for item in left if item not in read]
        some = self.options.only or self.options.tiny
        refuse_unused(item for item in never if not item.backbone and (item.origin == COMMAND_LINE or not some))


def run_recipe(root: Path, name: str, options: Options) -> Path | None:
    """Plans the runs of a recipe with their evaluations, and the report over them, and makes what is missing.

    Args:
        root: the data folder; of toy models `<root>-tiny`.
        name: see `load_recipe`.
        options: how to run it.

    Returns:
        The report's folder; None where every run failed.

    Raises:
        MissingInputError: the recipe needs a source and there is none; the message explains what to put where.
        DataError: the user's data are not what the published scores are of.
        ItrpipeError: with `keep_going`, of the kind of the first failure, when everything else is done.
    """
    recipe = load_recipe(name)
    runs = chosen_runs(recipe, name, options.only)
    repeated = "".join(f" --only {each}" for each in options.only) + (" --tiny" if options.tiny else "")
    definition, files = define(root, recipe, name, runs, options.source, tiny=options.tiny, options=repeated)
    own = tiny_folder(root) if options.tiny else root
    whole = Reproduction(recipe, name, options, own, runs, definition, files)
    whole.reporter.say(f"{recipe.title} (dataset {recipe.dataset}{', tiny' if options.tiny else ''})", style="bold")
    planned = whole.plan_runs()
    report = whole.plan_report(planned)
    if options.dry_run:
        return _show(whole, planned, report)
    if recipe.source is not None:
        if recipe.source.expected and not options.tiny:
            # Before features are imported and anything is trained.
            check_sizes(recipe.source, _prepared(planned, whole.reporter))
            planned = whole.plan_runs()
        remember_definition(own, recipe.dataset, definition)
    if options.keep_going:
        planned = _make_each(whole, planned)
    folder = _report(whole, planned)
    _say_reproduced(whole, planned)
    _refuse_failed(planned)
    return folder


def tiny_folder(root: Path) -> Path:
    """Where artifacts of `--tiny` lie: beside the data folder, so that neither is taken for the other."""
    named = root if root.name else root.resolve()
    return named.with_name(f"{named.name}-tiny")


def _show(whole: Reproduction, planned: Sequence[PlannedRun], report: Step) -> Path:
    (folder,) = run([report], whole.reporter, dry_run=True)
    print_costs(estimate(whole.root, whole.recipe.dataset, pending_steps([report])), whole.reporter)
    _say_unplanned(planned, whole.reporter)
    if not whole.options.tiny:
        _say_targets(whole.published(planned), whole.reporter)
    return folder


def _say_targets(published: Sequence[Published], reporter: Reporter) -> None:
    """The published scores that the runs are to reach."""
    if not published:
        return
    reporter.say("will be compared with", style="bold")
    width = max(len(each.run) for each in published)
    for each in published:
        shown = {"RSum": each.scores["rsum"]} if "rsum" in each.scores else each.scores
        scores = ", ".join(f"{name} {value:.1f}" for name, value in shown.items())
        reporter.say(f"    {each.run:<{width}}  {each.protocol}: {scores} ({each.source})")


def _say_unplanned(planned: Sequence[PlannedRun], reporter: Reporter) -> None:
    for each in planned:
        if each.error is not None:
            reporter.say(f"  ✗ {each.title} cannot be planned: {each.error}", style="red")


def _prepared(planned: Sequence[PlannedRun], reporter: Reporter) -> Step:
    """The prepared dataset, made first where it is not there.

    Raises:
        ItrpipeError: why no run can be planned, where none can.
    """
    steps = [each.step for each in planned if each.step is not None]
    if not steps:
        _refuse_failed(planned)
    step = next(each for each in steps[0].upstream() if each.location.stage == "prepare")
    if step.state != "up to date":
        run([step], reporter)
    return step


def _make_each(whole: Reproduction, planned: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Makes the runs that can be made, plans all again, and notes why the others failed."""
    _say_unplanned(planned, whole.reporter)
    failures: dict[Path, ItrpipeError] = {}
    run([each.step for each in planned if each.step is not None], whole.reporter, failures=failures)
    again = whole.plan_runs()
    return [replace(each, error=each.error or failures.get(each.folder or Path())) for each in again]


def _report(whole: Reproduction, planned: Sequence[PlannedRun]) -> Path | None:
    if all(each.error is not None for each in planned):
        return None
    (folder,) = run([whole.plan_report(planned)], whole.reporter)
    say_report(folder, whole.reporter)
    return folder


def _say_reproduced(whole: Reproduction, planned: Sequence[PlannedRun]) -> None:
    steps = [each.step for each in planned if each.step is not None and each.error is None]
    evaluations = {step.location.name: step.location.folder for step in steps}
    tolerance, tiny = whole.recipe.tolerance, whole.options.tiny
    found = reproductions(whole.published(planned), evaluations, tolerance, tiny=tiny)
    if found:
        limits = f"OK within {tolerance.ok:g}, close within {tolerance.close:g} points of RSum"
        whole.reporter.say(f"published and measured ({'toy models' if tiny else limits})", style="bold")
    for line in table_lines(found):
        whole.reporter.say(f"  {line}")
    if tiny:
        whole.reporter.say(f"  toy models lie in {whole.root}; commands of their report are for whole ones")


def _refuse_failed(planned: Sequence[PlannedRun]) -> None:
    """Ends a recipe of which runs have failed, as the first of them would have ended it.

    Raises:
        ItrpipeError: likewise.
    """
    failed = [(each.title, each.error) for each in planned if each.error is not None]
    if not failed:
        return
    (title, first), others = failed[0], [title for title, _ in failed[1:]]
    more = f"; so did {', '.join(others)}" if others else ""
    raise type(first)(
        f"{len(failed)} of {len(planned)} runs failed: {title}: {first}{more}; the same command makes what is missing"
    )
