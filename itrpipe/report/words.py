"""Captions word by word: coloured by their score with an image or by how probably they are wrong, and where they look.

Sources: SSAMT (Fan et al., ICMR 2022), case study; TAGS-DC (Fan et al., Findings of NAACL 2022), Fig. 4; FNE (Li et
al., ACM MM 2023), Fig. 3 and 7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from itrpipe.report.pictures import Picture
from itrpipe.report.runs import Run, of_different_methods
from itrpipe.scene_graph.words import lists
from itrpipe.storage.artifact import PHRASES, WORD_CORRECTIONS, WORD_MAPS

TONES = 9
"""Steps of the colour scale, an odd number: the middle one has no colour."""
MIDDLE = TONES // 2
HEATS = 5
"""Steps of opacity of a map; the lowest shows the bare photograph."""
_MOST_RUNS, _MOST_WORDS = 2, 4
"""Runs beside each other; words of a caption that have maps."""
_KINDS = {"object": "objects", "attribute": "attributes", "relation": "relations"}
_WORD = "word"
_ENDS = (5.0, 95.0)
"""Percentiles of the shown values at which colours and maps are bare and full."""
_FUNCTION_WORDS = (
    lists.BE | lists.HAVE | lists.DO | lists.AUXILIARIES | lists.CONJUNCTIONS | lists.SUBORDINATORS | lists.PRONOUNS
) | (lists.DETERMINERS | lists.DEGREES | lists.PREPOSITIONS | lists.PARTICLES | lists.ALWAYS_ADVERBS)

Rows = list[dict[str, Any]]
"""What one run wrote of the words of a caption with an image."""
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


@dataclass(frozen=True)
class WordMap:
    """One word over one image.

    Attributes:
        text: the word, as the caption writes it.
        value: mean of its map.
        transform: from units of patches to pixels of the picture, as SVG has it.
        shapes: SVG path data of the patches of every step of opacity above the lowest, in units of patches.
    """

    text: str
    value: float
    transform: str
    shapes: list[str]


Parts = list["Coloured | str"]
"""Words, and as plain text what stands between them."""


@dataclass(frozen=True)
class Line:
    """What is said beside a picture: by whom or of what, words or their maps, and the score of the pair, or None."""

    label: str
    parts: Parts | list[WordMap]
    score: float | None = None


@dataclass(frozen=True)
class Seen:
    """An image with the lines beside it; `matched` says whether it is the caption's own, or None to say nothing."""

    picture: Picture
    matched: bool | None
    lines: list[Line]
    mirrored: bool = False


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


@dataclass(frozen=True)
class WordMaps:
    """Maps of the words of captions, each with its images; `pictures` are these, however many maps lie over each."""

    captions: list[tuple[str, list[Seen]]]

    @property
    def pictures(self) -> list[Picture]:
        """Each once."""
        return list(dict.fromkeys(seen.picture for _, images in self.captions for seen in images))


def _beside(runs: Sequence[Run], file: str, count: int) -> list[dict[str, list[tuple[Run, Rows]]]]:
    """Captions that at most two evaluations wrote of, first those of both: image, the own one first -> what each wrote.

    A caption that is two examples counts once.
    """
    read: list[tuple[Run, dict[str, dict[str, Rows]]]] = []
    for run in of_different_methods((each for each in runs if each.wrote(file)), _MOST_RUNS):
        captions: dict[str, dict[int, dict[str, Rows]]] = {}
        for row in run.wrote(file):
            examples = captions.setdefault(row["caption_id"], {})
            examples.setdefault(row["example"], {}).setdefault(row["image_id"], []).append(row)
        read.append((run, {caption: next(iter(examples.values())) for caption, examples in captions.items()}))
    everywhere = [caption for _, own in read for caption in own]
    found = []
    for caption in sorted(dict.fromkeys(everywhere), key=lambda caption: -everywhere.count(caption))[:count]:
        images: dict[str, list[tuple[Run, Rows]]] = {}
        for run, own in read:
            for image, rows in own.get(caption, {}).items():
                images.setdefault(image, []).append((run, rows))
        found.append(dict(sorted(images.items(), key=lambda each: not each[1][0][1][0]["matched"])))
    return found


def scored_words(runs: Sequence[Run], count: int, picture_of: PictureOf) -> ColouredWords | None:
    """Captions that evaluations wrote with the scores of their words and phrases, under own and wrong images.

    Args:
        runs: on one test set; of those whose evaluation wrote such scores at most two are shown.
        count: captions at most, first those that all shown runs scored.
        picture_of: see `PictureOf`.

    Returns:
        None when there is nothing to show.
    """
    shown, scores = _beside(runs, PHRASES, count), dict[str, list[float]]()
    for run, rows in (each for images in shown for seen in images.values() for each in seen):
        scores.setdefault(run.name, []).extend(row["score"] for row in rows if _is_shown(row))
    ends = {name: np.percentile(own, _ENDS) for name, own in scores.items()}
    captions = [
        [
            Seen(
                picture_of(seen[0][0], image),
                seen[0][1][0]["matched"],
                [line for run, rows in seen for line in _lines(run.name, rows, *ends[run.name])],
            )
            for image, seen in images.items()
        ]
        for images in shown
    ]
    note = (
        "The colour of a word or phrase is its score with the image, the cosine of the two, full at the 5th and 95th "
        "percentile of a model's scores shown here; ranges differ between models. Dotted: none of the image's own "
        "captions says it."
    )
    return ColouredWords("What the words are worth", note, ("low", "high"), range(TONES), captions) if shown else None


def wrong_words(runs: Sequence[Run], count: int, picture_of: PictureOf) -> ColouredWords | None:
    """Sentences that a model wrote, with the words that it finds wrong, and what it makes of them.

    Args:
        runs: on one test set; the first that wrote such sentences is shown.
        count: sentences at most.
        picture_of: see `PictureOf`.

    Returns:
        None when no run judged words.
    """
    run = next((each for each in runs if each.wrote(WORD_CORRECTIONS)), None)
    if run is None:
        return None
    return ColouredWords(
        "Which words are wrong",
        f"By {run.name}. The colour of a word is the probability that it does not belong to the image; above one half "
        "it counts as wrong, followed by its number. In the corrected sentence such words are replaced and "
        "bold. Dotted: not the caption's word. At the right how probably the sentence matches the image.",
        ("belongs", "wrong"),
        range(MIDDLE, -1, -1),
        [[Seen(picture_of(run, row["image_id"]), None, _judged(row))] for row in run.wrote(WORD_CORRECTIONS)[:count]],
    )


def pieces(text: str, words: Sequence[tuple[int, int, Coloured]]) -> Parts:
    """A caption cut into its words and the text between them, in the order of the caption.

    Args:
        text: of the caption.
        words: first character, one past the last, and what is shown there.
    """
    found: Parts = []
    done = 0
    for start, end, word in sorted(words, key=lambda each: each[:2]):
        found += [text[done:start], word] if start > done else [word]
        done = end
    return [*found, text[done:]] if done < len(text) else found


def _is_shown(row: Mapping[str, Any]) -> bool:
    """Parsers count punctuation marks as words; what one scores would only distract."""
    return row["kind"] != _WORD or any(map(str.isalnum, _said(row)))


def _lines(name: str, rows: Rows, low: float, high: float) -> Iterator[Line]:
    """The caption as a run reads it, then its phrases by their kind."""
    found: dict[str, list[tuple[int, int, Coloured]]] = {}
    for row in filter(_is_shown, rows):
        share = (row["score"] - low) / (high - low) if high > low else 0.5
        tone, numbered = round((TONES - 1) * min(1.0, max(0.0, share))), row["kind"] != _WORD
        coloured = Coloured(_said(row), tone, row["score"], not row["holds"], numbered)
        found.setdefault(row["kind"], []).append((row["starts"][0], row["ends"][-1], coloured))
    yield Line(name, pieces(rows[0]["text"], found[_WORD]), rows[0]["pair_score"])
    for kind, title in _KINDS.items():
        if kind in found:
            yield Line(title, [part for _, _, each in found[kind] for part in (each, " ")])


def _said(row: Mapping[str, Any]) -> str:
    """Its words; between neighbours stands what the caption has there, which can be nothing or a hyphen."""
    said, previous = "", None
    for token, start, end in sorted(zip(row["tokens"], row["starts"], row["ends"], strict=True)):
        between = row["text"][previous[1] : start] if previous and token == previous[0] + 1 else " "
        said += f"{between if previous else ''}{row['text'][start:end]}"
        previous = (token, end)
    return said


def _judged(row: Mapping[str, Any]) -> list[Line]:
    written, corrected = [], []
    for each in row["words"]:
        step, (start, end) = min(MIDDLE, int(each["mismatch"] * (MIDDLE + 1))), (each["start"], each["end"])
        word = Coloured(row["sentence"][start:end], MIDDLE - step, each["mismatch"], each["wrong"], each["flagged"])
        written.append((start, end, word))
        if row["corrected"] is not None:
            start, end = each["corrected_start"], each["corrected_end"]
            word = Coloured(row["corrected"][start:end], unsaid=not each["restored"], bold=each["flagged"])
            corrected.append((start, end, word))
    lines = [Line("written", pieces(row["sentence"], written), row["sentence_score"])]
    if row["corrected"] is not None:
        lines.append(Line("corrected", pieces(row["corrected"], corrected), row["corrected_score"]))
    return [*lines, Line("caption", [row["caption"]], row["caption_score"])]


# -- Where the words look


def word_maps(runs: Sequence[Run], count: int, picture_of: PictureOf) -> WordMaps | None:
    """Maps of the words of captions that evaluations wrote, over an own image and over wrong ones.

    Args:
        runs: on one test set; of those whose evaluation wrote maps at most two are shown.
        count: captions at most, first those that all shown runs mapped.
        picture_of: see `PictureOf`.

    Returns:
        None when there is nothing to show.
    """
    captions = []
    for images in _beside(runs, WORD_MAPS, count):
        first, values = next(iter(images.values()))[0][1], dict[tuple[str, int], list[float]]()
        for run, row in ((run, row) for seen in images.values() for run, rows in seen for row in rows):
            values.setdefault((run.name, row["start"]), []).extend(row["values"])
        chosen, shown = chosen_words(first), []
        for image, seen in images.items():
            picture = picture_of(seen[0][0], image)
            lines = []
            for run, rows in seen:
                maps = [_map(row, picture, values[run.name, row["start"]]) for row in rows if row["start"] in chosen]
                lines.append(Line(run.name, maps, rows[0]["score"]))
            shown.append(Seen(picture, seen[0][1][0]["matched"], lines))
        captions.append((first[0]["text"], shown))
    return WordMaps(captions) if captions else None


def chosen_words(rows: Rows) -> set[int]:
    """First characters of at most four words: of content words those that vary most."""
    words = [(row, row["text"][row["start"] : row["end"]]) for row in rows]
    content = [row for row, word in words if any(map(str.isalnum, word)) and word.lower() not in _FUNCTION_WORDS]
    widest = sorted(content or rows, key=lambda row: -float(np.std(row["values"])))
    return {row["start"] for row in widest[:_MOST_WORDS]}


def _map(row: Mapping[str, Any], picture: Picture, values: Sequence[float]) -> WordMap:
    """The map of a word, bare and full at percentiles of the values that it has over all images of a run."""
    (low, high), own = np.percentile(values, _ENDS), np.array(row["values"]).reshape(row["rows"], row["columns"])
    shares = (own - low) / (high - low) if high > low else np.zeros(own.shape)
    x0, y0, x1, y1 = row["area"]
    across, down = (x1 - x0) * picture.width / row["columns"], (y1 - y0) * picture.height / row["rows"]
    transform = f"translate({x0 * picture.width:.4g} {y0 * picture.height:.4g}) scale({across:.5g} {down:.5g})"
    shapes = outlines(np.rint((HEATS - 1) * shares.clip(0, 1)).astype(int))
    return WordMap(row["text"][row["start"] : row["end"]], row["word_score"], transform, shapes)


def outlines(heats: np.ndarray) -> list[str]:
    """Path data of the patches of every step of opacity above the lowest, neighbours in a row as one rectangle.

    Args:
        heats: [rows, columns] int, 0..HEATS - 1, of patches.
    """
    shapes = [""] * (HEATS - 1)
    for top, row in enumerate(heats):
        starts = [0, *(np.flatnonzero(np.diff(row)) + 1).tolist(), len(row)]
        for left, right in pairwise(starts):
            if row[left]:
                shapes[row[left] - 1] += f"M{left} {top}h{right - left}v1h-{right - left}"
    return shapes
