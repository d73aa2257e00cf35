"""Mining with faiss against the exact engine, its recall, and what it says without the library."""

from __future__ import annotations

import builtins

import numpy as np
import pytest

from itrpipe.errors import MissingInputError, UsageError
from itrpipe.mining import exact, faiss_engine
from itrpipe.mining.faiss_engine import Indexing, clusters
from itrpipe.mining.lists import NO_ROW, HeldRows, JoinedRows, MinedLists, taken
from itrpipe.storage.arrays import StoredRows
from tests.maps import made
from tests.mining.mine import (
    exact_work,
    mine,
    search,
    searched,
    write_file,
)


@pytest.fixture(scope="module")
def vectors():
    generator = np.random.default_rng(2)
    images = generator.standard_normal((90, 16)).astype(np.float32)
    caption_image = generator.permutation(np.concatenate([np.arange(90), generator.integers(0, 90, 210)]))
    texts = (images[caption_image] + generator.standard_normal((300, 16))).astype(np.float32)
    return images, texts, caption_image


@pytest.fixture
def with_faiss():
    pytest.importorskip("faiss")


@pytest.mark.usefixtures("with_faiss")
def test_ties_change_no_score_and_never_bring_in_an_own_pair():
    generator = np.random.default_rng(3)
    images = generator.integers(-2, 3, (40, 4)).astype(np.float32)
    texts, caption_image = np.repeat(images, 3, axis=0), np.repeat(np.arange(40), 3)
    expected, found = (way(images, texts, caption_image, 30, 10) for way in (mine, search))
    np.testing.assert_array_equal(found.texts_for_images_scores, expected.texts_for_images_scores)
    np.testing.assert_array_equal(found.images_for_texts_scores, expected.images_for_texts_scores)
    assert (caption_image[found.texts_for_images] != np.arange(40)[:, None]).all()
    assert (found.images_for_texts != caption_image[:, None]).all()


@pytest.mark.usefixtures("with_faiss")
def test_clusters_find_most_and_all_of_them_find_all(vectors, capfd):
    expected = mine(*vectors, 20, 10)
    all_probed = search(*vectors, 20, 10, clusters=(8, 8))
    np.testing.assert_array_equal(all_probed.texts_for_images, expected.texts_for_images)
    few = search(*vectors, 20, 10, clusters=(8, 3)).texts_for_images
    common = [len(np.intersect1d(a[a != NO_ROW], b)) for a, b in zip(few, expected.texts_for_images, strict=True)]
    assert 0.5 < sum(common) / few.size < 1
    one = search(*vectors, 200, 10, clusters=(8, 1))
    padded = one.texts_for_images == NO_ROW
    assert padded.any()
    assert np.isneginf(one.texts_for_images_scores[padded]).all()
    assert (np.diff(padded.astype(int), axis=1) >= 0).all()  # only at the end of a list
    assert "WARNING" not in capfd.readouterr().err  # of faiss, that there are few vectors for so many clusters


def test_clusters_are_chosen_for_each_direction_unless_given():
    # 4 sqrt(300), 4 sqrt(90), and a quarter of each
    assert [clusters("ivf", *numbers) for numbers in ((300,), (90,), (300, 8, 3))] == [(69, 18), (38, 10), (8, 3)]
    assert clusters("ivf", 10) == (10, 3)  # no more clusters than vectors
    assert clusters("ivf-pq", 10**6) == (4000, 250)
    for wrong in ((8, 9), (301, 3)):
        with pytest.raises(UsageError, match=f"num_probes = {wrong[1]} and num_lists = {wrong[0]}"):
            clusters("ivf", 300, *wrong)


@pytest.mark.usefixtures("with_faiss")
def test_an_index_of_other_clusters_is_made_again(vectors, tmp_path):
    for number in (8, 9):
        work = Indexing(searched(*vectors, 20, 10), "ivf", number, 3)
        assert made(work, tmp_path / "index").rows == 390


@pytest.mark.usefixtures("with_faiss")
def test_codes_in_shards_find_most_and_give_true_scores(monkeypatch):
    """Further captions are candidates, too; those of a shard that ends in the middle of them."""
    generator = np.random.default_rng(4)
    centres = generator.standard_normal((50, 4))
    images, texts = (centres[generator.integers(0, 50, n)] + generator.standard_normal((n, 4)) / 4 for n in (400, 1500))
    vectors = images.astype(np.float32), texts.astype(np.float32), generator.permutation(np.arange(1500) % 400)
    monkeypatch.setattr(faiss_engine, "FEWEST_CODED", 500)
    monkeypatch.setattr(faiss_engine, "SHARD", 800)
    expected = mine(*vectors, 20, 10)
    found = search(*vectors, 20, 10, clusters=(16, 8), kind="ivf-pq")
    for rows, best in (
        (found.texts_for_images, expected.texts_for_images),
        (found.images_for_texts, expected.images_for_texts),
    ):
        common = [len(np.intersect1d(ours, exact)) for ours, exact in zip(rows, best, strict=True)]
        assert sum(common) / rows.size > 0.9
    scores = np.einsum("nd,nkd->nk", vectors[0], vectors[1][found.texts_for_images])
    np.testing.assert_allclose(found.texts_for_images_scores, scores, rtol=1e-5, atol=1e-5)
    parts = Indexing(searched(*vectors, 20, 10), "ivf-pq", 16, 8).parts()
    assert [part.rows for part in parts] == [750, 750, 400]


def test_vectors_are_taken_from_joined_files_in_any_order(tmp_path):
    values = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    values[4:].tofile(tmp_path / "rows")
    joined = JoinedRows((HeldRows(values[:4]), StoredRows(tmp_path / "rows", 0, values.dtype, (3, 3))))
    rows = np.array([[6, 0, 3], [4, 4, 1]])
    np.testing.assert_array_equal(taken(joined, rows), values[rows])


def test_without_the_library_the_remedy_is_named(vectors, monkeypatch):
    real = builtins.__import__

    def without_faiss(name, *arguments, **more):
        if name == "faiss":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without_faiss)
    for numbers in (None, (8, 3)):
        with pytest.raises(MissingInputError, match=r"pip install 'itrpipe\[cpu\]'"):
            search(*vectors, 20, 10, clusters=numbers)


# Recall


@pytest.fixture
def recall(tmp_path):
    def of_lists(images, texts, caption_image, lists):
        widths = lists.texts_for_images.shape[1], lists.images_for_texts.shape[1]
        work = exact_work(images, texts, caption_image, *widths)
        return work.recall(write_file(tmp_path / "mined.arrays", lists))

    return of_lists


def test_exact_lists_have_all_and_a_missing_candidate_counts(vectors, recall, monkeypatch):
    true = mine(*vectors, 20, 10)
    assert recall(*vectors, true) == {"texts_for_images": 1.0, "images_for_texts": 1.0}
    damaged = MinedLists(*(array.copy() for array in vars(true).values()))
    damaged.texts_for_images[:, -3:], damaged.texts_for_images_scores[:, -3:] = NO_ROW, -np.inf
    damaged.images_for_texts[:, 4], damaged.images_for_texts_scores[:, 4] = 0, damaged.images_for_texts_scores.min() - 1
    found = recall(*vectors, damaged)
    assert found == {"texts_for_images": pytest.approx(17 / 20), "images_for_texts": pytest.approx(9 / 10)}
    damaged.texts_for_images_scores[:] = true.texts_for_images_scores
    damaged.texts_for_images_scores[::2] = -np.inf  # every other image has nothing
    monkeypatch.setattr(exact, "SAMPLED_ANCHORS", 7)
    few = [recall(*vectors, damaged)["texts_for_images"] for _ in range(2)]
    assert few[0] == few[1]
    assert round(few[0] * 7, 9) in range(1, 7)


def test_candidates_of_equal_score_are_as_good_as_each_other(recall):
    images, texts = np.ones((4, 2), np.float32), np.ones((8, 2), np.float32)
    lists = MinedLists(
        np.array([[7, 6], [7, 6], [7, 6], [1, 0]], np.int32), np.full((4, 2), 2.0, np.float32),
        np.array([[3]] * 6 + [[0]] * 2, np.int32), np.full((8, 1), 2.0, np.float32),
    )  # fmt: skip
    found = recall(images, texts, np.repeat(np.arange(4), 2), lists)
    assert found == {"texts_for_images": 1.0, "images_for_texts": 1.0}
