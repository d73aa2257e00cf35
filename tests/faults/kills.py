"""`kill -9` at random moments, and exactly before and after every step that changes what is on the disk."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults.chain import Chain, Step, identities, rebuilt, say, unsound
from tests.faults.server import Child, dying_at, run
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
            # An export that was whole before the kill is in its own way.
            if not found.succeeded(outcome, (0, TAKEN) if self.step.name == "export" else (0,)):
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
        trials.append(Trial("kills", f"{place} #{len(trials)}", partial(_at_moments, place=place, times=times)))
        planned += times
    return trials


def kills_at_steps(chain: Chain, count: int) -> list[Trial]:
    """Trials that kill before and after every step, or as many of them as were asked for, evenly."""
    points = [
        (place, event, after)
        for place in places(chain)
        for event in range(len(place.events))
        for after in (False, True)
    ]
    stride = max(1.0, len(points) / count)
    chosen = [points[int(row * stride)] for row in range(min(count, len(points)))]
    print(f"renames: {len(chosen)} of {len(points)} places", flush=True)
    return [
        Trial(
            "renames",
            f"{place} {'after' if after else 'before'} {event} {place.events[event]}",
            partial(_at_step, place=place, event=event, after=after),
        )
        for place, event, after in chosen
    ]


def _at_moments(folder: Path, draw: random.Random, found: Findings, *, place: Place, times: int) -> None:
    place.begin(folder)
    before, exported = identities(folder), _has_export(folder)
    children = []
    for _ in range(times):
        children.append(child := Child(place.arguments, folder))
        if not child.ended(draw.uniform(0.05, 1.0) * place.seconds):
            found.tried += 1
        group = draw.random() < 0.5
        child.kill(group=group)
        child.wait(sweep=group)
        before = _after_kill(folder, before, exported, found)
    place.finish(folder, before, found)
    for child in children:
        child.kill()


def _at_step(folder: Path, draw: random.Random, found: Findings, *, place: Place, event: int, after: bool) -> None:
    place.begin(folder)
    before, exported = identities(folder), _has_export(folder)
    outcome = run(place.arguments, folder, dying_at(folder, event, after=after))
    if outcome.code == KILLED:
        found.tried += 1
    elif found.succeeded(outcome):
        found.facts.append("the command ended before this step")
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
