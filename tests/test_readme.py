"""The README's commands: each parses, names what is declared, and every make target and linked file exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main

from itrpipe import __version__
from itrpipe import cli as command_line
from itrpipe.commands.recipes import chosen_runs, load_recipe
from itrpipe.config import load_declaration
from itrpipe.training.settings import backbones

Invoke = Callable[..., Any]
ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "stages/README.md", "stages/leaky-protocol.md", "data/README.md")
COMMANDS = typer.main.get_command(command_line.app).commands


def blocks(page: str) -> list[str]:
    """The code blocks of a page."""
    return re.findall(r"^```\w*\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    """Every line of a code block that calls itrpipe, without its comment."""
    lines = [
        line.removeprefix("$ ").removeprefix(".venv/bin/")
        for page in PAGES
        for block in blocks(page)
        for line in block.splitlines()
    ]
    return [line for line in lines if line.startswith("itrpipe ")]


def plans_on_scenes(line: str) -> bool:
    """Whether a command plans stages of the dataset that needs no files, and reads nothing that was made before."""
    _, name, *arguments = shlex.split(line, comments=True)
    command = COMMANDS[name]
    values = command.make_context(name, arguments).params
    ours = values.get("dataset") == "scenes" or values.get("recipe") in ("scenes", "aoq-vsrn", "aoq-bfan")
    reads = (
        name == "report"
        or isinstance(values.get("embeddings"), Path)
        or values.get("show")
        or values.get("canary")
        or "leaky" in line
    )
    return ours and "dry_run" in values and not reads


def test_there_are_commands_to_check() -> None:
    assert len(commands()) > 50


@pytest.mark.parametrize("line", commands())
def test_command_parses_and_names_what_is_declared(line: str) -> None:
    _, name, *arguments = shlex.split(line, comments=True)
    values = COMMANDS[name].make_context(name, arguments).params
    if values.get("method"):
        assert values["method"] in load_declaration("train").confs
    if values.get("backbone"):
        assert values["backbone"] in backbones()
    if name == "run":
        recipe = load_recipe(values["recipe"])
        assert chosen_runs(recipe, values["recipe"], values["only"] or [])


@pytest.mark.parametrize("line", [line for line in commands() if plans_on_scenes(line)])
def test_command_on_scenes_plans_with_all_its_settings(line: str, invoke: Invoke, tmp_path: Path) -> None:
    _, *arguments = shlex.split(line, comments=True)
    outcome = invoke(*arguments, "--data", tmp_path, *([] if "--dry-run" in arguments else ["--dry-run"]))
    assert outcome.code == 0, outcome.err
    assert "missing" in outcome.out


def test_make_targets_exist() -> None:
    named = {
        line.split()[1]
        for page in PAGES
        for block in blocks(page)
        for line in block.splitlines()
        if line.startswith("make ")
    }
    named |= set(re.findall(r"`make ([a-z-]+)", "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert named
    assert named <= targets


def test_citations_name_this_version() -> None:
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version = {{{__version__}}}" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http:", "https:")):
            continue
        path, _, heading = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, link


def test_the_plug_in_of_the_readme_is_the_one_that_tests_install() -> None:
    shown = [block for block in blocks("README.md") if block.startswith("# itrpipe_example/")]
    assert len(shown) == 3
    for block in shown:
        name, _, text = block.partition("\n")
        assert (ROOT / "tests" / "plugin" / name.removeprefix("# ")).read_text(encoding="utf-8") == text
    entry_points = next(block for block in blocks("README.md") if block.startswith("[project.entry-points"))
    assert entry_points.strip() in (ROOT / "tests" / "plugin" / "pyproject.toml").read_text(encoding="utf-8")


def test_the_checks_of_the_readme_run() -> None:
    (code,) = (block for block in blocks("README.md") if "import IMAGE_DIM" in block)
    exec(compile(code, "README.md", "exec"), {})
