"""The chunk that `encode_chunk = "auto"` takes."""

from __future__ import annotations

import pytest
import torch

from itrpipe.models.base import Matcher
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.testing import IMAGE_DIM, VOCABULARY, ToyPairs
from itrpipe.training.assembly import chosen_chunk, fitting_chunk


@pytest.mark.parametrize(
    ("pairs", "room", "chunk"),
    [
        (128, 100 + 128 * 10, 0),
        (128, 100 + 128 * 10 - 1, 64),
        (10_000, 100 + 130 * 10, 128),
        (128, 100 + 7 * 10, 4),
        (128, 50, 1),
        (128, -50, 1),
    ],
)
def test_as_many_rows_as_fit(pairs: int, room: int, chunk: int) -> None:
    """Weights take 100 bytes, and every row 10."""
    assert fitting_chunk(pairs, room, lambda rows: 100 + 10 * rows) == chunk


def test_rows_that_take_no_memory_fit() -> None:
    assert fitting_chunk(128, 200, lambda rows: 100) == 0


def build() -> Matcher:
    torch.manual_seed(0)
    return vsepp.build(Vsepp(embed_dim=8, word_dim=4), IMAGE_DIM, VOCABULARY)


def test_a_processor_takes_whole_batches() -> None:
    assert chosen_chunk(build(), ToyPairs(0), 4, torch.device("cpu"), "fp32") == 0  # pyright: ignore


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_takes_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, device = build(), ToyPairs(0), torch.device("cuda")
    assert chosen_chunk(model, data, 64, device, "fp32") == 0  # pyright: ignore
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *given: (0, 0))
    assert 0 < chosen_chunk(model, data, 10**6, device, "fp32") < 10**6  # pyright: ignore
    assert all(weights.grad is None for weights in model.parameters())
