"""Further candidates: every form of file, what is refused, and lists that hold them without their having any."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.errors import DataError
from itrpipe.mining.corpus import open_corpus
from tests.maps import made
from tests.mining.mine import exact_work, joined

VECTORS = np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32)
IDS = [f"id {row}" for row in range(7)]


def write_parquet(path: Path, column: str, rows: slice = slice(None)) -> Path:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(VECTORS[rows].reshape(-1)), VECTORS.shape[1])
    pq.write_table(pa.table({column: IDS[rows], "embedding": vectors}), path)
    return path


def one_file(folder: Path) -> Path:
    return write_parquet(folder / "any.parquet", "caption_id")


def shards(folder: Path) -> Path:
    (folder / "shards").mkdir()
    write_parquet(folder / "shards" / "a.parquet", "caption_id", slice(0, 5))
    write_parquet(folder / "shards" / "b.parquet", "caption_id", slice(5, 7))
    return folder / "shards"


def plain(folder: Path) -> Path:
    np.save(folder / "captions.npy", VECTORS)
    (folder / "captions.ids.json").write_text(json.dumps(IDS))
    return folder / "captions.npy"


def hdf5(folder: Path) -> Path:
    with h5py.File(folder / "any.h5", "w") as file:
        file["texts"], file["caption_id"] = VECTORS, IDS
    return folder / "any.h5"


@pytest.mark.parametrize("write", [one_file, shards, plain, hdf5])
def test_every_form_is_read(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    corpus = open_corpus(write(tmp_path), tmp_path / "copy.arrays")
    assert (corpus.side, corpus.ids) == ("caption", IDS)
    assert corpus.rows.shape == VECTORS.shape
    np.testing.assert_array_equal(corpus.rows.read(2, 6), VECTORS[2:6])


def test_the_column_says_whether_they_are_images(tmp_path: Path) -> None:
    assert open_corpus(write_parquet(tmp_path / "a.parquet", "image_id"), tmp_path / "copy.arrays").side == "image"


def no_column(folder: Path) -> Path:
    return write_parquet(folder / "a.parquet", "name")


def no_shards(folder: Path) -> Path:
    return folder


def too_few_ids(folder: Path) -> Path:
    path = plain(folder)
    path.with_suffix(".ids.json").write_text(json.dumps(IDS[:-1]))
    return path


def other_name(folder: Path) -> Path:
    return plain(folder).rename(folder / "vectors.npy")


def a_pickle(folder: Path) -> Path:
    np.save(folder / "images.npy", np.array([{}], dtype=object), allow_pickle=True)
    return folder / "images.npy"


def of_two_lengths(folder: Path) -> Path:
    path = folder / "a.parquet"
    pq.write_table(pa.table({"image_id": ["a", "b"], "embedding": [[1.0, 2.0], [3.0]]}), path)
    return path


def text(folder: Path) -> Path:
    (folder / "a.txt").write_text("no vectors")
    return folder / "a.txt"


@pytest.mark.parametrize("write", [no_column, no_shards, too_few_ids, other_name, a_pickle, of_two_lengths, text])
def test_other_files_are_refused_in_one_line(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    path = write(tmp_path)
    with pytest.raises(DataError, match="cannot be read") as caught:
        open_corpus(path, tmp_path / "copy.arrays")
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "copy.arrays").exists()


@pytest.mark.parametrize("block", [4, 100])
@pytest.mark.parametrize("precision", ["fp32", "bf16+fp32"])
def test_lists_are_of_the_anchors_alone_and_find_candidates_behind_them(
    tmp_path: Path, block: int, precision: str
) -> None:
    generator = np.random.default_rng(1)
    # Whole numbers: products are exact, so that lists can be compared.
    images = generator.integers(-9, 9, (25, 6)).astype(np.float32)
    texts = generator.integers(-9, 9, (60, 6)).astype(np.float32)
    owners = np.concatenate([np.repeat(np.arange(20), 2), np.full(20, -1)])  # 20 images and 40 captions are anchors
    options = {"block": block, "text_block": 13, "precision": precision, "anchors": (20, 40)}
    work = exact_work(tmp_path, images, texts, owners, 30, 15, **options)
    lists = joined(work, made(work, tmp_path / "parts").paths, tmp_path)
    scores = images @ texts.T
    scores[owners[:40], np.arange(40)] = -np.inf
    expected = np.argsort(-scores[:20], axis=1, kind="stable")[:, :30]
    np.testing.assert_array_equal(lists.texts_per_image, expected)
    np.testing.assert_array_equal(lists.images_per_text, np.argsort(-scores.T[:40], axis=1, kind="stable")[:, :15])
    assert (expected >= 40).any()
