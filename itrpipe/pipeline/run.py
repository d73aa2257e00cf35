"""Run a plan: print it and what it will cost, make every artifact that is not up to date, record how it came to be."""

import datetime
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from itrpipe.datasets.definition import load_definition, remember_training
from itrpipe.engine.run import OthersMissing, PartShare, part_share, without_share
from itrpipe.errors import DataError, ItrpipeError, LockedError, UsageError
from itrpipe.evaluation.tables import duration
from itrpipe.pipeline.planning import Planner, refuse_hopeless
from itrpipe.pipeline.steps import earlier_artifacts, pending_steps, state_of, unique_steps
from itrpipe.printable import quantity
from itrpipe.progress import PEAK_MEMORY, Reporter, memory_gib
from itrpipe.stages.base import Artifact, Job, State, Step, load_stage
from itrpipe.storage.artifact import (
    INPUTS,
    START,
    UNFINISHED,
    WORK,
    Manifest,
    finish,
    open_partial,
    recover_sealed,
)
from itrpipe.storage.disk import on_disk, read_stamped_json, remove_leftovers, write_stamped_json
from itrpipe.storage.locks import HOURS, holder, locked, patience

POLL_SECONDS = 1.0
_WIDEST_TITLE = 62
"""Characters behind which states are aligned at most, so that a line of a plan fits into 80 columns."""
_MARKS: dict[State, tuple[str, str]] = {
    "up to date": ("✓", "green"),
    "missing": ("+", "cyan"),
    "interrupted": ("▸", "cyan"),
    "running": ("▸", "cyan"),
    "new settings": ("+", "cyan"),
    "stale": ("!", "yellow"),
    "damaged": ("✗", "red"),
}


def print_plan(steps: Iterable[Step], todo: Iterable[Step], reporter: Reporter) -> None:
    """Print one line for each step: mark, artifact, state and reason; of those that have to run, and of all others."""
    needed = {step.location.folder for step in todo}
    every = unique_steps(steps)
    width = min(_WIDEST_TITLE, max((len(step.title) for step in every), default=0))
    for step in every:
        mark, style = _MARKS[step.state]
        text = f"{step.state}{f', {step.reason}' if step.reason else ''}"
        if step.state != "up to date" and step.location.folder not in needed:
            mark = "·"
            style = None
            text = f"{step.state}, but nothing that is to be made reads it"
        reporter.say(f"  {mark} {step.title:<{width}}  {text}", style=style)


def run(
    steps: list[Step],
    reporter: Reporter,
    *,
    dry_run: bool = False,
    with_upstream: bool = True,
    failures: dict[Path, ItrpipeError] | None = None,
) -> None:
    """Print the plan and run every step of it that is not up to date.

    Args:
        steps: the steps asked for.
        reporter: prints.
        dry_run: print only, and what it will cost.
        with_upstream: run missing steps upstream; otherwise refuse.
        failures: gets, by the folder of an artifact, why it was not made, and the others are made; None ends with the
            first error.

    Raises:
        UsageError: something upstream is not up to date and `with_upstream` is off, or a step turns out to be one
            that cannot work.
        DataError: an artifact is damaged.
    """
    todo = pending_steps(steps)
    print_plan(steps, todo, reporter)
    if dry_run:
        say_costs(todo, reporter)
        return
    damaged = [step for step in todo if step.state == "damaged"]
    if damaged and failures is None:
        raise DataError(damaged[0].reason)
    for dataset in {step.location.root / step.location.dataset for step in steps}:
        remove_leftovers(dataset)
    named = _named(steps)
    requested = {step.location.folder for step in steps}
    for step in todo:
        if not with_upstream and step.location.folder not in requested:
            raise UsageError(f"{step.title} is not up to date and --no-deps was given; run it first")
    for number, step in enumerate(todo):
        try:
            for each in step.inputs.values():
                if failures and (reason := failures.get(each.location.folder)):
                    raise reason
            refuse_hopeless(todo[number:] if failures is None else [step])
            run_step(step, reporter, needed=number + 1 < len(todo))
        except ItrpipeError as error:
            if failures is None:
                raise
            failures[step.location.folder] = error
            reporter.say(f"  ✗ {step.title} failed: {error}", style="red")
    for step in named:
        if step.finished is None:
            continue
        location = step.location
        name = step.model
        remember_training(location.root, location.dataset, name, location.label, location.name)
        definition = load_definition(location.root, location.dataset)
        asked = location.folder in requested
        if asked and name in definition.models and (same := sorted(definition.names_of(location.name) - {name})):
            reporter.say(f"model {name} is the same as {', '.join(same)}: no setting differs", style="yellow")


def _named(steps: Iterable[Step]) -> list[Step]:
    """Return the trainings of a plan that named models are; one with other settings than its model has no name."""
    found = []
    for step in unique_steps(steps):
        location = step.location
        name = step.model
        known = load_definition(location.root, location.dataset).models.get(name)
        if known is None:
            continue
        is_known = known.trained.get(location.label) == location.name
        if not is_known:
            seed = step.settings.model_dump()["seed"]
            told = Planner(location.root, location.dataset, remember=False).of_model(name, seed)
            is_known = told.location.folder == location.folder
        if is_known:
            found.append(step)
    return found


def run_step(step: Step, reporter: Reporter, *, needed: bool = True) -> None:
    """Make one artifact, or find that another process has made it meanwhile.

    Args:
        step: the artifact. Where its execution settings name a share, only that share of its parts is made; who makes
            the last part joins all of them.
        reporter: prints.
        needed: something reads it that runs later, so that other jobs with other shares are waited for.
    """
    share = None
    if load_stage(step.location.stage).has_parts(step):
        share = part_share(step.execution)
    while (others := _run_share(step, reporter, share)) is not None:
        if others.missing() and not (needed or others.more):
            return
        _wait_for(others, step, reporter)
        share = share if others.more else None


def _run_share(step: Step, reporter: Reporter, share: PartShare | None) -> OthersMissing | None:
    """Make one artifact, or a share of its parts, and return what other jobs have to do then; None if nothing."""
    location = step.location
    part = "" if share is None else f"{share.number}-of-{share.count}"
    joins = share is None and part_share(step.execution) is not None

    def say_waiting(lock: Path) -> None:
        reporter.say(f"{step.title}: {holder(lock)} is writing it; waiting for {lock}")

    with on_disk(location.partial), locked(location, say_waiting, part, for_parts=joins):
        recover_sealed(location)
        state, reason = state_of(step)
        if state == "damaged":
            raise DataError(reason)
        if state == "up to date":
            known = "up to date after all" if step.state == "stale" else "finished by another run"
            reporter.say(f"{step.title}: {known}")
            return None
        job, start = _begin(step, reporter, share)
        try:
            load_stage(location.stage).run(job)
        except OthersMissing as others:
            left = others.missing()
            every = len(others.paths)
            rest = f"{left:,} of {every:,} are left to other jobs; the job that makes the last one joins all"
            write_stamped_json(job.work / UNFINISHED, {"rest": rest})  # for `itrpipe status`
            reporter.say(f"  part {others.share} is done ({others.rows:,} {others.unit}); {rest}")
            return others
        job.timings["total"] = round(time.time() - start, 3)
        job.metrics[PEAK_MEMORY] = round(memory_gib(), 2)
        manifest = finish(location, _record(step, job))
    told = [
        f"{key} {f'{value:.4g}' if isinstance(value, float) else value}"
        for key, value in manifest.metrics.items()
        if value and key != PEAK_MEMORY and isinstance(value, int | float | str)
    ]
    reporter.say(f"  done in {manifest.timings['total']:.1f} s{': ' if told else ''}{', '.join(told)}")
    return None


def _wait_for(others: OthersMissing, step: Step, reporter: Reporter) -> None:
    """Wait until other jobs have made their parts, or the whole.

    Raises:
        LockedError: it took longer than `ITRPIPE_LOCK_HOURS`.
    """
    until = time.monotonic() + 3600 * patience()
    if others.missing():
        reporter.say(
            f"{step.title}: waiting for {quantity(others.missing(), 'part')} of other jobs (--part "
            f"i/{others.share.count})"
        )
    while others.missing() and not (step.location.folder.exists() and state_of(step)[0] == "up to date"):
        if time.monotonic() > until:
            raise LockedError(
                f"{step.title}: {quantity(others.missing(), 'part')} of other jobs not made after {patience():g} "
                f"hours; start these jobs, or wait longer with {HOURS}={2 * patience():g}"
            )
        time.sleep(POLL_SECONDS)


def _begin(step: Step, reporter: Reporter, share: PartShare | None) -> tuple[Job, float]:
    """Open the partial folder, and say whether the job goes on with what an earlier run has begun there.

    Returns:
        The job, and when it would have been begun without the breaks between its runs, in seconds of the epoch.
    """
    inputs = {name: Artifact.of(upstream.location.folder) for name, upstream in step.inputs.items()}
    _drop_other_beginning(step, inputs, reporter, shared=share is not None)
    job = Job(
        dataset=step.location.dataset,
        conf=step.need.conf,
        settings=step.settings,
        execution=step.execution if share is not None else without_share(step.execution),
        inputs=inputs,
        definition=step.definition,
        folder=open_partial(step.location),
        reporter=reporter,
        sources=step.sources,
    )
    start = time.time()
    record = job.work / START
    resumed = record.exists() and share is None
    if resumed:
        ended = max(path.stat().st_mtime for path in job.folder.rglob("*"))  # an earlier run, with its last file
        start -= ended - read_stamped_json(record, f"remove {job.folder} and run the same command again")["start"]
    if resumed or not record.exists():  # when it would have been begun without the breaks between its runs
        write_stamped_json(record, {"start": start})
    write_stamped_json(job.work / INPUTS, _read_by(inputs))
    reporter.say(f"{step.title}{' (resuming)' if resumed else ''}", style="bold")
    return job, start


def _drop_other_beginning(step: Step, inputs: Mapping[str, Artifact], reporter: Reporter, *, shared: bool) -> None:
    """Remove an interrupted beginning that was made from other bytes."""
    partial = step.location.partial
    record = partial / WORK / INPUTS
    if not record.exists():
        return
    remedy = f"remove {partial} and run the same command again"
    before = read_stamped_json(record, remedy)
    changed = [each for each, now in _read_by(inputs).items() if before.get(each) != now]
    if not changed:
        return
    if shared:
        raise DataError(f"{partial} was begun before {changed[0]} was made again; {remedy} for every part")
    reporter.say(f"  {changed[0]} was made again since {partial.name} was begun; it begins anew", style="yellow")
    shutil.rmtree(partial)


def _read_by(inputs: Mapping[str, Artifact]) -> dict[str, str]:
    """Return the digest of the files of each artifact."""
    return {f"{each.folder.parent.name}/{each.folder.name}": each.manifest.digest for each in inputs.values()}


def _record(step: Step, job: Job) -> dict[str, Any]:
    """Return every field of the manifest but the outputs and versions."""
    return {
        "stage": step.location.stage,
        "schema_version": load_stage(step.location.stage).schema_version,
        "dataset": step.location.dataset,
        "conf": step.need.conf,
        "label": step.location.label,
        "fingerprint": step.location.fingerprint,
        "settings": step.settings.model_dump(mode="json"),
        "execution": without_share(step.execution).model_dump(mode="json"),
        "sources": step.sources,
        "inputs": {name: each.manifest.as_input(each.folder.name) for name, each in job.inputs.items()},
        "timings": job.timings,
        "metrics": job.metrics,
        "messages": job.messages,
        "failed": job.failed,
        "command": shlex.join(["itrpipe", *sys.argv[1:]]),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
    }


EPOCHS, MAX_UPDATES = "epochs", "max_updates"
OF_NEGATIVES = frozenset(("method", "loss", "sentences"))
"""Settings that choose the negatives of a training, and name the training in stages that read it."""
DATA = frozenset(("prepare", "extract", "parse"))
"""Inputs that an earlier artifact must have had too, where both read them: other data take another time."""


class Cost(NamedTuple):
    """Expected cost of one step.

    Attributes:
        seconds: that an earlier artifact took, of a training in proportion to its epochs; None where there is none.
        note: what `seconds` is, for people.
    """

    seconds: float | None = None
    note: str = ""


def cost_of(step: Step, earlier: Mapping[str, Manifest]) -> Cost:
    """Return the cost of a step by the nearest earlier artifact that was made of the same data, of several the newest.

    Args:
        step: that is to run.
        earlier: artifacts of its stage by name, see `earlier_artifacts`.

    Settings that do not decide how long a stage takes, such as the seed, may differ, see `itrpipe.stages.base`, and so
    may the epochs of a training, whose cost is that of all its epochs. Where there is no such artifact, one counts that
    differs in its negatives as well.
    """
    settings = step.settings.model_dump(mode="json")
    untimed = load_stage(step.need.stage).untimed
    conf = None if EPOCHS in settings else step.need.conf  # of a training the method is a setting
    by_epochs = EPOCHS in settings and not settings.get(MAX_UPDATES)
    scaled = untimed | {EPOCHS} if by_epochs else untimed
    nearest = None
    for name, manifest in earlier.items():
        shared = DATA & manifest.inputs.keys() & step.inputs.keys()
        is_alike = all(manifest.inputs[key].fingerprint == step.inputs[key].location.fingerprint for key in shared)
        different = {key for key, value in manifest.settings.items() if settings.get(key) != value}
        if is_alike and conf in (None, manifest.conf) and different <= scaled | OF_NEGATIVES:
            closeness = (different <= scaled, different <= untimed, -len(different), manifest.finished)
            if nearest is None or closeness > nearest[0]:
                nearest = closeness, name, manifest
    if nearest is None:
        return Cost()
    (has_same_negatives, *_), name, manifest = nearest
    seconds = manifest.timings["total"]
    note = f"as {manifest.stage}/{name} took"
    # Fewer than its settings say where validation was flat; none where nothing was trained.
    trained: Any = manifest.metrics.get(EPOCHS) or manifest.settings.get(EPOCHS)
    if by_epochs and trained != settings[EPOCHS]:
        seconds *= settings[EPOCHS] / trained
        note += f" with {quantity(trained, 'epoch')}, scaled to {settings[EPOCHS]}"
    if not has_same_negatives:
        note += ", with other negatives"
    return Cost(seconds, note)


def say_costs(steps: Sequence[Step], reporter: Reporter) -> None:
    """Print the cost of steps, a line each, and the sum of what is known."""
    earlier = cache(earlier_artifacts)
    costs = {}
    for step in steps:
        costs[step.title] = cost_of(step, earlier(step.location.folder.parent))
    known = [cost.seconds for cost in costs.values() if cost.seconds is not None]
    if not steps:
        return
    if not known:
        reporter.say("estimated cost: unknown, these data have no earlier run of this kind", style="bold")
        return
    reporter.say("estimated cost", style="bold")
    width = max(map(len, costs))
    for name, cost in costs.items():
        time = "unknown" if cost.seconds is None else f"{cost.seconds:.0f} s"
        reporter.say(f"    {name:<{width}} {time:>9}  {cost.note}".rstrip())
    most = any(0 < getattr(step.settings, "patience", 0) < getattr(step.settings, EPOCHS, 0) for step in steps)
    unknown = len(costs) - len(known)
    more = f" and {quantity(unknown, 'step')} of unknown cost" if unknown else ""
    reporter.say(f"    sum: {'at most ' if most else ''}{duration(sum(known))}{more}")
