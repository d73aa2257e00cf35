"""Pretraining: which pairs match, which words are masked, and that each head is trained with its own loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from itrpipe.errors import UsageError
from itrpipe.methods.masking import MaskedTexts
from itrpipe.methods.pretrain import method as pretrain
from itrpipe.methods.pretrain.declaration import Pretrain
from itrpipe.methods.pretrain.method import PretrainBatch, PretrainMethod
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter.declaration import Uniter
from itrpipe.models.uniter.network import UniterEncoder
from itrpipe.negatives.caption_masks import NO_WORD, CaptionMasks, SpecialTokens
from itrpipe.negatives.masking import UNLABELLED

CAPTION_IMAGE = np.array([0, 0, 1, 2, 3, 3, 3, 4])
LENGTHS = np.array([4, 7, 5, 6, 7, 4, 6, 5])
START, END, MASK = 1, 2, 20
WORDS = (4, 20)
COUNTS = np.array([3, 1, 2, 4, 3])


class Rows:
    """Eight captions of different lengths of five images with different numbers of regions; single words are masked."""

    caption_image = CAPTION_IMAGE

    def __init__(self) -> None:
        place = np.arange(LENGTHS.max())
        tokens = np.random.default_rng(3).integers(*WORDS, (len(LENGTHS), len(place)))
        tokens[:, 0] = START
        self.tokens = np.where(place == LENGTHS[:, None] - 1, END, np.where(place < LENGTHS[:, None], tokens, 0))
        words = np.where((place > 0) & (place < LENGTHS[:, None] - 1), place - 1, NO_WORD)
        specials = SpecialTokens(MASK, (0, START, END, 3), WORDS)
        self.masks = CaptionMasks(self.tokens, words, CAPTION_IMAGE, None, specials, "off")

    def images(self, rows: np.ndarray) -> ImageBatch:
        regions = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(1))[rows]
        boxes = torch.tensor([0.1, 0.2, 0.5, 0.9]).expand(len(rows), 4, 4)
        return ImageBatch(regions, torch.from_numpy(COUNTS[rows]), boxes=boxes)

    def texts(self, rows: np.ndarray) -> TextBatch:
        lengths = torch.from_numpy(LENGTHS[rows])
        return TextBatch(torch.from_numpy(self.tokens[rows, : int(lengths.max())]), lengths)


def method(**changed: object) -> PretrainMethod:
    return pretrain.build(Pretrain(**{"negatives": 2, **changed}), Rows(), {})  # pyright: ignore


def small(dropout: float = 0.0) -> UniterEncoder:
    torch.manual_seed(0)
    sizes = Uniter(embed_dim=16, layers=2, heads=2, feed_forward_dim=24, max_words=8, dropout=dropout)
    model = UniterEncoder(sizes, 6, MASK + 1)
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.3)
    return model.train()


def states(model: UniterEncoder, image: int, tokens: Tensor) -> Tensor:
    """Last states [L, d] of one pair, layer by layer and without padding; `tokens` without theirs."""
    words = model.encode_texts(TextBatch(tokens[None], torch.tensor([len(tokens)]))).words
    regions = model.encode_images(Rows().images(np.array([image]))).regions[:, : COUNTS[image]]
    return model.through_layers(torch.cat([words, regions], dim=1), None)[0]


def test_a_batch_has_every_caption_with_its_own_and_with_other_images():
    captions = np.array([3, 0, 6])
    batch = method().collate(captions, np.random.default_rng(0))
    images, texts = batch.pairs["positive"]
    shown = Rows().images(np.arange(5)).regions
    image = (images.regions[batch.rows][:, :, None] == shown).all(dim=-1).all(dim=-1).int().argmax(dim=2)  # [3, 3]
    assert image[:, 0].tolist() == CAPTION_IMAGE[captions].tolist() == batch.images.tolist()
    assert all(len(set(row)) == 3 for row in image.tolist())
    assert len(images.regions) == len(image.unique())
    assert torch.equal(texts.tokens, Rows().texts(captions).tokens)
    assert batch.texts.captions.tokens is texts.tokens
    labelled = batch.texts.labelled
    assert torch.equal(batch.texts.labels[labelled], texts.tokens[labelled])
    assert torch.equal(batch.texts.copies[~labelled], texts.tokens[~labelled])
    assert labelled.any(dim=1).all()
    assert ((texts.tokens[labelled] >= WORDS[0]) & (texts.tokens[labelled] < WORDS[1])).all()


def test_other_images_are_drawn_anew_and_among_all_others():
    seen: set[tuple[int, ...]] = set()
    for seed in range(40):
        batch = method().collate(np.array([3]), np.random.default_rng(seed))
        kept = batch.pairs["positive"][0].regions[batch.rows[0, 1:]]
        others = (kept[:, None] == Rows().images(np.arange(5)).regions).all(dim=-1).all(dim=-1).int().argmax(dim=1)
        seen.add(tuple(sorted(others.tolist())))
    assert seen == {(a, b) for a in (0, 1, 3, 4) for b in (0, 1, 3, 4) if a < b}


@pytest.mark.parametrize("noise", [True, False])
def test_without_noise_all_labelled_words_are_masked(noise: bool) -> None:
    batches = [method(noise=noise).collate(np.arange(8), np.random.default_rng(seed)).texts for seed in range(10)]
    shown = {word for batch in batches for word in batch.copies[batch.labelled].tolist()}
    assert MASK in shown
    assert (shown == {MASK}) != noise


def test_losses_are_those_of_every_pair_and_word_alone():
    trained, model, captions = method(weight_words=2.0, weight_matching=3.0), small(), np.array([5, 1, 3])
    batch = trained.collate(captions, np.random.default_rng(1))
    found = trained.losses(model, batch, epoch=0)
    assert found.keys() == {"matching", "words"}
    matching, ranking, words, right, hits = [], [], [], [], []
    shown = Rows().images(np.arange(5)).regions
    for number, caption in enumerate(captions):
        length = int(LENGTHS[caption])
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
        read = states(model, int(CAPTION_IMAGE[caption]), batch.texts.copies[number, :length])
        at = (labels != UNLABELLED).nonzero()[:, 0]
        logits = model.masked_word_logits(read[at])
        words.append(F.cross_entropy(logits, labels[at]).item())
        hits += (logits.argmax(dim=1) == labels[at]).tolist()
    assert found["matching"].item() == pytest.approx(3 * (np.mean(matching) + np.mean(ranking)), rel=1e-5)
    assert found["words"].item() == pytest.approx(2 * np.mean(words), rel=1e-5)
    assert float(batch.statistics["matching_accuracy"]) == pytest.approx(np.mean(right))
    assert float(batch.statistics["masked_word_accuracy"]) == pytest.approx(np.mean(hits))


def test_captions_of_different_lengths_cost_together_what_they_cost_alone():
    trained, model = method(), small()
    batch = trained.collate(np.array([0, 4]), np.random.default_rng(1))
    parts = []
    for number, length in enumerate((4, 7)):
        texts = batch.texts
        own = MaskedTexts(
            TextBatch(texts.captions.tokens[number, None, :length], torch.tensor([length])),
            texts.copies[number, None, :length],
            texts.labels[number, None, :length],
        )
        alone = PretrainBatch(batch.pairs["positive"][0], own, batch.rows[number, None], batch.images[number, None])
        parts.append(trained.losses(model, alone, epoch=0))
    for name, found in trained.losses(model, batch, epoch=0).items():
        assert_close(found, (parts[0][name] + parts[1][name]) / 2, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_a_step_trains_three_heads_and_the_encoder(precision: torch.dtype | None):
    trained, model = method(), small(dropout=0.1)
    batch = trained.collate(np.array([0, 4, 6]), np.random.default_rng(1))
    with torch.autocast("cpu", precision or torch.bfloat16, enabled=precision is not None):
        losses = trained.losses(model, batch, epoch=0)
    torch.stack(list(losses.values())).sum().backward()
    found = dict(model.named_parameters())
    for name in ("match.weight", "rank.weight", "masked_word.bias", "image.box.weight", "layers.0.project.weight"):
        gradient = found[name].grad
        assert gradient is not None, name
        assert gradient.abs().max() > 1e-6, name
    assert found["word_match.weight"].grad is None
    assert found["correction.bias"].grad is None


def test_it_learns_which_pairs_match_and_which_words_are_masked():
    trained, model = method(negatives=4, noise=False), small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    first: dict[str, float] = {}
    for number in range(80):
        batch = trained.collate(np.arange(8), np.random.default_rng(number))
        losses = trained.losses(model, batch, epoch=0)
        first = first or {name: loss.item() for name, loss in losses.items()}
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()
    assert all(loss.item() < 0.5 * first[name] for name, loss in losses.items())
    assert batch.statistics["matching_accuracy"] > 0.9


def test_a_batch_moves_and_keeps_its_rows_on_the_cpu():
    batch = method().collate(np.array([0, 4]), np.random.default_rng(0))
    moved = batch.to("meta")
    assert moved.rows is batch.rows
    parts = (moved.images, moved.texts.copies, moved.texts.labels, moved.pairs["positive"][0].regions)
    assert all(part.device.type == "meta" for part in parts)


def test_more_other_images_than_there_are_is_refused():
    with pytest.raises(UsageError, match=r"loss\.negatives = 5, but the training set has 5 images"):
        method(negatives=5)
