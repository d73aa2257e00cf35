"""Where a model sees the words of a sentence in an image that it found."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from itrpipe.analysis.word_maps import has_word_maps, pair_map
from itrpipe.training.data import Sources
from itrpipe.training.saved import load_model

_TOLD = ("text", "start", "end", "rows", "columns", "area", "values", "word_score")


class WordMaps:
    """Draws words over images.

    Args:
        trained: artifact of a model whose backbone can have word maps.
        sources: what it was trained on.
        device: `cpu` or `cuda`.

    Attributes:
        defined: whether this model has them.
    """

    def __init__(self, trained: Path, sources: Sources, device: str) -> None:
        self._saved, self._sources = load_model(trained), sources
        self._saved.model.to(device)
        self.defined = has_word_maps(self._saved)
        self._lock = threading.Lock()

    def of(self, split: str, image_id: str, sentence: str) -> list[dict[str, Any]]:
        """A row for each word, see `itrpipe.analysis.word_maps.word_maps`."""
        with self._lock:
            rows = pair_map(self._saved, self._sources, split, image_id, sentence)
        return [{name: row[name] for name in _TOLD} for row in rows]
