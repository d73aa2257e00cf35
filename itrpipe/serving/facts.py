"""What is odd in a dataset: images that cannot be used, images in two splits, captions that stand under several images,
and images that look alike.

Shapes: N images, D embedding width.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.artifacts.artifact import read_manifest
from itrpipe.artifacts.files import LEAKS
from itrpipe.artifacts.integrity import checked
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.mining.duplicates import plain_text
from itrpipe.serving.gallery import Embedded, Gallery

SHOWN = 100
"""Rows of each list; how many there are beyond them is said."""
ALIKE = 30
"""Pairs of images that look alike."""
_BLOCK = 256


@dataclass(frozen=True)
class Listed:
    """The first of some findings.

    Attributes:
        rows: of them.
        count: of all.
    """

    rows: list[Any]
    count: int

    @classmethod
    def of(cls, found: list[Any]) -> Listed:
        """The first `SHOWN`."""
        return cls(found[:SHOWN], len(found))


class Facts:
    """Looks through a dataset.

    Args:
        prepared: artifact of the dataset.
        gallery: its images with their embeddings.
    """

    def __init__(self, prepared: Path, gallery: Gallery) -> None:
        self._prepared, self._gallery = prepared, gallery
        self._alike: dict[str, list[dict[str, Any]]] | None = None
        self._lock = threading.Lock()

    @cached_property
    def shown(self) -> dict[str, Any]:
        """What the page shows at once.

        Raises:
            DataError: a file of the artifact is damaged.
        """
        manifest, dataset = read_manifest(self._prepared), PreparedDataset.open(self._prepared, tokens=False)
        return {
            "counts": dataset.counts(),
            "refused": Listed.of(sorted(manifest.failed.items())),
            "leaks": Listed.of(self._leaks(dataset)),
            "repeated": Listed.of(repeated(self._gallery.captions)),
            "compares": self._gallery.compares_images,
        }

    def alike(self) -> dict[str, list[dict[str, Any]]]:
        """The images whose embeddings are nearest to each other: `across` two splits, and `within` one.

        They are computed once: N x N products, of which no more than `_BLOCK` x N are in memory.
        """
        with self._lock:
            if self._alike is None:
                self._alike = self._nearest() if self._gallery.compares_images else {}
            return self._alike

    def _nearest(self) -> dict[str, list[dict[str, Any]]]:
        assert isinstance(self._gallery.scoring, Embedded)
        splits = np.unique(self._gallery.places, return_inverse=True)[1]
        across, within = nearest_pairs(self._gallery.scoring.vectors, splits, ALIKE)
        return {"across": [self._pair(*each) for each in across], "within": [self._pair(*each) for each in within]}

    def _pair(self, first: int, second: int, score: float) -> dict[str, Any]:
        gallery, pair = self._gallery, (first, second)
        images, splits = ([own[row] for row in pair] for own in (gallery.image_ids, gallery.places))
        return {"images": images, "splits": splits, "score": score}

    def _leaks(self, dataset: PreparedDataset) -> list[dict[str, Any]]:
        """Images of two splits that are the same byte for byte."""
        if LEAKS not in read_manifest(self._prepared).outputs:
            return []
        splits = map(dataset.split, dataset.splits)
        ids = {file: str(each) for split in splits for file, each in zip(split.files, split.image_ids, strict=True)}
        _, *lines = checked(self._prepared / LEAKS).read_text(encoding="utf-8").splitlines()
        rows = (line.split("\t") for line in lines)
        return [{"images": [ids[first], ids[second]], "splits": [one, other]} for first, one, second, other in rows]


def repeated(captions: Mapping[str, Sequence[str]]) -> list[tuple[str, list[str]]]:
    """Captions that stand under several images, whatever their case and punctuation, with the ids of these images.

    Those of most images come first, equal ones in the order of the dataset.
    """
    images: dict[str, dict[str, None]] = {}
    written: dict[str, str] = {}
    for image_id, texts in captions.items():
        for text in texts:
            plain = plain_text(text)
            written.setdefault(plain, text)
            images.setdefault(plain, {})[image_id] = None
    found = [(written[plain], list(ids)) for plain, ids in images.items() if plain and len(ids) > 1]
    return sorted(found, key=lambda each: -len(each[1]))


Pairs = list[tuple[int, int, float]]


def nearest_pairs(vectors: np.ndarray, groups: np.ndarray, count: int) -> tuple[Pairs, Pairs]:
    """Rows whose inner product is largest, best first, each with the nearest one of the rows after it.

    Args:
        vectors: [N, D] float32.
        groups: [N] int64, of each row.
        count: how many pairs are wanted.

    Returns:
        Those of two groups, and those of one.
    """
    total = len(vectors)
    best, partner = np.full((2, total), -np.inf, dtype=np.float32), np.zeros((2, total), dtype=np.int64)
    for start in range(0, total, _BLOCK):
        part = slice(start, min(start + _BLOCK, total))
        scores = vectors[part] @ vectors[start:].T
        scores[:, : len(scores)][np.tril_indices(len(scores))] = -np.inf
        same = groups[part, None] == groups[None, start:]
        for kind, hidden in enumerate((same, ~same)):
            shown = np.where(hidden, np.float32(-np.inf), scores)
            partner[kind, part], best[kind, part] = start + shown.argmax(axis=1), shown.max(axis=1)
    across, within = (_first(best[kind], partner[kind], count) for kind in range(2))
    return across, within


def _first(best: np.ndarray, partner: np.ndarray, count: int) -> Pairs:
    rows = np.argsort(-best, kind="stable")[:count]
    return [(row, int(partner[row]), float(best[row])) for row in rows.tolist() if np.isfinite(best[row])]
