"""Mined lists as sources of the negatives of a batch.

A training draws some candidates of every anchor of a batch (`MinedCandidates`), asks what judges say of the pairs that
a batch has (`judged_chances`), or lets captions that the lists connect share a batch (`neighbours_order`). Directions
are those of `itrpipe.mining.lists`, which writes and reads the lists.

Shapes: A anchors with lists, K candidates of each, B anchors in a batch, n drawn for each, C candidates of the batch,
N images, T captions.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.storage.arrays import Ragged, run_indices

Lists = Mapping[str, np.ndarray]
"""Direction -> rows of candidates [A, K], hardest first, -1 behind the last; under the same names behind
`PROBABILITY_OF` their probabilities to be matches, where mining wrote these."""
TEXTS = "texts_for_images"
IMAGES = "images_for_texts"
PROBABILITY_OF = "false_negatives/"
"""Prefix of a direction under which methods find its probabilities."""


def without_likely(lists: Lists, above: float) -> dict[str, np.ndarray]:
    """Return the lists of both directions without candidates that are likely right; those behind them move up.

    Args:
        lists: see `Lists`, with probabilities.
        above: probability above which a candidate is likely right.
    """
    filtered = {}
    for direction in (TEXTS, IMAGES):
        is_likely = lists[PROBABILITY_OF + direction].astype(np.float32) > above
        rows = np.where(is_likely, -1, lists[direction])
        order = np.argsort(is_likely, axis=1, kind="stable")
        filtered[direction] = np.take_along_axis(rows, order, axis=1)
    return filtered


class MinedCandidates:
    """Draws from the mined lists of one direction, each candidate of an anchor at most once.

    Args:
        lists: see `Lists`.
        direction: `TEXTS` or `IMAGES`.
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
        """Draw candidates, rows [B, n]; -1 where an anchor has fewer.

        Args:
            anchors: [B] rows.
            count: n.
            rng: source of randomness.
        """
        candidates = self._lists[anchors]
        keys = rng.random(candidates.shape, dtype=np.float32)
        keys = np.where(candidates >= 0, keys, np.inf)
        drawn = keys.argsort(axis=1)[:, :count]
        return np.take_along_axis(candidates, drawn, axis=1)


def listed_pairs(lists: np.ndarray, values: np.ndarray, candidates: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Find the pairs of lists that a batch has, and their values.

    Args:
        lists: [B, K] rows of candidates of the anchors of the batch, below 0 where there are none.
        values: [B, K] of these.
        candidates: [C] rows of the candidates of the batch, in any order and also several times.

    Returns:
        Places of anchors and of candidates in the batch, int64 [n], and the values of these pairs, float32 [n].
    """
    rows, number = np.unique(candidates, return_inverse=True)
    size = max(int(rows[-1]), int(lists.max(initial=0))) + 1
    numbers = np.full(size + 1, -1)  # the last one is that of entries below 0
    numbers[rows] = np.arange(len(rows))
    listed = numbers[lists.clip(min=-1)]
    anchors, columns = np.nonzero(listed >= 0)
    listed_values = values[anchors, columns].astype(np.float32)
    # A candidate that the batch has several times makes as many pairs.
    places_of_row = Ragged.of_owners(number, len(rows))
    places = places_of_row.take(listed[anchors, columns])
    entry = places.owners()
    return (
        torch.from_numpy(anchors[entry]),
        torch.from_numpy(places.values),
        torch.from_numpy(listed_values[entry]),
    )


def judged_chances(lists: Lists, images: np.ndarray, captions: np.ndarray) -> Tensor:
    """Return the probabilities float32 [I, C] of pairs to be right, 0 where no list of either direction holds them.

    Args:
        lists: see `Lists`, with probabilities.
        images: [I] rows, in any order and also several times.
        captions: [C] rows, in any order and also several times.
    """
    chances = torch.zeros(len(images), len(captions))
    probabilities = lists[PROBABILITY_OF + TEXTS][images]
    image_places, caption_places, values = listed_pairs(lists[TEXTS][images], probabilities, captions)
    chances[image_places, caption_places] = values
    probabilities = lists[PROBABILITY_OF + IMAGES][captions]
    caption_places, image_places, values = listed_pairs(lists[IMAGES][captions], probabilities, images)
    chances[image_places, caption_places] = values
    return chances


def neighbours_order(
    texts_for_images: np.ndarray,
    caption_image: np.ndarray,
    group: int,
    share: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Order all captions so that neighbours follow each other.

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
    num_captions = len(caption_image)
    num_images = int(caption_image.max()) + 1
    in_groups = round(share * num_captions)
    num_leaders = -(-in_groups // group)
    leaders, waiting = np.split(rng.permutation(num_captions)[:in_groups], [num_leaders])
    leader_of = np.arange(num_captions)
    room = np.zeros(num_captions, dtype=np.int64)
    room[leaders] = group - 1
    # Which groups have a caption of which images: one number for a leader and an image.
    members = np.sort(leaders * num_images + caption_image[leaders])
    # With groups of eight, one of eight candidates leads, so that nearly all captions find a leader in 40 rounds.
    for _ in range(40):
        columns = rng.integers(texts_for_images.shape[1], size=len(waiting))
        neighbours = texts_for_images[caption_image[waiting], columns]
        asking = np.flatnonzero((neighbours >= 0) & (room[neighbours] > 0))

        # Of the captions of an image that ask the same leader the first may join, if the group has none of the image.
        pairs = neighbours[asking] * num_images + caption_image[waiting[asking]]
        pairs, first = np.unique(pairs, return_index=True)
        nearest = np.searchsorted(members, pairs).clip(max=len(members) - 1)
        is_new = members[nearest] != pairs
        pairs = pairs[is_new]
        joining = asking[first[is_new]]

        # Those who ask one leader stand together, since pairs are sorted by leaders; there is room for the first ones.
        _, counts = np.unique(neighbours[joining], return_counts=True)
        place_in_queue = run_indices(np.zeros_like(counts), counts)
        fits = place_in_queue < room[neighbours[joining]]
        joining = joining[fits]
        new_leaders = neighbours[joining]
        leader_of[waiting[joining]] = new_leaders
        np.subtract.at(room, new_leaders, 1)
        members = np.sort(np.concatenate([members, pairs[fits]]))
        waiting = np.delete(waiting, joining)
    group_keys = rng.random(num_captions)
    return np.argsort(group_keys[leader_of], kind="stable")
