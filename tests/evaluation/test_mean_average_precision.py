"""mAP@R and R-Precision against their definitions, item by item, and their rule for ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.evaluation import mean_average_precision
from itrpipe.evaluation.precision import precision_of_matches


def by_definition(scores: np.ndarray, relevant: np.ndarray) -> tuple[list[float], list[float]]:
    average, r_precision = [], []
    for row, truth in zip(scores, relevant, strict=True):
        ranking = sorted(range(len(row)), key=lambda column: (-row[column], truth[column]))
        total = int(truth.sum())
        hits = [bool(truth[column]) for column in ranking[:total]]
        average.append(sum(sum(hits[: i + 1]) / (i + 1) for i, hit in enumerate(hits) if hit) / total)
        r_precision.append(sum(hits) / total)
    return average, r_precision


@given(st.integers(0, 2**32 - 1), st.integers(1, 7), st.integers(2, 12), st.sampled_from([3, 1000]))
def test_both_are_what_their_definitions_say(seed: int, queries: int, candidates: int, levels: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, (queries, candidates)).astype(np.float32)
    relevant = rng.random((queries, candidates)) < 0.4
    relevant[np.arange(queries), rng.integers(0, candidates, queries)] = True
    found = precision_of_matches(scores, *np.nonzero(relevant))
    average, r_precision = by_definition(scores, relevant)
    np.testing.assert_allclose(found.average, average, atol=1e-12)
    np.testing.assert_allclose(found.r_precision, r_precision, atol=1e-12)


def test_blocks_and_the_order_of_matches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    scores, relevant = rng.random((9, 20)), rng.random((9, 20)) < 0.3
    relevant[:, 0] = True
    matches = np.stack(np.nonzero(relevant))
    whole = precision_of_matches(scores, *matches)
    monkeypatch.setattr(mean_average_precision, "_BLOCK_VALUES", 40)
    parts = precision_of_matches(scores, *matches[:, rng.permutation(matches.shape[1])])
    np.testing.assert_array_equal(parts.average, whole.average)
    np.testing.assert_array_equal(parts.r_precision, whole.r_precision)


def test_a_model_that_scores_everything_alike_gathers_nothing() -> None:
    found = precision_of_matches(np.zeros((1, 10)), np.array([0, 0]), np.array([3, 7]))
    assert found.average.tolist() == found.r_precision.tolist() == [0.0]


def test_a_query_without_a_match_is_refused() -> None:
    with pytest.raises(DataError, match="1 of 2 queries have no correct match"):
        precision_of_matches(np.zeros((2, 3)), np.array([0]), np.array([1]))
