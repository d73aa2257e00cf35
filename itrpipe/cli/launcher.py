"""Launchers of several processes, such as torchrun, which a pipeline of one process has no use for."""

from __future__ import annotations

from collections.abc import Mapping

from itrpipe.errors import UsageError

_SIZES = {
    "WORLD_SIZE": ("RANK", "LOCAL_RANK"),
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_RANK",),
    "PMI_SIZE": ("PMI_RANK",),
    "MV2_COMM_WORLD_SIZE": ("MV2_COMM_WORLD_RANK",),
}
"""Variables that hold the number of processes, as Accelerate reads them, and those that hold the number of one."""


def refuse_launchers(environment: Mapping[str, str]) -> None:
    """Refuses to work as one of several processes, which would wait for each other.

    Accelerate joins the processes that these variables promise, and one of them holds the lock of an artifact that
    the others wait for.

    Args:
        environment: variables of the process.

    Raises:
        UsageError: a launcher started several processes, or its variables are left over.
    """
    for name, ranks in _SIZES.items():
        size = _number(environment.get(name))
        if size is None or size < 2:
            continue
        rank = next((number for each in ranks if (number := _number(environment.get(each))) is not None), None)
        which = "one process" if rank is None else f"process {rank + 1}"
        raise UsageError(
            f"this is {which} of {size} ({name}={size}), and itrpipe works in one; start it without torchrun or "
            "another launcher, give several jobs a part of extract each with --shard i/n, or drop a variable that is "
            f"left over: env -u {name} itrpipe …"
        )


def _number(text: str | None) -> int | None:
    """A whole number, else nothing."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
