"""Matching with hard negatives against reference numbers: what is drawn, what is taken, and what is trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from itrpipe.errors import UsageError
from itrpipe.methods.itm import method as itm
from itrpipe.methods.itm.declaration import Itm
from itrpipe.methods.itm.method import ItmBatch, PairRows, draw_others
from itrpipe.models.base import ImageBatch, TextBatch
from itrpipe.models.uniter.network import UniterEncoder, translate
from tests.methods.toys import reference, reference_uniter, small_uniter

CAPTION_IMAGE = np.array([0, 0, 1, 2, 3, 3, 3, 4])
CASES = ("text_anchor", "image_anchor_correct")


class Rows:
    """Eight captions of five images; an image's features hold its number, a caption's first word its own."""

    caption_image = CAPTION_IMAGE

    def images(self, rows: np.ndarray) -> ImageBatch:
        regions = torch.from_numpy(rows).float()[:, None, None].expand(-1, 3, 6)
        return ImageBatch(regions, None, boxes=torch.tensor([0.1, 0.2, 0.5, 0.9]).expand(len(rows), 3, 4))

    def texts(self, rows: np.ndarray) -> TextBatch:
        tokens = torch.from_numpy(rows)[:, None] + torch.tensor([4, 1, 2])
        return TextBatch(tokens, torch.full((len(rows),), 3))


def method(**changed: object) -> itm.ItmMethod:
    return itm.build(Itm(**{"sampled_negatives": 4, "hard_negatives": 2, **changed}), Rows(), {})  # pyright: ignore


@pytest.fixture(scope="module")
def arrays() -> dict[str, Tensor]:
    return reference("uniter_itm_hard_negative")


@pytest.fixture
def reference_model(arrays: dict[str, Tensor]) -> UniterEncoder:
    return reference_uniter(reference("uniter_forward"), arrays)


def reference_batch(arrays: dict[str, Tensor], case: str) -> ItmBatch:
    """One anchor with twelve candidates; its layout says how long each side of a pair is."""
    ids, features, boxes = (arrays[f"{case}/in/{name}"] for name in ("input_ids", "img_feat", "img_pos_feat"))
    lengths = (ids != 0).sum(dim=1)
    count = (features.abs().sum(dim=2) > 0).sum(dim=1)
    total = arrays[f"{case}/in/attn_masks"].sum(dim=1)
    assert torch.equal(lengths + count, total)
    candidates, one = torch.arange(12)[None], torch.zeros(1, 12, dtype=torch.int64)
    rows = PairRows(candidates, one) if case == "text_anchor" else PairRows(one, candidates)
    images = ImageBatch(features, count, boxes=boxes[..., :4])
    return ItmBatch({"pool": (images, TextBatch(ids, lengths))}, torch.zeros(1, dtype=torch.int64), rows=rows)


@pytest.mark.parametrize("case", CASES)
def test_scores_of_all_candidates_match_the_reference(arrays, reference_model, case):
    batch = reference_batch(arrays, case)
    images, texts = batch.pairs["pool"]
    encoded = reference_model.encode_images(images), reference_model.encode_texts(texts)
    scores = reference_model.score_at(*encoded, batch.rows.images[0], batch.rows.captions[0])
    torch.testing.assert_close(scores, arrays[f"{case}/rank_scores"][:, 0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_match_the_reference(arrays, reference_model, case):
    trained = method(sampled_negatives=4, hard_negatives=4)
    batch = reference_batch(arrays, case)
    # The reference has a single anchor; with the same one twice, either term is the reference's loss.
    batch.rows = PairRows(*(side.repeat(2, 1) for side in (batch.rows.images, batch.rows.captions)))
    found = trained.losses(reference_model, batch, epoch=0)
    assert found.keys() == {"text_anchored", "image_anchored"}
    for term in found.values():
        torch.testing.assert_close(term, arrays[f"{case}/loss_mean"], rtol=0, atol=1e-6)
    found["text_anchored"].backward()
    expected = {name: t for name, t in arrays.items() if name.startswith(f"{case}/grad/")}
    assert len(expected) == 5
    parameters = dict(reference_model.named_parameters())
    for name, gradient in expected.items():
        name = name.removeprefix(f"{case}/grad/")
        if ".self.query." in name:
            own = parameters["layers.0.project.weight"].grad[:48]  # pyright: ignore
        else:
            own = parameters[next(iter(translate({name: gradient})))].grad
        torch.testing.assert_close(own, gradient, rtol=0, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_a_batch_has_the_captions_and_as_many_images_each_with_its_match_first():
    captions = np.array([3, 0, 6])
    batch = method().collate(captions, np.random.default_rng(0))
    images, texts = batch.pairs["pool"]
    image = images.regions[batch.rows.images][..., 0, 0].long().numpy()  # [6, 5] rows of the training set
    caption = texts.tokens[batch.rows.captions][..., 0].numpy() - 4
    assert image.shape == caption.shape == (6, 5)
    matching = CAPTION_IMAGE[caption] == image
    assert matching[:, 0].all()
    assert not matching[:, 1:].any()
    assert (caption[:3] == captions[:, None]).all()
    assert (image[3:] == image[3:, :1]).all()
    for row in range(3):
        assert len(set(image[row])) == 5
        assert len(set(caption[3 + row])) == 5
    assert len(set(image[3:, 0])) == 3
    assert batch.images.tolist() == CAPTION_IMAGE[captions].tolist()
    assert len(images.regions) == len(set(image.flatten()))


def test_image_anchors_are_drawn_apart_from_the_captions_and_among_all():
    trained, seen, first = method(), set(), set()
    for seed in range(30):
        batch = trained.collate(np.array([0, 1]), np.random.default_rng(seed))
        images, texts = batch.pairs["pool"]
        seen.add(tuple(images.regions[batch.rows.images[2:, 0], 0, 0].int().tolist()))
        first |= set((texts.tokens[batch.rows.captions[2:, 0], 0] - 4).tolist())
    assert len(seen) > 8
    assert first == set(range(8))


def test_a_batch_larger_than_the_training_set_repeats_images():
    batch = method().collate(np.arange(8), np.random.default_rng(0))
    assert batch.rows.images.shape == (16, 5)


@settings(max_examples=40)
@given(st.data())
def test_draws_are_distinct_and_never_excluded(data):
    rows, total = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 30))
    excluded = np.array(
        data.draw(st.lists(st.lists(st.booleans(), min_size=total, max_size=total), min_size=rows, max_size=rows))
    )
    excluded[:, 0] = False
    count = data.draw(st.integers(1, int((~excluded).sum(axis=1).min())))
    drawn = draw_others(excluded, count, np.random.default_rng(0))
    assert drawn.shape == (rows, count)
    assert all(len(set(row)) == count for row in drawn.tolist())
    assert not np.take_along_axis(excluded, drawn, axis=1).any()


def test_draws_are_uniform_in_every_place():
    excluded = np.zeros((30_000, 6), dtype=bool)
    excluded[:, 2] = True
    drawn = draw_others(excluded, 3, np.random.default_rng(0))
    for place in range(3):
        share = np.bincount(drawn[:, place], minlength=6) / len(drawn)
        np.testing.assert_allclose(share, [0.2, 0.2, 0.0, 0.2, 0.2, 0.2], atol=0.01)


def test_the_hardest_are_found_without_dropout_gradient_or_random_numbers():
    model, trained = small_uniter(20, dropout=0.4, std=0.4), method(sampled_negatives=4, hard_negatives=2)
    batch = trained.collate(np.array([0, 3, 7]), np.random.default_rng(1))
    before = torch.get_rng_state()
    chosen = trained.hard_rows(model, batch, epoch=0)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert all(weights.grad is None for weights in model.parameters())
    model.eval()
    images, texts = batch.pairs["pool"]
    encoded = model.encode_images(images), model.encode_texts(texts)
    scores = model.score_at(*encoded, batch.rows.images.flatten(), batch.rows.captions.flatten()).view(6, 5)
    best = scores[:, 1:].topk(2, dim=1).indices + 1
    assert torch.equal(chosen.images[:, 1:], batch.rows.images.gather(1, best))
    assert torch.equal(chosen.captions[:, 1:], batch.rows.captions.gather(1, best))
    trained.hard_rows(model, batch, epoch=0)
    assert not model.training


def test_the_first_epochs_take_the_first_negatives_and_score_nothing_else(monkeypatch):
    model, trained = small_uniter(20, std=0.4), method(sum_epochs=1)
    batch = trained.collate(np.array([0, 3]), np.random.default_rng(1))
    scored: list[tuple[int, bool, bool]] = []
    score_at = model.score_at

    def counting(images, texts, rows, columns):
        scored.append((len(rows), torch.is_grad_enabled(), model.training))
        return score_at(images, texts, rows, columns)

    monkeypatch.setattr(model, "score_at", counting)
    trained.losses(model, batch, epoch=0)
    assert scored == [(4 * 3, True, True)]
    assert torch.equal(trained.hard_rows(model, batch, 0).images, batch.rows.images[:, :3])
    trained.losses(model, batch, epoch=1)
    assert scored[1:] == [(4 * 4, False, False), (4 * 3, True, True)]


def test_terms_are_means_of_captions_and_of_images_apart():
    model, trained = small_uniter(20, std=0.4), method(hard_negatives=4)
    batch = trained.collate(np.array([0, 3, 7]), np.random.default_rng(1))
    found = trained.losses(model, batch, epoch=0)
    images, texts = batch.pairs["pool"]
    encoded = model.encode_images(images), model.encode_texts(texts)
    scores = model.score_at(*encoded, batch.rows.images.flatten(), batch.rows.captions.flatten()).view(6, 5)
    probabilities = scores.sigmoid()
    hinges = (0.2 + probabilities[:, 1:] - probabilities[:, :1]).clamp(min=0)
    torch.testing.assert_close(found["text_anchored"], hinges[:3].mean())
    torch.testing.assert_close(found["image_anchored"], hinges[3:].mean())
    assert not torch.isclose(hinges[:3].mean(), hinges[3:].mean())


def test_too_small_a_training_set_and_too_few_samples_are_refused():
    with pytest.raises(UsageError, match=r"sampled_negatives = 5, but .* no more than 4 negatives .*=4 or less"):
        method(sampled_negatives=5)
    with pytest.raises(ValidationError, match="hard_negatives = 6 are to be found among sampled_negatives = 4"):
        method(hard_negatives=6)
