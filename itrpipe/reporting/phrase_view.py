"""What the words are worth: captions whose words and phrases are coloured by their scores with two images.

Source: SSAMT (Fan et al., 2021), case study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from itrpipe.errors import DataError
from itrpipe.reporting.collect import Run
from itrpipe.reporting.thumbnails import Picture

TONES = 9
"""Steps of the colour scale, an odd number: the middle one has no colour."""
MOST_RUNS = 2
KINDS = {"object": "objects", "attribute": "attributes", "relation": "relations"}
_WORD = "word"
_SHOWN_METHODS = ("ssamt", "ssamt-local")
"""The method and its ablation without the loss that the view is about, where there is a choice of runs."""
_LOW, _HIGH = 5.0, 95.0
"""Percentiles of the shown scores at which colours are full."""


@dataclass(frozen=True)
class Scale:
    """The colours of one run.

    Attributes:
        name: of the run.
        low, high: scores at which colours are full.
    """

    name: str
    low: float
    high: float

    @classmethod
    def of(cls, name: str, scores: Sequence[float]) -> Scale:
        """From the 5th to the 95th percentile of all scores that are shown."""
        low, high = np.percentile(scores, [_LOW, _HIGH])
        return cls(name, float(low), float(high))

    @property
    def middle(self) -> float:
        """The score without colour."""
        return (self.low + self.high) / 2

    def tone(self, score: float) -> int:
        """Step of the colour scale, 0 (low) to `TONES` - 1 (high); the middle when all scores are equal."""
        if self.low == self.high:
            return TONES // 2
        return round((TONES - 1) * min(1.0, max(0.0, (score - self.low) / (self.high - self.low))))


@dataclass(frozen=True)
class Fragment:
    """A word or a phrase under one image.

    Attributes:
        text: as the caption writes it; parts that do not follow each other are joined by an ellipsis.
        score: cosine with the image.
        tone: step of the colour scale.
        holds: whether the image's own captions say it.
    """

    text: str
    score: float
    tone: int
    holds: bool


@dataclass(frozen=True)
class Reading:
    """A caption as one run reads it beside one image.

    Attributes:
        run: name.
        score: of the pair.
        caption: words, and as plain text what stands between them.
        phrases: heading -> phrases of that kind; kinds without phrases are left out.
    """

    run: str
    score: float
    caption: list[Fragment | str]
    phrases: dict[str, list[Fragment]]


@dataclass(frozen=True)
class Pair:
    """A caption with one image, as the runs that scored this pair read it."""

    picture: Picture
    matched: bool
    readings: list[Reading]


@dataclass(frozen=True)
class ReadCaption:
    """A caption with its own image, then with wrong ones: one, or several where the runs had different ones."""

    text: str
    pairs: list[Pair]


@dataclass(frozen=True)
class PhraseView:
    """The view.

    Attributes:
        run: the first shown.
        scales: one for each run.
        captions: shown.
    """

    run: Run
    scales: list[Scale]
    captions: list[ReadCaption]


Rows = list[dict[str, Any]]


def phrase_view(runs: Sequence[Run], count: int, picture_of: Callable[[Run, str], Picture]) -> PhraseView | None:
    """Shows captions that evaluations wrote with the scores of their words and phrases.

    Args:
        runs: all runs; of those whose evaluation wrote such scores at most two are shown, of different methods.
        count: captions at most, first those that all shown runs scored.
        picture_of: makes the picture of an image of a run's dataset.

    Returns:
        None when there is nothing to show.

    Raises:
        DataError: an evaluation's words do not lie in their caption one after the other.
    """
    scored = {run.label: (run, _by_caption(run.fragments or [])) for run in chosen_runs(runs)}
    wanted: dict[str, int] = {}
    for _, captions in scored.values():
        for caption in captions:
            wanted[caption] = wanted.get(caption, 0) + 1
    shown = sorted(wanted, key=lambda caption: -wanted[caption])[:count]
    scales, pairs = [], {caption: {} for caption in shown}
    for run, captions in scored.values():
        found = {caption: captions[caption] for caption in shown if caption in captions}
        scores = [row["score"] for images in found.values() for rows in images.values() for row in rows]
        if scores:
            scales.append(Scale.of(run.name, scores))
        for caption, images in found.items():
            for image, rows in images.items():
                if image not in pairs[caption]:
                    pairs[caption][image] = Pair(picture_of(run, image), rows[0]["matched"], [])
                pairs[caption][image].readings.append(_reading(run, rows, scales[-1]))
    if not scales:
        return None
    return PhraseView(next(iter(scored.values()))[0], scales, [_caption(found, scored) for found in pairs.items()])
