"""Puts one mistake after the other into a copy of the code and asks whether the tests notice: `make mutants`.

A mistake is a line of `mistakes.toml`: a file, a text that occurs once in it, what stands there instead, and the tests
that have to fail. A mistake that changes nothing anyone can see is listed with the reason, and counts as noticed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAST, LEAST_OF_AN_AREA = 0.97, 0.95
FAILED = "\nFAILED "
"""What pytest writes where a test fails; a thread may abort the process after that."""


@dataclass(frozen=True)
class Mistake:
    """One wrong line.

    Attributes:
        area: what it is counted under.
        file: it is put into.
        old: text that stands there once.
        new: what stands there instead.
        tests: files, or names as pytest has them, one of which has to fail.
        equivalent: why no test can notice; empty for all others.
    """

    area: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""


def mistakes() -> list[Mistake]:
    """All of them, area by area."""
    areas = tomllib.loads((Path(__file__).parent / "mistakes.toml").read_text(encoding="utf-8"))
    return [
        Mistake(area, each["file"], each["old"], each["new"], tuple(each["tests"]), each.get("equivalent", ""))
        for area, found in areas.items()
        for each in found
    ]


def copied(folder: Path) -> Path:
    """A copy of what git knows, in which mistakes can be made."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def fails(root: Path, tests: tuple[str, ...]) -> bool:
    """Whether one of the tests fails in a copy of the code; anything else that goes wrong ends this program."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if done.returncode and FAILED not in done.stdout:
        told = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        sys.exit(f"pytest ended with {done.returncode} on {' '.join(tests)}:\n{told}")
    return bool(done.returncode)


def main() -> None:
    """Prints a line for every mistake that no test noticed, and how many of each area were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--area", action="append", help="only this one; repeatable")
    chosen = parser.parse_args()
    known = [each for each in mistakes() if not chosen.area or each.area in chosen.area]
    noticed: dict[str, list[bool]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        root = copied(Path(folder))
        whole = tuple(sorted({test for each in known for test in each.tests}))
        if fails(root, whole):
            sys.exit("a test fails on the code as it is; mend that first")
        for number, each in enumerate(known, 1):
            path = root / each.file
            right = path.read_text(encoding="utf-8")
            if right.count(each.old) != 1:
                sys.exit(f"{each.file}: {each.old!r} stands there {right.count(each.old)} times, not once")
            path.write_text(right.replace(each.old, each.new), encoding="utf-8")
            found = bool(each.equivalent) or fails(root, each.tests)
            path.write_text(right, encoding="utf-8")
            noticed[each.area].append(found)
            if not found:
                print(f"NOT NOTICED  {each.file}: {each.old!r} -> {each.new!r}")
            print(f"{number} of {len(known)}", file=sys.stderr)
    for area, found in noticed.items():
        print(f"{area:<12} {sum(found)} of {len(found)}")
    every = [found for each in noticed.values() for found in each]
    share = sum(every) / len(every)
    print(f"{'all':<12} {sum(every)} of {len(every)}, {100 * share:.1f} %")
    if share < LEAST or any(sum(found) / len(found) < LEAST_OF_AN_AREA for found in noticed.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
