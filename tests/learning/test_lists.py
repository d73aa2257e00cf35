"""Mined lists on disk."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from itrpipe.mining.lists import FILES, CandidateLists, HeldRows, ListWriter, MinedList, read_list


def example() -> MinedList:
    rng = np.random.default_rng(0)
    return MinedList(
        np.array([f"image-é-{i}" for i in range(7)]),
        rng.integers(0, 35, (7, 4)).astype(np.int32),
        rng.random((7, 4)).astype(np.float16),
    )


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("at_once", [1, 3, 7])
def test_lists_written_a_few_anchors_at_a_time_are_read_as_one(tmp_path, at_once, guarded):
    whole, probability = example(), np.random.default_rng(1).random((7, 4)).astype(np.float32)
    ids = HeldRows(np.char.encode(whole.anchor_ids, "utf-8"))
    with ListWriter(tmp_path, ids, ids) as writer:
        for start in range(0, 7, at_once):
            part = slice(start, start + at_once)
            given = probability[part] if guarded else None
            writer.write("images_for_texts", part, CandidateLists(whole.candidates[part], whole.scores[part]), given)
    found = read_list(tmp_path, "images_for_texts")
    assert found.anchor_ids.tolist() == whole.anchor_ids.tolist()
    np.testing.assert_array_equal(found.candidates, whole.candidates)
    np.testing.assert_array_equal(found.scores, whole.scores)
    if guarded:
        np.testing.assert_array_equal(found.false_negative_probability, probability.astype(np.float16))
    else:
        assert found.false_negative_probability is None
    file = pq.ParquetFile(tmp_path / FILES["images_for_texts"])
    assert file.num_row_groups == -(-7 // at_once)


def test_rows_beyond_2_31_are_kept(tmp_path):
    rows = np.array([[2**31, 5], [2**32 - 2, -1], [2**31 - 1, 0]])
    scores = np.ones((3, 2), np.float16)
    ids = HeldRows(np.array([b"a", b"b", b"c"]))
    with ListWriter(tmp_path, ids, ids) as writer:
        writer.write("texts_for_images", slice(0, 2), CandidateLists(rows[:2], scores[:2]))
        writer.write("texts_for_images", slice(2, 3), CandidateLists(rows[2:], scores[2:]))
    found = read_list(tmp_path, "texts_for_images").candidates
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, rows)
