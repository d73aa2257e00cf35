"""Check the installation."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

import typer

from itrpipe import __version__
from itrpipe.cli.commands import BaseCommand
from itrpipe.cli.options import AddressOption, DataOption
from itrpipe.config import brought, declared_stages
from itrpipe.printable import quantity
from itrpipe.progress import Reporter

OPTIONAL = {
    "hanta": "--tagger lexicon works without it: pip install HanTa",
    "torchcodec": "Pillow decodes JPEG: pip install itrpipe[jpeg]",
    "ray": "for clusters: itrpipe[ray]",
}
"""Package -> how it goes without it."""
FAISS_BUILDS = ("faiss-gpu-cuvs", "faiss-gpu", "faiss-gpu-cu12", "faiss-cpu")


@dataclass
class Doctor(BaseCommand):
    """Check versions, device, FAISS, disk and memory; with --address a Ray cluster.

    Example: itrpipe doctor
    """

    data: DataOption = Path("data")
    address: AddressOption = None

    def run(self) -> None:
        packages = (re.match(r"[\w-]+", each) for each in requires("itrpipe") or () if "extra ==" not in each)
        required = [each.group() for each in packages if each and each.group().lower() not in OPTIONAL]
        missing = [name for name in required if not _version(name)]
        builds = [name for name in FAISS_BUILDS if _version(name)]
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
        place = next(path for path in (self.data.absolute(), *self.data.absolute().parents) if path.exists())
        rows = [(name, _version(name) or f"MISSING: pip install {name}") for name in required]
        rows += [(name, _version(name) or f"not installed; {without}") for name, without in OPTIONAL.items()]
        rows.append(("faiss", _faiss(builds)))
        rows += [] if "torch" in missing else [("device", _device())]
        rows.append(("memory", f"{memory:.1f} GiB, {os.cpu_count()} CPU cores"))
        rows.append(("disk", f"{shutil.disk_usage(place).free / 2**30:.1f} GiB free at {place}"))
        rows.append(("stages", ", ".join(declared_stages())))
        for each in brought():
            rows.append(
                ("plug-in", f"{each.group.removeprefix('itrpipe.')} {each.name}, {each.problem or each.package}")
            )
        rows += [("cluster", line) for line in (_cluster(self.address, self.data) if self.address else ())]
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
