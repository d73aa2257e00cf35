"""`make size`: how large the package and its tests are, beside the budget of tests/size.toml, which only ever falls."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUDGET = Path(__file__).with_suffix(".toml")
_LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def measured(files: list[Path]) -> dict[str, int]:
    """Sums over Python files.

    Returns:
        code_lines: lines that hold a token of code, so neither blank lines nor comments nor docstrings.
        tokens: tokens of code.
        functions: functions and methods, nested ones included.
        files: files other than `__init__.py`.
    """
    sums = {"code_lines": 0, "tokens": 0, "functions": 0, "files": 0}
    for file in files:
        text = file.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text)))
        docstrings = {line for node in nodes for line in _docstring_lines(node)}
        code = [token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in _LAYOUT]
        code = [token for token in code if token.type != tokenize.STRING or token.start[0] not in docstrings]
        sums["code_lines"] += len({line for token in code for line in range(token.start[0], token.end[0] + 1)})
        sums["tokens"] += len(code)
        sums["functions"] += sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in nodes)
        sums["files"] += file.name != "__init__.py"
    return sums


def _docstring_lines(node: ast.AST) -> range:
    """The lines of a node's docstring, of none if it has none."""
    match getattr(node, "body", None):
        case [ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)), *_]:
            return range(first, last + 1)
    return range(0)


def sizes(root: Path) -> dict[str, int]:
    """What the budget limits, counted below `root`, the folder of a checkout."""
    package = {f"package.{name}": count for name, count in measured(sorted((root / "itrpipe").rglob("*.py"))).items()}
    tests = {f"tests.{name}": count for name, count in measured(sorted((root / "tests").rglob("*.py"))).items()}
    return package | tests


def main() -> int:
    """Prints every size beside its budget; 1 if one is over it, else 0."""
    budget = tomllib.loads(BUDGET.read_text(encoding="utf-8"))
    counted = sizes(ROOT)
    limits = {f"{part}.{name}": limit for part, names in budget.items() for name, limit in names.items()}
    for name, limit in limits.items():
        over = f"   {counted[name] - limit:,} over" if counted[name] > limit else ""
        print(f"{name:<20} {counted[name]:>9,}   budget {limit:>9,}{over}")
    return int(any(counted[name] > limit for name, limit in limits.items()))


if __name__ == "__main__":
    sys.exit(main())
