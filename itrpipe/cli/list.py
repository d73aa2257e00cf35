"""List the names that options take: methods, backbones, extractors and recipes, each with a line about it."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer import Argument

from itrpipe.cli.commands import BaseCommand
from itrpipe.cli.options import Text
from itrpipe.config import ABOUT, brought, load_declaration, read_toml, unknown
from itrpipe.errors import UsageError

LISTS = {
    "methods": ("Methods", "--method"),
    "backbones": ("Backbones", "--backbone"),
    "extractors": ("Extractors and importers", "--features"),
    "recipes": ("Recipes", "itrpipe run"),
}
"""Lists of names: title, and where a name is given."""


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
        for plugin in brought():
            if plugin.problem and plugin.group == f"itrpipe.{what}":
                rows.append((plugin.name, f"cannot be used: {plugin.problem}"))
        width = max(len(name) for name, _ in rows)
        for name, about in rows:
            typer.echo(f"{name:<{width}}  {about}")


def everything(name: str) -> list[tuple[str, str]]:
    """Return each name of a list with what it is in one line.

    Args:
        name: of `LISTS`.
    """
    rows = []
    if name == "recipes":
        from itrpipe.pipeline.recipes import recipe_files

        for recipe, file in recipe_files().items():
            rows.append((recipe, read_toml(file)["title"]))
        return rows
    declaration = load_declaration("extract" if name == "extractors" else "train")
    if name == "backbones":
        for backbone, values in declaration.defaults.items():
            if isinstance(values, dict) and ABOUT in values:
                rows.append((backbone, values[ABOUT]))
        return rows
    return [(conf, values.get(ABOUT, "")) for conf, values in declaration.confs.items()]


def principal(name: str) -> list[tuple[str, str]]:
    """Return the names of a list without baselines, ablations and variants."""
    from itrpipe.methods.declaration import methods
    from itrpipe.models.declaration import backbones

    rows = everything(name)
    known = {"methods": methods, "backbones": backbones}
    if name in known:
        rows = [row for row in rows if row[0] in known[name]()]
    return rows
