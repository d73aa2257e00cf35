"""Where the artifact lies that these tests make."""

from __future__ import annotations

from pathlib import Path

import pytest

from itrpipe.storage.artifact import Location


@pytest.fixture
def place(data_root: Path) -> Location:
    return Location(data_root, "tiny", "train", "aoq.vsrn", "ab" * 32)
