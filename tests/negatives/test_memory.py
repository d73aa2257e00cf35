"""The momentum twin follows its model, and the queues hold the last pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from itrpipe.models.base import DualEncoder, ImageBatch, ImageEncoding, TextBatch, TextEncoding
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp
from itrpipe.negatives.memory import FeatureQueues, MomentumTwin, same_image_columns


class Normed(DualEncoder):
    """A model with dropout and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        return ImageEncoding(self.net(images.regions[:, 0]))

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        return TextEncoding(self.net(texts.tokens[:, :3].float()))


def batch() -> tuple[ImageBatch, TextBatch]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, 9, (5, 4), generator=generator)
    return ImageBatch(torch.randn(5, 2, 3, generator=generator)), TextBatch(tokens, torch.full((5,), 4))


def test_the_twin_starts_as_a_copy_and_follows_slowly():
    torch.manual_seed(0)
    model = vsepp.build(Vsepp(embed_dim=6, word_dim=4), 3, 9)
    twin = MomentumTwin(model, 0.9)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    assert all(torch.equal(twin.model.state_dict()[name], value) for name, value in first.items())
    expected = dict(first)
    for _ in range(3):
        with torch.no_grad():
            for weights in model.parameters():
                weights.add_(torch.randn_like(weights))
        twin.follow()
        expected = {name: 0.9 * value + 0.1 * model.state_dict()[name] for name, value in expected.items()}
    for name, value in twin.model.state_dict().items():
        torch.testing.assert_close(value, expected[name], msg=name)
    assert not any(weights.requires_grad for weights in twin.parameters())
    assert {name.partition(".")[0] for name in twin.state_dict()} == {"model"}


@pytest.mark.parametrize("evaluate", [True, False])
def test_the_mode_decides_on_dropout_and_buffers_are_copied(evaluate):
    torch.manual_seed(0)
    model = Normed().train()
    twin = MomentumTwin(model, 0.99, evaluate)
    for _ in range(3):
        model.encode_images(batch()[0])
    twin.follow()
    norm, followed = twin.model.net[1], model.net[1]
    assert torch.equal(norm.running_mean, followed.running_mean)
    assert norm.running_mean.any()
    assert norm.num_batches_tracked == 3
    once, again = (twin.encode(*batch())[0] for _ in range(2))
    assert torch.equal(once, again) == evaluate
    assert twin.model.training != evaluate
    assert model.training


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(1, 9), max_size=8), size=st.integers(1, 12))
def test_queues_hold_the_last_pairs_though_a_run_restarts_before_every_batch(sizes, size):
    queues = FeatureQueues(size, 2)
    assert not queues.filled.any()
    written = 0
    for count in sizes:
        state, queues = queues.state_dict(), FeatureQueues(size, 2)
        queues.load_state_dict(state)
        rows = torch.arange(written, written + count)
        features = torch.stack([rows, -rows], dim=1).float()
        queues.write(features, features + 0.5, rows)
        written += count
    kept = list(range(max(0, written - size), written))
    found = queues.image_rows[queues.filled]
    assert sorted(found.tolist()) == kept
    np.testing.assert_array_equal(queues.images[queues.filled][:, 0], found)
    np.testing.assert_array_equal(queues.texts[queues.filled][:, 1], -found.float() + 0.5)
    if sum(sizes) <= size:
        assert queues.image_rows[:written].tolist() == kept


def test_candidates_of_the_same_image_and_empty_entries_are_excluded():
    queues = FeatureQueues(4, 2)
    queues.write(torch.zeros(2, 2), torch.zeros(2, 2), torch.tensor([7, 5]))
    excluded = same_image_columns(torch.tensor([5, 6, 5]), queues)
    assert excluded.int().tolist() == [
        [1, 0, 1, 0, 1, 1, 1],
        [0, 1, 0, 0, 0, 1, 1],
        [1, 0, 1, 0, 1, 1, 1],
    ]
    assert torch.equal(same_image_columns(torch.tensor([5, 6, 5]), None), excluded[:, :3])


def test_a_random_start_counts_as_candidates_of_unit_length():
    queues = FeatureQueues(6, 4, random=True)
    assert queues.filled.all()
    torch.testing.assert_close(queues.images.norm(dim=1), torch.ones(6))
    assert not torch.equal(queues.images, queues.texts)
    assert not same_image_columns(torch.tensor([0, 1]), queues)[:, 2:].any()
