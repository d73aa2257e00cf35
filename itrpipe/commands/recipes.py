"""Recipes: a dataset, the runs to make on it, and the scores that were published for them.

A recipe is a TOML file in `stages/recipes/`:

    dataset = "flickr30k"          where artifacts go
    features = "precomp"           what runs read that name no features of their own; may be left out without a source
    title = "…"                    of the report
    [source]                       of what the user brings; without it the dataset is taken as it was prepared
    captions = "."                 below --source
    explanation = '''…'''          what to bring, shown when something is missing
    [source.expected]              images by split, where published scores are of these
    train = 29000
    [source.features.precomp]      features that runs read; without a path they are extracted from the images
    path = "f30k_precomp"          below --source
    conf = "precomp"               of extract; without it the name
    settings = {}                  of extract
    explanation = "…"
    [source.files."uniter.pt"]     a further file; settings name it as "{uniter.pt}"
    path = "uniter.pt"             below --source
    explanation = "…"
    [set]                          overrides, as for --set: train.epochs = 4
    [backbones.uniter]             of this backbone and its variants: features of runs, set of all trainings
    [tolerance]                    points of RSum: ok = 1.0, close = 3.0
    [tiny]                         what --tiny changes: set, backbones, and the features of all runs
    [[run]]                        one or more
    method = "aoq"                 or a list
    backbone = "vsrn"              or a list
    seeds = [0]
    features = ""                  empty: of the backbone or of the recipe
    set = {}                       overrides of this run and all it needs
    grid.weights = [{}, {}]        further such tables: a run for each, of several lists for each combination
    ensemble_with = ["vsrn.s1"]    models to average with, as for --ensemble-with
    published = [{ rsum = 486.3, where = "AOQ Table 2" }]        see `itrpipe.report.published.Published`
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from itrpipe.config import did_you_mean, empty_table, in_words, leaves, read_toml, stages_folder
from itrpipe.datasets.definition import EMBEDDED, check_name
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.models.registry import backbone_family
from itrpipe.report.published import Published, Tolerance
from itrpipe.training.settings import backbones, canonical_backbone, usual_features

MATRIX = ("method", "backbone")


def _by_dotted_keys(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    empty = next(filter(None, (empty_table(key, each) for key, each in value.items())), None)
    if empty:
        raise ValueError(f"{empty} is an empty table, which sets nothing; give a value or leave it out")
    return dict(leaves(value))


def _checked(name: str) -> str:
    try:
        return check_name(name)
    except UsageError as error:
        raise ValueError(str(error)) from None


Name = Annotated[str, AfterValidator(_checked)]
"""Name of a dataset or of features, which becomes that of a folder."""
NameOrNone = Annotated[str, AfterValidator(lambda name: name and _checked(name))]
Overrides = Annotated[dict[str, Any], BeforeValidator(_by_dotted_keys)]
"""Settings by their dotted keys, which may also be written as tables: `aoq = { loss.alpha = 0.4 }`."""


class RecipePart(BaseModel):
    """Base of every table of a recipe: unknown keys are errors, values cannot change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SourceFile(RecipePart):
    """A file or folder that the user brings.

    Attributes:
        path: below `--source`.
        explanation: what it is and where it comes from.
    """

    path: str = Field(min_length=1)
    explanation: str


class SourceFeatures(RecipePart):
    """Features that runs read.

    Attributes:
        path: of imported ones, below `--source`; empty for those that are extracted from the images.
        conf: configuration of `extract`; empty for the name of the features.
        settings: of it, by dotted key.
        explanation: what they are and where they come from.
    """

    path: str = ""
    conf: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    explanation: str = ""


class RecipeSource(RecipePart):
    """Files that the user brings; paths are relative to `--source` and lead to nothing outside it but by links.

    Attributes:
        captions: file or folder of the captions.
        explanation: what to bring, shown when something is missing.
        expected: images that splits must have; splits that are not named may have any number.
        features: by name; those that are not named are extracted by the configuration of their name.
        files: by the name that settings give them in braces.
    """

    captions: str
    explanation: str
    expected: dict[Literal["train", "val", "test"], Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    features: dict[Name, SourceFeatures] = Field(default_factory=dict)
    files: dict[str, SourceFile] = Field(default_factory=dict)


class ForBackbone(RecipePart):
    """What holds for one backbone and those variants of it that have no table of their own.

    Attributes:
        features: that its runs read; empty for the usual ones.
        overrides: of every training of it, also of those that other runs need.
    """

    features: str = ""
    overrides: Overrides = Field(default_factory=dict, alias="set")


class Tiny(RecipePart):
    """What `--tiny` changes, so that everything runs in minutes on a folder of images with captions.

    Attributes:
        overrides: of every run.
        backbones: of one backbone.
        features: that all runs read but those of backbones with their own or usual ones; empty for their own.
    """

    overrides: Overrides = Field(default_factory=dict, alias="set")
    backbones: dict[str, ForBackbone] = Field(default_factory=dict)
    features: str = ""


class RecipeRun(RecipePart):
    """One row of the results: a method on a backbone, once for each seed.

    Attributes:
        method: configuration of `train`.
        backbone: its backbone.
        seeds: of training; each makes a row.
        features: that it reads; empty for those of the backbone or of the recipe.
        overrides: of this run and all it needs.
        ensemble_with: models whose scores are averaged with those of the row, named as for `--ensemble-with`.
        published: what was published for it.
    """

    method: str
    backbone: str
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    features: str = ""
    overrides: Overrides = Field(default_factory=dict, alias="set")
    ensemble_with: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()

    @field_validator("backbone")
    @classmethod
    def _canonical(cls, value: str) -> str:
        return canonical_backbone(value)

    @property
    def name(self) -> str:
        """`aoq.vsrn`."""
        return f"{self.method}.{self.backbone}"

    @property
    def details(self) -> str:
        """The settings in which the run differs from others of its name: ` prior=0.001`."""
        values = {key.rpartition(".")[2]: value for key, value in self.overrides.items()}
        shown = {key: ",".join(value) if isinstance(value, list) else value for key, value in values.items()}
        return "".join(f" {key}={value}" for key, value in shown.items())


class Recipe(RecipePart):
    """A recipe file; see the module."""

    dataset: Name
    features: NameOrNone = ""
    title: str
    source: RecipeSource | None = None
    overrides: Overrides = Field(default_factory=dict, alias="set")
    backbones: dict[str, ForBackbone] = Field(default_factory=dict)
    tolerance: Tolerance = Tolerance()
    tiny: Tiny = Tiny()
    run: tuple[RecipeRun, ...] = Field(min_length=1)

    @field_validator("run", mode="before")
    @classmethod
    def _every_pair(cls, value: Any) -> Any:
        return list(itertools.chain.from_iterable(map(_pairs, value))) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _features_of_a_source(self) -> Recipe:
        if not self.features and (self.source is not None or self.dataset == EMBEDDED):
            raise ValueError("features are missing: name those that runs read which name no others")
        return self

    @model_validator(mode="after")
    def _known_backbones(self) -> Recipe:
        for name in (*self.backbones, *self.tiny.backbones):
            if name not in backbones():
                raise ValueError(f"there is no backbone {name!r}{did_you_mean(name, backbones())}")
        return self

    @model_validator(mode="after")
    def _known_files(self) -> Recipe:
        known = self.source.files if self.source else {}
        for values in (self.overrides, *(each.overrides for each in (*self.backbones.values(), *self.run))):
            for key, value in values.items():
                name = placeholder(value)
                if name is not None and name not in known:
                    raise ValueError(f"{key} = {value!r} names no file of [source.files]{did_you_mean(name, known)}")
        return self

    def features_of(self, run: RecipeRun, *, tiny: bool) -> str:
        """Name of the features that a run reads."""
        usual = usual_features(run.method, run.backbone, self.dataset)
        if tiny and self.tiny.features:
            return for_backbone(self.tiny.backbones, run.backbone).features or usual or self.tiny.features
        return run.features or for_backbone(self.backbones, run.backbone).features or usual or self.features

    def made_from(self, features: str) -> SourceFeatures:
        """How features are imported or extracted, with the configuration that does it."""
        chosen = self.source.features.get(features, SourceFeatures()) if self.source else SourceFeatures()
        return chosen.model_copy(update={"conf": chosen.conf or features})


def for_backbone(tables: Mapping[str, ForBackbone], backbone: str) -> ForBackbone:
    """The table of a backbone, else that of the one it is a variant of, else an empty one."""
    return tables.get(backbone) or tables.get(backbone_family(backbone)) or ForBackbone()


def placeholder(value: Any) -> str | None:
    """The file of `[source.files]` that a setting names in braces; None for any other value."""
    braced = isinstance(value, str) and value.startswith("{") and value.endswith("}")
    return value[1:-1] if braced else None


def recipe_titles() -> list[tuple[str, str]]:
    """Name and title of every recipe of `stages/recipes/`."""
    files = sorted((stages_folder() / "recipes").glob("*.toml"))
    return [(file.stem, str(read_toml(file)["title"])) for file in files]


def load_recipe(name: str) -> Recipe:
    """Reads a recipe by its name in `stages/recipes/` or by its path.

    Raises:
        UsageError: there is none of this name, or a path in it leads out of `--source`.
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
        recipe = Recipe.model_validate(read_toml(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{part}: " for part in (".".join(map(str, first["loc"])),) if part)
        raise DataError(f"{path}: {where}{in_words(first)}") from None
    if recipe.source is not None:
        _refuse_paths_outside(path, recipe.source)
    return recipe


def chosen_runs(recipe: Recipe, name: str, only: Sequence[str]) -> list[RecipeRun]:
    """The runs that `--only` names, in the order of the recipe; all of them where it names none.

    Args:
        recipe: to choose from.
        name: of it, for messages.
        only: METHOD.BACKBONE, METHOD or .BACKBONE each.

    Raises:
        UsageError: one of them names no run.
    """
    if not only:
        return list(recipe.run)
    chosen: list[RecipeRun] = []
    for text in only:
        method, _, backbone = text.partition(".")
        of_method = [run for run in recipe.run if method in ("", run.method)]
        named = [run for run in of_method if canonical_backbone(backbone) in ("", run.backbone)]
        # A recipe may have variants of a backbone only, as the two of SCAN whose mean is published.
        found = named or [run for run in of_method if backbone_family(run.backbone) == canonical_backbone(backbone)]
        if not found or not text.strip("."):
            known = list(dict.fromkeys(run.name for run in recipe.run))
            hint = did_you_mean(text, known) or f"; it has {', '.join(known)}"
            raise UsageError(f"--only {text}: recipe {name} has no such run{hint}")
        chosen += found
    return [run for run in recipe.run if run in chosen]


def _refuse_paths_outside(recipe: Path, source: RecipeSource) -> None:
    """A recipe names files below `--source` and no others; links that the user placed there are followed.

    Raises:
        UsageError: a path is absolute or climbs with `..`.
    """
    named = {"[source] captions": source.captions}
    named |= {f"[source.features.{name}] path": each.path for name, each in source.features.items()}
    named |= {f"[source.files.{name}] path": each.path for name, each in source.files.items()}
    for key, value in named.items():
        path = PurePosixPath(value)
        if path.is_absolute() or ".." in path.parts:
            raise UsageError(
                f"{recipe}: {key} = {value!r} leads out of the folder given with --source; name a path below it, and "
                "place a link there to what lies elsewhere"
            )


def _pairs(run: Any) -> Iterator[Any]:
    """A `[[run]]` of several methods, backbones or settings as one of each, backbone after backbone."""
    if not isinstance(run, Mapping):
        yield run
        return
    methods, backbones = (run[key] if isinstance(run.get(key), list) else [run.get(key)] for key in MATRIX)
    rest = {key: value for key, value in run.items() if key != "grid"}
    for backbone, method, values in itertools.product(backbones, methods, _combined(run.get("set"), run.get("grid"))):
        own = {"method": method, "backbone": backbone, "set": values}
        yield {**rest, **{key: value for key, value in own.items() if value is not None}}


def _combined(values: Any, grid: Any) -> list[Any]:
    """The settings of a run, with one table from each list of a grid; as they are where there is no grid."""
    if grid is None:
        return [values]
    lists = list(grid.values()) if isinstance(grid, Mapping) else []
    tables = [one for each in lists if isinstance(each, list) for one in each or [None]]
    if (
        not lists
        or not all(isinstance(each, list) for each in lists)
        or not all(isinstance(one, Mapping) for one in (values or {}, *tables))
    ):
        raise ValueError("grid is a table of lists, each of tables of settings, such as grid.weights = [{…}, {…}]")
    combinations = itertools.product([values or {}], *lists)
    return [dict(itertools.chain.from_iterable(_by_dotted_keys(one).items() for one in each)) for each in combinations]
