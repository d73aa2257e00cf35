"""The mistakes that `make mutants` tries."""

from __future__ import annotations

import pytest

from tests.mutants.__main__ import ROOT, Mistake, mistakes


@pytest.mark.parametrize("mistake", mistakes(), ids=lambda each: f"{each.area}-{each.file}")
def test_a_mistake_can_still_be_made(mistake: Mistake) -> None:
    """Code that moves leaves its mistakes behind, which a run of many minutes would be the first to tell."""
    assert (ROOT / mistake.file).read_text(encoding="utf-8").count(mistake.old) == 1, mistake.old
    assert all((ROOT / test.partition("::")[0]).exists() for test in mistake.tests), mistake.tests
