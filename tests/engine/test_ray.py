"""Parts made on a Ray cluster: the bytes of one process, whichever nodes die on the way."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from itrpipe import __version__
from itrpipe.cli.doctor import Doctor
from itrpipe.engine.ray import connected, load_ray
from itrpipe.engine.work import Made
from itrpipe.errors import DataError, UnavailableError
from tests.engine import toy
from tests.engine.toy import COUNT, Toy, content, eventually
from tests.maps import made

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of one node with two cores that belongs to somebody else."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def by_ray(cluster: Any) -> Iterator[Callable[..., Made]]:
    """Makes the parts of a map there."""
    ray, on_end = load_ray(), signal.getsignal(signal.SIGTERM)
    with connected(ray, cluster.address):
        assert signal.getsignal(signal.SIGTERM) == on_end
        yield partial(made, engine="ray")
    assert not ray.is_initialized()


def test_the_doctor_lists_the_nodes(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Doctor(Path("absent"), cluster.address).run()
    lines = [each for each in capsys.readouterr().out.splitlines() if "cluster  " in each]
    own = f"; itrpipe {__version__}; DOES NOT SEE {tmp_path / 'absent'}"
    assert any(": 2 CPU, 0 GPU; " in each and own in each for each in lines)


@pytest.mark.parametrize(("kind", "workers"), [(Toy, 2), (Toy, 0), (toy.Threaded, 4)])
def test_a_cluster_makes_the_bytes_of_one_process(
    by_ray: Any, tmp_path: Path, whole: dict[str, bytes], kind: type[Toy], workers: int
) -> None:
    """Also where it has no room for all workers: those that never begin hold no parts. Python's print stays."""
    from ray.experimental.tqdm_ray import instance

    instance()  # as when bars of workers are shown
    assert print.__module__ == "builtins"
    assert by_ray(kind(COUNT), tmp_path / "parts", workers).rows == 5 * COUNT
    assert content(tmp_path / "parts") == whole


@pytest.mark.parametrize(
    ("kind", "error", "value"),
    [
        (Toy, DataError, "^image 7 is broken"),
        (toy.Unreadable, UnavailableError, r"no worker begins \(.*nobody reads this"),
    ],
)
def test_errors_reach_who_asked(by_ray: Any, tmp_path: Path, kind: Any, error: type[Exception], value: str) -> None:
    with pytest.raises(error, match=value):
        by_ray(kind(COUNT, partial(toy.fail, "000003", partial(DataError, "image 7 is broken"))), tmp_path / "parts")


def test_a_node_that_is_lost_costs_only_the_parts_it_had(
    by_ray: Any, cluster: Any, tmp_path: Path, notes: Path
) -> None:
    made(Toy(30), tmp_path / "alone")
    lost, folder = cluster.add_node(num_cpus=2), tmp_path / "parts"

    def lose() -> None:
        eventually(lambda: len(list(folder.glob("*.arrays"))) >= 6, "no part is made")
        cluster.remove_node(lost, allow_graceful=False)

    with ThreadPoolExecutor(1) as losing:
        losing.submit(lose)
        by_ray(Toy(30, partial(toy.hang_from, "000000", notes, 0.2)), folder, 4)
    assert content(folder) == content(tmp_path / "alone")
