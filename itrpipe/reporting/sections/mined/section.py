"""Mined negatives: how hard they are, how many of them are not negatives at all, and what some look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from itrpipe.errors import DataError
from itrpipe.learning.mined import FILES, read_list
from itrpipe.mining.statistics import POSITIVE_LIMITS, beaten_percent
from itrpipe.reporting.chain import Artifact
from itrpipe.reporting.collect import mining_name, minings
from itrpipe.reporting.examples import SHOWN, Example, Gallery
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.truth import TrueMatches
from itrpipe.storage.artifact import STATISTICS
from itrpipe.storage.integrity import read_checked_json

TITLE, ORDER = "Mined negatives", 90
READS = (STATISTICS,)
MINED_SPLIT = "train"
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
        shares: list -> percent of candidates that are correct matches, at each of `TOPS`; None without truth.
    """

    artifact: Artifact
    name: str
    statistics: dict[str, Any] | None = None
    shares: dict[str, list[float]] | None = None

    def beaten(self, direction: str) -> float | None:
        """Percent of the pairs whose hardest candidate scores at least as high; None where a margin cut those."""
        return None if self.statistics is None else beaten_percent(self.statistics, direction)

    @property
    def is_cut(self) -> bool:
        """Whether a margin cut candidates by the score of the positive."""
        return self.statistics is not None and any(
            limit in reasons for reasons in self.statistics["dropped"].values() for limit in POSITIVE_LIMITS
        )


@dataclass(frozen=True)
class Mined:
    """Mined negatives.

    Attributes:
        minings: every mining run behind the evaluated runs.
        shown: the one whose examples are shown; None when no lists or no captions are there.
        examples: of `shown`, by list.
    """

    minings: list[Mining]
    shown: Mining | None
    examples: dict[str, list[Example]]


def view(source: Source) -> Mined:
    """Every mining behind the runs, and examples of the first whose lists and captions are there."""
    described, shown, examples = [], None, {}
    for artifact, run in minings(source.runs):
        gallery = source.gallery(run, MINED_SPLIT)
        described.append(describe(artifact, mining_name(artifact, run.names), gallery))
        if shown is None and gallery is not None and artifact.manifest is not None:
            shown = described[-1]
            examples = mined_examples(artifact, gallery, source.options.examples, source.options.seed)
    return Mined(described, shown, examples)


def describe(artifact: Artifact, name: str, gallery: Gallery | None) -> Mining:
    """Reads the statistics of a mining run and counts its false negatives where the truth is known.

    Args:
        artifact: the lists, possibly removed.
        name: of the model that mined.
        gallery: of the training split; None when the dataset was removed.
    """
    if artifact.manifest is None:
        return Mining(artifact, name)
    shares = None
    if gallery is not None and gallery.truth is not None:
        lists = read_lists(artifact, gallery)
        shares = {
            direction: false_negative_shares(mined, direction, gallery.truth) for direction, mined in lists.items()
        }
    return Mining(artifact, name, read_checked_json(artifact.folder / STATISTICS), shares)


@dataclass(frozen=True)
class ShownList:
    """One direction of a mining run in rows of the gallery, which holds images that mining may have done without.

    Attributes:
        anchors: [A] gallery rows of images or captions.
        candidates: [A, K] gallery rows of the other kind, hardest first, -1 behind the end of a shorter list.
        scores: [A, K].
        false_negative: [A, K] estimated probability, 0..1, of each to be a correct match; None where unknown.
    """

    anchors: np.ndarray
    candidates: np.ndarray
    scores: np.ndarray
    false_negative: np.ndarray | None = None


def read_lists(artifact: Artifact, gallery: Gallery) -> dict[str, ShownList]:
    """Both lists of a mining run.

    A list names its candidates by rows of what the mining model was trained on, which is the split without the
    images that have no features, so rows are translated by ids.

    Raises:
        DataError: damaged, or of images or captions that the split does not have.
    """
    lists = {direction: read_list(artifact.folder, direction) for direction in FILES}
    known = {"texts_for_images": gallery.image_row, "images_for_texts": gallery.caption_row}
    rows = {
        direction: _rows(mined.anchor_ids, known[direction], f"{artifact.folder}: {direction}", gallery.split.name)
        for direction, mined in lists.items()
    }
    other = {"texts_for_images": "images_for_texts", "images_for_texts": "texts_for_images"}
    return {
        direction: ShownList(
            rows[direction],
            # Taken as a row number, -1 would be the last candidate.
            np.where(mined.candidates >= 0, rows[other[direction]][mined.candidates], -1),
            mined.scores,
            mined.false_negative_probability,
        )
        for direction, mined in lists.items()
    }


def _rows(ids: np.ndarray, known: Mapping[str, int], where: str, split: str) -> np.ndarray:
    unknown = [each for each in ids.tolist() if each not in known]
    if unknown:
        raise DataError(
            f"{where} holds {len(unknown):,} anchors that the {split} split does not have ({unknown[0]}); mine again"
        )
    return np.array([known[each] for each in ids.tolist()], dtype=np.int64)


def false_negative_shares(mined: ShownList, direction: str, truth: TrueMatches) -> list[float]:
    """Percent of the hardest 1 and the hardest 10 candidates that are correct matches of their anchors.

    Places behind the end of a list that a filter made shorter hold no candidate and do not count.
    """
    real = mined.candidates[:, : max(TOPS)] >= 0
    candidates = mined.candidates[:, : max(TOPS)].clip(min=0)
    anchors = mined.anchors[:, None]
    captions, images = (candidates, anchors) if direction == "texts_for_images" else (anchors, candidates)
    matches = truth.contains(captions, images) & real
    return [100.0 * float(matches[:, :top].sum() / max(1, real[:, :top].sum())) for top in TOPS]


def mined_examples(artifact: Artifact, gallery: Gallery, count: int, seed: int) -> dict[str, list[Example]]:
    """Some anchors of each list with their hardest candidates, chosen by the seed; list -> examples."""
    found = {}
    for number, (direction, mined) in enumerate(read_lists(artifact, gallery).items()):
        generator = np.random.default_rng([seed, 10 + number])
        places = generator.permutation(len(mined.anchors))[:count]
        found[direction] = [_example(mined, direction, gallery, int(place)) for place in places]
    return found


def _example(mined: ShownList, direction: str, gallery: Gallery, anchor_place: int) -> Example:
    search, anchor = SEARCHES[direction], int(mined.anchors[anchor_place])
    rows, scores = (each[anchor_place, :SHOWN].tolist() for each in (mined.candidates, mined.scores))
    estimated = mined.false_negative
    chances = [None] * len(rows) if estimated is None else estimated[anchor_place, :SHOWN].tolist()
    candidates = [
        gallery.candidate(search, anchor, row, score, place + 1, chance)
        for place, (row, score, chance) in enumerate(zip(rows, scores, chances, strict=True))
        if row >= 0  # behind the end of a list that a filter made shorter
    ]
    if search == "i2t":
        return Example(gallery.own_text(anchor), gallery.picture(anchor), candidates)
    image = int(gallery.split.caption_image[anchor])
    return Example(gallery.text(anchor), gallery.picture(image), candidates)
