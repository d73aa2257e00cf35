"""Judges that look at photographs: one after the other, each together with its captions.

Shapes: P pairs, n captions, H and W height and width of a photograph.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from itrpipe.encoders.encoder import open_network, open_processor, refuse_other_tokens
from itrpipe.engine.work import cut, resolve_device
from itrpipe.errors import DataError, UsageError
from itrpipe.features.extraction import Decoders, decode_image
from itrpipe.judging.material import Material
from itrpipe.storage.disk import reading

_DECODERS = 2
"""Threads. To look at a photograph takes longer than to decode it."""


class PhotographJudge(ABC):
    """A judge that keeps what its network sees of a photograph, and asks about its captions.

    Args:
        network: of transformers.
        processor: of the same folder.
        material: with photographs.

    Raises:
        UsageError: there are none.

    Attributes:
        batch: captions at a time.
        network, processor: as given.
    """

    batch: ClassVar[int]

    def __init__(self, network: Any, processor: Any, material: Material) -> None:
        if material.photographs is None:
            raise UsageError("this judge looks at photographs, and there are none; name a judge that reads captions")
        self.network = network
        self.processor = processor
        self._material = material
        self._photographs = material.photographs
        self._turn: Any = nullcontext()  # held from looking at a photograph until the last answer about it

    @abstractmethod
    def look(self, photograph: Image.Image) -> Any:
        """Return what is kept of a photograph while its captions are asked about."""

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
        texts = [self._material.captions[row] for row in captions.tolist()]
        order = np.lexsort((np.array([len(text) for text in texts]), images))
        rows, counts = np.unique(images, return_counts=True)
        scores = np.zeros(len(images), np.float32)
        decode = partial(decode_image, self._photographs, transform=np.asarray)
        decoders = Decoders(_DECODERS)
        decoded = decoders.ahead([[row] for row in rows.tolist()], decode, list, _DECODERS)
        try:
            for row, end, count, (_, pixels, refused) in zip(rows, np.cumsum(counts), counts, decoded, strict=True):
                for reason in refused.values():
                    raise DataError(f"the photograph of image {row} {reason}; restore the file, or prepare again")
                with self._turn:
                    with reading(f"image {row}", "a photograph for this model", "leave it out"):
                        seen = self.look(Image.fromarray(pixels[0]))
                    for part in cut(order[end - count : end], self.batch):
                        batch = [texts[place] for place in part.content]
                        scores[part.content] = self.ask(seen, batch).cpu()
        finally:
            decoders.stop()
        return scores

    def own(self, captions: np.ndarray) -> np.ndarray:
        """Return the log-odds [n] float32 of captions [n] with their own images; NaN for nobody's."""
        owners = self._material.owners[captions]
        scores = np.full(len(captions), np.nan, np.float32)
        owned = owners >= 0
        scores[owned] = self(owners[owned], captions[owned])
        return scores


def open_reader(folder: Path, kind: str, device: str) -> tuple[Any, Any]:
    """Open a network that reads images and captions together, and its processor.

    Args:
        folder, kind: see `itrpipe.encoders.encoder.open_network`.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        UsageError, MissingInputError, DataError: see `open_network` and `open_processor` there.
    """
    network = open_network(folder, kind).to(resolve_device(device))
    processor = open_processor(folder)
    refuse_other_tokens(folder, processor.tokenizer, network)
    return network, processor
