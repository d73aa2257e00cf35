"""Locks: who holds one, how long others wait, and file systems that have none."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from itrpipe.errors import LockedError, UnavailableError, UsageError
from itrpipe.storage.artifact import DIVISION, INPUTS, WORK, Location, open_partial
from itrpipe.storage.locks import HOURS, holder, is_locked, locked, patience, unused

HOLD = """
import sys
from pathlib import Path
from itrpipe.storage.artifact import Location
from itrpipe.storage.locks import locked
with locked(Location(Path(sys.argv[1]), "tiny", "train", "aoq.vsrn", "ab" * 32), part=sys.argv[2]):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(data_root: Path, part: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of the artifact or of a part of it."""
    command = [sys.executable, "-c", HOLD, str(data_root), part]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.fixture
def other(data_root: Path) -> Iterator[subprocess.Popen[str]]:
    with holding(data_root) as process:
        yield process


def test_a_second_job_of_one_part_waits_for_the_first_and_lets_others_begin(place: Location, data_root: Path) -> None:
    waited: list[Path] = []

    def on_wait(path: Path) -> None:
        """Ends the first one, once this one holds nothing and a third has made its part."""
        waited.append(path)
        threading.Thread(target=begin_another_and_end_the_first).start()

    def begin_another_and_end_the_first() -> None:
        with holding(data_root, "2-of-2"):
            pass
        first.kill()

    with holding(data_root, "1-of-2") as first:
        with locked(place, on_wait, "1-of-2"):
            assert first.wait() != 0
            assert is_locked(place.partial)
        assert waited == [place.lock("1-of-2")]
    assert not is_locked(place.partial)


def test_a_lock_of_another_process_is_waited_for_and_dies_with_it(
    place: Location, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does not wait, or no longer, is told for whom, and what to do."""
    assert is_locked(place.partial)
    assert holder(place.lock()).startswith(f"process {other.pid} on {os.uname().nodename} since 20")
    with pytest.raises(LockedError, match=f"is being written by process {other.pid} on .*; wait for it"), locked(place):
        pass
    waited: list[Path] = []
    monkeypatch.setenv(HOURS, "0.0001")
    message = rf"held by process {other.pid} on .* for more than 0\.0001 hours; end that process, or .*{HOURS}=0\.0002"
    with pytest.raises(LockedError, match=message), locked(place, waited.append):
        pass
    monkeypatch.delenv(HOURS)
    with locked(place, lambda path: other.kill()):
        assert is_locked(place.partial)
    assert waited == [place.lock()]
    assert not is_locked(place.partial)


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_hours_must_be_a_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(HOURS, text)
    with pytest.raises(UsageError, match=f"{HOURS}='{text}' is no number of hours"):
        patience()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks_is_named_and_nothing_waits(
    place: Location, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A file from elsewhere, as it lies there after copying, locks nothing."""
    place.lock().parent.mkdir(parents=True)
    place.lock().touch()
    assert holder(place.lock()) == "another process"
    with locked(place):
        pass

    def refuse(*arguments: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    remedy = "does not answer" if code == errno.EIO else "gives no locks; mount it with locks"
    with pytest.raises(UnavailableError, match=rf"\.lock cannot be read or written now .*{remedy}"), locked(place):
        pass
    with unused(place.folder) as free:
        assert not free


# What a run that fails leaves


def run_and_fail(place: Location, *files: str, part: str = "") -> None:
    """Writes empty files into the work of an artifact, and fails."""

    def work() -> None:
        for name in files:
            path = open_partial(place) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        raise UsageError("the download failed")

    with pytest.raises(UsageError), locked(place, part=part):
        work()


BEGUN = (f"{WORK}/{INPUTS}", f"{WORK}/parts/vit/{DIVISION}")


@pytest.mark.parametrize("part", ["", "1-of-2"])
def test_a_run_that_made_nothing_leaves_no_folder_and_what_was_made_stays(place: Location, part: str) -> None:
    run_and_fail(place, *BEGUN, part=part)
    assert not place.partial.exists()
    for made in ("features.h5", f"{WORK}/parts/vit/000000.arrays"):
        run_and_fail(place, *BEGUN, made, part=part)
        run_and_fail(place)
        assert all((place.partial / name).exists() for name in (*BEGUN, made))
        (place.partial / made).unlink()


def test_a_folder_of_other_jobs_or_that_cannot_be_read_stays(
    place: Location, data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holding(data_root, "1-of-2"):
        run_and_fail(place, part="2-of-2")
        assert place.partial.exists()
    read = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path) == place.partial / WORK:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read(path)

    monkeypatch.setattr(os, "scandir", refuse)
    run_and_fail(place)
    assert place.partial.exists()
