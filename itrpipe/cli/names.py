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
    """Return each name of a list with what it is in one line.

    Args:
        name: of `LISTS`.
    """
    from itrpipe.config import ABOUT, load_declaration, read_toml

    if name == "recipes":
        from itrpipe.pipeline.recipes import recipe_files

        return [(recipe, str(read_toml(file)["title"])) for recipe, file in recipe_files().items()]
    if name == "backbones":  # those that have such a line
        tables = load_declaration("train").defaults.items()
        told = [(backbone, values) for backbone, values in tables if isinstance(values, dict) and ABOUT in values]
        return [(backbone, str(values[ABOUT])) for backbone, values in told]
    declaration = load_declaration("train" if name == "methods" else "extract")
    return [(conf, str(values.get(ABOUT, ""))) for conf, values in declaration.confs.items()]


def principal(name: str) -> list[tuple[str, str]]:
    """Return the names of a list without baselines, ablations and variants."""
    rows = everything(name)
    if name not in ("methods", "backbones"):
        return rows
    from itrpipe.methods.declaration import methods
    from itrpipe.models.declaration import backbones

    known: Iterable[str] = methods() if name == "methods" else backbones()
    return [row for row in rows if row[0] in known]
