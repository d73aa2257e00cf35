"""Puts one mistake after the other into a copy of the code and asks whether the tests notice: `make mutants`.

Lines of the package are drawn at random, and cosmic-ray makes a mistake in each. All tests run once to tell which of
them reach which line; a mistake is then shown to the tests that reach its line, and no others.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names
from coverage import CoverageData

ROOT = Path(__file__).parents[1]
PACKAGE = "itrpipe"
LEAST, LEAST_OF_AN_AREA = 0.97, 0.93
LONGEST = 900
"""Seconds after which the tests of a mistake count as failed: it may let a loop run on."""
RECORD = "tests/test_config.py::test_limits_defaults_and_flags_of_settings_are_those_that_were_recorded"
DECORATORS = "RemoveDecorator"
"""Most decorators keep results, which changes nothing that anyone sees."""
GUARDS = ("strict", "frozen")
"""Keywords that refuse what the code never does."""
EQUAL = {ast.Is: ast.Eq, ast.IsNot: ast.NotEq}
"""Comparisons that are the same of short strings."""
OPERATORS = {
    name: get_operator(name)()
    for name in operator_names()
    if DECORATORS not in name and not get_operator(name).arguments()
}


@dataclass(frozen=True)
class Mistake:
    """A file with one wrong line.

    Attributes:
        file: below the root.
        line: of the mistake, from 1.
        wrong: the whole text of the file.
    """

    file: str
    line: int
    wrong: str

    @property
    def area(self) -> str:
        """Room of the package."""
        return Path(self.file).parts[1]

    def __str__(self) -> str:
        right = (ROOT / self.file).read_text(encoding="utf-8").splitlines()[self.line - 1]
        return f"{self.file}:{self.line}: {right.strip()}  ->  {self.wrong.splitlines()[self.line - 1].strip()}"


def mistakes(areas: list[str], seed: int) -> Iterator[Mistake]:
    """Mistakes in random lines without end, until every line of the areas was drawn."""
    draw = random.Random(seed)
    files = sorted(ROOT.glob(f"{PACKAGE}/**/*.py"))
    chosen = [file for file in files if not areas or file.relative_to(ROOT).parts[1] in areas]
    lines = [(file, line) for file in chosen for line in range(1, len(file.read_text().splitlines()) + 1)]
    draw.shuffle(lines)
    places: dict[Path, dict[int, list[tuple[str, int]]]] = {}
    for file, line in lines:
        if file not in places:
            places[file] = _places(file)
        for operator, occurrence in draw.sample(found := places[file].get(line, []), len(found)):
            right = file.read_text(encoding="utf-8")
            wrong = mutate_code(right, OPERATORS[operator], occurrence)
            if wrong is not None and _meaning(wrong) not in (None, _meaning(right)):
                yield Mistake(file.relative_to(ROOT).as_posix(), line, wrong)
                break


def _places(file: Path) -> dict[int, list[tuple[str, int]]]:
    """Line -> the mistakes that can be made there: operators of cosmic-ray, each with the number of its place."""
    nodes, found = [*ast_nodes(get_ast(file.read_text(encoding="utf-8")))], defaultdict(list)
    for name, operator in OPERATORS.items():
        starts = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, (line, _) in enumerate(starts):
            found[line].append((name, occurrence))
    return found


def _meaning(code: str) -> str | None:
    """What code does, without annotations, guards, markers and the exact sizes of limits; None of what is no code."""
    try:
        tree = ast.parse(code)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign) and "(" not in ast.unparse(node.annotation):
            node.annotation = ast.Constant(None)  # pydantic calls what limits a value
        if isinstance(node, ast.arguments):  # whether they stand before `/` or after `*`
            node.args, node.posonlyargs, node.kwonlyargs = [*node.posonlyargs, *node.args, *node.kwonlyargs], [], []
            node.defaults, node.kw_defaults = [*node.defaults, *filter(None, node.kw_defaults)], []
        if isinstance(node, ast.Compare) and "None" not in map(ast.unparse, (node.left, *node.comparators)):
            node.ops = [EQUAL.get(type(each), type(each))() for each in node.ops]
        if isinstance(node, ast.Call):
            node.keywords = [each for each in node.keywords if each.arg not in GUARDS]
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.test = ast.Constant(False)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper() and _is_plain(node.value):
            node.value = ast.Constant("a limit")  # one more or less is no mistake
    return ast.dump(tree)


def _is_plain(value: ast.expr) -> bool:
    return not any(isinstance(each, ast.Name) for each in ast.walk(value))


def copied(folder: Path) -> Path:
    """A copy of what git knows, in which mistakes can be made."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def fails(root: Path, *arguments: str, longest: float | None = None) -> bool:
    """Whether a test fails in a copy of the code, or goes on for so long that it may never end."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=root, env=environment, start_new_session=True, **quiet) as running:
        try:
            return running.wait(longest) != 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


def tests_of(mistake: Mistake, known: CoverageData) -> list[str]:
    """The tests that reach a line, those of its room first; all of the room where none does.

    A line that an import runs is shown to those that reach a function of its file, and to that of all settings.
    """
    rooms = f"tests/{mistake.area}", f"tests/test_{Path(mistake.area).stem}.py", "tests"
    own = next(each for each in rooms if (ROOT / each).exists())
    tree = ast.parse((ROOT / mistake.file).read_text(encoding="utf-8"))
    spans = [
        range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.stmt)
    ]
    lines = min((span for span in spans if mistake.line in span), key=len, default=None)
    contexts = known.contexts_by_lineno(mistake.file)
    reaching = {each.rpartition("|")[0] for line in lines or chain(*spans) for each in contexts.get(line, ()) if each}
    found = sorted(reaching, key=lambda test: (not test.startswith(own), test)) or [own]
    return found if lines else [RECORD, *found]


def main() -> None:
    """Prints every mistake that no test noticed, and how many of each area were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="mistakes (300)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--area", action="append", default=[], help="only this room; repeatable")
    parser.add_argument("--reach", type=Path, help="file with what the tests reach; made where it is missing")
    chosen = parser.parse_args()
    noticed: dict[str, list[bool]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        root, asked = copied(Path(folder)), Path(folder) / "tests.txt"
        reach = (chosen.reach or root / "reach").absolute()
        if not reach.exists():
            os.environ["COVERAGE_FILE"] = str(reach)
            contexts = f"--cov={PACKAGE}", "--cov-context=test", "--cov-report="
            if fails(root, "--numprocesses=2", "--dist=loadfile", *contexts):
                sys.exit("a test fails on the code as it is; mend that first")
        known = CoverageData(str(reach))
        known.read()
        for number, mistake in enumerate(islice(mistakes(chosen.area, chosen.seed), chosen.count), 1):
            path = root / mistake.file
            right = path.read_text(encoding="utf-8")
            path.write_text(mistake.wrong, encoding="utf-8")
            asked.write_text("\n".join(tests_of(mistake, known)), encoding="utf-8")
            found = fails(root, "--exitfirst", f"@{asked}", longest=LONGEST)
            path.write_text(right, encoding="utf-8")
            noticed[mistake.area].append(found)
            print(f"{number} of {chosen.count}: {'noticed' if found else 'NOT NOTICED'}  {mistake}", flush=True)
    for area, found in sorted(noticed.items()):
        print(f"{area:<12} {sum(found)} of {len(found)}")
    every = [found for each in noticed.values() for found in each]
    share = sum(every) / len(every)
    print(f"{'all':<12} {sum(every)} of {len(every)}, {share:.1%}")
    if share < LEAST or any(sum(found) / len(found) < LEAST_OF_AN_AREA for found in noticed.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
