"""Small finished artifacts for reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.toy import Report, Toy, build


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """One dataset with the truth, the first training and AOQ."""
    return build(tmp_path_factory.mktemp("toy") / "data")


@pytest.fixture(scope="session")
def done(toy: Toy) -> Report:
    """The report over both runs."""
    return toy.report(drawn=True)


@pytest.fixture
def copy(toy: Toy, tmp_path: Path) -> Toy:
    """The same data, to be changed."""
    return toy.copy(tmp_path / "data")


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    """The first training, its baseline of as many epochs and AOQ with three seeds."""
    methods = ("triplet", "triplet-long", "aoq")
    return build(tmp_path_factory.mktemp("seeded") / "data", methods, (0, 1, 2))
