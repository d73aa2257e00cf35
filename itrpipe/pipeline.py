"""Run a plan: print it, make every artifact that is not up to date, record how it came to be."""

from __future__ import annotations

import datetime
import shlex
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from itrpipe import artifacts
from itrpipe.artifacts import INPUTS, UNFINISHED
from itrpipe.disk import full_disk_as_error, write_json
from itrpipe.errors import DataError, UsageError
from itrpipe.planning import State, Step, pending_steps, refuse_hopeless, unique_steps
from itrpipe.progress import PEAK_MEMORY, Reporter, memory_gib
from itrpipe.stages.base import Input, Job, load_stage

RESUMED = "resumed after an interruption; timings count the last run only"
"""Message of artifacts whose timings are no measure of what they cost."""
_MARKS: dict[State, tuple[str, str]] = {
    "up to date": ("✓", "green"),
    "missing": ("+", "cyan"),
    "interrupted": ("▸", "cyan"),
    "new settings": ("+", "cyan"),
    "stale": ("!", "yellow"),
    "damaged": ("✗", "red"),
}


def print_plan(steps: Iterable[Step], reporter: Reporter) -> None:
    """One line for each step: mark, artifact, state and reason."""
    steps = list(steps)
    needed = {step.location.folder for step in pending_steps(steps)}
    every = unique_steps(steps)
    width = max((len(f"{step.location.stage}/{step.location.name}") for step in every), default=0)
    for step in every:
        mark, style = _MARKS[step.state]
        text = f"{step.state}{f', {step.reason}' if step.reason else ''}"
        if step.state != "up to date" and step.location.folder not in needed:
            mark, style, text = "·", None, f"{step.state}, but nothing that is to be made reads it"
        reporter.say(f"  {mark} {step.location.stage + '/' + step.location.name:<{width}}  {text}", style=style)


def run(steps: list[Step], reporter: Reporter, *, dry_run: bool = False, with_upstream: bool = True) -> list[Path]:
    """Prints the plan and runs every step of it that is not up to date.

    Args:
        steps: the steps asked for.
        reporter: prints.
        dry_run: print only.
        with_upstream: run missing steps upstream; otherwise refuse.

    Returns:
        The artifact folders of `steps`.

    Raises:
        UsageError: something upstream is not up to date and `with_upstream` is off, or a step turns out to be one
            that cannot work.
        DataError: an artifact is damaged.
    """
    print_plan(steps, reporter)
    todo = pending_steps(steps)
    if dry_run:
        return [step.location.folder for step in steps]
    damaged = [step for step in todo if step.state == "damaged"]
    if damaged:
        raise DataError(damaged[0].reason)
    requested = {step.location.folder for step in steps}
    blocked = [step for step in todo if step.location.folder not in requested]
    if blocked and not with_upstream:
        first = blocked[0].location
        raise UsageError(f"{first.stage}/{first.name} is not up to date and --no-deps was given; run it first")
    for number, step in enumerate(todo):
        unfinished = run_step(step, reporter)
        if unfinished and number + 1 < len(todo):
            raise UsageError(f"{step.location.stage}/{step.location.name}: {unfinished}; nothing can read it before")
        refuse_hopeless(todo[number + 1 :])
    return [step.location.folder for step in steps]


def run_step(step: Step, reporter: Reporter) -> str:
    """Makes one artifact, or a part of it, or finds that another process has made it meanwhile.

    Returns:
        What is left to do when only a part was made, else nothing.
    """
    location = step.location
    name = f"{location.stage}/{location.name}"

    def say_waiting(lock: Path) -> None:
        reporter.say(f"{name}: another process is writing it; waiting for {lock}")

    part = getattr(step.execution, "part", "")
    with full_disk_as_error(location.partial), artifacts.locked(location, say_waiting, part):
        if location.folder.exists() or artifacts.recover_sealed(location):
            artifacts.check_artifact(location.folder)
            reporter.say(f"{name}: finished by another run")
            return ""
        resumed = location.partial.exists() and not part
        reporter.say(f"{name}{' (resuming)' if resumed else ''}", style="bold")
        job = _execute(step, reporter, resumed)
        if job.unfinished:
            write_json(job.work / UNFINISHED, job.unfinished)
            reporter.say(f"  {job.unfinished}")
            return job.unfinished
        manifest = artifacts.finish(location, _record(step, job))
    summary = ", ".join(f"{key} {_short(value)}" for key, value in manifest.metrics.items() if _is_plain(value))
    reporter.say(f"  done in {manifest.timings['total']:.1f} s{f': {summary}' if summary else ''}")
    return ""


def _execute(step: Step, reporter: Reporter, resumed: bool) -> Job:
    """Runs the stage in its partial folder."""
    inputs = {
        name: Input(upstream.location.folder, artifacts.check_artifact(upstream.location.folder))
        for name, upstream in step.inputs.items()
    }
    job = Job(
        dataset=step.location.dataset,
        conf=step.need.conf,
        settings=step.settings,
        execution=step.execution,
        inputs=inputs,
        definition=step.definition,
        folder=artifacts.open_partial(step.location),
        reporter=reporter,
    )
    write_json(job.work / INPUTS, [f"{s.location.stage}/{s.location.name}" for s in step.inputs.values()])
    start = time.monotonic()
    load_stage(step.location.stage).run(job)
    job.timings["total"] = round(time.monotonic() - start, 3)
    job.metrics[PEAK_MEMORY] = round(memory_gib(), 2)
    if resumed:
        job.messages.append(RESUMED)
    return job


def _record(step: Step, job: Job) -> dict[str, Any]:
    """Every field of the manifest but the outputs and versions."""
    return {
        "stage": step.location.stage,
        "schema_version": load_stage(step.location.stage).SCHEMA_VERSION,
        "dataset": step.location.dataset,
        "conf": step.need.conf,
        "label": step.location.label,
        "fingerprint": step.location.fingerprint,
        "settings": step.settings.model_dump(mode="json"),
        "execution": step.execution.model_dump(mode="json"),
        "sources": step.sources,
        "inputs": {
            name: {"stage": s.location.stage, "name": s.location.name, "fingerprint": s.location.fingerprint}
            for name, s in step.inputs.items()
        },
        "timings": job.timings,
        "metrics": job.metrics,
        "messages": job.messages,
        "failed": job.failed,
        "command": shlex.join(["itrpipe", *sys.argv[1:]]),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
    }


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str)
