"""Adds to the pages of docs/ those of stages/, a reference made from the code, and drawn equations.

mkdocs calls these functions; see `hooks` in mkdocs.yml.
"""

from __future__ import annotations

import inspect
import os
import posixpath
import re
import warnings
from functools import cache
from html import escape, unescape
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
OTHERS = ("CONTRIBUTING.md", "CHANGELOG.md", *sorted(f"stages/{path.name}" for path in (ROOT / "stages").glob("*.md")))
PICTURES = tuple(sorted(f"stages/{path.name}" for path in (ROOT / "stages").glob("*.png")))
MODULES = ("itrpipe", "itrpipe.learning", "itrpipe.methods.aoq.method", "itrpipe.methods.fne.method", "itrpipe.testing")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SMALLEST = 0.65
"""Of the size of an equation."""
_EQUATION = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)
_SYMBOL = re.compile(r"<em>[^<]*_[^<]*</em>")
_LABELLED = re.compile(r"(?<!!)\[([^\[\]]+)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds what does not lie in docs/."""
    for name in (*OTHERS, *PICTURES):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for name, content in (("commands", _commands()), ("declarations", _declarations()), ("python", _python())):
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Makes links between files of the repository links between pages; of other files the name alone is left."""
    own = page.file.src_uri
    if own.startswith("reference/"):
        return markdown
    known = {each.src_uri for each in files}
    folder = posixpath.dirname(_in_repository(own))

    def target(link: str) -> str | None:
        path, mark, heading = link.partition("#")
        if link.startswith(("http:", "https:", "#")):
            return link
        found = _on_site(posixpath.normpath(posixpath.join(folder, path)))
        if found not in known:
            return None
        return posixpath.relpath(found, posixpath.dirname(own) or ".") + mark + heading

    def labelled(match: re.Match[str]) -> str:
        found = target(match[2])
        return match[1] if found is None else f"[{match[1]}]({found})"

    plain = _LABELLED.sub(labelled, markdown)
    return _LINK.sub(lambda match: f"]({target(match[1]) or match[1]})" if folder == "" else match[0], plain)


def on_page_content(html: str, **_: Any) -> str:
    """Draws equations; in the text next to them, letters behind an underscore are below the line."""
    drawn = _EQUATION.sub(lambda match: _drawn(unescape(match[1]).strip()), html)
    return _SYMBOL.sub(lambda match: re.sub(r"_(\w+)", r"<sub>\1</sub>", match[0]), drawn) if drawn != html else html


@cache
def _drawn(tex: str) -> str:
    """An equation as a picture that needs neither a script nor a font."""
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of how it opens its font
        import ziamath
    ziamath.config.svg2 = False  # glyphs with ids would be on a page twice
    picture = ziamath.Latex(tex, size=17, color="currentColor").svg()
    readable = _SMALLEST * float(picture.partition('width="')[2].partition('"')[0])  # a narrow screen scrolls below it
    picture = picture.replace("<svg ", f'<svg style="min-width: {readable:.0f}px" ', 1)
    return f'<div class="equation" role="img" aria-label="{escape(tex)}">{picture}</div>'


def _in_repository(page: str) -> str:
    """Where a page lies."""
    return page if page in OTHERS else f"docs/{page}"


def _on_site(path: str) -> str:
    """The page that a file of the repository is."""
    return path.removeprefix("docs/")


def _commands() -> str:
    """The help of every command."""
    import typer.main

    from itrpipe.cli import app
    from itrpipe.cli.commands import PANELS

    os.environ["COLUMNS"] = "100"
    group: Any = typer.main.get_command(app)
    lines = ["# Commands", ""]
    for panel, names in PANELS.items():
        lines += [f"## {panel}", ""]
        for name in names:
            command = group.get_command(None, name)
            context = command.make_context(f"itrpipe {name}", [], resilient_parsing=True)
            lines += [f"### {name}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines)


def _declarations() -> str:
    """The files of settings, with the source of every value beside it."""
    lines = ["# Declarations", "", "Every setting has its value, and where it comes from, in these files.", ""]
    for path in sorted((ROOT / "stages").glob("*.toml")):
        lines += [f"## {path.name}", "", "```toml", path.read_text(encoding="utf-8").rstrip(), "```", ""]
    return "\n".join(lines)


def _python() -> str:
    """The library, from its docstrings: the public names of its packages, each where it is defined."""
    lines = ["# Python", ""]
    for package in map(import_module, MODULES):
        lines += [f"## {package.__name__}", "", inspect.cleandoc(str(package.__doc__)), ""]
        for name in package.__all__:
            found = getattr(package, name)
            if inspect.isclass(found) or inspect.isfunction(found):
                lines += [f"::: {found.__module__}.{name}", "    options: {heading_level: 3}", ""]
    return "\n".join(lines)
