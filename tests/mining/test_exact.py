"""Exact mining against reference lists and a naive sort; parts, interruptions, ties, floors and refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, UsageError
from itrpipe.mining import exact
from itrpipe.mining.exact import IMAGE_KEYS, ExactMining, tile_shape
from itrpipe.mining.lists import MinedLists
from itrpipe.mining.products import Embeddings, error_bounds, faster_in_two_steps, pair_scores
from itrpipe.mining.top_k import NO_CANDIDATE
from itrpipe.storage.parts import ArrayFile
from tests.maps import made
from tests.mining.mine import assert_same, exact_work, joined, made_in_order, mine, norms_of

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    with np.load(REFERENCE / "aoq_mining.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def naive_lists(images, texts, caption_image, num_texts, num_images):
    scores = images @ texts.T
    owned = np.flatnonzero(caption_image >= 0)
    scores[caption_image[owned], owned] = -np.inf
    by_image = np.argsort(-scores, axis=1, kind="stable")[:, :num_texts]
    by_text = np.argsort(-scores.T, axis=1, kind="stable")[:, :num_images]
    return by_image, by_text, scores


@pytest.mark.parametrize("block", [7, 40])
def test_lists_match_reference(reference, block):
    images, texts = reference["in_img_emb"], reference["in_cap_emb"]
    lists = mine(images, texts, np.arange(200) // 5, 50, 10, block=block)
    np.testing.assert_array_equal(lists.texts_per_image, reference["out_i2t_fp32"])
    np.testing.assert_array_equal(lists.images_per_text, reference["out_t2i_fp32"])
    assert (lists.texts_per_image.dtype, lists.images_per_text.dtype) == (np.int32, np.int32)
    expected = np.einsum("nd,nkd->nk", images, texts[lists.texts_per_image])
    np.testing.assert_allclose(lists.text_scores, expected, atol=1e-6)
    expected = np.einsum("td,tkd->tk", texts, images[lists.images_per_text])
    np.testing.assert_allclose(lists.image_scores, expected, atol=1e-6)


def test_bfloat16_keeps_nearly_all_of_the_reference_lists(reference):
    images, texts = reference["in_img_emb"], reference["in_cap_emb"]
    lists = mine(images, texts, np.arange(200) // 5, 50, 10, block=16, precision="bf16")
    kept = [len(set(a) & set(b)) / 50 for a, b in zip(lists.texts_per_image, reference["out_i2t_fp32"], strict=True)]
    assert np.mean(kept) > 0.97
    exact_scores = np.einsum("nd,nkd->nk", images, texts[lists.texts_per_image])
    error = np.abs(lists.text_scores - exact_scores).max()
    assert 1e-6 < error < 8e-3  # rounded, by at most two halves of the last of 8 bits


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    block=st.sampled_from([1, 2, 3, 5, 7, 8, 13, 14, 15, 20]),
    text_block=st.integers(1, 40),
    levels=st.sampled_from([2, 100]),
    precision=st.sampled_from(["fp32", "bf16+fp32", "fp32+fp32"]),
    nobodys=st.booleans(),
    data=st.data(),
)
def test_equals_a_stable_sort_with_ties_and_uneven_captions(seed, block, text_block, levels, precision, nobodys, data):
    generator = np.random.default_rng(seed)
    # Small whole numbers: products are exact and, with two levels, mostly tied.
    images = generator.integers(-levels, levels, (14, 3)).astype(np.float32)
    caption_image = generator.permutation(np.concatenate([np.arange(14), generator.integers(0, 14, 20)]))
    caption_image[generator.random(34) < 0.4 * nobodys] = -1
    texts = generator.integers(-levels, levels, (34, 3)).astype(np.float32)
    own = np.bincount(caption_image[caption_image >= 0], minlength=14)
    num_texts = data.draw(st.integers(1, 34 - int(own.max())))
    num_images = data.draw(st.integers(1, 13))
    options = {"block": block, "text_block": text_block, "precision": precision}
    lists = mine(
        images, texts, caption_image, num_texts, num_images, order=lambda parts: generator.permutation(parts), **options
    )
    by_image, by_text, scores = naive_lists(images, texts, caption_image, num_texts, num_images)
    np.testing.assert_array_equal(lists.texts_per_image, by_image)
    np.testing.assert_array_equal(lists.images_per_text, by_text)
    np.testing.assert_array_equal(lists.text_scores, np.take_along_axis(scores, by_image, axis=1))
    np.testing.assert_array_equal(lists.image_scores, np.take_along_axis(scores.T, by_text, axis=1))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16+fp32", "fp32+fp32"])
@pytest.mark.parametrize("interrupted_after", [0, 2, 6])
def test_an_interrupted_run_gives_the_same_lists(reference, tmp_path, interrupted_after, precision):
    arguments = (reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5, 20, 8)
    options = {"block": 6, "text_block": 50, "precision": precision}
    whole = mine(*arguments, **options)
    first = exact_work(tmp_path, *arguments, **options)
    every = first.parts()
    assert len(every) == 7
    made_in_order(first, every[:interrupted_after], tmp_path / "parts")
    kept = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parts").iterdir()}
    second = exact_work(tmp_path, *arguments, **options)
    found = made(second, tmp_path / "parts")
    assert found.rows == sum(part.rows for part in every[interrupted_after:])
    assert {name: (tmp_path / "parts" / name).stat().st_mtime_ns for name in kept} == kept
    assert_same(joined(second, found.paths, tmp_path), whole)


def unit_vectors(seed: int, images: int, captions: int, dim: int):
    """Unit vectors of which few directions carry most, and captions near their image."""
    generator = np.random.default_rng(seed)
    directions = generator.standard_normal((6, dim))
    meaning = generator.standard_normal((images, 6))
    both = []
    for points in (
        meaning,
        np.repeat(meaning, captions, axis=0) + 0.7 * generator.standard_normal((images * captions, 6)),
    ):
        vectors = points @ directions + 0.5 * generator.standard_normal((len(points), dim))
        both.append((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32))
    return both[0], both[1], np.repeat(np.arange(images), captions)


def pair_score_lists(images, texts, caption_image, num_texts, num_images):
    """Naive lists by the very scores that rank candidates, all pairs computed."""
    rows, columns = (torch.from_numpy(part.ravel()) for part in np.indices((len(texts), len(images))))
    scores = pair_scores(torch.from_numpy(texts), torch.from_numpy(images), rows, columns).numpy()
    scores = scores.reshape(len(texts), len(images)).T.copy()
    owned = np.flatnonzero(caption_image >= 0)
    scores[caption_image[owned], owned] = -np.inf
    by_image = np.argsort(-scores, axis=1, kind="stable")[:, :num_texts].astype(np.int32)
    by_text = np.argsort(-scores.T, axis=1, kind="stable")[:, :num_images].astype(np.int32)
    return MinedLists(
        by_image,
        np.take_along_axis(scores, by_image, axis=1),
        by_text,
        np.take_along_axis(scores.T, by_text, axis=1),
    )


@pytest.mark.parametrize(("capability", "precision"), [((7, 5), "fp32+fp32"), ((8, 0), "bf16+fp32")])
def test_candidates_are_found_in_bfloat16_where_a_gpu_has_units_for_it(capability, precision, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert faster_in_two_steps(torch.device("cuda")) == precision


@pytest.mark.parametrize("precision", ["bf16+fp32", "fp32+fp32"])
@pytest.mark.parametrize("blocks", [(0, 0), (60, 900), (150, 170), (1, 1500), (300, 64)])
def test_search_in_two_steps_finds_exactly_the_float32_lists(blocks, precision):
    images, texts, caption_image = unit_vectors(3, 300, 5, 64)
    arguments = (images, texts, caption_image, 40, 12)
    lists = mine(*arguments, block=blocks[0], text_block=blocks[1], precision=precision)
    assert_same(lists, pair_score_lists(*arguments))


@pytest.mark.parametrize("shift", [0.5, -1.0])
def test_rounded_search_is_exact_on_nearly_equal_vectors(shift):
    # A collapsed model: nearly all pairs lie within the rounding error of each other, on either side of zero.
    generator = np.random.default_rng(1)
    images = (np.float32(1) + generator.standard_normal((60, 16)) * 1e-3).astype(np.float32)
    texts = (np.float32(shift) + generator.standard_normal((180, 16)) * 1e-3).astype(np.float32)
    caption_image = np.repeat(np.arange(60), 3)
    arguments = (images, texts, caption_image, 20, 7)
    lists = mine(*arguments, block=25, text_block=70, precision="bf16+fp32")
    assert_same(lists, pair_score_lists(*arguments))


@pytest.fixture
def made_again(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many lists of images and of captions were made again, from all their candidates."""
    counts = {"images": 0, "texts": 0}

    def counting(name: str) -> Callable[..., Any]:
        real = getattr(ExactMining, f"{name}_again")

        def again(self: ExactMining, worker: Any, rows: np.ndarray) -> np.ndarray:
            counts[name] += len(rows)
            return real(self, worker, rows)

        return again

    for name in counts:
        monkeypatch.setattr(ExactMining, f"{name}_again", counting(name))
    return counts


def test_floors_guessed_too_high_are_found_out_and_the_lists_made_again(tmp_path, made_again):
    # The first tile, a quarter of the images and captions, holds the best candidates of all: a sample that misleads.
    images, texts, caption_image = unit_vectors(5, 120, 5, 32)
    texts[:150] = np.abs(texts[:150])
    images[:30] = np.abs(images[:30])
    arguments = (images, texts, caption_image, 60, 20)
    work = exact_work(tmp_path, *arguments, block=30, text_block=150, precision="bf16+fp32")
    paths = made(work, tmp_path / "parts").paths
    assert any((ArrayFile(path)[IMAGE_KEYS].read() == NO_CANDIDATE).any() for path in paths)
    assert_same(joined(work, paths, tmp_path), pair_score_lists(*arguments))
    assert 0 < made_again["images"] < 120
    assert 0 < made_again["texts"] < 600


def test_lists_whose_floors_were_low_enough_are_made_once(made_again):
    arguments = (*unit_vectors(3, 300, 5, 64), 40, 12)
    assert_same(mine(*arguments, block=150, text_block=500, precision="bf16+fp32"), pair_score_lists(*arguments))
    assert sum(made_again.values()) <= 5


def test_products_less_exact_than_their_bound_are_noticed(monkeypatch):
    arguments = (*unit_vectors(3, 60, 5, 16), 40, 12)
    monkeypatch.setattr(exact, "multiply", lambda texts, images, precision, out: out.fill_(1.0))
    with pytest.raises(DataError, match="less exact on this machine"):
        mine(*arguments, precision="bf16+fp32")


def test_more_than_2048_candidates_and_tiles_of_a_small_memory(tmp_path):
    arguments = (*unit_vectors(7, 700, 5, 16), 2_500, 600)
    work = exact_work(tmp_path, *arguments, precision="bf16+fp32", memory=2_000_000)
    assert len(work.parts()) * math.ceil(3_500 / work.tile_texts) > 10
    assert len(work.parts()) > 1
    assert work.tile_texts < 3_500
    lists = joined(work, made(work, tmp_path / "parts").paths, tmp_path)
    assert lists.texts_per_image.shape == (700, 2_500)
    assert_same(lists, pair_score_lists(*arguments))


def test_the_bound_of_the_rounding_error_holds_and_is_not_idle(tmp_path):
    images, texts, _ = unit_vectors(11, 200, 2, 256)
    norms = norms_of(images, texts, tmp_path)
    left = Embeddings.of(images, norms.images.read(0, 200), "cpu")
    right = Embeddings.of(texts, norms.texts.read(0, 400), "cpu")
    bounds = error_bounds(left, right, "bf16+fp32").double()
    rounded_scores = left.vectors.bfloat16().double() @ right.vectors.bfloat16().double().T
    error = (rounded_scores - left.vectors.double() @ right.vectors.double().T).abs().amax(dim=1)
    assert bool((error <= bounds).all())
    assert bool((bounds < 2 * 2**-8).all())  # below the bound from units in the last place
    # Rounding every number the same way is the worst case: the error then comes near the bound.
    worst = torch.full((1, 256), 1 / 16 + 2**-13 + 2**-20)
    (tmp_path / "worst").mkdir()
    norms = norms_of(worst.numpy(), worst.numpy(), tmp_path / "worst")
    side = Embeddings.of(worst.numpy(), norms.images.read(0, 1), "cpu")
    bound = float(error_bounds(side, side, "bf16+fp32"))
    error = float((worst.double() @ worst.double().T - worst.bfloat16().double() @ worst.bfloat16().double().T).abs())
    assert 0.8 * bound < error <= bound


@pytest.mark.parametrize(("images", "texts"), [(113_287, 566_435), (29_000, 145_000), (40, 200), (5, 100_000)])
@pytest.mark.parametrize("memory", [50_000_000, 256_000_000])
def test_tiles_keep_to_the_memory(images, texts, memory):
    tile_images, tile_texts = tile_shape(images, texts, 1_024, 0.001, memory)
    assert 1 <= tile_images <= images
    assert 1 <= tile_texts <= texts
    used = tile_images * tile_texts * 4.08 + 8 * 1_024 * (tile_images + min(1_024, texts))
    assert used <= memory
    assert used > memory / 2 or (tile_images, tile_texts) == (images, texts)


def test_memory_that_holds_no_tile_is_refused():
    with pytest.raises(UsageError, match="1000 bytes of memory hold no tile of vectors of width 1024"):
        tile_shape(100, 500, 1_024, 0.1, 1_000)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "bf16+fp32", "fp32+fp32"])
def test_a_gpu_gives_the_lists_of_the_cpu(precision):
    generator = np.random.default_rng(0)
    # Whole numbers up to 8: their products and sums are exact in either precision, and often tied.
    images = generator.integers(-8, 9, (300, 16)).astype(np.float32)
    texts = generator.integers(-8, 9, (1500, 16)).astype(np.float32)
    arguments, options = (images, texts, np.arange(1500) // 5, 100, 30), {"block": 64, "precision": precision}
    assert_same(mine(*arguments, **options, device="cuda"), mine(*arguments, **options))


def test_parts_of_another_division_are_not_used(reference, tmp_path):
    arguments = (reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5, 20, 8)
    made(exact_work(tmp_path, *arguments, block=6), tmp_path / "parts")
    other = exact_work(tmp_path, *arguments, block=9)
    found = made(other, tmp_path / "parts")
    assert found.rows == 40
    assert_same(joined(other, found.paths, tmp_path), mine(*arguments, block=9))


def test_a_damaged_part_is_made_again(reference, tmp_path):
    arguments = (reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5, 20, 8)
    work = exact_work(tmp_path, *arguments, block=9, precision="bf16+fp32")
    paths = made(work, tmp_path / "parts").paths
    whole = [path.read_bytes() for path in paths]
    for path in paths[1:3]:
        content = bytearray(path.read_bytes())
        content[-5] ^= 1
        path.write_bytes(content)
    warned: list[str] = []
    found = made(work, tmp_path / "parts", warn=warned.append)
    assert found.rows == sum(part.rows for part in work.parts()[1:3])
    assert len(warned) == 1
    assert "2 of 5 parts" in warned[0]
    assert [path.read_bytes() for path in paths] == whole
    assert_same(joined(work, found.paths, tmp_path), mine(*arguments, block=9, precision="bf16+fp32"))


def test_own_captions_never_appear(reference):
    images, texts = reference["in_img_emb"], reference["in_cap_emb"]
    lists = mine(images, texts, np.arange(200) // 5, 195, 39, block=16)
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
        mine(reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5, num_texts, num_images)


def test_bad_embeddings_are_refused(reference):
    images, texts, caption_image = reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5
    broken = texts.copy()
    broken[[3, 9], 0] = np.nan
    with pytest.raises(DataError, match="2 of 200 caption embeddings"):
        mine(images, broken, caption_image, 5, 5)
    with pytest.raises(DataError, match="do not fit each other"):
        mine(images, texts[:, :8], caption_image, 5, 5)
    with pytest.raises(DataError, match="do not fit each other"):
        mine(images, texts, caption_image[1:], 5, 5)
    with pytest.raises(DataError, match=r"image rows 1\.\.40, but 40 images"):
        mine(images, texts, caption_image + 1, 5, 5)
    with pytest.raises(DataError, match=r"image rows -2\.\.37, but 40 images"):
        mine(images, texts, caption_image - 2, 5, 5)
    with pytest.raises(DataError, match="scores are NaN or infinite"):
        mine(images * np.float32(1e38), texts * 1e4, caption_image, 5, 5)
