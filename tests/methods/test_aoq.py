"""AOQ: losses against reference values and gradients, draws from mined lists, and pairs as in the paper."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from itrpipe.learning.losses import triplet_loss
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.methods.aoq import method as aoq
from itrpipe.methods.aoq.method import Aoq, OfflineNegatives, OfflineScores, aoq_loss, online_pairs
from itrpipe.methods.triplet import method as triplet
from itrpipe.methods.triplet.declaration import Triplet
from itrpipe.testing import ToyPairs
from tests.methods.toys import KnownPairs, Lookup

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
CASES = ["A", "B_bfan_range", "C_negative_weight"]
INPUTS = ["S", "s_i_toff", "s_ioff_t", "s_ioff_toff", "s_ioff2_toff2"]
EQUATION_3, EQUATION_4, EQUATION_5 = Aoq(variant="offline-triplet"), Aoq(variant="quintuplet"), Aoq()
ONLINE = Aoq(variant="quintuplet", quintuplet_pairs="online")
EQUATION_5_AS_4 = EQUATION_5.model_copy(update={"alpha": math.inf, "beta": 1.0})
VARIANTS = {
    "paper_eq3": [EQUATION_3],
    "paper_eq4": [EQUATION_4, EQUATION_5_AS_4],
    "code_eq4_alpha_inf_beta1": [EQUATION_4, EQUATION_5_AS_4],
    "paper_eq5": [EQUATION_5],
    "code_eq5": [EQUATION_5],
}


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE / "aoq_losses.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def leaves(reference, case):
    return [torch.tensor(reference[f"in_{case}_{name}"], requires_grad=True) for name in INPUTS]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("variant", "chosen"), [(name, each) for name, all_ in VARIANTS.items() for each in all_])
def test_value_and_gradients_match_reference(reference, case, variant, chosen):
    inputs = leaves(reference, case)
    value = aoq_loss(inputs[0], OfflineScores(*inputs[1:]), chosen)
    value.backward()
    assert value.item() == pytest.approx(float(reference[f"out_{case}_{variant}"]), abs=4e-6)
    for name, leaf in zip(INPUTS, inputs, strict=True):
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        np.testing.assert_allclose(gradient, reference[f"grad_{case}_{variant}_{name}"], atol=2e-6, err_msg=name)


def test_a_batch_without_in_batch_negatives_keeps_the_offline_terms():
    scores = torch.tensor([[0.3]], requires_grad=True)
    offline = OfflineScores(*(torch.tensor([value], requires_grad=True) for value in (0.5, 0.2, 0.4, 0.1)))
    loss = aoq_loss(scores, offline, EQUATION_5)
    loss.backward()
    assert loss.item() == pytest.approx(0.2 + 0.1)
    assert scores.grad is not None
    assert scores.grad.item() == -2.0


# The ablations of Table 3, against the loss written out pair by pair


def drawn_scores(reference) -> tuple[torch.Tensor, OfflineScores]:
    scores = torch.tensor(reference["in_A_S"])
    return scores, OfflineScores(*(torch.tensor(reference[f"in_A_{name}"]) for name in INPUTS[1:]))


def online_terms(scores: np.ndarray, weight_text, weight_image) -> float:
    """The two terms with g1 of every pair; the weights see (pair, score of the online negative)."""
    total = 0.0
    for k in range(len(scores)):
        others = [j for j in range(len(scores)) if j != k]
        text, image = max(scores[k, j] for j in others), max(scores[j, k] for j in others)
        total += weight_text(k, text) * max(0.0, 0.2 - scores[k, k] + text)
        total += weight_image(k, image) * max(0.0, 0.2 - scores[k, k] + image)
    return total


def test_the_online_quintuplet_pairs_the_hardest_negatives_of_the_batch(reference):
    scores, offline = drawn_scores(reference)
    matrix, positive = scores.numpy(), scores.diagonal().numpy()
    expected = online_terms(matrix, lambda k, score: 1.0, lambda k, score: 1.0)
    expected += sum(max(0.0, float(term[k]) - positive[k]) for term in offline[:2] for k in range(10))
    met = 0
    for k in range(10):
        others = [j for j in range(10) if j != k]
        text, image = max(others, key=lambda j: matrix[k, j]), max(others, key=lambda j: matrix[j, k])
        if text != image:
            met += 1
            expected += max(0.0, matrix[image, text] - positive[k]) + max(0.0, matrix[text, image] - positive[k])
    assert met > 3
    assert aoq_loss(scores, offline, ONLINE).item() == pytest.approx(expected, abs=1e-5)


def test_online_pairs_that_belong_together_are_no_negatives():
    scores = torch.tensor([[0.9, 0.8, 0.1], [0.7, 0.9, 0.2], [0.1, 0.2, 0.9]], requires_grad=True)
    first, second = online_pairs(scores)
    # Image 0 and caption 0 both find row 1: the pair (1, 1) is a positive. Row 2 finds 1 twice as well.
    assert first.tolist() == second.tolist() == [-math.inf] * 3
    loss = aoq_loss(scores, OfflineScores(*torch.full((4, 3), -9.0)), ONLINE)
    loss.backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    torch.testing.assert_close(loss, triplet_loss(scores))
    masked = torch.zeros(3, 3, dtype=torch.bool)
    masked[0, 1] = masked[1, 0] = True  # captions of one image: now image 0 and caption 0 find row 2 and row 2
    assert online_pairs(scores, masked)[0][0] == -math.inf


def test_weights_by_the_positive_compare_it_with_the_in_batch_negative(reference):
    scores, offline = drawn_scores(reference)
    positive = scores.diagonal().numpy()

    def weight(k: int, score: float) -> float:
        return 1.5 - (positive[k] - score) / 0.3

    expected = online_terms(scores.numpy(), weight, weight)
    expected += sum(max(0.0, float(term[k]) - positive[k]) for term in offline for k in range(10))
    value = aoq_loss(scores, offline, Aoq(weight_by="positive"))
    assert value.item() == pytest.approx(expected, abs=1e-4)
    assert value.item() != pytest.approx(aoq_loss(scores, offline, EQUATION_5).item(), abs=1e-2)


# Draws from mined lists


def negatives_of(texts, images, caption_image, probabilities=(), **given) -> OfflineNegatives:
    lists = {"texts_for_images": texts, "images_for_texts": images}
    judged = {PROBABILITY_OF + name: each for name, each in zip(lists, probabilities, strict=False)}
    return OfflineNegatives(lists | judged, caption_image, Aoq(**given))


def random_lists(images: int, per_image: int, num_texts: int, num_images: int, seed: int):
    """Lists as mining makes them: own captions and own image never occur."""
    rng = np.random.default_rng(seed)
    caption_image = np.repeat(np.arange(images), per_image)
    texts = np.stack([rng.permutation(np.flatnonzero(caption_image != i))[:num_texts] for i in range(images)])
    candidates = np.stack([rng.permutation(np.delete(np.arange(images), i))[:num_images] for i in caption_image])
    return texts.astype(np.int32), candidates.astype(np.int32), caption_image


def test_redrawing_ends_when_every_text_of_a_list_corresponds():
    caption_image = np.array([0, 1])
    negatives = negatives_of(np.array([[1], [0]]), np.array([[1], [0]]), caption_image, top_texts=1, top_images=1)
    assert negatives.draw(np.array([0, 1, 0]), np.random.default_rng(0)).corresponding == 3


def test_coupled_ranks_follow_the_released_code():
    texts, candidates, caption_image = random_lists(20, 5, 50, 10, seed=2)
    negatives = negatives_of(texts, candidates, caption_image, top_texts=50, top_images=10, coupled=True, redraw=False)
    captions = np.arange(len(caption_image))
    drawn = negatives.draw(captions, np.random.default_rng(3))
    text_rank = (texts[caption_image[captions]] == drawn.text[:, None]).argmax(axis=1)
    image_rank = (candidates[captions] == drawn.image[:, None]).argmax(axis=1)
    np.testing.assert_array_equal(image_rank, text_rank // 5)


def test_shorter_lists_are_drawn_from_up_to_their_end():
    caption_image = np.repeat(np.arange(4), 2)
    texts = np.full((4, 3), -1, dtype=np.int32)
    texts[:, 0], texts[0, 1] = [2, 4, 6, 0], 3
    images = np.full((8, 2), -1, dtype=np.int32)
    images[:, 0] = [1, 2, 3, 0, 3, 0, 1, 2]
    for coupled in (False, True):
        negatives = negatives_of(texts, images, caption_image, top_texts=3, top_images=2, coupled=coupled)
        drawn = [negatives.draw(np.arange(8), np.random.default_rng(seed)) for seed in range(40)]
        assert {int(each.text[0]) for each in drawn} == {2, 3}
        assert all((each.image == images[:, 0]).all() for each in drawn)


# Candidates that mining took for false negatives


def guarded_lists(seed: int = 0):
    texts, candidates, caption_image = random_lists(8, 3, 12, 6, seed)
    rng = np.random.default_rng(seed)
    of_texts, of_images = (rng.random(lists.shape).astype(np.float16) for lists in (texts, candidates))
    return texts, candidates, caption_image, of_texts, of_images


def draws(sampler: OfflineNegatives, caption_image: np.ndarray, rounds: int = 400):
    captions = np.tile(np.arange(len(caption_image)), rounds)
    return captions, sampler.draw(captions, np.random.default_rng(1))


def test_candidates_above_the_limit_are_never_drawn_and_the_next_ones_are():
    texts, candidates, caption_image, of_texts, of_images = guarded_lists()
    of_texts[:, 0] = of_images[:, 0] = 0.1  # so that every list keeps one
    guard = of_texts, of_images
    dropping = {"false_negatives": "drop", "drop_above": 0.4, "redraw": False}
    sampler = negatives_of(texts, candidates, caption_image, guard, top_texts=4, top_images=2, **dropping)
    captions, drawn = draws(sampler, caption_image)
    for anchor in range(len(candidates)):
        allowed = candidates[anchor][of_images[anchor] <= 0.4][:2]
        assert set(drawn.image[captions == anchor]) == set(allowed)
    for anchor in range(len(texts)):
        allowed = texts[anchor][of_texts[anchor] <= 0.4][:4]
        assert set(drawn.text[caption_image[captions] == anchor]) == set(allowed)


def test_weighed_candidates_are_drawn_in_proportion_to_what_speaks_for_them():
    texts, candidates, caption_image, of_texts, of_images = guarded_lists()
    of_texts[0] = 1.0  # nothing but matches: the least weight is left to each
    texts[1, 3:] = -1
    guard, weighing = (of_texts, of_images), {"false_negatives": "weigh", "redraw": False}
    sampler = negatives_of(texts, candidates, caption_image, guard, top_texts=5, top_images=4, **weighing)
    captions, drawn = draws(sampler, caption_image, rounds=4000)
    for lists, probability, picked, anchors, top in (
        (texts, of_texts, drawn.text, caption_image[captions], 5),
        (candidates, of_images, drawn.image, captions, 4),
    ):
        for anchor in range(3):
            own = picked[anchors == anchor]
            weights = np.where(lists[anchor] < 0, 0, np.maximum(1 - probability[anchor].astype(float), 1e-3))[:top]
            shares = [(own == row).mean() for row in lists[anchor, :top]]
            np.testing.assert_allclose(shares, weights / weights.sum(), atol=0.03)
            assert sum(shares) == pytest.approx(1)


@pytest.mark.parametrize("redraw", [True, False])
def test_the_image_of_a_drawn_text_is_its_own_after_a_redraw_too(redraw: bool) -> None:
    data = ToyPairs()
    rng = np.random.default_rng(0)
    negatives = OfflineNegatives(data.lists(), data.caption_image, Aoq(top_texts=4, top_images=4, redraw=redraw))
    captions = np.repeat(np.arange(data.num_captions), 40)
    drawn = negatives.draw(captions, rng)
    np.testing.assert_array_equal(drawn.image_of_text, data.caption_image[drawn.text])
    np.testing.assert_array_equal(data.caption_image[drawn.text_of_image], drawn.image)
    clashes = (drawn.image_of_text == drawn.image).sum()
    assert drawn.corresponding == clashes
    assert (clashes == 0) == redraw
    # Of the two captions of a drawn image either is taken as often as the other.
    assert abs((drawn.text_of_image % 2).mean() - 0.5) < 0.06


# The method


def test_the_first_epochs_of_aoq_are_the_plain_sum_over_all_negatives():
    rows = KnownPairs()
    captions = np.array([0, 3, 5, 10])
    method = aoq.build(Aoq(top_texts=10, top_images=5, sum_epochs=2), rows, rows.lists())
    plain = triplet.build(Triplet(max_violation=False), rows, {})
    batch = method.collate(captions, np.random.default_rng(0))
    expected = plain.losses(Lookup(rows), plain.collate(captions, np.random.default_rng(0)), epoch=0)
    assert method.losses(Lookup(rows), batch, epoch=1)["triplet"].item() == expected["triplet"].item()
    assert "aoq" in method.losses(Lookup(rows), batch, epoch=2)
