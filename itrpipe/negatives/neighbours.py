"""An epoch in which captions that mined lists connect share a batch, so that hard negatives need no further encoding.

Shapes: T captions, N images, K candidates of an image.
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 40
"""How often a caption asks for a leader; with groups of eight, one of eight candidates leads."""


def neighbours_order(
    texts_for_images: np.ndarray, caption_image: np.ndarray, group: int, share: float, rng: np.random.Generator
) -> np.ndarray:
    """Every caption once, neighbours behind each other.

    Some captions, drawn at random, lead a group. Others join the group of a leader that is in the list of their image,
    while it has room; a group has no two captions of one image. Groups, and captions without one, come in random order.
    Nothing loops over captions.

    Args:
        texts_for_images: [N, K] caption rows, hard negatives of each image; below 0 where there are none.
        caption_image: [T] row of the image of each caption.
        group: captions of a group, at most.
        share: of the captions that may be in one, 0..1; the others stay alone.
        rng: source of randomness.

    Returns:
        int64 [T], caption rows.
    """
    total = len(caption_image)
    order = rng.permutation(total)
    in_groups = round(share * total)
    leaders, waiting = np.split(order[:in_groups], [-(-in_groups // group)])
    groups = _Groups(leaders, caption_image, group)
    for _ in range(_ROUNDS):
        images = caption_image[waiting]
        asked = texts_for_images[images, rng.integers(texts_for_images.shape[1], size=len(waiting))]
        waiting = groups.joined(waiting, asked)
    return np.argsort(rng.random(total)[groups.leader_of], kind="stable")


class _Groups:
    """Captions with the leaders of their groups.

    Attributes:
        leader_of: [T], of a caption in no group itself.
    """

    def __init__(self, leaders: np.ndarray, caption_image: np.ndarray, group: int) -> None:
        self.leader_of = np.arange(len(caption_image))
        self._image, self._images = caption_image, int(caption_image.max()) + 1
        self._room = np.zeros(len(caption_image), dtype=np.int64)
        self._room[leaders] = group - 1
        self._members = np.sort(leaders * self._images + caption_image[leaders])

    def joined(self, captions: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """Lets captions [n] join the groups of the captions that they ask [n]; returns those that did not."""
        leading = np.flatnonzero((asked >= 0) & (self._room[asked] > 0))
        pairs = asked[leading] * self._images + self._image[captions[leading]]
        pairs, first = np.unique(pairs, return_index=True)
        place = np.searchsorted(self._members, pairs).clip(max=len(self._members) - 1)
        new = self._members[place] != pairs
        pairs, joining = pairs[new], leading[first[new]]
        leaders = asked[joining]  # together, since pairs are sorted by them
        starts = np.flatnonzero(np.diff(leaders, prepend=-1))
        rank = np.arange(len(leaders)) - np.repeat(starts, np.diff(starts, append=len(leaders)))
        fits = rank < self._room[leaders]
        joining, leaders = joining[fits], leaders[fits]
        self.leader_of[captions[joining]] = leaders
        np.subtract.at(self._room, leaders, 1)
        self._members = np.sort(np.concatenate([self._members, pairs[fits]]))
        return np.delete(captions, joining)
