"""The commands: one sentence of each, the module that has it, and how help looks.

The module of a command is imported when the command is asked for, and help of all needs none of them. A module says
`@command()` above a function, whose parameters are options; those of a dataclass are the options of a parameter of
that type.
"""

from __future__ import annotations

import errno
import inspect
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, field, fields, is_dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command_from_info
from typer.models import CommandInfo

from itrpipe.errors import UsageError

PANELS: Mapping[str, Mapping[str, str]] = {
    "Data": {
        "prepare": "Read captions, check images.",
        "extract": "Write visual features of every image as features.h5.",
        "parse": "Write the scene graph of every caption.",
        "index": "Embed all photographs below a folder, for search --photos.",
    },
    "Models": {
        "train": "Train a model, and embed every split with one that has embeddings.",
        "mine-negatives": "Find the hardest negatives of the whole training set.",
        "synthesize": "Write negative sentences for every caption of a split.",
        "export": "Write a trained model and its card to a folder that the Hugging Face hub accepts.",
        "export-negatives": "Write mined negatives as files that other trainers read.",
    },
    "Results": {
        "evaluate": "Measure a trained model, or the mean of several, on a split.",
        "explain": "Show which words of a caption do not belong to an image, and what belongs there.",
        "search": "Find images for a sentence, captions for an image, or photographs like another one.",
        "serve": "Open local pages to search and to judge the hardest candidates.",
        "review": "Show judgements of hard candidates, and how many are false negatives.",
        "report": "Write one HTML page over all evaluated runs of a dataset, or over two models.",
    },
    "Upkeep": {
        "run": "Run a recipe, or some of its runs, and compare their scores with the published ones.",
        "demo": "Teach a model left and right on the synthetic dataset: the same as run demo.",
        "status": "List every artifact.",
        "list": "List methods, backbones, extractors or recipes, each in one line.",
        "show": "Print a configuration with the origin of every value.",
        "gc": "Remove interrupted, damaged and unused artifacts after asking; evaluated models stay.",
        "doctor": "Check versions, device, FAISS, disk and memory; with --address a Ray cluster.",
    },
}
"""Group -> its commands with the first sentence of their help. A command is in the module of its name."""
OTHERS = "Options"
SHARED: Mapping[str, tuple[str, ...]] = {
    "Model": ("named", "method", "backbone", "features", "seed"),
    "Dataset and data folder": ("dataset", "data"),
    "How it is run": (
        *("settings", "device", "devices", "workers", "engine", "address", "part"),
        *("no_deps", "keep_going", "trust", "dry_run", "help"),
    ),
}
"""Group -> options that several commands share, in their order behind the command's own."""
_ORDER = [name for names in SHARED.values() for name in names]
_KNOWN: dict[str, CommandInfo] = {}
"""The commands of the modules that are imported."""


def option(default: Any, *names: str, metavar: str | None = None, **settings: Any) -> Any:
    """A field of a dataclass that is an option of the commands that take the dataclass.

    Args:
        default: its value; `...` where it must be given.
        names: spellings, and last what it is.
        metavar: what stands for its value.
        settings: of `typer.Option`.
    """
    *spelled, about = names
    made = typer.Option(*spelled, help=about, metavar=metavar, **settings)
    return field(default=MISSING if default is ... else default, metadata={"option": made})


def command(name: str | None = None, *, lists: Iterable[str] = ()) -> Callable[[Callable[..., None]], Callable]:
    """Makes a function a command of its name.

    Args:
        name: another one.
        lists: of `LISTS`, for the help.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = {key: hints[key] for key in inspect.signature(function).parameters}
        groups = {key: [*_options(hint)] for key, hint in own.items() if is_dataclass(hint)}
        parameters = [
            each
            for key, given in inspect.signature(function).parameters.items()
            for each in groups.get(key, [given.replace(kind=given.KEYWORD_ONLY, annotation=own[key])])
        ]
        # As users read them: the command's own, which model, where, and how it is run.
        parameters.sort(key=lambda each: _ORDER.index(each.name) if each.name in _ORDER else -1)

        @wraps(function)
        def run(context: typer.Context, **values: Any) -> None:
            sources = {key: context.get_parameter_source(key) for key in values}
            given = frozenset(key for key, source in sources.items() if source and source.name != "DEFAULT")
            values = {key: _usable(value) for key, value in values.items()}
            for key, options in groups.items():
                made = own[key](**{each.name: values.pop(each.name) for each in options})
                values[key] = made.completed(given) if hasattr(made, "completed") else made
            function(**values)

        asked = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        run.__signature__ = inspect.Signature([asked, *parameters])  # pyright: ignore[reportAttributeAccessIssue]
        run.__annotations__ = {each.name: each.annotation for each in (asked, *parameters)}
        known = name or function.__name__.replace("_", "-")
        assert any(known in commands for commands in PANELS.values()), f"{known} has no row in PANELS"
        _KNOWN[known] = CommandInfo(known, cls=partial(Command, lists=tuple(lists)), callback=run)  # pyright: ignore
        return function

    return register


def _options(group: Any) -> Iterator[inspect.Parameter]:
    """The options of a dataclass."""
    hints = get_type_hints(group, include_extras=True)
    for each in (each for each in fields(group) if each.init):
        hint = Annotated[hints[each.name], each.metadata["option"]] if each.metadata else hints[each.name]
        default = inspect.Parameter.empty if each.default is MISSING else each.default
        yield inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _usable(value: Any) -> Any:
    """What an option was given, of a path with the home folder in the place of `~`.

    Raises:
        UsageError: no file and no folder can be at such a path.
    """
    if isinstance(value, list | tuple):
        return type(value)(map(_usable, value))
    if not isinstance(value, Path):
        return value
    path = Path(os.path.expanduser(value))
    try:
        mode = path.stat().st_mode
    except OSError as error:  # what is missing or cannot be read, the commands say with codes of their own
        if error.errno == errno.ELOOP:
            raise UsageError(f"{path}: links lead in a circle; replace one of them") from None
        return path
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"{path} is a pipe or a device; name a file or a folder")
    return path


class Command(TyperCommand):
    """A command whose options stand in their groups, and none of which is empty.

    Args:
        lists: of `LISTS`, shown behind the text of its help.
    """

    def __init__(self, *arguments: Any, lists: Iterable[str] = (), **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.lists = lists

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the options.

        Raises:
            UsageError: a value is empty, which as a path would be the working folder.
        """
        for before, each in zip([str(self.name), *args], args, strict=False):
            option, _, value = each.partition("=") if each.startswith("--") else (before, "", each)
            if not value.strip() and option != each:
                raise UsageError(f"empty value behind {option}, as of an unset variable; give one or leave it out")
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Writes the text and the lists, which are read only when help is asked for."""
        super().format_help_text(ctx, formatter)
        for name in self.lists:
            title, option = LISTS[name]
            rows, every = principal(name), everything(name)
            more = "" if len(rows) == len(every) else f"; `itrpipe list {name}` has all {len(every)}"
            with formatter.section(f"{title} ({option}){more}"):
                formatter.write_dl(rows)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments, the command's own options, and then those that are shared."""
        found: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", OTHERS, *SHARED)}
        for each in self.get_params(ctx):
            own = "Arguments" if each.param_type_name == "argument" else OTHERS
            panel = next((name for name, options in SHARED.items() if each.name in options), own)
            found[panel] += filter(None, [each.get_help_record(ctx)])
        for panel, records in found.items():
            if records:
                with formatter.section(panel):
                    formatter.write_dl(records)


class Commands(TyperGroup):
    """The commands in their groups."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.commands = _Imported()  # pyright: ignore[reportAttributeAccessIssue]

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all."""
        return [*self.commands]

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        """Reads the options before the command; what click refuses is told as all else is.

        Raises:
            UsageError: the command line is wrong, or holds bytes that are no text, as a path may.
        """
        for given in [*arguments[1], os.environ.get("ITRPIPE_DATA", "")]:
            try:
                given.encode()
            except UnicodeEncodeError:
                raise UsageError(f"{given!r} is not valid UTF-8; rename the file, or set PYTHONUTF8=1") from None
        with _in_one_line():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Reads and runs the command likewise."""
        with _in_one_line():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes every group with a sentence of each command."""
        for panel, commands in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([*commands.items()])


class _Imported(Mapping[str, Any]):
    """Name -> command, whose module is imported when it is asked for."""

    def __init__(self) -> None:
        self._names = [name for names in PANELS.values() for name in names]
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._made:
            import_module(f"itrpipe.cli.{name.replace('-', '_')}")
            plain = {"pretty_exceptions_short": False, "rich_markup_mode": None}
            self._made[name] = get_command_from_info(_KNOWN[name], **plain)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Says in one line what typer would say below the usage.

    Raises:
        UsageError: the command line is wrong.
    """
    try:
        yield
    except Exception as error:
        said = getattr(error, "format_message", None)  # of click, of which typer may bring a copy
        if said is None or getattr(error, "exit_code", None) != UsageError.exit_code:
            raise
        context = getattr(error, "ctx", None)
        command = f"itrpipe {context.info_name}" if context and context.parent else "itrpipe"
        told = said().replace("Value error, ", "").rstrip(".")
        raise UsageError(f"{told}; see `{command} --help`") from None


LISTS = {
    "methods": ("Methods", "--method"),
    "backbones": ("Backbones", "--backbone"),
    "extractors": ("Extractors and importers", "--features"),
    "recipes": ("Recipes", "itrpipe run"),
}
"""What `itrpipe list` lists: title, and where a name is given."""


def everything(name: str) -> list[tuple[str, str]]:
    """Each name of a list with what it is in one line.

    Args:
        name: of `LISTS`.
    """
    if name == "recipes":
        from itrpipe.pipeline.recipes import recipe_titles

        return recipe_titles()
    from itrpipe.config import described

    stage, table = {"methods": ("train", "conf"), "backbones": ("train", "defaults")}.get(name, ("extract", "conf"))
    return described(stage, table)


def principal(name: str) -> list[tuple[str, str]]:
    """The same without baselines, ablations and variants."""
    rows = everything(name)
    if name not in ("methods", "backbones"):
        return rows
    from itrpipe.methods.declaration import methods
    from itrpipe.models.registry import backbones

    known: Iterable[str] = methods() if name == "methods" else backbones()
    return [row for row in rows if row[0] in known]
