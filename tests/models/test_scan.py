"""VSE++ and SCAN against encodings, scores and three training steps of their released code; the GRU that they share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from itrpipe.errors import DataError
from itrpipe.losses.triplet import triplet_loss
from itrpipe.models.base import ImageBatch, ImageEncoding, TextBatch, TextEncoding
from itrpipe.models.registry import backbones, network_module
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.models.vsepp.network import last_states, mean_of_regions, pack
from tests.models.published import arrays, published_name, with_weights

LEARNING_RATE = 2e-4
FILES = {"vsepp": "vsepp_encoders", "scan": "scan_encoders_bigru_t2i_lse"}


def small(name: str, **options: Any) -> Any:
    settings = backbones()[name](embed_dim=16, word_dim=10, **options)  # pyright: ignore
    return network_module(name).build(settings, 20, 40)


def published(name: str, **options: Any) -> tuple[Any, dict[str, np.ndarray], ImageBatch, TextBatch]:
    """A model of recorded weights, what the released code makes of them, and its inputs."""
    reference = arrays(FILES[name])
    regions = torch.tensor(reference["in_images"])
    images = ImageBatch(regions if regions.dim() == 3 else regions[:, None])  # one region per image
    texts = TextBatch(torch.tensor(reference["in_captions"]), torch.tensor(reference["in_lens"]))
    return with_weights(small(name, **options), reference), reference, images, texts


@torch.no_grad()
@pytest.mark.parametrize("name", FILES)
def test_encodings_and_scores_match_reference(name):
    model, reference, *batch = published(name)
    images, texts = model.encode_images(batch[0]), model.encode_texts(batch[1])
    found = (images.regions, texts.words) if name == "scan" else (images.embedding, texts.embedding)
    scores = reference["out_sims" if name == "scan" else "out_cosine"]
    np.testing.assert_allclose(found[0], reference["out_img_emb"], atol=2e-6)
    np.testing.assert_allclose(found[1], reference["out_cap_emb"], atol=2e-6)
    np.testing.assert_allclose(model.score_matrix(images, texts), scores, atol=2e-6)
    np.testing.assert_allclose(model.score_pairs(images, texts), scores.diagonal(), atol=2e-6)


@torch.no_grad()
def test_order_scores_of_absolute_embeddings_match_reference(monkeypatch):
    monkeypatch.setattr(vsepp, "_ORDER_TILE_VALUES", 200)
    model, reference, images, texts = published("vsepp", measure="order", absolute_values=True)
    scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
    np.testing.assert_allclose(scores, reference["out_order_sim_of_abs"], atol=1e-6)


@pytest.mark.parametrize("name", FILES)
def test_three_training_steps_match_reference(name):
    model, reference, images, texts = published(name)
    optimiser = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    for expected in reference["out_losses"]:
        optimiser.zero_grad()
        loss = triplet_loss(model.score_matrix(model.encode_images(images), model.encode_texts(texts)))
        assert loss.item() == pytest.approx(float(expected), abs=1e-4 if name == "scan" else 5e-6)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimiser.step()
    apart = np.concatenate(
        [
            np.abs(weight - reference[f"after3_{published_name(key)}"]).ravel()
            for key, weight in model.state_dict().items()
        ]
    )
    # Adam turns rounding into whole steps where a gradient is about zero.
    assert (apart <= 5e-6).mean() >= (0.99 if name == "scan" else 1.0)
    assert apart.max() <= 6 * LEARNING_RATE


@pytest.mark.parametrize("name", FILES)
def test_half_precision_and_images_without_any_feature(name):
    model, _, images, texts = published(name)
    half = model.encode_images(ImageBatch(images.regions.half()))
    exact = model.encode_images(images)
    for found, expected in (
        (half.regions, exact.regions),
        (getattr(half, "embedding", None), getattr(exact, "embedding", None)),
    ):
        if found is not None:
            assert found.dtype == torch.float32
            torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
    nn.init.zeros_(model.fc.bias)
    model.score_matrix(
        model.encode_images(ImageBatch(images.regions.index_fill(0, torch.tensor(2), 0.0))), model.encode_texts(texts)
    ).sum().backward()
    assert all(parameter.grad.abs().max() < 1e3 for parameter in model.parameters())


def test_under_autocast_only_the_products_lose_precision():
    model, _, *batch = published("scan")
    images, texts = model.encode_images(batch[0]), model.encode_texts(batch[1])
    exact, pairs = model.score_matrix(images, texts), model.score_pairs(images, texts)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, same = model.score_matrix(images, texts), model.score_pairs(images, texts)
        encoded = model.encode_images(batch[0]).regions, model.encode_texts(batch[1]).words
    assert rounded.dtype == encoded[0].dtype == encoded[1].dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 1e-2
    torch.testing.assert_close(same, pairs, rtol=0, atol=0)
    torch.testing.assert_close(encoded[0].norm(dim=-1), torch.ones(6, 5))


@pytest.mark.parametrize("name", ["vsepp", "scan", "bfan", "ssamt", "vsrn"])
@pytest.mark.parametrize("count", [[0, 2], [1, 4]])
def test_impossible_region_counts_are_refused(name, count):
    with pytest.raises(DataError, match=f"from {count[0]} to {count[1]} in a batch of 3"):
        small(name).encode_images(ImageBatch(torch.zeros(2, 3, 20), torch.tensor(count)))


def test_regions_are_averaged_over_those_that_are_real():
    regions = torch.tensor([[[2.0], [4.0], [9.0]], [[6.0], [9.0], [9.0]]])
    assert mean_of_regions(ImageBatch(regions, torch.tensor([2, 1]))).tolist() == [[3.0], [6.0]]


def test_a_caption_that_violates_no_order_has_a_zero_gradient():
    text = torch.zeros(1, 3, requires_grad=True)
    model = vsepp.build(Vsepp(embed_dim=3, measure="order"), image_dim=4, vocabulary_size=10)
    model.score_matrix(ImageEncoding(torch.ones(1, 3)), TextEncoding(text)).sum().backward()
    assert text.grad is not None
    assert text.grad.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("lengths", [[5], [1, 1, 1], [3, 7, 1, 7, 2]])
def test_packing_and_last_states_with_gradients_are_those_of_pytorch(lengths: list[int]) -> None:
    rnn, inputs = nn.GRU(6, 5, batch_first=True), torch.randn(len(lengths), 8, 6, requires_grad=True)
    expected = pack_padded_sequence(inputs, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    packed, weights = pack(inputs, torch.tensor(lengths)), torch.randn(len(lengths), 5)
    for got, wanted in zip(packed, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    results = [
        (states, *torch.autograd.grad((states * weights).sum(), [inputs, *rnn.parameters()]))
        for states in (rnn(expected)[1][0], last_states(rnn, packed))
    ]
    for wanted, got in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_lengths_stay_on_the_host_when_a_batch_leaves_it() -> None:
    made = TextBatch(torch.ones(2, 3, dtype=torch.int64), torch.tensor([3, 1]))
    placed = made.to("meta")
    assert placed.lengths.is_meta
    assert placed.host_lengths.tolist() == placed.to("meta").host_lengths.tolist() == [3, 1]
