"""Habits of language in README, docs, help and messages: the field's words, an actor, and intervals in one place."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EVIDENCE = ("all-runs.md", "flickr8k.md", "combinations.md", "results.md", "leaky-protocol.md", "when-negatives-pay.md")
SILENT = r"^```.*?^```|<!-- itrpipe report .*?<!-- end of|`[^`\n]*`|!\[[^\]]*\]|“[^”]*”"
"""Code, tables that a report has written, names, pictures and quotations."""
INTERVAL = r"[(,]\s?(?:95 % [\w\s]*?)?[−+]?\d+(?:\.\d+)?\sto\s[−+]?\d+(?:\.\d+)?\)"


@cache
def pages() -> list[tuple[str, str]]:
    """The prose of each page."""
    paths = (ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("stages/*.md"))
    texts = ((path.name, path.read_text(encoding="utf-8")) for path in paths)
    return [(name, re.sub(SILENT, "", text, flags=re.DOTALL | re.MULTILINE)) for name, text in texts]


@cache
def messages() -> list[tuple[str, str]]:
    """Strings of the package with a space, but for documentation strings of other than commands."""
    found = []
    for path in sorted((ROOT / "itrpipe").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        classes = [each for each in nodes if isinstance(each, ast.ClassDef) and path.parent.name == "cli"]
        commands = [each.body[0] for each in classes if _is_command(each)]
        silent = {each.value for each in nodes if isinstance(each, ast.Expr) and each not in commands}
        texts = (each.value for each in nodes if isinstance(each, ast.Constant) and each not in silent)
        found += [(path.name, text) for text in texts if isinstance(text, str) and " " in text]
    return found


def _is_command(each: ast.ClassDef) -> bool:
    return any(isinstance(part, ast.FunctionDef) and part.name == "run" for part in each.body)


@pytest.mark.parametrize(
    ("habit", "most"),
    [
        (r"\b(?:told|tells?)\b", 4),
        (r"\bbeside\b", 4),
        (r"\bstands?\b", 4),
        (r"\bin\s(?:the\s)?place\sof\b", 0),
        (r"\bstrongest\scontrol", 0),
        (r"\bdrawings\b", 0),
        (r"(?:^|[.:] )(?:What|Who)\b(?![^.?!]*\?)", 10),
    ],
)
def test_a_habit_stays_rare(habit: str, most: int) -> None:
    found = [
        (name, text[max(0, hit.start() - 40) : hit.end() + 40])
        for name, text in (*pages(), *messages())
        for hit in re.finditer(habit, text, re.MULTILINE)
    ]
    assert len(found) <= most, found


def test_intervals_are_on_the_pages_of_evidence() -> None:
    found = [(name, hit[0]) for name, text in pages() if name not in EVIDENCE for hit in re.finditer(INTERVAL, text)]
    assert len(found) <= 8, found
