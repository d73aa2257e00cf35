"""Generated positives of the triplet loss: the captions that are made, and the loss written out pair by pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from itrpipe.learning.sentences import SentenceBank
from itrpipe.methods.base import Batch
from itrpipe.methods.triplet import method as triplet
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.models.base import DualEncoder, ImageBatch, ImageEncoding, TextBatch, TextEncoding

START, END = 1, 2
WORDS = [[11, 12, 13, 14], [21, 22, 23], [31, 32, 33, 34, 35], [41]]
"""Words of four captions: two of image 0, then one of each of two others."""
CAPTION_IMAGE = np.array([0, 0, 1, 2])
JOINED = [WORDS[0] + WORDS[1], WORDS[2] + WORDS[2], WORDS[3] + WORDS[3]]


class Captions:
    """The captions above; image i is its number."""

    caption_image = CAPTION_IMAGE
    sentences = SentenceBank(np.array([[61], [62]]), np.array([1, 1]), np.array([0, 1, 1, 2, 2]))

    def __init__(self, ends: tuple[int, int] = (1, 1), max_tokens: int = 99) -> None:
        self.ends, self.max_tokens = ends, max_tokens

    def texts(self, rows: np.ndarray) -> TextBatch:
        before, behind = [START][: self.ends[0]], [END][: self.ends[1]]
        found = [torch.tensor([*before, *WORDS[row], *behind]) for row in rows]
        lengths = torch.tensor([len(each) for each in found])
        return TextBatch(torch.nn.utils.rnn.pad_sequence(found, batch_first=True), lengths)

    def pairs(
        self, images: np.ndarray, captions: np.ndarray, rng: np.random.Generator | None = None
    ) -> tuple[ImageBatch, TextBatch]:
        return ImageBatch(torch.from_numpy(images).float()[:, None, None]), self.texts(captions)


class MeanWord(DualEncoder):
    """An image is a random unit vector, a caption the mean of those of its tokens, of unit length."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.pictures = F.normalize(torch.randn(3, 6, generator=generator), dim=1)
        self.words = F.normalize(torch.randn(70, 6, generator=generator), dim=1)
        self.captioned: list[list[list[int]]] = []

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        return ImageEncoding(self.pictures[images.regions[:, 0, 0].long()])

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        vectors = [self.words[row].mean(dim=0) for row in rows_of(texts)]
        return TextEncoding(F.normalize(torch.stack(vectors), dim=1))

    def auxiliary_loss(self, images: ImageEncoding, texts: TextBatch) -> torch.Tensor | None:
        self.captioned.append(rows_of(texts))
        return torch.tensor(7.0)


def rows_of(texts: TextBatch) -> list[list[int]]:
    """Tokens of each caption without padding; fails where what is behind them is none."""
    found = zip(texts.tokens.tolist(), texts.lengths.tolist(), strict=True)
    rows = [(row[:length], row[length:]) for row, length in found]
    assert not any(sum(padding) for _, padding in rows)
    assert texts.tokens.shape[1] == texts.lengths.max()
    return [row for row, _ in rows]


def collated(settings: Triplet, data: Captions, seed: int = 0) -> Batch:
    """The first caption of every image."""
    return triplet.build(settings, data, {}).collate(np.array([0, 2, 3]), np.random.default_rng(seed))


def generated(kind: Any, data: Captions, seed: int = 0) -> list[list[int]]:
    batch = collated(Triplet(generated_positives=kind), data, seed)
    assert batch.generated is not None
    return rows_of(batch.generated)


def ended(*words: list[int]) -> list[list[int]]:
    return [[START, *each, END] for each in words]


def test_each_caption_gets_one_of_both_and_the_same_again_from_the_same_generator() -> None:
    seen = set()
    for seed in range(20):
        batch = generated("either", Captions(), seed)
        assert batch == generated("either", Captions(), seed)
        for caption, half, joined in zip(batch, ended([11, 12], [31, 32], [41]), ended(*JOINED), strict=True):
            assert len(caption) in (len(half), len(joined))
            seen.add((half[1], len(caption) == len(joined)))
    assert seen == {(word, long) for word in (11, 31, 41) for long in (False, True)}


def hinges(model: MeanWord, captions: list[list[int]], margin: float, hardest: bool) -> float:
    """Eq. 1 or 2 of AOQ for image k with caption k, written out."""
    texts = [F.normalize(model.words[row].mean(dim=0), dim=0) for row in captions]
    scores = [[float(picture @ text) for text in texts] for picture in model.pictures]
    total = 0.0
    for k in range(3):
        for negatives in ([scores[k][j] for j in range(3) if j != k], [scores[i][k] for i in range(3) if i != k]):
            costs = [max(0.0, margin - scores[k][k] + negative) for negative in negatives]
            total += max(costs) if hardest else sum(costs)
    return total


@pytest.mark.parametrize("epoch", [0, 1])
def test_the_loss_is_half_that_of_the_captions_and_half_that_of_the_generated_ones(epoch: int) -> None:
    settings, model = (
        Triplet(generated_positives="shortened", margin=0.8, sum_epochs=1, auxiliary_weight=0.5),
        MeanWord(),
    )
    own, halves = ended(WORDS[0], WORDS[2], WORDS[3]), ended([11, 12], [31, 32], [41])
    losses = triplet.build(settings, Captions(), {}).losses(model, collated(settings, Captions()), epoch)
    hardest = epoch >= 1
    assert losses["triplet"].item() == pytest.approx(hinges(model, own, 0.8, hardest) / 2, abs=1e-5)
    assert losses["positives"].item() == pytest.approx(hinges(model, halves, 0.8, hardest) / 2, abs=1e-5)
    assert losses["triplet"] != losses["positives"]
    assert losses["auxiliary"].item() == 3.5
    assert losses.keys() == {"triplet", "positives", "auxiliary"}
    assert model.captioned == [own]


def test_captions_of_one_image_are_left_out_on_request() -> None:
    found = {}
    for masked in (False, True):
        settings = Triplet(generated_positives="shortened", max_violation=False, margin=2.0, mask_same_image=masked)
        method = triplet.build(settings, Captions(), {})
        batch = method.collate(np.array([0, 1]), np.random.default_rng(0))
        found[masked] = method.losses(MeanWord(), batch, 0)
    for name in ("triplet", "positives"):
        assert found[True][name].item() == 0.0
        assert found[False][name].item() > 0.0


def test_synthetic_sentences_stand_beside_generated_positives() -> None:
    settings, model = Triplet(generated_positives="joined", synthetic_sentences=1, margin=1.0), MeanWord()
    batch = collated(settings, Captions())
    both = triplet.build(settings, Captions(), {}).losses(model, batch, 0)
    alone = Triplet(synthetic_sentences=1, margin=1.0)
    sentences = triplet.build(alone, Captions(), {}).losses(model, collated(alone, Captions()), 0)
    assert both["synthetic"].item() == sentences["synthetic"].item() > 0
    assert both["triplet"].item() == sentences["triplet"].item() / 2
    assert both["positives"].item() > 0
