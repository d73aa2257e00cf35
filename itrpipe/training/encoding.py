"""Run a model over splits: `SplitEncoder` encodes and scores, `Encoding` and `Scoring` do it as maps over parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from itrpipe.datasets.prepared import Split
from itrpipe.engine.work import Part, Work, Worker, cut, numbered, resolve_device
from itrpipe.features.embeddings import SplitScores, embedding_writer
from itrpipe.models.base import at_least_single, change_tensors
from itrpipe.storage.arrays import ArrayFile, write_arrays
from itrpipe.training.batches import blocks, feed
from itrpipe.training.data import Sources, SplitData, reopened
from itrpipe.training.saved import SavedModel, chosen_precision, load_model
from itrpipe.training.settings import AS_TRAINED

_BLOCKS_AT_ONCE = 8
"""Blocks whose embeddings are copied from a GPU together."""


@dataclass(frozen=True)
class SplitEncoder:
    """Runs a model over rows of splits.

    Attributes:
        model: in evaluation mode, on `device`.
        device: where to compute.
        block: images or captions per forward pass.
        precision: `bf16` computes the scores of pairs in bfloat16.
        embed_precision: `bf16` computes encodings in bfloat16; they are kept in single precision all the same.
    """

    model: Any
    device: torch.device
    block: int
    precision: str = "fp32"
    embed_precision: str = "fp32"

    @classmethod
    def of(cls, saved: SavedModel, device: torch.device, block: int) -> SplitEncoder:
        """Return the encoder of a trained model, which is moved to the device, in the precisions of its settings."""
        config = saved.config
        embed_precision = config["embed_precision"]
        if embed_precision == AS_TRAINED:
            embed_precision = chosen_precision(config["precision"], device)
        return cls(saved.model.to(device), device, block, config["score_precision"], embed_precision)

    def images(self, data: Any, rows: np.ndarray) -> Iterator[Any]:
        """Yield the encodings of the images of the given rows, block by block; `data.images` reads a block."""
        return self.run(self.model.encode_images, data.images, rows)

    def texts(self, data: Any, rows: np.ndarray) -> Iterator[Any]:
        """Yield the encodings of the captions of the given rows, block by block; `data.texts` reads a block."""
        return self.run(self.model.encode_texts, data.texts, rows)

    @torch.inference_mode()
    def scores(
        self, images: Iterable[Any], texts: Iterable[Any], advance: Callable[[int], object] = lambda pairs: None
    ) -> np.ndarray:
        """Score images with captions.

        Args:
            images, texts: encodings of N images and of T captions, block by block.
            advance: called with the number of pairs done after each pair of blocks.

        Returns:
            Scores [N, T] float32. The encodings of all N images are kept meanwhile.
        """
        image_blocks = list(images)
        columns = []
        for text_block in texts:
            scores = []
            for image_block in image_blocks:
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                    scores.append(self.model.score_matrix(image_block, text_block).float())
                advance(scores[-1].numel())
            columns.append(torch.cat(scores).cpu().numpy())
        return np.concatenate(columns, axis=1)

    @torch.inference_mode()
    def run(self, encode: Callable[[Any], Any], read: Callable[[np.ndarray], Any], rows: np.ndarray) -> Iterator[Any]:
        """Yield the encodings of rows, block by block; `read` reads a block and `encode` encodes it."""
        parts = blocks(len(rows), self.block)
        with closing(feed(lambda part: read(rows[part]), parts, 2, self.device)) as ready:
            for block in ready:
                with torch.autocast(self.device.type, torch.bfloat16, enabled=self.embed_precision == "bf16"):
                    encoding = encode(block)
                yield change_tensors(encoding, at_least_single)


def embeddings(encodings: Iterable[Any]) -> Iterator[np.ndarray]:
    """Yield embeddings [n, D] float32 of encoded blocks, of several at a time: each time a GPU is waited for."""
    blocks_left = iter(encodings)
    while True:
        vectors = [encoding.embedding for encoding in islice(blocks_left, _BLOCKS_AT_ONCE)]
        if not vectors:
            return
        yield torch.cat(vectors).cpu().numpy()


Opened = tuple[SplitEncoder, dict[str, SplitData]]
"""A trained model, and splits as it was trained on them."""


class _RunningModel(Work[Worker]):
    """A map over splits of the data that a trained model was trained on.

    Args:
        trained: folder of the model, which may be unfinished but for its weights.
        sources: the data that it was trained on.
        block: rows per forward pass.
        device: `auto`, `cpu` or `cuda`.
    """

    in_one_thread = True

    def __init__(
        self,
        trained: Path,
        sources: Sources,
        block: int,
        device: str,
    ) -> None:
        self._trained = trained
        self._sources = sources
        self._block = block
        self.device = device
        self.key = str(block)

    def opened(self, splits: Iterable[str]) -> Opened:
        """Open the model, and some splits."""
        saved = load_model(self._trained)
        encoder = SplitEncoder.of(saved, torch.device(resolve_device(self.device)), self._block)
        return encoder, reopened(saved, self._sources, splits)


_BLOCKS_PER_PART = 16
VECTORS = "vectors"


def row_parts(counts: Mapping[Any, int], block: int) -> list[Part]:
    """Cut rows into parts of consecutive ones, some blocks each.

    Args:
        counts: place, such as a split and a side of it -> number of its rows.
        block: rows per forward pass.

    Returns:
        Parts with a place and its rows as their content.
    """
    contents = []
    for place, count in counts.items():
        for part in cut(range(count), _BLOCKS_PER_PART * block):
            contents.append((part.rows, (place, part.content)))
    return numbered(contents)


class Encoding(_RunningModel[Opened]):
    """Embeddings of images and captions; a part's file holds `vectors` [n, D] of consecutive rows of one side.

    Args:
        trained, sources, block, device: as of every map of a model.
        splits: name -> data.
        encoder: of the model, where this process has it already; other processes open it.
    """

    title = "embedding all splits"
    unit = "rows"
    untold = ("_splits", "_encoder")
    _encoder: SplitEncoder | None = None

    def __init__(
        self,
        trained: Path,
        sources: Sources,
        block: int,
        device: str,
        splits: dict[str, SplitData],
        encoder: SplitEncoder | None,
    ) -> None:
        super().__init__(trained, sources, block, device)
        self._counts: dict[tuple[str, str], int] = {}
        for name, data in splits.items():
            self._counts[name, "images"] = data.num_images
            self._counts[name, "texts"] = data.num_captions
        self._splits = splits
        self._encoder = encoder

    def parts(self) -> list[Part]:
        """Cut each side of each split into consecutive rows."""
        return row_parts(self._counts, self._block)

    def open(self) -> Opened:
        """Open the model, and all splits."""
        if self._encoder is None:
            return self.opened({split for split, _ in self._counts})
        return self._encoder, self._splits

    def make(self, worker: Opened, part: Part, path: Path) -> None:
        """Embed some rows."""
        encoder, splits = worker
        (split, side), rows = part.content
        encodings = getattr(encoder, side)(splits[split], np.asarray(rows))
        write_arrays(path, {VECTORS: np.concatenate(list(embeddings(encodings)))})

    def join(self, paths: Sequence[Path], target: Path, measure: str) -> None:
        """Write `embeddings.h5`, in the place of the file of an interrupted run.

        Args:
            paths: of all parts.
            target: the file.
            measure: how two embeddings are compared.
        """
        target.unlink(missing_ok=True)
        parts = self.parts()
        width = ArrayFile(paths[0])[VECTORS].shape[1]
        for name, data in self._splits.items():
            split = data.split
            ids = split.image_ids, split.caption_ids
            with embedding_writer(target, name, *ids, split.caption_image, width, measure) as write:
                for part, path in zip(parts, paths, strict=True):
                    (split_name, side), rows = part.content
                    if split_name == name:
                        write(side, rows.start, ArrayFile(path)[VECTORS].read())


_SCORES = "scores"
_OpenedSplit = tuple[SplitEncoder, SplitData, list[Any]]
"""A trained model, a split, and the encodings of all its images, block by block."""


class Scoring(_RunningModel[_OpenedSplit]):
    """Score a split; a part's file holds `scores` [t, N] of consecutive captions with all images.

    Args:
        trained, sources, block, device: as of every map of a model.
        split: name.
    """

    unit = "pairs"

    def __init__(
        self,
        trained: Path,
        sources: Sources,
        block: int,
        device: str,
        split: str,
    ) -> None:
        super().__init__(trained, sources, block, device)
        self.title = f"scoring {split}"
        self._split = split

    @property
    def rows(self) -> Split:
        """Return the images and captions of the split that the model was trained on."""
        _, splits, _ = self._sources.splits([self._split])
        return splits[self._split]

    def parts(self) -> list[Part]:
        """Cut the captions into blocks."""
        split = self.rows
        images = len(split.image_ids)
        parts = cut(range(len(split.caption_ids)), self._block)
        return [replace(part, rows=images * part.rows) for part in parts]

    def open(self) -> _OpenedSplit:
        """Open the model and the split, and encode all its images, block by block."""
        encoder, splits = self.opened([self._split])
        data = splits[self._split]
        return encoder, data, list(encoder.images(data, np.arange(data.num_images)))

    def make(self, worker: _OpenedSplit, part: Part, path: Path) -> None:
        """Write scores [t, N] float32 of some captions [t] with all images."""
        encoder, data, images = worker
        scores = encoder.scores(images, encoder.texts(data, np.asarray(part.content)))
        write_arrays(path, {_SCORES: np.ascontiguousarray(scores.T)})

    def join(self, paths: Sequence[Path]) -> SplitScores:
        """Return the scores of the whole split, from all parts."""
        split = self.rows
        matrix = np.empty((len(split.image_ids), len(split.caption_ids)), dtype=np.float32)
        for part, path in zip(self.parts(), paths, strict=True):
            captions = part.content
            matrix[:, captions.start : captions.stop] = ArrayFile(path)[_SCORES].read().T
        return SplitScores(matrix, split.image_ids, split.caption_ids, split.caption_image)
