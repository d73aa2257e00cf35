"""Kendall's correlations against SciPy's, and against pairs counted one by one."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.evaluation.kendall import kendall


@pytest.mark.parametrize(("count", "levels", "digits"), [(2, 2, 1), (40, 4, 1), (700, 9, 2), (3_000, 60, 6)])
def test_correlations_with_ties_are_those_of_scipy(count: int, levels: int, digits: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(count)
    scores = random.normal(size=count).round(digits)
    answers = random.integers(0, levels, count) + 3 * (scores > 0)
    found = kendall(scores, answers)
    assert found.b == pytest.approx(stats.kendalltau(scores, answers, variant="b").statistic, abs=1e-12)
    assert found.c == pytest.approx(stats.kendalltau(scores, answers, variant="c").statistic, abs=1e-12)


def test_correlations_by_hand() -> None:
    # Of six pairs, one is tied by the scores and one by the answers; three agree and one does not.
    found = kendall(np.array([0.1, 0.2, 0.2, 0.4]), np.array([1, 3, 2, 2]))
    assert found.b == pytest.approx((3 - 1) / 5)
    assert found.c == pytest.approx(2 * (3 - 1) * 3 / (4**2 * 2))
    assert kendall(np.zeros(3), np.arange(3)) == (0, 0)
