"""Parts made on one machine: equal bytes however they are made, and whatever dies on the way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from itrpipe.engine import local
from itrpipe.engine.local import usable_cores
from itrpipe.engine.run import Made, MapExecution, SharedExecution, make_parts
from itrpipe.engine.work import Work
from itrpipe.errors import DataError, ItrpipeError
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import DIVISION
from itrpipe.storage.parts import ArrayFile
from tests.engine import toy
from tests.engine.toy import (
    COUNT,
    Alone,
    Threaded,
    Toy,
    Unreadable,
    content,
    die,
    die_once,
    eventually,
    fail,
    fail_oddly,
    gone,
    note,
    note_and_die,
    note_threads,
)
from tests.maps import made


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder in which parts that are made leave a note."""
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def share(work: Work, folder: Path, part: str) -> Made:
    return make_parts(work, folder, SharedExecution(part=part), Reporter(Console(quiet=True)), print)


# Results


@pytest.mark.parametrize(("kind", "workers"), [(Toy, 1), (Threaded, 1), (Toy, 2), (Threaded, 2)])
def test_threads_and_processes_make_the_same_bytes(
    tmp_path: Path, whole: dict[str, bytes], kind: type[Toy], workers: int
) -> None:
    result = made(kind(COUNT), tmp_path / "parts", workers)
    assert content(tmp_path / "parts") == whole
    assert [path.name for path in result.paths] == [f"{number:06}.arrays" for number in range(COUNT)]
    squares = np.concatenate([ArrayFile(path).read("squares") for path in result.paths])
    assert squares.tolist() == [number**2 for number in range(5 * COUNT)]
    assert (result.rows, made(kind(COUNT), tmp_path / "parts", workers).rows) == (5 * COUNT, 0)
    assert made(kind(0), tmp_path / "none", workers)[:2] == ([], 0)


def test_cores_are_divided_among_workers(tmp_path: Path, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    made(Toy(COUNT, partial(note, notes)), tmp_path / "parts", 2)
    seen = [path.read_text().split() for path in notes.iterdir()]
    assert {threads for _, threads in seen} == {str(max(1, usable_cores() // 2))}
    assert str(os.getpid()) not in {process for process, _ in seen}
    made(Toy(COUNT, partial(note, notes)), tmp_path / "alone")
    assert {path.read_text() for path in notes.iterdir()} == {f"{os.getpid()} 77"}


# What earlier runs left


@pytest.mark.parametrize("cores", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_one_thread_of_torch_computes_a_part_and_afterwards_there_are_as_many_as_before(
    tmp_path: Path, notes: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, workers: int, cores: int
) -> None:
    monkeypatch.setattr(local, "usable_cores", lambda: cores)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        made(Alone(COUNT, partial(note_threads, notes)), tmp_path / "parts", workers)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert {path.read_text() for path in notes.iterdir()} == {"1"}
    assert content(tmp_path / "parts") == whole


def test_only_what_is_missing_or_damaged_is_made_again(tmp_path: Path, notes: Path, whole: dict[str, bytes]) -> None:
    made(Toy(COUNT), tmp_path / "parts")
    (tmp_path / "parts" / "000002.arrays").unlink()
    path = tmp_path / "parts" / "000006.arrays"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    warnings: list[str] = []
    assert made(Toy(COUNT, partial(note, notes)), tmp_path / "parts", warn=warnings.append).rows == 10
    assert sorted(path.name for path in notes.iterdir()) == ["000002", "000006"]
    assert [warning.split(" parts")[0] for warning in warnings] == ["1 of 7"]
    assert content(tmp_path / "parts") == whole


def test_a_kill_while_they_are_removed_never_makes_them_parts_of_this_division(
    tmp_path: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the order in which the files of the folder are listed."""
    made(Toy(COUNT, key="other"), tmp_path / "parts")
    for path in (tmp_path / "parts").glob("*.arrays"):
        path.write_bytes((tmp_path / "parts" / "000000.arrays").read_bytes())  # as another division would have them
    real, left = os.unlink, [4]

    def dying(*arguments: Any, **named: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(*arguments, **named)

    monkeypatch.setattr(os, "unlink", dying)
    with pytest.raises(KeyboardInterrupt):
        made(Toy(COUNT), tmp_path / "parts")
    monkeypatch.undo()
    made(Toy(COUNT), tmp_path / "parts")
    assert content(tmp_path / "parts") == whole


def test_parts_of_another_division_are_refused_to_a_share_and_removed_otherwise(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    made(Toy(COUNT + 3, key="bigger"), tmp_path / "parts")
    before = content(tmp_path / "parts")
    with pytest.raises(DataError, match="another division"):
        share(Toy(COUNT), tmp_path / "parts", "1/2")
    assert content(tmp_path / "parts") == before
    assert made(Toy(COUNT), tmp_path / "parts").rows == 5 * COUNT
    assert content(tmp_path / "parts") == whole
    (tmp_path / "parts" / DIVISION).write_text("{")
    with pytest.raises(DataError, match=f"{DIVISION} has no checksum"):
        made(Toy(2), tmp_path / "parts")


def test_what_killed_workers_have_begun_is_removed_and_what_others_write_stays(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    folder = tmp_path / "parts"
    folder.mkdir()
    for name in (".000003.arrays.elsewhere.12.tmp", ".000004.arrays.elsewhere.12.tmp", ".other.txt"):
        (folder / name).touch()
    with pytest.raises(Exception, match="1/2"):
        share(Toy(COUNT), folder, "1/2")
    assert sorted(path.name for path in folder.glob(".*")) == [".000003.arrays.elsewhere.12.tmp", ".other.txt"]
    made(Toy(COUNT), folder)
    (folder / ".other.txt").unlink()
    assert content(folder) == whole


# Errors and deaths


@pytest.mark.parametrize(("kind", "workers"), [(Toy, 1), (Threaded, 1), (Toy, 2), (Threaded, 2)])
@pytest.mark.parametrize("error", [DataError("image 7 is broken"), FileNotFoundError(2, "not there", "/no/where")])
def test_an_error_reaches_who_asked_with_its_type(
    tmp_path: Path, kind: type[Toy], workers: int, error: Exception
) -> None:
    with pytest.raises(type(error), match=re.escape(str(error))) as caught:
        made(kind(COUNT, partial(fail, "000004", error)), tmp_path / "parts", workers)
    if workers > 1:
        (told,) = caught.value.__notes__
        assert told.startswith("in a worker:\nTraceback")
        assert "toy.py" in told
    assert not list((tmp_path / "parts").glob(".*"))
    made(kind(COUNT), tmp_path / "parts")


@pytest.mark.parametrize(
    ("work", "error", "message"),
    [
        (Toy(4, fail_oddly), RuntimeError, "OneArgumentTooManyError: no such letter"),
        (Unreadable(COUNT), LookupError, "nobody reads this"),
    ],
)
def test_an_error_that_cannot_be_sent_or_of_a_map_that_cannot_be_read_says_why(
    tmp_path: Path, work: Work, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        made(work, tmp_path / "parts", 2)


@pytest.mark.parametrize("kind", [Toy, Threaded])
def test_the_part_of_a_worker_that_dies_is_made_again(tmp_path: Path, whole: dict[str, bytes], kind: type[Toy]) -> None:
    spoil = partial(die_once, tmp_path / "marker", "000003")
    result = made(kind(COUNT, spoil), tmp_path / "parts", 2)
    assert (tmp_path / "marker").exists()
    assert content(tmp_path / "parts") == whole
    assert result.rows == 5 * COUNT


@pytest.mark.parametrize("kind", [Toy, Threaded])
def test_a_part_that_kills_every_worker_is_named_and_all_others_are_made(tmp_path: Path, kind: type[Toy]) -> None:
    """Also those that were being made beside it."""
    with pytest.raises(ItrpipeError, match=r"squaring: 1 part \(000003\) killed a worker 3 times") as caught:
        made(kind(COUNT, partial(die, "000003")), tmp_path / "parts", 2)
    assert "--workers" in str(caught.value)
    assert sorted(content(tmp_path / "parts")) == [
        *(f"{number:06}.arrays" for number in range(COUNT) if number != 3),
        DIVISION,
    ]


# Ends from outside


@pytest.mark.parametrize(("kind", "workers"), [("Toy", 1), ("Toy", 2), ("Threaded", 2)])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_whole_parts_and_no_process(
    tmp_path: Path, notes: Path, whole: dict[str, bytes], kind: str, workers: int, how: signal.Signals
) -> None:
    """A Ctrl-C of the terminal reaches all processes, a kill of the driver it alone."""
    folder = tmp_path / "parts"
    command = [sys.executable, toy.__file__, str(folder), str(notes), str(workers), kind, "local"]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        eventually(
            lambda: len(list(notes.glob("??????"))) >= workers and len(list(folder.glob("*.arrays"))) == 3,
            "no part is being made",
        )
        if how == signal.SIGINT:
            os.killpg(driver.pid, how)
        else:
            driver.kill()
        _, printed = driver.communicate(timeout=60)
    finally:
        driver.kill()
    workers_seen = {int(path.read_text().split()[0]) for path in notes.glob("??????")}
    assert workers_seen
    eventually(lambda: all(map(gone, workers_seen)), "a worker lives on")
    names = {f"{number:06}.arrays" for number in range(3)}
    if how == signal.SIGINT:
        assert (driver.returncode, printed) == (1, "interrupted\n")
        assert set(content(folder)) == {*names, DIVISION}
    else:
        assert names | {DIVISION} <= set(content(folder))
    assert all(content(folder)[name] == whole[name] for name in names)
    made(Toy(COUNT), folder)
    assert content(folder) == whole


def test_a_run_that_is_interrupted_while_workers_start_leaves_none(tmp_path: Path) -> None:
    """Nor do they print anything."""
    command = [sys.executable, toy.__file__, str(tmp_path / "parts"), str(tmp_path), "2", "Toy", "local"]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children")
    eventually(lambda: len(children.read_text().split()) >= 2, "no worker is started")  # one tracks resources
    seen = [int(each) for each in children.read_text().split()]
    os.killpg(driver.pid, signal.SIGINT)
    _, printed = driver.communicate(timeout=60)
    assert (driver.returncode, printed) == (1, "interrupted\n")
    eventually(lambda: all(map(gone, seen)), "a worker lives on")


def test_a_reader_that_stops_listening_ends_the_workers(tmp_path: Path, notes: Path) -> None:
    """An error of whatever shows the progress, such as a closed pipe, leaves nobody at work."""

    class Broken(Reporter):
        def say(self, message: str, style: str | None = None) -> None:
            raise BrokenPipeError

    work = Toy(COUNT, partial(note_and_die, notes))
    with pytest.raises(BrokenPipeError) as caught:  # while `caught` lives, so does the frame of the map
        make_parts(work, tmp_path / "parts", MapExecution(workers=2), Broken(Console(quiet=True)), print)
    assert caught.value.__traceback__
    assert all(gone(int(path.read_text().split()[0])) for path in notes.glob("??????"))
