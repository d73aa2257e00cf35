"""Several processes at once on one chain, and one of them killed while the others wait for it."""

from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path

from tests.faults.chain import Chain, finished
from tests.faults.kills import TAKEN, Place, places
from tests.faults.server import Child
from tests.faults.trials import Findings, Trial


def trials(chain: Chain, rounds: int) -> list[Trial]:
    """Two processes, three, and two of which one is killed, on every command that makes an artifact, several times."""
    return [
        Trial(
            "writers",
            f"{place} by {count}{', one killed' if killed else ''} #{number}",
            partial(_try, place=place, count=count, killed=killed),
        )
        for number in range(rounds)
        for place in places(chain)
        if place.number == len(place.step.commands) - 1 and place.step.name not in ("search", "export-again")
        for count, killed in ((2, False), (3, False), (2, True))
    ]


def _try(folder: Path, draw: random.Random, found: Findings, *, place: Place, count: int, killed: bool) -> None:
    found.tried += 1
    place.begin(folder)
    before = set(finished(folder))
    children = []
    for _ in range(count):
        children.append(Child(place.arguments, folder))
        time.sleep(draw.choice((0.0, 0.0, 0.3)) * place.seconds)
    if killed:
        first = children.pop(0)
        first.ended(draw.uniform(0.0, 0.9) * place.seconds)
        first.kill()
        first.wait()
    outcomes = [child.wait() for child in children]
    codes = (0, TAKEN) if place.step.name == "export" else (0,)
    for outcome in outcomes:
        found.succeeded(outcome, codes)
    made = sum(outcome.output.count("\n  done in ") for outcome in outcomes)
    new = len(set(finished(folder)) - before)
    if not killed and made != new:
        found.note("lost", f"{new} artifacts were made {made} times: {outcomes[-1]}")
    place.chain.compare(folder, place.step, found, f"({outcomes[-1].output.strip()[-200:]!r})")
