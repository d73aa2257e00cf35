"""Sets of pairs of an image and a caption, which are asked for many pairs at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PairSet:
    """Some of the pairs of N images and their captions.

    Attributes:
        codes: ascending caption * N + image of each, int64 [P].
        images: N.
    """

    codes: np.ndarray
    images: int

    @classmethod
    def of(cls, captions: np.ndarray, images: np.ndarray, count: int) -> PairSet:
        """Pairs of caption rows [P] and image rows [P] of `count` images."""
        return cls(np.unique(captions.astype(np.int64) * count + images), count)

    @classmethod
    def of_ids(cls, pairs: tuple[np.ndarray, np.ndarray], image_ids: np.ndarray, caption_ids: np.ndarray) -> PairSet:
        """Pairs that are named by ids; those of other images and captions are left out.

        Args:
            pairs: ids of images and of captions, text [P] each.
            image_ids: of all N images.
            caption_ids: of all captions.
        """
        (images, known_image), (captions, known_caption) = (
            _places(named, ids) for named, ids in zip(pairs, (image_ids, caption_ids), strict=True)
        )
        known = known_image & known_caption
        return cls.of(captions[known], images[known], len(image_ids))

    def has(self, captions: np.ndarray, images: np.ndarray) -> np.ndarray:
        """Whether each pair of rows is one of them; bool, of the shape that both broadcast to."""
        if not len(self.codes):
            return np.zeros(np.broadcast_shapes(captions.shape, images.shape), dtype=bool)
        codes = captions.astype(np.int64) * self.images + images
        return self.codes[np.searchsorted(self.codes, codes).clip(max=len(self.codes) - 1)] == codes

    @property
    def caption_rows(self) -> np.ndarray:
        """Of each pair, rising."""
        return self.codes // max(self.images, 1)

    @property
    def image_rows(self) -> np.ndarray:
        """Of each pair."""
        return self.codes % max(self.images, 1)

    def lists(self, captions: int) -> dict[str, np.ndarray]:
        """The pairs by their image and by their caption, -1 behind the last of each.

        Args:
            captions: T.

        Returns:
            `texts_for_images` [N, K] caption rows and `images_for_texts` [T, L] image rows.
        """
        by_image = np.argsort(self.image_rows, kind="stable")
        return {
            "texts_for_images": _padded(self.image_rows[by_image], self.caption_rows[by_image], self.images),
            "images_for_texts": _padded(self.caption_rows, self.image_rows, captions),
        }

    def __len__(self) -> int:
        return len(self.codes)


def _places(named: np.ndarray, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row of each named id, and whether there is such a row."""
    order = np.argsort(ids)
    place = order[np.searchsorted(ids, named, sorter=order).clip(max=len(ids) - 1)]
    return place, ids[place] == named


def _padded(owners: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """The values [n] of each owner as rows [count, K], given with their owners [n], which rise."""
    counts = np.bincount(owners, minlength=count)
    starts = np.cumsum(counts) - counts
    table = np.full((count, int(counts.max(initial=1))), -1, dtype=np.int64)
    table[owners, np.arange(len(owners)) - starts[owners]] = values
    return table
