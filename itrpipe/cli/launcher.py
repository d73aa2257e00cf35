"""Launchers of several processes: torchrun, whose processes train together, and others, which cannot."""

import os
import sys
from collections.abc import Callable, Mapping

from itrpipe.errors import UsageError

_MEETING = ("RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables by which torch brings processes together."""


def launched(environment: Mapping[str, str]) -> int:
    """Return how many processes torchrun has started, which train together; 1 for one alone.

    Args:
        environment: variables of the process.

    Raises:
        UsageError: there are several that cannot find each other, or a variable is left over.
    """
    size = environment.get("WORLD_SIZE", "1")
    if not size.isdecimal() or int(size) < 2:
        return 1
    missing = [name for name in _MEETING if not environment.get(name)]
    if missing:
        raise UsageError(
            f"this is one process of WORLD_SIZE={size}, but not of torchrun ({', '.join(missing)} not set); start it "
            "with torchrun or --devices, or drop a variable that is left over: env -u WORLD_SIZE itrpipe …"
        )
    return int(size)


def run_together(command: Callable[[], object]) -> None:
    """Runs a command, in the first of the processes that a launcher has started."""
    if launched(os.environ) == 1:
        command()
        return
    # Before torch is loaded, which would tell every user that no gradient of a model is unused.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from itrpipe.training.distributed import run_in_first_process

    run_in_first_process(command)


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
