"""Encode the images or captions of a dataset once by an encoder that is never trained: the map `FrozenEncoding`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from itrpipe.encoders.encoder import TEXT, Encoder, open_encoder
from itrpipe.engine.work import Part, Work, resolve_device
from itrpipe.models.captions import PieceIds
from itrpipe.models.dual_encoder.declaration import NO_CHANGES
from itrpipe.storage.arrays import ArrayFile, array_writer, write_arrays
from itrpipe.training.data import FROZEN_VECTORS, PixelSplitData, Sources, TokenTexts
from itrpipe.training.encoding import VECTORS, SplitEncoder, row_parts
from itrpipe.training.saved import FROZEN_ENCODER, load_model

OpenedEncoder = tuple[SplitEncoder, dict[str, Any]]
"""An encoder, and the images or captions of every split."""


class FrozenEncoding(Work[OpenedEncoder]):
    """Vectors of a frozen encoder; a part's file holds those of consecutive images or captions of a split, [n, D].

    Args:
        settings: see `itrpipe.stages.encode.EncodeSettings`.
        inputs: folders of `prepare`, and of the training that has left the encoder as `start`.
        block: images or captions per forward pass.
        device: `auto`, `cpu` or `cuda`.
    """

    in_one_thread = True

    def __init__(
        self,
        settings: Any,
        inputs: Mapping[str, Path],
        block: int,
        device: str,
    ) -> None:
        self._settings = settings
        self._inputs = inputs
        self._sources = Sources(inputs["prepare"])
        self._block = block
        self.device = device
        self.key = str(block)
        self.unit = "captions" if settings.side == TEXT else "images"
        self.title = f"encoding {self.unit} once"
        _, splits, _ = self._sources.splits()
        self._counts = {}
        for name, split in splits.items():
            self._counts[name] = len(getattr(split, self.unit))

    def parts(self) -> list[Part]:
        """Return consecutive rows of every split."""
        return row_parts(self._counts, self._block)

    def encoder(self) -> tuple[Encoder, Any]:
        """Open the encoder, and the reader of captions for one of these.

        Raises:
            MissingInputError, DataError, UsageError: see `itrpipe.encoders.encoder.open_encoder`.
        """
        from itrpipe.models.dual_encoder.network import set_colours  # transformers is large

        settings = self._settings
        if settings.start_from:
            saved = load_model(self._inputs["start"])
            return getattr(saved.model, settings.side).eval(), saved.tokens
        pools = settings.pool, settings.pool  # there is one side
        encoder, _ = open_encoder(settings.encoder, settings.revision, (settings.side,), *pools)
        if settings.side == TEXT:
            return encoder.eval(), PieceIds.of(encoder, settings)
        set_colours(encoder, settings.normalisation)
        return encoder.eval(), None

    def open(self) -> OpenedEncoder:
        """Open the encoder, and every split; errors are those of `encoder`."""
        device = torch.device(resolve_device(self.device))
        encoder, tokens = self.encoder()
        _, splits, photographs = self._sources.splits()
        data: dict[str, Any] = {}
        for name, split in splits.items():
            if self._settings.side == TEXT:
                data[name] = TokenTexts.of(split, tokens)
            else:
                files: Any = photographs[name]
                data[name] = PixelSplitData(split, files, None, encoder.images, NO_CHANGES)
        return SplitEncoder(encoder.to(device), device, self._block), data

    def make(self, worker: OpenedEncoder, part: Part, path: Path) -> None:
        """Encode some images or captions."""
        encoder, splits = worker
        name, rows = part.content
        data = splits[name]
        order = np.asarray(rows)
        if self._settings.side == TEXT:
            order = order[np.argsort(data.lengths[order], kind="stable")]  # a block has little padding
            encoded = encoder.run(
                lambda texts: encoder.model.encode_texts(texts.tokens, texts.lengths), data.texts, order
            )
        else:
            encoded = encoder.run(lambda images: encoder.model.encode_images(images.pixels), data.images, order)
        vectors = torch.cat(list(encoded)).cpu().numpy()
        write_arrays(path, {VECTORS: vectors[np.argsort(order)]})

    def join(self, paths: Sequence[Path], folder: Path) -> dict[str, int]:
        """Write the vectors of every split into one file, and beside it the encoder, which trainings link to.

        An encoder of a joint model is a part of it, which no training keeps alone.

        Args:
            paths: of all parts.
            folder: of both.

        Returns:
            Number of vectors, and their width.
        """
        encoder, _ = self.encoder()
        if not encoder.is_joint:
            shutil.rmtree(folder / FROZEN_ENCODER, ignore_errors=True)  # of a run that was killed here
            encoder.save(folder / FROZEN_ENCODER)
        width = ArrayFile(paths[0])[VECTORS].shape[1]
        layout = {name: ("<f4", (count, width)) for name, count in self._counts.items()}
        with array_writer(folder / FROZEN_VECTORS, layout) as writer:
            for part, path in zip(self.parts(), paths, strict=True):
                name, rows = part.content
                writer.write(name, rows.start, ArrayFile(path)[VECTORS].read())
        return {self.unit: sum(self._counts.values()), "width": width}
