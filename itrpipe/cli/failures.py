"""Failures of the machine that no module foresaw, as errors of one line; everything else keeps its traceback."""

from __future__ import annotations

import errno
import os
from concurrent.futures import BrokenExecutor

from itrpipe.errors import ItrpipeError, MissingInputError, UsageError
from itrpipe.storage.disk import unavailable

_KINDS = {
    FileNotFoundError: "is not there",
    NotADirectoryError: "leads through something that is no folder",
    IsADirectoryError: "is a folder where a file was expected",
}
# What torch, CUDA and their libraries say; numpy and Arrow raise a MemoryError.
_NO_MEMORY = (
    "allocate memory",
    "not enough memory",
    "out of memory",
    "storage size calculation overflowed",
    "alloc_failed",
    "std::bad_alloc",
    "failed to map segment",  # of a library
)


def known_failure(error: BaseException) -> ItrpipeError | None:
    """What to tell the user about a failure that is not the program's; None for all others."""
    if _is_out_of_memory(error):
        return UsageError(
            f"there is not enough memory ({_first_line(error)}); lower batch_size, encode_block, memory_mib or the "
            "widths of the model with --set, train with --set train.encode_chunk=auto, or end other programs"
        )
    if isinstance(error, BrokenExecutor):
        return UsageError(
            "a worker process was ended from outside, as systems do that run out of memory; lower workers with --set, "
            "or end other programs, and run the same command again"
        )
    return _of_files(error) if isinstance(error, OSError) else None


def _of_files(error: OSError) -> ItrpipeError | None:
    if told := unavailable(error):
        return told
    if isinstance(error, FileNotFoundError) and error.filename is None and _is_nowhere():
        return MissingInputError("the folder that this command was started in is gone; start it in another one")
    what = _KINDS.get(type(error))
    if what is None or error.filename is None:
        return None
    return MissingInputError(f"{error.filename} {what}; put it back or name another, then run the same command again")


def _is_nowhere() -> bool:
    """Whether the working folder was removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    loaded = isinstance(error, RuntimeError | ImportError) or (isinstance(error, OSError) and error.errno is None)
    return loaded and any(sign in str(error).lower() for sign in _NO_MEMORY)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
