"""The dataset behind runs, small copies of its photographs, and what a model ranks first for some of its queries."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from itrpipe.datasets.pictures import DECODER_ERRORS, open_picture, picture_rgb, read_image
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.truth import PairSet, known_pairs
from itrpipe.errors import DataError
from itrpipe.report.chain import Artifact
from itrpipe.report.runs import DIRECTIONS, Run
from itrpipe.storage.integrity import checked

LONGEST_SIDE = 288
"""Pixels: sharp at the 144 CSS pixels of a dense display, and large enough to be opened."""
_QUALITY = 66


@dataclass(frozen=True)
class Picture:
    """A photograph as the page shows it.

    Attributes:
        image_id: of the dataset.
        source: data URI; None when the photograph cannot be read, and a placeholder with its name is shown.
        width, height: pixels of the small copy.
    """

    image_id: str
    source: str | None
    width: int = LONGEST_SIDE
    height: int = LONGEST_SIDE


class Album:
    """Makes pictures of a dataset and remembers which photographs could not be read.

    Args:
        root: folder that the files are relative to; None when it is gone.
        files: image_id -> file.
    """

    def __init__(self, root: Path | None, files: Mapping[str, str]) -> None:
        self._root, self._files = root, files
        self._made: dict[str, Picture] = {}
        self.problems: list[str] = []

    def picture(self, image_id: str) -> Picture:
        """A small copy, or a placeholder.

        Raises:
            DataError: the picture is a file of an artifact and damaged.
        """
        if image_id not in self._made:
            self._made[image_id] = self._make(image_id)
        return self._made[image_id]

    def _make(self, image_id: str) -> Picture:
        if self._root is None:
            return Picture(image_id, None)
        path = checked(self._root / self._files[image_id])
        try:
            content, (width, height) = shrink(read_image(path))
        except DECODER_ERRORS as error:
            self.problems.append(f"{path}: {' '.join(str(error).split())}")
            return Picture(image_id, None)
        return Picture(image_id, f"data:image/jpeg;base64,{base64.b64encode(content).decode()}", width, height)


def shrink(content: bytes, longest_side: int = LONGEST_SIDE) -> tuple[bytes, tuple[int, int]]:
    """Decodes a photograph and encodes it as a small JPEG, upright and without metadata.

    Args:
        content: bytes of its file.
        longest_side: pixels of the copy at most; smaller photographs stay as large as they are.

    Returns:
        The bytes, and width and height.
    """
    from PIL import Image

    with open_picture(content) as image:
        image.draft("RGB", (2 * longest_side, 2 * longest_side))  # a JPEG is decoded at about the size that is needed
        small = Image.fromarray(picture_rgb(image))
    small.thumbnail((longest_side, longest_side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=_QUALITY, optimize=True)
    return buffer.getvalue(), small.size


SHOWN = 5
"""Candidates of a query."""
Mark = Literal["", "own", "true"]
"""`own`: belongs to the query. `true`: does not, but the caption is true of the image all the same."""


@dataclass(frozen=True)
class Candidate:
    """A caption or an image found for a query.

    Attributes:
        text: of a caption.
        picture: of an image.
        score: similarity with the query.
        place: position from 1.
        mark: whether it is right.
        false_negative: estimated probability, 0..1, that it matches though it counts as a negative; None where nothing
            estimated it.
    """

    text: str
    picture: Picture | None
    score: float
    place: int
    mark: Mark
    false_negative: float | None = None


@dataclass(frozen=True)
class Example:
    """A query with its candidates, best first.

    Attributes:
        text: of the query caption, or an own caption of the query image.
        picture: of the query image, or the own image of the query caption.
        candidates: the first ones, then the best own one if it comes later but is still listed.
        rank: of the best own match, from 1; None for mined lists, where own pairs are left out.
        baseline_rank: by the baseline; None where there is none.
    """

    text: str
    picture: Picture
    candidates: list[Candidate]
    rank: int | None = None
    baseline_rank: int | None = None


class Gallery:
    """The captions and images of a split, to be shown as candidates.

    Args:
        split: of the dataset.
        album: makes the pictures.
        truth: all correct matches, where known.
    """

    def __init__(self, split: Split, album: Album, truth: PairSet | None) -> None:
        self.split, self.truth = split, truth
        self._album = album
        self.image_row = {each: row for row, each in enumerate(split.image_ids.tolist())}
        self.caption_row = {each: row for row, each in enumerate(split.caption_ids.tolist())}

    def picture(self, image: int) -> Picture:
        """The picture of an image row."""
        return self._album.picture(str(self.split.image_ids[image]))

    def text(self, caption: int) -> str:
        """The text of a caption row."""
        return self.split.texts[caption]

    def own_text(self, image: int) -> str:
        """First own caption of an image row."""
        return self.text(int(self.split.captions_of_image[image]))

    def candidate(
        self, direction: str, query: int, row: int, score: float, place: int, false_negative: float | None = None
    ) -> Candidate:
        """A candidate of a query, `direction` being that of the search; see `Candidate`."""
        image, caption = (query, row) if direction == "i2t" else (row, query)
        mark: Mark = ""
        if self.split.caption_image[caption] == image:
            mark = "own"
        elif self.truth is not None and bool(self.truth.has(np.array([caption]), np.array([image]))[0]):
            mark = "true"
        shows_text = direction == "i2t"
        shown = ("" if not shows_text else self.text(row), None if shows_text else self.picture(row))
        return Candidate(*shown, score, place, mark, false_negative)


class Library:
    """A prepared dataset, opened for a report.

    Args:
        prepare: its artifact, which exists.
        root: folder of its photographs; None when it is gone.
    """

    def __init__(self, prepare: Artifact, root: Path | None) -> None:
        self._folder = prepare.folder
        self._dataset = PreparedDataset.open(prepare.folder)
        files: dict[str, str] = {}
        for name in self._dataset.splits:
            split = self._dataset.split(name)
            files |= zip(split.image_ids.tolist(), split.files, strict=True)
        self._images = frozenset(files)
        self.album = Album(root, files)
        self._galleries: dict[str, Gallery] = {}

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that hold images: of vectors of the test split alone, that one."""
        return tuple(self._dataset.splits)

    def split(self, name: str) -> Split:
        """One split."""
        return self.gallery(name).split

    def picture(self, image_id: str, named_by: Path) -> Picture:
        """The picture of an image that an artifact names.

        Raises:
            DataError: the dataset has no such image.
        """
        if image_id not in self._images:
            raise DataError(f"{named_by} names image {image_id}, which {self._folder} does not have; evaluate again")
        return self.album.picture(image_id)

    def gallery(self, name: str) -> Gallery:
        """Captions, pictures and truth of one split."""
        if name not in self._galleries:
            split = self._dataset.split(name)
            truth = known_pairs(self._folder, split.image_ids, split.caption_ids)
            self._galleries[name] = Gallery(split, self.album, truth)
        return self._galleries[name]


@dataclass(frozen=True)
class Examples:
    """Queries with what was found for them.

    Attributes:
        title: above them.
        note: below the title.
        items: the queries.
        of_images: they are images, and captions were found; else captions.
        own: the own image of a caption stands before what was found, as lists of negatives have it not.
    """

    title: str
    note: str
    items: Sequence[Example]
    of_images: bool
    own: bool = False


def retrieval_examples(run: Run, baseline: Run | None, gallery: Gallery, count: int, seed: int) -> list[Examples]:
    """Queries of both directions, captions for images last.

    Beside a baseline those whose right answer moved furthest up or down, by the ratio of its ranks; else half of them
    answered right at the first place, half not, where there are enough.

    Args:
        run: whose rankings are shown.
        baseline: whose rank of the right answer is told beside; or None.
        gallery: of the split it was evaluated on.
        count: queries in each direction.
        seed: of their choice.
    """
    found = []
    for number, direction in enumerate(reversed(DIRECTIONS)):
        rank = run.rankings[direction].rank
        if baseline is None:
            chosen = choose(rank == 0, count, np.random.default_rng([seed, number]))
            note = "Drawn at random: first some with a right answer on top, then some without."
        else:
            chosen = moved(baseline.rankings[direction].rank, rank, count)
            note = f"Whose right answer moved furthest up, then down, from {baseline.name}."
        items = [example_of(run, baseline, gallery, direction, query) for query in chosen]
        title = "Captions found for images" if direction == "i2t" else "Images found for captions"
        found.append(Examples(title, f"By {run.name}. {note}", items, direction == "i2t"))
    return [each for each in found if each.items]


def moved(before: np.ndarray, after: np.ndarray, count: int) -> list[int]:
    """Rows of `count` queries, about half of them those whose rank fell most as a ratio, then those that rose most."""
    gains = np.log((before + 1.0) / (after + 1.0))
    order = np.argsort(-gains, kind="stable")
    up, down = order[gains[order] > 0].tolist(), order[gains[order] < 0][::-1].tolist()
    return _half(up, down, count)


def _half(first: list[int], second: list[int], count: int) -> list[int]:
    wanted = min(len(first), max((count + 1) // 2, count - len(second)))
    return [*first[:wanted], *second[: count - wanted]]


def choose(right: np.ndarray, count: int, generator: np.random.Generator) -> list[int]:
    """Rows of `count` queries, about half of them right, the right ones first; fewer when there are fewer queries."""
    order = generator.permutation(len(right))
    return _half(order[right[order]].tolist(), order[~right[order]].tolist(), count)


def example_of(run: Run, baseline: Run | None, gallery: Gallery, direction: str, query: int) -> Example:
    """One query of a run, with the rank that another one gives to its right answer."""
    rankings = run.rankings[direction]
    rows = gallery.caption_row if direction == "i2t" else gallery.image_row
    listed = zip(rankings.candidates[query], rankings.scores[query], strict=True)
    candidates = _shown([(rows[identifier], score) for identifier, score in listed], gallery, direction, query)
    image = query if direction == "i2t" else int(gallery.split.caption_image[query])
    return Example(
        text=gallery.own_text(query) if direction == "i2t" else gallery.text(query),
        picture=gallery.picture(image),
        candidates=candidates,
        rank=int(rankings.rank[query]) + 1,
        baseline_rank=None if baseline is None else int(baseline.rankings[direction].rank[query]) + 1,
    )


def _shown(listed: Sequence[tuple[int, float]], gallery: Gallery, direction: str, query: int) -> list[Candidate]:
    """The first candidates, and the best own one when it is further down the list."""
    first = [
        gallery.candidate(direction, query, row, score, place + 1) for place, (row, score) in enumerate(listed[:SHOWN])
    ]
    if any(each.mark == "own" for each in first):
        return first
    owner = gallery.split.caption_image
    for place, (row, score) in enumerate(listed[SHOWN:], SHOWN + 1):
        if (owner[row] == query) if direction == "i2t" else (owner[query] == row):
            return [*first, gallery.candidate(direction, query, row, score, place)]
    return first
