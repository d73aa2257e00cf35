"""VSE++ against reference embeddings, similarities and three training steps; region counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from itrpipe.errors import DataError
from itrpipe.losses.triplet import triplet_loss
from itrpipe.models.base import ImageBatch, ImageEncoding, TextBatch, TextEncoding
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.models.vsepp.network import build, mean_of_regions
from tests.models.published import arrays, published_name, with_weights

SETTINGS = Vsepp(embed_dim=16, word_dim=10)


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return arrays("vsepp_encoders")


def reference_model(reference, settings=SETTINGS):
    return with_weights(build(settings, image_dim=20, vocabulary_size=40), reference)


def batches(reference) -> tuple[ImageBatch, TextBatch]:
    images = ImageBatch(torch.tensor(reference["in_images"])[:, None])  # one region per image
    return images, TextBatch(torch.tensor(reference["in_captions"]), torch.tensor(reference["in_lens"]))


def test_embeddings_and_cosine_match_reference(reference):
    model, (images, texts) = reference_model(reference), batches(reference)
    image, text = model.encode_images(images), model.encode_texts(texts)
    np.testing.assert_allclose(image.embedding.detach(), reference["out_img_emb"], atol=1e-6)
    np.testing.assert_allclose(text.embedding.detach(), reference["out_cap_emb"], atol=1e-6)
    np.testing.assert_allclose(model.score_matrix(image, text).detach(), reference["out_cosine"], atol=1e-6)


def test_order_scores_of_absolute_embeddings_match_reference(reference):
    settings = Vsepp(embed_dim=16, word_dim=10, measure="order", absolute_values=True)
    model, (images, texts) = reference_model(reference, settings), batches(reference)
    scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
    np.testing.assert_allclose(scores.detach(), reference["out_order_sim_of_abs"], atol=1e-6)


def test_three_training_steps_match_reference(reference):
    model, (images, texts) = reference_model(reference), batches(reference)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-4)
    for expected in reference["out_losses"]:
        optimiser.zero_grad()
        loss = triplet_loss(model.score_matrix(model.encode_images(images), model.encode_texts(texts)))
        assert loss.item() == pytest.approx(float(expected), abs=5e-6)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimiser.step()
    for name, weight in model.state_dict().items():
        np.testing.assert_allclose(weight, reference[f"after3_{published_name(name)}"], atol=5e-6, err_msg=name)


def test_regions_are_averaged_over_those_that_are_real() -> None:
    regions = torch.tensor([[[2.0], [4.0], [9.0]], [[6.0], [9.0], [9.0]]])
    assert mean_of_regions(ImageBatch(regions, torch.tensor([2, 1]))).tolist() == [[3.0], [6.0]]


def test_half_precision_features_are_encoded_in_single(reference):
    model, (images, _) = reference_model(reference), batches(reference)
    half = model.encode_images(ImageBatch(images.regions.half())).embedding
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, model.encode_images(images).embedding, atol=2e-3, rtol=0)


def test_tiled_order_scores_equal_one_tile(monkeypatch):
    model = build(Vsepp(embed_dim=8, measure="order"), image_dim=4, vocabulary_size=10)
    image, text = ImageEncoding(torch.randn(7, 8)), TextEncoding(torch.randn(5, 8))
    whole = model.score_matrix(image, text)
    monkeypatch.setattr("itrpipe.models.vsepp.network._ORDER_TILE_VALUES", 2 * text.embedding.numel())
    torch.testing.assert_close(model.score_matrix(image, text), whole, rtol=0, atol=0)
    assert whole[3, 2].item() == pytest.approx(-(text.embedding[2] - image.embedding[3]).clamp(min=0).norm().item())


def test_a_caption_that_violates_no_order_has_a_zero_gradient():
    model = build(Vsepp(embed_dim=3, measure="order"), image_dim=4, vocabulary_size=10)
    text = torch.zeros(1, 3, requires_grad=True)
    model.score_matrix(ImageEncoding(torch.ones(1, 3)), TextEncoding(text)).sum().backward()
    assert text.grad is not None
    assert text.grad.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("count", [[0, 2], [1, 4]])
def test_impossible_region_counts_are_refused(count):
    model = build(SETTINGS, image_dim=20, vocabulary_size=40)
    with pytest.raises(DataError, match=f"from {count[0]} to {count[1]} in a batch of 3"):
        model.encode_images(ImageBatch(torch.zeros(2, 3, 20), torch.tensor(count)))
