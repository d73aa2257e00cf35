"""List the folders of a dataset with their state, and remove those that nothing needs."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

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

# What gc never removes: a process holds it, hours of other processes wait in it to be joined, nothing is known about
# its content, or somebody else made it.
_HELD = ("running", "in parts", "unreadable", "not ours")
_REMOVED = ".removed"


@dataclass(frozen=True)
class DatasetFolder:
    """A folder below a dataset: an artifact, a beginning of one, or something else.

    Attributes:
        folder: its path.
        state: one of those that `itrpipe status` shows, such as `whole` or `interrupted`.
        manifest: of a whole artifact.
        problem: what is wrong with a damaged artifact, or why `gc` leaves the folder alone.
        bytes: space that it takes.
    """

    folder: Path
    state: str
    manifest: Manifest | None
    problem: str
    bytes: int = 0

    @property
    def name(self) -> str:
        """Return stage and folder name."""
        return f"{self.folder.parent.name}/{self.folder.name}"


def list_folders(root: Path, dataset: str, *, verify: bool = False) -> list[DatasetFolder]:
    """Return every folder below a dataset with its state, in the order of the stages.

    Args:
        root: the data folder.
        dataset: dataset name.
        verify: compare content hashes, not only sizes.
    """
    listed = []
    for stage in declared_stages():
        folder = root / dataset / stage
        try:
            listed += [_look_at(each, verify) for each in folders_in(folder)]
        except UnavailableError as error:
            listed.append(DatasetFolder(folder, "unreadable", None, str(error)))
    copies = root / dataset / PICTURES
    if copies.is_dir() and not copies.is_symlink():
        note = "of photographs; made again when needed"
        listed.append(DatasetFolder(copies, "small copies", None, note, _size_of(copies)))
    return listed


def collect_garbage(
    root: Path,
    dataset: str,
    *,
    damaged_only: bool = False,
    verify: bool = False,
    superseded_too: bool = False,
    ask: Callable[[str], bool] | None = None,
) -> list[Path]:
    """Remove what nothing needs any more.

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
    require_dataset(root, dataset)
    listed = list_folders(root, dataset, verify=verify)
    for entry in listed:
        if entry.state == "unreadable" and not damaged_only:
            raise UnavailableError(f"what else is needed depends on something unreadable: {entry.problem}")
    models = load_definition(root, dataset).named_trainings()
    kept = _referenced(listed, models, superseded_too)
    doomed = []
    for entry in listed:
        unneeded = not damaged_only and entry.state not in _HELD and entry.folder not in kept
        left_alone = ""
        if entry.state in ("unreadable", "not ours"):
            left_alone = entry.problem
        if entry.state == "damaged" or unneeded:
            if entry.folder.is_symlink():
                left_alone = "a link; remove it by hand"
            else:
                doomed.append(entry)
        if left_alone:
            reporter.say(f"  {entry.name:<48} left alone, {left_alone}")
    for stage in ("", *declared_stages()):
        for hidden in (root / dataset / stage).glob(f".*{_REMOVED}"):  # of removals that a kill has interrupted
            if not hidden.is_symlink():
                shutil.rmtree(hidden)
    if not doomed:
        reporter.say("nothing to remove")
        return []
    needed = _referenced(listed, models, superseded_too=False)
    for entry in doomed:
        why = entry.state
        if why == "whole":
            why = "superseded" if entry.folder in needed else "unused"
        reporter.say(f"  {entry.name:<48} {why}, {size_text(entry.bytes)} {entry.problem}".rstrip())
    total = sum(entry.bytes for entry in doomed)
    if ask is not None and not ask(f"remove {quantity(len(doomed), 'folder')}, {size_text(total)}?"):
        return []
    removed = []
    freed = 0
    for entry in doomed:
        if remove_unused(entry.folder):
            removed.append(entry.folder)
            freed += entry.bytes
    reporter.say(f"removed {size_text(freed)}")
    return removed


def remove_unused(folder: Path) -> bool:
    """Remove a folder unless a process has begun to work on it since it was looked at.

    It is renamed first, so that a kill leaves the whole of it or a hidden rest, which the next `gc` sweeps.
    """
    hidden = folder.with_name(f".{folder.name}{_REMOVED}")
    with unused(folder) as free:
        if free:
            with on_disk(folder):
                os.replace(folder, hidden)
                shutil.rmtree(hidden)
        return free


def require_dataset(root: Path, dataset: str) -> None:
    """Refuse a dataset that the data folder does not have.

    Raises:
        MissingInputError: there is no such dataset.
    """
    if not (root / check_name(dataset)).is_dir():
        known = ", ".join(folder.name for folder in folders_in(root)) or "none"
        raise MissingInputError(f"no dataset {dataset!r} in {root}, only {known}; name one with --dataset")


def _look_at(folder: Path, verify: bool) -> DatasetFolder:
    try:
        with on_disk(folder):
            state, manifest, problem = _state_of(folder, verify)
            return DatasetFolder(folder, state, manifest, problem, _size_of(folder))
    except UnavailableError as error:
        return DatasetFolder(folder, "unreadable", None, str(error))


def _state_of(folder: Path, verify: bool) -> tuple[str, Manifest | None, str]:
    """Return the state of a folder, the manifest of a whole artifact, and what is wrong or why it is left alone."""
    partial = folder.name.endswith(PARTIAL)
    name = folder.name.removesuffix(PARTIAL)
    of_stage = name.partition(REPLACED)[0]
    if not is_finished(folder.with_name(of_stage)):
        return "not ours", None, "no stage made it"
    if name != of_stage:
        return "replaced", None, "it was made again"
    if partial and is_locked(folder):
        return "running", None, ""
    if partial and not (folder / MANIFEST).exists():
        if (folder / WORK / UNFINISHED).exists():
            return "in parts", None, ""
        return "interrupted", None, ""
    try:
        # A sealed partial folder is only renamed if its hashes are right, so they decide here too.
        manifest = check_artifact(folder, thorough=verify or partial)
    except DataError as error:
        return "damaged", None, str(error)
    if partial:
        return "interrupted", None, ""
    return "whole", manifest, ""


def _size_of(folder: Path) -> int:
    """Count the bytes of all files below a folder.

    Raises:
        OSError: a folder below it cannot be read now, so it cannot be told what lies there.
    """

    def refuse(error: OSError) -> None:
        raise error

    size = 0
    for place, _, names in os.walk(folder, onerror=refuse):
        for name in names:
            size += os.lstat(os.path.join(place, name)).st_size
    return size


def model_of(entry: DatasetFolder, models: Mapping[str, str]) -> str:
    """Return the name of the model that an artifact is, or was made from; empty where that has none.

    Args:
        entry: the artifact.
        models: folder of a training artifact -> name of its model.
    """
    if entry.folder.parent.name == "train":
        return models.get(entry.folder.name, "")
    if entry.manifest is None or "train" not in entry.manifest.inputs:
        return ""
    return models.get(entry.manifest.inputs["train"].name, "")


def _referenced(listed: list[DatasetFolder], models: Mapping[str, str], superseded_too: bool) -> set[Path]:
    """Return the folders that stay.

    These are the newest artifact of every run, named models apart, every evaluation, all that these were made from, and
    what running steps read.
    """
    whole: dict[str, tuple[DatasetFolder, Manifest]] = {}
    for entry in listed:
        if entry.manifest and entry.state == "whole":
            whole[entry.name] = (entry, entry.manifest)
    newest: dict[tuple, str] = {}
    for entry, manifest in sorted(whole.values(), key=lambda pair: pair[1].finished):
        features = manifest.settings.get("features")
        run = (manifest.stage, manifest.label, features, _compared(manifest), model_of(entry, models))
        newest[run] = entry.name
    queue = list(newest.values())
    if not superseded_too:
        for name, (_, manifest) in whole.items():
            if manifest.stage == "evaluate":
                queue.append(name)
    for entry in listed:
        record = entry.folder / WORK / INPUTS
        if entry.state == "running" and record.exists():
            remedy = "end the process that is working there, and run the same command again"
            queue += read_stamped_json(record, remedy)
    kept: set[Path] = set()
    while queue:
        name = queue.pop()
        if name not in whole:
            continue
        entry, manifest = whole[name]
        if entry.folder not in kept:
            kept.add(entry.folder)
            for read in manifest.inputs.values():
                queue.append(f"{read.stage}/{read.name}")
    return kept


def _compared(manifest: Manifest) -> tuple[str, ...]:
    """Return the two models that a page compares, by name or label, and none for a page over all models.

    So a page over two models takes the place of no page over all, nor over others.
    """
    if not manifest.settings.get("compare"):
        return ()
    models = {name.rpartition("-")[0] for name in manifest.inputs}
    for _, name in manifest.settings.get("names", ()):
        models.add(name)
    return tuple(sorted(models))


def size_text(count: int) -> str:
    """Return a number of bytes in MiB."""
    return f"{count / 2**20:,.1f} MiB"
