"""Images for a sentence, and images like another one, in a browser.

Shapes: N images.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

from itrpipe.datasets.given import given_pair
from itrpipe.errors import ItrpipeError, UsageError
from itrpipe.serving.gallery import QUERY, Embedded, Gallery
from itrpipe.serving.uploads import Uploads

RANKINGS_KEPT = 64
"""Queries whose rankings are kept, so that a page that loads on is not ranked again."""
LONGEST = 1_000
"""Characters of a sentence."""
MOST = 200
"""Answers at a time."""


@dataclass(frozen=True)
class Asked:
    """What is searched with; one of them.

    Attributes:
        sentence: any.
        like: id of an image.
        photograph: key of one that was dropped on the page.
    """

    sentence: str = ""
    like: str = ""
    photograph: str = ""


class Searches:
    """Ranks the images of a gallery.

    Args:
        gallery: where is searched.
        uploads: photographs that were dropped on the page.

    Attributes:
        gallery, uploads: as given.
    """

    def __init__(self, gallery: Gallery, uploads: Uploads) -> None:
        self.gallery, self.uploads = gallery, uploads
        self._rankings: OrderedDict[Asked, tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Asks once, so that the model is open before the first person does; what is wrong, that person is told."""
        if isinstance(self.gallery.scoring, Embedded):
            with contextlib.suppress(ItrpipeError):
                self.found(Asked("a photograph"), 0, 1)

    def found(self, asked: Asked, start: int, count: int) -> dict[str, Any]:
        """Some of the images that fit a query best.

        Args:
            asked: the query.
            start: rank of the first answer, from 0.
            count: how many are wanted.

        Raises:
            UsageError: there is no query, the model cannot answer it, or there is no such image.
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
        if asked in self._rankings:
            self._rankings.move_to_end(asked)
            return self._rankings[asked]
        scores = self._scores(asked)
        order = np.argsort(-scores, kind="stable")
        if asked.like:
            order = order[order != self.gallery.rows[asked.like]]
        self._rankings[asked] = order, scores
        if len(self._rankings) > RANKINGS_KEPT:
            self._rankings.popitem(last=False)
        return order, scores

    def _scores(self, asked: Asked) -> np.ndarray:
        scoring = self.gallery.scoring
        if asked.photograph:
            return scoring.of_photograph(self.uploads.pixels(asked.photograph))
        if asked.like:
            if asked.like not in self.gallery.rows:
                raise UsageError(f"image {asked.like}: the model was trained without one of this id")
            return scoring.of_row(self.gallery.rows[asked.like])
        if not asked.sentence:
            raise UsageError("give a sentence")
        if len(asked.sentence) > LONGEST:
            raise UsageError(f"{QUERY} has more than {LONGEST:,} characters; give a sentence")
        given_pair("query", "none", asked.sentence, QUERY)
        return scoring.of_sentence(asked.sentence)
