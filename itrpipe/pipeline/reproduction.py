"""Run a recipe: plan all its runs, make what is missing, and say which published scores were reached."""

from collections.abc import Mapping, Sequence
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
    filled,
    for_backbone,
    load_recipe,
    names_in,
    told_sizes,
)
from itrpipe.pipeline.run import run
from itrpipe.progress import Reporter
from itrpipe.report.published import Published, compare_published, table_lines
from itrpipe.stages.base import Need, Step, load_stage
from itrpipe.storage.artifact import STATISTICS, DigestCache, open_artifact, read_manifest
from itrpipe.storage.disk import read_json
from itrpipe.training.settings import TrainExecution, run_label

TOYS = " (toy models: no result)"
"""Ends the title of the page that `--tiny` makes."""


@dataclass(frozen=True)
class Options:
    """Choices of a run of a recipe.

    Attributes:
        source: folder or file that the user brings, for recipes that need one.
        overrides: from the command line; without a scope they apply to training.
        only: runs to make, as METHOD.BACKBONE, METHOD or .BACKBONE; empty for all of them.
        seeds: of every run, counted from 0; None for those of the recipe.
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
    def published(self) -> list[Published]:
        """Return the scores that were published for it, of the test split."""
        name = self.title
        if self.step is not None:
            name = self.step.location.name
            settings: Any = self.step.settings
            if settings.split != "test":
                return []
        return [each.model_copy(update={"run": name, "title": self.title}) for each in self.run.published]


@dataclass
class Reproduction:
    """A recipe with everything that its plans have in common.

    Attributes:
        recipe, name: of the recipe.
        options: how it is run.
        root: the data folder; of toy models another one.
        definition: of the dataset.
        places: what each name in braces stands for.
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
        """Define the models that have names, and plan runs seed after seed: one that is stopped has whole comparisons.

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
        seeds = sorted({seed for each in runs for seed in each.seeds})
        return [self._planned(each, seed) for seed in seeds for each in runs if seed in each.seeds]

    def plan_report(self, planned: Sequence[PlannedRun], steps: Sequence[Step]) -> Step:
        """Plan the report over some evaluations; scores that were published for other runs are `missing` there.

        Raises:
            UsageError: a setting is read by no run.
        """
        settings = {
            "title": f"{self.recipe.title}{TOYS if self.options.tiny else ''}",
            "published": [score.model_dump() for each in planned for score in each.published],
            "tolerance": self.recipe.tolerance.model_dump(),
            "tiny": self.options.tiny,
            "names": [],
        }
        common = self._planner(RecipeRun(method="", backbone=""))
        for each in planned:
            model = first_model(each.step.inputs) if each.step else None
            if model and model.model:
                settings["names"].append((model.location.name, model.model))
        report = common.plan(Need("report", "page", settings), inputs={each.location.name: each for each in steps})
        if len(steps) == len(planned):
            # Settings of the command line that no run reads, and those of a recipe whose runs were all planned.
            some = self.options.only or self.options.tiny
            read = set().union(*(planner.read for planner in self._planners.values()))
            for planner in self._planners.values():
                for override in planner.overrides:
                    is_due = override.origin == COMMAND_LINE or not some
                    if is_due and not override.backbone and override not in read:
                        refuse_unused([override])
        return report

    def judged(self, steps: Sequence[Step]) -> list[str]:
        """Say how many mined negatives are right after all, by the first judged lists that the runs have read."""
        for step in steps:
            lists = first_model(step.inputs).inputs.get("mine_negatives")
            if lists is not None and "judge_1" in lists.inputs:
                return judged_sentences(read_json(lists.location.folder / STATISTICS))
        return []

    def _model(self, each: RecipeRun) -> ModelDefinition:
        """Define the model of a run by the settings that its training reads, as `train --name` does."""
        features = self.recipe.features_of(each, tiny=self.options.tiny)
        settings = {"backbone": each.backbone, "seed": each.seeds[0], "features": features}
        planner = self._planner(each)
        planner.plan(Need("train", each.method, settings), requested=False)
        for override in planner.overrides:
            is_execution = override.scope == EVERYWHERE or override.key in TrainExecution.model_fields
            if override in planner.read and not is_execution:
                settings.pop(override.name, None)  # what is said last counts
                settings[override.name] = override.value
        known = load_definition(self.root, self.recipe.dataset).models.get(each.name)
        if known is not None and (known.method, known.settings) == (each.method, settings):
            return known
        return ModelDefinition(method=each.method, settings=settings)

    def _planned(self, each: RecipeRun, seed: int) -> PlannedRun:
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
        settings: Any = step.settings
        return PlannedRun(each, f"{models_label(settings)}{each.details}", step)

    def _planner(self, each: RecipeRun) -> Planner:
        """Return the planner of all runs with the same overrides."""
        recipe = self.recipe  # the weakest first
        own = [*self._from(recipe.overrides), *self._of_backbones(recipe.backbones), *self._from(each.overrides)]
        if self.options.tiny:
            own += [*self._from(recipe.tiny.overrides), *self._of_backbones(recipe.tiny.backbones)]
        overrides = own + [replace(item, scope=item.scope or "train") for item in self.options.overrides]
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
        """Return the overrides of a table, names in braces filled in; none with files that no chosen run reads."""
        overrides = []
        for key, value in table.items():
            if self.places.keys() >= set(names_in(value)):
                override = scoped_override(key, filled(value, self.places), f"recipe {self.name}")
                overrides.append(replace(override, backbone=backbone))
        return overrides


def run_recipe(root: Path, name: str, options: Options) -> Path | None:
    """Plan the runs of a recipe with their evaluations, and the report over them, and makes what is missing.

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
    runs = recipe.chosen(name, options.only)
    if options.seeds:
        runs = [each.model_copy(update={"seeds": tuple(range(options.seeds))}) for each in runs]
    definition, places = recipe.sourced(root, name, runs, options.source, options.encoders, tiny=options.tiny)
    if options.columns:
        if recipe.source is None or definition.prepare is None:
            raise UsageError(f"recipe {name} reads no source with columns and takes no --column; leave it out")
        settings = {**definition.prepare.settings, **options.columns}
        prepare = definition.prepare.model_copy(update={"settings": settings})
        definition = definition.model_copy(update={"prepare": prepare})
    if options.tiny:  # beside the data folder, so that neither is taken for the other
        named = root if root.name else root.resolve()
        root = named.with_name(f"{named.name}-tiny")
    whole = Reproduction(recipe, name, options, root, definition, places)
    whole.reporter.say(f"{recipe.title} (dataset {recipe.dataset}{', tiny' if options.tiny else ''})", style="bold")
    planned = whole.plan(runs)
    steps = [each.step for each in planned if each.step is not None]
    report = whole.plan_report(planned, steps)
    for each in planned:
        if each.error is not None:
            whole.reporter.say(f"  ✗ {each.title} cannot be planned: {each.error}", style="red")
    if options.dry_run:
        run([report], whole.reporter, dry_run=True)
        return report.location.folder
    if recipe.source is not None:
        expected = recipe.source.expected
        if expected and not options.tiny and steps:
            # Before features are imported and anything is trained.
            prepared = next(each for each in steps[0].upstream() if each.location.stage == "prepare")
            if prepared.state != "up to date":
                run([prepared], whole.reporter)
            open_artifact(prepared.location.folder)
            counts = PreparedDataset.open(prepared.location.folder).counts()
            sizes = {split: counts.get(split, (0, 0))[0] for split in expected}
            if sizes != expected:
                path = prepared.definition.source if prepared.definition else prepared.location.folder
                raise DataError(
                    f"{path} has {told_sizes(sizes)} images instead of {told_sizes(expected)}, so published scores "
                    "would not compare; complete it, or run a copy of the recipe without [source.expected] and "
                    "`published`"
                )
            planned = whole.plan(runs)

    models = {name: model for name, model in whole.definition.models.items() if name in recipe.names}

    def told(now: DatasetDefinition) -> DatasetDefinition:
        now = now.adding(models=models)
        if recipe.source is None:
            return now
        # Features that other runs read stay known.
        return now.adding(features=definition.features).model_copy(update={"prepare": definition.prepare})

    if recipe.source is not None or models:
        redefine(root, recipe.dataset, told)
    if options.keep_going:
        failures: dict[Path, ItrpipeError] = {}
        run([each.step for each in planned if each.step is not None], whole.reporter, failures=failures)
        for each in planned:
            if each.step is not None:
                each.error = failures.get(each.step.location.folder)
    finished = [each.step for each in planned if each.step is not None and each.error is None]
    made = finished
    if options.keep_going:
        made = [pinned_step(root, read_manifest(step.location.folder)) for step in made]
    folder = None
    if made:
        report = whole.plan_report(planned, made)
        folder = report.location.folder
        run([report], whole.reporter)
        load_stage("report").show(folder, whole.reporter)
        for line in whole.judged(finished):
            whole.reporter.say(line)
        has_whole_models = len(runs) == len(recipe.run) and not options.tiny
        if has_whole_models and len(planned) == len(runs):
            whole.reporter.say("one seed gives no verdict; the same command with --seeds 5 trains the others as well")
        for command in recipe.next if has_whole_models else ():
            whole.reporter.say(f"next: itrpipe {filled(command, places)}{data_option(root)}")
    evaluations = {}
    for step in made:
        open_artifact(step.location.folder)
        evaluations[step.location.name] = step.location.folder
    published = [score for each in planned for score in each.published]
    compared = compare_published(published, evaluations, recipe.tolerance, tiny=options.tiny)
    if compared:
        limits = f"OK within {recipe.tolerance.ok:g}, close within {recipe.tolerance.close:g} points of RSum"
        whole.reporter.say(f"published and measured ({'toy models' if options.tiny else limits})", style="bold")
    for line in table_lines(compared):
        whole.reporter.say(f"  {line}")
    if options.tiny:
        whole.reporter.say(f"  toy models lie in {root}; commands of their report are for whole ones")
    failed = [(each.title, each.error) for each in planned if each.error is not None]
    if failed:
        title, first = failed[0]
        others = ", ".join(other for other, _ in failed[1:])
        more = f"; so did {others}" if others else ""
        raise type(first)(
            f"{len(failed)} of {len(planned)} runs failed: {title}: {first}{more}; the same command makes what is "
            "missing"
        )
    return folder
