"""Scores of a split by a trained model whose images were replaced: what is left of recall then came from elsewhere.

A model finds the image of a caption by what it sees in it. When every image has the features of another one, or noise,
recall falls to chance. A protocol that lets a caption look at its own image before the ranking, or rows that give away
which belong together, do not show in any other number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from itrpipe.analysis.phrase_analysis import PhraseModel
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.features.embeddings import SplitEmbeddings
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.base import DualEncoder, ImageBatch, TextBatch
from itrpipe.training.data import SplitData, blocks
from itrpipe.training.encode import AnyMatcher, Rows, encode_images, encode_texts, score_split
from itrpipe.training.saved import load_model
from itrpipe.training.splits import Sources, open_split

CONTENT = ("regions", "global_", "pixels")
"""What an image batch holds of the content of images; boxes and counts come with the exchanged image."""


@dataclass(frozen=True)
class TrainedModel:
    """A trained model and a split that it reads.

    Attributes:
        model: in evaluation mode, on `device`.
        data: the split.
        device: where to compute.
        precision: of the scores of pairs, as the model was evaluated in training.
    """

    model: AnyMatcher
    data: SplitData
    device: torch.device
    precision: str

    @classmethod
    def open(cls, folder: Path, sources: Sources, split: str, device: str) -> TrainedModel:
        """Reads a trained model and opens a split for it.

        Args:
            folder: artifact of `train`.
            sources: what the model was trained on.
            split: name.
            device: `cpu` or `cuda`.

        Raises:
            DataError: the features are not what the model reads, or a file is damaged.
        """
        saved = load_model(folder)
        precision = saved.config.get("score_precision", "fp32")  # older models have no such setting
        if saved.settings.reads_phrases:
            opened = PhraseModel.open(folder, sources, split, device)
            return cls(opened.model, opened.data, opened.device, precision)
        rows, features = (
            PreparedDataset.open(sources.prepare).split(split),
            FeatureFile.open(sources.extract / FEATURES),
        )
        data, place = open_split(rows, features, saved.tokens, saved.settings, saved.frame), torch.device(device)
        return cls(saved.model.to(place), data, place, precision)

    def scores(self, rows: Rows, block: int, advance: Callable[[int], object] = lambda pairs: None) -> np.ndarray:
        """Scores [N, T] of all images with all captions of `rows`, by the functions that training writes them with.

        Args:
            rows: the split, or the same with other images.
            block: images or captions per forward pass.
            advance: called with the number of pairs done.
        """
        if not isinstance(self.model, DualEncoder):
            captions = np.arange(rows.num_captions)
            return score_split(self.model, rows, self.device, block, rows.num_images, captions, self.precision, advance)
        images, texts = (
            np.concatenate(list(encode(self.model, rows, self.device, block)))
            for encode in (encode_images, encode_texts)
        )
        split = self.data.split
        ids = (split.image_ids[: len(images)], split.caption_ids[: len(texts)], split.caption_image[: len(texts)])
        found = SplitEmbeddings(images, ids[0], texts, ids[1], ids[2], self.model.measure).scores()
        advance(found.size)
        return found


class FirstRows:
    """The first images of a split, with their captions.

    Args:
        data: the split.
        images: how many, where there are so many.
    """

    def __init__(self, data: SplitData, images: int) -> None:
        self._data = data
        self.num_images = min(images, data.num_images)
        # Captions stand in the order of their images.
        self.num_captions = int(np.searchsorted(data.caption_image, self.num_images))

    def images(self, rows: np.ndarray) -> ImageBatch:
        """The given image rows [B]."""
        return self._data.images(rows)

    def texts(self, rows: np.ndarray) -> TextBatch:
        """The given caption rows [T]."""
        return self._data.texts(rows)


class ExchangedImages:
    """A split in which every image has all that is known of another image.

    Args:
        data: the split, of two images or more.
        seed: of the exchange.

    Attributes:
        source: [N] row of the image whose features each image has; never its own.
    """

    def __init__(self, data: Rows, seed: int) -> None:
        self._data = data
        # All images in one ring, in random order, each with the features of the one before it.
        ring = np.random.default_rng(seed).permutation(data.num_images)
        self.source = np.empty_like(ring)
        self.source[ring] = np.roll(ring, 1)

    @property
    def num_images(self) -> int:
        """N."""
        return self._data.num_images

    @property
    def num_captions(self) -> int:
        """T."""
        return self._data.num_captions

    def images(self, rows: np.ndarray) -> ImageBatch:
        """What is known of the images that take the place of the given rows [B]."""
        return self._data.images(self.source[rows])

    def texts(self, rows: np.ndarray) -> TextBatch:
        """The given caption rows [T] as they are."""
        return self._data.texts(rows)


class NoiseImages(ExchangedImages):
    """A split of images with normal noise in the place of their content.

    Every channel keeps the mean and the deviation that it has over the split. Boxes and numbers of regions, which say
    something of an image as well, are those of another one.

    Args:
        data: the split.
        seed: of noise and exchange; the noise of an image does not depend on how the split is cut into blocks.
        block: images whose channels are measured at a time.
    """

    def __init__(self, data: Rows, seed: int, block: int) -> None:
        super().__init__(data, seed)
        self._seed = seed
        self._moments = _moments(data, block)

    def images(self, rows: np.ndarray) -> ImageBatch:
        """Noise for the given image rows [B]."""
        batch = super().images(rows)
        noise = {name: self._noise(name, _content(batch, name), rows) for name in self._moments}
        if batch.count is not None and "regions" in noise:
            real = torch.arange(batch.regions.shape[1]) < batch.count[:, None]
            noise["regions"] = noise["regions"] * real[..., None]
        return replace(batch, **noise)

    def _noise(self, name: str, content: Tensor, rows: np.ndarray) -> Tensor:
        size = tuple(content.shape[1:])
        drawn = [np.random.default_rng([self._seed, row]).standard_normal(size, dtype=np.float32) for row in rows]
        mean, deviation = self._moments[name]
        noise = mean + deviation * torch.from_numpy(np.stack(drawn))
        return (noise if content.is_floating_point() else noise.round().clamp(0, 255)).to(content.dtype)


def _content(batch: ImageBatch, name: str) -> Tensor:
    found = getattr(batch, name)
    assert isinstance(found, Tensor)
    return found


def _moments(data: Rows, block: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and deviation of every channel of what there is of `CONTENT`, shaped to be used with a batch of it."""
    totals: dict[str, Tensor] = {}
    for rows in blocks(data.num_images, block):
        batch = data.images(rows)
        for name in CONTENT:
            content = getattr(batch, name)
            if content is not None and content.numel():
                values = _rows_of_channels(name, content, batch.count).double()
                sums = torch.stack([torch.full_like(values[0], len(values)), values.sum(dim=0), (values**2).sum(dim=0)])
                totals[name] = totals[name] + sums if name in totals else sums
    moments = {}
    for name, (count, total, squares) in totals.items():
        mean = total / count
        deviation = (squares / count - mean**2).clamp_min(0).sqrt()
        shape = (-1, 1, 1) if name == "pixels" else (-1,)
        moments[name] = (mean.float().view(shape), deviation.float().view(shape))
    return moments


def _rows_of_channels(name: str, content: Tensor, count: Tensor | None) -> Tensor:
    """The values [n, channels] of a batch, without padding."""
    if name == "pixels":
        return content.permute(0, 2, 3, 1).flatten(0, 2)
    if name == "regions" and count is not None:
        return content[torch.arange(content.shape[1]) < count[:, None]]
    return content.flatten(0, -2)
