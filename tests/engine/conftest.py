"""What a map gives that nothing disturbs, where its workers leave notes, and a home for Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.toy import COUNT, Toy, content
from tests.maps import made


@pytest.fixture(scope="package")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process makes: name of a file -> its bytes."""
    folder = tmp_path_factory.mktemp("whole")
    made(Toy(COUNT), folder)
    return content(folder)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder in which parts that are made leave a note."""
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


@pytest.fixture(scope="package", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What Ray needs on a slow machine, and a home that it may write to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_raylet_start_wait_time_s", "150")
        patch.delenv("RAY_ADDRESS", raising=False)
        yield
