"""Encoders in chunks, of a size that fits: the gradients of whole batches, in less memory; and compiled ones."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.learning.losses import triplet_loss
from itrpipe.models.base import ImageBatch, ImageEncoding, Matcher, TextBatch
from itrpipe.models.dual_encoder import network as dual_encoder
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.models.scan import network as scan
from itrpipe.models.scan.declaration import Scan
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.models.vsrn import network as vsrn
from itrpipe.models.vsrn.declaration import Vsrn
from itrpipe.testing import ToyPairs
from itrpipe.training import assembly
from itrpipe.training.assembly import chosen_chunk, compile_encoders, compile_for, fitting_chunk
from itrpipe.training.distributed import SharedModel

PAIRS, REGIONS, WIDTH, WORDS = 24, 3, 12, 40
"""Pairs of a batch, regions of an image, width of these, and words that are known."""
CPU = torch.device("cpu")
SMALL = DualEncoder(images="regions", text="random", width=16, heads=2, text_layers=1, embed_dim=8)
KINDS: dict[str, Any] = {
    "vsepp": lambda: vsepp.build(Vsepp(embed_dim=16, word_dim=8), WIDTH, WORDS),
    "scan": lambda: scan.build(Scan(embed_dim=16, word_dim=8), WIDTH, WORDS),
    "vsrn": lambda: vsrn.build(Vsrn(embed_dim=16, word_dim=8), WIDTH, WORDS),
    "transformer": lambda: dual_encoder.build(SMALL, WIDTH, WORDS, dual_encoder.open_encoders(SMALL)),
}


def small(kind: str) -> Any:
    torch.manual_seed(0)
    return KINDS[kind]()


def batches(pairs: int = PAIRS) -> tuple[ImageBatch, TextBatch]:
    """Captions of different lengths."""
    draw = torch.Generator().manual_seed(0)
    images = ImageBatch(torch.randn(pairs, REGIONS, WIDTH, generator=draw))
    lengths = torch.randint(3, 9, (pairs,), generator=draw)
    tokens = torch.randint(4, WORDS, (pairs, 8), generator=draw)
    return images, TextBatch(tokens.where(torch.arange(8) < lengths[:, None], 0), lengths)


def gradients(model: Matcher[Any, Any] | SharedModel, pairs: int = PAIRS) -> dict[str, Tensor]:
    """Gradients of the mean triplet loss of one batch."""
    model.zero_grad()
    images, texts = batches(pairs)
    images = replace(images, regions=images.regions.to(next(model.parameters()).dtype))
    scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
    (triplet_loss(scores, 0.2, False, None) / PAIRS).backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def assert_near(found: dict[str, Tensor], expected: dict[str, Tensor], most: float) -> None:
    """To rounding, as a share of the norm of the gradient."""
    assert expected.keys() == found.keys()
    norm = float(torch.stack([each.norm() for each in expected.values()]).norm())
    assert max(float((found[name] - each).abs().max()) for name, each in expected.items()) < most * norm


@pytest.mark.parametrize("chunk", [1, 7, PAIRS])
@pytest.mark.parametrize(("kind", "dtype", "most"), [("vsepp", torch.float32, 1e-6), ("scan", torch.float64, 1e-14)])
def test_chunks_have_the_gradients_of_the_whole_batch(kind: str, chunk: int, dtype: torch.dtype, most: float) -> None:
    plain, chunked = small(kind).to(dtype), small(kind).to(dtype)
    found = gradients(SharedModel(chunked, chunk=chunk))
    assert_near({name.removeprefix("model."): each for name, each in found.items()}, gradients(plain), most)


def test_a_chunk_is_encoded_twice_and_never_with_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    original = vsepp.VseppEncoder.encode_images

    def encode(self: Any, images: ImageBatch) -> ImageEncoding:
        seen.append(len(images.regions))
        return original(self, images)

    monkeypatch.setattr(vsepp.VseppEncoder, "encode_images", encode)
    model = SharedModel(small("vsepp"), chunk=10)
    gradients(model)
    model.eval()
    with torch.no_grad():
        model.encode_images(batches()[0])
    assert sorted(seen) == [4, 4, 10, 10, 10, 10, PAIRS]


def test_a_model_that_looks_at_the_whole_batch_takes_no_chunks() -> None:
    with pytest.raises(UsageError, match=r"encode_chunk = 4, but VsrnEncoder normalises over the whole batch"):
        SharedModel(small("vsrn"), chunk=4)


@pytest.mark.parametrize(
    ("pairs", "room", "each", "chunk"),
    [
        (128, 100 + 128 * 10, 10, 0),
        (128, 100 + 128 * 10 - 1, 10, 64),
        (128, 100 + 7 * 10, 10, 4),
        (128, -50, 10, 1),
        (128, 200, 0, 0),
    ],
)
def test_as_many_rows_as_fit(pairs: int, room: int, each: int, chunk: int) -> None:
    """Weights take 100 bytes."""
    assert fitting_chunk(pairs, room, lambda rows: 100 + each * rows) == chunk


def test_a_processor_takes_whole_batches() -> None:
    assert chosen_chunk(small("vsepp"), ToyPairs(0), 4, CPU, "fp32") == 0  # pyright: ignore


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_takes_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, device = small("vsepp"), ToyPairs(0), torch.device("cuda")
    assert chosen_chunk(model, data, 64, device, "fp32") == 0  # pyright: ignore
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *given: (0, 0))
    assert 0 < chosen_chunk(model, data, 10**6, device, "fp32") < 10**6  # pyright: ignore
    assert all(weights.grad is None for weights in model.parameters())


def test_compiled_encoders_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the graphs of torch, which C++ would be made of: that takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    plain, compiled = (small("transformer").eval() for _ in range(2))
    compile_encoders(compiled, CPU)
    assert list(compiled.state_dict()) == list(plain.state_dict())
    seen = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for pairs in (6, 4):
        assert_near(gradients(compiled, pairs), gradients(plain, pairs), 1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > seen


@pytest.mark.parametrize(
    ("asked", "device", "opens_encoders", "steps", "compiled"),
    [
        ("auto", "cuda", True, 2_000, True),
        ("auto", "cuda", True, 1_999, False),
        ("auto", "cuda", False, 2_000, False),
        ("auto", "cpu", True, 2_000, False),
        (True, "cpu", False, 1, True),
        (False, "cuda", True, 2_000, False),
    ],
)
def test_encoders_are_compiled_where_it_pays(
    monkeypatch: pytest.MonkeyPatch, asked: Any, device: str, opens_encoders: bool, steps: int, compiled: bool
) -> None:
    job, train = MagicMock(), Mock()
    job.execution.compile, job.settings.model.opens_encoders = asked, opens_encoders
    monkeypatch.setattr(assembly, "compile_encoders", Mock())
    compile_for(job, Mock(), train, torch.device(device), steps)
    assert train.pad_texts.called == compiled
    monkeypatch.setattr(assembly, "compile_encoders", Mock(side_effect=UsageError("no compiler")))
    if asked is True:
        with pytest.raises(UsageError):
            compile_for(job, Mock(), train, torch.device(device), steps)
    else:
        compile_for(job, Mock(), train, torch.device(device), steps)
        assert job.warn.called == compiled


def test_a_machine_that_cannot_compile_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", Mock(side_effect=RuntimeError("no C++ compiler was found")))
    with pytest.raises(UsageError, match=r"for cpu here \(no C\+\+ compiler was found\).*train.compile=false"):
        compile_encoders(small("vsepp"), CPU)
