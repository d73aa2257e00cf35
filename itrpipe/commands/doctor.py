"""`itrpipe doctor`: is everything here that the pipeline needs?"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

from itrpipe import __version__
from itrpipe.config import brought, declared_stages
from itrpipe.progress import Reporter

OPTIONAL = {
    "torchcodec": "Pillow decodes JPEG: pip install itrpipe[jpeg]",
    "ray": "clusters need it: pip install itrpipe[ray]",
}
"""Package -> how it goes without it."""
FAISS_BUILDS = ("faiss-gpu-cuvs", "faiss-gpu", "faiss-gpu-cu12", "faiss-cpu")
LOW_DISK_GIB = 10


def examine(root: Path, address: str | None = None) -> bool:
    """Prints what is here and what is missing, with the remedy.

    Args:
        root: the data folder.
        address: of a Ray cluster to look at.

    Returns:
        Whether everything required is installed, and no two packages that overwrite each other.
    """
    reporter = Reporter()
    reporter.say(f"itrpipe {__version__}, Python {platform.python_version()}, {platform.platform()}")
    required = [
        name for each in requires("itrpipe") or () if "extra ==" not in each for name in re.findall(r"^[\w-]+", each)
    ]
    missing = [name for name in required if _version(name) is None]
    for name in required:
        reporter.say(
            f"  {name:<15} {_version(name) or 'MISSING: pip install ' + name}", style=None if _version(name) else "red"
        )
    for name, without in OPTIONAL.items():
        reporter.say(f"  {name:<15} {_version(name) or f'not installed; {without}'}")
    builds = [name for name in FAISS_BUILDS if _version(name)]
    reporter.say(f"  {'faiss':<15} {_faiss(builds)}", style="red" if len(builds) > 1 else None)
    if "torch" not in missing:
        reporter.say(f"  {'device':<15} {_device()}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    reporter.say(f"  {'memory':<15} {memory:.1f} GiB, {os.cpu_count()} CPU cores")
    place = next(path for path in (root.absolute(), *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free / 2**30
    low = f" (features of COCO alone take 16 GiB; {LOW_DISK_GIB} GiB is little)" if free < LOW_DISK_GIB else ""
    reporter.say(f"  {'disk':<15} {free:.1f} GiB free at {place}{low}")
    reporter.say(f"  {'stages':<15} {', '.join(declared_stages())}")
    for each in brought():
        what = f"{each.group.removeprefix('itrpipe.')} {each.name}, {each.problem or each.package}"
        reporter.say(f"  {'plug-in':<15} {what}", style="red" if each.problem else None)
    for line in _cluster(address, root) if address else ():
        reporter.say(f"  {'cluster':<15} {line}")
    if len(builds) > 1:
        reporter.say("two builds of faiss are installed")
    elif missing:
        reporter.say(f"missing: {', '.join(missing)}")
    else:
        reporter.say("everything required is here")
    return not missing and len(builds) < 2


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _faiss(builds: list[str]) -> str:
    if len(builds) > 1:
        both = " ".join(builds)
        return f"{both}: they overwrite each other's files; pip uninstall {both}, then install one of them"
    if builds:
        return f"{_version(builds[0])} ({builds[0]})"
    if importlib.util.find_spec("faiss"):
        return "installed, not by pip"
    return "not installed; exact mining works without it: pip install 'itrpipe[cpu]'"


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
            memory = f"{node.resources.get('memory', 0) / 2**30:.1f} GiB"
            here = node.itrpipe if node.itrpipe == __version__ else f"{node.itrpipe}, here {__version__}: install one"
            sees = "sees" if node.sees_data else "DOES NOT SEE"
            yield f"{node.name}: {has}, {memory}; itrpipe {here}; {sees} {root.absolute()}"


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        return f"cuda, {torch.cuda.get_device_name()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    return f"cpu, {torch.get_num_threads()} threads"
