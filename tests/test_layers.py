"""Who may import whom: right never imports left, and what a plan needs stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

import itrpipe
from itrpipe.features.declaration import IMPORTERS
from itrpipe.methods.declaration import methods
from itrpipe.models.declaration import backbones

PACKAGE = Path(itrpipe.__file__).parent
# From the lowest up: a room may import itself and those before it.
LAYERS = (
    *("errors", "printable", "plugins", "papers", "progress", "config", "registry"),
    *("storage", "engine", "datasets", "scenes", "encoders", "features", "scene_graph"),
    *("models", "learning", "judging", "methods", "mining", "evaluation", "synthesis", "training"),
    *("exporting", "review", "analysis", "report", "search", "mteb", "testing"),
    *("stages", "pipeline", "cli", "project", "__main__"),
)
LEVEL = {room: level for level, room in enumerate(LAYERS)}
FILES = sorted(PACKAGE.rglob("*.py"))
FORBIDDEN = {
    "mining": {"itrpipe.models", "itrpipe.methods", "itrpipe.datasets.definition"},
    "evaluation": {"itrpipe.models", "torch"},
    "report": {"itrpipe.models", "torch"},
    "exporting": {"itrpipe.models.base", "torch"},
}
PLANNING = ("cli", "stages")
"""Rooms of which a plan reads every module."""


def imported(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, at its top or inside functions, for types only or not."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_room_has_its_layer() -> None:
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_right_never_imports_left(path: Path) -> None:
    room = room_of(path)
    for name in imported(path):
        head, _, rest = name.partition(".")
        target = rest.partition(".")[0]
        if head == "itrpipe" and target in LEVEL:
            assert LEVEL[target] <= LEVEL.get(room, -1), f"{room} imports {name}"
        for forbidden in FORBIDDEN.get(room, ()):
            assert not f"{name}.".startswith(f"{forbidden}."), f"{room} imports {name}"


def test_no_module_imports_itself_through_others() -> None:
    """Neither at the top of a file nor inside its functions."""
    names = {_dotted(path): path for path in FILES}
    graph = {name: {_module(each, names) for each in imported(path)} - {"", name} for name, path in names.items()}
    assert sum(map(len, graph.values())) > 1_000
    while leaves := {name for name, needed in graph.items() if not needed & graph.keys()}:
        graph = {name: needed for name, needed in graph.items() if name not in leaves}
    assert not graph, "these import each other, or what does: " + ", ".join(sorted(graph))


def _dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(name: str, known: Container[str]) -> str:
    """The module that an import reads: the name itself, or what it lies in; empty for others."""
    return name if name in known else parent if (parent := name.rpartition(".")[0]) in known else ""


def loaded_by(modules: list[str]) -> set[str]:
    """Top-level names of all modules in a fresh process that imports these."""
    code = "import sys\nfor name in sys.argv[1:]: __import__(name)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_planning_imports_nothing_heavy() -> None:
    files = [path for room in PLANNING for path in (PACKAGE / room).rglob("*.py") if path.stem != "__init__"]
    modules = [".".join(("itrpipe", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in files]
    assert len(modules) > 20
    loaded = loaded_by(["itrpipe.pipeline.planning", "itrpipe.pipeline.run", *modules])
    assert not loaded & {"torch", "pyarrow", "numpy", "h5py", "transformers", "PIL"}


def test_declarations_are_read_without_torch() -> None:
    files = [*PACKAGE.glob("m*/*/declaration.py")]
    modules = [".".join(("itrpipe", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in files]
    assert len(modules) == len(methods()) + len(backbones())
    assert not loaded_by(modules) & {"torch", "pyarrow", "h5py", "numpy", "transformers"}


def test_scenes_need_no_library_of_models_and_importers_none_that_reads_features() -> None:
    """Plans ask which importer knows a path."""
    assert not loaded_by(["itrpipe.scenes"]) & {"torch", "pyarrow"}
    importers = [f"itrpipe.features.importers.{kind.replace('-', '_')}.importer" for kind in IMPORTERS.classes]
    assert not loaded_by(importers) & {"h5py", "torch", "PIL", "lmdb", "msgpack", "lz4", "pyarrow", "transformers"}


def test_evaluation_runs_without_torch() -> None:
    evaluation = [f"itrpipe.evaluation.{path.stem}" for path in (PACKAGE / "evaluation").glob("*.py")]
    assert "torch" not in loaded_by(evaluation)


def test_the_function_that_mines_reads_few_modules() -> None:
    code = "import sys, itrpipe\nitrpipe.mine\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert len([name for name in loaded if name.partition(".")[0] == "itrpipe"]) <= 15
    assert not {"rich", "pydantic", "h5py"}.intersection(loaded)
