"""Exact mining against reference lists and a naive sort; blocks, interruptions, ties and refusals."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, UsageError
from itrpipe.mining import exact
from itrpipe.mining.exact import ExactMiner, MinedLists

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE / "aoq_mining.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def mine(miner: ExactMiner, blocks=None) -> MinedLists:
    for block in miner.pending() if blocks is None else blocks:
        miner.step(block)
    return miner.result()


def naive_lists(images, texts, caption_image, num_texts, num_images):
    scores = images @ texts.T
    scores[caption_image, np.arange(len(texts))] = -np.inf
    by_image = np.argsort(-scores, axis=1, kind="stable")[:, :num_texts]
    by_text = np.argsort(-scores.T, axis=1, kind="stable")[:, :num_images]
    return by_image, by_text, scores


def assert_same(first: MinedLists, second: MinedLists):
    for name in MinedLists.__dataclass_fields__:
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


@pytest.mark.parametrize("block_size", [7, 40])
def test_lists_match_reference(reference, block_size):
    images, texts = reference["in_img_emb"], reference["in_cap_emb"]
    lists = mine(ExactMiner(images, texts, np.arange(200) // 5, 50, 10, block_size))
    np.testing.assert_array_equal(lists.texts_per_image, reference["out_i2t_fp32"])
    np.testing.assert_array_equal(lists.images_per_text, reference["out_t2i_fp32"])
    assert (lists.texts_per_image.dtype, lists.images_per_text.dtype) == (np.int32, np.int32)
    expected = np.einsum("nd,nkd->nk", images, texts[lists.texts_per_image])
    np.testing.assert_allclose(lists.text_scores, expected, atol=1e-6)
    expected = np.einsum("td,tkd->tk", texts, images[lists.images_per_text])
    np.testing.assert_allclose(lists.image_scores, expected, atol=1e-6)


def test_bfloat16_keeps_nearly_all_of_the_reference_lists(reference):
    images, texts = reference["in_img_emb"], reference["in_cap_emb"]
    lists = mine(ExactMiner(images, texts, np.arange(200) // 5, 50, 10, 16, "bf16"))
    kept = [len(set(a) & set(b)) / 50 for a, b in zip(lists.texts_per_image, reference["out_i2t_fp32"], strict=True)]
    assert np.mean(kept) > 0.97
    exact_scores = np.einsum("nd,nkd->nk", images, texts[lists.texts_per_image])
    error = np.abs(lists.text_scores - exact_scores).max()
    assert 1e-6 < error < 8e-3  # rounded, by at most two halves of the last of 8 bits


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), block_size=st.integers(1, 40), levels=st.sampled_from([2, 100]), data=st.data())
def test_equals_a_stable_sort_with_ties_and_uneven_captions(seed, block_size, levels, data):
    generator = np.random.default_rng(seed)
    # Small whole numbers: products are exact and, with two levels, mostly tied.
    images = generator.integers(-levels, levels, (30, 3)).astype(np.float32)
    caption_image = generator.permutation(np.concatenate([np.arange(30), generator.integers(0, 30, 40)]))
    texts = generator.integers(-levels, levels, (70, 3)).astype(np.float32)
    num_texts = data.draw(st.integers(1, 70 - int(np.bincount(caption_image).max())))
    num_images = data.draw(st.integers(1, 29))
    miner = ExactMiner(images, texts, caption_image, num_texts, num_images, block_size)
    lists = mine(miner, generator.permutation(miner.num_blocks))
    by_image, by_text, scores = naive_lists(images, texts, caption_image, num_texts, num_images)
    np.testing.assert_array_equal(lists.texts_per_image, by_image)
    np.testing.assert_array_equal(lists.images_per_text, by_text)
    np.testing.assert_array_equal(lists.text_scores, np.take_along_axis(scores, by_image, axis=1))
    np.testing.assert_array_equal(lists.image_scores, np.take_along_axis(scores.T, by_text, axis=1))


@pytest.mark.parametrize("interrupted_after", [0, 2, 5])
def test_an_interrupted_run_gives_the_same_lists(reference, interrupted_after):
    arguments = (reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5, 20, 8, 6)
    whole = mine(ExactMiner(*arguments))
    first = ExactMiner(*arguments)
    for block in first.pending()[:interrupted_after]:
        first.step(block)
    saved = first.state()
    mine(first)  # what the first miner does later must not reach into the saved state
    for array in saved.values():
        array.flags.writeable = False  # nor may the second one write to it
    second = ExactMiner(*arguments)
    second.restore(saved)
    assert second.pending() == list(range(interrupted_after, 7))
    assert_same(mine(second), whole)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gpu_gives_the_lists_of_the_cpu(precision):
    generator = np.random.default_rng(0)
    # Whole numbers up to 8: their products and sums are exact in either precision, and often tied.
    images = generator.integers(-8, 9, (300, 16)).astype(np.float32)
    texts = generator.integers(-8, 9, (1500, 16)).astype(np.float32)
    arguments = (images, texts, np.arange(1500) // 5, 100, 30, 64, precision)
    assert_same(mine(ExactMiner(*arguments, device="cuda")), mine(ExactMiner(*arguments)))


def test_state_of_another_run_is_refused(reference):
    images, texts, caption_image = reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5
    saved = ExactMiner(images, texts, caption_image, 20, 8, 6).state()
    with pytest.raises(DataError, match="start the mining again"):
        ExactMiner(images, texts, caption_image, 20, 9, 6).restore(saved)


def test_own_captions_never_appear(reference):
    images, texts = reference["in_img_emb"], reference["in_cap_emb"]
    lists = mine(ExactMiner(images, texts, np.arange(200) // 5, 195, 39, 16))
    assert not (lists.texts_per_image // 5 == np.arange(40)[:, None]).any()
    assert not (lists.images_per_text == (np.arange(200) // 5)[:, None]).any()
    assert all(len(set(row)) == 195 for row in lists.texts_per_image)


@pytest.mark.parametrize(
    ("num_texts", "num_images", "message"),
    [
        (196, 5, "196 captions per image were asked for, but 195 candidates exist"),
        (5, 40, "40 images per caption were asked for, but 39 candidates exist"),
        (0, 5, "0 captions per image"),
    ],
)
def test_asking_for_more_than_exists_is_refused(reference, num_texts, num_images, message):
    with pytest.raises(UsageError, match=message):
        ExactMiner(reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5, num_texts, num_images)


def test_a_block_is_done_once_and_results_wait_for_all(reference):
    miner = ExactMiner(reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5, 5, 5, 20)
    miner.step(1)
    with pytest.raises(UsageError, match="1 of 2 blocks are not mined"):
        miner.result()
    with pytest.raises(UsageError, match="block 1 of 2 is done already"):
        miner.step(1)
    with pytest.raises(UsageError, match="block 2 of 2"):
        miner.step(2)


def test_bad_embeddings_are_refused(reference):
    images, texts, caption_image = reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5
    broken = texts.copy()
    broken[[3, 9], 0] = np.nan
    with pytest.raises(DataError, match="2 of 200 caption embeddings"):
        ExactMiner(images, broken, caption_image, 5, 5)
    with pytest.raises(DataError, match="do not fit each other"):
        ExactMiner(images, texts[:, :8], caption_image, 5, 5)
    with pytest.raises(DataError, match=r"image rows 1\.\.40, but 40 images"):
        ExactMiner(images, texts, caption_image + 1, 5, 5)
    with pytest.raises(DataError, match="scores are NaN or infinite"):
        mine(ExactMiner(images * np.float32(1e38), texts * 1e4, caption_image, 5, 5))


def test_the_example_of_the_docstring_runs():
    outcome = doctest.testmod(exact)
    assert (outcome.failed, outcome.attempted) == (0, 4)
