"""Parts made on one machine, by one job or several: equal bytes however they are made, and whatever dies on the way."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from itrpipe.datasets.definition import DatasetDefinition, StageDefinition
from itrpipe.engine import run as engine
from itrpipe.engine.run import OthersMissing, SharedExecution
from itrpipe.errors import DataError, ItrpipeError
from itrpipe.storage.artifact import DIVISION
from tests.chains import refused
from tests.commands import Command
from tests.definitions import save_definition
from tests.engine import toy
from tests.engine.toy import COUNT, Toy, content, eventually, noted
from tests.maps import made

NAMES = [f"{number:06}.arrays" for number in range(COUNT)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "parts"


# Results


@pytest.mark.parametrize(
    ("kind", "workers", "cores", "seen"),
    [
        (Toy, 1, 1, ("9", "2")),
        (toy.Threaded, 1, 1, ("9", "2")),
        (Toy, 2, 5, ("2", "None")),
        (toy.Threaded, 2, 1, ("1", "None")),
        (toy.Alone, 1, 3, ("9", "1")),
        (toy.Alone, 2, 6, ("3", "1")),
    ],
)
def test_bytes_are_equal_however_parts_are_made(
    folder: Path, notes: Path, whole: Any, monkeypatch: Any, kind: Any, workers: int, cores: int, seen: Any
) -> None:
    """Cores are divided among processes; in one thread of torch means in one, and afterwards there are two again."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(engine, "usable_cores", lambda: cores)
    monkeypatch.setenv("OMP_NUM_THREADS", "9")
    result = made(kind(COUNT, partial(toy.note, notes)), folder, workers)
    assert content(folder) == whole
    assert [path.name for path in result.paths] == NAMES
    assert (result.rows, made(kind(COUNT), folder, workers).rows) == (5 * COUNT, 0)
    assert made(kind(0), folder.with_name("none"), workers)[:2] == ([], 0)
    assert {tuple(each) for _, *each in noted(notes)} == {seen}
    with ThreadPoolExecutor(1) as later:
        assert (torch.get_num_threads(), later.submit(torch.get_num_threads).result()) == (2, 2)
    torch.set_num_threads(before)
    assert (str(os.getpid()) in {process for process, *_ in noted(notes)}) == (workers == 1)


# What earlier runs left


def share(work: Toy, folder: Path, part: str = "1/2", warn: Callable[[str], None] = print) -> OthersMissing:
    with pytest.raises(OthersMissing) as others:
        made(work, folder, warn=warn, part=part)
    return others.value


@pytest.mark.parametrize("text", ["1", "0/2", "3/2", "a/b", "1/2/3", " 1/2", "1/2 ", "-1/2", "1.0/2", "01/2", "1/2\n"])
def test_only_i_of_n_is_a_share(text: str) -> None:
    with pytest.raises(ValidationError, match="1 <= i <= n"):
        SharedExecution(part=text)


@pytest.mark.parametrize("count", [1, 2, 3, COUNT + 1])
def test_shares_cover_every_part_once(folder: Path, whole: dict[str, bytes], count: int) -> None:
    every = [share(Toy(COUNT), folder, f"{number}/{count}") for number in range(1, count + 1)]
    assert [each.missing() for each in every] == [0] * count
    assert sum(each.rows for each in every) == 5 * COUNT
    assert max(each.rows for each in every) - min(each.rows for each in every) <= 5
    assert content(folder) == whole


def test_only_what_is_missing_or_damaged_is_made_again(folder: Path, notes: Path, whole: dict[str, bytes]) -> None:
    """What killed workers have begun is removed, by those who make these parts."""
    made(Toy(COUNT), folder)
    (folder / NAMES[2]).unlink()
    (folder / NAMES[6]).write_bytes(whole[NAMES[6]][:-1] + b"\xff")
    for name in (f".{NAMES[3]}.elsewhere.12.tmp", f".{NAMES[4]}.elsewhere.12.tmp", ".other.txt"):
        (folder / name).touch()
    warnings: list[str] = []
    share(Toy(COUNT, partial(toy.note, notes)), folder, warn=warnings.append)
    assert sorted(path.name for path in folder.glob(".*")) == [f".{NAMES[3]}.elsewhere.12.tmp", ".other.txt"]
    assert sorted(path.name for path in notes.iterdir()) == ["000002", "000006"]
    assert [warning.split(" parts")[0] for warning in warnings] == ["1 of 3"]
    assert made(Toy(COUNT), folder).rows == 0


def test_parts_of_another_division_are_refused_to_a_share_and_removed_otherwise(
    folder: Path, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill while they are removed never makes them parts of this one, in whatever order the files are listed."""
    made(Toy(COUNT + 3, key="other"), folder)
    for path in folder.glob("*.arrays"):
        path.write_bytes((folder / NAMES[0]).read_bytes())
    before = content(folder)
    with pytest.raises(DataError, match="another division"):
        made(Toy(COUNT), folder, part="1/2")
    assert content(folder) == before
    real, left = os.unlink, iter(range(4))
    monkeypatch.setattr(os, "unlink", lambda *given, **named: (next(left), real(*given, **named)))
    with pytest.raises(StopIteration):
        made(Toy(COUNT), folder)
    monkeypatch.undo()
    assert made(Toy(COUNT), folder).rows == 5 * COUNT
    assert content(folder) == whole
    (folder / DIVISION).write_text("{")
    with pytest.raises(DataError, match=f"{DIVISION} has no checksum"):
        made(Toy(2), folder)


# Errors and deaths


@pytest.mark.parametrize(
    ("kind", "workers", "error", "wanted"),
    [
        (Toy, 1, partial(DataError, "image 7 is broken"), DataError),
        (toy.Threaded, 1, partial(DataError, "image 7 is broken"), DataError),
        (toy.Threaded, 2, partial(FileNotFoundError, 2, "not there", "/no/where"), FileNotFoundError),
        (Toy, 2, partial(toy.OneArgumentTooManyError, "no such", "letter"), RuntimeError),
        (toy.Unreadable, 2, partial(ValueError, "nobody reads this"), ValueError),
    ],
)
def test_an_error_reaches_who_asked_with_its_type(
    folder: Path, kind: type[Toy], workers: int, error: Callable[[], Exception], wanted: type[Exception]
) -> None:
    with pytest.raises(wanted, match=re.escape(str(error()))) as caught:
        made(kind(COUNT, partial(toy.fail, "000004", error)), folder, workers)
    if workers > 1:
        assert caught.value.__notes__[0].startswith("in a worker:\nTraceback")
    assert not list(folder.glob(".*"))


@pytest.mark.parametrize(("kind", "once"), [(Toy, True), (toy.Threaded, True), (Toy, False), (toy.Threaded, False)])
def test_the_part_of_a_worker_that_dies_is_made_again(
    folder: Path, notes: Path, whole: dict[str, bytes], kind: type[Toy], once: bool
) -> None:
    """One that kills every worker is named, and all others are made."""
    work = kind(COUNT, partial(toy.die, "000003", notes, once))
    if once:
        assert made(work, folder, 2).rows == 5 * COUNT
        assert (notes / "died").exists()
    else:
        with pytest.raises(ItrpipeError, match=r"squaring: 1 part \(000003\) killed a worker 3 times.*--workers"):
            made(work, folder, 2)
    assert content(folder) == {name: each for name, each in whole.items() if once or name != NAMES[3]}


# Ends from outside


@pytest.mark.parametrize(
    ("kind", "engine", "workers", "how", "begun"),
    [
        (Toy, "local", 1, signal.SIGINT, True),
        (toy.Threaded, "local", 2, signal.SIGINT, True),
        (Toy, "local", 2, signal.SIGKILL, True),
        (Toy, "local", 2, signal.SIGINT, False),
        pytest.param(Toy, "ray", 1, signal.SIGINT, True, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_ended_leaves_whole_parts_and_no_process(
    folder: Path, notes: Path, whole: Any, kind: Any, engine: str, workers: int, how: signal.Signals, begun: bool
) -> None:
    """A Ctrl-C of the terminal reaches all processes, also while workers start, and a kill the driver alone."""

    if engine == "ray":
        pytest.importorskip("ray")

    def at_work() -> list[str]:
        if begun and len(list(folder.glob("*.arrays"))) == 3:
            return [process for process, *_ in noted(notes)]
        children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children")  # one of them tracks resources
        return [] if begun else children.read_text().split()

    with toy.driver(folder, notes, workers, kind, engine) as driver:
        eventually(lambda: len(at_work()) >= workers, "no part is being made")
        seen = at_work()
        os.killpg(driver.pid, how) if how == signal.SIGINT else driver.kill()
        _, printed = driver.communicate(timeout=60)
    eventually(lambda: all(toy.gone(int(each)) for each in seen), "a worker lives on")
    kept = [*NAMES[:3], DIVISION] if begun else [DIVISION]
    if how == signal.SIGINT:
        assert (driver.returncode, printed) == (1, "interrupted\n")
        assert set(content(folder)) == set(kept)
    assert all(content(folder)[name] == whole[name] for name in kept)
    made(Toy(COUNT), folder)
    assert content(folder) == whole


# Jobs that share the parts of a stage; tests/stages/test_extract.py has more of them


def test_a_share_waits_for_the_others_where_the_plan_goes_on(tmp_path: Path) -> None:
    """Also for one that was killed in the middle, and is begun again."""
    stage = StageDefinition(conf="scenes", settings={"train": 100, "val": 15, "test": 15})
    save_definition(tmp_path, "scenes", DatasetDefinition(prepare=stage))

    def job(*arguments: str) -> Command:
        return Command(*arguments, "--workers", "1", "--data", tmp_path)

    first = job("parse", "--set", "tagger=lexicon", "--set", "prepare.part=1/2")
    job("prepare", "--part", "2/2").kill()
    eventually(lambda: [*tmp_path.glob("*/prepare/*.partial/.work/unfinished.json")] != [], "the share is not made")
    assert first.running()
    job("prepare", "--part", "2/2").finish()
    assert "of other jobs (--part i/2)" in first.finish()


@pytest.mark.parametrize("address", ["", "127.0.0.1:1", "auto", "nonsense"])
def test_without_ray_or_a_cluster_there_is_one_line(
    data_root: Path, invoke: Any, monkeypatch: Any, address: str
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # where `auto` looks first
    given, told = ["--address", address], (8, f"error: no Ray cluster answers at --address {address} (")
    if not address:
        monkeypatch.setitem(sys.modules, "ray", None)
        given, told = [], (3, "--engine ray needs the library Ray: pip install 'itrpipe[ray]'")
    small = ("prepare", "--train", 4, "--val", 4, "--test", 4, "--data", data_root)
    refused(invoke(*small, "--engine", "ray", *given), *told)
