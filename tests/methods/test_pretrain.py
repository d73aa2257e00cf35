"""Pretraining: which pairs match, which words are masked, and that each head is trained with its own loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.learning.sentences import UNLABELLED, CaptionMasks, SpecialTokens
from itrpipe.methods.pretrain import method as pretrain
from itrpipe.methods.pretrain.declaration import Pretrain
from itrpipe.methods.pretrain.method import PretrainMethod
from itrpipe.models.base import TextBatch
from itrpipe.models.uniter.network import UniterEncoder
from tests.methods.toys import CaptionRows, small_uniter

WORDS, MASK = range(4, 20), 20
COUNTS = np.array([3, 1, 2, 4, 3])


class Rows(CaptionRows):
    """Images have different numbers of regions; single words are masked."""

    def __init__(self) -> None:
        super().__init__(WORDS, COUNTS)
        specials = SpecialTokens(MASK, (0, self.start, self.end, 3), (WORDS.start, WORDS.stop))
        self.masks = CaptionMasks(self.tokens, self.word_of, self.caption_image, None, specials, "off")


def method(**changed: object) -> PretrainMethod:
    return pretrain.build(Pretrain(**{"negatives": 2, **changed}), Rows(), {})  # pyright: ignore


def states(model: UniterEncoder, image: int, tokens: Tensor) -> Tensor:
    """Last states [L, d] of one pair, layer by layer and without padding; `tokens` without theirs."""
    words = model.encode_texts(TextBatch(tokens[None], torch.tensor([len(tokens)]))).words
    regions = model.encode_images(Rows().images(np.array([image]))).regions[:, : COUNTS[image]]
    return model.layers(torch.cat([words, regions], dim=1))[0]


def test_losses_are_those_of_every_pair_and_word_alone():
    trained, model, captions = (
        method(weight_words=2.0, weight_matching=3.0),
        small_uniter(MASK + 1),
        np.array([5, 1, 3]),
    )
    batch = trained.collate(captions, np.random.default_rng(7))
    assert batch.texts.labelled.sum(dim=1).tolist() == [1, 1, 2]
    found = trained.losses(model, batch, epoch=0)
    assert found.keys() == {"matching", "words"}
    matching, ranking, words, right, hits = [], [], [], [], []
    shown = Rows().images(np.arange(5)).regions
    for number, caption in enumerate(captions):
        length = int(Rows.lengths[caption])
        own = torch.from_numpy(Rows().tokens[caption, :length])
        scores = []
        for place, row in enumerate(batch.rows[number]):
            image = int((batch.pairs["positive"][0].regions[row] == shown).all(dim=-1).all(dim=-1).int().argmax())
            start = states(model, image, own)[:1]
            match = torch.tensor([int(place == 0)])
            logits = model.match_logits(start)
            matching.append(F.cross_entropy(logits, match).item())
            scores.append(model.rank_score(start))
            right.append(bool(logits.argmax() == match))
        ranking.append(F.cross_entropy(torch.cat(scores)[None], torch.zeros(1, dtype=torch.int64)).item())
        labels = batch.texts.labels[number, :length]
        read = states(model, int(Rows.caption_image[caption]), batch.texts.copies[number, :length])
        at = (labels != UNLABELLED).nonzero()[:, 0]
        logits = model.masked_word_logits(read[at])
        words.append(F.cross_entropy(logits, labels[at]).item())
        hits += (logits.argmax(dim=1) == labels[at]).tolist()
    assert found["matching"].item() == pytest.approx(3 * (np.mean(matching) + np.mean(ranking)), rel=1e-5)
    assert found["words"].item() == pytest.approx(2 * np.mean(words), rel=1e-5)
    assert float(batch.statistics["matching_accuracy"]) == pytest.approx(np.mean(right))
    assert float(batch.statistics["masked_word_accuracy"]) == pytest.approx(np.mean(hits))
