"""Images for a sentence, and images like another one, in a browser.

Shapes: N images, D embedding width.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from itrpipe.datasets.given import given_pair
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.errors import UsageError
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, compare, read_embeddings

if TYPE_CHECKING:
    from itrpipe.retrieval.model import RetrievalModel

RANKINGS_KEPT = 64
"""Queries whose rankings are kept, so that a page that loads on is not ranked again."""
MOST = 200
"""Answers at a time."""


class Searches:
    """Ranks the images of all splits.

    Args:
        trained: artifact of a model with embeddings.
        prepared: artifact of the dataset.
        device: where queries are encoded.
    """

    def __init__(self, trained: Path, prepared: Path, device: str = "auto") -> None:
        self._trained, self._device = trained, device
        dataset = PreparedDataset.open(prepared, tokens=False)
        parts = {name: read_embeddings(trained / EMBEDDINGS, name) for name in dataset.splits}
        self.measure = next(iter(parts.values())).measure
        self.splits = np.concatenate([[name] * len(each.image_ids) for name, each in parts.items()])
        self.image_ids = np.concatenate([each.image_ids for each in parts.values()])
        self._vectors = np.concatenate([each.images[:] for each in parts.values()])  # [N, D]
        self._row = {image_id: row for row, image_id in enumerate(self.image_ids.tolist())}
        self._captions: dict[str, list[str]] = {}
        for split in map(dataset.split, dataset.splits):
            owners = split.image_ids[split.caption_image].tolist()
            for image_id, text in zip(owners, split.texts, strict=True):
                self._captions.setdefault(image_id, []).append(text)
        self._model: RetrievalModel | None = None
        self._rankings: OrderedDict[tuple[str, str], tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def found(self, sentence: str, like: str, start: int, count: int) -> dict[str, Any]:
        """Some of the images that fit a query best.

        Args:
            sentence: what is looked for; empty where `like` is given.
            like: id of an image.
            start: rank of the first answer, from 0.
            count: how many are wanted.

        Raises:
            UsageError: there is no query, the sentence cannot be read, or there is no such image.
        """
        sentence = sentence.strip()
        with self._lock:
            order, scores = self._ranked(sentence, like)
        chosen = order[max(0, start) : max(0, start) + min(count, MOST)]
        answers = [
            {
                "image": str(self.image_ids[row]),
                "split": str(self.splits[row]),
                "score": float(scores[row]),
                "captions": self._captions.get(str(self.image_ids[row]), []),
            }
            for row in chosen.tolist()
        ]
        return {"answers": answers, "searched": len(order), "unknown": self._unknown(sentence)}

    def _ranked(self, sentence: str, like: str) -> tuple[np.ndarray, np.ndarray]:
        """All rows, best first, and their scores [N]."""
        query = (sentence, like)
        if query in self._rankings:
            self._rankings.move_to_end(query)
            return self._rankings[query]
        scores = self._scores(sentence, like)
        order = np.argsort(-scores, kind="stable")
        if like:
            order = order[order != self._row[like]]
        self._rankings[query] = order, scores
        if len(self._rankings) > RANKINGS_KEPT:
            self._rankings.popitem(last=False)
        return order, scores

    def _scores(self, sentence: str, like: str) -> np.ndarray:
        if like:
            if like not in self._row:
                raise UsageError(f"image {like}: the model was trained without one of this id")
            if self.measure != INNER_PRODUCT:
                raise UsageError(f"the model compares by {self.measure}, not image with image; search by a sentence")
            return self._vectors @ self._vectors[self._row[like]]
        if not sentence:
            raise UsageError("give a sentence")
        given_pair("query", "none", sentence, "the query")
        return compare(self._vectors, self.model.encode_texts([sentence]), self.measure)[:, 0]

    def _unknown(self, sentence: str) -> list[str]:
        return self.model.unknown_words(sentence) if sentence else []

    @property
    def model(self) -> RetrievalModel:
        """The model, opened with the first sentence."""
        if self._model is None:
            from itrpipe.retrieval.opening import load

            self._model = load(self._trained, device=self._device)
        return self._model
