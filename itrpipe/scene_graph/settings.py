"""Settings of the parser of captions. Light: plans bind them without importing what parses."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Literal

from itrpipe.config import Outside, Settings
from itrpipe.errors import MissingInputError

RULES_VERSION = "1"
"""Changes with every change of rules or word lists that changes a graph."""
FOREIGN_VERSION = "1"
"""Changes with every change of how given graphs are aligned with captions."""


class ParseSettings(Settings):
    """Who makes the graphs, and with what.

    Attributes:
        tagger: `hanta`, or `lexicon`, which needs no HanTa; gives the words of captions their parts of speech and
            lemmas.
        file: graphs that another tool made; empty: the rules make them.
    """

    tagger: Literal["hanta", "lexicon"]
    file: Annotated[str, Outside(lambda name, file, cache: {"graphs": cache.digest(Path(file).expanduser())})] = ""


def parser_version(tagger: Literal["hanta", "lexicon"], file: str = "") -> str:
    """Return the versions of all that decides a graph: rules, tagger and the packages behind them.

    Args:
        tagger, file: see `ParseSettings`.

    Raises:
        MissingInputError: lemminflect, or HanTa where it is the tagger, is not installed.
    """
    packages = {"lemminflect": "pip install lemminflect"}
    if tagger == "hanta":
        packages["HanTa"] = "pip install HanTa, or choose --tagger lexicon"
    versions = [RULES_VERSION, tagger]
    if file:
        versions.insert(0, f"foreign/{FOREIGN_VERSION}")
    for package, remedy in packages.items():
        try:
            versions.append(f"{package}-{version(package)}")
        except PackageNotFoundError as error:
            raise MissingInputError(
                f"the parser needs the package {package}, which is not installed: {remedy}"
            ) from error
    return " ".join(versions)
