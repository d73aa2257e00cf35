"""Lists of different lengths, against loops over Python lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.storage.ragged import Ragged

LISTS = st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=6)


@given(LISTS, st.data())
def test_equals_a_loop_over_lists(lists: list[list[int]], data: st.DataObject) -> None:
    found = Ragged.of_lists(lists)
    assert found.counts.tolist() == [len(each) for each in lists]
    assert [list(each) for each in found] == lists
    assert found.owners().tolist() == [row for row, each in enumerate(lists) for _ in each]
    assert found.places().tolist() == [place for each in lists for place in range(len(each))]
    rows = data.draw(st.lists(st.integers(0, len(lists) - 1), max_size=8)) if lists else []
    taken = found.take(np.array(rows, dtype=np.int64))
    assert [each.tolist() for each in taken] == [lists[row] for row in rows]
    width = data.draw(st.none() | st.integers(0, 6))
    columns = max(map(len, lists), default=0) if width is None else width
    padded = [(each + [-1] * columns)[:columns] for each in lists]
    assert found.padded(width, -1).tolist() == padded


@given(st.lists(st.integers(0, 4), max_size=20))
def test_values_of_owners_are_sorted_into_their_lists(owners: list[int]) -> None:
    values = np.arange(len(owners)) * 10
    found = Ragged.of_owners(np.array(owners, dtype=np.int64), 5, values)
    assert [each.tolist() for each in found] == [
        [value for value, each in zip(values.tolist(), owners, strict=True) if each == owner] for owner in range(5)
    ]
    own = Ragged.of_owners(np.array(owners, dtype=np.int64), 5)
    assert (own.values * 10 == found.values).all()


def test_types_and_further_dimensions_are_kept() -> None:
    table = Ragged.of_counts(np.array([1, 0, 2], dtype=np.int8), np.arange(6, dtype=np.float32).reshape(3, 2))
    assert table.padded().tolist() == [[[0, 1], [0, 0]], [[0, 0], [0, 0]], [[2, 3], [4, 5]]]
    assert table.padded().dtype == np.float32
    assert table.offsets.dtype == np.int64
    assert Ragged.of_counts(np.array([2, 1])).values.tolist() == [0, 1, 2]
    words = Ragged.of_lists([["ab"], [], ["c", "def"]], dtype="<U3")
    assert words.values.dtype == "<U3"
    assert words[-1].tolist() == ["c", "def"]
    assert Ragged.of_lists([]).values.dtype == np.int64
