"""Speed of SSAMT's inter encoder over every pair, against a loop over images with all captions padded alike.

Run with `make bench`.
"""

from __future__ import annotations

import pytest
import torch
from measure import paired

from itrpipe.models.base import ImageBatch, PhraseBatch, TextBatch
from itrpipe.models.ssamt.declaration import Ssamt
from itrpipe.models.ssamt.network import SsamtEncoder, SsamtImages, SsamtTexts, build

IMAGES, REGIONS, CAPTIONS, MOST_WORDS, MOST_PHRASES = 8, 36, 96, 40, 20
IMAGE_DIM, VOCABULARY = 256, 1_000


def captions() -> TextBatch:
    """Captions of 6 to 40 words, most of them short, with about one phrase for two words."""
    generator = torch.Generator().manual_seed(0)
    lengths = (6 + torch.rand(CAPTIONS, generator=generator).pow(3) * (MOST_WORDS - 6)).long()
    lengths[0] = MOST_WORDS
    phrases = lengths // 2
    kinds = torch.randint(0, 3, (CAPTIONS, MOST_PHRASES), generator=generator)
    kinds[torch.arange(MOST_PHRASES) >= phrases[:, None]] = -1
    members = torch.rand(CAPTIONS, MOST_PHRASES, MOST_WORDS, generator=generator) < 0.1
    members &= (kinds >= 0)[..., None] & (torch.arange(MOST_WORDS) < lengths[:, None])[:, None]
    tokens = torch.randint(4, VOCABULARY, (CAPTIONS, MOST_WORDS), generator=generator)
    return TextBatch(tokens, lengths, PhraseBatch(kinds, members))


def looped(model: SsamtEncoder, images: SsamtImages, texts: SsamtTexts) -> torch.Tensor:
    """Scores [B, T], one image after the other, every caption as wide as the longest."""
    rows = torch.arange(len(texts.pooled))
    return torch.stack([model.score_pairs(images[torch.full_like(rows, image)], texts) for image in range(IMAGES)])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_pair_against_a_padded_loop(precision):
    torch.manual_seed(0)
    model = build(Ssamt(embed_dim=1024), IMAGE_DIM, VOCABULARY).eval()
    with torch.inference_mode():
        images = model.encode_images(ImageBatch(torch.randn(IMAGES, REGIONS, IMAGE_DIM)))
        texts = model.encode_texts(captions())

        def ours() -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                return model.score_matrix(images, texts)

        seconds, limit = paired(ours, lambda: looped(model, images, texts), rounds=3)
        error = (ours() - looped(model, images, texts)).abs().max().item()
    print(
        f"\n  SSAMT, {IMAGES} x {CAPTIONS} pairs, {precision}: {limit / seconds:.1f} times the padded loop "
        f"({IMAGES * CAPTIONS / seconds:,.0f} pairs/s; largest error {error:.0e})"
    )
    assert error < (1e-4 if precision == "fp32" else 1e-2)
