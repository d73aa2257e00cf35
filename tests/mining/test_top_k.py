"""Packed keys and threshold selection against plain sorting."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.mining.top_k import (
    NO_CANDIDATE,
    keys_reaching,
    kth_largest,
    largest_keys,
    most_reaching,
    pack,
    unpack,
)

floats = st.floats(width=32, allow_nan=False)
indices = st.integers(0, 2**31 - 1)


@given(st.tuples(floats, indices), st.tuples(floats, indices))
def test_keys_sort_by_score_then_against_the_index(first, second):
    keys = pack(torch.tensor([first[0], second[0]]), torch.tensor([first[1], second[1]]))
    expected = (first[0], -first[1]) > (second[0], -second[1])
    assert bool(keys[0] > keys[1]) == expected
    assert bool(keys[0] == keys[1]) == (first == second)
    assert int(keys.min()) >= NO_CANDIDATE


@given(st.lists(st.tuples(floats, indices), min_size=1, max_size=20))
def test_unpack_returns_what_was_packed(pairs):
    scores, positions = (torch.tensor(column) for column in zip(*pairs, strict=True))
    scores_back, positions_back = unpack(pack(scores, positions))
    assert torch.equal(scores_back, scores)
    assert torch.equal(positions_back, positions.to(torch.int32))


@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 5),
    columns=st.integers(1, 300),
    levels=st.sampled_from([1, 3, 1000]),
    transposed=st.booleans(),
    data=st.data(),
)
def test_selection_equals_a_stable_sort(seed, rows, columns, levels, transposed, data):
    k = data.draw(st.integers(1, columns))
    scores = np.random.default_rng(seed).integers(0, levels, (rows, columns)).astype(np.float32)
    tensor = torch.from_numpy(scores.T.copy()).T if transposed else torch.from_numpy(scores)
    threshold = kth_largest(tensor, k)
    np.testing.assert_array_equal(threshold, np.sort(scores, axis=1)[:, -k])
    best_scores, best = unpack(largest_keys(keys_reaching(tensor, threshold, first_index=7), k))
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(best - 7, expected)
    np.testing.assert_array_equal(best_scores, np.take_along_axis(scores, expected, axis=1))
    counts = (scores >= threshold.numpy()[:, None]).sum(axis=1)
    assert most_reaching(tensor.T, threshold) == counts.max()


def test_rows_that_reach_less_often_end_without_candidates():
    scores = torch.tensor([[1.0, 2.0, 3.0], [0.0, 5.0, 0.0]])
    keys = keys_reaching(scores, torch.tensor([2.0, 2.0]))
    assert unpack(keys)[1].tolist()[0] == [1, 2]
    assert keys[1].tolist() == [int(pack(torch.tensor([5.0]), torch.tensor([1]))), NO_CANDIDATE]
