"""Check the installation."""

import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import typer

from itrpipe import __version__
from itrpipe.cli.commands import BaseCommand
from itrpipe.cli.options import AddressOption, DataOption
from itrpipe.config import declared_stages, installed_plugins
from itrpipe.printable import quantity
from itrpipe.progress import Reporter

OPTIONAL = {
    "hanta": "--tagger lexicon works without it: pip install HanTa",
    "torchcodec": "Pillow decodes JPEG: pip install itrpipe[jpeg]",
    "ray": "for clusters: itrpipe[ray]",
}
"""Package that itrpipe works without -> the reason to install it, or the work without it."""
FAISS_BUILDS = ("faiss-gpu-cuvs", "faiss-gpu", "faiss-gpu-cu12", "faiss-cpu")


@dataclass
class Doctor(BaseCommand):
    """Check versions, device, FAISS, disk and memory; with --address a Ray cluster.

    Example: itrpipe doctor
    """

    data: DataOption = Path("data")
    address: AddressOption = None

    def run(self) -> None:
        builds = [name for name in FAISS_BUILDS if _version(name)]
        complete = len(builds) < 2
        rows = []
        for requirement in metadata.requires("itrpipe") or ():
            name = re.split(r"[^\w-]", requirement)[0]
            if "extra ==" not in requirement and name.lower() not in OPTIONAL:
                version = _version(name)
                complete = complete and version != ""
                rows.append((name, version or f"MISSING: pip install {name}"))
        for name, without in OPTIONAL.items():
            rows.append((name, _version(name) or f"not installed; {without}"))
        rows.append(("faiss", _faiss(builds)))
        if _version("torch"):
            rows.append(("device", _device()))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        rows.append(("memory", f"{memory / 2**30:.1f} GiB, {os.cpu_count()} CPU cores"))
        place = self.data.absolute()
        while not place.exists():
            place = place.parent
        rows.append(("disk", f"{shutil.disk_usage(place).free / 2**30:.1f} GiB free at {place}"))
        rows.append(("stages", ", ".join(declared_stages())))
        for plugin in installed_plugins():
            kind = plugin.group.removeprefix("itrpipe.")
            rows.append(("plug-in", f"{kind} {plugin.name}, {plugin.problem or plugin.package}"))
        if self.address:
            rows += [("cluster", line) for line in _cluster(self.address, self.data)]
        reporter = Reporter()
        reporter.say(f"itrpipe {__version__}, Python {platform.python_version()}, {platform.platform()}")
        for name, what in rows:
            reporter.say(f"  {name:<15} {what}")
        if not complete:
            reporter.say("something is missing, or twice there; see above")
            raise typer.Exit(1)
        reporter.say("everything required is here")


def _version(package: str) -> str:
    """Return the version of an installed package; empty where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _faiss(builds: list[str]) -> str:
    if len(builds) > 1:
        both = " ".join(builds)
        return f"{both} overwrite each other's files; pip uninstall {both}, then install one of them"
    if builds:
        return f"{_version(builds[0])} ({builds[0]})"
    if find_spec("faiss"):
        return "installed, not by pip"
    return "not installed; exact mining does without: itrpipe[cpu]"


def _cluster(address: str, root: Path) -> Iterator[str]:
    """Yield a line for each node of a Ray cluster: its resources, and whether it sees the data folder.

    Raises:
        MissingInputError: Ray is not installed.
        UnavailableError: no cluster answers.
    """
    from itrpipe.engine.ray import connected, load_ray, nodes

    ray = load_ray()
    with connected(ray, address):
        for node in nodes(ray, root.absolute()):
            version = node.itrpipe
            if version != __version__:
                version += f", here {__version__}: install one"
            sees = "sees" if node.sees_data else "DOES NOT SEE"
            cpus = node.resources.get("CPU", 0)
            gpus = node.resources.get("GPU", 0)
            yield f"{node.name}: {cpus:g} CPU, {gpus:g} GPU; itrpipe {version}; {sees} {root.absolute()}"


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return f"cuda, {torch.cuda.get_device_name()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    return f"cpu, {quantity(torch.get_num_threads(), 'thread')}"
