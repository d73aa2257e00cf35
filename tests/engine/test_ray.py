"""Parts made on a Ray cluster: the bytes of one process, whichever nodes die on the way."""

from __future__ import annotations

import builtins
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from itrpipe.commands.doctor import examine
from itrpipe.engine import run as engine
from itrpipe.engine.ray import connected, load_ray
from itrpipe.engine.run import Made, MapExecution, make_parts
from itrpipe.engine.work import Work
from itrpipe.errors import DataError, ItrpipeError, UnavailableError
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import DIVISION
from tests.engine import toy
from tests.engine.toy import (
    COUNT,
    Threaded,
    Toy,
    Unreadable,
    content,
    dawdle,
    die,
    eventually,
    fail,
    gone,
    note,
)
from tests.maps import made

pytest.importorskip("ray")

Invoke = Callable[..., Any]
NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What Ray needs on a slow machine, and a home that it may write to."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("RAY_raylet_start_wait_time_s", "150")
        patch.delenv("RAY_ADDRESS", raising=False)
        yield folder


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[Any]:
    """A cluster of one node with two cores that belongs to somebody else."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def connection(cluster: Any) -> Iterator[Any]:
    """The library, connected to the cluster."""
    ray, on_end = load_ray(), signal.getsignal(signal.SIGTERM)
    with connected(ray, cluster.address):
        assert signal.getsignal(signal.SIGTERM) == on_end
        yield ray
    assert not ray.is_initialized()


def by_ray(work: Work, folder: Path, workers: int = 2) -> Made:
    execution = MapExecution(engine="ray", workers=workers)
    return make_parts(work, folder, execution, Reporter(Console(quiet=True)), print)


# Without a cluster


def test_without_ray_one_line_says_what_to_install(
    data_root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    outcome = invoke("prepare", "--train", 4, "--val", 4, "--test", 4, "--engine", "ray", "--data", data_root)
    assert outcome.code == 3
    assert outcome.err == "error: --engine ray needs the library Ray: pip install 'itrpipe[ray]'\n"


@pytest.mark.parametrize("address", [NOBODY, "auto", "nonsense", "127.0.0.1:port"])
def test_an_address_of_no_cluster_is_one_line(
    data_root: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", NOBODY)  # where `auto` looks first
    small = ("--train", 4, "--val", 4, "--test", 4, "--data", data_root)
    outcome = invoke("prepare", *small, "--engine", "ray", "--address", address)
    assert outcome.code == 8, outcome
    assert outcome.err.startswith(f"error: no Ray cluster answers at --address {address} (")
    assert outcome.err.endswith(
        "start one with `ray start --head`, set its RAY_AUTH_MODE and token here, or leave --address out for one of "
        "this machine alone\n"
    )
    assert outcome.err.count("\n") == 1


def test_an_address_without_the_engine_is_refused(data_root: Path, invoke: Invoke) -> None:
    outcome = invoke("prepare", "--address", "auto", "--data", data_root)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "--address auto is that of a Ray cluster; add --engine ray" in outcome.err


# A cluster


def test_the_doctor_lists_the_nodes(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from itrpipe import __version__

    monkeypatch.chdir(tmp_path)
    examine(Path("absent"), cluster.address)
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "cluster  " in each]
    assert ": 2 CPU, 0 GPU, " in line
    assert f"; itrpipe {__version__}; DOES NOT SEE {tmp_path / 'absent'}" in line


@pytest.mark.parametrize(("kind", "workers"), [(Toy, 2), (Threaded, 4)])
def test_a_cluster_makes_the_bytes_of_one_process(
    connection: Any, tmp_path: Path, whole: dict[str, bytes], kind: type[Toy], workers: int
) -> None:
    """Also where it has no room for all workers: those that never begin hold no parts."""
    (tmp_path / "notes").mkdir()
    result = by_ray(kind(COUNT, partial(note, tmp_path / "notes")), tmp_path / "parts", workers)
    assert content(tmp_path / "parts") == whole
    assert result.rows == 5 * COUNT
    seen = {path.read_text().split()[0] for path in (tmp_path / "notes").iterdir()}
    assert str(os.getpid()) not in seen
    assert by_ray(Toy(COUNT), tmp_path / "parts").rows == 0


def test_the_print_of_python_stays(connection: Any) -> None:
    from ray.experimental.tqdm_ray import instance

    before = builtins.print
    instance()  # as when bars of workers are shown
    assert builtins.print is before


def test_an_error_reaches_who_asked_with_its_type(connection: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^image 7 is broken") as caught:
        by_ray(Toy(COUNT, partial(fail, "000004", DataError("image 7 is broken"))), tmp_path / "parts")
    (told,) = caught.value.__notes__
    assert told.startswith("in a worker:\nTraceback")
    assert "toy.py" in told


def test_a_part_that_kills_every_worker_is_named_and_all_others_are_made(connection: Any, tmp_path: Path) -> None:
    with pytest.raises(ItrpipeError, match=r"squaring: 1 part \(000003\) killed a worker 3 times"):
        by_ray(Threaded(COUNT, partial(die, "000003")), tmp_path / "parts")
    wanted = [*(f"{number:06}.arrays" for number in range(COUNT) if number != 3), DIVISION]
    assert sorted(content(tmp_path / "parts")) == wanted


def test_workers_that_cannot_begin_are_one_line(
    connection: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MOST_DEATHS", 1)
    with pytest.raises(UnavailableError, match=r"no worker begins \(.*nobody reads this"):
        by_ray(Unreadable(COUNT), tmp_path / "parts", workers=1)


def test_a_node_that_is_lost_costs_only_the_parts_it_had(connection: Any, cluster: Any, tmp_path: Path) -> None:
    made(Toy(30), tmp_path / "alone")
    lost = cluster.add_node(num_cpus=2)
    folder = tmp_path / "parts"

    def lose() -> None:
        eventually(lambda: len(list(folder.glob("*.arrays"))) >= 6, "no part is made")
        cluster.remove_node(lost, allow_graceful=False)

    losing = threading.Thread(target=lose)
    losing.start()
    by_ray(Toy(30, partial(dawdle, 0.2)), folder, workers=4)
    losing.join()
    assert content(folder) == content(tmp_path / "alone")


# A cluster of this machine alone


@pytest.mark.slow
def test_an_interrupted_run_ends_its_own_cluster(cluster: Any, tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Though there is another one on this machine."""
    folder, notes = tmp_path / "parts", tmp_path / "notes"
    notes.mkdir()
    command = [sys.executable, toy.__file__, str(folder), str(notes), "1", "Toy", "ray"]
    driver = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        eventually(lambda: (notes / "000003").exists() or driver.poll() is not None, "no part is being made")
        os.killpg(driver.pid, signal.SIGINT)
        _, printed = driver.communicate(timeout=60)
    finally:
        driver.kill()
    assert (driver.returncode, printed) == (1, "interrupted\n")
    eventually(lambda: gone(int((notes / "000003").read_text().split()[0])), "a worker lives on")
    names = {f"{number:06}.arrays" for number in range(3)}
    assert set(content(folder)) == {*names, DIVISION}
    assert all(content(folder)[name] == whole[name] for name in names)
