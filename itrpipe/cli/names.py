"""List the names that options take: methods, backbones, extractors and recipes, each with a line about it."""

from __future__ import annotations

from collections.abc import Iterable

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
