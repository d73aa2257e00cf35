"""Locks: who holds one, how long others wait, file systems that have none, and what a run that fails leaves."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
def holding(place: Location, part: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock of the artifact or of a part of it."""
    command = [sys.executable, "-c", HOLD, str(place.root), part]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_parts_are_made_side_by_side_but_never_beside_the_whole(place: Location) -> None:
    with locked(place, part="1-of-2"), locked(place, part="2-of-2"):
        assert place.partial.exists()
        assert is_locked(place.partial)
        for part in ("", "1-of-2"):
            with pytest.raises(LockedError, match=r"1-of-2.* is being written by"), locked(place, part=part):
                pytest.fail("it was made twice")
    assert not is_locked(place.partial)
    waited: list[Path] = []
    with locked(place), pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOURS, "0.00001")
        with pytest.raises(LockedError), locked(place, waited.append, "1-of-2"):
            pytest.fail("a part was begun beside the whole")
    assert waited == [place.lock()]


def test_a_second_job_of_one_part_waits_for_the_first_and_lets_others_begin(place: Location) -> None:
    waited: list[Path] = []

    def on_wait(path: Path) -> None:
        """Ends the first one, once a third has begun its part, since this one holds nothing."""
        waited.append(path)
        with holding(place, "2-of-2"):
            first.kill()

    with holding(place, "1-of-2") as first:
        with locked(place, on_wait, "1-of-2"):
            assert first.wait() != 0
            assert is_locked(place.partial)
        assert waited == [place.lock("1-of-2")]
    assert not is_locked(place.partial)


def test_a_lock_of_another_process_is_waited_for_and_dies_with_it(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does not wait, or no longer, is told for whom, and what to do."""
    waited: list[Path] = []
    with holding(place) as other:
        assert is_locked(place.partial)
        assert holder(place.lock()).startswith(f"process {other.pid} on {os.uname().nodename} since 20")
        monkeypatch.setenv(HOURS, "0.0001")
        for on_wait in (None, waited.append):
            with pytest.raises(LockedError, match=f"by process {other.pid} on .*; wait for it.*{HOURS}"):
                locked(place, on_wait).__enter__()
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


def test_a_file_system_without_locks_is_named_and_nothing_waits(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file from elsewhere, as it lies there after copying, locks nothing."""

    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    place.lock().parent.mkdir(parents=True)
    place.lock().touch()
    assert holder(place.lock()) == "another process"
    with locked(place):
        pass
    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(UnavailableError, match=r"\.lock cannot be read or written now .*gives no locks; mount"),
        locked(place),
    ):
        pass
    with unused(place.folder) as free:
        assert not free


def run_and_fail(place: Location, *files: str, part: str = "") -> None:
    """Writes empty files into the work of an artifact, and fails."""
    with suppress(UsageError), locked(place, part=part):
        for path in (open_partial(place) / name for name in files):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        raise UsageError("the download failed")


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


def test_a_folder_of_other_jobs_or_that_cannot_be_read_stays(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    with holding(place, "1-of-2"):
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
