"""The area under the ROC curve against counting every pair."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.evaluation.roc_area import roc_area


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30))
def test_it_is_the_share_of_pairs_in_order_and_ties_count_half(items):
    scores, positive = np.array([score for score, _ in items]), np.array([is_positive for _, is_positive in items])
    pairs = [
        1.0 if one > other else 0.5 if one == other else 0.0
        for one, wanted in items
        if wanted
        for other, unwanted in items
        if not unwanted
    ]
    found = roc_area(scores, positive)
    assert (found is None) == (not pairs)
    if pairs:
        assert found == pytest.approx(np.mean(pairs))
