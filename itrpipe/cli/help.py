"""How help looks: commands and options in groups, whole summaries, and lists of what declarations have."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
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
_HABITUAL = {
    **dict.fromkeys(("--from", "--path", "--folder", "--images", "--input", "--photos"), "--source"),
    **dict.fromkeys(("--out", "--output", "--output-dir"), "--to"),
    "--name": "--model",
}
"""What other programs call an option -> its name here."""


class Command(TyperCommand):
    """A command whose options stand in their groups, and which knows settings from options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the options.

        Raises:
            UsageError: there is no such option, a value is none of its, or words belong to no option.
        """
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # of click, of which typer may bring a copy
                option = str(getattr(error, "option_name", ""))
                _refuse_habitual(str(self.name), option, [name for each in self.params for name in each.opts])
                _refuse_of_training(ctx, str(self.name), option, {each.name for each in self.params})
                _refuse_setting(str(self.name), option)
            if extra := re.search(r"extra argument.*\((.*)\)", str(error)):
                _refuse_words(str(self.name), extra[1], self.params, given)
            _refuse_in_one_line(ctx, error)
            raise

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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the options before the command.

        Raises:
            UsageError: there is no such option.
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            _refuse_in_one_line(ctx, error)
            raise

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds the command.

        Raises:
            UsageError: there is none of this name.
        """
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            _refuse_in_one_line(ctx, error)
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes every group with the whole first sentence of each command's help."""
        for panel, names in PANELS.items():
            known = ((name, self.get_command(ctx, name)) for name in names)
            rows = [(name, each.get_short_help_str(limit=1_000)) for name, each in known if each is not None]
            with formatter.section(panel):
                formatter.write_dl(rows)


def _refuse_in_one_line(ctx: Any, error: Exception) -> None:
    """Says in one line what typer would say below the usage.

    Raises:
        UsageError: the command line is wrong.
    """
    said = getattr(error, "format_message", None)
    if said is not None and getattr(error, "exit_code", None) == UsageError.exit_code:
        command = "itrpipe" if ctx.parent is None else f"itrpipe {ctx.info_name}"  # however the program was started
        raise UsageError(f"{said().rstrip('.')}; see `{command} --help`") from None


def _refuse_words(command: str, words: str, params: Iterable[Any], given: Iterable[str]) -> None:
    """Says where words belong that no option was named for.

    Args:
        command: its name.
        words: these.
        params: of the command.
        given: everything behind the command's name.

    Raises:
        UsageError: likewise.
    """
    if command == "search":
        sentence = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), given)) or "two dogs"
        raise UsageError(f'{words} is outside of the sentence; put all of it into quotes: itrpipe search "{sentence}"')
    if any(each.name == "source" for each in params):
        raise UsageError(
            f"{words} belongs to no option; the folder is named as --source FOLDER, the dataset as --dataset NAME"
        )
    known = {"named": f"a model as --model {words}", "dataset": f"a dataset as --dataset {words}"}
    options = [known[each.name] for each in params if each.name in known]
    if options:
        raise UsageError(f"{words} belongs to no option; name {', or '.join(options)}")


def _refuse_habitual(command: str, option: str, known: Iterable[str]) -> None:
    """Says what an option is called here.

    Raises:
        UsageError: likewise.
    """
    name = _HABITUAL.get(option, "")
    if name in known:
        raise UsageError(f"{option} is no option of {command}; give it as {name}")


def _refuse_of_training(context: Any, command: str, option: str, own: Collection[str | None]) -> None:
    """Says that a model is trained with an option before a command reads it.

    Raises:
        UsageError: likewise.
    """
    group = getattr(context.parent, "command", None)
    training = getattr(group, "commands", {}).get("train")
    if training is not None and "named" in own and any(option in each.opts for each in training.params):
        raise UsageError(
            f"{option} is an option of train and none of {command}; train the model with a name, itrpipe train --name "
            f"NAME {option} …, and then use it: itrpipe {command} --model NAME"
        )


def _refuse_setting(command: str, option: str) -> None:
    """Says how a setting is given where it was written as an option.

    Raises:
        UsageError: likewise.
    """
    from itrpipe.config import HABITUAL, declared_stages, leaves, load_declaration

    stage, written = command.replace("-", "_"), option.lstrip("-").replace("-", "_")
    if stage not in declared_stages():
        return
    declaration = load_declaration(stage)
    tables = (declaration.defaults, *declaration.confs.values())
    known = {key.rpartition(".")[2] for table in tables for key, _ in leaves(table)}
    named = [name for name in (written, *HABITUAL.get(written, ())) if name in known]
    if named:
        raise UsageError(f"{option} is no option of {command} but a setting; give it as --set {named[0]}=…")


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
        from itrpipe.commands.recipes import recipe_titles

        return recipe_titles()
    from itrpipe.declared import described

    stage, table = {"methods": ("train", "conf"), "backbones": ("train", "defaults")}.get(name, ("extract", "conf"))
    return described(stage, table)


def principal(name: str) -> list[tuple[str, str]]:
    """The same without controls, ablations and variants."""
    rows = everything(name)
    if name not in ("methods", "backbones"):
        return rows
    from itrpipe.methods.registry import methods
    from itrpipe.models.registry import backbones

    known: Iterable[str] = methods() if name == "methods" else backbones()
    return [row for row in rows if row[0] in known]
