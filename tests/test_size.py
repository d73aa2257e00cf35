"""Counts of code, and limits on them."""

from pathlib import Path

import pytest

from tests import size

SOURCE = '''"""A docstring
of two lines."""

# a comment
def f(rows: list[int]) -> str:
    """What it does."""
    pairs = [(row if row else None) for row in rows]
    return "text" if pairs else ""
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "itrpipe"
    package.mkdir()
    (package / "one.py").write_text(SOURCE)
    return package


def test_code_is_counted_without_blanks_comments_and_docstrings(folder: Path) -> None:
    found = size.measure(folder)
    assert (found["tokens"], found["functions"], found["tokens_per_line"]) == (34, 1, 11.33)
    filled = 7
    assert found["if_else"] == round(2000 / filled, 1)
    assert found["comprehensions"] == found["nested"] == round(1000 / filled, 1)
    assert (found["walrus"], found["odd_heads"], found["same_names"]) == (0, 50, 0)
    (folder / "two.py").write_text(SOURCE)
    assert size.measure(folder)["same_names"] == 1


def test_a_number_above_its_limit_fails(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = tmp_path / "size.toml"
    monkeypatch.setattr(size, "ROOT", tmp_path)
    monkeypatch.setattr(size, "LIMITS", limits)
    for functions, code in ((1, 0), (0, 1)):
        limits.write_text(f"[itrpipe]\nfunctions = {functions}\n")
        assert size.main() == code
