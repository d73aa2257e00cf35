"""What the words are worth: captions whose words and phrases are coloured by their scores with two images.

Source: SSAMT (Fan et al., ICMR 2022), case study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from itrpipe.errors import DataError
from itrpipe.reporting.collect import Run, of_different_methods
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.thumbnails import Picture
from itrpipe.storage.artifact import PHRASES

TITLE, ORDER = "Words", 110
READS = (PHRASES,)
TONES = 9
"""Steps of the colour scale, an odd number: the middle one has no colour."""
MOST_RUNS = 2
KINDS = {"object": "objects", "attribute": "attributes", "relation": "relations"}
_WORD = "word"
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
        text: its words as the caption writes them.
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


Shown = TypeVar("Shown")
Rows = list[dict[str, Any]]
"""Words and phrases of one caption with one image, as `evaluate` wrote them."""


@dataclass(frozen=True)
class _Scored:
    """The captions of one run: caption id -> image id -> rows."""

    run: Run
    captions: dict[str, dict[str, Rows]]

    @classmethod
    def read(cls, run: Run) -> _Scored:
        examples: dict[tuple[str, int], dict[str, Rows]] = {}
        for row in run.rows(PHRASES):
            if row["kind"] == _WORD and not any(map(str.isalnum, _said(row))):
                continue  # parsers count punctuation marks as words; what one scores would only distract
            images = examples.setdefault((row["caption_id"], row["example"]), {})
            images.setdefault(row["image_id"], []).append(row)
        captions: dict[str, dict[str, Rows]] = {}
        for (caption, _), images in examples.items():
            captions.setdefault(caption, images)  # a caption that is two examples is shown once
        return cls(run, captions)

    def only(self, captions: Iterable[str]) -> _Scored:
        return _Scored(self.run, {each: self.captions[each] for each in captions if each in self.captions})

    def scale(self) -> Scale:
        pairs = [rows for images in self.captions.values() for rows in images.values()]
        return Scale.of(self.run.name, [row["score"] for rows in pairs for row in rows])


def view(source: Source) -> PhraseView | None:
    """Shows the first group with a run that scored words."""
    return source.first_view(phrase_view)


def phrase_view(runs: Sequence[Run], count: int, picture_of: Callable[[Run, str], Picture]) -> PhraseView | None:
    """Shows captions that evaluations wrote with the scores of their words and phrases.

    Args:
        runs: on one test set; of those whose evaluation wrote such scores at most two are shown.
        count: captions at most, first those that all shown runs scored.
        picture_of: makes the picture of an image of a run's dataset.

    Returns:
        None when there is nothing to show.

    Raises:
        DataError: an evaluation's words do not lie in their caption one after the other.
    """
    scored = [_Scored.read(run) for run in of_different_methods((run for run in runs if run.rows(PHRASES)), MOST_RUNS)]
    everywhere = [caption for each in scored for caption in each.captions]
    shown = sorted(dict.fromkeys(everywhere), key=lambda caption: -everywhere.count(caption))[:count]
    scored = [found for each in scored if (found := each.only(shown)).captions]
    if not scored:
        return None
    scales = [each.scale() for each in scored]
    captions = [_caption(caption, scored, scales, picture_of) for caption in shown]
    return PhraseView(scored[0].run, scales, captions)


def pieces(text: str, words: Sequence[tuple[int, int, Shown]]) -> list[Shown | str]:
    """A caption cut into its words and the text between them, in the order of the caption.

    Args:
        text: of the caption.
        words: first character, one past the last, and what is shown there.

    Raises:
        ValueError: words overlap or lie outside the text.
    """
    found: list[Shown | str] = []
    done = 0
    for start, end, word in sorted(words, key=lambda each: each[:2]):
        if not done <= start < end <= len(text):
            raise ValueError(f"characters {start} to {end} follow {done} of {len(text)}")
        found += [text[done:start], word] if start > done else [word]
        done = end
    return [*found, text[done:]] if done < len(text) else found


def _caption(
    caption: str, scored: Sequence[_Scored], scales: Sequence[Scale], picture_of: Callable[[Run, str], Picture]
) -> ReadCaption:
    pairs: dict[str, Pair] = {}
    text = ""
    for each, scale in zip(scored, scales, strict=True):
        for image, rows in each.captions.get(caption, {}).items():
            text = rows[0]["text"]
            if image not in pairs:
                pairs[image] = Pair(picture_of(each.run, image), rows[0]["matched"], [])
            pairs[image].readings.append(_reading(each.run, rows, scale))
    return ReadCaption(text, sorted(pairs.values(), key=lambda pair: not pair.matched))


def _reading(run: Run, rows: Rows, scale: Scale) -> Reading:
    words = [(row["starts"][0], row["ends"][-1], _fragment(row, scale)) for row in rows if row["kind"] == _WORD]
    phrases = {title: [_fragment(row, scale) for row in rows if row["kind"] == kind] for kind, title in KINDS.items()}
    try:
        caption = pieces(rows[0]["text"], words)
    except ValueError as error:
        where = f"{run.evaluation.folder / PHRASES}: words of caption {rows[0]['caption_id']}"
        raise DataError(f"{where} do not lie in it one after the other ({error}); evaluate again") from None
    return Reading(run.name, rows[0]["pair_score"], caption, {title: each for title, each in phrases.items() if each})


def _fragment(row: dict[str, Any], scale: Scale) -> Fragment:
    return Fragment(_said(row), row["score"], scale.tone(row["score"]), row["holds"])


def _said(row: dict[str, Any]) -> str:
    """Its words; between neighbours stands what the caption has there, which can be nothing or a hyphen."""
    said, previous = "", None
    for token, start, end in sorted(zip(row["tokens"], row["starts"], row["ends"], strict=True)):
        between = row["text"][previous[1] : start] if previous and token == previous[0] + 1 else " "
        said += f"{between if previous else ''}{row['text'][start:end]}"
        previous = (token, end)
    return said
