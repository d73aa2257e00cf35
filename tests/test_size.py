from pathlib import Path

import pytest

from tests import size

SOURCE = '''"""A docstring
of two lines."""

# a comment
def f() -> str:
    """Another."""
    return "text"
'''


def test_code_is_counted_without_blanks_comments_and_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text(SOURCE)

    assert size.measured([file]) == {"code_lines": 2, "tokens": 9, "functions": 1, "files": 1}


def test_a_size_over_its_budget_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = tmp_path / "size.toml"
    monkeypatch.setattr(size, "ROOT", tmp_path)
    monkeypatch.setattr(size, "BUDGET", budget)
    (tmp_path / "itrpipe").mkdir()
    (tmp_path / "itrpipe" / "one.py").write_text(SOURCE)
    for lines, code in ((2, 0), (1, 1)):
        budget.write_text(f"[package]\ncode_lines = {lines}\n[tests]\nfiles = 0\n")
        assert size.main() == code
