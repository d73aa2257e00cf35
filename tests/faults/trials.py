"""What is tried, what was found, and the processes that try it."""

from __future__ import annotations

import random
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from tests.faults.server import Outcome

SORTS = ("lost", "differing", "silent", "tracebacks")
"""Something whole is gone or was made again; a result or an end other than promised; a wrong input that nobody
noticed; a traceback."""


@dataclass
class Findings:
    """What a trial found.

    Attributes:
        tried: kills, flipped bits, bad inputs and the like.
        problems: sort and description.
    """

    tried: int = 0
    problems: list[tuple[str, str]] = field(default_factory=list)

    def note(self, sort: str, text: str) -> None:
        assert sort in SORTS
        self.problems.append((sort, " ".join(text.split())))

    def refused(self, outcome: Outcome, codes: Sequence[int], *named: str) -> bool:
        """Notes whatever is wrong with a command that had to refuse; returns whether it did.

        Args:
            outcome: of the command.
            codes: that it may end with.
            named: what its one line has to name.
        """
        before = len(self.problems)
        if outcome.traceback:
            self.note("tracebacks", str(outcome))
        elif outcome.code == 0:
            self.note("silent", str(outcome))
        elif outcome.code not in codes or len(outcome.errors) != 1:
            self.note("differing", f"not one line and exit code {' or '.join(map(str, codes))}: {outcome}")
        elif missing := [name for name in named if name not in outcome.errors[0]]:
            self.note("differing", f"does not name {', '.join(missing)}: {outcome}")
        return len(self.problems) == before

    def succeeded(self, outcome: Outcome, codes: Sequence[int] = (0,)) -> bool:
        """Notes a command that had to work and did not."""
        if outcome.code in codes and not outcome.traceback:
            return True
        self.note("tracebacks" if outcome.traceback else "differing", str(outcome))
        return False


@dataclass(frozen=True)
class Trial:
    """One thing to try, in an empty folder of its own."""

    kind: str
    name: str
    body: Callable[[Path, random.Random, Findings], None]


_underway: tuple[Sequence[Trial], Path, int, bool]


def run_all(trials: Sequence[Trial], folder: Path, seed: int, workers: int, *, keep: bool) -> dict[str, Counter[str]]:
    """Runs trials in forked processes, tells what they find, and returns counts by kind.

    Args:
        trials: to run.
        folder: for their files.
        seed: of whatever a trial draws.
        workers: processes.
        keep: leave the folders of trials that found something.
    """
    global _underway
    _underway = trials, folder, seed, keep
    table = {trial.kind: Counter[str]() for trial in trials}
    # Forked, so that the trials know what this process has imported and made.
    with ProcessPoolExecutor(workers, get_context("fork")) as pool:
        for done, task in enumerate(as_completed([pool.submit(_run, number) for number in range(len(trials))]), 1):
            number, found = task.result()
            table[trials[number].kind].update(tried=found.tried, **Counter(sort for sort, _ in found.problems))
            for sort, text in found.problems:
                print(f"  {sort:<10} {trials[number].kind}: {trials[number].name}: {text}", flush=True)
            if done % 100 == 0:
                print(f"{done} of {len(trials)}", flush=True)
    return table


def _run(number: int) -> tuple[int, Findings]:
    trials, place, seed, keep = _underway
    trial, found = trials[number], Findings()
    folder = place / f"{trial.kind}-{number}"
    folder.mkdir(mode=0o755)
    try:
        trial.body(folder, random.Random(f"{seed} {trial.kind} {trial.name}"), found)
    except Exception:
        found.note("differing", f"the campaign itself failed: {traceback.format_exc()}")
    if not (found.problems and keep):
        shutil.rmtree(folder, ignore_errors=True)
    return number, found
