"""List the names that options take."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer import Argument

from itrpipe.cli.commands import BaseCommand
from itrpipe.cli.names import LISTS, everything
from itrpipe.cli.options import Text
from itrpipe.config import installed_plugins, unknown
from itrpipe.errors import UsageError


@dataclass
class List(BaseCommand):
    """List methods, backbones, extractors or recipes, each in one line.

    Example: itrpipe list methods
    """

    what: Annotated[Text, Argument(metavar="methods|backbones|extractors|recipes", help="Kind of names to list.")] = (
        None
    )

    def run(self) -> None:
        what = self.what
        if what is None:
            for name, (title, option) in LISTS.items():
                typer.echo(f"itrpipe list {name:<12}{title}, for {option}")
            return
        if what not in LISTS:
            raise UsageError(unknown("list", what, LISTS))
        rows = everything(what)
        for plugin in installed_plugins():
            if plugin.problem and plugin.group == f"itrpipe.{what}":
                rows.append((plugin.name, f"cannot be used: {plugin.problem}"))
        width = max(len(name) for name, _ in rows)
        for name, about in rows:
            typer.echo(f"{name:<{width}}  {about}")
