"""Methods put batch, scores and loss together as the papers say, checked against the formulas written out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.learning.sentences import SentenceBank
from itrpipe.methods import declaration
from itrpipe.methods.aoq.declaration import Aoq
from itrpipe.methods.declaration import method_module, methods
from itrpipe.methods.triplet import method as triplet
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.methods.triplet.method import hardest_sentence_loss
from tests.methods.toys import KnownPairs, Lookup

CAPTION_IMAGE = KnownPairs().caption_image


def hinge(value: float) -> float:
    return max(0.0, value)


def score(rows: KnownPairs, image: int, text: int) -> float:
    return float(rows.image_table[image] @ rows.text_table[text])


def test_every_folder_declares_a_method_and_builds_it():
    folders = {path.parent.name for path in Path(declaration.__file__).parent.glob("*/__init__.py")}
    assert {name.replace("-", "_") for name in methods()} == folders
    assert (methods()["triplet"], methods()["aoq"]) == (Triplet, Aoq)
    for name in methods():
        assert callable(method_module(name).build)


def test_triplet_turns_to_hardest_negatives_after_its_sum_epochs():
    rows = KnownPairs()
    captions = np.array([0, 3, 5, 10])
    warm = triplet.build(Triplet(sum_epochs=1), rows, {})
    hardest = triplet.build(Triplet(), rows, {})
    batch = warm.collate(captions, np.random.default_rng(0))
    first, second = (warm.losses(Lookup(rows), batch, epoch)["triplet"].item() for epoch in (0, 1))
    assert second == hardest.losses(Lookup(rows), batch, epoch=0)["triplet"].item()
    assert first > second


class RowsWithSentences(KnownPairs):
    """Caption c has c % 3 sentences, which are rows of the table of captions as well."""

    def __init__(self) -> None:
        super().__init__()
        counts = np.arange(len(CAPTION_IMAGE)) % 3
        owners = np.repeat(np.arange(len(CAPTION_IMAGE)), counts)
        written = (owners + 5 + np.arange(len(owners)) % 4) % len(CAPTION_IMAGE)
        starts = np.concatenate([[0], np.cumsum(counts)])
        self.sentences = SentenceBank(written[:, None], np.ones_like(written), starts)
        self.of_caption = [written[start:end].tolist() for start, end in pairwise(starts)]


def test_the_hardest_synthetic_sentence_of_a_caption_is_a_further_negative_of_its_image():
    rows, captions = RowsWithSentences(), np.array([0, 4, 5, 11])
    method = triplet.build(Triplet(synthetic_sentences=2, synthetic_weight=0.5, margin=1.0), rows, {})
    batch = method.collate(captions, np.random.default_rng(0))
    assert batch.sentences is not None
    assert batch.sentences.owners.tolist() == [1, 2, 2, 3, 3]
    losses = method.losses(Lookup(rows), batch, epoch=0)
    expected = 0.0
    for caption in captions:
        image = int(CAPTION_IMAGE[caption])
        costs = [hinge(1 - score(rows, image, caption) + score(rows, image, each)) for each in rows.of_caption[caption]]
        expected += max(costs, default=0.0)
    assert expected > 0
    assert losses["synthetic"].item() == pytest.approx(0.5 * expected, abs=1e-5)
    plain = triplet.build(Triplet(margin=1.0), rows, {})
    without = plain.losses(Lookup(rows), plain.collate(captions, np.random.default_rng(0)), epoch=0)
    assert without.keys() == {"triplet"}
    assert losses["triplet"].item() == without["triplet"].item()


def test_fewer_sentences_than_there_are_are_drawn_at_random():
    rows = RowsWithSentences()
    method = triplet.build(Triplet(synthetic_sentences=1), rows, {})
    seen: set[int] = set()
    for seed in range(20):
        sentences = method.collate(np.array([5, 0]), np.random.default_rng(seed)).sentences
        assert sentences is not None
        assert sentences.owners.tolist() == [0]
        seen |= set(sentences.texts.tokens[:, 0].tolist())
    assert seen == set(rows.of_caption[5])


def test_captions_without_sentences_are_trained_without():
    rows = RowsWithSentences()
    method = triplet.build(Triplet(synthetic_sentences=2), rows, {})
    batch = method.collate(np.array([0, 3]), np.random.default_rng(0))
    assert batch.sentences is None
    assert method.losses(Lookup(rows), batch, epoch=0).keys() == {"triplet"}


def test_two_captions_of_one_image_stop_being_negatives_on_request():
    rows = KnownPairs()
    captions = np.array([0, 1, 5])
    values = {}
    for masked in (False, True):
        method = triplet.build(Triplet(max_violation=False, mask_same_image=masked), rows, {})
        values[masked] = method.losses(Lookup(rows), method.collate(captions, np.random.default_rng(0)), 0)["triplet"]
    same = [(0, 1), (1, 0)]
    removed = sum(
        hinge(0.2 - score(rows, 0, own) + score(rows, 0, other))
        + hinge(0.2 - score(rows, 0, other) + score(rows, 0, other))
        for own, other in same
    )
    assert removed > 0
    assert (values[False] - values[True]).item() == pytest.approx(removed, abs=1e-5)


def test_the_backbones_own_loss_is_added_with_its_weight():
    rows = KnownPairs()
    method = triplet.build(Triplet(auxiliary_weight=0.5), rows, {})
    batch = method.collate(np.array([0, 3]), np.random.default_rng(0))
    assert method.losses(Lookup(rows, auxiliary=3.0), batch, 0)["auxiliary"].item() == 1.5
    off = triplet.build(Triplet(auxiliary_weight=0.0), rows, {})
    assert "auxiliary" not in off.losses(Lookup(rows, auxiliary=3.0), batch, 0)


@settings(max_examples=50)
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=5), seed=st.integers(0, 2**16))
def test_sentences_count_with_the_hardest_of_each_pair(counts, seed):
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(len(counts), generator=generator, dtype=torch.float64, requires_grad=True)
    negatives = torch.randn(sum(counts), generator=generator, dtype=torch.float64, requires_grad=True)
    owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    loss = hardest_sentence_loss(positive, negatives, owners, 0.2)
    loss.backward()
    expected, moved = 0.0, set()
    for pair in range(len(counts)):
        own = (owners == pair).nonzero()[:, 0].tolist()
        costs = {row: max(0.0, 0.2 - positive[pair].item() + negatives[row].item()) for row in own}
        expected += max(costs.values(), default=0.0)
        moved |= {max(costs, key=lambda row: costs[row])} if any(costs.values()) else set()
    assert loss.item() == pytest.approx(expected, abs=1e-12)
    assert negatives.grad is not None
    assert set(negatives.grad.nonzero()[:, 0].tolist()) == moved
    assert (negatives.grad[list(moved)] == 1).all()
    assert positive.grad is not None
    assert positive.grad.tolist() == [-1.0 if pair in owners[list(moved)] else 0.0 for pair in range(len(counts))]
