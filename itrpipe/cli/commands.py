"""The commands: a sentence about each, the import of its class, and the layout of help.

The command `mine-negatives` is the class `MineNegatives` in `cli/mine_negatives.py`: a dataclass whose fields are the
options and whose `run` does the work. Its module is imported when the command is called; the list of commands needs no
such import.
"""

import errno
import itertools
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

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
        "review": "Show judgements of hard candidates, and how many are right after all.",
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
"""Group -> its commands with the first sentence of their help."""
SHARED: Mapping[str, tuple[str, ...]] = {
    "Model": ("named", "method", "backbone", "features", "seed"),
    "Dataset and data folder": ("dataset", "data"),
    "How it is run": (
        *("settings", "device", "devices", "workers", "engine", "address", "part"),
        *("no_deps", "keep_going", "trust", "dry_run", "help"),
    ),
}
"""Group -> options that several commands share, in their order behind the command's own."""
LISTED = {"train": ("methods", "backbones"), "extract": ("extractors",)}
"""Command -> the names, of `LISTS`, that its help shows."""


@dataclass
class BaseCommand:
    """A command: its fields are its options, and its `run` returns the folder of the artifact that it makes, if any.

    Attributes:
        given: names of the options that the user gave, on the command line or by a variable of the environment.
    """

    given: frozenset[str] = field(default=frozenset(), init=False)

    def complete(self) -> None:
        """Fill in what follows from the options that were given."""


def _usable(value: Any) -> Any:
    """Return the value of an option; of a path with the home folder for `~`.

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
    """The reader of a command's options: it shows them in groups, and refuses empty ones."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options.

        Raises:
            UsageError: a value is empty, which as a path would be the working folder.
        """
        option = str(self.name)
        for word in args:
            value = word
            if word.startswith("--"):
                option, equals, value = word.partition("=")
                value = value if equals else word
            if not value.strip():
                raise UsageError(f"empty value behind {option}, as of an unset variable; give one or leave it out")
            option = word
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Make the command of its options, run it, and return what it returns."""
        command = super().invoke(ctx)
        for name, value in vars(command).items():
            setattr(command, name, _usable(value))
        command.given = frozenset(name for name in ctx.params if ctx.get_parameter_source(name).name != "DEFAULT")
        command.complete()
        return command.run()

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the text, and the names that an option takes, which are read only for this help."""
        from itrpipe.cli.names import LISTS, everything, principal

        super().format_help_text(ctx, formatter)
        for name in LISTED.get(str(self.name), ()):
            title, option = LISTS[name]
            rows = principal(name)
            total = len(everything(name))
            heading = f"{title} ({option})"
            if len(rows) < total:
                heading += f"; `itrpipe list {name}` has all {total}"
            with formatter.section(heading):
                formatter.write_dl(rows)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, the command's own options, and then those that are shared."""
        records = {}
        groups = {"Arguments": [], "Options": [], **SHARED}
        shared = list(itertools.chain(*SHARED.values()))
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record:
                records[parameter.name] = record
                if parameter.param_type_name == "argument":
                    groups["Arguments"].append(parameter.name)
                elif parameter.name not in shared:
                    groups["Options"].append(parameter.name)
        for title, names in groups.items():
            rows = [records[name] for name in names if name in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


class Commands(TyperGroup):
    """All commands in their groups, each imported when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for commands in PANELS.values():
            for name, about in commands.items():
                self.add_command(TyperCommand(name, help=about))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; None if there is none of this name."""
        if cmd_name not in self.commands:
            return None
        module = import_module(f"itrpipe.cli.{cmd_name.replace('-', '_')}")
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        name = cmd_name.title().replace("-", "")
        app.command(cmd_name, cls=Command)(getattr(module, name))
        return get_command(app)

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        """Read the options before the command.

        Raises:
            UsageError: click refuses the command line, or it holds bytes that are no text, as a path may.
        """
        for given in [*arguments[1], os.environ.get("ITRPIPE_DATA", "")]:
            try:
                given.encode()
            except UnicodeEncodeError:
                raise UsageError(f"{given!r} is not valid UTF-8; rename the file, or set PYTHONUTF8=1") from None
        with _in_one_line():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Read and run the command, whose errors become a `UsageError` of one line, too."""
        with _in_one_line():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write every group with a sentence about each command."""
        for panel, commands in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([*commands.items()])


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Tell in one line what Typer would tell below the usage.

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
        raise UsageError(f"{said().replace('Value error, ', '').rstrip('.')}; see `{command} --help`") from None
