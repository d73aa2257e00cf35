"""Mining with faiss against the exact engine, and what it says without the library."""

from __future__ import annotations

import builtins

import numpy as np
import pytest

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.mining.exact import ExactMiner
from itrpipe.mining.faiss_engine import FaissMiner, clusters
from itrpipe.mining.lists import NO_ROW


@pytest.fixture(scope="module")
def vectors():
    generator = np.random.default_rng(2)
    images = generator.standard_normal((90, 16)).astype(np.float32)
    caption_image = generator.permutation(np.concatenate([np.arange(90), generator.integers(0, 90, 210)]))
    texts = (images[caption_image] + generator.standard_normal((300, 16))).astype(np.float32)
    return images, texts, caption_image


def mine(miner):
    for block in miner.pending():
        miner.step(block)
    return miner.result()


@pytest.fixture
def with_faiss():
    pytest.importorskip("faiss")


@pytest.mark.usefixtures("with_faiss")
@pytest.mark.parametrize("block_size", [7, 1_000])
def test_a_flat_index_gives_the_exact_lists(vectors, block_size):
    expected = mine(ExactMiner(*vectors, 40, 20))
    found = mine(FaissMiner(*vectors, 40, 20, block_size=block_size))
    np.testing.assert_array_equal(found.texts_per_image, expected.texts_per_image)
    np.testing.assert_array_equal(found.images_per_text, expected.images_per_text)
    np.testing.assert_allclose(found.text_scores, expected.text_scores, rtol=1e-5)
    np.testing.assert_allclose(found.image_scores, expected.image_scores, rtol=1e-5)


@pytest.mark.usefixtures("with_faiss")
def test_ties_change_no_score_and_never_bring_in_an_own_pair():
    generator = np.random.default_rng(3)
    images = generator.integers(-2, 3, (40, 4)).astype(np.float32)
    texts, caption_image = np.repeat(images, 3, axis=0), np.repeat(np.arange(40), 3)
    expected, found = (
        mine(ExactMiner(images, texts, caption_image, 30, 10)),
        mine(FaissMiner(images, texts, caption_image, 30, 10)),
    )
    np.testing.assert_array_equal(found.text_scores, expected.text_scores)
    np.testing.assert_array_equal(found.image_scores, expected.image_scores)
    assert (caption_image[found.texts_per_image] != np.arange(40)[:, None]).all()
    assert (found.images_per_text != caption_image[:, None]).all()


@pytest.mark.usefixtures("with_faiss")
def test_clusters_find_most_and_all_of_them_find_all(vectors):
    expected = mine(ExactMiner(*vectors, 20, 10))
    all_probed = mine(FaissMiner(*vectors, 20, 10, "ivf", num_lists=8, num_probes=8))
    np.testing.assert_array_equal(all_probed.texts_per_image, expected.texts_per_image)
    few = mine(FaissMiner(*vectors, 20, 10, "ivf", num_lists=8, num_probes=3))
    known = few.texts_per_image != NO_ROW
    found = [
        len(np.intersect1d(a[k], b))
        for a, b, k in zip(few.texts_per_image, expected.texts_per_image, known, strict=True)
    ]
    assert 0.5 < sum(found) / expected.texts_per_image.size < 1
    one = mine(FaissMiner(*vectors, 200, 10, "ivf", num_lists=8, num_probes=1))
    padded = one.texts_per_image == NO_ROW
    assert padded.any()
    assert np.isneginf(one.text_scores[padded]).all()
    assert (np.diff(padded.astype(int), axis=1) >= 0).all()  # only at the end of a list


@pytest.mark.usefixtures("with_faiss")
def test_clusters_are_chosen_for_each_direction_unless_given(vectors):
    chosen = FaissMiner(*vectors, 20, 10, "ivf")
    assert chosen.clusters == ((69, 18), (38, 10))  # 4 sqrt(300), 4 sqrt(90), and a quarter of each
    assert FaissMiner(*vectors, 20, 10, "ivf", num_lists=8, num_probes=3).clusters == ((8, 3), (8, 3))
    assert clusters(10, 0, 0) == (10, 3)  # no more clusters than vectors


@pytest.mark.usefixtures("with_faiss")
def test_an_interrupted_search_of_clusters_gives_the_same_lists(vectors, capfd):
    whole = mine(FaissMiner(*vectors, 20, 10, "ivf", block_size=16))
    first = FaissMiner(*vectors, 20, 10, "ivf", block_size=16)
    for block in first.pending()[:9]:
        first.step(block)
    second = FaissMiner(*vectors, 20, 10, "ivf", block_size=16)
    second.restore(first.state())
    for name, array in vars(mine(second)).items():
        np.testing.assert_array_equal(array, getattr(whole, name), err_msg=name)
    assert "WARNING" not in capfd.readouterr().err  # of faiss, that there are few vectors for so many clusters


@pytest.mark.usefixtures("with_faiss")
@pytest.mark.parametrize("interrupted_after", [0, 3, 20])
def test_an_interrupted_run_gives_the_same_lists(vectors, interrupted_after):
    whole = mine(FaissMiner(*vectors, 20, 10, block_size=16))
    first = FaissMiner(*vectors, 20, 10, block_size=16)
    for block in first.pending()[:interrupted_after]:
        first.step(block)
    saved = first.state()
    mine(first)
    second = FaissMiner(*vectors, 20, 10, block_size=16)
    second.restore(saved)
    assert second.pending() == list(range(interrupted_after, 6 + 19))
    for name, array in vars(mine(second)).items():
        np.testing.assert_array_equal(array, getattr(whole, name), err_msg=name)
    with pytest.raises(UsageError, match="block 0 of 25 is done already"):
        second.step(0)
    with pytest.raises(DataError, match="start the mining again"):
        FaissMiner(*vectors, 21, 10, block_size=16).restore(saved)


@pytest.mark.usefixtures("with_faiss")
def test_what_cannot_be_mined_is_refused(vectors):
    images, texts, caption_image = vectors
    with pytest.raises(UsageError, match="num_probes = 9 and num_lists = 8"):
        FaissMiner(*vectors, 20, 10, "ivf", num_lists=8, num_probes=9)
    with pytest.raises(UsageError, match="90 images per caption were asked for, but 89"):
        FaissMiner(*vectors, 20, 90)
    broken = texts.copy()
    broken[4, 2] = np.inf
    with pytest.raises(DataError, match="1 of 300 caption embeddings"):
        FaissMiner(images, broken, caption_image, 20, 10)
    with pytest.raises(UsageError, match="25 of 25 blocks are not mined"):
        FaissMiner(*vectors, 20, 10, block_size=16).result()


def test_without_the_library_the_remedy_is_named(vectors, monkeypatch):
    real = builtins.__import__

    def without_faiss(name, *arguments, **more):
        if name == "faiss":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without_faiss)
    with pytest.raises(MissingInputError, match=r"pip install 'itrpipe\[cpu\]'"):
        FaissMiner(*vectors, 20, 10)
