"""Parts made on a Ray cluster: the bytes of one process, whichever nodes die on the way."""

from __future__ import annotations

import builtins
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from itrpipe import __version__
from itrpipe.commands.doctor import examine
from itrpipe.engine.ray import connected, load_ray
from itrpipe.engine.run import MapExecution, make_parts
from itrpipe.errors import DataError, ItrpipeError, UnavailableError
from itrpipe.progress import Reporter
from tests.engine import toy
from tests.engine.toy import COUNT, Toy, content, eventually, noted
from tests.maps import made

pytest.importorskip("ray")

NOBODY = "127.0.0.1:1"


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What Ray needs on a slow machine, and a home that it may write to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_raylet_start_wait_time_s", "150")
        patch.delenv("RAY_ADDRESS", raising=False)
        yield


@pytest.fixture(scope="module")
def cluster(home: None) -> Iterator[Any]:
    """A cluster of one node with two cores that belongs to somebody else."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def by_ray(cluster: Any) -> Iterator[Callable[..., int]]:
    """Makes the parts of a map there; gives how many rows were made."""
    ray, on_end = load_ray(), signal.getsignal(signal.SIGTERM)
    with connected(ray, cluster.address):
        assert signal.getsignal(signal.SIGTERM) == on_end
        yield (
            lambda work, folder, workers=2: (
                make_parts(
                    work, folder, MapExecution(engine="ray", workers=workers), Reporter(Console(quiet=True)), print
                ).rows
            )
        )
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("options", "code", "value"),
    [
        (("--engine", "ray"), 3, "--engine ray needs the library Ray: pip install 'itrpipe[ray]'"),
        (("--address", "auto"), 2, "--address auto is that of a Ray cluster; add --engine ray"),
        *((("--engine", "ray", "--address", each), 8, each) for each in (NOBODY, "auto", "nonsense", "127.0.0.1:port")),
    ],
)
def test_refusals(
    data_root: Path, invoke: Any, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], code: int, value: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", NOBODY)  # where `auto` looks first
    if code == 3:
        monkeypatch.setitem(sys.modules, "ray", None)
    outcome = invoke("prepare", "--train", 4, "--val", 4, "--test", 4, "--data", data_root, *options)
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert value in outcome.err
    assert code != 8 or outcome.err.startswith(f"error: no Ray cluster answers at --address {value} (")


def test_the_doctor_lists_the_nodes(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    examine(Path("absent"), cluster.address)
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "cluster  " in each]
    assert ": 2 CPU, 0 GPU, " in line
    assert f"; itrpipe {__version__}; DOES NOT SEE {tmp_path / 'absent'}" in line


@pytest.mark.parametrize(("kind", "workers"), [(Toy, 2), (toy.Threaded, 4)])
def test_a_cluster_makes_the_bytes_of_one_process(
    by_ray: Any, tmp_path: Path, notes: Path, whole: dict[str, bytes], kind: type[Toy], workers: int
) -> None:
    """Also where it has no room for all workers: those that never begin hold no parts. Python's print stays."""
    from ray.experimental.tqdm_ray import instance

    before = builtins.print
    instance()  # as when bars of workers are shown
    assert builtins.print is before
    assert by_ray(kind(COUNT, partial(toy.note, notes)), tmp_path / "parts", workers) == 5 * COUNT
    assert content(tmp_path / "parts") == whole
    assert str(os.getpid()) not in {process for process, *_ in noted(notes)}
    assert by_ray(Toy(COUNT), tmp_path / "parts") == 0


@pytest.mark.parametrize(
    ("kind", "spoil", "error", "value"),
    [
        (Toy, partial(toy.fail, "000003", partial(DataError, "image 7 is broken")), DataError, "^image 7 is broken"),
        (toy.Threaded, None, ItrpipeError, r"squaring: 1 part \(000003\) killed a worker 3 times"),
        (toy.Unreadable, None, UnavailableError, r"no worker begins \(.*nobody reads this"),
    ],
)
def test_errors_and_deaths_reach_who_asked(
    by_ray: Any, tmp_path: Path, notes: Path, whole: Any, kind: Any, spoil: Any, error: Any, value: str
) -> None:
    work = kind(COUNT, spoil or partial(toy.die, "000003", notes, False))
    with pytest.raises(error, match=value) as caught:
        by_ray(work, tmp_path / "parts", 1 if kind is toy.Unreadable else 2)
    if kind is Toy:
        assert caught.value.__notes__[0].startswith("in a worker:\nTraceback")
    if kind is toy.Threaded:
        assert content(tmp_path / "parts") == {name: each for name, each in whole.items() if "000003" not in name}


def test_a_node_that_is_lost_costs_only_the_parts_it_had(
    by_ray: Any, cluster: Any, tmp_path: Path, notes: Path
) -> None:
    made(Toy(30), tmp_path / "alone")
    lost, folder = cluster.add_node(num_cpus=2), tmp_path / "parts"

    def lose() -> None:
        eventually(lambda: len(list(folder.glob("*.arrays"))) >= 6, "no part is made")
        cluster.remove_node(lost, allow_graceful=False)

    losing = threading.Thread(target=lose)
    losing.start()
    by_ray(Toy(30, partial(toy.hang_from, "000000", notes, 0.2)), folder, 4)
    losing.join()
    assert content(folder) == content(tmp_path / "alone")


@pytest.mark.slow
def test_an_interrupted_run_ends_its_own_cluster(
    cluster: Any, tmp_path: Path, notes: Path, whole: dict[str, bytes]
) -> None:
    """Though there is another one on this machine."""
    with toy.driver(tmp_path / "parts", notes, 1, Toy, "ray") as process:
        eventually(lambda: (notes / "000003").exists() or process.poll() is not None, "no part is being made")
        os.killpg(process.pid, signal.SIGINT)
        _, printed = process.communicate(timeout=60)
    assert (process.returncode, printed) == (1, "interrupted\n")
    eventually(lambda: toy.gone(int(noted(notes)[0][0])), "a worker lives on")
    kept = ("000000.arrays", "000001.arrays", "000002.arrays", "division.json")
    assert content(tmp_path / "parts") == {name: whole[name] for name in kept}
