"""Encoders in chunks: the gradients of whole batches, in less memory."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.learning.losses import triplet_loss
from itrpipe.models.base import ENCODERS, DualEncoder, ImageBatch, ImageEncoding, Matcher, TextBatch, rows_of
from itrpipe.models.scan import network as scan
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.vectors import at_least_single
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.models.vsrn import network as vsrn
from itrpipe.models.vsrn.declaration import Vsrn
from itrpipe.training.distributed import spread, tensors_of

PAIRS, REGIONS, WIDTH, WORDS = 24, 3, 12, 40
"""Pairs of a batch, regions of an image, width of these, and words that are known."""


def batches(seed: int = 0) -> tuple[ImageBatch, TextBatch]:
    """Captions of different lengths."""
    draw = torch.Generator().manual_seed(seed)
    images = ImageBatch(torch.randn(PAIRS, REGIONS, WIDTH, generator=draw))
    lengths = torch.randint(3, 9, (PAIRS,), generator=draw)
    tokens = torch.randint(4, WORDS, (PAIRS, 8), generator=draw)
    return images, TextBatch(tokens.where(torch.arange(8) < lengths[:, None], 0), lengths)


def small(kind: str) -> Matcher[Any, Any]:
    torch.manual_seed(0)
    if kind == "vsepp":
        return vsepp.build(Vsepp(embed_dim=16, word_dim=8), WIDTH, WORDS)
    if kind == "scan":
        return scan.build(Scan(embed_dim=16, word_dim=8), WIDTH, WORDS)
    return vsrn.build(Vsrn(embed_dim=16, word_dim=8), WIDTH, WORDS)


def gradients(model: Matcher[Any, Any], bf16: bool = False) -> dict[str, Tensor]:
    """Gradients of the mean triplet loss of one batch."""
    model.zero_grad()
    images, texts = batches()
    images = replace(images, regions=images.regions.to(next(model.parameters()).dtype))
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
    (triplet_loss(at_least_single(scores), 0.2, False, None) / PAIRS).backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("chunk", [1, 3, 7, 8, PAIRS, 100])
@pytest.mark.parametrize(("kind", "dtype", "most"), [("vsepp", torch.float32, 1e-6), ("scan", torch.float64, 1e-14)])
def test_chunks_have_the_gradients_of_the_whole_batch(kind: str, chunk: int, dtype: torch.dtype, most: float) -> None:
    """To rounding, as a share of the norm of the gradient."""
    plain, chunked = small(kind).to(dtype), small(kind).to(dtype)
    spread(chunked, chunk=chunk)
    expected, found = gradients(plain), gradients(chunked)
    assert expected.keys() == found.keys()
    norm = float(torch.stack([each.norm() for each in expected.values()]).norm())
    assert max(float((found[name] - each).abs().max()) for name, each in expected.items()) < most * norm


def test_chunks_under_bfloat16_are_as_close_as_bfloat16_is() -> None:
    plain, chunked = small("vsepp"), small("vsepp")
    spread(chunked, chunk=5)
    exact, expected, found = gradients(small("vsepp")), gradients(plain, True), gradients(chunked, True)
    for name, gradient in expected.items():
        assert not torch.equal(gradient, exact[name])
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=0.05 * float(gradient.abs().max()))


def test_a_chunk_is_encoded_twice_and_never_with_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = vsepp.VseppEncoder.encode_images

    def encode(self: Any, images: ImageBatch) -> ImageEncoding:
        seen.append(len(images.regions))
        return original(self, images)

    monkeypatch.setattr(vsepp.VseppEncoder, "encode_images", encode)
    model = small("vsepp")
    spread(model, chunk=10)
    gradients(model)
    assert sorted(seen) == [4, 4, 10, 10, 10, 10]
    seen.clear()
    model.eval()
    with torch.no_grad():
        model.encode_images(batches()[0])
    assert seen == [PAIRS]


def test_dropout_of_the_second_pass_is_that_of_the_first() -> None:
    model = small("vsepp")
    drop = torch.nn.Dropout(0.5)
    model.fc.register_forward_hook(lambda module, given, result: drop(result))  # pyright: ignore
    spread(model, chunk=7)
    images, _ = batches()
    torch.manual_seed(3)
    encoded = model.encode_images(images)
    kept = encoded.embedding.detach() != 0
    encoded.embedding.sum().backward()
    torch.manual_seed(3)
    again = model.encode_images(images).embedding
    assert torch.equal(again != 0, kept)
    assert 0.3 < kept.float().mean() < 0.7


def test_a_model_that_looks_at_the_whole_batch_takes_no_chunks() -> None:
    with pytest.raises(UsageError, match=r"encode_chunk = 4, but VsrnEncoder normalises over the whole batch"):
        spread(small("vsrn"), chunk=4)


def test_without_chunks_and_other_processes_a_model_stays_as_it_is() -> None:
    model = small("vsepp")
    spread(model)
    assert type(model) is vsepp.VseppEncoder


def test_a_copy_of_a_model_is_divided_too_and_computes_with_its_own_weights() -> None:
    model = small("vsepp")
    plan = spread(model, chunk=5)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for each in twin.parameters():
            each.zero_()
    assert twin.spread is plan
    assert twin.encode_images(batches()[0]).embedding.detach().abs().max() == 0
    assert model.encode_images(batches()[0]).embedding.detach().abs().max() > 0
    assert isinstance(model, vsepp.VseppEncoder)
    assert isinstance(model, DualEncoder)


@pytest.mark.parametrize("kind", ["vsepp", "scan", "vsrn"])
def test_every_model_says_what_it_computes_by_rows(kind: str) -> None:
    """Row k of the result is that of row k alone."""
    model = small(kind).eval()
    images, texts = batches()
    sides = {"encode_images": (images,), "encode_texts": (texts,)}
    with torch.no_grad():
        encoded = model.encode_images(images), model.encode_texts(texts)
        for name, places in model.by_rows.items():
            arguments = sides.get(name, encoded)
            part = [rows_of(each, slice(3, 9)) if place in places else each for place, each in enumerate(arguments)]
            whole, own = getattr(model, name)(*arguments), getattr(model, name)(*part)
            for one, other in zip(tensors_of(rows_of(whole, slice(3, 9))), tensors_of(own), strict=True):
                torch.testing.assert_close(one, other)
    assert ENCODERS.keys() <= model.by_rows.keys()
