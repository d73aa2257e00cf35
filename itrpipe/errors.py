"""One tree of errors a user can cause or meet, each with its exit code.

A message is one line that names the fact, the value, the path and the remedy, because it is
all that a user sees: `itrpipe.cli` prints it without a traceback and exits with `exit_code`.
"""

from __future__ import annotations

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM; that of other programs."""
_LONGEST_REASON = 200
"""Characters of what a library says that a message repeats."""


class ItrpipeError(Exception):
    """Base of every error that is shown to the user as one line.

    Attributes:
        exit_code: exit status of the process when the error reaches the command line.
    """

    exit_code = 1


class UsageError(ItrpipeError):
    """An option, a setting or a name that does not exist or does not fit."""

    exit_code = 2


class MissingInputError(ItrpipeError):
    """A file, a folder or an artifact that is needed is not there."""

    exit_code = 3


class MissingSourceError(MissingInputError):
    """What a recipe reads is not there; its message has several lines, which say what to bring."""


class NoCaptionsError(MissingInputError):
    """A folder holds photographs, and no captions of them."""


class DataError(ItrpipeError):
    """A file is there but its content is wrong, truncated or contradicts another file."""

    exit_code = 4


class DiskFullError(ItrpipeError):
    """The disk holds less free space than the next write needs."""

    exit_code = 5


class LockedError(ItrpipeError):
    """Another process is writing the same artifact."""

    exit_code = 6


class IncompleteError(ItrpipeError):
    """The run ended and its result is whole but for some images that could not be used; they are listed."""

    exit_code = 7


class UnavailableError(ItrpipeError):
    """A file or folder cannot be read or written now: permissions, a read-only or network file system, a device.

    It says nothing about the content: what cannot be read now is not damaged, and nothing may remove it.
    """

    exit_code = 8


def reason_of(error: Exception) -> str:
    """Returns what a library says of a failure, in a line that is not longer than a user reads."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]} ..."
