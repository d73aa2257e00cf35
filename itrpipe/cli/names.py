"""The names that options take: methods, backbones, extractors and recipes, each with a line about it."""

from itrpipe.config import ABOUT, load_declaration, read_toml

LISTS = {
    "methods": ("Methods", "--method"),
    "backbones": ("Backbones", "--backbone"),
    "extractors": ("Extractors and importers", "--features"),
    "recipes": ("Recipes", "itrpipe run"),
}
"""Lists of names: title, and where a name is given."""


def everything(name: str) -> list[tuple[str, str]]:
    """Return each name of a list with a line about it.

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
    if name == "methods":
        return [row for row in rows if row[0] in methods()]
    if name == "backbones":
        return [row for row in rows if row[0] in backbones()]
    return rows
