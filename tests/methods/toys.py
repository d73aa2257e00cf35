"""Training sets and models that the tests of several methods share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.learning.false_negatives import Gaussians
from itrpipe.methods.declaration import INPUTS, MethodSettings, named_inputs
from itrpipe.models.base import EmbeddingModel, ImageBatch, ImageEncoding, TextBatch, TextEncoding
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import UniterEncoder, translate
from itrpipe.testing import IMAGE_DIM, VOCABULARY

FOLDER = Path(__file__).resolve().parents[1] / "reference"
WIDTH = 5


@dataclass(frozen=True)
class NumberedImages(ImageBatch):
    """Images that are row numbers; mirrored, each is the next one."""

    number: int = 0

    def mirrored(self, chosen: Tensor) -> NumberedImages:
        return replace(self, regions=(self.regions + chosen[:, None, None]) % self.number)


def built(build: Callable[..., Any], settings: MethodSettings, data: Any, **given: Any) -> Any:
    """A method with those of its inputs that are given, or that the training set has."""
    inputs = {name: getattr(data, name, None) for name in INPUTS} | {"lists": data.lists()} | given
    return build(settings, data, **{name: inputs[name] for name in named_inputs(build)})


class KnownPairs:
    """A training set with two captions an image, whose embeddings are known: rows of two tables."""

    def __init__(self, images: int = 6) -> None:
        generator = torch.Generator().manual_seed(3)
        self.caption_image = np.repeat(np.arange(images), 2)
        self.image_table = F.normalize(torch.randn(images, WIDTH, generator=generator), dim=1)
        self.text_table = F.normalize(torch.randn(2 * images, WIDTH, generator=generator), dim=1)

    def texts(self, rows: np.ndarray) -> TextBatch:
        return TextBatch(torch.from_numpy(rows)[:, None], torch.ones(len(rows), dtype=torch.int64))

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        numbers = torch.from_numpy(images).float()[:, None, None]
        return NumberedImages(numbers, number=len(self.image_table)), self.texts(captions)

    def lists(self) -> dict[str, np.ndarray]:
        """Every foreign text and image of every anchor."""
        images = np.arange(self.caption_image[-1] + 1)
        return {
            "texts_for_images": np.stack([np.flatnonzero(image != self.caption_image) for image in images]),
            "images_for_texts": np.stack([np.delete(images, image) for image in self.caption_image]),
        }


class Lookup(EmbeddingModel):
    """Encodes a row number as that row of the table."""

    def __init__(self, rows: KnownPairs, auxiliary: float | None = None) -> None:
        super().__init__()
        self.images, self.words = torch.nn.Parameter(rows.image_table), torch.nn.Parameter(rows.text_table)
        self._auxiliary = auxiliary

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        return ImageEncoding(self.images[images.regions[:, 0, 0].long()])

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        return TextEncoding(self.words[texts.tokens[:, 0]])

    def auxiliary_loss(self, images: ImageEncoding, texts: TextBatch) -> Tensor | None:
        return None if self._auxiliary is None else torch.tensor(self._auxiliary)


def small_uniter(dropout: float = 0.0, std: float = 0.3) -> UniterEncoder:
    """Reads toy pairs, in training mode; matrices of deviation `std`, so that what can be seen is seen."""
    torch.manual_seed(0)
    sizes = Uniter(embed_dim=16, layers=2, heads=2, feed_forward_dim=24, max_words=8, dropout=dropout)
    model = UniterEncoder(sizes, IMAGE_DIM, VOCABULARY + 1)
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=std)
    return model.train()


def reference(name: str) -> dict[str, Tensor]:
    """The arrays of a file of references."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file if file[key].dtype.kind != "U"}


def reference_uniter(*parts: dict[str, Tensor]) -> UniterEncoder:
    """The model whose weights the references hold, in training mode without dropout, as they were made."""
    sizes = Uniter(embed_dim=48, layers=2, heads=4, feed_forward_dim=96, dropout=0.0, max_words=40)
    model = UniterEncoder(sizes, 32, 120)
    state = {name[3:]: each for part in parts for name, each in part.items() if name.startswith("sd/")}
    model.load_state_dict(translate(state), strict=False)
    return model.train()


def gaussians(mean=(0.66, 0.35), variance=(0.006, 0.009), count=(1000.0, 2000.0)) -> Gaussians:
    """Distributions of similarities of matches and mismatches."""
    return Gaussians(*(torch.tensor(values, dtype=torch.float32) for values in (mean, variance, count)))


def of_case(recorded: dict[str, Tensor], case: str) -> Gaussians:
    """Those of a case of the references of FNE."""
    mean, variance = ([float(recorded[f"{case}/{name}_{side}"]) for side in ("pos", "neg")] for name in ("mu", "var"))
    count = float(recorded[f"{case}/count_pos"])
    return gaussians(mean, variance, (count, 2 * count))
