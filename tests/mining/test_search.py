"""Exact mining against a stable sort of all scores: ties, floors, parts, tiles, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import itrpipe
from itrpipe.errors import DataError, UsageError
from itrpipe.mining import searcher
from itrpipe.mining import searcher as search
from itrpipe.mining.exact import ExactMining
from itrpipe.mining.lists import MinedLists, Searched
from itrpipe.mining.searcher import BYTES_PER_PAIR, NO_CANDIDATE, Searcher, pack_keys, pair_scores, unpack_keys
from tests.mining.mine import as_gpu, assert_same, exact_work, mine, searched
from tests.waits import Waits

REFERENCE = Path(__file__).resolve().parents[1] / "reference" / "aoq_mining.npz"
TWO_STEPS = ("bf16+fp32", "fp32")
PRECISIONS = ("bf16", *TWO_STEPS)
KINDS = ["plain", "ties", "all equal", "falling", "rising", "negative", "collapsed", "half an ulp", "islands"]


def drawn(seed: int, kind: str, images: int, texts: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings that are hard to cut into parts, and captions of which some belong to nobody."""
    generator = np.random.default_rng(seed)
    left, right = (generator.standard_normal((rows, dim)) for rows in (images, texts))
    if kind == "ties":  # of small whole numbers, whose products are exact in every precision
        left, right = np.round(left), np.round(right)
    elif kind == "all equal":
        left, right = np.ones_like(left), np.full_like(right, 0.3)
    elif kind == "falling":  # what comes first is best: floors of the first tile and part are too high
        left, right = (np.abs(each) * np.geomspace(4, 0.1, len(each))[:, None] for each in (left, right))
    elif kind == "rising":
        left, right = (np.abs(each) * np.geomspace(0.1, 4, len(each))[:, None] for each in (left, right))
    elif kind == "negative":
        left, right = -np.abs(left) * np.geomspace(0.1, 4, images)[:, None], np.abs(right)
    elif kind == "collapsed":
        left, right = 1 + 1e-3 * left, generator.choice([-1, 0.7]) + 1e-3 * right
    elif kind == "half an ulp":  # rounding to bfloat16 takes as much as it can, up or down
        left, right = (generator.choice([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8], each.shape) for each in (left, right))
    elif kind == "islands":  # each caption fits a few neighbouring images, which lie in one part
        left = np.eye(dim)[np.arange(images) * dim // images] + 0.01 * left
        right = np.eye(dim)[generator.integers(0, dim, texts)] + 0.01 * right
    owners = generator.integers(0, images, texts)
    owners[generator.random(texts) < generator.choice([0, 0.3, 1])] = -1
    return left.astype(np.float32), right.astype(np.float32), owners


def expected_lists(images, texts, owners, num_texts, num_images, gpu=False) -> MinedLists:
    """A stable sort of all scores, each computed as mining computes it."""
    rows, columns = (torch.from_numpy(part.ravel()) for part in np.indices((len(texts), len(images))))
    with as_gpu(gpu):
        scores = pair_scores(torch.from_numpy(texts), torch.from_numpy(images), rows, columns).numpy() + np.float32(0)
    scores = scores.reshape(len(texts), len(images)).T.copy()
    owned = np.flatnonzero(owners >= 0)
    scores[owners[owned], owned] = -np.inf
    found = []
    for each, width in ((scores, num_texts), (scores.T, num_images)):
        rows = np.argsort(-each, axis=1, kind="stable")[:, :width].astype(np.int32)
        found += [rows, np.take_along_axis(each, rows, axis=1)]
    return MinedLists(*found)


def test_lists_match_the_reference(monkeypatch):
    monkeypatch.setattr("itrpipe.mining.lists.PLACES", 70)  # seven captions at once
    with np.load(REFERENCE, allow_pickle=False) as reference:
        images, texts, owners = reference["in_img_emb"], reference["in_cap_emb"], np.arange(200) // 5
        lists = mine(images, texts, owners, 50, 10, block=7)
        np.testing.assert_array_equal(lists.texts_for_images, reference["out_i2t_fp32"])
        np.testing.assert_array_equal(lists.images_for_texts, reference["out_t2i_fp32"])


@settings(max_examples=40)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 10_000),
    images=st.integers(2, 40),
    texts=st.integers(2, 60),
    dim=st.sampled_from([1, 2, 5, 600]),
    block=st.integers(1, 40),
    text_block=st.integers(1, 60),
    gpu=st.booleans(),
    data=st.data(),
)
def test_no_candidate_is_lost_at_any_edge(kind, seed, images, texts, dim, block, text_block, gpu, data):
    """Ties at a floor, rounded floors, parts smaller than a list, tiles smaller than a list, misleading samples."""
    left, right, owners = drawn(seed, kind, images, texts, dim)
    most = texts - int(np.bincount(owners[owners >= 0], minlength=1).max())
    assume(most >= 1)
    arguments = (left, right, owners, data.draw(st.integers(1, most)), data.draw(st.integers(1, images - 1)))
    precision = data.draw(st.sampled_from(PRECISIONS if kind == "ties" else TWO_STEPS))
    shuffled = np.random.default_rng(seed).permutation
    options: dict[str, Any] = {"block": block, "text_block": text_block, "precision": precision, "gpu": gpu}
    found = mine(*arguments, **options, order=lambda parts: [parts[at] for at in shuffled(len(parts))])
    assert_same(found, expected_lists(*arguments, gpu))


@given(images=st.integers(2, 300), dim=st.sampled_from([1, 48, 256, 2_048, 9_000]), block=st.integers(1, 400))
def test_parts_hold_every_image_once_and_no_more_than_allowed(images, dim, block):
    vectors = np.ones((images, dim), np.float32)
    work = exact_work(vectors, vectors[:2], np.array([0, 1]), 1, 1, block=block)
    rows = [work.images_of(number) for number in range(len(work.parts()))]
    assert sorted(np.concatenate(rows).tolist()) == list(range(images))
    assert all((np.diff(each) > 0).all() for each in rows)
    assert [len(each) for each in rows] == [part.rows for part in work.parts()]
    assert 1 <= min(map(len, rows)) <= max(map(len, rows)) <= block
    assert len(rows) <= 2 * -(-images // block)


def test_tiles_keep_to_the_memory_and_few_pairs_are_scored(monkeypatch):
    tiles, scored, real, compare = [], [], search.pair_scores, Searcher.compare
    monkeypatch.setattr(
        Searcher, "compare", lambda *of: tiles.append(len(of[1].rows) * len(of[2].rows)) or compare(*of)
    )
    monkeypatch.setattr(search, "pair_scores", lambda *of: scored.append(len(of[2])) or real(*of))
    arguments = (*drawn(6, "plain", 800, 4_000, 48), 30, 9)
    found = mine(*arguments, block=400, memory=100_000 * BYTES_PER_PAIR)
    assert max(tiles) <= 100_000
    assert len(tiles) >= 32
    assert sum(scored) < 4 * (800 * 30 + 4_000 * 9)
    assert_same(found, expected_lists(*arguments))


# Lists that are searched again


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[int]]:
    """Rows of the lists of images and of captions that were searched again."""
    found: tuple[list[int], list[int]] = ([], [])
    real = ExactMining._search_again

    def noting(work: ExactMining, worker: Any, side: int, rows: np.ndarray) -> Iterator[Any]:
        found[side].extend(rows.tolist())
        yield from real(work, worker, side, rows)

    monkeypatch.setattr(ExactMining, "_search_again", noting)
    return found


@pytest.mark.parametrize("kind", ["plain", "islands", "negative"])
def test_many_lists_searched_again_a_few_at_a_time_are_right(monkeypatch, again, kind):
    monkeypatch.setattr(search, "_FEWEST_SAMPLED", 64)
    monkeypatch.setattr(searcher, "_DEVIATIONS", -1.0)  # floors that are guessed too high
    arguments = (*drawn(3, kind, 130, 400, 8), 50, 20)
    # Parts and tiles that are smaller than the lists that are searched again.
    assert_same(mine(*arguments, block=13, text_block=37, precision="bf16+fp32"), expected_lists(*arguments))
    assert min(map(len, again)) > 37


def one_pair_lost(texts: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    return (texts @ images.T).index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(-torch.inf))


@pytest.mark.parametrize("wrong", [lambda *of: torch.ones(len(of[0]), len(of[1])) * 1e4, one_pair_lost])
def test_products_less_exact_than_their_bound_are_noticed(monkeypatch, wrong):
    monkeypatch.setattr(search, "_multiply", wrong)
    images, texts, _ = drawn(3, "plain", 13, 40, 16)
    with pytest.raises(DataError, match="less exact on this machine"):
        mine(images, texts, np.full(40, -1), 40, 12, precision="fp32")


def test_a_gpu_is_waited_for_once_a_tile_before_its_lists(monkeypatch, tmp_path):
    tiles, multiply = [], search._multiply
    monkeypatch.setattr(search, "_multiply", lambda *of: tiles.append(of) or multiply(*of))
    work = exact_work(*drawn(6, "plain", 240, 900, 48), 30, 9, block=60, text_block=250)
    with as_gpu(), Waits() as waits:
        for part in work.parts():
            work.make(work.open(), part, tmp_path / part.name)
    assert len(tiles) >= 16
    assert waits.seen == ["nonzero"] * (len(tiles) - len(work.parts()))  # each part has a sample, which is a tile too


# Arithmetic


def test_the_bound_of_the_rounding_error_holds_and_is_not_idle(monkeypatch):
    monkeypatch.setattr(search, "faster_products", lambda device: torch.bfloat16)
    left, right, _ = drawn(11, "plain", 200, 400, 256)
    # Rounding every number the same way is the worst case: the error then comes near the bound.
    worst = np.full((2, 256), 1 / 16 + 2**-12 + 2**-20, np.float32)
    for images, texts, least in ((left, right, 0.0), (worst, worst, 0.8)):
        sides = searched(images, texts, np.full(len(texts), -1), 1, 1)
        worker = Searcher(sides, "bf16+fp32", torch.device("cpu"), 0)
        ours, others = (worker.block(side, np.arange(len(each))) for side, each in enumerate((images, texts)))
        bounds, true = ours.bounds(others), ours.exact.double() @ others.exact.double().T
        error = (ours.rounded.double() @ others.rounded.double().T - true).abs().amax(dim=1)
        assert bool((least * bounds <= error).all())
        assert bool((error <= bounds).all())


@pytest.mark.parametrize(("bfloat16", "faster"), [(0.5, torch.bfloat16), (0.95, torch.float32), (2.0, torch.float32)])
def test_a_processor_takes_the_products_that_it_makes_faster(monkeypatch, bfloat16, faster):
    monkeypatch.setattr(search, "product_seconds", lambda: {torch.float32: 1.0, torch.bfloat16: bfloat16})
    assert search.faster_products.__wrapped__("cpu") is faster


@given(st.lists(st.tuples(st.floats(width=32, allow_nan=False), st.integers(0, 2**32 - 2)), min_size=2, max_size=20))
def test_keys_sort_by_score_then_against_the_row_and_give_both_back(pairs):
    scores, rows = (torch.tensor(column) for column in zip(*pairs, strict=True))
    keys = pack_keys(scores, rows)
    assert int(keys.min()) > NO_CANDIDATE
    for back, packed in zip(unpack_keys(keys), (scores, rows), strict=True):
        assert torch.equal(back, packed)
    expected = sorted(range(len(pairs)), key=lambda place: (-pairs[place][0], pairs[place][1]))
    assert keys[expected].tolist() == sorted(keys.tolist(), reverse=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gpu_gives_the_lists_of_a_processor(precision):
    generator = np.random.default_rng(0)
    # Whole numbers up to 8: their products and sums are exact in either precision, and often tied.
    images, texts = (generator.integers(-8, 9, (rows, 16)).astype(np.float32) for rows in (300, 1_500))
    arguments, options = (images, texts, np.arange(1_500) // 5, 100, 30), {"block": 64, "precision": precision}
    assert_same(mine(*arguments, **options, device="cuda"), mine(*arguments, **options))


# What is refused


def test_more_rows_than_keys_tell_apart_are_refused():
    sides: Any = (SimpleNamespace(shape=(2**32 - 1, 4)), SimpleNamespace(shape=(9, 4)))  # that nothing can hold
    with pytest.raises(UsageError, match="4,294,967,294 rows"):
        Searched(sides, np.zeros(9, int), (2, 2))


def test_every_anchor_gets_all_its_candidates_where_more_are_asked_for():
    owners = np.array([0, 0, 0, 1, 2, -1])
    lists = itrpipe.mine(np.eye(3), np.eye(6, 3), owners, num_texts=9, num_images=9)
    texts = [sorted(row[row >= 0].tolist()) for row in lists.texts_for_images]
    images = [sorted(row[row >= 0].tolist()) for row in lists.images_for_texts]
    assert texts == [[3, 4, 5], [0, 1, 2, 4, 5], [0, 1, 2, 3, 5]]
    assert images == [[1, 2], [1, 2], [1, 2], [0, 2], [0, 1], [0, 1, 2]]


SIDES = [np.random.default_rng(0).standard_normal((rows, 16)).astype(np.float32) for rows in (40, 200)]
OWNERS = np.arange(200) // 5
BROKEN = np.where(np.isin(np.arange(200), [3, 9])[:, None], np.float32(np.nan), SIDES[1])
REFUSED = {
    "all captions of one image": ((*SIDES, 0 * OWNERS, 1, 5), UsageError, "0 and 39 are candidates"),
    "an empty list": ((*SIDES, OWNERS, 0, 5), UsageError, "0 captions per image"),
    "no numbers": ((SIDES[0], BROKEN, OWNERS, 5, 5), DataError, "2 of 200 caption embeddings"),
    "infinity": ((np.full_like(SIDES[0], np.inf), SIDES[1], OWNERS, 5, 5), DataError, "40 of 40 image embeddings"),
    "two widths": ((SIDES[0], SIDES[1][:, :8], OWNERS, 5, 5), DataError, "do not fit each other"),
    "too few owners": ((*SIDES, OWNERS[1:], 5, 5), DataError, "do not fit each other"),
    "an owner behind the last": ((*SIDES, OWNERS + 1, 5, 5), DataError, r"image rows 1\.\.40, but 40 images"),
    "an owner before nobody": ((*SIDES, OWNERS - 2, 5, 5), DataError, r"image rows -2\.\.37, but 40 images"),
    "scores too large": ((SIDES[0] * np.float32(1e20), SIDES[1] * np.float32(1e19), OWNERS, 5, 5), DataError, "normal"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_mined_is_refused(what):
    arguments, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        mine(*arguments)
