"""Where the words look: maps of the words of some captions, drawn over an own image and over wrong ones.

Source: FNE (Li et al., ACM MM 2023), Fig. 3 and 7.

Shapes: rows and columns of the patches of an image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from itrpipe.errors import DataError
from itrpipe.report.pictures import Picture
from itrpipe.report.runs import Run, of_different_methods
from itrpipe.scene_graph.words import lists
from itrpipe.storage.artifact import WORD_MAPS

TONES = 5
"""Steps of opacity; the lowest shows the bare photograph."""
MOST_RUNS, MOST_WORDS, MOST_CELLS = 2, 4, 16
"""Runs shown; words of a caption; cells of a map along a side, since more of them are too small to see."""
_LOW, _HIGH = 5.0, 95.0
"""Percentiles of a word's values at which its map is bare and full."""
_FUNCTION_WORDS = (
    lists.BE | lists.HAVE | lists.DO | lists.AUXILIARIES | lists.CONJUNCTIONS | lists.SUBORDINATORS | lists.PRONOUNS
) | (lists.DETERMINERS | lists.DEGREES | lists.PREPOSITIONS | lists.PARTICLES | lists.ALWAYS_ADVERBS)
_DOWN, _ACROSS = ("upper", "middle", "lower"), ("left", "centre", "right")

Rows = list[dict[str, Any]]
"""The words of one caption with one image, as `evaluate` wrote them."""


@dataclass(frozen=True)
class WordMap:
    """One word over one image.

    Attributes:
        word: as the caption writes it.
        score: mean of its map.
        where: of the patch with the highest value, in words.
        shapes: SVG path data of the patches of every step of opacity above the lowest, in units of patches.
    """

    word: str
    score: float
    where: str
    shapes: list[str]


@dataclass(frozen=True)
class Strip:
    """What one run makes of a caption beside one image.

    Attributes:
        run: name.
        score: of the pair.
        transform: from units of patches to pixels of the picture, as SVG has it.
        maps: of the shown words.
    """

    run: str
    score: float
    transform: str
    maps: list[WordMap]


@dataclass(frozen=True)
class MappedPair:
    """A caption with one image, as the runs that mapped this pair see it.

    Attributes:
        picture: the image.
        key: of the picture on the page.
        matched: whether it is the caption's own.
        strips: one for each run.
    """

    picture: Picture
    key: str
    matched: bool
    strips: list[Strip]


@dataclass(frozen=True)
class MappedCaption:
    """A caption with its own image, then with wrong ones: one, or several where the runs had different ones."""

    text: str
    pairs: list[MappedPair]


@dataclass(frozen=True)
class WordMapView:
    """The section.

    Attributes:
        run: the first shown.
        names: of the runs.
        captions: shown.
        pictures: key -> picture, each once however many maps lie over it.
    """

    run: Run
    names: list[str]
    captions: list[MappedCaption]
    pictures: dict[str, Picture]


@dataclass(frozen=True)
class _Mapped:
    """The captions of one run: caption id -> image id -> rows."""

    run: Run
    captions: dict[str, dict[str, Rows]]

    @classmethod
    def read(cls, run: Run) -> _Mapped:
        captions: dict[str, dict[str, Rows]] = {}
        for row in run.rows(WORD_MAPS):
            where = run.evaluation.folder / WORD_MAPS
            if len(row["values"]) != row["rows"] * row["columns"] or not row["start"] < row["end"] <= len(row["text"]):
                raise DataError(f"{where}: a word of caption {row['caption_id']} has no place or map; evaluate again")
            captions.setdefault(row["caption_id"], {}).setdefault(row["image_id"], []).append(row)
        return cls(run, captions)


def word_map_view(runs: Sequence[Run], count: int, picture_of: Callable[[Run, str], Picture]) -> WordMapView | None:
    """Shows maps that evaluations wrote.

    Args:
        runs: on one test set; of those whose evaluation wrote maps at most two are shown.
        count: captions at most, first those that all shown runs mapped.
        picture_of: makes the picture of an image of a run's dataset.

    Returns:
        None when there is nothing to show.

    Raises:
        DataError: a word of an evaluation does not lie in its caption, or has a map of another size than it says.
    """
    mapped = [
        _Mapped.read(run) for run in of_different_methods((run for run in runs if run.rows(WORD_MAPS)), MOST_RUNS)
    ]
    everywhere = [caption for each in mapped for caption in each.captions]
    shown = sorted(dict.fromkeys(everywhere), key=lambda caption: -everywhere.count(caption))[:count]
    mapped = [each for each in mapped if each.captions.keys() & set(shown)]
    if not mapped:
        return None
    keys: dict[str, str] = {}
    captions = [_caption(caption, mapped, keys, picture_of) for caption in shown]
    pictures = {pair.key: pair.picture for caption in captions for pair in caption.pairs if pair.picture.source}
    return WordMapView(mapped[0].run, [each.run.name for each in mapped], captions, pictures)


def chosen_words(rows: Rows) -> list[tuple[int, int]]:
    """First and last character + 1 of at most four words, in their order: of content words those that vary most."""
    content = [row for row in rows if _is_content(row["text"][row["start"] : row["end"]])]
    widest = sorted(content or rows, key=lambda row: -float(np.std(row["values"])))[:MOST_WORDS]
    return sorted((row["start"], row["end"]) for row in widest)


def outlines(tones: np.ndarray, size: int) -> list[str]:
    """Path data of the cells of every step of opacity above the lowest, neighbours in a row as one rectangle.

    Args:
        tones: [rows, columns] int, 0..TONES - 1, of patches; equal within a cell.
        size: side of a cell in patches; those at the right and the lower edge may be smaller.
    """
    shapes = [""] * (TONES - 1)
    rows, columns = tones.shape
    for top in range(0, rows, size):
        height = min(size, rows - top)
        starts = [0, *(np.flatnonzero(np.diff(tones[top])) + 1).tolist(), columns]
        for left, right in pairwise(starts):
            if tone := tones[top, left]:
                shapes[tone - 1] += f"M{left} {top}h{right - left}v{height}h-{right - left}"
    return shapes


def place_of(values: np.ndarray) -> str:
    """Where the highest of values [rows, columns] lies, in thirds of the image, such as `upper left`."""
    row, column = np.unravel_index(values.argmax(), values.shape)
    middle = [
        3 * (2 * int(place) + 1) // (2 * length) for place, length in zip((row, column), values.shape, strict=True)
    ]
    down, across = _DOWN[middle[0]], _ACROSS[middle[1]]
    return "centre" if (down, across) == ("middle", "centre") else f"{down} {across}"


def _is_content(word: str) -> bool:
    return any(map(str.isalnum, word)) and word.lower() not in _FUNCTION_WORDS


def _caption(
    caption: str, mapped: Sequence[_Mapped], keys: dict[str, str], picture_of: Callable[[Run, str], Picture]
) -> MappedCaption:
    """One caption; words are chosen by the own image of the first run."""
    pairs: dict[str, MappedPair] = {}
    readers = [each for each in mapped if caption in each.captions]
    first = next(iter(readers[0].captions[caption].values()))
    chosen = chosen_words(first)
    for each in readers:
        images = each.captions[caption]
        scales = {word: _scale(images, word) for word in chosen}
        for image, rows in images.items():
            if image not in pairs:
                key = keys.setdefault(image, f"seen-{len(keys)}")
                pairs[image] = MappedPair(picture_of(each.run, image), key, rows[0]["matched"], [])
            pairs[image].strips.append(_strip(each.run.name, rows, scales, pairs[image].picture))
    return MappedCaption(first[0]["text"], sorted(pairs.values(), key=lambda pair: not pair.matched))


def _scale(images: Mapping[str, Rows], word: tuple[int, int]) -> tuple[float, float]:
    """Values at which the map of a word is bare and full, over all images of one run."""
    values = [row["values"] for rows in images.values() for row in rows if (row["start"], row["end"]) == word]
    low, high = np.percentile(np.concatenate(values), [_LOW, _HIGH]) if values else (0.0, 0.0)
    return float(low), float(high)


def _strip(run: str, rows: Rows, scales: Mapping[tuple[int, int], tuple[float, float]], picture: Picture) -> Strip:
    maps = [_map(row, *scales[word]) for row in rows if (word := (row["start"], row["end"])) in scales]
    x0, y0, x1, y1 = rows[0]["area"]
    across, down = (x1 - x0) * picture.width / rows[0]["columns"], (y1 - y0) * picture.height / rows[0]["rows"]
    transform = f"translate({x0 * picture.width:.4g} {y0 * picture.height:.4g}) scale({across:.5g} {down:.5g})"
    return Strip(run, rows[0]["score"], transform, maps)


def _map(row: dict[str, Any], low: float, high: float) -> WordMap:
    values = np.array(row["values"]).reshape(row["rows"], row["columns"])
    size = -(-max(values.shape) // MOST_CELLS)
    shares = (_in_cells(values, size) - low) / (high - low) if high > low else np.zeros(values.shape)
    tones = np.rint((TONES - 1) * shares.clip(0, 1)).astype(int)
    word = row["text"][row["start"] : row["end"]]
    return WordMap(word, row["word_score"], place_of(values), outlines(tones, size))


def _in_cells(values: np.ndarray, size: int) -> np.ndarray:
    """Values [rows, columns] with every square of so many patches a side at its mean."""
    found = values
    for axis, length in enumerate(values.shape):
        starts = np.arange(0, length, size)
        counts = np.minimum(size, length - starts)
        means = np.add.reduceat(found, starts, axis=axis) / np.expand_dims(counts, 1 - axis)
        found = np.repeat(means, counts, axis=axis)
    return found
