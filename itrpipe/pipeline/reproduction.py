"""Run a recipe: plan all its runs, make the missing artifacts, and compare with the published scores."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from itrpipe.analysis.settings import models_label
from itrpipe.config import COMMAND_LINE, EVERYWHERE, Override, scoped_override
from itrpipe.datasets.definition import DatasetDefinition, ModelDefinition, load_definition, redefine
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import DataError, ItrpipeError, UsageError
from itrpipe.features.declaration import first_model
from itrpipe.mining.statistics import judged_sentences
from itrpipe.models.declaration import backbone_names
from itrpipe.pipeline.models import NamedModel, data_option
from itrpipe.pipeline.planning import SOURCE_CACHE, Planner, pinned_step, refuse_unused
from itrpipe.pipeline.recipes import (
    ForBackbone,
    Recipe,
    RecipeRun,
    fill_in,
    for_backbone,
    load_recipe,
    names_in,
    sizes_text,
)
from itrpipe.pipeline.run import command_line, run
from itrpipe.progress import Reporter
from itrpipe.report.published import Published, compare_published, table_lines
from itrpipe.stages.base import Need, Step, load_stage
from itrpipe.storage.artifact import STATISTICS, DigestCache, open_artifact, read_manifest
from itrpipe.storage.disk import read_json
from itrpipe.training.settings import TrainExecution, run_label

DECISIONS = "decisions"
"""Setting of stages that read decisions of people."""
TOYS = " (toy models: no result)"
"""Ends the title of the page that `--tiny` makes."""


@dataclass(frozen=True)
class Options:
    """Options of `itrpipe run`.

    Attributes:
        source: folder or file that the user brings, for recipes that need one.
        overrides: from the command line; without a scope they apply to training.
        only: runs to make, as METHOD.BACKBONE, METHOD or .BACKBONE; empty for all of them.
        seeds: number of seeds of every run, counted from 0; None for those of the recipe.
        tiny: toy models on whatever data there are, in a data folder of their own.
        keep_going: go on with other runs where one fails.
        dry_run: print the plan and what it will cost.
        encoders: `vision`, `text` -> hub id or folder in the place of that of the recipe.
        columns: settings of `prepare` that name columns of the source; later runs remember them.
    """

    source: Path | None = None
    overrides: Sequence[Override] = ()
    only: Sequence[str] = ()
    seeds: int | None = None
    tiny: bool = False
    keep_going: bool = False
    dry_run: bool = False
    encoders: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class PlannedRun:
    """A run of a recipe with one of its seeds.

    Attributes:
        run: of the recipe.
        title: label of the run, and the settings that tell it from others.
        step: its evaluation; None where it cannot be planned.
        error: why it cannot be planned, or did not finish.
        before: evaluation of the same training without decisions of people, where it is finished.
    """

    run: RecipeRun
    title: str
    step: Step | None
    error: ItrpipeError | None = None
    before: Step | None = None

    @property
    def published(self) -> list[Published]:
        """Return the published scores of the run, all of which are of the test split."""
        name = self.title
        if self.step is not None:
            name = self.step.location.name
            settings: Any = self.step.settings
            if settings.split != "test":
                return []
        named = {"run": name, "title": self.title}
        return [score.model_copy(update=named) for score in self.run.published]


@dataclass
class RecipePlanner:
    """Planner of the runs of a recipe, and of the report over them.

    Attributes:
        recipe, name: of the recipe.
        options: of the command.
        root: the data folder; of toy models another one.
        definition: of the dataset.
        places: name in braces -> the encoder or path that it stands for.
        reporter: prints.
    """

    recipe: Recipe
    name: str
    options: Options
    root: Path
    definition: DatasetDefinition
    places: dict[str, str]
    reporter: Reporter = field(default_factory=Reporter)
    _planners: dict[str, Planner] = field(default_factory=dict, init=False)

    def plan(self, runs: Sequence[RecipeRun]) -> list[PlannedRun]:
        """Define the models that have names, and plan runs seed after seed.

        In this order a recipe that is stopped has whole comparisons of the first seeds.

        Raises:
            ItrpipeError: one of the models cannot be trained, or one of the runs cannot be planned and the others are
                not to go on.
        """
        self._digests = DigestCache(self.root / self.recipe.dataset / SOURCE_CACHE, self.reporter)
        self._planners.clear()
        for each in self.recipe.run:
            if each.name:
                self.definition = self.definition.adding(models={each.name: self._model(each)})
                self._planners.clear()  # which do not know this model
        planned = []
        seeds = set()
        for each in runs:
            seeds.update(each.seeds)
        for seed in sorted(seeds):
            for each in runs:
                if seed in each.seeds:
                    planned.append(self._planned(each, seed))
        self._find_earlier(planned, runs)
        return planned

    def _find_earlier(self, planned: Sequence[PlannedRun], runs: Sequence[RecipeRun]) -> None:
        """Find the finished evaluations of trainings that differ from planned ones in decisions alone."""
        overrides = []
        for override in self.options.overrides:
            if override.key != DECISIONS:
                overrides.append(override)
        if len(overrides) == len(self.options.overrides):
            return
        without = replace(self, options=replace(self.options, overrides=overrides))
        for each, earlier in zip(planned, without.plan(runs), strict=True):
            if each.step is None or earlier.step is None or earlier.step.state != "up to date":
                continue
            if first_model(each.step.inputs).location != first_model(earlier.step.inputs).location:
                each.before = earlier.step

    def plan_report(self, planned: Sequence[PlannedRun], steps: Sequence[Step]) -> Step:
        """Plan the report over some evaluations; scores that were published for other runs are `missing` there.

        Raises:
            UsageError: a setting is read by no run.
        """
        published = []
        for each in planned:
            published += [score.model_dump() for score in each.published]
        settings = {
            "title": self.recipe.title,
            "published": published,
            "tolerance": self.recipe.tolerance.model_dump(),
            "tiny": self.options.tiny,
            "names": [],
            "before": [],
        }
        if self.options.tiny:
            settings["title"] += TOYS
        common = self._planner(RecipeRun(method="", backbone=""))
        inputs = {step.location.name: step for step in steps}
        for each in planned:
            if each.step is None:
                continue
            model = first_model(each.step.inputs)
            if model.model:
                settings["names"].append((model.location.name, model.model))
            evaluation = each.step.location.name
            if each.before is not None and evaluation in inputs:
                settings["before"].append((evaluation, each.before.location.name))
                inputs[each.before.location.name] = each.before
        report = common.plan(Need("report", "page", settings), inputs=inputs)
        if len(steps) == len(planned):
            # Settings of the command line that no run reads, and those of a recipe whose runs were all planned.
            is_whole = not self.options.only and not self.options.tiny
            read = set()
            for planner in self._planners.values():
                read |= planner.read
            for planner in self._planners.values():
                for override in planner.overrides:
                    must_be_read = is_whole or override.origin == COMMAND_LINE
                    if must_be_read and not override.backbone and override not in read:
                        refuse_unused([override])
        return report

    def _model(self, each: RecipeRun) -> ModelDefinition:
        """Define the model of a run by the settings that its training reads, as `train --name` does."""
        features = self.recipe.features_of(each, tiny=self.options.tiny)
        settings = {"backbone": each.backbone, "seed": each.seeds[0], "features": features}
        planner = self._planner(each)
        planner.plan(Need("train", each.method, settings), requested=False)
        for override in planner.overrides:
            is_execution = override.scope == EVERYWHERE or override.key in TrainExecution.model_fields
            if override in planner.read and not is_execution:
                settings.pop(override.name, None)  # the last of several counts, and stands in its place
                settings[override.name] = override.value
        previous = load_definition(self.root, self.recipe.dataset).models.get(each.name)
        if previous is not None and (previous.method, previous.settings) == (each.method, settings):
            return previous
        return ModelDefinition(method=each.method, settings=settings)

    def _planned(self, each: RecipeRun, seed: int) -> PlannedRun:
        features = self.recipe.features_of(each, tiny=self.options.tiny)
        settings: Any = {
            "method": each.method,
            "backbone": each.backbone,
            "seed": seed,
            "features": features,
            "ensemble_with": list(each.ensemble_with),
        }
        try:
            step = self._planner(each).plan(Need("evaluate", "recall", settings), requested=False)
        except ItrpipeError as error:
            if not self.options.keep_going:
                raise
            label = "+".join((run_label(each.method, each.backbone, seed), *each.ensemble_with))
            return PlannedRun(each, f"{label}{each.details}", None, error)
        settings = step.settings
        return PlannedRun(each, f"{models_label(settings)}{each.details}", step)

    def _planner(self, each: RecipeRun) -> Planner:
        """Return the planner of all runs with the same overrides."""
        recipe = self.recipe
        # The weakest overrides come first.
        overrides = self._from(recipe.overrides)
        overrides += self._of_backbones(recipe.backbones)
        overrides += self._from(each.overrides)
        if self.options.tiny:
            overrides += self._from(recipe.tiny.overrides)
            overrides += self._of_backbones(recipe.tiny.backbones)
        for override in self.options.overrides:
            overrides.append(replace(override, scope=override.scope or "train"))
        model = None
        if each.name in self.definition.models:
            model = NamedModel(each.name, recipe.dataset, self.definition.models[each.name])
        key = repr((overrides, each.name))
        if key not in self._planners:
            remember = not self.options.dry_run
            self._planners[key] = Planner(
                self.root, recipe.dataset, overrides, self.definition, self.reporter, remember, self._digests, model
            )
        return self._planners[key]

    def _of_backbones(self, tables: Mapping[str, ForBackbone]) -> list[Override]:
        overrides = []
        for backbone in backbone_names():
            overrides += self._from(for_backbone(tables, backbone).overrides, backbone)
        return overrides

    def _from(self, table: Mapping[str, Any], backbone: str = "") -> list[Override]:
        """Return the overrides of a table with names in braces filled in, without those of files that no run reads."""
        overrides = []
        for key, value in table.items():
            if self.places.keys() >= set(names_in(value)):
                override = scoped_override(key, fill_in(value, self.places), f"recipe {self.name}")
                overrides.append(replace(override, backbone=backbone))
        return overrides


def run_recipe(root: Path, name: str, options: Options) -> Path | None:
    """Plan the runs of a recipe with their evaluations, and the report over them, and make what is missing.

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
    planner, runs = _open_recipe(root, name, options)
    recipe = planner.recipe
    reporter = planner.reporter
    size = ", tiny" if options.tiny else ""
    reporter.say(f"{recipe.title} (dataset {recipe.dataset}{size})", style="bold")
    planned = planner.plan(runs)
    steps = _evaluations(planned)
    report = planner.plan_report(planned, steps)
    for each in planned:
        if each.error is not None:
            reporter.say(f"  ✗ {each.title} cannot be planned: {each.error}", style="red")
    if options.dry_run:
        run([report], reporter, dry_run=True)
        return report.location.folder
    if recipe.source is not None and recipe.source.expected and steps and not options.tiny:
        # Before features are imported and anything is trained.
        _check_sizes(steps[0], recipe.source.expected, reporter)
        planned = planner.plan(runs)
    _remember(planner)
    is_whole = len(runs) == len(recipe.run)
    if is_whole:
        # `serve` and `review` propose it with decisions.
        commands = {name: command_line()}
        redefine(planner.root, recipe.dataset, lambda now: now.adding(commands=commands))

    if options.keep_going:
        failures: dict[Path, ItrpipeError] = {}
        run(_evaluations(planned), reporter, failures=failures)
        for each in planned:
            if each.step is not None:
                each.error = failures.get(each.step.location.folder)
    finished = _evaluations(planned)
    evaluations = finished
    if options.keep_going:
        evaluations = [pinned_step(planner.root, read_manifest(step.location.folder)) for step in finished]
    folder = None
    if evaluations:
        report = planner.plan_report(planned, evaluations)
        folder = report.location.folder
        run([report], reporter)
        load_stage("report").show(folder, reporter)
        _say_judged(finished, reporter)
        if is_whole and not options.tiny:
            if len(planned) == len(runs):
                reporter.say("one seed gives no verdict; the same command with --seeds 5 trains the others as well")
            for command in recipe.next:
                reporter.say(f"next: itrpipe {fill_in(command, planner.places)}{data_option(planner.root)}")
    _compare_with_published(planner, planned, evaluations)
    _raise_first_error(planned)
    return folder


def _evaluations(planned: Iterable[PlannedRun]) -> list[Step]:
    """Return the steps of the runs that have no error."""
    steps = []
    for each in planned:
        if each.step is not None and each.error is None:
            steps.append(each.step)
    return steps


def _open_recipe(root: Path, name: str, options: Options) -> tuple[RecipePlanner, list[RecipeRun]]:
    """Read a recipe, and return its planner with the runs that the options choose."""
    recipe = load_recipe(name)
    runs = recipe.chosen(name, options.only)
    if options.seeds:
        update = {"seeds": tuple(range(options.seeds))}
        runs = [each.model_copy(update=update) for each in runs]
    definition, places = recipe.define_dataset(root, name, runs, options.source, options.encoders, tiny=options.tiny)
    if options.columns:
        if recipe.source is None or definition.prepare is None:
            raise UsageError(f"recipe {name} reads no source with columns and takes no --column; leave it out")
        settings = {**definition.prepare.settings, **options.columns}
        prepare = definition.prepare.model_copy(update={"settings": settings})
        definition = definition.model_copy(update={"prepare": prepare})
    if options.tiny:  # beside the data folder, so that neither is taken for the other
        if not root.name:
            root = root.resolve()
        root = root.with_name(f"{root.name}-tiny")
    return RecipePlanner(recipe, name, options, root, definition, places), runs


def _check_sizes(evaluation: Step, expected: Mapping[Any, int], reporter: Reporter) -> None:
    """Prepare the dataset, and refuse it if its splits have other sizes than those of the published scores."""
    prepared = next(step for step in evaluation.upstream() if step.location.stage == "prepare")
    if prepared.state != "up to date":
        run([prepared], reporter)
    folder = prepared.location.folder
    open_artifact(folder)
    counts = PreparedDataset.open(folder).counts()
    sizes = {}
    for split in expected:
        images, _ = counts.get(split, (0, 0))
        sizes[split] = images
    if sizes != expected:
        path = prepared.definition.source if prepared.definition else folder
        raise DataError(
            f"{path} has {sizes_text(sizes)} images instead of {sizes_text(expected)}, so published scores would not "
            "compare; complete it, or run a copy of the recipe without [source.expected] and `published`"
        )


def _remember(planner: RecipePlanner) -> None:
    """Write the recipe's named models, and a source that the user brought, into the dataset's definition."""
    recipe = planner.recipe
    definition = planner.definition
    models = {}
    for name, model in definition.models.items():
        if name in recipe.names:
            models[name] = model
    if recipe.source is None and not models:
        return

    def remember(now: DatasetDefinition) -> DatasetDefinition:
        now = now.adding(models=models)
        if recipe.source is None:
            return now
        # Features that other runs read stay known.
        return now.adding(features=definition.features).model_copy(update={"prepare": definition.prepare})

    redefine(planner.root, recipe.dataset, remember)


def _say_judged(evaluations: Sequence[Step], reporter: Reporter) -> None:
    """Print how many mined negatives are right after all, by the first judged lists that the runs have read."""
    for step in evaluations:
        lists = first_model(step.inputs).inputs.get("mine_negatives")
        if lists is not None and "judge_1" in lists.inputs:
            for line in judged_sentences(read_json(lists.location.folder / STATISTICS)):
                reporter.say(line)
            return


def _compare_with_published(planner: RecipePlanner, planned: Sequence[PlannedRun], evaluations: Sequence[Step]) -> None:
    """Print the published scores beside those that were measured."""
    reporter = planner.reporter
    tolerance = planner.recipe.tolerance
    is_tiny = planner.options.tiny
    folders = {}
    for step in evaluations:
        open_artifact(step.location.folder)
        folders[step.location.name] = step.location.folder
    published = []
    for each in planned:
        published += each.published
    compared = compare_published(published, folders, tolerance, tiny=is_tiny)
    if compared:
        limits = f"OK within {tolerance.ok:g}, close within {tolerance.close:g} points of RSum"
        if is_tiny:
            limits = "toy models"
        reporter.say(f"published and measured ({limits})", style="bold")
    for line in table_lines(compared):
        reporter.say(f"  {line}")
    if is_tiny:
        reporter.say(f"  toy models lie in {planner.root}; commands of their report are for whole ones")


def _raise_first_error(planned: Sequence[PlannedRun]) -> None:
    """Raise an error of the kind of the first failure, if a run failed.

    Raises:
        ItrpipeError: a run failed.
    """
    titles = []
    first = None
    for each in planned:
        if each.error is not None:
            titles.append(each.title)
            first = first or each.error
    if first is None:
        return
    more = f"; so did {', '.join(titles[1:])}" if titles[1:] else ""
    raise type(first)(
        f"{len(titles)} of {len(planned)} runs failed: {titles[0]}: {first}{more}; the same command makes what is "
        "missing"
    )
