"""Hubness in the report: shares of queries that the items returned most often answer, and when that is a collapse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from itrpipe.reporting.collapse import why_collapsed
from itrpipe.reporting.sections.hubness.section import hubs_of

from itrpipe.evaluation.metrics import random_recalls
from itrpipe.evaluation.metrics import metrics
from itrpipe.evaluation.metrics import ranks


def queries(first: list[int]) -> Any:
    return SimpleNamespace(
        ids=[f"q{row}" for row in range(len(first))], candidates=[[f"{each}", "x"] for each in first]
    )


def run(name: str, images: list[int], captions: list[int]) -> Any:
    rankings = {"i2t": queries(captions), "t2i": queries(images)}
    metrics = {"full": {"rsum": {"value": 500.0, "low": 490.0}}}
    return SimpleNamespace(name=name, label=name, rankings=rankings, size=(len(captions), len(images)), metrics=metrics)


def test_a_model_that_returns_the_same_for_most_queries_has_collapsed() -> None:
    spread = run("AOQ", images=[row % 40 for row in range(200)], captions=list(range(40)))
    hubs = run("VSE++", images=[row % 12 for row in range(200)], captions=[0] * 40)
    found = hubs_of([spread, hubs]).table.rows
    shown = {row.name: [cell.text for cell in row.cells] for row in found}
    assert shown == {"AOQ": ["25.0", "25.0"], "VSE++": ["100.0", "84.0"], "random answers": ["33.8", "39.2"]}
    assert [cell.marked for row in found for cell in row.cells] == [False, False, True, True, False, False]
    assert why_collapsed(spread) == ""
    assert "10 captions are its first answer to 100 % of the queries" in why_collapsed(hubs)


def test_few_items_are_often_first_in_random_answers_too() -> None:
    rng, images = np.random.default_rng(0), 33
    blind = run("blind", images=rng.integers(images, size=99).tolist(), captions=rng.integers(99, size=33).tolist())
    assert min(float(cell.text) for cell in hubs_of([blind]).table.rows[0].cells) > 45
    assert why_collapsed(blind) == ""
    assert why_collapsed(run("stuck", images=[0] * 99, captions=[0] * 33))


@pytest.mark.parametrize(("images", "own"), [(30, 5), (7, 2), (4, 1)])
def test_random_recalls_are_the_mean_over_random_scores(images: int, own: int) -> None:
    random, owners = np.random.default_rng(0), np.repeat(np.arange(images), own)
    found = [metrics(ranks(random.random((images, images * own)), owners)) for _ in range(400)]
    expected = random_recalls(images, images * own)
    for name, value in expected.items():
        own_values = [each[name] for each in found]
        assert np.mean(own_values) == pytest.approx(value, abs=4.5 * np.std(own_values) / 20 + 1e-9), name
