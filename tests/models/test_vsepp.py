"""VSE++ and SCAN against encodings and scores of their released code, and their GRU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from itrpipe.models.base import ImageBatch, ImageEncoding, TextBatch, TextEncoding
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.network import last_states, pack_captions
from tests.models.toys import built, close, encoded, recorded

FILES = {"vsepp": "vsepp_encoders", "scan": "scan_encoders_bigru_t2i_lse"}


def published_name(name: str) -> str:
    return f"img.{name}" if name.startswith("fc.") else f"txt.{name.removeprefix('text.')}"


def published(name: str, **options: Any) -> tuple[Any, dict[str, Tensor], ImageBatch, TextBatch]:
    """A model of recorded weights, what the released code makes of them, and its inputs."""
    reference = recorded(FILES[name])
    model = built(name, image_dim=20, vocabulary_size=40, embed_dim=16, word_dim=10, **options)
    model.load_state_dict({each: reference[f"w_{published_name(each)}"] for each in model.state_dict()})
    regions = reference["in_images"]
    images = ImageBatch(regions if regions.dim() == 3 else regions[:, None])  # one region per image
    return model, reference, images, TextBatch(reference["in_captions"], reference["in_lens"])


@torch.no_grad()
@pytest.mark.parametrize("name", FILES)
def test_encodings_and_scores_match_reference(name: str) -> None:
    model, reference, *batch = published(name)
    images, texts = encoded(model, *batch)
    found = (images.regions, texts.words) if name == "scan" else (images.embedding, texts.embedding)
    close(found[0], reference["out_img_emb"], 2e-6)
    close(found[1], reference["out_cap_emb"], 2e-6)
    scores = reference["out_sims" if name == "scan" else "out_cosine"]
    close(model.score_matrix(images, texts), scores, 2e-6)
    close(model.score_pairs(images, texts), scores.diagonal(), 2e-6)


@torch.no_grad()
def test_order_scores_of_absolute_embeddings_match_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vsepp, "_ORDER_TILE_VALUES", 200)
    model, reference, *batch = published("vsepp", measure="order", absolute_values=True)
    close(model.score_matrix(*encoded(model, *batch)), reference["out_order_sim_of_abs"], 1e-6)


def test_under_autocast_only_the_products_of_regions_and_words_lose_precision() -> None:
    model, _, *batch = published("scan")
    sides = encoded(model, *batch)
    exact, pairs = model.score_matrix(*sides), model.score_pairs(*sides)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, same = model.score_matrix(*sides), model.score_pairs(*sides)
    assert 0 < (rounded - exact).abs().max() < 1e-2
    assert torch.equal(same, pairs)


def test_a_caption_that_violates_no_order_has_a_zero_gradient() -> None:
    text = torch.zeros(1, 3, requires_grad=True)
    model = built("vsepp", measure="order")
    model.score_matrix(ImageEncoding(torch.ones(1, 3)), TextEncoding(text)).sum().backward()
    assert text.grad is not None
    assert text.grad.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("lengths", [[5], [1, 1, 1], [3, 7, 1, 7, 2]])
def test_packing_and_last_states_with_gradients_are_those_of_pytorch(lengths: list[int]) -> None:
    rnn, inputs = nn.GRU(6, 5, batch_first=True), torch.randn(len(lengths), 8, 6, requires_grad=True)
    expected = pack_padded_sequence(inputs, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
    packed, weights = pack_captions(inputs, torch.tensor(lengths)), torch.randn(len(lengths), 5)
    for got, wanted in zip(packed, expected, strict=True):
        close(got, wanted, 0)
    states = rnn(expected)[1][0], last_states(rnn, packed)
    close(*states)
    inputs_and_weights = [inputs, *rnn.parameters()]
    for pair in zip(*(torch.autograd.grad((each * weights).sum(), inputs_and_weights) for each in states), strict=True):
        close(*pair)


def test_lengths_stay_on_the_host_when_a_batch_leaves_it() -> None:
    placed = TextBatch(torch.ones(2, 3, dtype=torch.int64), torch.tensor([3, 1])).to("meta")
    assert placed.lengths.is_meta
    assert placed.host_lengths.tolist() == placed.to("meta").host_lengths.tolist() == [3, 1]
