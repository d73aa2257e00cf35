"""The application: it runs a command, and turns errors and signals into a line and an exit code.

Nothing heavy is imported here.
"""

import errno
import io
import os
import signal
import sys
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import NoReturn

import typer

from itrpipe import __version__
from itrpipe.cli.commands import Commands
from itrpipe.cli.launcher import run_together
from itrpipe.errors import INTERRUPTED, ItrpipeError, MissingInputError, MissingSourceError, UsageError
from itrpipe.printable import printable, printable_lines
from itrpipe.storage.disk import unavailable

_KINDS = {
    FileNotFoundError: "is not there",
    NotADirectoryError: "leads through something that is no folder",
    IsADirectoryError: "is a folder where a file was expected",
}
# Messages of torch, CUDA and their libraries; numpy and Arrow raise a MemoryError.
_NO_MEMORY = (
    "allocate memory",
    "not enough memory",
    "out of memory",
    "storage size calculation overflowed",
    "alloc_failed",
    "std::bad_alloc",
    "failed to map segment",  # of a library
)

_KEPT_PRODUCTS = "32"
"""Compiled products of bfloat16 that torch and oneDNN each keep, where they would keep 1,024. Each holds memory of the
size of its result, and captions of another length need others; the layers of one length find theirs again."""
_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")

app = typer.Typer(
    name="itrpipe",
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Staged, disk-backed training of image-text retrieval models with better negatives.",
    epilog="The chain: prepare, extract, parse, train, mine-negatives, synthesize, train --method aoq, evaluate, "
    "report. A first look: itrpipe demo",
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True),
    data: Path | None = typer.Option(None, "--data", help="Folder of all artifacts, for any command."),
) -> None:
    for cache in _CACHES:
        os.environ.setdefault(cache, _KEPT_PRODUCTS)  # read when the first product is computed
    if version:
        typer.echo(f"itrpipe {__version__}")
        raise typer.Exit
    if data is not None:
        os.environ["ITRPIPE_DATA"] = str(data)  # for the command
    if context.invoked_subcommand is None:
        from itrpipe.cli.status import Status

        Status(data=Path(os.environ.get("ITRPIPE_DATA", "data"))).run()


def main() -> None:
    """Run the command line, and turn a user's error into one line and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal can show every letter
    os.environ.setdefault("GOMP_SPINCOUNT", spin_count())  # read when torch is loaded
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system ends a run like Ctrl-C
    try:
        run_together(app)
    except ItrpipeError as error:
        _end(error)
    except (SystemExit, KeyboardInterrupt) as leaving:
        # Typer turns an interrupt into this exit code and prints nothing.
        code = leaving.code if isinstance(leaving, SystemExit) else INTERRUPTED
        if code == INTERRUPTED:
            typer.echo("interrupted; the same command goes on where it stopped", err=True)
        sys.exit(code)
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        failure = known_failure(error)
        if failure is None:
            raise
        _end(failure)


def spin_count() -> str:
    """Return how often an OpenMP thread looks for work before it sleeps.

    Threads that spin for long between two small operations stand still if the cores have other work; threads that
    hardly spin lose time if the cores have none. Training VSRN on two cores: 7.3 steps a second with OpenMP's
    own 300,000 turns, 7.1 with 20,000, 5.7 with 2,000; beside one busy process 0.3, 1.4 and 4.0.
    """
    is_idle = os.getloadavg()[0] < (os.cpu_count() or 1) / 2
    return "20000" if is_idle else "2000"


def known_failure(error: BaseException) -> ItrpipeError | None:
    """Return the error of a failure that is not the program's; None for all others, which keep a traceback."""
    if _is_out_of_memory(error):
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return UsageError(
            f"there is not enough memory ({reason}); lower batch_size, encode_block, memory_mib or the widths of the "
            "model with --set, train with --set train.encode_chunk=auto, or end other programs"
        )
    if isinstance(error, BrokenExecutor):
        return UsageError(
            "a worker process was ended from outside, as systems do that run out of memory; lower workers with --set, "
            "or end other programs, and run the same command again"
        )
    if not isinstance(error, OSError):
        return None
    on_disk = unavailable(error)
    if on_disk:
        return on_disk
    if error.filename is None:
        try:
            os.getcwd()
        except FileNotFoundError:
            return MissingInputError("the folder that this command was started in is gone; start it in another one")
        return None
    problem = _KINDS.get(type(error))
    if problem is None:
        return None
    return MissingInputError(
        f"{error.filename} {problem}; put it back or name another, then run the same command again"
    )


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno == errno.ENOMEM
    if not isinstance(error, RuntimeError | ImportError | OSError):
        return False
    text = str(error).lower()
    return any(sign in text for sign in _NO_MEMORY)


def _end(error: ItrpipeError) -> NoReturn:
    """Print an error in one line, or that of a recipe in several, and leave with its exit code."""
    to_text = printable_lines if isinstance(error, MissingSourceError) else printable
    if sys.stderr is not None:  # closed by `2>&-`; typer would print UTF-8 on a stream that shows ASCII alone
        print(f"error: {to_text(str(error))}", file=sys.stderr)
    sys.exit(error.exit_code)
