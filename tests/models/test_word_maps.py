"""Word maps of the dual encoder: exact parts of the score, whatever the padding, at the right place of the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from itrpipe.errors import UsageError
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.dual_encoder.network import TransformerDualEncoder, build

SMALL = {"image_size": (32, 48), "width": 16, "heads": 2, "vision_layers": 2, "text_layers": 2}
RANDOM = {"vision": "random", "text": "random"}
LENGTHS = torch.tensor([9, 4, 6])


def made(**values: Any) -> TransformerDualEncoder:
    model = build(DualEncoder(**{**SMALL, **values}), 12, 40).eval()
    for side in (model.project_images, model.project_texts):
        if isinstance(side, torch.nn.Linear):
            torch.nn.init.normal_(side.bias)  # else too small to matter
    return model


def images(model: TransformerDualEncoder) -> ImageBatch:
    assert model.vision is not None
    pixels = torch.randint(0, 256, (3, 3, *model.vision.frame), dtype=torch.uint8)
    return ImageBatch(torch.empty(3, 0, 0), pixels=pixels)


def captions() -> TextBatch:
    return TextBatch(torch.randint(4, 20, (3, 9)), LENGTHS)


@torch.no_grad()
@pytest.mark.parametrize("dim", [0, 8])
@pytest.mark.parametrize(("vision", "text"), [("random", "random"), ("vit", "bert"), ("siglip", "siglip")])
def test_the_mean_of_the_maps_is_the_score(vision: str, text: str, dim: int, saved_encoders: Path) -> None:
    named = (
        RANDOM if vision == "random" else {"vision": str(saved_encoders / vision), "text": str(saved_encoders / text)}
    )
    model = made(**named, embed_dim=dim, image_pool="mean", text_pool="mean")
    pictures, texts = images(model), captions()
    maps = model.word_maps(pictures, texts)
    expected = model.score_pairs(model.encode_images(pictures), model.encode_texts(texts))
    found = torch.stack([each[:, :length].mean() for each, length in zip(maps, LENGTHS, strict=True)])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert maps.shape[2] == 9
    assert (maps[1, :, 4:] == 0).all()
    assert (maps[:, :, :4] != 0).all()


@torch.no_grad()
def test_a_caption_alone_has_the_maps_that_it_has_among_longer_ones() -> None:
    model = made(**RANDOM, embed_dim=8)
    pictures, texts = images(model), captions()
    together = model.word_maps(pictures, texts)
    for row, length in enumerate(LENGTHS.tolist()):
        pixels = pictures.pixels[row : row + 1] if pictures.pixels is not None else None
        alone = TextBatch(texts.tokens[row : row + 1, :length], LENGTHS[row : row + 1])
        maps = model.word_maps(ImageBatch(torch.empty(1, 0, 0), pixels=pixels), alone)
        torch.testing.assert_close(maps[0], together[row, :, :length], atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 2), (1, 0), (1, 1)])
def test_patches_come_row_by_row_behind_the_class_token(row: int, column: int) -> None:
    """Without positions equal patches have equal tokens, so the one patch that is painted has a value of its own."""
    model = made(**RANDOM)
    assert model.vision is not None
    torch.nn.init.zeros_(model.vision.network.embeddings.position_embeddings)
    grid = model.vision.grid()
    assert tuple(grid) == (2, 3, 16, 16)
    pixels = torch.zeros(1, 3, 32, 48, dtype=torch.uint8)
    pixels[:, :, 16 * row : 16 * row + 16, 16 * column : 16 * column + 16] = 255
    word = TextBatch(torch.tensor([[5]]), torch.tensor([1]))
    maps = model.word_maps(ImageBatch(torch.empty(1, 0, 0), pixels=pixels), word)[0, :, 0]
    assert maps.shape == (1 + 2 * 3,)
    patches = maps[1:].view(2, 3)
    other = patches[1 - row, 2 - column if column != 1 else 0]
    unlike = (patches - other).abs() > 1e-4
    assert unlike.nonzero().tolist() == [[row, column]]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"image_pool": "cls"}, "image_pool=cls and text_pool=mean"),
        ({"text_pool": "cls"}, "image_pool=mean and text_pool=cls"),
        ({"text_pool": "eot"}, "image_pool=mean and text_pool=eot"),
        ({"text_pool": "mean-all"}, "image_pool=mean and text_pool=mean-all"),
        ({"images": "regions", "embed_dim": 8}, "model.images=regions, image_pool=none"),
    ],
)
def test_other_scores_are_no_means_over_words_and_places(values: dict[str, Any], told: str) -> None:
    model = made(**RANDOM, **values)
    assert not model.has_word_maps
    with pytest.raises(UsageError, match=told) as raised:
        model.word_maps(ImageBatch(torch.zeros(3, 2, 12)), captions())
    assert "train one with --set model.images=pixels --set model.image_pool=mean" in str(raised.value)


def test_vectors_that_an_encoder_has_of_its_own_have_no_maps(saved_encoders: Path) -> None:
    clip = str(saved_encoders / "clip")
    assert not made(vision=clip, text=clip).has_word_maps
    assert made(vision=clip, text=clip, image_pool="mean", text_pool="mean", embed_dim=8).has_word_maps
