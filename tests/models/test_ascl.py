"""AsCL: its fusion against loops over heads and fragments, and what may not matter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.errors import DataError
from itrpipe.models.ascl import network as ascl
from itrpipe.models.ascl.declaration import Ascl
from itrpipe.models.ascl.network import (
    AsclEncoder,
    AsclImages,
    CrossModalFusion,
    HeadedAttention,
    build,
    open_encoders,
    restored,
)
from itrpipe.models.base import ImageBatch, TextBatch, WordEncoding, rows_of

D, HEADS, IMAGE_DIM, GLOBAL_DIM, VOCABULARY = 16, 4, 10, 6, 40
COUNT, LENGTHS = torch.tensor([5, 2, 4]), torch.tensor([6, 3, 8, 4])
SMALL = {"text": "random", "embed_dim": D, "heads": HEADS, "text_width": 12, "text_heads": 2, "max_words": 12}


def small(**changed: Any) -> AsclEncoder:
    settings = Ascl(**{**SMALL, **changed})
    return build(settings, IMAGE_DIM, VOCABULARY, open_encoders(settings, GLOBAL_DIM)).eval()


def images() -> ImageBatch:
    """Three images of 5, 2 and 4 regions, with noise past these."""
    return ImageBatch(torch.randn(3, 5, IMAGE_DIM), COUNT, torch.randn(3, GLOBAL_DIM))


def texts() -> TextBatch:
    """Four captions of 6, 3, 8 and 4 tokens, with noise past these."""
    return TextBatch(torch.randint(4, VOCABULARY, (4, 8)), LENGTHS)


def encoded(model: AsclEncoder) -> tuple[AsclImages, WordEncoding]:
    return model.encode_images(images()), model.encode_texts(texts())


def looked(attention: HeadedAttention, query: Tensor, context: Tensor) -> Tensor:
    """What one query [D] finds in [S, D], head by head."""
    width, heads = D // HEADS, []
    for head in range(HEADS):
        columns = slice(head * width, (head + 1) * width)
        keys = context @ attention.key[:, columns]
        weights = (attention.scale * (keys @ (query @ attention.query[:, columns]))).softmax(dim=0)
        heads.append(weights @ keys)
    return torch.cat(heads) @ attention.output


def one_pair(fusion: CrossModalFusion, regions: Tensor, whole: Tensor, words: Tensor) -> Tensor:
    """S of regions [R, D], V_g2 [D] and words [W, D], by Eq. 1 to 4 term by term."""
    found_words = torch.stack([looked(fusion.to_words, region, words) for region in regions])
    found_regions = torch.stack([looked(fusion.to_regions, word, regions) for word in words])
    cosine = F.cosine_similarity
    local = cosine(regions, found_words).sum() / (2 * len(regions)) + cosine(words, found_regions).sum() / (
        2 * len(words)
    )
    text, seen = fusion.global_text(found_words.mean(dim=0)), fusion.global_regions(found_regions.mean(dim=0))
    gate = fusion.gate(torch.cat([whole, seen])).sigmoid()
    image = gate * whole + (1 - gate) * seen
    return fusion.u1 * local + (1 - fusion.u1) * cosine(image, text, dim=0)


def one_by_one(model: AsclEncoder, pictures: AsclImages, captions: WordEncoding) -> Tensor:
    assert model.fusion is not None
    assert pictures.whole is not None
    rows = [
        torch.stack(
            [
                one_pair(model.fusion, pictures.regions[i, :count], pictures.whole[i], captions.words[j, :length])
                for j, length in enumerate(LENGTHS.tolist())
            ]
        )
        for i, count in enumerate(COUNT.tolist())
    ]
    return torch.stack(rows)


@pytest.mark.parametrize("tile", [1, 2, 16])
@pytest.mark.parametrize("fusion", ["paper", "released"])
def test_tiles_score_and_derive_as_a_loop_over_pairs(fusion, tile, monkeypatch):
    monkeypatch.setattr(ascl, "TILE", tile)
    model = small(fusion=fusion)
    pictures, captions = encoded(model)
    inputs = [weights for name, weights in model.named_parameters() if name.startswith(("fusion", "project"))]
    scores, expected = model.score_matrix(pictures, captions), one_by_one(model, pictures, captions)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)
    assert scores.std() > 0.01
    cotangent = torch.randn(3, 4)
    ours, theirs = (
        torch.autograd.grad((each * cotangent).sum(), inputs, retain_graph=True) for each in (scores, expected)
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert other.abs().max() > 0
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0)


def test_a_word_and_a_region_without_length_count_as_zero():
    model = small()
    pictures, captions = encoded(model)
    cut = replace(captions, words=captions.words.index_fill(1, torch.tensor([1]), 0.0).detach().requires_grad_())
    scores = model.score_matrix(pictures, cut)
    (gradient,) = torch.autograd.grad(scores.sum(), cut.words)
    assert scores.isfinite().all()
    assert gradient.isfinite().all()
    first = model.score_pairs(rows_of(pictures, torch.tensor([0])), rows_of(cut, torch.tensor([0])))
    torch.testing.assert_close(first[0], scores[0, 0], atol=1e-5, rtol=0)


def test_without_fusion_the_score_is_the_cosine_of_the_mean_vectors():
    model = small(fusion="none")
    settings = Ascl(**{**SMALL, "fusion": "none"})
    assert not [name for name, _ in build(settings, IMAGE_DIM, VOCABULARY).named_parameters() if "fusion" in name]
    batch, captions = replace(images(), global_=None), texts()
    pictures, words = model.encode_images(batch), model.encode_texts(captions)
    image = torch.stack([pictures.regions[i, :count].mean(dim=0) for i, count in enumerate(COUNT)])
    text = torch.stack([words.words[j, :length].mean(dim=0) for j, length in enumerate(LENGTHS)])
    expected = F.normalize(image, dim=1) @ F.normalize(text, dim=1).T
    torch.testing.assert_close(model.score_matrix(pictures, words), expected, atol=1e-5, rtol=0)


def test_embeddings_for_analyses_have_unit_length_and_know_one_side():
    model = small()
    pictures, words = encoded(model)
    for vectors, parts, counts in (
        (model.embed_images(pictures), pictures.regions, COUNT),
        (model.embed_texts(words), words.words, LENGTHS),
    ):
        means = [part[:count].mean(dim=0) for part, count in zip(parts, counts, strict=True)]
        expected = F.normalize(torch.stack(means), dim=1)
        torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=0)


def test_features_without_a_vector_of_the_image_are_refused_in_one_line():
    settings = Ascl(**SMALL)
    with pytest.raises(DataError, match=r"vector of the whole image .* --set model\.fusion=none$"):
        build(settings, IMAGE_DIM, VOCABULARY, open_encoders(settings, 0))
    with pytest.raises(DataError, match="vector of the whole image"):
        small().encode_images(replace(images(), global_=None))
    with pytest.raises(DataError, match="region counts run from 0 to 4"):
        small().encode_images(replace(images(), count=torch.tensor([4, 0, 2])))


def test_words_without_their_ends():
    model, with_ends = small(text_ends=False), small()
    model.load_state_dict(with_ends.state_dict())
    captions = texts()
    inner, whole = model.encode_texts(captions), with_ends.encode_texts(captions)
    assert inner.lengths.tolist() == [4, 1, 6, 2]
    torch.testing.assert_close(inner.words, whole.words[:, 1:])
    bare = model.encode_texts(TextBatch(torch.tensor([[1, 2]]), torch.tensor([2])))
    assert bare.words.shape == (1, 1, D)
    assert bare.lengths.tolist() == [1]


@pytest.mark.parametrize("tuned", [False, True])
def test_a_pretrained_text_encoder_is_trained_only_where_it_is_asked_for(tuned: bool, saved_encoders: Path):
    settings = Ascl(**{**SMALL, "text": str(saved_encoders / "bert"), "tune_text": tuned})
    opened = open_encoders(settings, GLOBAL_DIM)
    assert opened.tokenizer is not None
    model = build(settings, IMAGE_DIM, 0, opened).train()
    assert model.text.training == tuned
    pictures, captions = model.encode_images(images()), model.encode_texts(TextBatch(texts().tokens % 20, LENGTHS))
    model.score_matrix(pictures, captions).sum().backward()
    touched = {name for name, weights in model.named_parameters() if weights.grad is not None}
    assert any(name.startswith("text.") for name in touched) == tuned
    assert {name for name, _ in model.named_parameters() if not name.startswith("text.")} <= touched
    assert all(each.requires_grad for each in small().parameters())  # a random one always is


def test_a_trained_model_is_built_again_from_its_description():
    model = small(fusion="released")
    again = build(model.settings, IMAGE_DIM, VOCABULARY, restored(model.description())).eval()
    again.load_state_dict(model.state_dict())
    batch, captions = images(), texts()
    torch.testing.assert_close(
        again.score_matrix(again.encode_images(batch), again.encode_texts(captions)),
        model.score_matrix(model.encode_images(batch), model.encode_texts(captions)),
    )
