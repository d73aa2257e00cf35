"""Read declarations in TOML, merge their layers, and bind the values, each with its origin, to classes of settings.

A stage is declared in `stages/<n>_<stage>.toml`. Its settings are built from layers, of which later ones win:
`[defaults]`, `[conf.<name>]`, a recipe, the command line. In a layer, a sub-table named after a backbone or a dataset
holds the values for this backbone or dataset alone, as `[conf.aoq.vsrn.flickr30k]` does. Settings that change the
result are in the layers; settings of the execution are in `[execution]` and never enter a fingerprint.
"""

from __future__ import annotations

import difflib
import functools
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import ErrorDetails

from itrpipe import plugins
from itrpipe.errors import DataError, MissingInputError, UsageError

DATASET_SELECTORS = ("scenes", "flickr8k", "flickr30k", "coco")
COMMAND_LINE = "command line"
EVERYWHERE = "*"
"""Scope of execution settings of all steps that have them, upstream ones included."""
EXTENDS = "extends"
SHOWN_AS = "shown_as"
ABOUT = "about"
BASELINE = "baseline"
ABOUT_CONF = (EXTENDS, SHOWN_AS, ABOUT, BASELINE)
"""Keys of a `[conf.<name>]` table that are no settings: the configuration that it extends, its title in tables, a line
about it, and whether reports compare others with it."""

LARGEST = 2**31 - 1
"""Largest whole number that counts something."""
LARGEST_SEED = 2**63 - 1
"""Largest seed of all generators."""
EPOCHS = "epochs"
_TERM = re.compile(r"(?:(?P<times>[1-9]\d{0,2}) )?(?P<conf>[a-z][a-z0-9-]*)")
SettingsType = TypeVar("SettingsType", bound="Settings")
_MAX_NAMES = 20
"""Largest number of names that a message lists."""
_OWNERS = {"loss": "method", "model": "backbone"}
"""Group of settings -> the setting that chooses its class."""


@dataclass(frozen=True)
class Outside:
    """Mark of a setting that names files outside the data folder: their content counts, and not their place.

    Attributes:
        digests: name of the setting, value and a `DigestCache` -> digests by the names of sources.
        seen: value -> the value that a fingerprint has for it.
    """

    digests: Callable[[str, Any, Any], Mapping[str, str]]
    seen: Callable[[Any], Any] = lambda value: "local"


class Settings(BaseModel):
    """Base of every group of settings: unknown keys are errors, values cannot change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*")
    @classmethod
    def _fits_a_machine(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse numbers, alone or in a list, that are too large to compute with."""
        largest = LARGEST_SEED if str(info.field_name).endswith("seed") else LARGEST
        numbers = value if isinstance(value, tuple | list) else [value]
        for number in numbers:
            if isinstance(number, int) and abs(number) > largest:
                raise ValueError(f"it should be {largest:,} at most")
        return value

    @classmethod
    def groups(cls, values: Mapping[str, Any]) -> dict[str, type[Settings]]:
        """Return the classes of those groups of settings whose class other values choose."""
        return {}

    def counted(self) -> dict[str, Any]:
        """Return the values as a fingerprint sees them, ready for JSON; see `Outside`."""
        values = self.model_dump(mode="json")
        for name, value, mark in self.outside():
            values[name] = mark.seen(value)
        return values

    def outside(self) -> Iterator[tuple[str, Any, Outside]]:
        """Yield name, value and mark of the settings that name files outside the data folder and are given."""
        for name, field_info in type(self).model_fields.items():
            marks = [mark for mark in field_info.metadata if isinstance(mark, Outside)]
            value = getattr(self, name)
            if marks and value != field_info.default:
                yield name, value, marks[0]


@dataclass(frozen=True)
class Override:
    """One value that replaces the declared one.

    Attributes:
        scope: stage or configuration that it is limited to; None for the requested step; `EVERYWHERE`.
        key: dotted key of the setting, or its end where no other setting ends so.
        value: of the setting.
        origin: where it was given, for messages.
        backbone: it is limited to steps that are asked for with this one; empty for any.
    """

    scope: str | None
    key: str
    value: Any = field(hash=False)  # which may be a list
    origin: str = COMMAND_LINE
    backbone: str = ""

    @property
    def name(self) -> str:
        """Return the key with its scope, as `--set` takes it."""
        if self.scope:
            return f"{self.scope}.{self.key}"
        return self.key


@dataclass(frozen=True)
class Declaration:
    """One `stages/*.toml`, read but not yet bound to a settings class.

    Attributes:
        stage: the stage's name, from the file stem without its number.
        path: the file.
        defaults: table `[defaults]`.
        execution: table `[execution]`.
        confs: tables `[conf.<name>]`.
        plugin_files: section, such as `conf.<name>` -> file of the plug-in that declares it.
    """

    stage: str
    path: Path
    defaults: dict[str, Any]
    execution: dict[str, Any]
    confs: dict[str, dict[str, Any]]
    plugin_files: dict[str, Path] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """Return the first sentence of the header comment."""
        header = self.path.read_text(encoding="utf-8-sig").partition("\n#\n")[0]
        lines = [line.removeprefix("#").strip() for line in header.splitlines()]
        return " ".join(lines)

    def origin(self, section: str) -> str:
        """Return file and section, for people."""
        table = ".".join(section.split(".")[:2])
        file = self.plugin_files.get(table, self.path)
        return f"{file.name} [{section}]"


@dataclass
class Resolved:
    """Values of all layers merged, with the origin of each leaf.

    Attributes:
        values: nested settings.
        origins: dotted key -> the layer it came from, such as `4_train.toml [conf.aoq.vsrn]`.
    """

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def merge(self, layer: Mapping[str, Any], origin: str) -> None:
        """Let every leaf of `layer` replace the present value, and remember `origin` for it."""
        for key, value in leaves(layer):
            *parents, last = key.split(".")
            table = self.values
            for parent in parents:
                if not isinstance(table.get(parent), dict):
                    table[parent] = {}
                table = table[parent]
            table[last] = value
            self.origins[key] = origin


def stages_folder() -> Path:
    """Return the folder of the declarations: `stages/` of a checkout, else the copy inside the installed package.

    Raises:
        MissingInputError: neither exists, so the installation is broken.
    """
    package = Path(__file__).resolve().parent
    for folder in (package.parent / "stages", package / "_stages"):
        if any(folder.glob("[0-9]*_*.toml")):
            return folder
    raise MissingInputError(f"no stage declarations next to or inside {package}; reinstall itrpipe")


@functools.cache
def declared_stages() -> dict[str, Path]:
    """Return the declaration file of every stage, in the order of the files' numbers."""
    files = sorted(stages_folder().glob("[0-9]*_*.toml"), key=lambda path: int(path.stem.partition("_")[0]))
    return {path.stem.partition("_")[2]: path for path in files}


@functools.cache
def load_declaration(stage: str) -> Declaration:
    """Read the declaration of a stage, see `declared_stages`.

    Raises:
        DataError: the file is not valid TOML or has a table that is not one of the three known kinds.
    """
    path = declared_stages()[stage]
    tables = {"defaults": {}, "execution": {}, "conf": {}, **read_toml(path)}
    if len(tables) > 3:
        other = min(tables.keys() - {"defaults", "execution", "conf"})
        raise DataError(f"{path}: unknown table [{other}]; known are [defaults], [execution], [conf.<name>]")
    files = {}
    for plugin in installed_plugins():
        if plugin.file and plugins.STAGES[plugin.group] == stage:
            for section, named in plugin.tables.items():
                tables[section] |= named
                for name in named:
                    files[f"{section}.{name}"] = plugin.file
    return Declaration(stage, path, tables["defaults"], tables["execution"], tables["conf"], files)


@functools.cache
def installed_plugins() -> list[plugins.Plugin]:
    """Return the plug-ins of installed packages, also those that cannot be used; none may replace our own tables."""
    owners = {}
    for stage in set(plugins.STAGES.values()):
        path = declared_stages()[stage]
        for section, named in read_toml(path).items():
            for name in named:
                owners[stage, section, name] = path
    return plugins.find_plugins(owners)


def usable(group: str) -> dict[str, plugins.Plugin]:
    """Return the plug-ins of a group that can be used, by name."""
    return {each.name: each for each in installed_plugins() if each.group == group and not each.problem}


def why_unusable(name: str) -> str:
    """Return the problem of the first plug-in of this name that cannot be used; empty if there is none."""
    for plugin in installed_plugins():
        if plugin.name == name and plugin.problem:
            return plugin.problem
    return ""


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        MissingInputError: no such file.
        DataError: syntax error, with its line; or it is a folder or a pipe.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise DataError(f"{path} is no file; name one of TOML")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise MissingInputError(f"no such file: {path}") from None
    except (ValueError, RecursionError) as error:  # also whole numbers of thousands of digits
        raise DataError(f"{path} is not valid TOML: {error}") from None


def resolve(
    declaration: Declaration,
    conf: str,
    *,
    backbones: Iterable[str] = (),
    backbone: str | None = None,
    dataset: str | None = None,
) -> Resolved:
    """Merge the declared layers of a configuration.

    Args:
        declaration: the stage.
        conf: name of a `[conf.<name>]` table, or several that have a `kind` as `a+b`: then the values of each
            lie under its name.
        backbones: every name that counts as a backbone selector.
        backbone: the selected backbone, if the stage has one.
        dataset: the selected dataset; sub-tables of other datasets are skipped.

    Raises:
        UsageError: there is no such conf.
    """
    selectors = {*backbones, *DATASET_SELECTORS}
    chosen = []
    if backbone:
        chosen += _with_family(backbone, selectors)
    if dataset:
        chosen.append(dataset)

    def declared(name: str) -> Resolved:
        resolved = Resolved()
        for table, origin in _layers(declaration, name, selectors, chosen):
            resolved.merge(table, origin)
        return resolved

    resolved = declared(conf)
    rule = resolved.values.get(EPOCHS)
    if isinstance(rule, str):
        origin = resolved.origins[EPOCHS]
        resolved.merge(_summed_epochs(rule, declared, origin), origin)
    return resolved


def declared_backbone(declaration: Declaration, conf: str, backbones: Iterable[str], dataset: str) -> Any:
    """Return the backbone that a configuration declares for a dataset; None if it declares none."""
    backbone = None
    for table, _ in _layers(declaration, conf, {*backbones, *DATASET_SELECTORS}, [dataset]):
        backbone = table.get("backbone", backbone)
    return backbone


def _layers(
    declaration: Declaration, conf: str, selectors: set[str], chosen: list[str]
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the tables of a configuration, each with its origin, in the order in which they are merged."""
    parts = conf.split("+")  # of a combination `a+b`, which those that have a `kind` can form
    if not all(kind_of(declaration, part) for part in parts):
        parts = [conf]
    if parts[0] not in declaration.confs:
        reason = why_unusable(conf)
        if reason:
            raise UsageError(f"{conf!r} cannot be used: {reason}")
        hint = did_you_mean(conf, declaration.confs)
        if not hint and len(declaration.confs) > _MAX_NAMES:
            hint = "; `itrpipe list methods` has them"
        elif not hint:
            hint = f"; known: {', '.join(declaration.confs) or 'none'}"
        kind = {"train": "method", "extract": "extractor"}.get(declaration.stage, "configuration")
        raise UsageError(f"{kind} {conf!r} is not declared in {declaration.path.name}{hint}")
    for part in parts:
        tables = {"defaults": declaration.defaults}
        for name in extended(declaration, part):
            tables[f"conf.{name}"] = declaration.confs[name]
        for name, table in tables.items():
            layers = sorted(_select(table, name, selectors, chosen), key=lambda layer: layer[0])
            for _, section, layer in layers:
                if part != conf:
                    layer = {part: layer}
                yield layer, declaration.origin(section)


def _summed_epochs(rule: str, declared: Callable[[str], Resolved], origin: str) -> dict[str, Any]:
    """Return the sum of a rule, and the epochs after which the learning rate decays, in proportion to the first term's.

    Args:
        rule: such as `triplet + 3 aoq`.
        declared: resolves another configuration.
        origin: of the rule.

    Raises:
        DataError: the rule has another form, or one of its configurations has no number of epochs itself.
    """
    total = 0
    first = {}
    for text in rule.split("+"):
        term = _TERM.fullmatch(text.strip())
        values = declared(term["conf"]).values if term else {}
        if term is None or not isinstance(values.get(EPOCHS), int):
            raise DataError(
                f"{origin}: epochs = {rule!r}; give a number, or a sum of other configurations' epochs that are "
                'numbers, such as "triplet + 3 aoq"'
            )
        total += int(term["times"] or 1) * values[EPOCHS]
        first = first or values
    factor = total / first[EPOCHS]
    summed: dict[str, Any] = {EPOCHS: total}
    if "decay_every" in first:
        summed["decay_every"] = round(first["decay_every"] * factor)
    if "decay_at" in first:
        summed["decay_at"] = [round(epoch * factor) for epoch in first["decay_at"]]
    return summed


def bind(model: type[SettingsType], resolved: Resolved, where: str) -> SettingsType:
    """Validate resolved values against a settings class.

    Args:
        model: the class.
        resolved: values and their origins.
        where: stage and configuration, for the message (`train aoq`).

    Raises:
        UsageError: an unknown key (with the nearest known one) or a value out of its range, with its origin.
    """
    try:
        return model.model_validate(resolved.values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        setting = ".".join(part for part in first["loc"] if isinstance(part, str))  # the list, if it is an element
        origins = [origin for name, origin in resolved.origins.items() if f"{name}.".startswith(f"{setting}.")]
        origin = origins[0] if origins else "default"
        owner = _OWNERS.get(key.partition(".")[0], "")
        of = ""
        if resolved.values.get(owner):
            of = f" of {owner} {resolved.values[owner]!r}"
        if first["type"] == "extra_forbidden":
            known = {name for name in resolved.origins if not f"{name}.".startswith(f"{key}.")}
            remedy = did_you_mean(key, {*known, *model.model_fields, *declared_stages()})
            if not remedy:
                stage, _, conf = where.partition(" ")
                remedy = f"; `itrpipe show {stage.replace('_', '-')} {conf}` lists all"
            raise UsageError(f"{where}: unknown setting {key!r}{of} (from {origin}){remedy}") from None
        if first["type"] == "missing":
            raise UsageError(f"{where}: setting {key!r} has no value; give --set {key}=…") from None
        message = in_words(first)
        if isinstance(first["input"], Mapping):  # a rule about several values; its message names them
            place = f"{where}: {key}" if key else where
            raise UsageError(f"{place}: {message}") from None
        raise UsageError(f"{where}: {key} = {first['input']!r} (from {origin}): {message}") from None


def in_words(problem: ErrorDetails) -> str:
    """Return a problem of pydantic in the words of a user."""
    return problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def parse_override(text: str) -> Override:
    """Read `key=value` or `scope.key=value` of `--set`; the value is read as TOML, else taken as a string.

    Raises:
        UsageError: there is no `=` or no key, or no setting can hold the value.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise UsageError(f"--set {text!r} is not of the form key=value")
    try:
        read = tomllib.loads(f"value = {value}")
    except tomllib.TOMLDecodeError:
        return scoped_override(key, value, COMMAND_LINE)
    except (ValueError, RecursionError):
        raise UsageError(
            f"--set {key}={value[:20]}… has thousands of digits, or lists in lists in lists; give a smaller value"
        ) from None
    # A value of several lines would otherwise bring keys of its own.
    parsed = read["value"] if read.keys() == {"value"} else value
    empty = empty_table(key, parsed)
    if empty:
        raise UsageError(f"--set {empty}={{}} is an empty table, which sets nothing; give a value or leave it out")
    return scoped_override(key, parsed, COMMAND_LINE)


def scoped_override(key: str, value: Any, origin: str) -> Override:
    """Return the override of a dotted key that may begin with a stage or a configuration.

    `execution.`, the table of a declaration, may stand before the last part.
    """
    scope, dot, rest = key.partition(".")
    stage = scope.replace("-", "_")
    if dot and stage in declared_stages():
        scope = stage
    elif not dot or not any(scope in load_declaration(each).confs for each in declared_stages()):
        return Override(None, key.removeprefix("execution."), value, origin)
    return Override(scope, rest.removeprefix("execution."), value, origin)


def empty_table(key: str, value: Any) -> str | None:
    """Return the dotted key of the first table without values in a value, perhaps itself; None if there is none."""
    if not isinstance(value, Mapping):
        return None
    for name, each in value.items():
        empty = empty_table(f"{key}.{name}", each)
        if empty:
            return empty
    return None if value else key


def complete_key(key: str, known: Collection[str]) -> str:
    """Turn a short key (`margin`) into the full dotted one (`loss.margin`) if only one setting ends with it.

    Raises:
        UsageError: several settings end in `key`.
    """
    if key in known:
        return key
    matches = sorted(name for name in known if name.endswith(f".{key}"))
    if len(matches) > 1:
        raise UsageError(f"--set {key}: ambiguous, could be {' or '.join(matches)}")
    if not matches:
        return key
    return matches[0]


def setting_keys(model: type[Settings], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted key of every setting of a class.

    Args:
        model: the class.
        values: that choose the classes of its groups, see `Settings.groups`.
    """
    groups = model.groups(values)
    for name, about in model.model_fields.items():
        group = groups.get(name, about.annotation)
        if isinstance(group, type) and issubclass(group, Settings):
            for key in setting_keys(group, values.get(name, {})):
                yield f"{name}.{key}"
        else:
            yield name


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every value that is not itself a table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known word, in whatever case; empty if none is near."""
    by_lower_case = {name.lower(): name for name in known}
    nearest = difflib.get_close_matches(word.lower(), by_lower_case, n=1, cutoff=0.6)
    if not nearest:
        return ""
    return f"; did you mean {by_lower_case[nearest[0]]!r}?"


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """Return a line such as `unknown format 'karpaty'; did you mean 'karpathy'? known: coco, karpathy`."""
    known = list(known)
    return f"unknown {what} {word!r}{did_you_mean(word, known) or ';'} known: {', '.join(known)}"


def extended(declaration: Declaration, conf: str) -> list[str]:
    """Return a configuration and those it extends, the one that extends none first.

    Raises:
        DataError: one of them does not exist or extends itself.
    """
    chain = [conf]
    base = declaration.confs[conf].get(EXTENDS)
    while base is not None:
        if base not in declaration.confs or base in chain:
            raise DataError(f"{declaration.path}: [conf.{chain[0]}] extends {base!r}, which is no other configuration")
        chain.insert(0, base)
        base = declaration.confs[base].get(EXTENDS)
    return chain


def conf_title(stage: str, conf: str) -> str | None:
    """Return the title of a configuration; None where its declaration gives none."""
    return load_declaration(stage).confs.get(conf, {}).get(SHOWN_AS)


def backbone_shown_as(name: str) -> str | None:
    """Return the title of a backbone; None where its declaration gives none."""
    return load_declaration("train").defaults.get(name, {}).get(SHOWN_AS)


def root_conf(stage: str, conf: str) -> str:
    """Return the last configuration that one extends; itself if it extends none, or is not declared any more."""
    declaration = load_declaration(stage)
    if conf not in declaration.confs:
        return conf
    return extended(declaration, conf)[0]


def baseline_kind(stage: str, conf: str) -> str:
    """Return what a baseline shares with the methods it is compared with, `updates` or `time`; empty for others."""
    return load_declaration(stage).confs.get(conf, {}).get(BASELINE, "")


def kind_of(declaration: Declaration, conf: str) -> str:
    """Return the `kind` of a configuration, its own or of one that it extends; empty where there is none."""
    kind = ""
    if conf in declaration.confs:
        for name in extended(declaration, conf):
            kind = declaration.confs[name].get("kind", kind)
    return kind


def _with_family(backbone: str, selectors: Iterable[str]) -> list[str]:
    """Return a backbone after the one that it is a variant of: `scan` before `scan-i2t`."""
    families = [name for name in selectors if backbone.startswith(f"{name}-")]
    return [*sorted(families, key=len), backbone]


def _select(
    table: Mapping[str, Any], name: str, selectors: set[str], chosen: list[str], weight: int = 0
) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield weight, name and plain values of `table`, then those of the chosen sub-tables.

    A table weighs one for each of its selectors, a variant of a backbone one for its family and one for itself, so that
    values of a backbone on a dataset outweigh those of either alone.
    """
    others = selectors.union(ABOUT_CONF)
    yield weight, name, {key: value for key, value in table.items() if key not in others}
    for selector in chosen:
        if isinstance(table.get(selector), Mapping):
            heavier = weight + len(_with_family(selector, selectors))
            yield from _select(table[selector], f"{name}.{selector}", selectors, chosen, heavier)
