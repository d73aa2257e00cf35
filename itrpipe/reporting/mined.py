"""Mined negatives: how hard they are, how many of them are not negatives at all, and what some look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from itrpipe.disk import read_json
from itrpipe.errors import DataError
from itrpipe.negatives.lists import FILES, MinedList, read_list
from itrpipe.reporting.collect import Artifact, mining_name
from itrpipe.reporting.examples import SHOWN, Example, Gallery
from itrpipe.reporting.truth import TrueMatches

TOPS = (1, 10)
"""Depths of the lists at which false negatives are counted."""
SEARCHES = {"texts_for_images": "i2t", "images_for_texts": "t2i"}
QUANTILES = ("minimum", "lower_quartile", "median", "upper_quartile", "maximum")


@dataclass(frozen=True)
class Mining:
    """One mining run.

    Attributes:
        artifact: its lists.
        name: the backbone that mined.
        statistics: of scores, as mining wrote them; None when the lists were removed.
        shares: list -> percent of candidates that are true matches, at each of `TOPS`; None without truth.
    """

    artifact: Artifact
    name: str
    statistics: dict[str, Any] | None = None
    shares: dict[str, list[float]] | None = None


def describe(artifact: Artifact, statistics_file: str, gallery: Gallery | None) -> Mining:
    """Reads the statistics of a mining run and counts its false negatives where the truth is known.

    Args:
        artifact: the lists, possibly removed.
        statistics_file: name of the file with the statistics.
        gallery: of the training split; None when the dataset was removed.
    """
    name = mining_name(artifact)
    if artifact.manifest is None:
        return Mining(artifact, name)
    shares = None
    if gallery is not None and gallery.truth is not None:
        lists = read_lists(artifact, gallery)
        shares = {
            direction: false_negative_shares(mined, direction, gallery.truth) for direction, mined in lists.items()
        }
    return Mining(artifact, name, read_json(artifact.folder / statistics_file), shares)


def read_lists(artifact: Artifact, gallery: Gallery) -> dict[str, MinedList]:
    """Both lists of a mining run.

    Raises:
        DataError: damaged, or of another training set.
    """
    lists = {direction: read_list(artifact.folder, direction) for direction in FILES}
    expected = {"texts_for_images": gallery.split.image_ids, "images_for_texts": gallery.split.caption_ids}
    for direction, mined in lists.items():
        if not np.array_equal(mined.anchor_ids, expected[direction]):
            raise DataError(f"{artifact.folder}: its {direction} are of another training set; mine them again")
    return lists


def false_negative_shares(mined: MinedList, direction: str, truth: TrueMatches) -> list[float]:
    """Percent of the hardest 1 and the hardest 10 candidates that are true matches of their anchors.

    Places behind the end of a list that a filter made shorter hold no candidate and do not count.
    """
    real = mined.candidates[:, : max(TOPS)] >= 0
    candidates = mined.candidates[:, : max(TOPS)].clip(min=0)
    anchors = np.arange(len(candidates))[:, None]
    captions, images = (candidates, anchors) if direction == "texts_for_images" else (anchors, candidates)
    matches = truth.contains(captions, images) & real
    return [100.0 * float(matches[:, :top].sum() / max(1, real[:, :top].sum())) for top in TOPS]


def mined_examples(artifact: Artifact, gallery: Gallery, count: int, seed: int) -> dict[str, list[Example]]:
    """Some anchors of each list with their hardest candidates, chosen by the seed; list -> examples."""
    found = {}
    for number, (direction, mined) in enumerate(read_lists(artifact, gallery).items()):
        generator = np.random.default_rng([seed, 10 + number])
        anchors = generator.permutation(len(mined.anchor_ids))[:count]
        found[direction] = [_example(mined, direction, gallery, int(anchor)) for anchor in anchors]
    return found


def _example(mined: MinedList, direction: str, gallery: Gallery, anchor: int) -> Example:
    search = SEARCHES[direction]
    hardest = zip(mined.candidates[anchor, :SHOWN].tolist(), mined.scores[anchor, :SHOWN].tolist(), strict=True)
    candidates = [
        gallery.candidate(search, anchor, row, score, place + 1)
        for place, (row, score) in enumerate(hardest)
        if row >= 0  # behind the end of a list that a filter made shorter
    ]
    if search == "i2t":
        return Example(gallery.own_text(anchor), gallery.picture(anchor), candidates)
    image = int(gallery.split.caption_image[anchor])
    return Example(gallery.text(anchor), gallery.picture(image), candidates)
