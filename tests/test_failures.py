"""Failures of the machine end in one line and an exit code; those of the program keep their traceback."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import itrpipe
from itrpipe.cli import entry
from itrpipe.cli.launcher import launched, restart_with
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.training import distributed as ranks
from tests.chains import Invoke, refused

CHECKOUT = Path(itrpipe.__file__).parents[1]
MEMORY = ("there is not enough memory", "lower batch_size")


def fails_with(error: BaseException | Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every command fail."""

    def fail() -> None:
        if isinstance(error, BaseException):
            raise error
        error()

    monkeypatch.setattr(entry, "app", fail)


def os_error(code: int, path: str | None = "/data/x") -> OSError:
    return OSError(code, os.strerror(code), path) if path else OSError(code, os.strerror(code))


@pytest.mark.parametrize(
    ("error", "code", "parts"),
    [
        (os_error(errno.EACCES), 8, ["/data/x cannot be read or written now", "check its permissions"]),
        (os_error(errno.EROFS), 8, ["read-only; mount it writable"]),
        (os_error(errno.ESTALE, None), 8, ["a file cannot be read or written now", "does not answer"]),
        (os_error(errno.EMFILE), 8, ["ulimit -n"]),
        (os_error(errno.ENOSPC), 5, ["no space left while writing /data/x", "goes on where it stopped"]),
        (os_error(errno.EDQUOT, None), 5, ["no space left (", "free some"]),
        (os_error(errno.ENOENT), 3, ["/data/x is not there", "put it back"]),
        (os_error(errno.ENOTDIR), 3, ["/data/x leads through something that is no folder"]),
        (os_error(errno.EISDIR), 3, ["/data/x is a folder where a file was expected"]),
        (os_error(errno.ENOMEM, None), 2, MEMORY),
        (MemoryError(), 2, ["(MemoryError)"]),
        (lambda: np.empty(2**55), 2, ["(Unable to allocate", *MEMORY]),
        (lambda: torch.empty(2**55), 2, MEMORY),
        (lambda: torch.empty(2**62), 2, MEMORY),
        (OSError("libgomp.so: failed to map segment from shared object"), 2, MEMORY[:1]),
        (ImportError("numpy.so: cannot allocate memory in static TLS"), 2, MEMORY[:1]),
        (BrokenProcessPool("terminated abruptly"), 2, ["a worker process was ended from outside", "lower workers"]),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might"), 2, ["(CUDA error: out of memory);"]),
    ],
    ids=lambda each: repr(each) if isinstance(each, BaseException) else None,
)
def test_failures_of_the_machine_are_one_line(
    error: Any, code: int, parts: list[str], invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_with(error, monkeypatch)
    refused(invoke(), code, *parts)


@pytest.mark.parametrize(
    "error",
    [
        *(os_error(errno.ENOENT, None), os_error(errno.EEXIST), RuntimeError("shapes differ"), ValueError("x")),
        *(RecursionError("maximum recursion depth exceeded"), ImportError("No module named 'x'")),
    ],
    ids=repr,
)
def test_failures_of_the_program_keep_their_traceback(
    error: BaseException, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_with(error, monkeypatch)
    with pytest.raises(type(error)):
        invoke()


def test_a_removed_working_folder_matters_only_where_it_is_read(
    tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "data" / "mine" / "prepare" / f"files-{'0' * 8}"
    damaged.mkdir(parents=True)
    (damaged / "manifest.json").write_text("{")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert invoke("status", "--data", tmp_path / "data").code == DataError.exit_code
    fails_with(os.getcwd, monkeypatch)
    assert invoke().code == MissingInputError.exit_code


# Where output goes

CLOSED = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'itrpipe', 'show', 'train'])"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_goes_nowhere_ends_a_command_by_its_code() -> None:
    show, reader, writer = ("-m", "itrpipe", "show", "train", "aoq"), *os.pipe()
    os.close(reader)  # as `| head` does
    full = os.open("/dev/full", os.O_WRONLY)
    for command, out, code, said in (
        (show, writer, 0, ""),
        (show, full, 5, r"error: no space left [^\n]*\n"),
        (("-c", CLOSED), None, 0, ""),
    ):
        options: dict[str, Any] = {"cwd": CHECKOUT, "stdout": out, "stderr": subprocess.PIPE, "text": True}
        ended = subprocess.run([sys.executable, *command], check=False, timeout=600, **options)
        assert ended.returncode == code, command
        assert re.fullmatch(said, ended.stderr)
    for descriptor in (writer, full):
        os.close(descriptor)


def test_an_interrupt_before_the_command_is_imported_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    path = os.pathsep.join([str(tmp_path), str(CHECKOUT)])
    command = [sys.executable, "-m", "itrpipe", "status"]
    environment = os.environ | {"PYTHONPATH": path}
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (entry.INTERRUPTED, "")


# Launchers of several processes

MEETING = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}, "(MASTER_ADDR, MASTER_PORT not set)"),
        ({"WORLD_SIZE": "2"}, "env -u WORLD_SIZE itrpipe"),
    ],
)
def test_one_of_several_processes_that_cannot_meet_is_refused(
    variables: dict[str, str], part: str, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    refused(invoke("status"), UsageError.exit_code, "WORLD_SIZE=2", part, "torchrun or --devices")


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, 1),
        ({"RANK": "3"}, 1),
        ({"WORLD_SIZE": ""}, 1),
        ({"WORLD_SIZE": "many"}, 1),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "3"}, 1),
        ({"WORLD_SIZE": "8", "RANK": "3", **MEETING}, 8),
    ],
)
def test_processes_of_torchrun_are_counted(variables: dict[str, str], count: int) -> None:
    assert launched(variables) == count


def test_a_process_that_waits_for_others_says_so_and_can_be_interrupted() -> None:
    variables = {"WORLD_SIZE": "2", "RANK": "1", "PYTHONPATH": str(CHECKOUT), **MEETING}
    command = [sys.executable, "-m", "itrpipe", "status"]
    with subprocess.Popen(command, env=os.environ | variables, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "127.0.0.1:1" in process.stderr.readline()
        process.terminate()
        assert process.wait(60) == entry.INTERRUPTED


def test_processes_of_torchrun_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, sent = iter([7, 7, 1]), []
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "kill", lambda *told: sent.append(told))
    ranks._end_with(7)
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_devices_start_the_command_again_under_torchrun_unless_it_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append(arguments))
    monkeypatch.setattr(sys, "argv", ["itrpipe", "train", "--devices", "2"])
    restart_with(1)
    assert started == []
    restart_with(2)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    assert started == [[sys.executable, *launcher, "-m", "itrpipe", "train", "--devices", "2"]]
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", **MEETING}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="--devices 3, but a launcher has started 2 processes"):
        restart_with(3)
    restart_with(2)
    restart_with(None)
    assert len(started) == 1
