"""AsCL: its fusion against a loop over pairs, heads and fragments, and what may not matter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.models.ascl import network as ascl
from itrpipe.models.ascl.network import CrossModalFusion, HeadedAttention
from itrpipe.models.base import TextBatch, rows_of
from tests.models.toys import built, close, encoded, kept_values, toys


def looked(attention: HeadedAttention, query: Tensor, context: Tensor) -> Tensor:
    """The vector that one query [D] finds in [S, D], head by head."""
    heads = []
    for columns in torch.arange(len(query)).chunk(attention.heads):
        keys = context @ attention.key[:, columns]
        weights = (attention.scale * (keys @ (query @ attention.query[:, columns]))).softmax(dim=0)
        heads.append(weights @ keys)
    return torch.cat(heads) @ attention.output


def one_pair(fusion: CrossModalFusion, regions: Tensor, whole: Tensor, words: Tensor) -> Tensor:
    """S of regions [R, D], V_g2 [D] and words [W, D], by Eq. 1 to 4 term by term."""
    found_words = torch.stack([looked(fusion.to_words, region, words) for region in regions])
    found_regions = torch.stack([looked(fusion.to_regions, word, regions) for word in words])
    local = sum(F.cosine_similarity(*each).mean() for each in ((regions, found_words), (words, found_regions))) / 2
    text, seen = fusion.global_text(found_words.mean(dim=0)), fusion.global_regions(found_regions.mean(dim=0))
    gate = fusion.gate(torch.cat([whole, seen])).sigmoid()
    image = gate * whole + (1 - gate) * seen
    return fusion.u1 * local + (1 - fusion.u1) * F.cosine_similarity(image, text, dim=0)


@torch.no_grad()
@pytest.mark.parametrize(("fusion", "tile"), [("paper", 1), ("paper", 16), ("released", 2)])
def test_tiles_score_as_a_loop_over_pairs(fusion: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascl, "TILE", tile)
    model = built("ascl", fusion=fusion)
    images, texts = encoded(model, *toys())
    regions = [each[:count] for each, count in zip(images.regions, images.count, strict=True)]
    words = [each[:length] for each, length in zip(texts.words, texts.lengths, strict=True)]
    sides = list(zip(regions, images.whole, strict=True))
    expected = torch.tensor([[one_pair(model.fusion, *image, text) for text in words] for image in sides])
    close(model.score_matrix(images, texts), expected)
    close(model.score_pairs(images, rows_of(texts, slice(3))), expected.diagonal())


def test_a_word_without_length_has_a_finite_gradient() -> None:
    model = built("ascl")
    images, texts = encoded(model, *toys())
    cut = texts.words.index_fill(1, torch.tensor([1]), 0.0).detach().requires_grad_()
    model.score_matrix(images, replace(texts, words=cut)).sum().backward()
    assert cut.grad is not None
    assert cut.grad.isfinite().all()


def test_tiles_keep_their_inputs_alone_for_the_backward_pass() -> None:
    model = built("ascl")
    sides = encoded(model, *toys(12, 24))
    found_vectors = 12 * 24 * (4 + 8) * 12  # of pairs: one of 12 numbers for each region and word
    assert kept_values(lambda: model.score_matrix(*sides))[1] < found_vectors


def test_a_caption_of_nothing_but_its_ends_keeps_the_last() -> None:
    model = built("ascl", text_ends=False)
    bare = model.encode_texts(TextBatch(torch.tensor([[1, 2, 0]]), torch.tensor([2])))
    assert bare.lengths.tolist() == [1]
    whole = built("ascl").encode_texts(TextBatch(torch.tensor([[1, 2, 0]]), torch.tensor([2])))
    close(bare.words, whole.words[:, 1:])


@pytest.mark.parametrize("tuned", [False, True])
def test_a_pretrained_text_encoder_is_trained_only_where_it_is_asked_for(tuned: bool, saved_encoders: Path) -> None:
    model = built("ascl", text=str(saved_encoders / "bert"), tune_text=tuned).train()
    assert model.text.training == tuned
    model.score_matrix(*encoded(model, *toys())).sum().backward()
    without = {name.partition(".")[0] for name, weights in model.named_parameters() if weights.grad is None}
    assert without == ({"text"} if not tuned else without & {"text"})  # BERT's embedding of positions may have none
    assert any(weights.grad is not None for weights in model.text.parameters()) == tuned
