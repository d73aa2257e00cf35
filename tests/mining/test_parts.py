"""Lists that no division into parts, order or number of workers changes, and that lack nothing at any edge."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from itrpipe.errors import UsageError
from itrpipe.mining import merging
from itrpipe.mining.exact import COUNTS, FLOORS, IMAGE_KEYS, KEYS, ExactMining
from itrpipe.mining.lists import CandidateLists, MinedLists
from itrpipe.mining.mined import DIRECTIONS, MinedFile, layout, row_type, write_slice
from itrpipe.mining.products import pair_scores
from itrpipe.mining.top_k import LARGEST_INDEX, NO_CANDIDATE, pack, unpack
from itrpipe.storage.parts import ArrayFile, array_writer, write_arrays
from tests.maps import made
from tests.mining.mine import assert_same, exact_work, joined, made_in_order, mine

TWO_STEPS = ("bf16+fp32", "fp32+fp32")


def expected_lists(images, texts, owners, num_texts, num_images) -> MinedLists:
    """A stable sort of all scores, each computed as mining computes it."""
    rows, columns = (torch.from_numpy(part.ravel()) for part in np.indices((len(texts), len(images))))
    scores = pair_scores(torch.from_numpy(texts), torch.from_numpy(images), rows, columns).numpy() + np.float32(0)
    scores = scores.reshape(len(texts), len(images)).T.copy()
    owned = np.flatnonzero(owners >= 0)
    scores[owners[owned], owned] = -np.inf
    found = []
    for each, width in ((scores, num_texts), (scores.T, num_images)):
        rows = np.argsort(-each, axis=1, kind="stable")[:, :width].astype(np.int32)
        found += [rows, np.take_along_axis(each, rows, axis=1)]
    return MinedLists(*found)


def drawn(seed: int, kind: str, images: int, texts: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Embeddings that are hard to cut into parts, and captions of which some belong to nobody."""
    generator = np.random.default_rng(seed)
    left, right = (generator.standard_normal((rows, dim)) for rows in (images, texts))
    if kind == "ties":
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


KINDS = ["plain", "ties", "all equal", "falling", "rising", "negative", "collapsed", "half an ulp", "islands"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    images=st.integers(2, 60),
    texts=st.integers(2, 90),
    dim=st.sampled_from([1, 2, 5, 600]),
    block=st.integers(1, 60),
    text_block=st.integers(1, 90),
    precision=st.sampled_from(TWO_STEPS),
    first=st.booleans(),
    data=st.data(),
)
def test_no_candidate_is_lost_at_any_edge(
    kind, seed, images, texts, dim, block, text_block, precision, first, data
) -> None:
    """Ties at a floor, rounded floors, parts smaller than a list, tiles smaller than a list, misleading samples."""
    left, right, owners = drawn(seed, kind, images, texts, dim)
    most = texts - int(np.bincount(owners[owners >= 0], minlength=1).max())
    assume(most >= 1)
    num_texts, num_images = data.draw(st.integers(1, most)), data.draw(st.integers(1, images - 1))
    generator = np.random.default_rng(seed)

    def order(parts: list[Any]) -> list[Any]:
        mixed = list(generator.permutation(np.array(parts, dtype=object)))
        return parts if first else mixed

    arguments = (left, right, owners, num_texts, num_images)
    found = mine(*arguments, block=block, text_block=text_block, precision=precision, order=order)
    assert_same(found, expected_lists(*arguments))


def split(images: int = 240, texts: int = 900, dim: int = 48) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors of which few directions carry most, and captions of which every tenth is nobody's."""
    generator = np.random.default_rng(6)
    directions, owners = generator.standard_normal((6, dim)), generator.integers(0, images, texts)
    meaning = generator.standard_normal((images, 6))
    both = [meaning @ directions, (meaning[owners] + 0.7 * generator.standard_normal((texts, 6))) @ directions]
    both = [each + 0.5 * generator.standard_normal(each.shape) for each in both]
    owners[::10] = -1
    left, right = ((each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32) for each in both)
    return left, right, owners


@pytest.fixture(scope="module")
def arguments() -> tuple[Any, ...]:
    return (*split(), 30, 9)


@pytest.fixture(scope="module")
def expected(arguments: tuple[Any, ...]) -> MinedLists:
    return expected_lists(*arguments)


SIZES = [(block, text_block) for block in (1, 7, 60, 119, 121, 240, 1_000) for text_block in (77, 900, 5_000)]


@pytest.mark.parametrize(("block", "text_block"), [*SIZES, (240, 1), (60, 13)])
def test_the_size_of_parts_and_tiles_changes_nothing(arguments, expected, block, text_block):
    options = {"block": block, "text_block": text_block, "precision": "bf16+fp32"}
    assert_same(mine(*arguments, **options), expected)


@pytest.mark.parametrize("block", [1, 5, 17, 33, 100, 120, 239, 240])
@pytest.mark.parametrize("dim", [1, 48, 256, 2_048])
def test_no_part_holds_more_images_than_allowed_and_none_is_empty(tmp_path, block, dim):
    images = np.ones((240, dim), np.float32)
    work = exact_work(tmp_path, images, images, np.arange(240), 5, 5, block=block)
    rows = [part.rows for part in work.parts()]
    assert sum(rows) == 240
    assert min(rows) >= 1
    assert max(rows) <= block
    assert len(rows) <= 2 * math.ceil(240 / block)


@pytest.mark.parametrize("order", ["forward", "backward", "mixed", "the first part last"])
def test_the_order_of_parts_changes_nothing(arguments, expected, order):
    def put(parts):
        ways = {"forward": parts, "backward": parts[::-1], "the first part last": [*parts[1:], parts[0]]}
        ways["mixed"] = [parts[at] for at in np.random.default_rng(1).permutation(len(parts))]
        return ways[order]

    assert_same(mine(*arguments, block=31, text_block=250, precision="bf16+fp32", order=put), expected)


@pytest.mark.parametrize("precision", TWO_STEPS)
def test_two_processes_give_the_same(arguments, expected, precision):
    assert_same(mine(*arguments, block=31, text_block=250, precision=precision, workers=2), expected)


def test_floors_are_those_of_the_first_part_or_a_part_s_own_without_it(arguments, expected, tmp_path):
    work = exact_work(tmp_path, *arguments, block=60, text_block=250, precision="bf16+fp32")
    parts = work.parts()
    with_first = made_in_order(work, parts, tmp_path / "with")
    without = made_in_order(work, [*parts[1:], parts[0]], tmp_path / "without")
    floors, own = ([ArrayFile(path)[FLOORS].read() for path in paths] for paths in (with_first, without))
    assert all((each == floors[0]).all() for each in floors)
    assert np.isfinite(floors[0]).all()
    np.testing.assert_array_equal(own[0], floors[0])
    assert all((each != floors[0]).any() for each in own[1:])
    mixed = [without[0], with_first[1], *without[2:]]
    for number, paths in enumerate((with_first, without, mixed)):
        (tmp_path / str(number)).mkdir()
        assert_same(joined(work, paths, tmp_path / str(number)), expected)


def damages(path: Path) -> dict[str, Callable[[], object]]:
    content = path.read_bytes()
    floors = ArrayFile(path)[FLOORS]

    def fill(number: float) -> None:
        count = floors.shape[0]
        damaged = np.full(count, number, np.float32).tobytes()
        path.write_bytes(content[: floors.offset] + damaged + content[floors.offset + len(damaged) :])

    return {
        "NaN": lambda: fill(float("nan")),
        "too high": lambda: fill(float("inf")),
        "cut": lambda: path.write_bytes(content[: floors.offset + 10]),
        "no header": lambda: path.write_bytes(b"\0" * 100),
        "empty": lambda: path.write_bytes(b""),
        "another name": lambda: path.write_bytes(content.replace(b'"floors"', b'"flours"')),
    }


@pytest.mark.parametrize("how", ["NaN", "too high", "cut", "no header", "empty", "another name"])
def test_floors_of_a_damaged_first_part_are_not_used(arguments, expected, tmp_path, how):
    work = exact_work(tmp_path, *arguments, block=60, text_block=250, precision="bf16+fp32")
    parts = work.parts()
    (path, *_) = made_in_order(work, parts[:1], tmp_path / "parts")
    damages(path)[how]()
    made_in_order(work, parts[1:], tmp_path / "parts")  # by another worker, before the first is made again
    paths = made(work, tmp_path / "parts", warn=lambda text: None).paths
    assert_same(joined(work, paths, tmp_path), expected)


# What is complete and what is made again


@pytest.fixture
def made_again(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Rows of the lists of images and of captions that were made again, from all their candidates."""
    found: dict[str, list[int]] = {"images": [], "texts": []}

    def noting(name: str) -> Callable[..., Any]:
        real = getattr(ExactMining, f"{name}_again")

        def again(self: ExactMining, worker: Any, rows: np.ndarray) -> np.ndarray:
            found[name] += rows.tolist()
            return real(self, worker, rows)

        return again

    for name in found:
        monkeypatch.setattr(ExactMining, f"{name}_again", noting(name))
    return found


def with_floors(path: Path, floors: dict[int, float]) -> None:
    """Rewrites a part as if captions had had other floors there."""
    found = {name: rows.read() for name, rows in ArrayFile(path).items()}
    ends = found[COUNTS].cumsum()
    kept, counts = [], found[COUNTS].copy()
    for text, (count, end) in enumerate(zip(found[COUNTS].tolist(), ends.tolist(), strict=True)):
        keys = found[KEYS][end - count : end]
        if text in floors:
            found[FLOORS][text] = floors[text]
            keys = keys[unpack(torch.from_numpy(keys))[0].numpy() >= floors[text]]
            counts[text] = len(keys)
        kept.append(keys)
    write_arrays(path, {**found, COUNTS: counts, KEYS: np.concatenate(kept)})


def test_a_list_is_complete_unless_its_last_score_is_below_the_floor_of_a_part(
    arguments, expected, tmp_path, made_again
):
    work = exact_work(tmp_path, *arguments, block=60, text_block=250, precision="bf16+fp32")
    paths = made(work, tmp_path / "parts").paths
    joined(work, paths, tmp_path)
    before = set(made_again["texts"])
    assert len(before) < 50
    made_again["texts"].clear()
    last = expected.image_scores[:, -1]
    at, above = [text for text in range(900) if text not in before][:2]
    with_floors(paths[2], {at: float(last[at]), above: float(np.nextafter(last[above], np.float32(np.inf)))})
    assert_same(joined(work, paths, tmp_path), expected)
    assert set(made_again["texts"]) == before | {above}


@pytest.mark.parametrize("floor", [np.inf, np.nan])
def test_floors_that_let_nothing_in_lose_nothing(arguments, expected, tmp_path, made_again, floor):
    work = exact_work(tmp_path, *arguments, block=60, text_block=250, precision="bf16+fp32")
    paths = made(work, tmp_path / "parts").paths
    every: dict[int, float] = dict.fromkeys(range(0, 900, 3), floor)
    for path in (paths[0], paths[3]):
        with_floors(path, every)
    assert_same(joined(work, paths, tmp_path), expected)
    assert set(every) <= set(made_again["texts"])


def test_images_whose_lists_are_not_full_are_made_again(arguments, expected, tmp_path, made_again):
    work = exact_work(tmp_path, *arguments, block=60, text_block=250, precision="bf16+fp32")
    paths = made(work, tmp_path / "parts").paths
    found = {name: rows.read() for name, rows in ArrayFile(paths[1]).items()}
    found[IMAGE_KEYS][[0, 17, -1], -1] = NO_CANDIDATE
    write_arrays(paths[1], found)
    assert_same(joined(work, paths, tmp_path), expected)
    assert set(work.stripes.of(1)[[0, 17, -1]].tolist()) <= set(made_again["images"])


@pytest.mark.parametrize("kind", ["falling", "islands", "negative"])
def test_many_lists_made_again_a_few_at_a_time_are_right(made_again, kind):
    left, right, owners = drawn(3, kind, 130, 400, 8)
    arguments = (left, right, owners, 50, 20)
    # Blocks and tiles that are smaller than the lists of what they make again.
    found = mine(*arguments, block=13, text_block=37, precision="bf16+fp32")
    assert_same(found, expected_lists(*arguments))
    assert len(made_again["images" if kind == "falling" else "texts"]) > 37


def test_a_first_tile_of_the_best_does_not_end_lists_that_are_longer(made_again):
    arguments = (*drawn(3, "falling", 130, 400, 600), 50, 20)
    found = mine(*arguments, block=13, text_block=37, precision="bf16+fp32")
    assert_same(found, expected_lists(*arguments))
    assert made_again["images"]


@pytest.mark.parametrize("kind", KINDS)
def test_floors_of_large_parts_lose_nothing(kind):
    arguments = (*drawn(8, kind, 300, 500, 4), 20, 8)
    for block in (150, 75):
        found = mine(*arguments, block=block, text_block=250, precision="bf16+fp32", order=lambda parts: parts[::-1])
        assert_same(found, expected_lists(*arguments))


def test_joining_a_little_at_a_time_changes_nothing(arguments, expected, monkeypatch):
    monkeypatch.setattr(merging, "_PLACES", 100)
    assert_same(mine(*arguments, block=20, text_block=250, precision="bf16+fp32"), expected)


def test_candidates_of_nobody_are_everyone_s():
    generator = np.random.default_rng(2)
    images, texts = (generator.standard_normal((rows, 8)).astype(np.float32) for rows in (20, 50))
    owners = np.repeat(np.append(np.arange(4), -1), 10)
    found = mine(images, texts, owners, 40, 19, block=6, text_block=20, precision="bf16+fp32")
    assert_same(found, expected_lists(images, texts, owners, 40, 19))
    nobodys = set(range(40, 50))
    assert all(nobodys <= set(row) for row in found.texts_per_image[:4].tolist())  # their only 40 candidates
    everyone = mine(images, texts, np.full(50, -1), 50, 19, block=6)
    assert all(sorted(row) == list(range(50)) for row in everyone.texts_per_image.tolist())


@pytest.mark.parametrize("precision", TWO_STEPS)
def test_lists_of_one_are_made_again_too(tmp_path, made_again, precision):
    arguments = (*split(), 1, 1)
    work = exact_work(tmp_path, *arguments, block=60, text_block=250, precision=precision)
    paths = made(work, tmp_path / "parts").paths
    found = {name: rows.read() for name, rows in ArrayFile(paths[1]).items()}
    found[IMAGE_KEYS][:] = NO_CANDIDATE
    write_arrays(paths[1], found)
    with_floors(paths[0], dict.fromkeys(range(900), np.inf))
    assert_same(joined(work, paths, tmp_path), expected_lists(*arguments))
    assert len(made_again["texts"]) == 900
    assert len(made_again["images"]) >= 60


# Many rows


class Claimed:
    """So many rows that nothing can hold them."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def read(self, start: int, stop: int) -> np.ndarray:
        raise AssertionError("is not read")


def test_more_rows_than_keys_tell_apart_are_refused():
    for images, texts in ((LARGEST_INDEX, 9), (9, LARGEST_INDEX)):
        with pytest.raises(UsageError, match=r"more than 4,294,967,294 rows of one side cannot be mined"):
            ExactMining(Claimed(images, 4), Claimed(texts, 4), Claimed(texts), Any, 2, 2)  # type: ignore[arg-type]


def test_the_type_of_rows_holds_them_all():
    assert (row_type(2**31 - 1), row_type(2**31), row_type(LARGEST_INDEX)) == ("<i4", "<i8", "<i8")


def test_rows_beyond_2_31_keep_their_numbers_from_keys_to_files(tmp_path):
    rows = torch.tensor([[5, 2**31 - 1, 2**31], [3_000_000_000, 0, LARGEST_INDEX - 1]])
    scores = torch.tensor([[0.9, 0.5, 0.5], [-0.1, -0.2, -0.2]])
    lists = merging._lists(pack(scores, rows).numpy(), LARGEST_INDEX)
    shapes = {DIRECTIONS[0]: (4, 3, LARGEST_INDEX), DIRECTIONS[1]: (2, 1, 4)}
    with array_writer(tmp_path / "mined.arrays", layout(shapes)) as writer:
        write_slice(writer, DIRECTIONS[0], 1, lists)
        write_slice(writer, DIRECTIONS[1], 0, CandidateLists(np.array([[3], [1]]), np.zeros((2, 1))))
    found = MinedFile(tmp_path / "mined.arrays")
    read = found.read(DIRECTIONS[0], 1, 3)
    assert read.candidates.dtype == np.int64
    np.testing.assert_array_equal(read.candidates, rows)
    np.testing.assert_array_equal(read.scores, scores)
    assert found.read(DIRECTIONS[1]).candidates.dtype == np.int32
    assert [part for part, _ in found.slices(DIRECTIONS[0], 3)] == [slice(row, row + 1) for row in range(4)]
