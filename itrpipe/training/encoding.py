"""Embeds all images and captions of every split with a trained model: a map over blocks of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from itrpipe.engine.work import Part, Work, numbered, resolve_device
from itrpipe.features.embeddings import EmbeddingWriter
from itrpipe.storage.parts import ArrayFile, write_arrays
from itrpipe.training.data import SplitData
from itrpipe.training.encode import encode_images, encode_texts
from itrpipe.training.reopened import Reopened
from itrpipe.training.splits import Sources

BLOCKS_PER_PART = 16
_VECTORS = "vectors"
_ENCODERS = {"images": encode_images, "texts": encode_texts}


class Encoding(Work[Reopened]):
    """Embeddings of images and captions; a part's file holds `vectors` [n, D] of consecutive rows of one side.

    Args:
        trained: folder of the model, which may be unfinished but for its weights.
        sources: what it was trained on.
        rows: split -> images and captions in it.
        block: rows per forward pass.
        device: `auto`, `cpu` or `cuda`.
    """

    title, unit, in_one_thread = "embedding all splits", "rows", True

    def __init__(
        self, trained: Path, sources: Sources, rows: Mapping[str, tuple[int, int]], block: int, device: str
    ) -> None:
        self._trained, self._sources, self._rows, self._block = trained, sources, rows, block
        self.device, self.key = device, str(block)

    def parts(self) -> list[Part]:
        """Consecutive rows of one side of one split."""
        size = BLOCKS_PER_PART * self._block
        contents = [
            (split, side, start, min(start + size, count))
            for split, counts in self._rows.items()
            for side, count in zip(_ENCODERS, counts, strict=True)
            for start in range(0, count, size)
        ]
        return numbered((stop - start, (split, side, start, stop)) for split, side, start, stop in contents)

    def open(self) -> Reopened:
        """The model."""
        return Reopened(self._trained, self._sources, torch.device(resolve_device(self.device)))

    def make(self, worker: Reopened, part: Part, path: Path) -> None:
        """Embeds some rows."""
        split, side, start, stop = part.content
        rows = np.arange(start, stop)
        found = _ENCODERS[side](worker.model, worker.split(split), worker.device, self._block, rows)
        write_arrays(path, {_VECTORS: np.concatenate(list(found))})

    def join(self, paths: Sequence[Path], target: Path, splits: Mapping[str, SplitData], measure: str) -> None:
        """Writes `embeddings.h5`; what an interrupted run has left there is replaced.

        Args:
            paths: of all parts.
            target: the file.
            splits: name -> data.
            measure: how two embeddings are compared.
        """
        target.unlink(missing_ok=True)
        parts = list(zip(self.parts(), paths, strict=True))
        for name, data in splits.items():
            own = [(part.content, path) for part, path in parts if part.content[0] == name]
            width, split = ArrayFile(own[0][1])[_VECTORS].shape[1], data.split
            about = (split.image_ids, split.caption_ids, split.caption_image, width, measure)
            with EmbeddingWriter(target, name, *about) as writer:
                for (_, side, start, _), path in own:
                    writer.write(side, start, ArrayFile(path)[_VECTORS].read())
