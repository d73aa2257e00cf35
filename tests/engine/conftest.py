"""What a map gives that nothing disturbs."""

from __future__ import annotations

import pytest

from tests.engine.toy import COUNT, Toy, content
from tests.maps import made


@pytest.fixture(scope="package")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process makes: name of a file -> its bytes."""
    folder = tmp_path_factory.mktemp("whole")
    made(Toy(COUNT), folder)
    return content(folder)
