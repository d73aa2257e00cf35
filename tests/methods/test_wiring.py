"""What reaches the loss of each method: the drawn candidate, the masks, the order of groups, the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from itrpipe.losses.fne import SimilarityStatistics
from itrpipe.losses.ssamt import phrase_loss
from itrpipe.losses.triplet import triplet_loss
from itrpipe.methods.aoq import method as aoq
from itrpipe.methods.aoq.declaration import Aoq
from itrpipe.methods.ascl import method as ascl
from itrpipe.methods.ascl.declaration import Ascl
from itrpipe.methods.fne import method as fne
from itrpipe.methods.fne.declaration import Fne
from itrpipe.methods.ssamt import method as ssamt
from itrpipe.methods.ssamt.declaration import Ssamt
from itrpipe.models.base import DualEncoder, ImageBatch, ImageEncoding, TextBatch, TextEncoding
from itrpipe.negatives import asymmetry
from itrpipe.negatives.false_negatives import estimate_gaussians
from itrpipe.negatives.offline import OfflineNegatives
from itrpipe.testing import IMAGE_DIM, VOCABULARY, ToyPairs

BATCH = np.array([0, 1, 4, 7, 9, 12])


class Small(DualEncoder):
    """Two projections, BatchNorm on one side, and a loss of its own."""

    def __init__(self, auxiliary: float | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.image = nn.Sequential(nn.Linear(IMAGE_DIM, 6), nn.BatchNorm1d(6))
        self.text, self.own = nn.EmbeddingBag(VOCABULARY, 6), auxiliary

    def encode_images(self, images: ImageBatch) -> ImageEncoding:
        return ImageEncoding(nn.functional.normalize(self.image(images.regions.mean(dim=1)), dim=1))

    def encode_texts(self, texts: TextBatch) -> TextEncoding:
        return TextEncoding(nn.functional.normalize(self.text(texts.tokens), dim=1))

    def auxiliary_loss(self, images: ImageEncoding, texts: TextBatch) -> Tensor | None:
        return None if self.own is None else self.text.weight.sum() * 0 + self.own


def attached(model: Small | None = None, **settings: Any) -> tuple[Small, Any, Any]:
    chosen = {"memory_size": 8, "warm_epochs": 0, "min_count": 0, "momentum": 0.5, **settings}
    model, method = model or Small(), fne.build(Fne(**chosen), ToyPairs(), {})
    return model, method, method.attach(model.train())


def moved(model: nn.Module) -> None:
    """Takes a model away from what followed it."""
    torch.manual_seed(5)
    with torch.no_grad():
        for each in model.parameters():
            each.add_(0.5 * torch.randn_like(each))


def learned(model: Small, batch: Any) -> None:
    """Takes a model so far that most pairs of a batch score higher than all others."""
    same = batch.images[:, None] == batch.images[None, :]
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(150):
        images, texts = encoded(model, batch)
        optimizer.zero_grad()
        triplet_loss(images.embedding @ texts.embedding.T, 0.5, not_negative=same).backward()
        optimizer.step()


# FNE


def test_the_loss_of_fne_is_that_of_the_candidate_that_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    model, method, state = attached(margin=1.0, momentum=0.999)
    moved(model)
    batch = method.collate(BATCH, np.random.default_rng(0))
    drawn = {side: torch.tensor([4, 4, 5, 2, 0, 1]) for side in ("text", "image")}
    asked = iter(("text", "image"))
    monkeypatch.setattr(
        "itrpipe.losses.fne_loss.draw", lambda weights: (drawn[next(asked)], torch.ones(6, dtype=torch.bool))
    )
    found = method.losses(model, batch, 0)["fne"]
    image, text = (each.embedding for each in encoded(model, batch))
    with torch.no_grad():
        twin_image, twin_text = state.twin.encode(*batch.pairs["positive"])
    hinges = (1.0 - (image * twin_text).sum(dim=1) + (image * twin_text[drawn["text"]]).sum(dim=1)).clamp(min=0)
    hinges = hinges + (1.0 - (text * twin_image).sum(dim=1) + (text * twin_image[drawn["image"]]).sum(dim=1)).clamp(
        min=0
    )
    torch.testing.assert_close(found, hinges.mean())


def encoded(model: Small, batch: Any) -> tuple[ImageEncoding, TextEncoding]:
    """In training mode without moving the running statistics a second time."""
    images, texts = batch.pairs["positive"]
    return model.encode_images(images), model.encode_texts(texts)


@pytest.mark.parametrize("mask_same_image", [True, False])
def test_statistics_are_those_of_the_model_without_captions_of_the_same_image(mask_same_image: bool) -> None:
    model, method, state = attached(mask_same_image=mask_same_image, momentum=0.999)
    batch = method.collate(BATCH, np.random.default_rng(0))  # two of them are of one image
    learned(model, batch)
    method.losses(model, batch, 0)
    image, text = (each.embedding.detach() for each in encoded(model, batch))
    same = batch.images[:, None] == batch.images[None, :]
    expected = SimilarityStatistics()
    expected.update(image @ text.T, same if mask_same_image else None)
    for name in ("count", "total", "deviation"):
        torch.testing.assert_close(getattr(state.statistics, name), getattr(expected, name), msg=name)
    assert expected.count.min() > 2
    other, by_twin = SimilarityStatistics(), SimilarityStatistics()
    other.update(image @ text.T, None if mask_same_image else same)
    with torch.no_grad():
        twin_image, twin_text = state.twin.encode(*batch.pairs["positive"])
    by_twin.update(twin_image @ twin_text.T, same if mask_same_image else None)
    assert not torch.equal(other.total, expected.total)
    assert not torch.equal(by_twin.total, expected.total)


@pytest.mark.parametrize("epoch", [0, 1])
def test_losses_of_fne_are_means_and_so_is_the_backbones_own(epoch: int) -> None:
    model, method, _ = attached(Small(auxiliary=12.0), warm_epochs=1, auxiliary_weight=0.5, margin=0.7)
    batch = method.collate(BATCH, np.random.default_rng(0))
    losses = method.losses(model, batch, epoch)
    assert losses["auxiliary"].item() == pytest.approx(0.5 * 12.0 / 6)
    if epoch == 0:
        image, text = (each.embedding for each in encoded(model, batch))
        torch.testing.assert_close(losses["triplet"], triplet_loss(image @ text.T, 0.7) / 6)


def test_the_window_is_the_margin() -> None:
    for margin in (0.2, 0.55):
        assert fne.sampling_rules(Fne(margin=margin)).window == margin
    assert fne.sampling_rules(Fne(window=False)).window is None


def test_distributions_over_a_training_set_may_have_negative_means() -> None:
    """The released code's floor at zero is for training alone."""
    rng = np.random.default_rng(0)
    images = np.eye(8, dtype=np.float32)[np.repeat(np.arange(8), 3)][:24]
    texts = (images - 0.3 - 0.05 * rng.random(images.shape)).astype(np.float32)
    found = estimate_gaussians(images, texts, np.arange(24), batch_size=8)
    floored = estimate_gaussians(images, texts, np.arange(24), batch_size=8, floor=True)
    assert found.mean[1] < -0.1
    assert floored.mean[1] == 0


# AOQ


@pytest.mark.parametrize("redraw", [True, False])
def test_the_image_of_a_drawn_text_is_its_own_after_a_redraw_too(redraw: bool) -> None:
    data = ToyPairs()
    lists, rng = data.lists(), np.random.default_rng(0)
    negatives = OfflineNegatives(
        lists["texts_for_images"],
        lists["images_for_texts"],
        data.caption_image,
        top_texts=4,
        top_images=4,
        redraw=redraw,
    )
    captions = np.repeat(np.arange(data.num_captions), 40)
    drawn = negatives.draw(captions, rng)
    np.testing.assert_array_equal(drawn.image_of_text, data.caption_image[drawn.text])
    np.testing.assert_array_equal(data.caption_image[drawn.text_of_image], drawn.image)
    clashes = (drawn.image_of_text == drawn.image).sum()
    assert drawn.corresponding == clashes
    assert (clashes == 0) == redraw
    # Of the two captions of a drawn image either is taken as often as the other.
    assert abs((drawn.text_of_image % 2).mean() - 0.5) < 0.06


def test_the_three_groups_of_aoq_go_through_batch_norm_one_after_the_other() -> None:
    data, model = ToyPairs(), Small().train()
    method = aoq.build(Aoq(top_texts=4, top_images=4), data, data.lists())
    batch = method.collate(BATCH, np.random.default_rng(0))
    seen: list[Tensor] = []
    model.image[1].register_forward_hook(lambda _, given, __: seen.append(given[0].mean(dim=0)))
    method.losses(model, batch, 5)
    groups = [batch.pairs[name][0].regions.mean(dim=1) for name in ("positive", "offline", "derived")]
    expected = [model.image[0](each).mean(dim=0) for each in groups]
    for found, wanted in zip(seen, expected, strict=True):
        torch.testing.assert_close(found, wanted)
    running = torch.zeros(6)
    for wanted in expected:
        running = 0.9 * running + 0.1 * wanted
    torch.testing.assert_close(model.image[1].running_mean, running.detach())


# SSAMT


def test_padding_is_no_phrase_that_fails() -> None:
    fragments = torch.tensor([[0.9, 0.2, -5.0, 7.0]])
    holds, real = torch.tensor([[True, False, False, False]]), torch.tensor([[True, True, False, False]])
    assert phrase_loss(fragments, holds, real, 1.0).item() == pytest.approx(1.0 - 0.9 + 0.2)


def test_a_caption_of_the_same_image_is_no_negative_in_the_second_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the captions of one image and one other the other is taken, whatever the scores."""
    method = ssamt.build(Ssamt(negatives="hardest"), ToyPairs(), {})  # pyright: ignore
    batch = method.collate(np.array([0, 1, 6]), np.random.default_rng(0))
    taken = []
    negatives = method._negatives

    def noted(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        # Alike captions of one image score highest with it.
        taken.append(negatives(torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.1], [0.1, 0.1, 1.0]]), mask))
        raise KeyboardInterrupt

    monkeypatch.setattr(method, "_negatives", noted)
    with pytest.raises(KeyboardInterrupt):
        method.losses(FakeSsamt(), batch, 0)  # pyright: ignore
    ((text, image),) = taken
    assert text.tolist()[:2] == image.tolist()[:2] == [2, 2]


class FakeSsamt:
    """Gives scores and nothing else."""

    def encode_images(self, images: object) -> None:
        return None

    def encode_texts(self, texts: object) -> None:
        return None

    def intra_matrix(self, images: object, texts: object) -> Tensor:
        return torch.eye(3)


# AsCL


def test_noise_on_captions_is_another_in_every_batch_and_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    method = ascl.build(Ascl(positives="none", noise="gaussian"), ToyPairs(), {})
    seeds = [method.collate(BATCH, np.random.default_rng([0, 0, step])).seed for step in (0, 1, 0)]
    assert seeds[0] == seeds[2] != seeds[1]
    used = []

    def noted(words: Tensor, lengths: Tensor, kinds: object, generator: torch.Generator) -> Tensor:
        used.append(generator.initial_seed())
        raise KeyboardInterrupt

    monkeypatch.setattr(asymmetry, "add_noise", noted)
    for step in (0, 1):
        batch = method.collate(BATCH, np.random.default_rng([0, 0, step]))
        with pytest.raises(KeyboardInterrupt):
            method.losses(FakeAscl(), batch, 0)  # pyright: ignore
    assert used == seeds[:2]


class FakeAscl:
    """Gives words and scores and nothing else."""

    def encode_images(self, images: object) -> None:
        return None

    def encode_texts(self, texts: TextBatch) -> Any:
        from itrpipe.models.base import WordEncoding

        return WordEncoding(texts.tokens[..., None].float(), texts.lengths)

    def score_matrix(self, images: object, texts: Any) -> Tensor:
        return torch.eye(len(texts.lengths))
