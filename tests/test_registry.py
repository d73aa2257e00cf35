"""What is found by the name of its folder, and what is said of a folder that lacks something."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from itrpipe.errors import UsageError
from itrpipe.registry import Registry


def test_what_a_folder_lacks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for package, declared, module, said in (
        ("room_without_class", "class Margin: ...", "", "declaration.py has no class SoftMargin"),
        (
            "room_without_build",
            "class SoftMargin: ...",
            "",
            r"defines no build\(\), which makes 'soft-margin'",
        ),
        ("room_with_both", "class SoftMargin: ...", "def build(): ...", ""),
    ):
        (folder := tmp_path / package / "soft_margin").mkdir(parents=True)
        for path in (folder, folder.parent):
            (path / "__init__.py").touch()
        (folder / "declaration.py").write_text(declared)
        (folder / "method.py").write_text(module)
        registry = Registry(package, "method")
        with pytest.raises(UsageError, match=said) if said else nullcontext():
            assert {name: kind.__name__ for name, kind in registry.classes.items()} == {"soft-margin": "SoftMargin"}
            assert callable(registry.module("soft-margin").build)
