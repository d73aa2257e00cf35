"""How help looks: commands and options in groups, whole summaries, and lists of what declarations have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from typer.core import TyperCommand, TyperGroup

from itrpipe.errors import UsageError

OTHERS = "Options"
SHARED: Mapping[str, tuple[str, ...]] = {
    "Model": ("named", "method", "backbone", "features", "seed"),
    "Dataset and data folder": ("dataset", "data"),
    "How it is run": (
        *("device", "devices", "workers", "engine", "address", "part"),
        *("no_deps", "keep_going", "trust", "dry_run", "help"),
    ),
}
"""Group -> options that several commands share, in their order behind the command's own."""
PANELS: Mapping[str, tuple[str, ...]] = {
    "Data": ("prepare", "extract", "parse", "index"),
    "Models": ("train", "mine-negatives", "synthesize", "export", "export-negatives"),
    "Results": ("evaluate", "advise", "explain", "search", "serve", "review", "report"),
    "Upkeep": ("run", "demo", "status", "list", "show", "gc", "doctor"),
}
"""Group -> its commands."""


class Command(TyperCommand):
    """A command whose options stand in their groups, and none of which is empty."""

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

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments, the command's own options, and then those that are shared."""
        found: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx)
            panel = next((name for name, options in SHARED.items() if each.name in options), OTHERS)
            if record is not None:
                found.setdefault("Arguments" if each.param_type_name == "argument" else panel, []).append(record)
        for panel in sorted(found, key=["Arguments", OTHERS, *SHARED].index):
            with formatter.section(panel):
                formatter.write_dl(found[panel])


class Commands(TyperGroup):
    """A group whose commands stand in theirs."""

    def make_context(self, *arguments: Any, **settings: Any) -> Any:
        """Reads the options before the command; what click refuses is told as all else is."""
        with _in_one_line():
            return super().make_context(*arguments, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Reads and runs the command likewise."""
        with _in_one_line():
            return super().invoke(ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes every group with the whole first sentence of each command's help."""
        for panel, names in PANELS.items():
            known = ((name, self.get_command(ctx, name)) for name in names)
            rows = [(name, each.get_short_help_str(limit=1_000)) for name, each in known if each is not None]
            with formatter.section(panel):
                formatter.write_dl(rows)


@contextlib.contextmanager
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
        raise UsageError(f"{said().rstrip('.')}; see `{command} --help`") from None


def listing(*shown: str) -> type[Command]:
    """A command whose help has short lists of what there is; `itrpipe list` has all of it.

    Args:
        shown: of `LISTS`.
    """

    class Listing(Command):
        """Adds the lists behind the text; they are read only when help is asked for."""

        def format_help_text(self, ctx: Any, formatter: Any) -> None:
            super().format_help_text(ctx, formatter)
            for name in shown:
                title, option = LISTS[name]
                rows, every = principal(name), dict(everything(name))
                more = "" if len(rows) == len(every) else f"; `itrpipe list {name}` has all {len(every)}"
                with formatter.section(f"{title} ({option}){more}"):
                    formatter.write_dl(rows)

    return Listing


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
        from itrpipe.plan.recipes import recipe_titles

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
