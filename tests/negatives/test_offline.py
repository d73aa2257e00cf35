"""Draws from mined lists: ranges, correspondence, coupling, determinism."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.errors import UsageError
from itrpipe.negatives.offline import FalseNegativeGuard, OfflineNegatives


def random_lists(images: int, per_image: int, num_texts: int, num_images: int, seed: int):
    """Lists as mining makes them: own captions and own image never occur."""
    rng = np.random.default_rng(seed)
    caption_image = np.repeat(np.arange(images), per_image)
    texts = np.stack([rng.permutation(np.flatnonzero(caption_image != i))[:num_texts] for i in range(images)])
    candidates = np.stack([rng.permutation(np.delete(np.arange(images), i))[:num_images] for i in caption_image])
    return texts.astype(np.int32), candidates.astype(np.int32), caption_image


@settings(max_examples=40)
@given(
    images=st.integers(4, 12),
    per_image=st.integers(1, 5),
    seed=st.integers(0, 10_000),
    coupled=st.booleans(),
)
def test_every_draw_is_in_the_top_of_its_list_and_partners_correspond(images, per_image, seed, coupled):
    top_texts, top_images = min(10, per_image * (images - 1)), min(3, images - 1)
    coupled = coupled and top_images <= top_texts
    texts, candidates, caption_image = random_lists(images, per_image, top_texts, top_images, seed)
    negatives = OfflineNegatives(
        texts, candidates, caption_image, top_texts=top_texts, top_images=top_images, coupled=coupled, redraw=False
    )
    captions = np.random.default_rng(seed).integers(len(caption_image), size=32)
    drawn = negatives.draw(captions, np.random.default_rng(seed))
    anchors = caption_image[captions]
    assert all(text in texts[anchor] for text, anchor in zip(drawn.text, anchors, strict=True))
    assert all(image in candidates[caption] for image, caption in zip(drawn.image, captions, strict=True))
    np.testing.assert_array_equal(caption_image[drawn.text_of_image], drawn.image)
    np.testing.assert_array_equal(caption_image[drawn.text], drawn.image_of_text)
    assert drawn.corresponding == np.count_nonzero(drawn.image_of_text == drawn.image)


def test_redrawing_ends_when_every_text_of_a_list_corresponds():
    caption_image = np.array([0, 1])
    negatives = OfflineNegatives(np.array([[1], [0]]), np.array([[1], [0]]), caption_image, top_texts=1, top_images=1)
    assert negatives.draw(np.array([0, 1, 0]), np.random.default_rng(0)).corresponding == 3


def test_coupled_ranks_follow_the_released_code():
    texts, candidates, caption_image = random_lists(20, 5, 50, 10, seed=2)
    negatives = OfflineNegatives(
        texts, candidates, caption_image, top_texts=50, top_images=10, coupled=True, redraw=False
    )
    captions = np.arange(len(caption_image))
    drawn = negatives.draw(captions, np.random.default_rng(3))
    text_rank = (texts[caption_image[captions]] == drawn.text[:, None]).argmax(axis=1)
    image_rank = (candidates[captions] == drawn.image[:, None]).argmax(axis=1)
    np.testing.assert_array_equal(image_rank, text_rank // 5)


def test_uncoupled_ranks_are_uniform_over_the_whole_top():
    texts, candidates, caption_image = random_lists(20, 5, 50, 10, seed=2)
    negatives = OfflineNegatives(texts, candidates, caption_image, top_texts=50, top_images=10, redraw=False)
    captions = np.zeros(20_000, dtype=np.int64)
    drawn = negatives.draw(captions, np.random.default_rng(3))
    text_share = np.bincount((texts[0] == drawn.text[:, None]).argmax(axis=1), minlength=50) / len(captions)
    image_share = np.bincount((candidates[0] == drawn.image[:, None]).argmax(axis=1), minlength=10) / len(captions)
    np.testing.assert_allclose(text_share, 1 / 50, atol=0.005)
    np.testing.assert_allclose(image_share, 1 / 10, atol=0.01)


def test_lists_shorter_than_asked_for_are_refused_with_both_numbers():
    texts, candidates, caption_image = random_lists(6, 5, 20, 3, seed=1)
    with pytest.raises(UsageError, match="top_texts = 21 but the mined lists hold 20"):
        OfflineNegatives(texts, candidates, caption_image, top_texts=21, top_images=3)


def test_shorter_lists_are_drawn_from_up_to_their_end_and_empty_ones_refused():
    caption_image = np.repeat(np.arange(4), 2)
    texts = np.full((4, 3), -1, dtype=np.int32)
    texts[:, 0], texts[0, 1] = [2, 4, 6, 0], 3
    images = np.full((8, 2), -1, dtype=np.int32)
    images[:, 0] = [1, 2, 3, 0, 3, 0, 1, 2]
    for coupled in (False, True):
        negatives = OfflineNegatives(texts, images, caption_image, top_texts=3, top_images=2, coupled=coupled)
        drawn = [negatives.draw(np.arange(8), np.random.default_rng(seed)) for seed in range(40)]
        assert {int(each.text[0]) for each in drawn} == {2, 3}
        assert all((each.image == images[:, 0]).all() for each in drawn)
    texts[2, 0] = -1
    with pytest.raises(UsageError, match="1 of 4 anchors of texts_for_images have no candidate left"):
        OfflineNegatives(texts, images, caption_image, top_texts=3, top_images=2)


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
    guard = FalseNegativeGuard(of_texts, of_images, drop_above=0.4)
    sampler = OfflineNegatives(texts, candidates, caption_image, top_texts=4, top_images=2, redraw=False, guard=guard)
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
    guard = FalseNegativeGuard(of_texts, of_images)
    sampler = OfflineNegatives(texts, candidates, caption_image, top_texts=5, top_images=4, redraw=False, guard=guard)
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


def test_an_anchor_with_nothing_but_likely_matches_is_refused_when_they_are_dropped():
    texts, candidates, caption_image, of_texts, of_images = guarded_lists()
    of_images[5] = 0.9
    with pytest.raises(
        UsageError, match=r"1 of 24 anchors of images_for_texts have no candidate.*raise loss\.drop_above"
    ):
        OfflineNegatives(
            texts, candidates, caption_image, top_texts=4, top_images=2,
            guard=FalseNegativeGuard(of_texts, of_images, drop_above=0.89),
        )  # fmt: skip
