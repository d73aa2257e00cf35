"""Mined lists as sources of the negatives of a batch.

A training draws some candidates of every anchor of a batch (`MinedCandidates`), asks what judges say of the pairs that
a batch has (`judged_chances`), or lets captions that the lists connect share a batch (`neighbours_order`). Directions
are those of `itrpipe.mining.lists`, which writes and reads the lists.

Shapes: A anchors with lists, K candidates of each, B anchors in a batch, n drawn for each, C candidates of the batch,
N images, T captions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.storage.arrays import Ragged, run_indices

Lists = Mapping[str, np.ndarray]
"""Direction -> rows of candidates [A, K], hardest first, -1 behind the last; under the same names behind
`PROBABILITY_OF` their probabilities to be matches, where mining wrote these."""
TEXTS, IMAGES = "texts_for_images", "images_for_texts"
PROBABILITY_OF = "false_negatives/"
"""Prefix of a direction under which methods find its probabilities."""
_ROUNDS = 40
"""Times that a caption asks for a leader; with groups of eight, one of eight candidates leads."""


def without_likely(lists: Lists, above: float) -> dict[str, np.ndarray]:
    """Return the lists of both directions without candidates that are likely right; those behind them move up.

    Args:
        lists: see `Lists`, with probabilities.
        above: probability above which a candidate is likely right.
    """
    left = {}
    for direction in (TEXTS, IMAGES):
        likely = lists[PROBABILITY_OF + direction].astype(np.float32) > above
        rows = np.where(likely, -1, lists[direction])
        left[direction] = np.take_along_axis(rows, np.argsort(likely, axis=1, kind="stable"), axis=1)
    return left


class MinedCandidates:
    """Draws from the mined lists of one direction, each candidate of an anchor at most once.

    Args:
        lists: see `Lists`.
        direction: a key of `FILES`.
        top: draw among the first so many, or all of a shorter list.
        skip: leave out the first so many of these.

    Raises:
        UsageError: no anchor has a candidate left.
    """

    def __init__(self, lists: Lists, direction: str, top: int, skip: int = 0) -> None:
        self._lists = lists[direction][:, skip:top]
        if not (self._lists >= 0).any():
            raise UsageError(
                f"{direction}: no anchor has a candidate left; loosen what mine-negatives was given, or raise "
                "loss.drop_above"
            )

    def draw(self, anchors: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Rows [B, n] of candidates; -1 where an anchor has fewer.

        Args:
            anchors: [B] rows.
            count: n.
            rng: source of randomness.
        """
        offered = self._lists[anchors]
        order = np.where(offered >= 0, rng.random(offered.shape, dtype=np.float32), np.inf)
        return np.take_along_axis(offered, order.argsort(axis=1)[:, :count], axis=1)


def known_pairs(lists: np.ndarray, values: np.ndarray, candidates: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """The values of those pairs of lists that a batch has.

    Args:
        lists: [B, K] rows of candidates of the anchors of the batch, below 0 where there are none.
        values: [B, K] of these.
        candidates: [C] rows of the candidates of the batch, in any order and also several times.

    Returns:
        Places of anchors and of candidates in the batch, int64 [n], and the values of these pairs, float32 [n].
    """
    rows, inverse = np.unique(candidates, return_inverse=True)
    place = np.searchsorted(rows, lists).clip(max=len(rows) - 1)
    anchors, columns = np.nonzero(rows[place] == lists)
    found = Ragged.of_owners(inverse, len(rows)).take(place[anchors, columns])
    pair = found.owners()
    known = values[anchors, columns].astype(np.float32)
    return torch.from_numpy(anchors[pair]), torch.from_numpy(found.values), torch.from_numpy(known[pair])


def judged_chances(lists: Lists, images: np.ndarray, captions: np.ndarray) -> Tensor:
    """Return the probabilities float32 [I, C] of pairs to be right, 0 where no list of either direction holds them.

    Args:
        lists: see `Lists`, with probabilities.
        images: [I] rows, in any order and also several times.
        captions: [C] rows, likewise.
    """
    chances = torch.zeros(len(images), len(captions))
    anchors, places, values = known_pairs(lists[TEXTS][images], lists[PROBABILITY_OF + TEXTS][images], captions)
    chances[anchors, places] = values
    anchors, places, values = known_pairs(lists[IMAGES][captions], lists[PROBABILITY_OF + IMAGES][captions], images)
    chances[places, anchors] = values
    return chances


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
    images = int(caption_image.max()) + 1
    order = rng.permutation(total)
    in_groups = round(share * total)
    leaders, waiting = np.split(order[:in_groups], [-(-in_groups // group)])
    leader_of = np.arange(total)
    room = np.zeros(total, dtype=np.int64)
    room[leaders] = group - 1
    members = np.sort(leaders * images + caption_image[leaders])  # which groups have a caption of which images
    for _ in range(_ROUNDS):
        places = rng.integers(texts_for_images.shape[1], size=len(waiting))
        asked = texts_for_images[caption_image[waiting], places]
        leading = np.flatnonzero((asked >= 0) & (room[asked] > 0))
        pairs, first = np.unique(asked[leading] * images + caption_image[waiting[leading]], return_index=True)
        new = members[np.searchsorted(members, pairs).clip(max=len(members) - 1)] != pairs
        pairs = pairs[new]
        joining = leading[first[new]]
        # Those who ask one leader stand together, since pairs are sorted by leaders; there is room for the first ones.
        _, counts = np.unique(asked[joining], return_counts=True)
        fits = run_indices(np.zeros_like(counts), counts) < room[asked[joining]]
        joining = joining[fits]
        leader_of[waiting[joining]] = asked[joining]
        np.subtract.at(room, asked[joining], 1)
        members = np.sort(np.concatenate([members, pairs[fits]]))
        waiting = np.delete(waiting, joining)
    return np.argsort(rng.random(total)[leader_of], kind="stable")
