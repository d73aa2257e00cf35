"""Judges that look at photographs: one after the other, each together with its captions.

Shapes: P pairs, n captions, H and W height and width of a photograph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from itrpipe.engine.work import cut
from itrpipe.errors import DataError, UsageError
from itrpipe.features.extraction import Decoders, decode_image
from itrpipe.judging.material import Material
from itrpipe.storage.disk import reading

_DECODERS = 2
"""Threads. To look at a photograph takes longer than to decode it."""


class PhotographJudge(ABC):
    """A judge that keeps what it sees of a photograph, and asks it about captions.

    Args:
        material: with photographs.

    Raises:
        UsageError: there are none.

    Attributes:
        batch: captions at a time.
        turn: held by the thread that looks at a photograph and asks about it.
    """

    batch: ClassVar[int]
    turn: AbstractContextManager[Any] = nullcontext()

    def __init__(self, material: Material) -> None:
        if material.photographs is None:
            raise UsageError("this judge looks at photographs, and there are none; name a judge that reads captions")
        self._photographs = material.photographs
        self._captions = material.captions
        self._owners = material.owners

    @abstractmethod
    def look(self, image: np.ndarray) -> Any:
        """Return what is kept of a photograph [H, W, 3] uint8 RGB while its captions are asked about."""

    @abstractmethod
    def ask(self, seen: Any, texts: list[str]) -> Tensor:
        """Return the log-odds [n] that captions fit what was seen."""

    @torch.inference_mode()
    def __call__(self, images: np.ndarray, captions: np.ndarray) -> np.ndarray:
        """Return the log-odds [P] float32 of rows [P] and [P]; every photograph is decoded and seen once.

        Raises:
            DataError: a photograph cannot be used.
            UnavailableError: the disk cannot give one now.
        """
        lengths = [len(self._captions[row]) for row in captions]
        order = np.lexsort((lengths, images))
        rows, counts = np.unique(images, return_counts=True)
        scores = np.zeros(len(images), np.float32)
        decode = partial(decode_image, self._photographs, transform=np.asarray)
        decoders = Decoders(_DECODERS)
        try:
            decoded = decoders.ahead([[row] for row in rows.tolist()], decode, list, _DECODERS)
            for row, end, count, (_, pixels, refused) in zip(rows, np.cumsum(counts), counts, decoded, strict=True):
                for reason in refused.values():
                    raise DataError(f"the photograph of image {row} {reason}; restore the file, or prepare again")
                with self.turn:
                    with reading(f"the photograph of image {row}", "an image for this model", "leave the image out"):
                        seen = self.look(pixels[0])
                    for part in cut(order[end - count : end], self.batch):
                        texts = [self._captions[row] for row in captions[part.content]]
                        scores[part.content] = self.ask(seen, texts).cpu()
        finally:
            decoders.stop()
        return scores

    def own(self, captions: np.ndarray) -> np.ndarray:
        """Return the log-odds [n] float32 of captions [n] with their own images; NaN for nobody's."""
        owners = self._owners[captions]
        scores = np.full(len(captions), np.nan, np.float32)
        owned = owners >= 0
        scores[owned] = self(owners[owned], captions[owned])
        return scores
