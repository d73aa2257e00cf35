"""Launchers of several processes: torchrun, whose processes train together, and others, which cannot."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

from itrpipe.errors import UsageError

_SIZES = {
    "WORLD_SIZE": ("RANK", "LOCAL_RANK"),
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_RANK",),
    "PMI_SIZE": ("PMI_RANK",),
    "MV2_COMM_WORLD_SIZE": ("MV2_COMM_WORLD_RANK",),
}
"""Variables that hold the number of processes, and those that hold the number of one."""
_MEETING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torch needs to know to bring processes together."""


def launched(environment: Mapping[str, str]) -> int:
    """How many processes train together; 1 for one alone.

    Args:
        environment: variables of the process.

    Raises:
        UsageError: a launcher started several processes that cannot find each other, or its variables are left over.
    """
    for name, ranks in _SIZES.items():
        size = _number(environment.get(name))
        if size is None or size < 2:
            continue
        if all(environment.get(each) for each in _MEETING):
            return int(environment["WORLD_SIZE"])
        rank = next((number for each in ranks if (number := _number(environment.get(each))) is not None), None)
        which = "one process" if rank is None else f"process {rank + 1}"
        missing = ", ".join(each for each in _MEETING if not environment.get(each))
        raise UsageError(
            f"this is {which} of {size} ({name}={size}), but not of torchrun ({missing} not set); start it with "
            "torchrun or --devices, give several jobs a part of it each with --part i/n, or drop a variable that is "
            f"left over: env -u {name} itrpipe …"
        )
    return 1


def run_together(command: Callable[[], object]) -> None:
    """Runs a command, in the first of the processes that a launcher has started."""
    if launched(os.environ) == 1:
        command()
        return
    # Before torch is loaded, which would tell every user that no gradient of a model is unused.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from itrpipe.training.distributed import together

    together(command)


def restart_with(devices: int | None) -> None:
    """Starts the command of this process again, once for every device, unless that has happened.

    Args:
        devices: processes that train together; None or 1 for this one alone.

    Raises:
        UsageError: a launcher has started another number.
    """
    if devices is None:
        return
    size = launched(os.environ)
    if size > 1 and size != devices:
        raise UsageError(f"--devices {devices}, but a launcher has started {size} processes; leave one of them out")
    if size == 1 < devices:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(devices)]
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // devices)))
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *launcher, "-m", "itrpipe", *sys.argv[1:]])


def _number(text: str | None) -> int | None:
    """A whole number, else nothing."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
