"""`make size`: how large and how dense the package and its tests are, beside the limits of tests/size.toml.

A change that makes a number smaller lowers its limit. The measures of a folder:

    tokens, functions    of code: without docstrings, comments and blank lines
    tokens_per_line      of the lines that hold code
    if_else, walrus      conditional expressions and assignment expressions in 1,000 lines that are not blank
    comprehensions       likewise; `nested` counts those that hold another one or a conditional expression
    odd_heads            percent of docstrings whose first word is one of `ODD_HEADS`
    same_names           public functions and classes whose name two modules define, without the plug-in contract's
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LIMITS = Path(__file__).with_suffix(".toml")
ODD_HEADS = {"What", "Those", "That", "Of", "How", "Which", "Where", "Why", "Whether", "Its", "As"}
CONTRACT = {"build", "answer", "asks", "main", "run"}
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


class Counts:
    """Counts over some Python files.

    Args:
        files: their paths.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self.sums: Counter[str] = Counter()
        self.modules_of_name: dict[str, set[Path]] = defaultdict(set)
        for file in files:
            text = file.read_text(encoding="utf-8")
            tree = ast.parse(text)
            docstring_lines = self._count_nodes(tree)
            self._count_tokens(text, docstring_lines)
            self._note_names(tree, file)

    def _count_nodes(self, tree: ast.Module) -> set[int]:
        """Count what a syntax tree holds, and return the lines of its docstrings."""
        docstring_lines: set[int] = set()
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.sums["functions"] += 1
                case ast.IfExp():
                    self.sums["if_else"] += 1
                case ast.NamedExpr():
                    self.sums["walrus"] += 1
                case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                    self.sums["comprehensions"] += 1
                    inner = [each for each in ast.walk(node) if each is not node]
                    self.sums["nested"] += any(isinstance(each, _COMPREHENSIONS | ast.IfExp) for each in inner)
            for text in _texts_alone(node):
                docstring_lines.update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
                words = str(text.value).split()
                self.sums["docstrings"] += 1
                self.sums["odd_heads"] += bool(words) and words[0].strip(".,:;`") in ODD_HEADS
        return docstring_lines

    def _count_tokens(self, text: str, docstring_lines: set[int]) -> None:
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            is_docstring = token.type == tokenize.STRING and token.start[0] in docstring_lines
            if token.type not in _LAYOUT and not is_docstring:
                self.sums["tokens"] += 1
                lines.update(range(token.start[0], token.end[0] + 1))
        self.sums["code_lines"] += len(lines)
        self.sums["filled_lines"] += sum(bool(line.strip()) for line in text.splitlines())

    def _note_names(self, tree: ast.Module, file: Path) -> None:
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                self.modules_of_name[node.name].add(file)

    def measures(self) -> dict[str, float]:
        """Return the measures of the module's docstring."""
        found: dict[str, float] = {name: self.sums[name] for name in ("tokens", "functions")}
        found["tokens_per_line"] = round(self.sums["tokens"] / max(1, self.sums["code_lines"]), 2)
        for name in ("if_else", "comprehensions", "nested", "walrus"):
            found[name] = round(1000 * self.sums[name] / max(1, self.sums["filled_lines"]), 1)
        found["odd_heads"] = round(100 * self.sums["odd_heads"] / max(1, self.sums["docstrings"]), 1)
        names = self.modules_of_name.keys() - CONTRACT
        found["same_names"] = sum(len(self.modules_of_name[name]) > 1 for name in names)
        return found


def _texts_alone(node: ast.AST) -> list[ast.Constant]:
    """Return the texts that are statements of their own in a block: docstrings, and those below constants."""
    body = getattr(node, "body", None)
    found = []
    for statement in body if isinstance(body, list) else []:
        value = getattr(statement, "value", None)
        if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found.append(value)
    return found


def measure(folder: Path) -> dict[str, float]:
    """Return the measures of all Python files below a folder, or of one file."""
    files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
    return Counts(files).measures()


def compared(root: Path, limits: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """Return folder, measure, value and limit for every limit; folders are named from the root of a checkout."""
    rows = []
    for folder, allowed in limits.items():
        measures = measure(root / folder)
        for name, limit in allowed.items():
            rows.append((folder, name, measures[name], limit))
    return rows


def main() -> int:
    """Print every number that has a limit; return 1 if one is above it, else 0."""
    limits = tomllib.loads(LIMITS.read_text(encoding="utf-8"))
    rows = compared(ROOT, limits)
    for folder, name, value, limit in rows:
        note = "   above its limit" if value > limit else ""
        print(f"{folder:<24} {name:<16} {value:>10,}   limit {limit:>10,}{note}")
    return int(any(value > limit for _, _, value, limit in rows))


if __name__ == "__main__":
    sys.exit(main())
