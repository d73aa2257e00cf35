"""Small copies of the photographs of a dataset, and what a model ranks first for some of its queries."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from itrpipe.datasets.pictures import DECODER_ERRORS, open_picture, picture_rgb, read_image
from itrpipe.datasets.prepared import Split
from itrpipe.datasets.truth import known_pairs
from itrpipe.report.runs import EvaluatedRun
from itrpipe.report.series import Series

LONGEST_SIDE = 288
"""Pixels: sharp at the 144 CSS pixels of a dense display, and large enough to be opened."""
SHOWN_CANDIDATES = 5
"""Candidates that are shown of a query."""
Mark = Literal["", "own", "true"]
"""`own`: belongs to the query. `true`: does not, but the caption is true of the image all the same."""


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
        self._root = root
        self._files = files
        self._pictures: dict[str, Picture] = {}
        self.problems: list[str] = []

    def picture(self, image_id: str) -> Picture:
        """Return a small copy, or a placeholder.

        Raises:
            DataError: the picture is a file of an artifact and damaged.
        """
        if image_id in self._pictures:
            return self._pictures[image_id]
        picture = Picture(image_id, None)
        if self._root is not None:
            path = self._root / self._files[image_id]
            try:
                content, size = shrink(read_image(path))
                encoded = base64.b64encode(content).decode()
                picture = Picture(image_id, f"data:image/jpeg;base64,{encoded}", *size)
            except DECODER_ERRORS as error:
                reason = " ".join(str(error).split())
                self.problems.append(f"{path}: {reason}")
        self._pictures[image_id] = picture
        return picture


def shrink(content: bytes, longest_side: int = LONGEST_SIDE) -> tuple[bytes, tuple[int, int]]:
    """Decode a photograph and encode it as a small JPEG, upright and without metadata.

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
    small.save(buffer, "JPEG", quality=66, optimize=True)
    return buffer.getvalue(), small.size


@dataclass(frozen=True)
class Candidate:
    """A caption or an image found for a query.

    Attributes:
        text: of a caption.
        picture: of an image.
        score: similarity with the query.
        place: position from 1; 0 of an own match that stands before what was found.
        mark: whether it is right.
        probability: estimate, 0..1, that it matches though it counts as a negative; None where nothing estimated it.
    """

    text: str
    picture: Picture | None
    score: float
    place: int
    mark: Mark
    probability: float | None = None


@dataclass(frozen=True)
class Example:
    """A query with its candidates, best first.

    Attributes:
        text: of the query caption, or an own caption of the query image.
        picture: of the query image, or the own image of the query caption.
        candidates: of it.
        rank: of the best own match, from 1; None for mined lists, which an own match stands before.
        baseline_rank: by the baseline; None where there is none.
    """

    text: str
    picture: Picture
    candidates: list[Candidate]
    rank: int | None = None
    baseline_rank: int | None = None


class SplitPictures:
    """The captions and images of a split, to be shown as candidates.

    Args:
        split: of the dataset.
        album: makes the pictures.
        folder: of the dataset.
    """

    def __init__(
        self,
        split: Split,
        album: Album,
        folder: Path,
    ) -> None:
        self.split = split
        self._album = album
        self.truth = known_pairs(folder, split.image_ids, split.caption_ids)
        self.image_row = {name: row for row, name in enumerate(split.image_ids.tolist())}
        self.caption_row = {name: row for row, name in enumerate(split.caption_ids.tolist())}

    def picture(self, image: int) -> Picture:
        """Return the picture of an image row."""
        return self._album.picture(str(self.split.image_ids[image]))

    def own_picture(self, caption: int) -> Picture:
        """Return the picture of the image that a caption row belongs to."""
        return self.picture(int(self.split.caption_image[caption]))

    def candidate(
        self,
        of_images: bool,
        query: int,
        row: int,
        place: int,
        score: float,
        probability: float | None = None,
    ) -> Candidate:
        """Return a caption that was found for an image, or an image for a caption.

        Args:
            of_images: the query is an image.
            query: its row.
            row: of the candidate.
            place, score: see `Candidate`.
            probability: that it is a false negative.
        """
        text = ""
        picture = None
        if of_images:
            text = self.split.texts[row]
        else:
            picture = self.picture(row)
        return Candidate(
            text,
            picture,
            score,
            place,
            self._mark(of_images, query, row),
            probability,
        )

    def example(
        self,
        of_images: bool,
        query: int,
        candidates: list[Candidate],
        **ranks: int | None,
    ) -> Example:
        """Return a query with candidates.

        Args:
            of_images: the query is an image, and captions were found; else a caption.
            query: its row.
            candidates: that were found.
            ranks: of its right answer, see `Example`.
        """
        caption = int(self.split.captions_of_image[query]) if of_images else query
        return Example(self.split.texts[caption], self.own_picture(caption), candidates, **ranks)

    def first_found(
        self,
        run: EvaluatedRun,
        baseline: EvaluatedRun | None,
        direction: str,
        query: int,
    ) -> Example:
        """Return a query with the candidates that a run ranks first, and its best own match if that is still listed.

        Args:
            run: that ranked them.
            baseline: whose rank of the right answer is shown, too; or None.
            direction: of the search.
            query: row.
        """
        of_images = direction == "i2t"
        rows = self.caption_row if of_images else self.image_row
        (ranking,) = run.rankings[direction].slice(query, 1).to_pylist()
        ranked = zip(ranking["candidate_ids"], ranking["scores"], strict=True)
        candidates = []
        has_own = False
        for place, (name, score) in enumerate(ranked, 1):
            row = rows[name]
            is_own = self._mark(of_images, query, row) == "own"
            if place <= SHOWN_CANDIDATES or (is_own and not has_own):
                candidates.append(self.candidate(of_images, query, row, place, score))
            has_own |= is_own
        baseline_rank = None
        if baseline is not None:
            baseline_rank = baseline.rankings[direction]["rank"][query].as_py() + 1
        return self.example(
            of_images,
            query,
            candidates,
            rank=ranking["rank"] + 1,
            baseline_rank=baseline_rank,
        )

    def _mark(
        self,
        of_images: bool,
        query: int,
        row: int,
    ) -> Mark:
        image, caption = (query, row) if of_images else (row, query)
        if self.split.caption_image[caption] == image:
            return "own"
        if self.truth is not None and self.truth.has(np.array(caption), np.array(image)):
            return "true"
        return ""


@dataclass(frozen=True)
class Examples:
    """Queries with what was found for them.

    Attributes:
        title: above them.
        note: below the title.
        items: the queries.
        of_images: they are images, and captions were found; else captions.
    """

    title: str
    note: str
    items: Sequence[Example]
    of_images: bool


@dataclass(frozen=True)
class LikelyPair:
    """An image and a caption of another one that judges call likelier right than not.

    Attributes:
        picture, own_caption: of the image.
        caption, own_picture: that may be right, too, and the image that it belongs to.
        probability: that it is, 0..1.
    """

    picture: Picture
    own_caption: str
    caption: str
    own_picture: Picture
    probability: float


@dataclass(frozen=True)
class LikelyPairs:
    """Pairs that judges call likelier right than not, below a title and a note."""

    title: str
    note: str
    items: Sequence[LikelyPair]


def likely_pairs(
    title: str,
    note: str,
    gallery: SplitPictures,
    pairs: Sequence[tuple[int, int, float]],
    count: int,
) -> LikelyPairs:
    """Return the likeliest pairs, of which there may be none.

    Of all pairs that share an image, or an image that one of these is paired with, the likeliest alone is shown.

    Args:
        title, note: above the pairs.
        gallery: of their split.
        pairs: rows of an image and of a caption of another one, and their probability.
        count: pairs that are shown.
    """
    split = gallery.split
    owners = split.caption_image.tolist()
    paired = defaultdict[int, set[int]](set)
    for image, caption, _ in pairs:
        paired[image].add(owners[caption])
        paired[owners[caption]].add(image)

    items = []
    passed_over = set[int]()
    for image, caption, probability in sorted(pairs, key=lambda pair: -pair[2]):
        owner = owners[caption]
        if len(items) == count:
            break
        if image in passed_over or owner in passed_over:
            continue
        passed_over |= paired[image] | paired[owner]
        pair = LikelyPair(
            gallery.picture(image),
            split.texts[split.captions_of_image[image]],
            split.texts[caption],
            gallery.picture(owner),
            probability,
        )
        items.append(pair)
    return LikelyPairs(title, note, items)


def retrieval_examples(
    series: Series,
    baseline: Series | None,
    gallery: SplitPictures,
    count: int,
) -> list[Examples]:
    """Return queries of both directions, captions for images last, by the first run of a series.

    With a baseline those whose right answer moved furthest up or down, by the ratio of its ranks; else those whose
    right answer ranks last.

    Args:
        series: whose rankings are shown.
        baseline: whose rank of the right answer is shown, too; or None.
        gallery: of the split it was evaluated on.
        count: queries in each direction.
    """
    run = series.first_run
    examples = []
    titles = {"t2i": "Images found for captions", "i2t": "Captions found for images"}
    for direction, title in titles.items():
        ranks = run.rankings[direction]["rank"].to_numpy()
        if baseline is None:
            baseline_run = None
            queries = np.argsort(-ranks, kind="stable")[:count].tolist()
            note = "Whose right answer ranks last."
        else:
            baseline_run = baseline.first_run
            baseline_ranks = baseline_run.rankings[direction]["rank"].to_numpy()
            queries = most_moved(baseline_ranks, ranks, count)
            note = f"Whose right answer moved furthest up, then down, from {baseline.name}."
        if queries:
            items = [gallery.first_found(run, baseline_run, direction, query) for query in queries]
            examples.append(Examples(title, f"By {series.name}. {note}", items, direction == "i2t"))
    return examples


def most_moved(
    before: np.ndarray,
    after: np.ndarray,
    count: int,
) -> list[int]:
    """Return rows of `count` queries, half of them those whose rank fell most as a ratio, then those that rose most."""
    gains = np.log((before + 1.0) / (after + 1.0))
    order = np.argsort(-gains, kind="stable")
    risen = order[gains[order] > 0].tolist()
    fallen = order[gains[order] < 0][::-1].tolist()
    half = (count + 1) // 2
    most_risen = min(len(risen), max(half, count - len(fallen)))
    return risen[:most_risen] + fallen[: count - most_risen]
