"""What is about the whole of a data folder or a configuration: run, demo, status, list, show, gc, doctor."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import requires
from pathlib import Path

import typer
from typer import Argument, Option

from itrpipe import __version__
from itrpipe.cli.help import LISTS, command, everything
from itrpipe.cli.launcher import restart_with
from itrpipe.cli.named import forget_model
from itrpipe.cli.options import (
    AddressOption,
    DataOption,
    DataOptions,
    DatasetOption,
    DevicesOption,
    PartOption,
    PlacedOptions,
    SetOption,
    Text,
    Texts,
    overrides_of,
)
from itrpipe.config import Settings, brought, declared_stages, leaves, load_declaration, unknown
from itrpipe.datasets.definition import EMBEDDED, check_name, load_definition
from itrpipe.errors import DataError, MissingInputError, UnavailableError, UsageError
from itrpipe.pipeline.planning import EVERYWHERE, Override, Planner
from itrpipe.printable import quantity
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need
from itrpipe.storage import artifact
from itrpipe.storage.artifact import Manifest, folders_in, is_finished
from itrpipe.storage.disk import on_disk, read_stamped_json
from itrpipe.storage.locks import is_locked, unused
from itrpipe.training.settings import TrainSettings

OPTIONAL = {
    "hanta": "--tagger lexicon works without it: pip install HanTa",
    "torchcodec": "Pillow decodes JPEG: pip install itrpipe[jpeg]",
    "ray": "for clusters: itrpipe[ray]",
}
"""Package -> how it goes without it."""
FAISS_BUILDS = ("faiss-gpu-cuvs", "faiss-gpu", "faiss-gpu-cu12", "faiss-cpu")
_STYLES = {
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
"""State of a folder -> its colour."""
# What gc never removes: a process holds it, hours of other processes wait in it to be joined, nothing is known about
# its content, or somebody else made it.
_HELD = ("running", "in parts", "unreadable", "not ours")
_REMOVED = ".removed"
_NAMES = 44
"""Width of the column of names."""
_FIRST = """\
{root} holds no dataset yet.
  itrpipe demo                                              all of it on synthetic data
  itrpipe prepare --dataset photos --source FOLDER          photographs with captions
  itrpipe index --photos FOLDER --model MODEL               photographs alone, to search in
  itrpipe mine-negatives --embeddings IMAGES CAPTIONS       embeddings of a model of yours"""


@dataclass(frozen=True)
class Entry:
    """One folder below a dataset.

    Attributes:
        folder: where it lies.
        state: what it is, see `_STYLES`.
        manifest: of a whole artifact.
        bytes: space it takes.
        problem: what is wrong with a damaged one, or why it is left alone.
    """

    folder: Path
    state: str
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
    copies = root / dataset / artifact.PICTURES
    if copies.is_dir() and not copies.is_symlink():
        found.append(Entry(copies, "small copies", None, _size_of(copies), "of photographs; made again when needed"))
    return found


@command()
def run(
    given: PlacedOptions,
    recipe: str = Argument(help="Name in stages/recipes/ or path of a recipe."),
    source: Path | None = Option(None, "--source", help="Folder of the dataset, where the recipe needs one."),
    only: Texts = Option(None, "--only", metavar="[METHOD][.BACKBONE]", help="Only these runs; repeatable."),
    tiny: bool = Option(False, "--tiny", help="Toy models on a few hundred images, in the folder DATA-tiny."),
    keep_going: bool = Option(False, "--keep-going", help="Go on when a run fails, and fail at the end."),
    part: PartOption = None,
    devices: DevicesOption = None,
) -> None:
    """Run a recipe, or some of its runs, and compare their scores with the published ones.

    Several jobs on one file system share it with --part 1/3 ... --part 3/3: they run at the same time and wait for each
    other; one of them trains, while the others wait.

    Example: itrpipe run demo
    """
    from itrpipe.pipeline.reproduction import Options, run_recipe

    restart_with(devices)
    overrides = overrides_of(given.settings, {}) + given.placed + ([Override(EVERYWHERE, "part", part)] if part else [])
    run_recipe(given.data, recipe, Options(source, overrides, only or (), tiny, keep_going, given.dry_run))


@command()
def demo(given: DataOptions) -> None:
    """Teach a model left and right on the synthetic dataset: the same as run demo.

    Example: itrpipe demo
    """
    from itrpipe.pipeline.reproduction import Options, run_recipe

    run_recipe(given.data, "demo", Options(overrides=overrides_of(given.settings, {}), dry_run=given.dry_run))


@command("list")
def list_names(
    what: Text = Argument(None, metavar="methods|backbones|extractors|recipes", help="Kind of names to list."),
) -> None:
    """List methods, backbones, extractors or recipes, each in one line.

    Example: itrpipe list methods
    """
    if what is None:
        for name, (title, option) in LISTS.items():
            typer.echo(f"itrpipe list {name:<12}{title}, for {option}")
        return
    if what not in LISTS:
        raise UsageError(unknown("list", what, LISTS))
    broken = (each for each in brought() if each.problem and each.group == f"itrpipe.{what}")
    rows = everything(what) + [(each.name, f"cannot be used: {each.problem}") for each in broken]
    width = max(len(name) for name, _ in rows)
    for name, about in rows:
        typer.echo(f"{name:<{width}}  {about}")


@command()
def show(
    stage: str = Argument(help="Stage, such as train."),
    conf: Text = Argument(None, help="Configuration, such as aoq; without it all are listed."),
    backbone: Text = Option(None, "--backbone", "-b", help="Model; `itrpipe list backbones` has all."),
    dataset: DatasetOption = EMBEDDED,
    settings: SetOption = None,
    data: DataOption = Path("data"),
) -> None:
    """Print a configuration with the origin of every value.

    Example: itrpipe show train aoq --backbone vsrn
    """
    stage = stage.replace("-", "_")
    if stage not in declared_stages():
        raise UsageError(unknown("stage", stage, [name.replace("_", "-") for name in declared_stages()]))
    reporter = Reporter()
    declaration = load_declaration(stage)
    if conf is None:
        reporter.say(declaration.summary)
        if len(declaration.confs) > 1:
            for each in declaration.confs:
                reporter.say(f"  itrpipe show {stage.replace('_', '-')} {each}")
            return
        (conf,) = declaration.confs
    planner = Planner(data, dataset, overrides_of(settings, {"backbone": backbone}))
    known = planner.definition.prepare if stage == "prepare" else planner.definition.features.get(conf)
    definition = known if known and (stage == "extract" or known.conf == conf) else None
    found, execution, resolved = planner.configure_checked(Need(stage, conf), definition)
    unread = _unread(found)
    rows = [each for each in leaves(found.model_dump(mode="json")) if each[0] not in unread]
    width = max((len(key) for key, _ in rows), default=0)
    reporter.say(f"{stage} {conf}, dataset {dataset}", style="bold")
    for key, value in rows:
        reporter.say(f"  {key:<{width}}  {value!s:<24} {resolved.origins.get(key, 'default')}")
    reporter.say("execution (not part of the fingerprint)", style="bold")
    for key, value in leaves(execution.model_dump(mode="json")):
        reporter.say(f"  {key:<{width}}  {value}")


def _unread(settings: Settings) -> set[str]:
    """Return the keys that nothing reads as the others are set."""
    if not isinstance(settings, TrainSettings):
        return set()
    return {*settings.unused_options(), *(f"loss.{name}" for name in settings.loss.unread_options())}


@command()
def status(
    dataset: Text = Option(None, "--dataset", "-d", help="Only this dataset."),
    data: DataOption = Path("data"),
    verify: bool = Option(False, "--verify", help="Also compare content hashes."),
) -> None:
    """List every artifact.

    Damage is exit code 4, what cannot be read now 8, both after the table.

    Example: itrpipe status --dataset scenes
    """
    reporter = Reporter()
    if dataset:
        _require_dataset(data, dataset)
    names = [dataset] if dataset else [path.name for path in folders_in(data)]
    if not names:
        reporter.say_lines(_FIRST.format(root=data))
    problems: dict[str, list[str]] = {"damaged": [], "unreadable": []}
    for name in names:
        definition = load_definition(data, name)
        photos = f"  {definition.photographs.source}" if definition.photographs else ""
        reporter.say(f"{name}{photos}", style="bold")
        models = definition.named_trainings()
        for entry in entries(data, name, verify=verify):
            model = _model_of(entry, models)
            called = f"  {entry.name}{f' (model {model})' if model else ''}"
            seconds = f"{entry.manifest.timings['total']:,.1f} s" if entry.manifest else ""
            if len(called) > _NAMES:
                reporter.say(called, style=_STYLES[entry.state])
                called = ""
            line = f"{called:<{_NAMES}} {entry.state:<12} {_size(entry.bytes):>11} {seconds:>10}"
            reporter.say(line.rstrip(), style=_STYLES[entry.state])
            if entry.problem:
                reporter.say(f"    {entry.problem}", style=_STYLES[entry.state])
            problems.get(entry.state, []).append(entry.problem)
    for state, kind in (("damaged", DataError), ("unreadable", UnavailableError)):
        if problems[state]:
            raise kind(f"{len(problems[state])} {state}: {problems[state][0]}")


@command()
def gc(
    dataset: Text = Option(None, "--dataset", "-d", envvar="ITRPIPE_DATASET", help="Name; default: scenes."),
    damaged: bool = Option(False, "--damaged", help="Remove damaged artifacts only."),
    verify: bool = Option(False, "--verify", help="Find damage by content hashes too."),
    superseded: bool = Option(False, "--superseded", help="Also evaluated models that have newer settings."),
    forget: Text = Option(None, "--forget", metavar="NAME", help="Forget a model's name, and remove nothing."),
    yes: bool = Option(False, "--yes", "-y", help="Do not ask."),
    data: DataOption = Path("data"),
) -> None:
    """Remove interrupted, damaged and unused artifacts after asking; evaluated models stay.

    \b
    unused      a newer artifact of the same run is there, and nothing that stays was made from this one
    superseded  evaluated, or made for an evaluation, with other settings than the newest of the run; these go
                with --superseded only

    Example: itrpipe gc --dataset scenes
    """
    if forget is not None:
        typer.echo(f"{forget_model(data, dataset, forget)}: {forget} is forgotten; what was trained stays")
        return
    ask = None if yes else typer.confirm
    collect_garbage(data, dataset or EMBEDDED, damaged_only=damaged, verify=verify, superseded_too=superseded, ask=ask)


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
    linked = [replace(entry, problem="a link; remove it by hand") for entry in doomed if entry.folder.is_symlink()]
    for entry in (*linked, *(entry for entry in found if entry.state in ("unreadable", "not ours"))):
        reporter.say(f"  {entry.name:<48} left alone, {entry.problem}")
    doomed = [entry for entry in doomed if not entry.folder.is_symlink()]
    for folder in (root / dataset, *(root / dataset / stage for stage in declared_stages())):
        for hidden in folder.glob(f".*{_REMOVED}"):  # of removals that a kill has interrupted
            if not hidden.is_symlink():
                shutil.rmtree(hidden)
    if not doomed:
        reporter.say("nothing to remove")
        return []
    needed = _referenced(found, models, superseded_too=False)
    for entry in doomed:
        unneeded = "superseded" if entry.folder in needed else "unused"
        why = unneeded if entry.state == "whole" else entry.state
        reporter.say(f"  {entry.name:<48} {why}, {_size(entry.bytes)} {entry.problem}".rstrip())
    total = sum(entry.bytes for entry in doomed)
    if ask is not None and not ask(f"remove {quantity(len(doomed), 'folder')}, {_size(total)}?"):
        return []
    removed = [entry for entry in doomed if remove_unused(entry.folder)]
    reporter.say(f"removed {_size(sum(entry.bytes for entry in removed))}")
    return [entry.folder for entry in removed]


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


def _require_dataset(root: Path, dataset: str) -> None:
    if not (root / check_name(dataset)).is_dir():
        known = ", ".join(folder.name for folder in folders_in(root)) or "none"
        raise MissingInputError(f"no dataset {dataset!r} in {root}, only {known}; name one with --dataset")


def _entry(folder: Path, verify: bool) -> Entry:
    try:
        with on_disk(folder):
            return _readable_entry(folder, verify)
    except UnavailableError as error:
        return Entry(folder, "unreadable", None, 0, str(error))


def _readable_entry(folder: Path, verify: bool) -> Entry:
    size = _size_of(folder)
    partial = folder.name.endswith(artifact.PARTIAL)
    name = folder.with_name(folder.name.removesuffix(artifact.PARTIAL).partition(artifact.REPLACED)[0])
    if not is_finished(name):
        return Entry(folder, "not ours", None, size, "no stage made it")
    if name.name != folder.name.removesuffix(artifact.PARTIAL):
        return Entry(folder, "replaced", None, size, "it was made again")
    if partial and is_locked(folder):
        return Entry(folder, "running", None, size)
    if partial and not (folder / artifact.MANIFEST).exists():
        return Entry(
            folder, "in parts" if (folder / artifact.WORK / artifact.UNFINISHED).exists() else "interrupted", None, size
        )
    try:
        # A sealed partial folder is only renamed if its hashes are right, so they decide here too.
        manifest = artifact.check_artifact(folder, thorough=verify or partial)
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
    read = entry.manifest.inputs.get("train") if entry.manifest else None
    return models.get(entry.folder.name if entry.folder.parent.name == "train" else read.name if read else "", "")


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
    evaluated = [entry.name for entry, manifest in whole if manifest.stage == "evaluate" and not superseded_too]
    running = [entry.folder / artifact.WORK / artifact.INPUTS for entry in found if entry.state == "running"]
    remedy = "end the process that is working there, and run the same command again"
    opened = [name for record in running if record.exists() for name in read_stamped_json(record, remedy)]
    queue = [*newest.values(), *evaluated, *opened]
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


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


@command()
def doctor(data: DataOption = Path("data"), address: AddressOption = None) -> None:
    """Check versions, device, FAISS, disk and memory; with --address a Ray cluster.

    Example: itrpipe doctor
    """
    packages = (re.match(r"[\w-]+", each) for each in requires("itrpipe") or () if "extra ==" not in each)
    required = [each.group() for each in packages if each and each.group().lower() not in OPTIONAL]
    missing = [name for name in required if not _version(name)]
    builds = [name for name in FAISS_BUILDS if _version(name)]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    place = next(path for path in (data.absolute(), *data.absolute().parents) if path.exists())
    rows = [(name, _version(name) or f"MISSING: pip install {name}") for name in required]
    rows += [(name, _version(name) or f"not installed; {without}") for name, without in OPTIONAL.items()]
    rows.append(("faiss", _faiss(builds)))
    rows += [] if "torch" in missing else [("device", _device())]
    rows.append(("memory", f"{memory:.1f} GiB, {os.cpu_count()} CPU cores"))
    rows.append(("disk", f"{shutil.disk_usage(place).free / 2**30:.1f} GiB free at {place}"))
    rows.append(("stages", ", ".join(declared_stages())))
    for each in brought():
        rows.append(("plug-in", f"{each.group.removeprefix('itrpipe.')} {each.name}, {each.problem or each.package}"))
    rows += [("cluster", line) for line in (_cluster(address, data) if address else ())]
    reporter = Reporter()
    reporter.say(f"itrpipe {__version__}, Python {platform.python_version()}, {platform.platform()}")
    for name, what in rows:
        reporter.say(f"  {name:<15} {what}")
    complete = not missing and len(builds) < 2
    reporter.say("everything required is here" if complete else "something is missing, or twice there; see above")
    if not complete:
        raise typer.Exit(1)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _faiss(builds: list[str]) -> str:
    if len(builds) > 1:
        both = " ".join(builds)
        return f"{both} overwrite each other's files; pip uninstall {both}, then install one of them"
    if builds:
        return f"{_version(builds[0])} ({builds[0]})"
    installed = importlib.util.find_spec("faiss")
    return "installed, not by pip" if installed else "not installed; exact mining does without: itrpipe[cpu]"


def _cluster(address: str, root: Path) -> Iterator[str]:
    """A line for each node of a Ray cluster: what it has, and whether it sees the data folder.

    Raises:
        MissingInputError: Ray is not installed.
        UnavailableError: no cluster answers.
    """
    from itrpipe.engine.ray import connected, load_ray, nodes

    ray = load_ray()
    with connected(ray, address):
        for node in nodes(ray, root.absolute()):
            has = ", ".join(f"{node.resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
            here = node.itrpipe if node.itrpipe == __version__ else f"{node.itrpipe}, here {__version__}: install one"
            sees = "sees" if node.sees_data else "DOES NOT SEE"
            yield f"{node.name}: {has}; itrpipe {here}; {sees} {root.absolute()}"


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return f"cuda, {torch.cuda.get_device_name()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    return f"cpu, {quantity(torch.get_num_threads(), 'thread')}"
