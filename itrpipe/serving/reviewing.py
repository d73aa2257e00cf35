"""Judging candidates in a browser: the next ones, answers, and what these tell so far."""

from __future__ import annotations

import threading
from dataclasses import asdict
from typing import Any

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import UsageError
from itrpipe.review.decisions import ANSWERS, UNDONE, DecisionFile
from itrpipe.review.queue import DOUBTFUL, GUARD, HARMFUL, LIKELY, ORDERS, RANDOM, SAMPLE, Candidates, Queue

AT_ONCE = 20
"""Candidates that a page asks for, so that the next ones are there before their turn."""
LONGEST_NAME = 80
ORDER_TITLES = {
    SAMPLE: "sample: at random, which tells the share of false negatives",
    GUARD: "guard: at random among those that the guard takes for false",
    DOUBTFUL: "doubtful: nearest to a probability of one half first",
    HARMFUL: "harmful: highest score first",
}


class Reviews:
    """The candidates of one list with the decisions on them.

    Args:
        candidates: what is judged.
        file: where decisions are kept.
    """

    def __init__(self, candidates: Candidates, file: DecisionFile) -> None:
        self.candidates, self.file = candidates, file
        split = PreparedDataset.open(candidates.prepared, tokens=False).split(candidates.split)
        self._texts = dict(zip(split.caption_ids.tolist(), split.texts, strict=True))
        self._own: dict[int, list[int]] = {}
        for caption, image in enumerate(candidates.owners.tolist()):
            self._own.setdefault(image, []).append(caption)
        self._queues: dict[str, Queue] = {}
        self._lock = threading.Lock()

    @property
    def orders(self) -> list[str]:
        """Those that the list has what it takes for."""
        known = self.candidates.probability
        lacking = set() if known is not None else {GUARD, DOUBTFUL}
        lacking |= {GUARD} if known is not None and not (known > LIKELY).any() else set()
        return [name for name in ORDERS if name not in lacking]

    def queue(self, order: str) -> Queue:
        """Candidates in an order.

        Raises:
            UsageError: there is no such order, or the list does not have what it takes.
        """
        if order not in self._queues:
            self._queues[order] = Queue(self.candidates, order)
        return self._queues[order]

    def upcoming(self, order: str, reviewer: str, count: int = AT_ONCE) -> list[dict[str, Any]]:
        """The next candidates of a reviewer, or of one who has no name yet, with all that a page shows of them."""
        answered = self.file.read().of(check_reviewer(reviewer)) if reviewer else {}
        return [self._shown(place) for place in self.queue(order).upcoming(answered, count)]

    def answer(self, order: str, reviewer: str, place: int, answer: str) -> dict[str, Any]:
        """Writes an answer, and tells what is known now.

        Raises:
            UsageError: there is no such candidate, answer or order.
        """
        if answer not in ANSWERS:
            raise UsageError(f"answer {answer!r}: there is none of this name; known: {', '.join(ANSWERS)}")
        if not 0 <= place < len(self.candidates):
            raise UsageError(f"candidate {place}: there are {len(self.candidates):,}")
        queue = self.queue(order)
        with self._lock:
            self.file.add([queue.judgement(place, check_reviewer(reviewer), answer)])
        return self.progress(order, reviewer)

    def undo(self, order: str, reviewer: str) -> dict[str, Any]:
        """Takes a reviewer's latest answer on a candidate of this list back, in whatever order it was given.

        Returns:
            The progress, and the candidate as `undone`; None where there is nothing to take back.

        Raises:
            UsageError: there is no such order.
        """
        queue = self.queue(order)
        with self._lock:
            latest = self.file.read().of(check_reviewer(reviewer))  # in the order in which they were given
            known = (place for pair in reversed(latest) if (place := self.candidates.place(*pair)) is not None)
            place = next(known, None)
            if place is not None:
                self.file.add([queue.judgement(place, check_reviewer(reviewer), UNDONE)])
        undone = None if place is None else self._shown(place)
        return {**self.progress(order, reviewer), "undone": undone}

    @property
    def reviewers(self) -> list[str]:
        """Names of those who have judged."""
        return self.file.read().reviewers

    def progress(self, order: str, reviewer: str) -> dict[str, Any]:
        """How much of an order a reviewer has judged, and the share of false negatives where it is random."""
        decisions, queue = self.file.read(), self.queue(order)
        found: dict[str, Any] = {"judged": queue.judged(decisions.of(reviewer)), "pairs": len(queue)}
        if order in RANDOM:
            found["share"] = asdict(queue.sampled(decisions))
        others = [(both, each) for both, each in decisions.agreements().items() if reviewer in both]
        found["agreements"] = [
            {"with": next(name for name in both if name != reviewer), **asdict(each)} for both, each in others
        ]
        return found

    def _shown(self, place: int) -> dict[str, Any]:
        own = self.candidates
        image, caption = int(own.images[place]), int(own.captions[place])
        image_id, caption_id = own.ids(place)
        return {
            "place": place,
            "image": image_id,
            "caption": self._texts[caption_id],
            "own_captions": [self._texts[str(own.caption_ids[each])] for each in self._own.get(image, [])],
            "own_image": str(own.image_ids[own.owners[caption]]),
            "rank": int(own.ranks[place]),
            "score": float(own.scores[place]),
            "probability": None if own.probability is None else float(own.probability[place]),
        }


def check_reviewer(name: str) -> str:
    """The name of a reviewer without blanks around it.

    Raises:
        UsageError: it is empty or too long.
    """
    name = name.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise UsageError(f"reviewer {name[:LONGEST_NAME]!r}: give a name of 1 to {LONGEST_NAME} printable characters")
    return name
