"""Recipes: a dataset, the runs to make on it, and the scores that were published for them.

A recipe is a TOML file in `stages/recipes/`:

    dataset = "flickr30k"          where artifacts go
    features = "precomp"           what the runs read
    title = "…"                    of the report
    [source]                       only for datasets that the user brings
    captions = "."                 below --source
    features = "f30k_precomp"      below --source
    explanation = '''…'''          shown when --source is missing
    [source.expected]              images by split, where published scores are of these
    train = 29000
    [set]                          overrides, as for --set: "train.epochs" = 4
    [[run]]                        one or more
    method = "aoq"
    backbone = "vsrn"
    seeds = [0]
    ensemble_with = ["vsrn.s1"]    models to average with, as for --ensemble-with
    published = { rsum = 486.3, where = "AOQ Table 2" }
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from itrpipe.commands import say_report
from itrpipe.config import did_you_mean, read_toml, stages_folder
from itrpipe.datasets.definition import DatasetDefinition, StageDefinition, save_definition
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.pipeline import run
from itrpipe.planning import Override, Planner, Step, scoped_override
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need
from itrpipe.stages.evaluate import EvaluateSettings, models_label


class RecipeSource(BaseModel):
    """Files that the user brings; paths are relative to `--source`.

    Attributes:
        captions: file or folder of the captions.
        features: file or folder of the features.
        explanation: what to bring, shown when something is missing.
        expected: images that splits must have; splits that are not named may have any number.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    captions: str
    features: str
    explanation: str
    expected: dict[Literal["train", "val", "test"], int] = Field(default_factory=dict)


class RecipeRun(BaseModel):
    """One row of the results: a method on a backbone, once for each seed.

    Attributes:
        method: configuration of `train`.
        backbone: its backbone.
        seeds: of training; each makes a row.
        ensemble_with: models whose scores are averaged with those of the row, named as for `--ensemble-with`.
        published: metrics published for it, and `where`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    backbone: str
    seeds: tuple[int, ...] = (0,)
    ensemble_with: tuple[str, ...] = ()
    published: dict[str, float | str] = Field(default_factory=dict)


class Recipe(BaseModel):
    """A recipe file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str
    features: str
    title: str
    source: RecipeSource | None = None
    overrides: dict[str, Any] = Field(default_factory=dict, alias="set")
    run: tuple[RecipeRun, ...] = Field(min_length=1)


def load_recipe(name: str) -> Recipe:
    """Reads a recipe by its name in `stages/recipes/` or by its path.

    Raises:
        UsageError: there is none of this name.
        DataError: the file is not a recipe.
    """
    folder = stages_folder() / "recipes"
    path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    if name.endswith(".toml") and not path.exists():
        raise MissingInputError(f"recipe {path} does not exist; see `ls stages/recipes`")
    if not path.exists():
        known = sorted(file.stem for file in folder.glob("*.toml"))
        hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
        raise UsageError(f"no recipe {name!r}{hint}")
    try:
        return Recipe.model_validate(read_toml(path))
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def run_recipe(root: Path, name: str, source: Path | None, overrides: list[Override], *, dry_run: bool = False) -> Path:
    """Plans every run of a recipe with its evaluation, and the report over them, and runs what is missing.

    Args:
        root: the data folder.
        name: see `load_recipe`.
        source: folder that the user brings, for recipes that need one.
        overrides: from the command line; without a scope they apply to training.
        dry_run: print the plan only.

    Returns:
        The report's folder.

    Raises:
        MissingInputError: the recipe needs a source and there is none; the message explains what to put where.
        DataError: the user's data are not what the published scores are of.
    """
    recipe = load_recipe(name)
    reporter = Reporter()
    definition = _definition(recipe, name, source)
    reporter.say(f"{recipe.title} (dataset {recipe.dataset})", style="bold")

    def plan() -> Step:
        settings = _overrides(recipe, name, overrides)
        return _plan_report(recipe, Planner(root, recipe.dataset, settings, definition, reporter, not dry_run))

    report = plan()
    if recipe.source is not None and recipe.source.expected and not dry_run:
        # Before features are imported and anything is trained.
        _check_sizes(recipe.source, _prepared(report, reporter))
        report = plan()
    if recipe.source is not None and not dry_run:
        save_definition(root, recipe.dataset, definition)
    (folder,) = run([report], reporter, dry_run=dry_run)
    if not dry_run:
        say_report(folder, reporter)
    return folder


def _plan_report(recipe: Recipe, planner: Planner) -> Step:
    evaluations: dict[str, Step] = {}
    published: dict[str, dict] = {}
    for each in recipe.run:
        for seed in each.seeds:
            model = {"method": each.method, "backbone": each.backbone, "seed": seed, "features": recipe.features}
            need = Need("evaluate", "recall", {**model, "ensemble_with": list(each.ensemble_with)})
            step = planner.plan(need, requested=False)
            # Without the split: what is published for the test split is not compared with another one.
            label = models_label(cast(EvaluateSettings, step.settings))
            evaluations[label] = step
            if each.published:
                published[label] = dict(each.published)
    report = planner.plan(Need("report", "page", {"title": recipe.title, "published": published}), inputs=evaluations)
    planner.refuse_unused_overrides()
    return report


def _prepared(report: Step, reporter: Reporter) -> Step:
    """The prepared dataset that a report is made from, made first where it is not there."""
    step = next(each for each in report.upstream() if each.location.stage == "prepare")
    if step.state != "up to date":
        run([step], reporter)
    return step


def _check_sizes(source: RecipeSource, prepared: Step) -> None:
    """Refuses a dataset whose splits have other sizes than the recipe expects.

    Raises:
        DataError: likewise.
    """
    from itrpipe.datasets.prepared import PreparedDataset

    counts = PreparedDataset.open(prepared.location.folder).counts()
    found = {split: counts.get(split, (0, 0))[0] for split in source.expected}
    if found == source.expected:
        return
    has, wanted = (
        ", ".join(f"{count:,} {split}" for split, count in sizes.items()) for sizes in (found, source.expected)
    )
    path = prepared.definition.source if prepared.definition else prepared.location.folder
    raise DataError(
        f"{path} has {has} images instead of {wanted}, so published scores would not compare; complete it, or run a "
        "copy of the recipe without [source.expected] and `published`"
    )


def _overrides(recipe: Recipe, name: str, overrides: list[Override]) -> list[Override]:
    own = [scoped_override(key, value, f"recipe {name}") for key, value in recipe.overrides.items()]
    given = [Override(item.scope or "train", item.key, item.value, item.origin) for item in overrides]
    return [*own, *given]


def _definition(recipe: Recipe, name: str, source: Path | None) -> DatasetDefinition:
    """The recipe's own definition of its dataset."""
    if recipe.source is None:
        if source is not None:
            raise UsageError(f"recipe {name} generates its data and takes no --source")
        stage = StageDefinition(conf=recipe.features)
        return DatasetDefinition(prepare=stage, features={recipe.features: stage})
    if source is None:
        raise MissingInputError(recipe.source.explanation.strip())
    captions, features = source / recipe.source.captions, source / recipe.source.features
    for path in (captions, features):
        if not path.exists():
            raise MissingInputError(f"{path} does not exist\n\n{recipe.source.explanation.strip()}")
    return DatasetDefinition(
        prepare=StageDefinition(conf="files", source=str(captions.resolve())),
        features={recipe.features: StageDefinition(conf=recipe.features, source=str(features.resolve()))},
    )
