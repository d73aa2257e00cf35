"""AOQ: losses against reference values and gradients, draws from mined lists, and pairs as in the paper."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from itrpipe.learning.losses import triplet_loss
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.methods.aoq.method import Aoq, AoqMethod, OfflineNegatives, OfflineScores, aoq_loss, online_pairs
from tests.methods.toys import KnownPairs, Lookup, reference

REFERENCE = reference("aoq_losses")
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


def leaves(case: str) -> list[torch.Tensor]:
    return [REFERENCE[f"in_{case}_{name}"].clone().requires_grad_() for name in INPUTS]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("variant", "chosen"), [(name, each) for name, all_ in VARIANTS.items() for each in all_])
def test_value_and_gradients_match_reference(case, variant, chosen):
    inputs = leaves(case)
    value = aoq_loss(inputs[0], OfflineScores(*inputs[1:]), chosen)
    value.backward()
    assert value.item() == pytest.approx(float(REFERENCE[f"out_{case}_{variant}"]), abs=4e-6)
    for name, leaf in zip(INPUTS, inputs, strict=True):
        gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        np.testing.assert_allclose(gradient, REFERENCE[f"grad_{case}_{variant}_{name}"], atol=2e-6, err_msg=name)


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


# Draws from mined lists

TEXTS, IMAGES = "texts_for_images", "images_for_texts"
EIGHT = np.repeat(np.arange(8), 3)


def lists_of(seed: int) -> dict[str, np.ndarray]:
    """Lists of all that is foreign to eight images of three captions and to these, with probabilities of any size."""
    rng = np.random.default_rng(seed)
    lists = {
        TEXTS: np.stack([rng.permutation(np.flatnonzero(image != EIGHT)) for image in range(8)]),
        IMAGES: np.stack([rng.permutation(np.delete(np.arange(8), image)) for image in EIGHT]),
    }
    return lists | {PROBABILITY_OF + name: rng.random(each.shape).astype(np.float16) for name, each in lists.items()}


def test_redrawing_ends_when_every_text_of_a_list_corresponds():
    lists = dict.fromkeys((TEXTS, IMAGES), np.array([[1], [0]]))
    negatives = OfflineNegatives(lists, np.array([0, 1]), Aoq(top_texts=1, top_images=1))
    assert negatives.draw(np.array([0, 1, 0]), np.random.default_rng(0)).corresponding == 3


def test_coupled_ranks_follow_the_released_code():
    lists, captions = lists_of(2), np.arange(24)
    negatives = OfflineNegatives(lists, EIGHT, Aoq(top_texts=20, top_images=5, coupled=True, redraw=False))
    drawn = negatives.draw(captions, np.random.default_rng(3))
    text_rank = (lists[TEXTS][EIGHT] == drawn.text[:, None]).argmax(axis=1)
    image_rank = (lists[IMAGES] == drawn.image[:, None]).argmax(axis=1)
    np.testing.assert_array_equal(image_rank, text_rank // 4)


@pytest.mark.parametrize("coupled", [False, True])
def test_shorter_lists_are_drawn_from_up_to_their_end(coupled):
    lists = lists_of(0)
    lists[TEXTS][:, 2:] = lists[IMAGES][:, 1:] = -1
    negatives = OfflineNegatives(lists, EIGHT, Aoq(top_texts=3, top_images=2, coupled=coupled, redraw=False))
    drawn = [negatives.draw(np.arange(24), np.random.default_rng(seed)) for seed in range(40)]
    assert {int(each.text[0]) for each in drawn} == set(lists[TEXTS][0, :2])
    assert all((each.image == lists[IMAGES][:, 0]).all() for each in drawn)


@pytest.mark.parametrize("judged", ["drop", "weigh"])
def test_candidates_are_drawn_by_what_speaks_for_them(judged):
    lists, captions = lists_of(0), np.tile(np.arange(24), 4000)
    lists[TEXTS][1, 3:] = -1
    for name in (TEXTS, IMAGES):
        lists[PROBABILITY_OF + name][:, 1] = 0.1  # so that every list keeps one
    lists[PROBABILITY_OF + TEXTS][0] = 1.0 if judged == "weigh" else 0.4  # the least weight; what is not above is kept
    chosen = Aoq(top_texts=5, top_images=4, judged=judged, drop_above=0.4, redraw=False)
    drawn = OfflineNegatives(lists, EIGHT, chosen).draw(captions, np.random.default_rng(1))
    for name, picked, anchors, top in ((TEXTS, drawn.text, EIGHT[captions], 5), (IMAGES, drawn.image, captions, 4)):
        for anchor in range(3):
            rows, chances = lists[name][anchor], lists[PROBABILITY_OF + name][anchor].astype(np.float32)
            weights = np.maximum(1 - chances, 1e-3) if judged == "weigh" else (chances <= np.float16(0.4)).astype(float)
            weights = np.where(rows < 0, 0.0, weights)
            # The next ones take the places of those that are dropped.
            last = top if judged == "weigh" else np.flatnonzero(weights)[:top][-1] + 1
            shares = [(picked[anchors == anchor] == row).mean() for row in rows[:last]]
            np.testing.assert_allclose(shares, weights[:last] / weights[:last].sum(), atol=0.03)
            assert sum(shares) == pytest.approx(1)


# What judges say of pairs


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("judged", ["drop", "weigh", "soft"])
def test_what_judges_say_counts_for_mined_candidates_and_those_of_the_batch(judged: str, epoch: int) -> None:
    data = KnownPairs(8)
    lists = data.lists()
    sure = judged == "weigh"  # a weight is a probability to be kept: here none or one
    chances = ((5 * np.arange(8)[:, None] + 3 * np.arange(16)) % 10 / 10).astype(np.float16)
    chances = (chances > 0.7).astype(np.float16) if sure else chances
    lists[PROBABILITY_OF + TEXTS] = np.take_along_axis(chances, lists[TEXTS], axis=1)
    lists[PROBABILITY_OF + IMAGES] = np.take_along_axis(chances.T, lists[IMAGES], axis=1)
    chosen = Aoq(variant="quintuplet", judged=judged, margin_offline=0.1, top_texts=9, top_images=5, sum_epochs=1)  # pyright: ignore
    method, captions = AoqMethod(chosen, data, lists), np.array([0, 3, 5, 6, 9, 14])  # pyright: ignore
    batch = method.collate(captions, np.random.default_rng(0))
    scores = (data.image_table @ data.text_table.T).double().numpy()

    def violation(margin: float, own: tuple[int, int], other: tuple[int, int], known: bool = True) -> float:
        chance = float(chances[other]) if known else 0.0
        if judged != "soft" and known and chance > (0.9 if sure else 0.5):
            return 0.0
        left = margin * (1 - chance) if judged == "soft" else margin
        return max(0.0, left - scores[own] + scores[other])

    rows = {name: (i.regions[:, 0, 0].long().tolist(), t.tokens[:, 0].tolist()) for name, (i, t) in batch.pairs.items()}
    expected = 0.0
    for place, own in enumerate(zip(*rows["positive"], strict=True)):
        texts = [violation(0.2, own, (own[0], t)) for t in captions if t != own[1]]
        images = [violation(0.2, own, (i, own[1])) for i in rows["positive"][0] if i != own[0]]
        if epoch == 0:
            expected += sum(texts) + sum(images)
            continue
        image, text = (side[place] for side in rows["offline"])
        if judged == "drop":
            assert max(chances[own[0], text], chances[image, own[1]]) <= 0.5
        of_a_and_b = [violation(0.1, own, (own[0], text), judged == "soft")]
        of_a_and_b += [violation(0.1, own, (image, own[1]), judged == "soft")]
        pairs = [(image, text), tuple(side[place] for side in rows["derived"])]
        of_c_and_d = [violation(0.1, own, pair, known=False) for pair in pairs]
        expected += max(texts) + max(images) + sum(of_a_and_b) + sum(of_c_and_d)
    (loss,) = method.losses(Lookup(data), batch, epoch).values()
    assert loss.item() == pytest.approx(expected, rel=1e-5)
