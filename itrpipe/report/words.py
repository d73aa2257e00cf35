"""Captions and sentences whose words are coloured: by their score with an image, or by how probably they are wrong.

Sources: SSAMT (Fan et al., ICMR 2022), case study; TAGS-DC (Fan et al., Findings of NAACL 2022), Fig. 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from itrpipe.errors import DataError
from itrpipe.report.pictures import Picture
from itrpipe.report.runs import Run, of_different_methods
from itrpipe.storage.artifact import PHRASES, WORD_CORRECTIONS

TONES = 9
"""Steps of the colour scale, an odd number: the middle one has no colour."""
MIDDLE = TONES // 2
_MOST_RUNS = 2
_KINDS = {"object": "objects", "attribute": "attributes", "relation": "relations"}
_WORD = "word"
_ENDS = (5.0, 95.0)
"""Percentiles of the shown scores at which colours are full."""
Shown = TypeVar("Shown")
PictureOf = Callable[[Run, str], Picture]
"""Makes the picture of an image of a run's dataset."""


@dataclass(frozen=True)
class Coloured:
    """A word or a phrase.

    Attributes:
        text: as it stands there.
        tone: step of the colour scale.
        value: behind the colour; None where there is none.
        unsaid: not said of this image, or not the caption's: dotted below.
        numbered: its value stands behind it.
        bold: it was replaced.
        was: the words that it stands for, struck before it.
    """

    text: str
    tone: int = MIDDLE
    value: float | None = None
    unsaid: bool = False
    numbered: bool = False
    bold: bool = False
    was: str = ""


Parts = list["Coloured | str"]
"""Words, and as plain text what stands between them."""


@dataclass(frozen=True)
class Line:
    """A line beside a picture: what it is, its words, and the score of the pair, or None."""

    label: str
    parts: Parts
    score: float | None = None


@dataclass(frozen=True)
class Seen:
    """An image with the lines beside it; `matched` says whether it is the caption's own, or None to say nothing."""

    picture: Picture
    matched: bool | None
    lines: list[Line]


@dataclass(frozen=True)
class ColouredWords:
    """Captions with coloured words.

    Attributes:
        title: above them.
        note: below the title.
        ends: what the ends of the colour scale mean, the pale one and the full one.
        tones: steps of the scale that are used, in their order.
        captions: each with its images.
    """

    title: str
    note: str
    ends: tuple[str, str]
    tones: Sequence[int]
    captions: list[list[Seen]]


def scored_words(runs: Sequence[Run], count: int, picture_of: PictureOf) -> ColouredWords | None:
    """Captions that evaluations wrote with the scores of their words and phrases, under own and wrong images.

    Args:
        runs: on one test set; of those whose evaluation wrote such scores at most two are shown.
        count: captions at most, first those that all shown runs scored.
        picture_of: see `PictureOf`.

    Returns:
        None when there is nothing to show.

    Raises:
        DataError: an evaluation's words do not lie in their caption one after the other.
    """
    shown = of_different_methods((run for run in runs if run.rows(PHRASES)), _MOST_RUNS)
    scored = {run.name: _by_caption(run) for run in shown}
    everywhere = [caption for own in scored.values() for caption in own]
    chosen = sorted(dict.fromkeys(everywhere), key=lambda caption: -everywhere.count(caption))[:count]
    if not chosen:
        return None
    seen: dict[str, dict[str, Seen]] = {caption: {} for caption in chosen}
    for run in shown:
        own = {caption: scored[run.name][caption] for caption in chosen if caption in scored[run.name]}
        rows = [row for images in own.values() for each in images.values() for row in each]
        low, high = np.percentile([row["score"] for row in rows], _ENDS) if rows else (0.0, 0.0)
        for caption, images in own.items():
            for image, words in images.items():
                pair = seen[caption].setdefault(image, Seen(picture_of(run, image), words[0]["matched"], []))
                pair.lines.extend(_lines(run, words, low, high))
    captions = [sorted(images.values(), key=lambda each: not each.matched) for images in seen.values()]
    return ColouredWords(
        "What the words are worth",
        "The colour of a word or phrase is its score with the image, the cosine of the two, full at the 5th and 95th "
        "percentile of a model's scores shown here; ranges differ between models. Dotted: none of the image's own "
        "captions says it.",
        ("low", "high"),
        range(TONES),
        captions,
    )


def wrong_words(runs: Sequence[Run], count: int, picture_of: PictureOf) -> ColouredWords | None:
    """Sentences that a model wrote, with the words that it finds wrong, and what it makes of them.

    Args:
        runs: on one test set; the first that wrote such sentences is shown.
        count: sentences at most.
        picture_of: see `PictureOf`.

    Returns:
        None when no run judged words.

    Raises:
        DataError: an evaluation's words do not lie in their sentence one after the other.
    """
    shown = of_different_methods((run for run in runs if run.rows(WORD_CORRECTIONS)), 1)
    if not shown:
        return None
    (run,) = shown
    captions = [[_judged(run, row, picture_of)] for row in run.rows(WORD_CORRECTIONS)[:count]]
    return ColouredWords(
        "Which words are wrong",
        f"By {run.name}. The colour of a word is the probability that it does not belong to the image; above one half "
        "it counts as wrong, and its number stands behind it. In the corrected sentence such words are replaced and "
        "bold. Dotted: not the caption's word. At the right how probably the sentence matches the image.",
        ("belongs", "wrong"),
        range(MIDDLE, -1, -1),
        captions,
    )


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


def _by_caption(run: Run) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Caption -> image -> rows of words and phrases; a caption that is two examples counts once."""
    examples: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = {}
    for row in run.rows(PHRASES):
        if row["kind"] == _WORD and not any(map(str.isalnum, _said(row))):
            continue  # parsers count punctuation marks as words; what one scores would only distract
        images = examples.setdefault((row["caption_id"], row["example"]), {})
        images.setdefault(row["image_id"], []).append(row)
    captions: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for (caption, _), images in examples.items():
        captions.setdefault(caption, images)
    return captions


def _lines(run: Run, rows: Sequence[Mapping[str, Any]], low: float, high: float) -> Iterator[Line]:
    """The caption as a run reads it, then its phrases by their kind."""

    def coloured(row: Mapping[str, Any], *, numbered: bool) -> Coloured:
        share = (row["score"] - low) / (high - low) if high > low else 0.5
        tone = round((TONES - 1) * min(1.0, max(0.0, share)))
        return Coloured(_said(row), tone, row["score"], not row["holds"], numbered)

    words = [(row["starts"][0], row["ends"][-1], coloured(row, numbered=False)) for row in rows if row["kind"] == _WORD]
    yield Line(run.name, _cut(run, PHRASES, rows[0]["caption_id"], rows[0]["text"], words), rows[0]["pair_score"])
    for kind, title in _KINDS.items():
        phrases = [coloured(row, numbered=True) for row in rows if row["kind"] == kind]
        if phrases:
            yield Line(title, [part for each in phrases for part in (each, " ")])


def _said(row: Mapping[str, Any]) -> str:
    """Its words; between neighbours stands what the caption has there, which can be nothing or a hyphen."""
    said, previous = "", None
    for token, start, end in sorted(zip(row["tokens"], row["starts"], row["ends"], strict=True)):
        between = row["text"][previous[1] : start] if previous and token == previous[0] + 1 else " "
        said += f"{between if previous else ''}{row['text'][start:end]}"
        previous = (token, end)
    return said


def _judged(run: Run, row: Mapping[str, Any], picture_of: PictureOf) -> Seen:
    words = [(each["start"], each["end"], _doubted(row["sentence"], each)) for each in row["words"]]
    cut = partial(_cut, run, WORD_CORRECTIONS, row["caption_id"])
    lines = [Line("written", cut(row["sentence"], words), row["sentence_score"])]
    if row["corrected"] is not None:
        places = [(each["corrected_start"], each["corrected_end"]) for each in row["words"]]
        words = [
            (start, end, Coloured(row["corrected"][start:end], unsaid=not each["restored"], bold=each["flagged"]))
            for (start, end), each in zip(places, row["words"], strict=True)
        ]
        lines.append(Line("corrected", cut(row["corrected"], words), row["corrected_score"]))
    lines.append(Line("caption", [row["caption"]], row["caption_score"]))
    return Seen(picture_of(run, row["image_id"]), None, lines)


def _doubted(sentence: str, word: Mapping[str, Any]) -> Coloured:
    step = min(MIDDLE, int(word["mismatch"] * (MIDDLE + 1)))
    text = sentence[word["start"] : word["end"]]
    return Coloured(text, MIDDLE - step, word["mismatch"], word["wrong"], numbered=word["flagged"])


def _cut(run: Run, file: str, caption: str, text: str, words: Sequence[tuple[int, int, Coloured]]) -> Parts:
    try:
        return pieces(text, words)
    except ValueError as error:
        raise DataError(
            f"{run.evaluation.folder / file}: words of caption {caption} do not lie one after the other ({error}); "
            "evaluate again"
        ) from None
