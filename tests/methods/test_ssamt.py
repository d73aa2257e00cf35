"""SSAMT: its losses against hinges written out, which negatives it takes, and which labels it asks for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from itrpipe.methods.ssamt import method as ssamt
from itrpipe.methods.ssamt.declaration import Ssamt
from itrpipe.methods.ssamt.method import phrase_loss
from itrpipe.models.base import TextBatch
from itrpipe.models.ssamt.declaration import Ssamt as SsamtModel
from itrpipe.models.ssamt.network import build
from itrpipe.models.uniter.network import initialise
from itrpipe.testing import IMAGE_DIM, VOCABULARY, ToyPairs
from tests.methods.toys import built


def test_phrase_loss_compares_the_means_of_two_sets_where_there_are_two():
    fragments = torch.tensor([[0.5, 0.3, 0.9, 9.0], [0.5, 0.3, 0.1, 0.1], [0.2] * 4], requires_grad=True)
    matching = torch.tensor([[True, True, False, True], [True] * 4, [False] * 4])
    real = torch.tensor([[True, True, True, False], [True] * 4, [True] * 4])
    loss = phrase_loss(fragments, matching, real, 0.2)
    loss.backward()
    assert loss.item() == pytest.approx(0.2 - 0.4 + 0.9)
    assert fragments.grad is not None
    torch.testing.assert_close(fragments.grad[0], torch.tensor([-0.5, -0.5, 1.0, 0.0]))
    assert not fragments.grad[1:].any()
    assert phrase_loss(fragments[1:], matching[1:], real[1:], 0.5).item() == 0.0


class Rows(ToyPairs):
    """Captions whose last word is in no phrase, and is all of them that holds for any image."""

    asked = 0

    def texts(self, rows: np.ndarray) -> TextBatch:
        found = super().texts(rows)
        assert found.phrases is not None
        inside = torch.arange(found.tokens.shape[1]) < found.lengths[:, None, None] - 1
        return replace(found, phrases=replace(found.phrases, tokens=found.phrases.tokens & inside))

    def matching(self, images: np.ndarray, captions: np.ndarray, num_phrases: int, num_words: int) -> torch.Tensor:
        self.asked += 1
        return torch.arange(num_phrases + num_words) == num_phrases + self.texts(captions).lengths[:, None] - 1


def losses(rows: Rows, captions: list[int], **settings: object):
    torch.manual_seed(0)
    model = build(SsamtModel(embed_dim=16, heads=2, feed_forward_dim=16, dropout=0.0), IMAGE_DIM, VOCABULARY)
    initialise(model, 0.3)
    method = built(ssamt.build, Ssamt(**settings), rows)  # pyright: ignore
    return method.losses(model, method.collate(np.array(captions), np.random.default_rng(0)), 0)


def test_without_its_weight_the_phrase_loss_asks_for_no_labels():
    rows = Rows()
    assert set(losses(rows, [0, 2, 4], weight_phrase=0.0)) == {"global", "local"}
    assert not rows.asked


def test_dropping_stopwords_leaves_out_words_of_no_phrase():
    assert losses(Rows(), [0, 2, 4])["phrase"].item() > 0
    assert losses(Rows(), [0, 2, 4], label_stopwords="drop")["phrase"].item() == 0.0


@pytest.mark.parametrize("negatives", ["softmax", "top-k"])
def test_drawn_negatives_are_never_of_the_same_image_and_vary(negatives):
    method = built(ssamt.build, Ssamt(negatives=negatives, temperature=1.0, top_k=3), Rows())  # pyright: ignore
    scores, image = torch.rand(6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(6) // 2
    same, seen = image[:, None] == image, set()
    best = scores.masked_fill(same, -1).topk(3, dim=1).indices
    for seed in range(20):
        torch.manual_seed(seed)
        candidates = scores.masked_fill(same, float("-inf"))
        text, image = method._pick(candidates), method._pick(candidates.T)
        assert not (same[torch.arange(6), text] | same[image, torch.arange(6)]).any()
        assert negatives == "softmax" or (best == text[:, None]).any(dim=1).all()
        seen.add((*text.tolist(), *image.tolist()))
    assert len(seen) > 5
