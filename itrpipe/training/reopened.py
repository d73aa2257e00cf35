"""A trained model with the splits that it reads, opened again."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.training.data import SplitData
from itrpipe.training.phrase_data import PhraseSplitData
from itrpipe.training.saved import load_model
from itrpipe.training.splits import Sources, open_split, usable


class Reopened:
    """A trained model and the splits that it reads.

    Args:
        trained: folder of the model, of which its weights, settings and tokens are there.
        sources: what it was trained on.
        device: where it computes.

    Attributes:
        model: in evaluation mode.
        device: where it is.
        precision: of the scores of pairs.
    """

    def __init__(self, trained: Path, sources: Sources, device: torch.device) -> None:
        self._saved, self._sources, self.device = load_model(trained), sources, device
        self.model: Any = self._saved.model.to(device)
        self.precision: str = self._saved.config.get("score_precision", "fp32")  # older models have no such setting
        self._splits: dict[str, SplitData] = {}
        self._opening = threading.Lock()  # several parts may be made at the same time

    def split(self, name: str) -> SplitData:
        """A split as the model was trained on it: of training images the same share, and those that have features.

        Raises:
            DataError: the features are not what the model reads, or a file is damaged.
        """
        with self._opening:
            if name not in self._splits:
                self._splits[name] = self._open(name)
            return self._splits[name]

    def _open(self, name: str) -> SplitData:
        saved, settings, features = (
            self._saved,
            self._saved.settings,
            FeatureFile.open(self._sources.extract / FEATURES),
        )
        split = usable(PreparedDataset.open(self._sources.prepare).split(name), features, self._sources.train_share)
        if not settings.reads_phrases:
            return open_split(split, features, saved.tokens, settings, saved.frame)
        from itrpipe.scene_graph.phrases import CaptionPhrases

        assert self._sources.parse is not None
        own: Any = settings
        phrases = CaptionPhrases.read(self._sources.parse, own.max_words)
        return PhraseSplitData(split, features, saved.vocabulary, phrases, own.phrases)
