"""Recipes: a dataset, the runs to make on it, and the scores that were published for them.

A recipe is a TOML file in `stages/recipes/`:

    dataset = "flickr30k"          where artifacts go
    features = "precomp"           what runs read that name no features of their own; left out where none reads features
    title = "…"                    of the report
    next = ["search …"]            commands that are proposed at the end; names in braces are filled in
    extends = "coco"               another recipe of this folder, whose tables other than its runs hold here too
    [source]                       of what the user brings; without it the dataset is taken as it was prepared
    captions = "."                 below --source; left out: --source itself, all that `prepare --source` takes
    explanation = '''…'''          what to bring, shown when something is missing
    [source.expected]              images by split, where published scores are of these
    train = 29000
    [source.features.precomp]      features that runs read; without a path they are extracted from the images
    path = "f30k_precomp"          below --source
    conf = "precomp"               of extract; without it the name
    settings = {}                  of extract
    explanation = "…"
    [source.files."uniter.pt"]     a further file; settings name it as "{uniter.pt}", also inside texts and lists
    path = "uniter.pt"             below --source
    explanation = "…"
    [encoders]                     hub ids or folders, which --vision and --text replace; settings name them likewise
    vision = "…"                   "{vision}"
    text = "…"                     "{text}", and inside others: judges = ["captions:{text}"]
    [set]                          overrides, as for --set: train.epochs = 4
    [backbones.uniter]             of this backbone and its variants: features of runs, set of all trainings
    [tolerance]                    points of RSum: ok = 1.0, close = 3.0
    [tiny]                         what --tiny changes: set, backbones, encoders, and the features of all runs
    [[run]]                        one or more
    method = "aoq"                 or a list
    backbone = "vsrn"              or a list
    name = ""                      the model is remembered under this name, as by `train --name`
    seeds = [0]
    group = ""                     name of some runs, for `--only`
    features = ""                  empty: of the backbone or of the recipe
    set = {}                       overrides of this run and all it needs
    grid.weights = [{}, {}]        further such tables: a run for each, of several lists for each combination
    ensemble_with = ["vsrn.s1"]    models to average with, as for --ensemble-with
    published = [{ rsum = 486.3, where = "AOQ Table 2" }]        see `itrpipe.report.published.Published`
    rows = [{}, {}]                a run for each, with these keys beside those of the table; a grid of both is combined
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from itrpipe.config import EXTENDS, Settings, did_you_mean, empty_table, in_words, leaves, read_toml, stages_folder
from itrpipe.datasets.definition import EMBEDDED, DatasetDefinition, StageDefinition, check_name, load_definition
from itrpipe.errors import DataError, MissingSourceError, UsageError
from itrpipe.models.declaration import backbone_family, backbone_names, canonical_backbone, settings_of
from itrpipe.report.published import Published, Tolerance

_COLUMN = 36
"""Column in which explanations begin, behind the path they explain."""


def _by_dotted_keys(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    for key, each in value.items():
        empty = empty_table(key, each)
        if empty:
            raise ValueError(f"{empty} is an empty table, which sets nothing; give a value or leave it out")
    return dict(leaves(value))


def _valid_name(name: str) -> str:
    if not name:
        return ""
    try:
        return check_name(name)
    except UsageError as error:
        raise ValueError(str(error)) from None


def _below(path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(
            f"{path!r} leads out of the folder given with --source; name a path below it, and place a link there to "
            "what lies elsewhere"
        )
    return path


_BRACES = re.compile(r"\{([^{}]+)\}")
_MODEL = "train.model."
"""Begins the keys of settings of a backbone."""
Name = Annotated[str, AfterValidator(_valid_name)]
"""Name of a dataset or of features, which becomes that of a folder."""
Below = Annotated[str, AfterValidator(_below)]
"""Path below `--source`; links that the user placed there are followed."""
Overrides = Annotated[dict[str, Any], BeforeValidator(_by_dotted_keys)]
"""Settings by their dotted keys, which may also be written as tables: `aoq = { loss.alpha = 0.4 }`."""


class SourceFile(Settings):
    """A file or folder that the user brings.

    Attributes:
        path: below `--source`.
        explanation: what it is and where it comes from.
    """

    path: Below = Field(min_length=1)
    explanation: str


class SourceFeatures(Settings):
    """Features that runs read.

    Attributes:
        path: of imported ones, below `--source`; empty for those that are extracted from the images.
        conf: configuration of `extract`; empty for the name of the features.
        settings: of it, by dotted key.
        explanation: what they are and where they come from.
    """

    path: Below = ""
    conf: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)
    explanation: str = ""


class RecipeSource(Settings):
    """Files that the user brings for a recipe.

    Attributes:
        captions: file or folder of the captions; `.` is `--source` itself, which may be a file.
        explanation: what to bring, shown when something is missing.
        expected: images that splits must have; splits that are not named may have any number.
        features: by name; those that are not named are extracted by the configuration of their name.
        files: by the name that settings give them in braces.
    """

    captions: Below = "."
    explanation: str
    expected: dict[Literal["train", "val", "test"], Annotated[int, Field(ge=0)]] = Field(default_factory=dict)
    features: dict[Name, SourceFeatures] = Field(default_factory=dict)
    files: dict[str, SourceFile] = Field(default_factory=dict)


class ForBackbone(Settings):
    """Settings of one backbone and those variants of it that have no table of their own.

    Attributes:
        features: that its runs read; empty for those of the recipe.
        overrides: of every training of it, also of those that other runs need.
    """

    features: str = ""
    overrides: Overrides = Field(default_factory=dict, alias="set")


class Tiny(Settings):
    """Changes by `--tiny`, so that everything runs in minutes on a folder of images with captions.

    Attributes:
        overrides: of every run.
        backbones: of one backbone.
        features: that all runs read but those of backbones with their own; empty for those of the recipe.
        encoders: that names in braces stand for, in the place of those of the recipe.
    """

    overrides: Overrides = Field(default_factory=dict, alias="set")
    backbones: dict[str, ForBackbone] = Field(default_factory=dict)
    features: str = ""
    encoders: dict[str, str] = Field(default_factory=dict)


class RecipeRun(Settings):
    """One row of the results: a method on a backbone, once for each seed.

    Attributes:
        method: configuration of `train`.
        backbone: its backbone.
        name: under which the model is remembered; empty for none.
        seeds: of training; each makes a row.
        group: by which `--only` names several runs; empty: none.
        features: that it reads; empty for those of the backbone or of the recipe.
        overrides: of this run and all it needs.
        ensemble_with: models whose scores are averaged with those of the row, named as for `--ensemble-with`.
        published: what was published for it.
    """

    method: str
    backbone: Annotated[str, AfterValidator(canonical_backbone)]
    name: Name = ""
    seeds: tuple[int, ...] = Field(default=(0,), min_length=1)
    group: str = ""
    features: str = ""
    overrides: Overrides = Field(default_factory=dict, alias="set")
    ensemble_with: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()

    @property
    def label(self) -> str:
        """Return method and backbone, such as `aoq.vsrn`."""
        return f"{self.method}.{self.backbone}"

    @property
    def details(self) -> str:
        """Return the settings in which the run differs from others of its name: ` prior=0.001`."""
        text = ""
        for key, value in self.overrides.items():
            if isinstance(value, list):
                value = ",".join(value)
            text += f" {key.rpartition('.')[2]}={value}"
        return text


class Recipe(Settings):
    """A recipe file; see the module."""

    dataset: Name = Field(min_length=1)
    features: Name = ""
    title: str
    next: tuple[str, ...] = ()
    source: RecipeSource | None = None
    encoders: dict[Literal["vision", "text"], str] = Field(default_factory=dict)
    overrides: Overrides = Field(default_factory=dict, alias="set")
    backbones: dict[str, ForBackbone] = Field(default_factory=dict)
    tolerance: Tolerance = Tolerance()
    tiny: Tiny = Tiny()
    run: tuple[RecipeRun, ...] = Field(min_length=1)

    @field_validator("run", mode="before")
    @classmethod
    def _every_run(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        runs = []
        for run in value:
            runs += _runs_of(run)
        return runs

    @model_validator(mode="after")
    def _names_are_known(self) -> Recipe:
        for name in (*self.backbones, *self.tiny.backbones):
            if name not in backbone_names():
                raise ValueError(f"there is no backbone {name!r}{did_you_mean(name, backbone_names())}")
        known = set(self.encoders)
        if self.source is not None:
            known |= self.source.files.keys()
        for key, name in self._braced([*self.backbones.values(), *self.run]):
            if name not in known:
                hint = did_you_mean(name, known)
                raise ValueError(f"{key}: {{{name}}} names no file of [source.files] and none of [encoders]{hint}")
        for name in self.names:
            if self.names.count(name) > 1:
                raise ValueError(f"several runs have the name {name!r}; give each its own, or leave it out")
        return self

    @property
    def names(self) -> list[str]:
        """Return the names of the models that runs train."""
        return [run.name for run in self.run if run.name]

    def features_of(self, run: RecipeRun, *, tiny: bool) -> str:
        """Return the name of the features that a run reads; empty for one that reads photographs."""
        of_backbone = for_backbone(self.backbones, run.backbone)
        tables = [self.overrides, of_backbone.overrides, run.overrides]
        features = run.features or of_backbone.features or self.features
        if tiny:
            of_backbone = for_backbone(self.tiny.backbones, run.backbone)
            tables += [self.tiny.overrides, of_backbone.overrides]
            if self.tiny.features:
                features = of_backbone.features or self.tiny.features
        model = {}
        for table in tables:
            for key, value in table.items():
                if key.startswith(_MODEL):
                    model[key.removeprefix(_MODEL)] = value
        reads = settings_of(run.backbone).model_construct(**model).reads()
        return "" if reads == ("pixels",) else features

    def chosen(self, name: str, only: Sequence[str]) -> list[RecipeRun]:
        """Return the runs that `--only` names, in the order of the recipe; all of them where it names none.

        Args:
            name: of the recipe, for messages.
            only: NAME, GROUP, METHOD.BACKBONE, METHOD or .BACKBONE each.

        Raises:
            UsageError: one of them names no run.
        """
        if not only:
            return list(self.run)
        chosen: list[RecipeRun] = []
        for text in only:
            method, _, backbone = text.partition(".")
            backbone = canonical_backbone(backbone)
            matches = []
            variants = []
            for run in self.run:
                if method not in ("", run.method, run.name, run.group):
                    continue
                if backbone in ("", run.backbone):
                    matches.append(run)
                elif backbone_family(run.backbone) == backbone:
                    variants.append(run)
            # A recipe may have variants of a backbone only, as the two of SCAN whose mean is published.
            matches = matches or variants
            if not matches or not text.strip("."):
                known = list(dict.fromkeys(run.label for run in self.run))
                hint = did_you_mean(text, known) or f"; it has {', '.join(known)}"
                raise UsageError(f"--only {text}: recipe {name} has no such run{hint}")
            chosen += matches
        return [run for run in self.run if run in chosen]

    def define_dataset(
        self,
        root: Path,
        name: str,
        runs: Sequence[RecipeRun],
        folder: Path | None,
        encoders: Mapping[str, str],
        *,
        tiny: bool,
    ) -> tuple[DatasetDefinition, dict[str, str]]:
        """Define the dataset by the recipe and the user's folder, with the features and files that some runs need.

        A recipe without a source takes the dataset as it was prepared, features and all; the embedded one is made.

        Args:
            root: the data folder.
            name: of the recipe, for messages.
            runs: of the recipe.
            folder: that the user brings, or a table file.
            encoders: that replace those of the recipe.
            tiny: toy models, which have random weights, so that no weights are asked for.

        Returns:
            The definition, and name in braces -> the encoder, or the whole path of the file, that it stands for.

        Raises:
            UsageError: the recipe needs no source, or has no encoders to replace.
            MissingSourceError: there is no source, or something that these runs need is not in it.
        """
        source = self.source
        for side in sorted(encoders.keys() - self.encoders.keys()):
            raise UsageError(f"recipe {name} names no {side} encoder and takes no --{side}; leave it out")
        places = {**self.encoders, **encoders}
        if tiny:
            places |= self.tiny.encoders
        if source is None and folder is not None:
            raise UsageError(f"recipe {name} brings or has its data already and takes no --source; leave it out")
        if source is None and self.dataset != EMBEDDED:
            return load_definition(root, self.dataset), places
        needed = self._needed_features(runs, places, tiny=tiny)
        if source is None:
            prepare = StageDefinition(conf=EMBEDDED)
            return DatasetDefinition(prepare=prepare, features=_defined(needed, {})), places

        files = {}
        if not tiny:
            files = self._needed_files(source, runs)
        parts = [*needed.values(), *files.values()]
        explanation = _explanation(source, name, [*files.values(), *needed.values()])
        if folder is None:
            raise MissingSourceError(explanation)
        for below in (source.captions, *(part.path for part in parts)):
            if not (folder / below).exists():
                raise MissingSourceError(f"{folder / below} does not exist\n\n{explanation}")
        paths = {}
        for part in parts:
            if part.path:
                paths[part.path] = str((folder / part.path).resolve())
        prepare = StageDefinition(conf="files", source=str((folder / source.captions).resolve()))
        before = load_definition(root, self.dataset).prepare
        if before is not None and before.source == prepare.source:
            prepare = before  # with the columns and shares that `itrpipe prepare` was told
        for key, file in files.items():
            places[key] = paths[file.path]
        return DatasetDefinition(prepare=prepare, features=_defined(needed, paths)), places

    def _needed_features(
        self, runs: Iterable[RecipeRun], places: Mapping[str, str], *, tiny: bool
    ) -> dict[str, SourceFeatures]:
        """Return the features that some runs read by name, each with its configuration of `extract`."""
        needed = {}
        for run in runs:
            name = self.features_of(run, tiny=tiny)
            if not name:
                continue
            features = SourceFeatures()
            if self.source is not None:
                features = self.source.features.get(name, features)
            settings = {}
            for key, value in features.settings.items():
                settings[key] = fill_in(value, places)
            needed[name] = features.model_copy(update={"conf": features.conf or name, "settings": settings})
        return needed

    def _needed_files(self, source: RecipeSource, runs: Sequence[RecipeRun]) -> dict[str, SourceFile]:
        """Return the files that settings of some runs name in braces."""
        of_backbones = [for_backbone(self.backbones, run.backbone) for run in runs]
        files = {}
        for _, name in self._braced([*of_backbones, *runs]):
            if name in source.files:
                files[name] = source.files[name]
        return files

    def _braced(self, parts: Iterable[ForBackbone | RecipeRun]) -> Iterator[tuple[str, str]]:
        """Yield key and name of each name in braces in the settings of the recipe and of some parts of it."""
        for part in (self, *parts):
            for key, value in part.overrides.items():
                for name in names_in(value):
                    yield key, name


def for_backbone(tables: Mapping[str, ForBackbone], backbone: str) -> ForBackbone:
    """Return the table of a backbone, else that of the one it is a variant of, else an empty one."""
    return tables.get(backbone) or tables.get(backbone_family(backbone)) or ForBackbone()


def names_in(value: Any) -> list[str]:
    """Return the names in braces of a setting, which may be a text or a list with texts."""
    names = []
    for text in _as_list(value):
        if isinstance(text, str):
            names += _BRACES.findall(text)
    return names


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def fill_in(value: Any, places: Mapping[str, str]) -> Any:
    """Replace each name in braces of a setting by the encoder or path that it stands for."""
    if isinstance(value, list):
        return [fill_in(each, places) for each in value]
    if isinstance(value, str):
        return _BRACES.sub(lambda name: places[name[1]], value)
    return value


def _defined(features: Mapping[str, SourceFeatures], paths: Mapping[str, str]) -> dict[str, StageDefinition]:
    """Return the definitions of features; `paths` has the whole paths of imported ones."""
    definitions = {}
    for name, each in features.items():
        source = paths.get(each.path)
        definitions[name] = StageDefinition(conf=each.conf, source=source, settings=each.settings)
    return definitions


def recipe_files() -> dict[str, Path]:
    """Return the files of the recipes of `stages/recipes/`, by name."""
    files = sorted((stages_folder() / "recipes").glob("*.toml"))
    return {file.stem: file for file in files}


def load_recipe(name: str) -> Recipe:
    """Read a recipe by its name in `stages/recipes/` or by its path.

    Raises:
        UsageError: there is none of this name.
        MissingInputError: there is no such file.
        DataError: the file is not a recipe, or a path in it leads out of `--source`.
    """
    path = Path(name) if name.endswith(".toml") else _file_of(name)
    tables = read_toml(path)
    extended = tables.pop(EXTENDS, None)
    if extended:
        base = read_toml(_file_of(str(extended)))
        base["run"] = []
        tables = _laid_over(base, tables)
    try:
        return Recipe.model_validate(tables)
    except ValidationError as error:
        first = error.errors()[0]
        where = str(path)
        if first["loc"]:
            where += ": " + ".".join(map(str, first["loc"]))
        raise DataError(f"{where}: {in_words(first)}") from None
    except RecursionError:
        raise DataError(f"{path} has hundreds of tables in each other; write fewer") from None


def _file_of(name: str) -> Path:
    files = recipe_files()
    if name not in files:
        hint = did_you_mean(name, files) or f"; known: {', '.join(files)}"
        raise UsageError(f"no recipe {name!r}{hint}")
    return files[name]


def _laid_over(base: dict[str, Any], tables: Mapping[str, Any]) -> dict[str, Any]:
    """Lay the tables of a recipe over those of the recipe that it extends, and return these."""
    for key, value in tables.items():
        below = base.get(key)
        if isinstance(value, Mapping) and isinstance(below, dict):
            value = _laid_over(below, value)
        base[key] = value
    return base


def _runs_of(run: Any) -> Iterator[Any]:
    """Yield the runs that a `[[run]]` of several rows, methods, backbones or settings stands for, row after row."""
    if not isinstance(run, Mapping):
        yield run
        return
    rows = run.get("rows", [{}])
    if not _are_tables(rows) or any("rows" in row for row in rows):
        raise ValueError("rows is a list of tables, each of keys of a run, such as rows = [{…}, {…}]")
    for row in rows:
        yield from _combinations(run, row)


def _combinations(run: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a run for each combination of the backbones, methods and settings of a row, backbone after backbone."""
    common = {**run, **row}
    for key in ("rows", "grid", "set"):
        common.pop(key, None)
    lists: list[Any] = [[table["set"]] for table in (run, row) if "set" in table]
    for table in (run, row):
        if "grid" not in table:
            continue
        grid = table["grid"]
        if isinstance(grid, Mapping) and grid:
            lists += grid.values()
        else:
            lists.append(grid)  # is refused
    if not all(map(_are_tables, lists)):
        raise ValueError("grid is a table of lists, each of tables of settings, such as grid.weights = [{…}, {…}]")
    backbones = _as_list(common.get("backbone"))
    methods = _as_list(common.get("method"))
    for backbone, method, *tables in itertools.product(backbones, methods, *lists):
        combination = dict(common)
        if backbone is not None:
            combination["backbone"] = backbone
        if method is not None:
            combination["method"] = method
        combination["set"] = {}
        for table in tables:
            combination["set"] |= _by_dotted_keys(table)
        yield combination


def _are_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _explanation(source: RecipeSource, name: str, parts: Iterable[SourceFile | SourceFeatures]) -> str:
    """Explain what to bring for some runs, where to put it, and how it is checked."""
    lines = [source.explanation.strip()]
    for part in parts:
        if not part.explanation:
            continue
        first, *others = part.explanation.strip().splitlines()
        place = f"FOLDER/{part.path}" if part.path else "(nothing to bring)"
        lines.append(f"  {place:<{_COLUMN - 2}} {first}")
        for line in others:
            lines.append(f"{'':<{_COLUMN}} {line.strip()}")
    sizes = f" The splits must have {sizes_text(source.expected)} images." if source.expected else ""
    lines.append(f"""
then run

  itrpipe run {name} --source FOLDER

Every image is opened once; captions and features are matched by id and by caption, and what does not
fit is reported before anything is trained.{sizes}
An interrupted run goes on where it stopped.""")
    return "\n".join(lines)


def sizes_text(sizes: Mapping[Any, int]) -> str:
    """Return the images of each split in words."""
    return ", ".join(f"{count:,} {split}" for split, count in sizes.items())
