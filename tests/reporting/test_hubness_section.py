"""Hubness in the report: shares of queries that the items returned most often answer, and when that is a warning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from itrpipe.evaluation.chance import random_recalls
from itrpipe.evaluation.protocols import metrics
from itrpipe.evaluation.ranks import ranks
from itrpipe.reporting.sections.hubness.section import hubs_of


def queries(first: list[int]) -> Any:
    return SimpleNamespace(
        ids=[f"q{row}" for row in range(len(first))], candidates=[[f"{each}", "x"] for each in first]
    )


def run(name: str, images: list[int], captions: list[int]) -> Any:
    rankings = {"i2t": queries(captions), "t2i": queries(images)}
    return SimpleNamespace(name=name, label=name, rankings=rankings)


def test_a_model_that_returns_the_same_for_many_queries_is_warned_of() -> None:
    spread = run("AOQ", images=[row % 40 for row in range(200)], captions=list(range(40)))
    hubs = run("VSE++", images=[row % 12 for row in range(200)], captions=[0] * 40)
    found = hubs_of([spread, hubs])
    shown = {row.name: [cell.text for cell in row.cells] for row in found.table.table.rows}
    assert shown == {"AOQ": ["25.0", "25.0"], "VSE++": ["100.0", "84.0"], "random answers": ["33.8", "39.2"]}
    assert found.warning.startswith(
        "VSE++: 10 captions are the first answer to 100 % of the queries, in random answers to 34 % and 10 images are "
        "the first answer to 84 % of the queries, in random answers to 39 %"
    )
    assert [cell.marked for row in found.table.table.rows for cell in row.cells] == [
        False,
        False,
        True,
        True,
        False,
        False,
    ]
    assert hubs_of([spread]).warning == ""
    other = run("SCAN", images=[row % 12 for row in range(200)], captions=[0] * 40)
    assert hubs_of([spread, hubs, other]).warning.startswith("In 2 runs, 10 captions or 10 images are the first answer")


def test_few_items_are_often_first_in_random_answers_too() -> None:
    rng, images = np.random.default_rng(0), 33
    blind = run("blind", images=rng.integers(images, size=99).tolist(), captions=rng.integers(99, size=33).tolist())
    found = hubs_of([blind])
    shares = [float(cell.text) for cell in found.table.table.rows[0].cells]
    assert (min(shares) > 45, found.warning) == (True, "")
    assert hubs_of([run("stuck", images=[0] * 99, captions=[0] * 33)]).warning


@pytest.mark.parametrize(("images", "own"), [(30, 5), (7, 2), (4, 1)])
def test_random_recalls_are_the_mean_over_random_scores(images: int, own: int) -> None:
    random, owners = np.random.default_rng(0), np.repeat(np.arange(images), own)
    found = [metrics(ranks(random.random((images, images * own)), owners)) for _ in range(400)]
    expected = random_recalls(images, images * own)
    for name, value in expected.items():
        own_values = [each[name] for each in found]
        assert np.mean(own_values) == pytest.approx(value, abs=4.5 * np.std(own_values) / 20 + 1e-9), name
