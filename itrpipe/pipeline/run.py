"""Run a plan: print it with its cost, make every artifact that is not up to date, and record how it was made."""

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
"""Largest width of the column of titles, so that a line of a plan fits into 80 columns."""
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
    """Print a line for each step of a plan: mark, artifact, state and reason.

    Args:
        steps: that were asked for; those upstream are printed too.
        todo: steps that have to run; others that are not up to date are marked as needed by nothing.
        reporter: prints.
    """
    needed = {step.location.folder for step in todo}
    every = unique_steps(steps)
    longest = max((len(step.title) for step in every), default=0)
    width = min(_WIDEST_TITLE, longest)
    for step in every:
        mark, style = _MARKS[step.state]
        text = step.state
        if step.reason:
            text = f"{step.state}, {step.reason}"
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
        failures: receives artifact folder -> the error that prevented it, while the other artifacts are made; None
            ends with the first error.

    Raises:
        UsageError: something upstream is not up to date and `with_upstream` is off, or a step cannot work.
        DataError: an artifact is damaged.
    """
    todo = pending_steps(steps)
    print_plan(steps, todo, reporter)
    if dry_run:
        say_costs(todo, reporter)
        return
    for step in todo:
        if step.state == "damaged" and failures is None:
            raise DataError(step.reason)
    for dataset in {step.location.root / step.location.dataset for step in steps}:
        remove_leftovers(dataset)
    trainings = _named_trainings(steps)
    requested = {step.location.folder for step in steps}
    for step in todo:
        if not with_upstream and step.location.folder not in requested:
            raise UsageError(f"{step.title} is not up to date and --no-deps was given; run it first")
    for number, step in enumerate(todo):
        try:
            if failures is None:
                refuse_hopeless(todo[number:])
            else:
                for upstream in step.inputs.values():
                    if upstream.location.folder in failures:
                        raise failures[upstream.location.folder]
                refuse_hopeless([step])
            run_step(step, reporter, needed=number + 1 < len(todo))
        except ItrpipeError as error:
            if failures is None:
                raise
            failures[step.location.folder] = error
            reporter.say(f"  ✗ {step.title} failed: {error}", style="red")
    for step in trainings:
        if step.finished is not None:
            _remember(step, reporter, requested=step.location.folder in requested)


def _named_trainings(steps: Iterable[Step]) -> list[Step]:
    """Return the trainings of a plan that make a named model, with the very settings that it was told."""
    trainings = []
    for step in unique_steps(steps):
        location = step.location
        model = load_definition(location.root, location.dataset).models.get(step.model)
        if model is None:
            continue
        if model.trained.get(location.label) != location.name:
            seed = step.settings.model_dump()["seed"]
            as_told = Planner(location.root, location.dataset, remember=False).of_model(step.model, seed)
            if as_told.location.folder != location.folder:
                continue
        trainings.append(step)
    return trainings


def _remember(training: Step, reporter: Reporter, *, requested: bool) -> None:
    """Write down which artifact is a named model now, and print whether it has other names, if it was asked for."""
    location = training.location
    name = training.model
    remember_training(location.root, location.dataset, name, location.label, location.name)
    definition = load_definition(location.root, location.dataset)
    if requested and name in definition.models:
        others = sorted(definition.names_of(location.name) - {name})
        if others:
            reporter.say(f"model {name} is the same as {', '.join(others)}: no setting differs", style="yellow")


def run_step(step: Step, reporter: Reporter, *, needed: bool = True) -> None:
    """Make one artifact, or find that another process has made it meanwhile.

    Args:
        step: the artifact. Where its execution settings name a share, only that share of its parts is made; the job
            that makes the last part joins all of them.
        reporter: prints.
        needed: a later step reads the artifact, so this waits for the jobs with the other shares.
    """
    share = None
    if load_stage(step.location.stage).has_parts(step):
        share = part_share(step.execution)
    while True:
        others = _run_share(step, reporter, share)
        if others is None:
            return
        if others.missing() and not needed and not others.more:
            return
        _wait_for(others, step, reporter)
        if not others.more:
            share = None  # all parts are there, and this job joins them


def _run_share(step: Step, reporter: Reporter, share: PartShare | None) -> OthersMissing | None:
    """Make one artifact, or a share of its parts, and return the parts that other jobs make; None if it is whole."""
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
            how = "up to date after all" if step.state == "stale" else "finished by another run"
            reporter.say(f"{step.title}: {how}")
            return None
        job, start = _begin(step, reporter, share)
        try:
            load_stage(location.stage).run(job)
        except OthersMissing as others:
            rest = (
                f"{others.missing():,} of {len(others.paths):,} are left to other jobs; the job that makes the last "
                "one joins all"
            )
            write_stamped_json(job.work / UNFINISHED, {"rest": rest})  # for `itrpipe status`
            reporter.say(f"  part {others.share} is done ({others.rows:,} {others.unit}); {rest}")
            return others
        job.timings["total"] = round(time.time() - start, 3)
        job.metrics[PEAK_MEMORY] = round(memory_gib(), 2)
        manifest = finish(location, _record(step, job))
    metrics = []
    for key, value in manifest.metrics.items():
        if not value or key == PEAK_MEMORY:
            continue
        if isinstance(value, float):
            metrics.append(f"{key} {value:.4g}")
        elif isinstance(value, int | str):
            metrics.append(f"{key} {value}")
    line = f"  done in {manifest.timings['total']:.1f} s"
    if metrics:
        line += f": {', '.join(metrics)}"
    reporter.say(line)
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
    """Open the partial folder, and print whether the job goes on where an earlier run stopped.

    Returns:
        The job, and the time at which it would have begun without the breaks between its runs, in seconds of the epoch.
    """
    inputs = {}
    for name, upstream in step.inputs.items():
        inputs[name] = Artifact.of(upstream.location.folder)
    _drop_other_beginning(step, inputs, reporter, shared=share is not None)
    execution = step.execution
    if share is None:
        execution = without_share(execution)
    job = Job(
        dataset=step.location.dataset,
        conf=step.need.conf,
        settings=step.settings,
        execution=execution,
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
        remedy = f"remove {job.folder} and run the same command again"
        before = read_stamped_json(record, remedy)["start"]
        ended = max(path.stat().st_mtime for path in job.folder.rglob("*"))  # when it wrote its last file
        start -= ended - before
    if resumed or not record.exists():
        write_stamped_json(record, {"start": start})
    write_stamped_json(job.work / INPUTS, _digests_of(inputs))
    title = f"{step.title} (resuming)" if resumed else step.title
    reporter.say(title, style="bold")
    return job, start


def _drop_other_beginning(step: Step, inputs: Mapping[str, Artifact], reporter: Reporter, *, shared: bool) -> None:
    """Remove an interrupted beginning that was made from other bytes."""
    partial = step.location.partial
    record = partial / WORK / INPUTS
    if not record.exists():
        return
    remedy = f"remove {partial} and run the same command again"
    before = read_stamped_json(record, remedy)
    for changed, digest in _digests_of(inputs).items():
        if before.get(changed) == digest:
            continue
        if shared:
            raise DataError(f"{partial} was begun before {changed} was made again; {remedy} for every part")
        reporter.say(f"  {changed} was made again since {partial.name} was begun; it begins anew", style="yellow")
        shutil.rmtree(partial)
        return


def _digests_of(inputs: Mapping[str, Artifact]) -> dict[str, str]:
    """Return stage and name of each artifact -> digest of its files."""
    digests = {}
    for artifact in inputs.values():
        digests[f"{artifact.folder.parent.name}/{artifact.folder.name}"] = artifact.manifest.digest
    return digests


def command_line() -> str:
    """Return the command that this process runs, as a shell takes it."""
    return shlex.join(["itrpipe", *sys.argv[1:]])


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
        "command": command_line(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds"),
    }


EPOCHS = "epochs"
_OF_NEGATIVES = frozenset(("method", "loss", "sentences"))
"""Settings that choose the negatives of a training, and name the training in stages that read it."""
_DATA = frozenset(("prepare", "extract", "parse"))
"""Inputs that an earlier artifact must have had too, where both read them: other data take another time."""


class Cost(NamedTuple):
    """Expected cost of one step.

    Attributes:
        seconds: that an earlier artifact took, of a training in proportion to its epochs; None where there is none.
        note: where `seconds` comes from, for people.
    """

    seconds: float | None = None
    note: str = ""


def cost_of(step: Step, earlier: Mapping[str, Manifest]) -> Cost:
    """Return the cost of the nearest earlier artifact that was made of the same data, of several the newest.

    Settings that do not decide how long a stage takes, such as the seed, may differ, see `itrpipe.stages.base`, and so
    may the epochs of a training, whose cost is that of all its epochs. Without such an artifact, the nearest one with
    other negatives counts.

    Args:
        step: that is to run.
        earlier: artifacts of its stage by name, see `earlier_artifacts`.
    """
    settings = step.settings.model_dump(mode="json")
    untimed = load_stage(step.need.stage).untimed
    is_training = EPOCHS in settings  # whose method is a setting, so that the configuration may differ
    by_epochs = is_training and not settings.get("max_updates")
    scaled = untimed
    if by_epochs:
        scaled = untimed | {EPOCHS}
    nearest = None
    for name, manifest in earlier.items():
        shared = _DATA & manifest.inputs.keys() & step.inputs.keys()
        is_alike = all(manifest.inputs[key].fingerprint == step.inputs[key].location.fingerprint for key in shared)
        is_same_conf = is_training or manifest.conf == step.need.conf
        different = {key for key, value in manifest.settings.items() if settings.get(key) != value}
        if is_alike and is_same_conf and different <= scaled | _OF_NEGATIVES:
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
    """Print the cost of each step, and the sum of the costs that are known."""
    if not steps:
        return
    earlier = cache(earlier_artifacts)
    costs = {}
    for step in steps:
        costs[step.title] = cost_of(step, earlier(step.location.folder.parent))
    known = [cost.seconds for cost in costs.values() if cost.seconds is not None]
    if not known:
        reporter.say("estimated cost: unknown, these data have no earlier run of this kind", style="bold")
        return
    reporter.say("estimated cost", style="bold")
    width = max(map(len, costs))
    for name, cost in costs.items():
        time = "unknown" if cost.seconds is None else f"{cost.seconds:.0f} s"
        reporter.say(f"    {name:<{width}} {time:>9}  {cost.note}".rstrip())
    total = duration(sum(known))
    # A training with patience may end before its last epoch.
    if any(0 < getattr(step.settings, "patience", 0) < getattr(step.settings, EPOCHS, 0) for step in steps):
        total = f"at most {total}"
    unknown = len(costs) - len(known)
    if unknown:
        total += f" and {quantity(unknown, 'step')} of unknown cost"
    reporter.say(f"    sum: {total}")
