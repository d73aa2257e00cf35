"""Packed keys and threshold selection against plain sorting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.mining.top_k import LARGEST_INDEX, NO_CANDIDATE, keep_largest, kth_largest, matrix_of_keys, pack, unpack

floats = st.floats(width=32, allow_nan=False)
indices = st.integers(0, LARGEST_INDEX - 1)


@given(st.tuples(floats, indices), st.tuples(floats, indices))
def test_keys_sort_by_score_then_against_the_index(first, second):
    keys = pack(torch.tensor([first[0], second[0]]), torch.tensor([first[1], second[1]]))
    expected = (first[0], -first[1]) > (second[0], -second[1])
    assert bool(keys[0] > keys[1]) == expected
    assert bool(keys[0] == keys[1]) == (first == second)
    assert int(keys.min()) > NO_CANDIDATE


@given(st.lists(st.tuples(floats, indices), min_size=1, max_size=20))
def test_unpack_returns_what_was_packed(pairs):
    scores, positions = (torch.tensor(column) for column in zip(*pairs, strict=True))
    scores_back, positions_back = unpack(pack(scores, positions))
    assert torch.equal(scores_back, scores)
    assert torch.equal(positions_back, positions)
    assert positions_back.dtype == torch.int64


@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 5),
    columns=st.integers(1, 300),
    levels=st.sampled_from([1, 3, 1000]),
    data=st.data(),
)
def test_selection_equals_a_stable_sort(seed, rows, columns, levels, data):
    k = data.draw(st.integers(1, columns))
    scores = np.random.default_rng(seed).integers(0, levels, (rows, columns)).astype(np.float32)
    np.testing.assert_array_equal(kth_largest(torch.from_numpy(scores), k), np.sort(scores, axis=1)[:, -k])
    kept = keep_largest(pack(torch.from_numpy(scores), torch.arange(columns) + 7), k)
    assert bool((kept[:, :1] == kept.amin(dim=1, keepdim=True)).all())
    best_scores, best = unpack(kept.sort(dim=1, descending=True).values)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(best - 7, expected)
    np.testing.assert_array_equal(best_scores, np.take_along_axis(scores, expected, axis=1))


@pytest.mark.parametrize("score", [float("-inf"), -1.0, 0.0, 2.5, float("inf")])
def test_rows_beyond_32_bits_with_a_sign_keep_their_numbers_and_their_order(score):
    rows = torch.tensor([0, 2**31 - 1, 2**31, 2**31 + 1, 3_000_000_001, LARGEST_INDEX - 1])
    keys = pack(torch.full((len(rows),), score), rows)
    assert keys.tolist() == sorted(keys.tolist(), reverse=True)
    assert int(keys.min()) > NO_CANDIDATE
    scores_back, rows_back = unpack(keys)
    assert rows_back.tolist() == rows.tolist()
    assert (scores_back == score).all()


def test_groups_become_rows_that_end_without_candidates():
    matrix = matrix_of_keys(torch.tensor([5, 6, 7, 8]), torch.tensor([1, 3]))
    assert matrix.tolist() == [[5, NO_CANDIDATE, NO_CANDIDATE], [6, 7, 8]]
