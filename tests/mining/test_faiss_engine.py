"""Mining with faiss against the exact engine, and what it says without the library."""

from __future__ import annotations

import builtins
from pathlib import Path

import numpy as np
import pytest

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.mining.faiss_engine import Indexing, clusters, required_clusters
from itrpipe.mining.lists import NO_ROW
from tests.maps import made
from tests.mining.mine import assert_same, held, joined, made_in_order, mine, search, search_work


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
@pytest.mark.parametrize("block", [7, 1_000])
@pytest.mark.parametrize("nobodys", [False, True])
def test_a_flat_index_gives_the_exact_lists(vectors, block, nobodys):
    images, texts, caption_image = vectors
    if nobodys:
        caption_image = np.where(np.arange(300) % 3 == 1, -1, caption_image)
    expected = mine(images, texts, caption_image, 40, 20)
    found = search(images, texts, caption_image, 40, 20, block=block)
    np.testing.assert_array_equal(found.texts_per_image, expected.texts_per_image)
    np.testing.assert_array_equal(found.images_per_text, expected.images_per_text)
    np.testing.assert_allclose(found.text_scores, expected.text_scores, rtol=1e-5)
    np.testing.assert_allclose(found.image_scores, expected.image_scores, rtol=1e-5)


@pytest.mark.usefixtures("with_faiss")
def test_ties_change_no_score_and_never_bring_in_an_own_pair():
    generator = np.random.default_rng(3)
    images = generator.integers(-2, 3, (40, 4)).astype(np.float32)
    texts, caption_image = np.repeat(images, 3, axis=0), np.repeat(np.arange(40), 3)
    expected, found = (way(images, texts, caption_image, 30, 10) for way in (mine, search))
    np.testing.assert_array_equal(found.text_scores, expected.text_scores)
    np.testing.assert_array_equal(found.image_scores, expected.image_scores)
    assert (caption_image[found.texts_per_image] != np.arange(40)[:, None]).all()
    assert (found.images_per_text != caption_image[:, None]).all()


@pytest.mark.usefixtures("with_faiss")
def test_clusters_find_most_and_all_of_them_find_all(vectors):
    expected = mine(*vectors, 20, 10)
    all_probed = search(*vectors, 20, 10, clusters=(8, 8))
    np.testing.assert_array_equal(all_probed.texts_per_image, expected.texts_per_image)
    few = search(*vectors, 20, 10, clusters=(8, 3))
    known = few.texts_per_image != NO_ROW
    found = [
        len(np.intersect1d(a[k], b))
        for a, b, k in zip(few.texts_per_image, expected.texts_per_image, known, strict=True)
    ]
    assert 0.5 < sum(found) / expected.texts_per_image.size < 1
    one = search(*vectors, 200, 10, clusters=(8, 1))
    padded = one.texts_per_image == NO_ROW
    assert padded.any()
    assert np.isneginf(one.text_scores[padded]).all()
    assert (np.diff(padded.astype(int), axis=1) >= 0).all()  # only at the end of a list


def test_clusters_are_chosen_for_each_direction_unless_given():
    # 4 sqrt(300), 4 sqrt(90), and a quarter of each
    assert required_clusters([300, 90], 0, 0) == [(69, 18), (38, 10)]
    assert required_clusters([300, 90], 8, 3) == [(8, 3), (8, 3)]
    assert clusters(10, 0, 0) == (10, 3)  # no more clusters than vectors


def times(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}


@pytest.mark.usefixtures("with_faiss")
@pytest.mark.parametrize("interrupted_after", [0, 3, 9, 20])
def test_an_interrupted_search_of_clusters_gives_the_same_lists_with_the_index_it_began_with(
    vectors, tmp_path, interrupted_after, capfd
):
    whole = search(*vectors, 20, 10, clusters=(0, 0), block=16)
    first = search_work(tmp_path, *vectors, 20, 10, clusters=(0, 0), block=16)
    made_in_order(first, first.parts()[:interrupted_after], tmp_path / "parts")
    index, kept = times(tmp_path / "index"), times(tmp_path / "parts")
    assert len(index) == 3  # one for each side, and what the division depends on
    second = search_work(tmp_path, *vectors, 20, 10, clusters=(0, 0), block=16)
    assert times(tmp_path / "index") == index
    found = made(second, tmp_path / "parts")
    assert found.rows == sum(part.rows for part in second.parts()[interrupted_after:])
    assert kept.items() <= times(tmp_path / "parts").items()
    assert_same(joined(second, found.paths, tmp_path), whole)
    assert "WARNING" not in capfd.readouterr().err  # of faiss, that there are few vectors for so many clusters


@pytest.mark.usefixtures("with_faiss")
def test_an_index_is_made_again_where_it_is_damaged_or_of_other_clusters(vectors, tmp_path):
    images, texts, _ = vectors
    work = Indexing(*held(texts, images), required_clusters([300, 90], 8, 3))
    paths = made(work, tmp_path / "index").paths
    whole = [path.read_bytes() for path in paths]
    paths[1].write_bytes(whole[1][:-1] + bytes([whole[1][-1] ^ 1]))
    warned: list[str] = []
    assert made(work, tmp_path / "index", warn=warned.append).rows == 90
    assert [path.read_bytes() for path in paths] == whole
    assert len(warned) == 1
    other = Indexing(*held(texts, images), required_clusters([300, 90], 9, 3))
    assert made(other, tmp_path / "index").rows == 390


@pytest.mark.usefixtures("with_faiss")
@pytest.mark.parametrize("interrupted_after", [0, 3, 20])
def test_an_interrupted_run_gives_the_same_lists(vectors, tmp_path, interrupted_after):
    whole = search(*vectors, 20, 10, block=16)
    first = search_work(tmp_path, *vectors, 20, 10, block=16)
    assert len(first.parts()) == 6 + 19
    made_in_order(first, first.parts()[:interrupted_after], tmp_path / "parts")
    kept = times(tmp_path / "parts")
    second = search_work(tmp_path, *vectors, 20, 10, block=16)
    found = made(second, tmp_path / "parts")
    assert found.rows == sum(part.rows for part in second.parts()[interrupted_after:])
    assert kept.items() <= times(tmp_path / "parts").items()
    assert_same(joined(second, found.paths, tmp_path), whole)
    other = search_work(tmp_path, *vectors, 20, 10, block=17)
    assert made(other, tmp_path / "parts").rows == 390  # parts of another division are not used


@pytest.mark.usefixtures("with_faiss")
def test_parts_made_in_any_order_and_by_two_processes_give_the_same_lists(vectors, tmp_path):
    whole = search(*vectors, 20, 10, block=16)
    work = search_work(tmp_path, *vectors, 20, 10, block=64)
    paths = made_in_order(work, np.random.default_rng(0).permutation(work.parts()), tmp_path / "parts")
    assert_same(joined(work, paths, tmp_path), whole)
    assert_same(joined(work, made(work, tmp_path / "others", workers=2).paths, tmp_path), whole)


@pytest.mark.usefixtures("with_faiss")
def test_what_cannot_be_mined_is_refused(vectors):
    with pytest.raises(UsageError, match="num_probes = 9 and num_lists = 8"):
        search(*vectors, 20, 10, clusters=(8, 9))
    with pytest.raises(UsageError, match="90 images per caption were asked for, but 89"):
        search(*vectors, 20, 90)
    images, texts, caption_image = vectors
    with pytest.raises(DataError, match="do not fit each other"):
        search(images, texts[:, :8], caption_image, 20, 10)


def test_without_the_library_the_remedy_is_named(vectors, monkeypatch):
    real = builtins.__import__

    def without_faiss(name, *arguments, **more):
        if name == "faiss":
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without_faiss)
    with pytest.raises(MissingInputError, match=r"pip install 'itrpipe\[cpu\]'"):
        search(*vectors, 20, 10)
    with pytest.raises(MissingInputError, match=r"pip install 'itrpipe\[cpu\]'"):
        search(*vectors, 20, 10, clusters=(8, 3))
