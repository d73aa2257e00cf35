"""Commands in processes of their own that begin at once, since they are forked off a process that has imported all.

A fresh interpreter with torch takes seconds. How `itrpipe` itself starts is tested in `test_cli` and `test_wheel`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import site
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.faults.server import Fault, become, make_parts_small, modules

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([*modules(), "faiss", "HanTa.HanoverTagger"])


class Command:
    """`itrpipe` with arguments, running, in a session of its own.

    Args:
        arguments: of `itrpipe`.
        folder: where it runs; None for the working folder.
        small_parts: a few images fill several parts.
        packages: folders of packages that are installed for it.
    """

    def __init__(
        self,
        *arguments: object,
        folder: Path | None = None,
        small_parts: bool = False,
        packages: Sequence[Path] = (),
    ) -> None:
        handle, name = tempfile.mkstemp()
        os.close(handle)
        self._log = Path(name)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        faults: list[Fault] = [make_parts_small] if small_parts else []
        faults += [partial(site.addsitedir, str(each)) for each in packages]
        given = ([str(each) for each in arguments], folder or Path.cwd(), self._log, environment, faults)
        self._process = _PROCESSES.Process(target=_run, args=given)
        self._process.start()

    def running(self) -> bool:
        return self._process.exitcode is None

    def kill(self) -> None:
        """`kill -9` of the command and of all that it started."""
        assert self._process.pid
        for kill in (os.killpg, os.kill):  # it may not yet have a group of its own
            with suppress(ProcessLookupError):
                kill(self._process.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> tuple[int, str]:
        """Its exit code, negative for a signal, and all that it printed, when it has ended."""
        self._process.join()
        output = self._log.read_text()
        self._log.unlink()
        assert self._process.exitcode is not None
        return self._process.exitcode, output

    def finish(self) -> str:
        """All that it printed; it has to succeed."""
        code, output = self.wait()
        assert code == 0, output
        return output


def _run(
    arguments: list[str], folder: Path, log: Path, environment: Mapping[str, str], faults: Sequence[Fault]
) -> None:
    import torch

    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    become(arguments, folder, os.open(log, os.O_WRONLY | os.O_APPEND), faults)
