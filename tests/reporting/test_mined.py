"""False negatives among mined candidates, counted where lists differ in length."""

from __future__ import annotations

import numpy as np

from itrpipe.negatives.lists import MinedList
from itrpipe.reporting.mined import false_negative_shares


class LastRowIsTrue:
    """A truth in which the last caption is true of every image, and nothing else is of anything."""

    def contains(self, captions: np.ndarray, images: np.ndarray) -> np.ndarray:
        return np.broadcast_to(captions % 5 == 4, np.broadcast_shapes(captions.shape, images.shape))


def test_places_behind_the_end_of_a_list_do_not_count() -> None:
    """Taken as a row number, -1 would be the last caption."""
    candidates = np.array([[4, 1, -1, -1], [2, -1, -1, -1]], dtype=np.int32)
    mined = MinedList(np.array(["a", "b"]), candidates, np.zeros(candidates.shape, dtype=np.float16))
    shares = false_negative_shares(mined, "texts_for_images", LastRowIsTrue())  # type: ignore[arg-type]
    np.testing.assert_allclose(shares, [50.0, 100 / 3])
