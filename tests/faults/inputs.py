"""Bad inputs through real commands: each ends with one line and an exit code, and with no new artifact."""

from __future__ import annotations

import os
import random
import shlex
from functools import partial
from pathlib import Path

from tests.faults.cases import Case, Content, cases
from tests.faults.chain import BY_NAME, Chain, finished, identities, rebuilt, say
from tests.faults.server import Child
from tests.faults.trials import Findings, Trial

SECONDS = 30
"""In which a bad input is told."""


def trials(chain: Chain) -> list[Trial]:
    """One for every case."""
    return [Trial("inputs", case.name, partial(_try, chain=chain, case=case)) for case in cases()]


def _try(folder: Path, draw: random.Random, found: Findings, *, chain: Chain, case: Case) -> None:
    found.tried += 1
    chain.start(BY_NAME["search"], folder)
    os.environ["FAULTS_FEATURES"] = str(chain.places["source"] / "features.npz")
    (folder / "in").mkdir()
    for name, content in case.files.items():
        _write(next(folder.glob(name), folder / name), content)
    before, whole = identities(folder), set(finished(folder))
    search = shlex.join(chain.arguments(BY_NAME["search"]))
    command = case.command.format(**chain.places, data="data", search=search)
    outcome = Child(shlex.split(command), folder).wait(SECONDS)
    new = set(finished(folder)) - whole
    if found.refused(outcome, case.codes) and new:
        found.note("silent", f"{new.pop().relative_to(folder)} was made of it: {outcome}")
    for name in rebuilt(before, folder):
        found.note("lost", f"{name} is gone or was made again: {say(outcome)}")


def _write(path: Path, content: Content) -> None:
    if callable(content):
        if path.is_file():
            path.unlink()
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content, encoding="utf-8")
