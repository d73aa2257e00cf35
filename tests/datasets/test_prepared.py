"""The two Parquet files of `itrpipe prepare`: order, content, and refusal of damage."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from itrpipe.datasets.image_check import ImageFacts
from itrpipe.datasets.prepared import CAPTIONS_FILE, IMAGES_FILE, PreparedDataset, write_prepared
from itrpipe.datasets.records import SPLITS, Annotations, CaptionRecord, ImageRecord
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.errors import DataError, MissingInputError, UsageError


def facts_of(annotations: Annotations) -> dict[str, ImageFacts]:
    return {
        image.file: ImageFacts(hashlib.sha256(image.file.encode()).hexdigest(), 10 + row, 20 + row)
        for row, image in enumerate(annotations.images)
    }


def write(folder: Path, annotations: Annotations) -> None:
    folder.mkdir(exist_ok=True)
    tokens = [caption.text.split() for caption in annotations.captions]
    write_prepared(folder, annotations, facts_of(annotations), tokens)


def example() -> Annotations:
    images = [
        ImageRecord("x", "x.jpg", "test"),
        ImageRecord("b", "b.jpg", "train"),
        ImageRecord("a", "a.jpg", "train"),
    ]
    order = ["a", "x", "b", "a", "x", "x"]
    captions = [CaptionRecord(str(row), image, f"caption {row} Café") for row, image in enumerate(order)]
    return Annotations(images, captions, Path("root"))


def test_order_is_split_then_source_with_the_captions_of_an_image_together(tmp_path: Path) -> None:
    write(tmp_path, example())
    images, captions = pq.read_table(tmp_path / IMAGES_FILE), pq.read_table(tmp_path / CAPTIONS_FILE)
    assert images["image_id"].to_pylist() == ["b", "a", "x"]
    assert images["width"].to_pylist() == [11, 12, 10]
    assert images["sha256"].to_pylist()[0] == hashlib.sha256(b"b.jpg").hexdigest()
    assert captions["caption_id"].to_pylist() == ["2", "0", "3", "1", "4", "5"]
    assert captions["tokens"].to_pylist()[0] == ["caption", "2", "Café"]
    assert images.column_names == ["image_id", "file", "split", "width", "height", "sha256"]
    assert captions.column_names == ["caption_id", "image_id", "split", "text", "tokens"]


def test_a_split_gives_ids_texts_words_and_rows(tmp_path: Path) -> None:
    write(tmp_path, example())
    dataset = PreparedDataset.open(tmp_path)
    assert dataset.splits == ("train", "test")
    assert dataset.counts() == {"train": (2, 3), "test": (1, 3)}
    train = dataset.split("train")
    assert train.name == "train"
    assert train.image_ids.tolist() == ["b", "a"]
    assert train.files == ["b.jpg", "a.jpg"]
    assert train.caption_ids.tolist() == ["2", "0", "3"]
    assert train.texts == ["caption 2 Café", "caption 0 Café", "caption 3 Café"]
    assert train.caption_image.tolist() == [0, 1, 1]
    assert train.captions_of_image.tolist() == [0, 1, 3]
    assert train.caption_image.dtype == train.captions_of_image.dtype == np.int64
    assert Vocabulary.build(train.tokens, min_count=3).words[4:] == ("Café", "caption")
    assert Vocabulary.build(train.tokens).encode_all(train.tokens)[1].tolist() == [5, 5, 5]


def test_a_split_without_some_images_lacks_their_captions_too(tmp_path: Path) -> None:
    write(tmp_path, example())
    train = PreparedDataset.open(tmp_path).split("train")
    left = train.without(["b", "elsewhere"])
    assert left.image_ids.tolist() == ["a"]
    assert left.caption_ids.tolist() == ["0", "3"]
    assert left.caption_image.tolist() == [0, 0]
    with pytest.raises(DataError, match="split 'train': none of its 2 images is left"):
        train.without(["a", "b"])


def test_a_share_of_a_split_lies_within_larger_ones_and_holds_an_image_at_least(tmp_path: Path) -> None:
    write(tmp_path, example())
    train = PreparedDataset.open(tmp_path).split("train")
    assert train.share(1.0) is train
    half, least = train.share(0.5), train.share(0.01)
    assert len(half.images) == len(least.images) == 1
    assert half.image_ids.tolist() == least.image_ids.tolist()
    assert len(half.captions) == (train.caption_image == train.image_ids.tolist().index(half.image_ids[0])).sum()


def test_files_and_sizes_of_all_splits_stand_in_one_order(tmp_path: Path) -> None:
    write(tmp_path, example())
    dataset = PreparedDataset.open(tmp_path)
    assert dataset.image_ids() == ["b", "a", "x"]
    assert dataset.files() == ["b.jpg", "a.jpg", "x.jpg"]
    assert dataset.sizes()[:, 1].tolist() == [11, 12, 10]
    assert (dataset.sizes()[:, 0] == pq.read_table(tmp_path / IMAGES_FILE)["height"].to_numpy()).all()


def test_a_split_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write(tmp_path, example())
    with pytest.raises(UsageError, match="no split 'val'; it has train, test"):
        PreparedDataset.open(tmp_path).split("val")


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(SPLITS), st.integers(1, 4)), min_size=1, max_size=8), st.randoms())
def test_every_caption_finds_its_image(tmp_path: Path, plan: list[tuple[str, int]], random: object) -> None:
    images = [ImageRecord(f"i{row}", f"{row}.jpg", split) for row, (split, _) in enumerate(plan)]
    owners = [image.image_id for image, (_, count) in zip(images, plan, strict=True) for _ in range(count)]
    random.shuffle(owners)  # type: ignore[attr-defined]
    captions = [CaptionRecord(f"c{row}", owner, f"text {owner}") for row, owner in enumerate(owners)]
    write(tmp_path, Annotations(images, captions, tmp_path))
    dataset = PreparedDataset.open(tmp_path)
    assert sum(captions for _, captions in dataset.counts().values()) == len(captions)
    for name in dataset.splits:
        split = dataset.split(name)
        assert [f"text {split.image_ids[row]}" for row in split.caption_image] == split.texts
        for row, (start, end) in enumerate(zip(split.captions_of_image[:-1], split.captions_of_image[1:], strict=True)):
            assert split.caption_image[start:end].tolist() == [row] * (end - start)
            assert end > start
        assert split.captions_of_image[-1] == len(split.texts)


def test_the_same_dataset_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, example())
    for file in (IMAGES_FILE, CAPTIONS_FILE):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_images_that_were_not_checked_are_refused(tmp_path: Path) -> None:
    annotations = example()
    facts = facts_of(annotations)
    del facts["a.jpg"]
    with pytest.raises(DataError, match=r"1 images were not checked \(a\.jpg"):
        write_prepared(tmp_path, annotations, facts, [[]] * 6)


@pytest.mark.parametrize("file", [IMAGES_FILE, CAPTIONS_FILE])
def test_a_missing_file_is_refused(tmp_path: Path, file: str) -> None:
    write(tmp_path, example())
    (tmp_path / file).unlink()
    with pytest.raises(MissingInputError, match=rf"{file}: is not there; run itrpipe prepare"):
        PreparedDataset.open(tmp_path)


@pytest.mark.parametrize("file", [IMAGES_FILE, CAPTIONS_FILE])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused_in_one_line(tmp_path: Path, file: str, kept: float) -> None:
    write(tmp_path, example())
    content = (tmp_path / file).read_bytes()
    (tmp_path / file).write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(DataError, match=rf"{file}: is truncated or damaged .*; run itrpipe prepare again") as caught:
        PreparedDataset.open(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_changed_byte_in_a_caption_is_noticed(tmp_path: Path) -> None:
    annotations = example()
    marker = "unmistakable" * 3
    annotations.captions[0] = CaptionRecord("0", "a", marker)
    write(tmp_path, annotations)
    path = tmp_path / CAPTIONS_FILE
    content = bytearray(path.read_bytes())
    data_end = len(content) - int.from_bytes(content[-8:-4], "little") - 8
    noticed = 0
    for position in range(data_end // 4, data_end, 40):
        content[position] ^= 1
        path.write_bytes(content)
        content[position] ^= 1
        try:
            dataset = PreparedDataset.open(tmp_path)
        except DataError:
            noticed += 1
        else:
            # Bytes of page headers that do not matter may pass, but never with another caption.
            assert marker in dataset.split("train").texts
    assert noticed > 5


def replace(path: Path, table: pa.Table) -> None:
    pq.write_table(table, path)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path, example())
    replace(tmp_path / IMAGES_FILE, pq.read_table(tmp_path / IMAGES_FILE).drop_columns(["sha256"]))
    with pytest.raises(DataError, match="other columns"):
        PreparedDataset.open(tmp_path)


def test_files_of_two_runs_do_not_pass_for_one(tmp_path: Path) -> None:
    write(tmp_path, example())
    images, captions = tmp_path / IMAGES_FILE, tmp_path / CAPTIONS_FILE
    whole_images, whole_captions = pq.read_table(images), pq.read_table(captions)
    replace(images, whole_images.slice(1))
    with pytest.raises(DataError, match=r"train has captions of images that images\.parquet lacks"):
        PreparedDataset.open(tmp_path)
    replace(images, whole_images.slice(0, 2))
    with pytest.raises(DataError, match="other splits"):
        PreparedDataset.open(tmp_path)
    replace(images, whole_images.slice(0, 0))
    with pytest.raises(DataError, match="holds no images"):
        PreparedDataset.open(tmp_path)
    replace(images, whole_images)
    replace(captions, whole_captions.take([1, 0, 2, 3, 4, 5]))
    with pytest.raises(DataError, match="not in the order of their images"):
        PreparedDataset.open(tmp_path)
