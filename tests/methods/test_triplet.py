"""Methods put batch, scores and loss together as the papers say, checked against the formulas written out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.learning.losses import triplet_loss
from itrpipe.methods import declaration
from itrpipe.methods.declaration import method_module, methods
from itrpipe.methods.triplet import method as triplet
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.methods.triplet.method import hardest_sentence_loss
from tests.methods.toys import KnownPairs, Lookup

CAPTION_IMAGE = KnownPairs().caption_image


def test_every_folder_declares_a_method_and_builds_it():
    folders = {path.parent.name for path in Path(declaration.__file__).parent.glob("*/__init__.py")}
    assert {name.replace("-", "_") for name in methods()} == folders
    assert all(callable(method_module(name).build) for name in methods())


def test_triplet_turns_to_hardest_negatives_after_its_sum_epochs():
    rows = KnownPairs()
    captions = np.array([0, 3, 5, 10])
    method, model = triplet.build(Triplet(sum_epochs=1, auxiliary_weight=0.0), rows, {}), Lookup(rows, auxiliary=3.0)
    batch = method.collate(captions, np.random.default_rng(0))
    scores = rows.image_table[CAPTION_IMAGE[captions]] @ rows.text_table[captions].T
    for epoch, hardest in ((0, False), (1, True)):
        found = method.losses(model, batch, epoch)
        assert found.keys() == {"triplet"}  # the backbone's own loss weighs nothing
        assert found["triplet"].item() == pytest.approx(triplet_loss(scores, 0.2, hardest).item(), abs=1e-5)


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
