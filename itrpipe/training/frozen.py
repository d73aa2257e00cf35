"""Encodes the images or captions of a dataset once by an encoder that is never trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from itrpipe.datasets.definition import image_root
from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.engine.work import Part, Work, cut, numbered, resolve_device
from itrpipe.features.extraction import ImageFiles
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.captions import Cut, PieceIds, Reading
from itrpipe.models.declaration import RANDOM
from itrpipe.models.dual_encoder.declaration import NO_CHANGES, DualEncoder
from itrpipe.storage.arrays import ArrayFile, array_writer, write_arrays
from itrpipe.training.data import FROZEN_VECTORS, PixelSplitData, TokenTexts
from itrpipe.training.encoding import BLOCKS_PER_PART, SplitEncoder
from itrpipe.training.saved import load_model

_VECTORS = "vectors"
_TEXT = "text"


class FrozenModel:
    """A pretrained encoder as `SplitEncoder` runs models: its encodings are its own vectors.

    Args:
        encoder: on its device.
    """

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder

    def encode_images(self, images: ImageBatch) -> Tensor:
        """Return vectors [B, D] of images."""
        return self._encoder.encode_images(images.pixels)

    def encode_texts(self, texts: TextBatch) -> Tensor:
        """Return vectors [T, D] of captions."""
        return self._encoder.encode_texts(texts.tokens, texts.lengths)


def open_alone(settings: Any) -> tuple[Any, Any]:
    """Open the pretrained encoder of one side, and what turns captions into the ids that it reads.

    Args:
        settings: see `FrozenEncoding`.

    Raises:
        MissingInputError, DataError, UsageError: see `itrpipe.models.dual_encoder.network.open_encoders`.
    """
    from itrpipe.models.dual_encoder.network import open_encoders, open_text  # transformers is large

    if settings.side == _TEXT:
        options = DualEncoder(text=settings.encoder, text_revision=settings.revision)
        text: Any = open_text(options, settings.pool).text
        reading = Reading(settings.clean_captions, settings.max_words)
        return text, PieceIds(text.texts.tokenizer, reading, text.texts.max_tokens)
    options = DualEncoder(
        vision=settings.encoder,
        vision_revision=settings.revision,
        image_pool=settings.pool,
        normalisation=settings.normalisation,
        text=RANDOM,
    )
    return open_encoders(options).vision, None


Opened = tuple[SplitEncoder, dict[str, Any]]
"""An encoder, and what it reads of every split."""


class FrozenEncoding(Work[Opened]):
    """Vectors of a frozen encoder; a part's file holds those of consecutive images or captions of a split, [n, D].

    Args:
        settings: see `itrpipe.stages.encode.EncodeSettings`.
        inputs: folders of `prepare`, and of the training that has left the encoder as `start`.
        block: images or captions per forward pass.
        device: `auto`, `cpu` or `cuda`.
    """

    in_one_thread = True

    def __init__(self, settings: Any, inputs: Mapping[str, Path], block: int, device: str) -> None:
        self._settings = settings
        self._inputs = inputs
        self._block = block
        self.device = device
        self.key = str(block)
        self.unit = "captions" if settings.side == _TEXT else "images"
        self.title = f"encoding {self.unit} once"
        self._counts: dict[str, int] = {}
        for name, split in self._splits().items():
            self._counts[name] = len(getattr(split, self.unit))

    def parts(self) -> list[Part]:
        """Return consecutive rows of every split."""
        contents = []
        for name, count in self._counts.items():
            for part in cut(range(count), BLOCKS_PER_PART * self._block):
                contents.append((part.rows, (name, part.content)))
        return numbered(contents)

    def open(self) -> Opened:
        """Open the encoder, and every split."""
        settings = self._settings
        device = torch.device(resolve_device(self.device))
        if settings.start_from:
            saved = load_model(self._inputs["start"])
            encoder = getattr(saved.model, settings.side)
            tokens = saved.tokens
        else:
            encoder, tokens = open_alone(settings)
        data: dict[str, Any] = {}
        splits = self._splits()
        if settings.side == _TEXT:
            for name, split in splits.items():
                ids, lengths = tokens.encode_split(split)
                data[name] = TokenTexts(ids, lengths, Cut(0, ""))
        else:
            root = image_root(self._inputs["prepare"]).absolute()
            for name, split in splits.items():
                files = ImageFiles.of_split(root, split)
                data[name] = PixelSplitData(split, files, None, encoder.images, NO_CHANGES)
        return SplitEncoder(FrozenModel(encoder.eval().to(device)), device, self._block), data

    def make(self, worker: Opened, part: Part, path: Path) -> None:
        """Encode some images or captions."""
        encoder, data = worker
        name, rows = part.content
        order = np.asarray(rows)
        encode = encoder.images
        if self._settings.side == _TEXT:
            encode = encoder.texts
            order = order[np.argsort(data[name].lengths[order], kind="stable")]  # a block has little padding
        vectors = torch.cat(list(encode(data[name], order))).cpu().numpy()
        write_arrays(path, {_VECTORS: vectors[np.argsort(order)]})

    def join(self, paths: Sequence[Path], folder: Path) -> dict[str, int]:
        """Write the vectors of every split into one file.

        Args:
            paths: of all parts.
            folder: of the file.

        Returns:
            Number of vectors, and their width.
        """
        width = ArrayFile(paths[0])[_VECTORS].shape[1]
        layout = {name: ("<f4", (count, width)) for name, count in self._counts.items()}
        with array_writer(folder / FROZEN_VECTORS, layout) as writer:
            for part, path in zip(self.parts(), paths, strict=True):
                name, rows = part.content
                writer.write(name, rows.start, ArrayFile(path)[_VECTORS].read())
        return {self.unit: sum(self._counts.values()), "width": width}

    def _splits(self) -> dict[str, Split]:
        """Return the splits, of training images the share that is used."""
        prepared = PreparedDataset.open(self._inputs["prepare"])
        splits = {name: prepared.split(name) for name in prepared.splits}
        if "train" in splits:
            splits["train"] = splits["train"].share(self._settings.train_share)
        return splits
