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

Invoke = Callable[..., Any]
CHECKOUT = Path(itrpipe.__file__).parents[1]
LAUNCHERS = ("WORLD_SIZE",)


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
        (os_error(errno.ENOMEM, None), 2, ["there is not enough memory", "lower batch_size"]),
        (MemoryError(), 2, ["(MemoryError)"]),
        (lambda: np.empty(2**55), 2, ["there is not enough memory (Unable to allocate", "lower batch_size"]),
        (lambda: torch.empty(2**55), 2, ["there is not enough memory", "lower batch_size"]),
        (lambda: torch.empty(2**62), 2, ["there is not enough memory", "lower batch_size"]),
        (OSError("libgomp.so: failed to map segment from shared object"), 2, ["there is not enough memory"]),
        (ImportError("numpy.so: cannot allocate memory in static TLS"), 2, ["there is not enough memory"]),
        (BrokenProcessPool("terminated abruptly"), 2, ["a worker process was ended from outside", "lower workers"]),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might"), 2, ["(CUDA error: out of memory);"]),
    ],
    ids=lambda each: repr(each) if isinstance(each, BaseException) else None,
)
def test_failures_of_the_machine_are_one_line(
    error: Any, code: int, parts: list[str], invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails_with(error, monkeypatch)
    outcome = invoke()
    assert outcome.code == code, outcome.err
    assert re.fullmatch(r"error: [^\n]*\n", outcome.err)
    for part in parts:
        assert part in outcome.err


@pytest.mark.parametrize(
    "error",
    [
        os_error(errno.ENOENT, None),
        os_error(errno.EEXIST),
        os_error(errno.EINVAL),
        RuntimeError("shapes differ"),
        RecursionError("maximum recursion depth exceeded"),
        ValueError("x"),
        ImportError("No module named 'x'"),
    ],
    ids=lambda each: repr(each) if isinstance(each, BaseException) else None,
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


def run_with(stdout: Any, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "itrpipe", *arguments]
    return subprocess.Popen(command, cwd=CHECKOUT, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_a_closed_pipe_ends_quietly() -> None:
    process = run_with(subprocess.PIPE, "show", "train", "aoq")
    assert process.stdout is not None
    process.stdout.close()  # as `| head` does
    _, said = process.communicate(timeout=600)
    assert (process.returncode, said) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_to_a_full_disk_says_so() -> None:
    with Path("/dev/full").open("w") as full:
        _, said = (process := run_with(full, "show", "train", "aoq")).communicate(timeout=600)
    assert process.returncode == 5
    assert re.fullmatch(r"error: no space left [^\n]*\n", said)


def test_without_standard_output_a_command_still_ends() -> None:
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'itrpipe', 'show', 'train'])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, stderr=subprocess.PIPE, text=True, check=False, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")


# Launchers of several processes


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}, ["WORLD_SIZE=2", "(MASTER_ADDR, MASTER_PORT not set)"]),
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE=2", "env -u WORLD_SIZE itrpipe"]),
    ],
)
def test_one_of_several_processes_that_cannot_meet_is_refused(
    variables: dict[str, str], parts: list[str], invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outcome = invoke("status")
    assert outcome.code == UsageError.exit_code
    assert re.fullmatch(r"error: [^\n]*\n", outcome.err)
    for part in (*parts, "torchrun or --devices"):
        assert part in outcome.err


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"},
        {"RANK": "3"},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "many"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "3"},
    ],
)
def test_one_process_alone_is_not(variables: dict[str, str]) -> None:
    assert launched(variables) == 1


def test_processes_of_torchrun_are_counted() -> None:
    meeting = {"RANK": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    assert launched({"WORLD_SIZE": "8", **meeting}) == 8


def test_a_process_that_waits_for_others_says_so_and_can_be_interrupted() -> None:
    meeting = {
        "WORLD_SIZE": "2",
        "RANK": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "PYTHONPATH": str(CHECKOUT),
    }
    command = [sys.executable, "-m", "itrpipe", "status"]
    with subprocess.Popen(command, env=os.environ | meeting, stderr=subprocess.PIPE, text=True) as process:
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


def test_as_many_devices_as_processes_are_asked_for(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "::1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="--devices 3, but a launcher has started 2 processes"):
        restart_with(3)
    restart_with(2)
    restart_with(None)


def test_devices_start_the_command_again_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: started.append(arguments))
    monkeypatch.setattr(sys, "argv", ["itrpipe", "train", "--devices", "2"])
    restart_with(1)
    assert started == []
    restart_with(2)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    assert started == [[sys.executable, *launcher, "-m", "itrpipe", "train", "--devices", "2"]]
