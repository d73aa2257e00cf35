"""`itrpipe status` and `itrpipe gc`: what lies in the data folder, and what of it can go."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from itrpipe.commands.named import models_of
from itrpipe.config import declared_stages
from itrpipe.datasets.definition import check_name, load_definition
from itrpipe.errors import DataError, MissingInputError, UnavailableError
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import (
    INPUTS,
    MANIFEST,
    PARTIAL,
    PICTURES,
    REPLACED,
    UNFINISHED,
    WORK,
    Manifest,
    check_artifact,
    folders_in,
    is_finished,
)
from itrpipe.storage.disk import on_disk, read_stamped_json
from itrpipe.storage.locks import is_locked, unused

State = Literal[
    "whole", "running", "in parts", "interrupted", "replaced", "damaged", "unreadable", "not ours", "small copies"
]
_STYLES: dict[State, str] = {
    "whole": "green",
    "running": "cyan",
    "in parts": "cyan",
    "interrupted": "yellow",
    "replaced": "yellow",
    "damaged": "red",
    "unreadable": "red",
    "not ours": "yellow",
    "small copies": "",
}
# What gc never removes: a process holds it, hours of other processes wait in it to be joined, nothing is known about
# its content, or somebody else made it.
_HELD = ("running", "in parts", "unreadable", "not ours")
_REMOVED = ".removed"
_NAMES = 44
"""Width of the column of names."""
EVALUATE, TRAIN = "evaluate", "train"
_FIRST = """\
{root} holds no dataset yet.
  itrpipe demo                                              all of it on drawings
  itrpipe prepare --dataset mine --source FOLDER            photographs with captions
  itrpipe index --photos FOLDER --model MODEL               photographs alone, to search in
  itrpipe mine-negatives --embeddings IMAGES CAPTIONS       embeddings of a model of yours"""


@dataclass(frozen=True)
class Entry:
    """One folder below a dataset.

    Attributes:
        folder: where it lies.
        state: what it is.
        manifest: of a whole artifact.
        bytes: space it takes.
        problem: what is wrong with a damaged one, or why it is left alone.
    """

    folder: Path
    state: State
    manifest: Manifest | None
    bytes: int
    problem: str = ""

    @property
    def name(self) -> str:
        """Stage and folder name."""
        return f"{self.folder.parent.name}/{self.folder.name}"


def entries(root: Path, dataset: str, *, verify: bool = False) -> list[Entry]:
    """Everything below a dataset, in the order of the stages.

    Args:
        root: the data folder.
        dataset: dataset name.
        verify: compare content hashes, not only sizes.
    """
    found = []
    for stage in declared_stages():
        folder = root / dataset / stage
        try:
            found += [_entry(each, verify) for each in folders_in(folder)]
        except UnavailableError as error:
            found.append(Entry(folder, "unreadable", None, 0, str(error)))
    copies = root / dataset / PICTURES
    if copies.is_dir() and not copies.is_symlink():
        found.append(Entry(copies, "small copies", None, _size_of(copies), "of photographs; made again when needed"))
    return found


def print_where(root: Path) -> None:
    """Prints, for every dataset, what is made of it; where there is none, how one begins.

    Args:
        root: the data folder.
    """
    reporter, names = Reporter(), [folder.name for folder in folders_in(root)]
    if not names:
        for line in _FIRST.splitlines():
            reporter.say(line.format(root=root))
    for name in names:
        definition = load_definition(root, name)
        photos = definition.photographs.source if definition.photographs else None
        reporter.say(f"{name}{f'  {photos}' if photos else ''}", style="bold")
        for line in _made(entries(root, name)):
            reporter.say(f"  {line}")
        if known := list(models_of(definition)):
            reporter.say(f"  {'models':<15} {', '.join(known)}, such as --model {known[0]}")
    reporter.say("`itrpipe --help` lists all commands, `itrpipe status` every artifact.")


def _made(found: list[Entry]) -> Iterator[str]:
    """A line for every stage that has something, and for what is unfinished or damaged."""
    stages = dict.fromkeys(each.folder.parent.name for each in found if each.manifest)
    for stage in stages:
        whole = [each.manifest for each in found if each.manifest and each.folder.parent.name == stage]
        labels = list(dict.fromkeys(each.label for each in sorted(whole, key=lambda own: own.finished, reverse=True)))
        more = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
        yield f"{stage.replace('_', '-'):<15} {', '.join(labels[:3])}{more}"
    for state in ("running", "in parts", "interrupted", "damaged"):
        names = [each.name for each in found if each.state == state]
        if names:
            yield f"{state:<15} {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}"


def print_status(root: Path, dataset: str | None, *, verify: bool = False) -> None:
    """Prints a table of artifacts for one dataset or all.

    Raises:
        MissingInputError: there is no such dataset.
        DataError: an artifact is damaged (after the table).
        UnavailableError: none is, but something cannot be read now (likewise).
    """
    reporter = Reporter()
    if dataset:
        _require_dataset(root, dataset)
    names = [dataset] if dataset else [path.name for path in folders_in(root)]
    if not names:
        reporter.say(f"{root} holds no dataset yet; start with `itrpipe demo`")
    problems: dict[str, list[str]] = {"damaged": [], "unreadable": []}
    for name in names:
        definition = load_definition(root, name)
        photos = f"  {definition.photographs.source}" if definition.photographs else ""
        reporter.say(f"{name}{photos}", style="bold")
        models = definition.named_trainings()
        for entry in entries(root, name, verify=verify):
            for line in _lines(entry, _model_of(entry, models)):
                reporter.say(line, style=_STYLES[entry.state])
            problems.get(entry.state, []).append(entry.problem)
    for state, kind in (("damaged", DataError), ("unreadable", UnavailableError)):
        if problems[state]:
            raise kind(f"{len(problems[state])} {state}: {problems[state][0]}")


def collect_garbage(
    root: Path,
    dataset: str,
    *,
    damaged_only: bool = False,
    verify: bool = False,
    superseded_too: bool = False,
    ask: Callable[[str], bool] | None = None,
) -> list[Path]:
    """Removes what nothing needs any more.

    An artifact stays when it is the newest of its run or an evaluation, or when one that stays, or is just being
    made, was made from it; what does not is `unused`, or `superseded` where it is an evaluation or was made for one.
    Folders that a running process holds stay too, parts that wait to be joined, what cannot be read now, what is
    behind a link, and what no stage has made.

    Args:
        root: the data folder.
        dataset: dataset name.
        damaged_only: remove damaged artifacts only.
        verify: compare content hashes to find them, not only sizes.
        superseded_too: evaluations do not stay when a newer one of the same run has other settings.
        ask: asked once before anything is removed; None removes without asking.

    Returns:
        The folders removed.

    Raises:
        MissingInputError: there is no such dataset.
        UnavailableError: something cannot be removed now.
    """
    reporter = Reporter()
    _require_dataset(root, dataset)
    found = entries(root, dataset, verify=verify)
    unreadable = [entry for entry in found if entry.state == "unreadable"]
    if unreadable and not damaged_only:
        raise UnavailableError(f"what else is needed depends on something unreadable: {unreadable[0].problem}")
    models = load_definition(root, dataset).named_trainings()
    kept = _referenced(found, models, superseded_too)
    doomed = [
        entry
        for entry in found
        if entry.state == "damaged" or (not damaged_only and entry.state not in _HELD and entry.folder not in kept)
    ]
    linked = [entry for entry in doomed if entry.folder.is_symlink()]
    doomed = [entry for entry in doomed if entry not in linked]
    _say_left_alone(
        [entry for entry in found if entry in linked or entry.state in ("unreadable", "not ours")], reporter
    )
    _sweep(root / dataset)
    if not doomed:
        reporter.say("nothing to remove")
        return []
    needed = _referenced(found, models, superseded_too=False)
    for entry in doomed:
        unneeded = "superseded" if entry.folder in needed else "unused"
        why = unneeded if entry.state == "whole" else entry.state
        problem = f": {entry.problem}" if entry.problem else ""
        reporter.say(f"  {entry.name:<48} {why}, {_size(entry.bytes)}{problem}")
    total = sum(entry.bytes for entry in doomed)
    if ask is not None and not ask(f"remove {quantity(len(doomed), 'folder')}, {_size(total)}?"):
        return []
    removed = [entry for entry in doomed if remove_unused(entry.folder)]
    reporter.say(f"removed {_size(sum(entry.bytes for entry in removed))}")
    return [entry.folder for entry in removed]


def _say_left_alone(spared: list[Entry], reporter: Reporter) -> None:
    for entry in spared:
        why = "a link; remove it by hand" if entry.folder.is_symlink() else entry.problem
        reporter.say(f"  {entry.name:<48} left alone, {why}")


def remove_unused(folder: Path) -> bool:
    """Removes a folder unless a process has begun to work on it since it was looked at.

    It is renamed first, so that a kill leaves the whole of it or a hidden rest, which the next `gc` sweeps.
    """
    hidden = folder.with_name(f".{folder.name}{_REMOVED}")
    with unused(folder) as free:
        if free:
            with on_disk(folder):
                os.replace(folder, hidden)
                shutil.rmtree(hidden)
        return free


def _sweep(dataset: Path) -> None:
    """Finishes removals that a kill has interrupted."""
    for folder in (dataset, *(dataset / stage for stage in declared_stages())):
        for hidden in folder.glob(f".*{_REMOVED}"):
            if not hidden.is_symlink():
                shutil.rmtree(hidden)


def _require_dataset(root: Path, dataset: str) -> None:
    if not (root / check_name(dataset)).is_dir():
        raise MissingInputError(f"no dataset {dataset!r} in {root}; run `itrpipe prepare --dataset {dataset}`")


def _entry(folder: Path, verify: bool) -> Entry:
    try:
        with on_disk(folder):
            return _readable_entry(folder, verify)
    except UnavailableError as error:
        return Entry(folder, "unreadable", None, 0, str(error))


def _readable_entry(folder: Path, verify: bool) -> Entry:
    size = _size_of(folder)
    partial = folder.name.endswith(PARTIAL)
    name = folder.with_name(folder.name.removesuffix(PARTIAL).partition(REPLACED)[0])
    if not is_finished(name):
        return Entry(folder, "not ours", None, size, "no stage made it")
    if name.name != folder.name.removesuffix(PARTIAL):
        return Entry(folder, "replaced", None, size, "it was made again")
    if partial and is_locked(folder):
        return Entry(folder, "running", None, size)
    if partial and not (folder / MANIFEST).exists():
        return Entry(folder, "in parts" if (folder / WORK / UNFINISHED).exists() else "interrupted", None, size)
    try:
        # A sealed partial folder is only renamed if its hashes are right, so they decide here too.
        manifest = check_artifact(folder, thorough=verify or partial)
    except DataError as error:
        return Entry(folder, "damaged", None, size, str(error))
    return Entry(folder, "interrupted" if partial else "whole", None if partial else manifest, size)


def _size_of(folder: Path) -> int:
    """Bytes of all files below a folder.

    Raises:
        OSError: a folder below it cannot be read now, so it cannot be told what lies there.
    """

    def refuse(error: OSError) -> None:
        raise error

    sizes = (
        os.lstat(os.path.join(place, name)).st_size
        for place, _, names in os.walk(folder, onerror=refuse)
        for name in names
    )
    return sum(sizes)


def _model_of(entry: Entry, models: Mapping[str, str]) -> str:
    """Name of the model that an artifact is, or was made from; empty where that has none.

    Args:
        entry: the artifact.
        models: folder of a training artifact -> name of its model.
    """
    read = entry.manifest.inputs.get(TRAIN) if entry.manifest else None
    return models.get(entry.folder.name if entry.folder.parent.name == TRAIN else read.name if read else "", "")


def _referenced(found: list[Entry], models: Mapping[str, str], superseded_too: bool) -> set[Path]:
    """Folders of the newest artifact of every run, named models apart, and of every evaluation, of all that these were
    made from, and of what running steps read."""
    whole = [(entry, entry.manifest) for entry in found if entry.manifest and entry.state == "whole"]
    newest: dict[tuple, str] = {}
    for entry, manifest in sorted(whole, key=lambda pair: pair[1].finished):
        features, of_two = manifest.settings.get("features"), _of_two(manifest)
        run = (manifest.stage, manifest.label, features, of_two, _model_of(entry, models))
        newest[run] = entry.name
    by_name = {entry.name: (entry, manifest) for entry, manifest in whole}
    evaluated = [entry.name for entry, manifest in whole if manifest.stage == EVALUATE and not superseded_too]
    queue = [*newest.values(), *evaluated, *_inputs_of_running(found)]
    kept: set[Path] = set()
    while queue:
        entry, manifest = by_name.get(queue.pop(), (None, None))
        if entry is None or manifest is None or entry.folder in kept:
            continue
        kept.add(entry.folder)
        queue += [f"{each.stage}/{each.name}" for each in manifest.inputs.values()]
    return kept


def _of_two(manifest: Manifest) -> tuple[str, ...]:
    """The two models that a page compares, by name or label; it replaces none over all, and none over others."""
    if not manifest.settings.get("compare"):
        return ()
    names = {name for _, name in manifest.settings.get("names", ())}
    return tuple(sorted(names | {name.rpartition("-")[0] for name in manifest.inputs}))


def _inputs_of_running(found: list[Entry]) -> list[str]:
    """Names of the artifacts that running processes have open."""
    records = [entry.folder / WORK / INPUTS for entry in found if entry.state == "running"]
    remedy = "end the process that is working there, and run the same command again"
    return [name for record in records if record.exists() for name in read_stamped_json(record, remedy)]


def _lines(entry: Entry, model: str) -> list[str]:
    """A line of 80 characters; two where the name is long, and another for what is wrong."""
    name = f"  {entry.name}{f' (model {model})' if model else ''}"
    seconds = f"{entry.manifest.timings['total']:,.1f} s" if entry.manifest else ""
    values = f"{entry.state:<12} {_size(entry.bytes):>11} {seconds:>10}".rstrip()
    lines = [f"{name:<{_NAMES}} {values}"] if len(name) <= _NAMES else [name, f"{'':<{_NAMES}} {values}"]
    return lines + [f"    {entry.problem}"] * bool(entry.problem)


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
