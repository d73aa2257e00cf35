"""BFAN: its options reach the score, which is one mean cosine per direction."""

from __future__ import annotations

import pytest
import torch

from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.bfan.declaration import Bfan
from itrpipe.models.bfan.network import build
from itrpipe.models.cross_attention import Attention, CrossAttention


@pytest.fixture
def batch() -> tuple[ImageBatch, TextBatch]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([4, 9, 3, 7, 5, 6])
    tokens = torch.randint(4, 40, (6, 9), generator=generator)
    texts = TextBatch(tokens.masked_fill(torch.arange(9) >= lengths[:, None], 0), lengths)
    return ImageBatch(torch.randn(6, 5, 20, generator=generator), torch.tensor([5, 3, 4, 5, 3, 5])), texts


def model_of(**values):
    torch.manual_seed(1)
    return build(Bfan(embed_dim=16, word_dim=10, **values), image_dim=20, vocabulary_size=40)


def scores_of(model, batch):
    return model.score_matrix(model.encode_images(batch[0]), model.encode_texts(batch[1]))


@pytest.mark.parametrize("focal", ["equal", "prob"])
def test_the_score_is_the_sum_of_both_directions(batch, focal):
    model = model_of(focal=focal)
    scores = scores_of(model, batch)
    attention = Attention(20.0, "clipped_l2norm", focal, "Mean")
    directions = []
    for scoring in (CrossAttention(attention, None), CrossAttention(None, attention)):
        model.scoring = scoring
        directions.append(scores_of(model, batch))
        assert directions[-1].abs().max() <= 1.0
    torch.testing.assert_close(scores, directions[0] + directions[1])


def test_focal_variant_and_temperature_change_the_score(batch):
    published = scores_of(model_of(), batch)
    torch.testing.assert_close(scores_of(model_of(focal="equal", lambda_softmax=20.0), batch), published)
    for change in ({"focal": "prob"}, {"lambda_softmax": 5.0}):
        assert (scores_of(model_of(**change), batch) - published).abs().max() > 1e-3, change
