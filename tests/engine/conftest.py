"""What a map gives that nothing disturbs, and where its workers leave notes."""

from __future__ import annotations

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
