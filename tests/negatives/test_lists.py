"""Mined lists on disk."""

from __future__ import annotations

import numpy as np
import pytest

from itrpipe.errors import DataError
from itrpipe.negatives.lists import FILES, MinedList, read_list, write_list


def example() -> MinedList:
    rng = np.random.default_rng(0)
    return MinedList(
        np.array([f"image-é-{i}" for i in range(7)]),
        rng.integers(0, 35, (7, 4)).astype(np.int32),
        rng.random((7, 4)).astype(np.float16),
    )


@pytest.mark.parametrize("direction", list(FILES))
def test_round_trip_keeps_ids_rows_and_scores(tmp_path, direction):
    write_list(tmp_path, direction, example())
    found = read_list(tmp_path, direction)
    assert found.anchor_ids.tolist() == example().anchor_ids.tolist()
    np.testing.assert_array_equal(found.candidates, example().candidates)
    np.testing.assert_array_equal(found.scores, example().scores)
    assert found.candidates.dtype == np.int32
    assert found.scores.dtype == np.float16


def test_a_truncated_file_is_one_line_with_the_remedy(tmp_path):
    write_list(tmp_path, "texts_for_images", example())
    path = tmp_path / FILES["texts_for_images"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="run `itrpipe mine-negatives` again") as error:
        read_list(tmp_path, "texts_for_images")
    assert "\n" not in str(error.value)
