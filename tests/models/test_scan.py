"""SCAN against reference encodings, scores and three training steps; its settings and region counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from itrpipe.errors import DataError
from itrpipe.losses.triplet import triplet_loss
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.scan.network import build
from tests.models.published import arrays, published_name, with_weights

SETTINGS = Scan(embed_dim=16, word_dim=10)
LEARNING_RATE = 2e-4


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return arrays("scan_encoders_bigru_t2i_lse")


@pytest.fixture
def model(reference):
    return with_weights(build(SETTINGS, image_dim=20, vocabulary_size=40), reference)


@pytest.fixture
def batch(reference) -> tuple[ImageBatch, TextBatch]:
    texts = TextBatch(torch.tensor(reference["in_captions"]), torch.tensor(reference["in_lens"]))
    return ImageBatch(torch.tensor(reference["in_images"])), texts


def test_encodings_and_scores_match_reference(reference, model, batch):
    with torch.no_grad():
        images, texts = model.encode_images(batch[0]), model.encode_texts(batch[1])
        scores, pairs = model.score_matrix(images, texts), model.score_pairs(images, texts)
    np.testing.assert_allclose(images.regions, reference["out_img_emb"], atol=2e-6)
    np.testing.assert_allclose(texts.words, reference["out_cap_emb"], atol=2e-6)
    np.testing.assert_allclose(scores, reference["out_sims"], atol=2e-6)
    np.testing.assert_allclose(pairs, reference["out_sims"].diagonal(), atol=2e-6)
    assert model.auxiliary_loss(images, batch[1]) is None


def test_three_training_steps_match_reference(reference, model, batch):
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for step, expected in enumerate(reference["out_losses"], start=1):
        optimiser.zero_grad()
        loss = triplet_loss(model.score_matrix(model.encode_images(batch[0]), model.encode_texts(batch[1])))
        assert loss.item() == pytest.approx(float(expected), abs=1e-4)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimiser.step()
        # Adam turns rounding into whole steps where a gradient is about zero.
        apart = {
            name: np.abs(weight.numpy() - reference[f"after{step}_{published_name(name)}"])
            for name, weight in model.state_dict().items()
        }
        everything = np.concatenate([each.ravel() for each in apart.values()])
        assert (everything <= 1e-6).mean() >= 0.99
        assert everything.max() <= 2 * LEARNING_RATE * step


def test_directions_and_every_setting_change_the_score(batch):
    def scores(**values):
        torch.manual_seed(0)
        model = build(Scan(embed_dim=16, word_dim=10, **values), image_dim=20, vocabulary_size=40)
        return model.score_matrix(model.encode_images(batch[0]), model.encode_texts(batch[1]))

    changes = [
        {"cross_attention": "i2t"},
        {"aggregation": "Mean"},
        {"raw_feature_norm": "l2norm"},
        {"lambda_softmax": 4.0},
        {"lambda_lse": 5.0},
    ]
    published = scores()
    torch.testing.assert_close(scores(cross_attention="t2i", lambda_softmax=9.0, lambda_lse=6.0), published)
    for change in changes:
        assert (scores(**change) - published).abs().max() > 1e-3, change


def test_half_precision_features_are_encoded_in_single(model, batch):
    half = model.encode_images(ImageBatch(batch[0].regions.half())).regions
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, model.encode_images(batch[0]).regions, atol=2e-3, rtol=0)


def test_under_autocast_only_the_products_lose_precision(model, batch):
    images, texts = model.encode_images(batch[0]), model.encode_texts(batch[1])
    exact, pairs = model.score_matrix(images, texts), model.score_pairs(images, texts)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, same = model.score_matrix(images, texts), model.score_pairs(images, texts)
        encoded = model.encode_images(batch[0]).regions, model.encode_texts(batch[1]).words
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 1e-2
    torch.testing.assert_close(same, pairs, rtol=0, atol=0)
    assert [each.dtype for each in encoded] == [torch.float32, torch.float32]
    torch.testing.assert_close(encoded[0].norm(dim=-1), torch.ones(6, 5))


def test_images_without_any_feature_keep_the_gradients_finite(model, batch):
    regions = batch[0].regions.clone()
    regions[2] = 0
    with torch.no_grad():
        model.fc.bias.zero_()
    scores = model.score_matrix(model.encode_images(ImageBatch(regions)), model.encode_texts(batch[1]))
    scores.sum().backward()
    assert torch.isfinite(scores).all()
    assert all(parameter.grad.abs().max() < 1e3 for parameter in model.parameters())


@pytest.mark.parametrize("count", [[0, 2], [1, 4]])
def test_impossible_region_counts_are_refused(model, count):
    with pytest.raises(DataError, match=f"from {count[0]} to {count[1]} in a batch of 3"):
        model.encode_images(ImageBatch(torch.zeros(2, 3, 20), torch.tensor(count)))
