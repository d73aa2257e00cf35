"""What the user brings for a recipe: where it lies, what to bring when it is missing, and whether it is all there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from itrpipe.commands.recipes import Recipe, RecipeRun, RecipeSource, SourceFeatures, for_backbone, placeholder
from itrpipe.datasets.definition import (
    EMBEDDED,
    DatasetDefinition,
    StageDefinition,
    load_definition,
    redefine,
)
from itrpipe.errors import DataError, MissingSourceError, UsageError
from itrpipe.plan.steps import Step

COLUMN = 36
"""Column in which explanations begin, behind the path they explain."""


def define(
    root: Path,
    recipe: Recipe,
    name: str,
    runs: Sequence[RecipeRun],
    source: Path | None,
    *,
    tiny: bool,
    options: str = "",
) -> tuple[DatasetDefinition, dict[str, str]]:
    """The dataset as the recipe and the source folder define it, with what the chosen runs need of it.

    `options` are those that the command is to be repeated with where something is missing.

    A recipe without a source takes the dataset as it was prepared, features and all; the embedded one is made for it.

    Returns:
        The definition, and the whole path of every file that settings name in braces.

    Raises:
        UsageError: the recipe needs no source.
        MissingSourceError: there is no source, or something that these runs need is not in it.
    """
    if recipe.source is None and recipe.dataset != EMBEDDED:
        if source is not None:
            raise UsageError(
                f"recipe {name} runs on dataset {recipe.dataset!r} as it is prepared and takes no --source"
            )
        return load_definition(root, recipe.dataset), {}
    names = dict.fromkeys(recipe.features_of(run, tiny=tiny) for run in runs)
    needed = {each: recipe.made_from(each) for each in names}
    if recipe.source is None:
        if source is not None:
            raise UsageError(f"recipe {name} generates its data and takes no --source")
        features = {each: StageDefinition(conf=made.conf, settings=made.settings) for each, made in needed.items()}
        return DatasetDefinition(prepare=StageDefinition(conf=EMBEDDED), features=features), {}
    # Toy models have random weights: what the user would have to bring is not asked for.
    braced = [] if tiny else _named_files(recipe, runs)
    explanation = explain(recipe.source, f"{name} --source FOLDER{options}", needed, braced)
    if source is None:
        raise MissingSourceError(explanation)
    files = {each: source / recipe.source.files[each].path for each in braced}
    imported = [source / made.path for made in needed.values() if made.path]
    for path in (source / recipe.source.captions, *imported, *files.values()):
        if not path.exists():
            raise MissingSourceError(f"{path} does not exist\n\n{explanation}")
    prepare = StageDefinition(conf="files", source=str((source / recipe.source.captions).resolve()))
    features = {each: _definition(made, source) for each, made in needed.items()}
    definition = DatasetDefinition(prepare=prepare, features=features)
    return definition, {each: str(path.resolve()) for each, path in files.items()}


def explain(source: RecipeSource, command: str, needed: Mapping[str, SourceFeatures], files: Sequence[str]) -> str:
    """What to bring for some runs, where to put it, and how it is checked.

    Args:
        source: of the recipe.
        command: what to type behind `itrpipe run`.
        needed: features that these runs read.
        files: names of the further files that they read.
    """
    parts = [source.files[each] for each in files] + [made for made in needed.values() if made.explanation]
    lines = [line for part in parts for line in _explanation(part.path, part.explanation)]
    then = f"then run\n\n  itrpipe run {command}"
    return "\n".join([source.explanation.strip(), *lines, "", then, "", *_checks(source)])


def remember_definition(root: Path, dataset: str, definition: DatasetDefinition) -> None:
    """Saves where the dataset lies; features that other runs read stay known."""

    def told(now: DatasetDefinition) -> DatasetDefinition:
        features = {**now.features, **definition.features}
        return now.model_copy(update={"prepare": definition.prepare, "features": features})

    redefine(root, dataset, told)


def check_sizes(source: RecipeSource, prepared: Step) -> None:
    """Refuses a dataset whose splits have other sizes than the recipe expects.

    Raises:
        DataError: likewise.
    """
    from itrpipe.datasets.prepared import PreparedDataset

    counts = PreparedDataset.open(prepared.location.folder).counts()
    found = {split: counts.get(split, (0, 0))[0] for split in source.expected}
    if found == source.expected:
        return
    path = prepared.definition.source if prepared.definition else prepared.location.folder
    raise DataError(
        f"{path} has {_sizes(found)} images instead of {_sizes(source.expected)}, so published scores would not "
        "compare; complete it, or run a copy of the recipe without [source.expected] and `published`"
    )


def _named_files(recipe: Recipe, runs: Sequence[RecipeRun]) -> list[str]:
    own = [each for run in runs for each in (for_backbone(recipe.backbones, run.backbone).overrides, run.overrides)]
    values = [value for layer in (recipe.overrides, *own) for value in layer.values()]
    return [each for each in dict.fromkeys(map(placeholder, values)) if each is not None]


def _definition(made: SourceFeatures, source: Path) -> StageDefinition:
    place = str((source / made.path).resolve()) if made.path else None
    return StageDefinition(conf=made.conf, source=place, settings=made.settings)


def _explanation(path: str, text: str) -> list[str]:
    """A path below the folder and what it is; what is made from the images has no path."""
    first, *others = text.strip().splitlines()
    head = f"  FOLDER/{path}" if path else "  (nothing to bring)"
    return [f"{head:<{COLUMN}} {first}", *(f"{'':<{COLUMN}} {line.strip()}" for line in others)]


def _checks(source: RecipeSource) -> list[str]:
    sizes = f" The splits must have {_sizes(source.expected)} images." if source.expected else ""
    return [
        "Every image is opened once; captions and features are matched by id and by caption, and what does not",
        f"fit is reported before anything is trained.{sizes}",
        "An interrupted run goes on where it stopped.",
    ]


def _sizes(sizes: Mapping[Any, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in sizes.items())
