"""The momentum twin follows its model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from itrpipe.methods.base import MomentumTwin
from itrpipe.models.base import DualEncoder, ImageBatch, ImageEncoding, TextBatch, TextEncoding
from itrpipe.models.vsepp import network as vsepp
from itrpipe.models.vsepp.declaration import Vsepp


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
