"""Methods put batch, scores and loss together as the papers say, checked against the formulas written out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.methods import declaration
from itrpipe.methods.declaration import method_module, methods
from itrpipe.methods.triplet.method import hardest_sentence_loss
from tests.methods.toys import KnownPairs

CAPTION_IMAGE = KnownPairs().caption_image


def test_every_folder_declares_a_method_and_builds_it():
    folders = {path.parent.name for path in Path(declaration.__file__).parent.glob("*/__init__.py")}
    assert {name.replace("-", "_") for name in methods()} == folders
    assert all(callable(method_module(name).build) for name in methods())


@settings(max_examples=50)
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=5), seed=st.integers(0, 2**16))
def test_sentences_count_with_the_hardest_of_each_pair(counts, seed):
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(len(counts), generator=generator, dtype=torch.float64, requires_grad=True)
    negatives = torch.randn(sum(counts), generator=generator, dtype=torch.float64, requires_grad=True)
    owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    loss = hardest_sentence_loss(positive, negatives, owners, 0.2)
    loss.backward()
    costs = [
        max((0.2 - own + each for each in negatives[owners == pair].tolist()), default=0.0)
        for pair, own in enumerate(positive.tolist())
    ]
    assert loss.item() == pytest.approx(sum(max(0.0, each) for each in costs), abs=1e-12)
    assert positive.grad is not None
    assert positive.grad.tolist() == [-1.0 if each > 0 else 0.0 for each in costs]
