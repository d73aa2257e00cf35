"""Small backbones of any name and the pairs they read; and what released code gave for recorded weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.declaration import backbone_family, backbones, network_module
from itrpipe.testing import FRAME, GLOBAL_DIM, IMAGE_DIM, VOCABULARY, ToyPairs

SIZES = {
    **dict.fromkeys(("embed_dim", "word_dim", "feed_forward_dim", "caption_dim", "caption_word_dim", "width"), 12),
    **dict.fromkeys(("layers", "vision_layers", "text_layers", "graph_layers", "heads", "text_heads"), 2),
    **dict.fromkeys(("vision", "text"), "random"),
    "text_width": 12,
    "image_size": FRAME,
    "max_words": 32,
}
PUBLISHED = {"embed_dim": 48, "heads": 4, "feed_forward_dim": 96, "max_words": 40}
PUBLISHED |= {"image_dim": 32, "vocabulary_size": 119}  # of the recorded UNITER
REFERENCE = Path(__file__).resolve().parents[1] / "reference"


def built(
    name: str, *, image_dim: int = IMAGE_DIM, vocabulary_size: int = VOCABULARY, boxes: bool = True, **options: Any
) -> Any:
    """A small model of a backbone, or of a variant of one, in evaluation mode."""
    torch.manual_seed(0)
    kind = backbones()[backbone_family(name)]
    settings = kind(**{key: value for key, value in SIZES.items() if key in kind.model_fields} | options)
    module = network_module(name)
    opened = [module.open_encoders(settings, GLOBAL_DIM, boxes)] if settings.opens_encoders else []
    return module.build(settings, image_dim, vocabulary_size, *opened).eval()


def toys(images: int = 3, captions: int = 4, uneven: bool = True) -> tuple[ImageBatch, TextBatch]:
    """Images of two to four regions, or of four each, and captions of five to eight tokens."""
    data = ToyPairs(uneven=uneven)
    return data.images(np.arange(images)), data.texts(np.arange(captions))


def encoded(model: Any, images: ImageBatch, texts: TextBatch) -> tuple[Any, Any]:
    return model.encode_images(images), model.encode_texts(texts)


def recorded(name: str) -> dict[str, torch.Tensor]:
    """The arrays of a recorded run of released code."""
    with np.load(REFERENCE / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(file[key]) for key in file if key != "meta"}


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance, check_dtype=False)


def kept_values(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    """The result of a computation, and how many values autograd keeps for its backward pass."""
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each.numel()) or each, lambda each: each):
        return run(), sum(kept)
