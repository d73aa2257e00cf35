"""The Parquet files of `itrpipe prepare`: order, content, and refusal of damage; and the truth of captions."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.datasets.captions import SPLITS, Annotations, CaptionRecord, ImageRecord
from itrpipe.datasets.image_check import ImageFacts
from itrpipe.datasets.prepared import CAPTIONS_FILE, IMAGES_FILE, PreparedDataset, captions_of, write_prepared
from itrpipe.datasets.truth import PairSet, known_matches, read_truth, write_truth
from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError


def write(folder: Path, annotations: Annotations) -> None:
    folder.mkdir(exist_ok=True)
    facts = {
        image.file: ImageFacts(hashlib.sha256(image.file.encode()).hexdigest(), 10 + row, 20 + row)
        for row, image in enumerate(annotations.images)
    }
    write_prepared(folder, annotations, facts)


IMAGES = [ImageRecord("x", "x.jpg", "test"), ImageRecord("b", "b.jpg", "train"), ImageRecord("a", "a.jpg", "train")]
CAPTIONS = [CaptionRecord(str(row), image, f"caption {row} Café") for row, image in enumerate("axbaxx")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A prepared dataset of three images and six captions."""
    write(tmp_path / "prepared", Annotations(IMAGES, CAPTIONS, tmp_path))
    return tmp_path / "prepared"


def test_order_is_split_then_source_with_the_captions_of_an_image_together(folder: Path) -> None:
    images, captions = pq.read_table(folder / IMAGES_FILE), pq.read_table(folder / CAPTIONS_FILE)
    assert images["image_id"].to_pylist() == ["b", "a", "x"]
    assert images["width"].to_pylist() == [11, 12, 10]
    assert images["sha256"].to_pylist()[0] == hashlib.sha256(b"b.jpg").hexdigest()
    assert captions["caption_id"].to_pylist() == ["2", "0", "3", "1", "4", "5"]
    assert captions["image_id"].to_pylist() == ["b", "a", "a", "x", "x", "x"]
    assert captions["split"].to_pylist() == ["train"] * 3 + ["test"] * 3
    assert captions["tokens"].to_pylist()[0] == ["caption", "2", "café"]


def test_a_dataset_gives_ids_texts_words_and_rows_by_split(folder: Path) -> None:
    dataset = PreparedDataset.open(folder)
    assert [*dataset.splits] == ["train", "test"]
    assert dataset.counts() == {"train": (2, 3), "test": (1, 3)}
    assert dataset.column("image_id") == ["b", "a", "x"]
    assert dataset.column("file") == ["b.jpg", "a.jpg", "x.jpg"]
    assert dataset.sizes().tolist() == [[21, 11], [22, 12], [20, 10]]
    train = dataset.split("train")
    assert (train.name, train.files) == ("train", ["b.jpg", "a.jpg"])
    assert train.image_ids.tolist() == ["b", "a"]
    assert train.caption_ids.tolist() == ["2", "0", "3"]
    assert train.texts == ["caption 2 Café", "caption 0 Café", "caption 3 Café"]
    assert train.tokens.to_pylist()[1] == ["caption", "0", "café"]
    assert train.caption_image.tolist() == [0, 1, 1]
    assert train.captions_of_image.tolist() == [0, 1, 3]
    assert train.caption_image.dtype == train.captions_of_image.dtype == dataset.sizes().dtype == np.int64
    assert list(captions_of(folder, "test")) == [(str(row), f"caption {row} Café") for row in (1, 4, 5)]
    assert "tokens" not in PreparedDataset.open(folder, tokens=False).split("test").captions.column_names
    with pytest.raises(UsageError, match="no split 'val'; it has train, test"):
        dataset.split("val")


def test_a_split_without_some_images_lacks_their_captions_too(folder: Path) -> None:
    train = PreparedDataset.open(folder).split("train")
    left = train.without(["b", "elsewhere"])
    assert left.image_ids.tolist() == ["a"]
    assert left.caption_ids.tolist() == ["0", "3"]
    assert left.caption_image.tolist() == [0, 0]
    with pytest.raises(DataError, match="split 'train': none of its 2 images is left"):
        train.without(["a", "b"])


def test_a_share_of_a_split_lies_within_larger_ones_and_holds_an_image_at_least(tmp_path: Path) -> None:
    images = [ImageRecord(f"i{row}", f"{row}.jpg", "train") for row in range(10)]
    captions = [CaptionRecord(str(row), f"i{row % 10}", "x") for row in range(20)]
    write(tmp_path, Annotations(images, captions, tmp_path))
    train = PreparedDataset.open(tmp_path).split("train")
    assert train.share(1.0) is train
    shares = [train.share(share) for share in (0.01, 0.3, 0.75)]
    assert [(len(each.images), len(each.captions)) for each in shares] == [(1, 2), (3, 6), (8, 16)]
    assert {*shares[0].image_ids} < {*shares[1].image_ids} < {*shares[2].image_ids}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(SPLITS), st.integers(1, 4)), min_size=1, max_size=8), st.randoms())
def test_every_caption_finds_its_image(tmp_path: Path, plan: list[tuple[str, int]], chance: random.Random) -> None:
    images = [ImageRecord(f"i{row}", f"{row}.jpg", split) for row, (split, _) in enumerate(plan)]
    owners = [image.image_id for image, (_, count) in zip(images, plan, strict=True) for _ in range(count)]
    chance.shuffle(owners)
    captions = [CaptionRecord(f"c{row}", owner, f"text {owner}") for row, owner in enumerate(owners)]
    write(tmp_path, Annotations(images, captions, tmp_path))
    dataset = PreparedDataset.open(tmp_path)
    assert sum(captions for _, captions in dataset.counts().values()) == len(captions)
    for name in dataset.splits:
        split = dataset.split(name)
        assert [f"text {split.image_ids[row]}" for row in split.caption_image] == split.texts
        assert split.captions_of_image.tolist() == [
            *np.searchsorted(split.caption_image, range(len(split.images))),
            len(split.texts),
        ]


def test_files_of_two_runs_and_of_other_columns_do_not_pass(folder: Path) -> None:
    images, captions = pq.read_table(folder / IMAGES_FILE), pq.read_table(folder / CAPTIONS_FILE)
    for changed, told, value in (
        (images.drop_columns(["sha256"]), captions, "has other columns than this version writes"),
        (images.slice(1), captions, "train has captions of images that images.parquet lacks"),
        (images.slice(0, 2), captions, "other splits than train"),
        (images.slice(0, 0), captions, "holds no images"),
        (images, captions.take([1, 0, 2, 3, 4, 5]), "captions of train are not in the order of their images"),
    ):
        pq.write_table(changed, folder / IMAGES_FILE)
        pq.write_table(told, folder / CAPTIONS_FILE)
        with pytest.raises(DataError, match=value):
            PreparedDataset.open(folder)


@pytest.mark.parametrize("name", [IMAGES_FILE, CAPTIONS_FILE])
@pytest.mark.parametrize(("part", "kind"), [(0.0, DataError), (0.5, DataError), (None, MissingInputError)])
def test_an_empty_cut_off_or_missing_file_is_refused_in_one_line(
    folder: Path, name: str, part: float | None, kind: type[ItrpipeError]
) -> None:
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if part is not None:
        (folder / name).write_bytes(content[: int(part * len(content))])
    with pytest.raises(kind, match=rf"^{folder / name} .*run itrpipe prepare again$"):
        PreparedDataset.open(folder)


pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=12)


@given(pairs)
def test_a_set_of_pairs_is_what_python_says(known: list[tuple[int, int]]) -> None:
    captions, images = np.array(known, dtype=np.int64).reshape(-1, 2).T
    found = PairSet.of(captions, images, 4)
    ids = (np.array([f"i{row}" for row in images] + ["other"]), np.array([f"c{row}" for row in captions] + ["c0"]))
    image_ids, caption_ids = np.array(["i2", "i0", "i1", "i3"]), np.array([f"c{row}" for row in range(6)])
    named = PairSet.of_ids(ids, image_ids, caption_ids)
    assert len(found) == len(named) == len({*known})
    assert [*zip(found.caption_rows, found.image_rows, strict=True)] == sorted({*known})
    own = found.has(np.arange(6)[:, None], np.arange(4)).tolist()
    assert own == [[(caption, image) in known for image in range(4)] for caption in range(6)]
    order = [int(each[1:]) for each in image_ids]
    assert named.has(np.arange(6)[:, None], np.arange(4)).tolist() == [[row[image] for image in order] for row in own]
    lists = found.lists(6)
    for name, side, count in (("texts_for_images", 0, 4), ("images_for_texts", 1, 6)):
        expected = [sorted(pair[side] for pair in {*known} if pair[1 - side] == row) for row in range(count)]
        assert lists[name].shape == (count, max(1, *map(len, expected)))
        assert [[each for each in row if each >= 0] for row in lists[name].tolist()] == expected
        assert [row[: len(each)] for row, each in zip(lists[name].tolist(), expected, strict=True)] == expected


def test_truth_is_read_as_rows_and_lists(folder: Path) -> None:
    split = PreparedDataset.open(folder).split("train")
    assert read_truth(folder, split.image_ids, split.caption_ids) is None
    assert known_matches(folder, split) is None
    write_truth(folder, {"2": ["b"], "0": ["a", "b"], "3": ["a"], "1": ["x"]})
    found = read_truth(folder, split.image_ids, split.caption_ids)
    assert found is not None
    assert [rows.tolist() for rows in found] == [[0], [0, 1], [1]]
    matches = known_matches(folder, split)
    assert matches is not None
    assert matches["texts_for_images"].tolist() == [[0, 1], [1, 2]]
    assert matches["images_for_texts"].tolist() == [[0, -1], [0, 1], [1, -1]]
    write_truth(folder, {"2": ["b"], "0": ["a", "b"]})
    with pytest.raises(DataError, match=r"truth\.parquet .*run `itrpipe prepare` again"):
        read_truth(folder, split.image_ids, split.caption_ids)
