"""`kill -9` at random moments, of one process or of one of two, and exactly before and after every step on the disk."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults.chain import Chain, Step, finished, identities, rebuilt, say, unsound
from tests.faults.server import Child, dying, run
from tests.faults.trials import Findings, Trial

MOST_IN_A_ROW = 3
KILLED, TAKEN = -9, 2


@dataclass(frozen=True)
class Place:
    """One command of a chain.

    Attributes:
        chain: all of them.
        step: its step.
        number: which of the step's.
    """

    chain: Chain
    step: Step
    number: int

    @property
    def arguments(self) -> list[str]:
        return self.chain.arguments(self.step, self.number)

    @property
    def seconds(self) -> float:
        return self.chain.seconds[self.step.name, self.number]

    @property
    def events(self) -> list[str]:
        return self.chain.events[self.step.name, self.number]

    @property
    def codes(self) -> tuple[int, ...]:
        """With which it may end: an export that was whole before is in its own way."""
        return (0, TAKEN) if self.step.name == "export" else (0,)

    def __str__(self) -> str:
        return f"{self.step.name}{f' {self.number + 1}' if len(self.step.commands) > 1 else ''}"

    def begin(self, folder: Path) -> None:
        """Puts everything into a folder that is there before the command."""
        self.chain.start(self.step, folder)
        for earlier in range(self.number):
            run(self.chain.arguments(self.step, earlier), folder)

    def finish(self, folder: Path, before: dict, found: Findings) -> None:
        """The same command again, and what follows it: all has to end well, with the bytes of the reference."""
        said = ""
        for number in range(self.number, len(self.step.commands)):
            outcome = run(self.chain.arguments(self.step, number), folder)
            said = say(outcome)
            if not found.succeeded(outcome, self.codes):
                return
        for name in rebuilt(before, folder):
            found.note("lost", f"{name} was finished and is gone or was made again {said}")
        self.chain.compare(folder, self.step, found, said)


def places(chain: Chain) -> list[Place]:
    return [Place(chain, step, number) for step in chain.steps for number in range(len(step.commands))]


def random_kills(chain: Chain, count: int, seed: int) -> list[Trial]:
    """Trials that kill about so often in all, at moments drawn from the seed."""
    draw, trials, planned = random.Random(seed), [], 0
    where = places(chain)
    while planned < count:
        place = where[len(trials) % len(where)]
        times = draw.randint(1, MOST_IN_A_ROW)
        body = partial(_disturbed, place=place, count=1, kills=times)
        trials.append(Trial("kills", f"{place} #{len(trials)}", body))
        planned += times
    return trials


def several_writers(chain: Chain) -> list[Trial]:
    """Two processes at once, three, and two of which one is killed, on every command that makes an artifact."""
    return [
        Trial(
            "writers",
            f"{place} by {count}{', one killed' if kills else ''}",
            partial(_disturbed, place=place, count=count, kills=kills),
        )
        for place in places(chain)
        if place.number == len(place.step.commands) - 1 and place.step.name not in ("search", "export-again")
        for count, kills in ((2, 0), (3, 0), (2, 1))
    ]


def kills_at_steps(chain: Chain, count: int) -> list[Trial]:
    """Trials that kill before and after every step, or as many of them as were asked for, evenly."""
    points = [
        (place, event, after)
        for place in places(chain)
        for event in range(len(place.events))
        for after in (False, True)
    ]
    stride = max(1.0, len(points) / count)
    return [
        Trial(
            "renames",
            f"{place} {'after' if after else 'before'} {event} {place.events[event]}",
            partial(_at_step, place=place, at=(event, after)),
        )
        for place, event, after in (points[int(row * stride)] for row in range(min(count, len(points))))
    ]


def _disturbed(folder: Path, draw: random.Random, found: Findings, *, place: Place, count: int, kills: int) -> None:
    """So many processes at once, of which one is killed; one alone several times in a row."""
    place.begin(folder)
    before, exported, there = identities(folder), _has_export(folder), set(finished(folder))
    for _ in range(max(1, kills)):
        children = []
        for _ in range(count):
            children.append(Child(place.arguments, folder))
            time.sleep((count > 1) * draw.choice((0.0, 0.0, 0.3)) * place.seconds)
        if kills:
            killed, group = children.pop(0), draw.random() < 0.5
            killed.ended(draw.uniform(0.05, 1.0) * place.seconds)
            killed.kill(group=group)
            killed.wait(sweep=group)
            before = before if children else _after_kill(folder, before, exported, found)
        found.tried += 1
        outcomes = [child.wait() for child in children]
        for outcome in outcomes:
            found.succeeded(outcome, place.codes)
        made = sum(outcome.output.count("\n  done in ") for outcome in outcomes)
        new = len(set(finished(folder)) - there)
        if not kills and made != new:
            found.note("lost", f"{new} artifacts were made {made} times: {outcomes[-1]}")
    place.finish(folder, before, found)


def _at_step(folder: Path, draw: random.Random, found: Findings, *, place: Place, at: tuple[int, bool]) -> None:
    place.begin(folder)
    before, exported = identities(folder), _has_export(folder)
    outcome = run(place.arguments, folder, dying(folder, lambda number, _, done: (number, done) == at))
    if outcome.code == KILLED:
        found.tried += 1
    else:
        found.succeeded(outcome)
    place.finish(folder, _after_kill(folder, before, exported, found), found)


def _after_kill(folder: Path, before: dict, exported: bool, found: Findings) -> dict:
    """Notes what a kill broke; returns what is finished now."""
    for text in unsound(folder):
        found.note("lost", f"after the kill {text}")
    for name in rebuilt(before, folder):
        found.note("lost", f"{name} was finished before the kill and is gone or made again")
    if exported and not _has_export(folder):
        found.note("lost", "after the kill no export is left, neither the earlier nor the new one")
    return before | identities(folder)


def _has_export(folder: Path) -> bool:
    return any(folder.glob("exported/*/export.json"))
