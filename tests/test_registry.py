"""What is found by the name of its folder, and what is said of a folder that lacks something."""

from __future__ import annotations

from pathlib import Path

import pytest

from itrpipe.errors import UsageError
from itrpipe.registry import Registry


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A package with one folder, `soft_margin`; each test has its own, since Python imports a package once."""
    package = tmp_path / f"room_of_{request.node.originalname}"
    (package / "soft_margin").mkdir(parents=True)
    for folder in (package, package / "soft_margin"):
        (folder / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


def test_a_folder_without_the_class_of_its_name_is_told(room: Path) -> None:
    declaration = room / "soft_margin" / "declaration.py"
    declaration.write_text("class Margin: ...\n")
    with pytest.raises(UsageError, match=r"declaration.py has no class SoftMargin, as the folder's name asks for"):
        _ = Registry(room.name, "method").classes


def test_a_module_without_build_is_told(room: Path) -> None:
    (room / "soft_margin" / "method.py").touch()
    with pytest.raises(UsageError, match=r"method.py defines no build\(\), which makes 'soft-margin'"):
        Registry(room.name, "method").module("soft-margin")


def test_both_are_found(room: Path) -> None:
    (room / "soft_margin" / "declaration.py").write_text("class SoftMargin: ...\n")
    (room / "soft_margin" / "method.py").write_text("def build(): ...\n")
    registry = Registry(room.name, "method")
    assert {name: kind.__name__ for name, kind in registry.classes.items()} == {"soft-margin": "SoftMargin"}
    assert callable(registry.module("soft-margin").build)
