"""The process of `itrpipe` and `python -m itrpipe`: an interrupt ends it quietly, and a closed pipe not at all.

Nothing that takes a while is imported here, where an interrupt would be a traceback.
"""

from __future__ import annotations

import atexit
import io
import os
import sys

from itrpipe.errors import INTERRUPTED


class Outlet(io.FileIO):
    """Standard output or error, which goes nowhere once nobody reads it any more, as behind `| head`.

    Neither does it go anywhere after another error, since Python would write the same again at its end.
    """

    def write(self, content) -> int:
        """Writes bytes, and returns how many."""
        try:
            return super().write(content)
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            if not isinstance(error, BrokenPipeError):
                raise
            return super().write(content)


def run() -> None:
    """Runs the command, from its first import on."""
    interrupted = False

    def end_at_once() -> None:
        if interrupted:  # threads of libraries in C++ would complain at a regular end
            os._exit(INTERRUPTED)

    atexit.register(end_at_once)  # before all others, and so called after them
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None:  # closed by `>&-`
            outlet = io.BufferedWriter(Outlet(stream.fileno(), "w", closefd=False))
            setattr(sys, name, io.TextIOWrapper(outlet, stream.encoding, line_buffering=True))
    try:
        from itrpipe.cli import main

        main()
    except (KeyboardInterrupt, SystemExit) as leaving:
        interrupted = isinstance(leaving, KeyboardInterrupt) or leaving.code == INTERRUPTED
        if interrupted:
            import signal

            signal.signal(signal.SIGINT, signal.SIG_DFL)  # an impatient user ends it at once
            sys.exit(INTERRUPTED)
        raise


if __name__ == "__main__":
    run()
