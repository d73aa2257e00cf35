"""Encoders that torch compiles."""

from __future__ import annotations

import copy

import pytest
import torch

from itrpipe.errors import UsageError
from itrpipe.models.base import Matcher
from itrpipe.models.dual_encoder import network
from itrpipe.models.dual_encoder.declaration import DualEncoder
from itrpipe.testing import IMAGE_DIM, VOCABULARY, ToyPairs
from itrpipe.training.assembly import compile_encoders

CPU = torch.device("cpu")


@pytest.mark.slow
def test_compiled_encoders_give_the_same_scores_and_gradients() -> None:
    settings = DualEncoder(images="regions", text="random", width=16, heads=2, text_layers=1, embed_dim=8)
    torch.manual_seed(0)
    plain = network.build(settings, IMAGE_DIM, VOCABULARY).eval()
    compiled = copy.deepcopy(plain)
    compile_encoders(compiled, CPU)
    assert list(compiled.state_dict()) == list(plain.state_dict())
    seen = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for rows in (torch.arange(6).numpy(), torch.arange(4).numpy()):  # of other sizes
        data = ToyPairs(0)
        for model in (plain, compiled):
            model.zero_grad()
            images, texts = data.images(data.caption_image[rows]), data.texts(rows)
            scores = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
            scores.square().sum().backward()
        for (name, one), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None), name
            if one.grad is not None and other.grad is not None:
                largest = max(1.0, float(one.grad.abs().max()))
                torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-5 * largest)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > seen


def test_a_machine_that_cannot_compile_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(function: object, **options: object) -> object:
        raise RuntimeError("no C++ compiler was found\nand more")

    monkeypatch.setattr(torch, "compile", refuse)
    expected = r"cannot compile for cpu here \(no C\+\+ compiler was found\); install what it misses, or give --set"
    with pytest.raises(UsageError, match=expected):
        compile_encoders(Matcher(), CPU)
