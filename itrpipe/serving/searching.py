"""Images for a sentence, and images like another one, in a browser.

Shapes: N images.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from itrpipe.datasets.pictures import decode_rgb
from itrpipe.datasets.prepared import given_split
from itrpipe.errors import DataError, ItrpipeError, UsageError
from itrpipe.serving.gallery import QUERY, Embedded, Gallery

RANKINGS_KEPT = 64
"""Queries whose rankings are kept, so that a page that loads on is not ranked again."""
LONGEST = 1_000
"""Characters of a sentence."""
MOST = 200
"""Answers at a time."""


@dataclass(frozen=True)
class Asked:
    """What is searched with: one of them, or nothing, which shows the images in an order at random.

    Attributes:
        sentence: any.
        like: id of an image.
        photograph: key of one that was dropped on the page, see `Searches.add`.
    """

    sentence: str = ""
    like: str = ""
    photograph: str = ""


class Searches:
    """Ranks the images of a gallery.

    Args:
        gallery: where is searched.

    Attributes:
        gallery: as given.
    """

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery
        self._rankings: OrderedDict[Asked, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Asks once, so that the model is open before the first person does; what is wrong, that person is told."""
        if isinstance(self.gallery.scoring, Embedded):
            with contextlib.suppress(ItrpipeError):
                self.found(Asked("a photograph"), 0, 1)

    def add(self, content: bytes) -> str:
        """Ranks the images by a photograph, of which nothing else is kept, and returns the key of the ranking.

        Raises:
            UsageError: the photograph cannot be used, or the model cannot search with one.
        """
        try:
            pixels = decode_rgb(content)
        except DataError as error:
            raise UsageError(f"the photograph {error}; give another one") from None
        key, scores = hashlib.sha256(content).hexdigest(), self.gallery.scoring.of_photograph(pixels)
        with self._lock:
            self._keep(Asked(photograph=key), scores)
        return key

    def found(self, asked: Asked, start: int, count: int) -> dict[str, Any]:
        """Some of the images that fit a query best.

        Args:
            asked: the query.
            start: rank of the first answer, from 0.
            count: how many are wanted.

        Raises:
            UsageError: the model cannot answer the query, or there is no such image.
        """
        with self._lock:
            order, scores = self._ranked(asked)
            unknown = self.gallery.scoring.unknown_words(asked.sentence) if asked.sentence else []
        gallery, first = self.gallery, max(0, start)
        last = first + max(0, min(count, MOST))
        answers = [
            {
                "image": gallery.image_ids[row],
                "split": gallery.places[row],
                "score": float(scores[row]),
                "captions": gallery.captions.get(gallery.image_ids[row], []),
            }
            for row in order[first:last].tolist()
        ]
        shown = {"answers": answers, "searched": len(order), "unknown": unknown}
        return shown | ({"captions": gallery.captions.get(asked.like, [])} if asked.like else {})

    def _ranked(self, asked: Asked) -> tuple[np.ndarray, np.ndarray]:
        """All rows, best first, and their scores [N]."""
        if asked not in self._rankings:
            self._keep(asked, self._scores(asked))
        self._rankings.move_to_end(asked)
        return self._rankings[asked]

    def _keep(self, asked: Asked, scores: np.ndarray) -> None:
        order = np.argsort(-scores, kind="stable")
        if asked.like:
            order = order[order != self.gallery.rows[asked.like]]
        self._rankings[asked] = order, scores
        if len(self._rankings) > RANKINGS_KEPT:
            self._rankings.popitem(last=False)

    def _scores(self, asked: Asked) -> np.ndarray:
        scoring = self.gallery.scoring
        if asked.photograph:
            raise UsageError("this photograph is not remembered any more; drop it again")
        if asked.like:
            if asked.like not in self.gallery.rows:
                raise UsageError(f"image {asked.like}: the model was trained without one of this id")
            return scoring.of_row(self.gallery.rows[asked.like])
        if not asked.sentence:
            return np.random.default_rng(0).random(len(self.gallery.image_ids))
        if len(asked.sentence) > LONGEST:
            raise UsageError(f"{QUERY} has more than {LONGEST:,} characters; give a sentence")
        given_split([asked.sentence], what=QUERY)
        return scoring.of_sentence(asked.sentence)
