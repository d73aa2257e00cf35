"""Scores every image of a split with every caption by a model without embeddings: a map over blocks of captions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from itrpipe.engine.work import Part, Work, numbered, resolve_device
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.parts import ArrayFile, write_arrays
from itrpipe.training.data import SplitData
from itrpipe.training.encode import encoded_blocks, score_block
from itrpipe.training.reopened import Reopened
from itrpipe.training.splits import Sources

_SCORES = "scores"


class Scoring(Work["_Scorer"]):
    """Scores of a split; a part's file holds `scores` [t, N] of consecutive captions with all images.

    Args:
        trained: folder of the model.
        sources: what it was trained on.
        split: name.
        block: images or captions per forward pass.
        device: `auto`, `cpu` or `cuda`.
    """

    unit, in_one_thread = "pairs", True

    def __init__(self, trained: Path, sources: Sources, split: str, block: int, device: str) -> None:
        self.title = f"scoring {split}"
        self._trained, self._sources, self._split, self._block = trained, sources, split, block
        self.device, self.key = device, str(block)

    def __getstate__(self) -> dict[str, Any]:
        """Each worker opens its own."""
        return {name: value for name, value in self.__dict__.items() if name != "opened"}

    @cached_property
    def opened(self) -> Reopened:
        """The model, opened once in every process."""
        return Reopened(self._trained, self._sources, torch.device(resolve_device(self.device)))

    @property
    def data(self) -> SplitData:
        """The split as the model was trained on it."""
        return self.opened.split(self._split)

    def parts(self) -> list[Part]:
        """Blocks of captions."""
        captions = self.data.num_captions
        starts = range(0, captions, self._block)
        blocks = [range(start, min(start + self._block, captions)) for start in starts]
        return numbered((self.data.num_images * len(block), block) for block in blocks)

    def open(self) -> _Scorer:
        """The model with the encodings of all images."""
        return _Scorer(self.opened, self.data, self._block)

    def make(self, worker: _Scorer, part: Part, path: Path) -> None:
        """Scores some captions."""
        write_arrays(path, {_SCORES: worker(np.asarray(part.content))})

    def join(self, paths: Sequence[Path]) -> SplitScores:
        """Scores of the whole split, from all parts."""
        data = self.data
        matrix = np.empty((data.num_images, data.num_captions), dtype=np.float32)
        for part, path in zip(self.parts(), paths, strict=True):
            matrix[:, part.content.start : part.content.stop] = ArrayFile(path)[_SCORES].read().T
        return SplitScores(matrix, data.split.image_ids, data.split.caption_ids, data.split.caption_image)


class _Scorer:
    """A model with the encodings of all images of a split, block by block."""

    def __init__(self, opened: Reopened, data: SplitData, block: int) -> None:
        self._opened, self._data = opened, data
        self._images = encoded_blocks(opened.model, data, opened.device, block)

    def __call__(self, captions: np.ndarray) -> np.ndarray:
        """Scores [t, N] float32 of captions [t] with all images."""
        texts = self._data.texts(captions).to(self._opened.device)
        columns = score_block(self._opened.model, self._images, texts, self._opened.precision)
        return torch.cat(list(columns)).T.contiguous().cpu().numpy()
