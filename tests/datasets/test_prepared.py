"""What is kept of a dataset: tables, fingerprints, words and vocabularies, and what was said of it; see golden.json."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nltk.tokenize.destructive import NLTKWordTokenizer

from itrpipe.config import parse_override
from itrpipe.datasets.captions import Annotations, CaptionRecord, ImageRecord
from itrpipe.datasets.definition import (
    DatasetDefinition,
    ModelDefinition,
    StageDefinition,
    load_definition,
    remember_model,
    remember_training,
)
from itrpipe.datasets.image_check import ImageFacts
from itrpipe.datasets.prepared import PreparedDataset, given_split, texts_of, write_prepared
from itrpipe.datasets.truth import PairSet, known_pairs, pair_set, write_truth
from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary, spans, tokenize
from itrpipe.errors import DataError, UsageError
from itrpipe.mining.lists import HeldRows
from itrpipe.storage.artifact import read_manifest
from tests.chains import run_stage
from tests.datasets.sources import SOURCES
from tests.definitions import save_definition


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


def test_a_dataset_gives_ids_texts_words_and_rows_by_split(folder: Path) -> None:
    dataset = PreparedDataset.open(folder)
    assert dataset.counts() == {"train": (2, 3), "test": (1, 3)}
    assert [dataset.column(name) for name in ("image_id", "file")] == [["b", "a", "x"], ["b.jpg", "a.jpg", "x.jpg"]]
    assert dataset.sizes().tolist() == [[21, 11], [22, 12], [20, 10]]
    train = dataset.split("train")
    assert (train.name, train.files, train.image_ids.tolist()) == ("train", ["b.jpg", "a.jpg"], ["b", "a"])
    assert train.caption_ids.tolist() == ["2", "0", "3"]
    assert train.texts == [f"caption {row} Café" for row in (2, 0, 3)]
    assert train.tokens.to_pylist()[1] == ["caption", "0", "café"]
    assert (train.caption_image.tolist(), train.captions_of_image.tolist()) == ([0, 1, 1], [0, 1, 3])
    assert train.caption_image.dtype == train.captions_of_image.dtype == dataset.sizes().dtype == np.int64
    assert "tokens" not in PreparedDataset.open(folder, tokens=False).split("test").captions.column_names
    with pytest.raises(UsageError, match="no split 'val'; it has train, test"):
        dataset.split("val")


@pytest.mark.parametrize("ids", [[b"1", b"4", b"5"], [b"1", b"5"], [b"5"]])
def test_texts_of_some_captions_are_read_a_few_at_a_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ids: list[bytes]
) -> None:
    monkeypatch.setattr("itrpipe.datasets.prepared._ROWS_AT_ONCE", 1)
    expected = [f"caption {int(each)} Café" for each in ids]
    assert list(texts_of(folder, "test", HeldRows(np.array(ids)))) == expected


def test_given_captions_are_of_the_first_given_image() -> None:
    found = given_split(["A dog", "Café"], ["i", "j"])
    assert (found.caption_ids.tolist(), found.image_ids.tolist()) == (["given", "given1"], ["i", "j"])
    assert (found.caption_image.tolist(), found.tokens.to_pylist()) == ([0, 0], [["a", "dog"], ["café"]])
    assert len(given_split([], ["i"]).texts) == 0
    odd = "not valid UTF"
    for captions, images, told in ((["a", " "], "i", "--texts 1 is ' '"), (["\udcff"], "i", odd), ([], "\udcff", odd)):
        with pytest.raises(UsageError, match=told):
            given_split(captions, [images], what="--texts {}")
    with pytest.raises(UsageError, match="text 0 is 3; give"):
        given_split([3])  # pyright: ignore


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


def test_tables_of_other_columns_do_not_pass(folder: Path) -> None:
    images = pq.read_table(folder / "images.parquet")
    pq.write_table(images.drop_columns(["sha256"]), folder / "images.parquet")
    with pytest.raises(DataError, match="has other columns than this version writes"):
        PreparedDataset.open(folder)


pairs = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=12)


@given(pairs)
def test_a_set_of_pairs_is_what_python_says(known: list[tuple[int, int]]) -> None:
    captions, images = np.array(known, dtype=np.int64).reshape(-1, 2).T
    found = PairSet.of(captions, images, 4)
    ids = [(f"i{image}", f"c{caption}") for caption, image in known]
    image_ids, caption_ids = np.array(["i2", "i0", "i1", "i3"]), np.array([f"c{row}" for row in range(6)])
    named = pair_set([*ids, ("other", "c0")], image_ids, caption_ids)
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
    assert known_pairs(folder, split.image_ids, split.caption_ids) is None
    write_truth(folder, {"2": ["b"], "0": ["a", "b"], "3": ["a"], "1": ["x"]})
    pairs = known_pairs(folder, split.image_ids, split.caption_ids)
    assert pairs is not None
    matches = pairs.lists(3)
    assert matches["texts_for_images"].tolist() == [[0, 1], [1, 2]]
    assert matches["images_for_texts"].tolist() == [[0, -1], [0, 1], [1, -1]]
    write_truth(folder, {"2": ["b"], "0": ["a", "b"]})
    with pytest.raises(DataError, match=r"truth\.parquet .*run `itrpipe prepare` again"):
        known_pairs(folder, split.image_ids, split.caption_ids)


GOLDEN = json.loads(Path(__file__).with_name("golden.json").read_text())


def prepared(root: Path, stage: StageDefinition, *settings: str) -> dict[str, str]:
    """What an artifact of `prepare` holds, as digests, after it was made."""
    save_definition(root, "tiny", DatasetDefinition(prepare=stage))
    folder = run_stage(root, "tiny", "prepare", [parse_override(f"prepare.{each}") for each in settings])
    found = {"fingerprint": folder.name} | read_manifest(folder).sources
    for name in ("images", "captions", "truth"):
        if (path := folder / f"{name}.parquet").exists():
            table = pq.read_table(path)
            content = repr([(field.name, str(field.type)) for field in table.schema]) + repr(table.to_pydict())
            found[f"{name}.parquet"] = hashlib.sha256(content.encode()).hexdigest()
    return found


@pytest.mark.parametrize("name", SOURCES)
def test_prepared_sources_stay_as_they_are(tmp_path: Path, name: str) -> None:
    SOURCES[name].write(tmp_path / "source")
    assert prepared(tmp_path, StageDefinition(conf="files", source=str(tmp_path / "source"))) == GOLDEN[name]


def test_the_embedded_dataset_stays_as_it_is(tmp_path: Path) -> None:
    small = ("train=4", "val=2", "test=2", "family_size=2", "workers=1")
    found = prepared(tmp_path, StageDefinition(conf="scenes"), *small)
    del found["images.parquet"]  # hashes of pictures, which are of the version of Pillow
    assert found == GOLDEN["scenes"]


def test_given_embeddings_stay_as_they_are(tmp_path: Path) -> None:
    settings = {}
    for split, count in (("train", 3), ("test", 2)):
        paths = {"images": f"{split}.images.npy", "texts": f"{split}.texts.npy", "owners": f"{split}.owners.npy"}
        np.save(tmp_path / paths["images"], np.eye(count, 4, dtype=np.float32))
        np.save(tmp_path / paths["texts"], np.eye(2 * count, 4, dtype=np.float32))
        np.save(tmp_path / paths["owners"], np.arange(2 * count) % count)
        settings |= {f"{split}.{name}": str(tmp_path / path) for name, path in paths.items()}
    assert prepared(tmp_path, StageDefinition(conf="given", settings=settings)) == GOLDEN["given"]


def test_processes_that_remember_at_once_keep_what_the_others_remember(tmp_path: Path) -> None:
    children = []
    for process in range(3):
        if (child := os.fork()) == 0:
            for number in range(20):
                remember_model(tmp_path, "mine", f"model{process}.{number}", ModelDefinition(method="triplet"))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
    assert len(load_definition(tmp_path, "mine").models) == 60


def test_a_training_is_noted_with_its_name_unless_that_was_forgotten(tmp_path: Path) -> None:
    remember_model(tmp_path, "mine", "kept", ModelDefinition(method="triplet"))
    for name in ("kept", "forgotten"):
        remember_training(tmp_path, "mine", name, "triplet.vsrn", "triplet.vsrn-1")
    models = load_definition(tmp_path, "mine").models
    assert {name: model.trained for name, model in models.items()} == {"kept": {"triplet.vsrn": "triplet.vsrn-1"}}


REFERENCE = NLTKWordTokenizer()
# Pieces on which the rules act, beside plain words: whole Unicode would hardly ever hit one.
PIECES = [
    *("a", "b", "dog", "3", "é", " ", "  ", ".", ",", ",,", "-", "--", "...", ":", ";", "!", "?", "#", "&", "*", "\n"),
    *("'", '"', "''", "``", "'s", "n't", "'ll", "d'ye", "'tis", "cannot", "gonna", "wanna", "more'n", "(", ")"),
    *("\u201c", "\u201d", "\u2019", "\u00ab", "\u2013", "\u00a0", "\u0130", "<pad>"),
]
captions = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
plain_captions = st.lists(st.sampled_from(["a", "dog", "cannot", "3", " ", ",", "-", "."]), max_size=12).map("".join)
WORDS = ["a", "dog", "cat", "Å", "zebra", "<pad>", "<end>", ""]
token_lists = st.lists(st.lists(st.sampled_from(WORDS), max_size=6), max_size=8)


def words(*lists: Sequence[str]) -> pa.ListArray:
    return pa.array(lists, pa.list_(pa.string()))


@settings(max_examples=400)
@given(captions | plain_captions)
def test_words_are_those_of_nltk(text: str) -> None:
    assert tokenize(text) == REFERENCE.tokenize(text.lower())


@settings(max_examples=400)
@given(captions | st.text(max_size=12))
@example("\u0130\u0130 dogs .")  # whose letters grow when they are lower-cased
def test_spans_cut_the_words_out_of_the_caption(text: str) -> None:
    words, found = tokenize(text), spans(text)
    assert len(found) == len(words)
    for (start, end), word in zip(found, words, strict=True):
        written = text[start:end]
        assert written.lower() == word or (word in ("``", "''") and written in ('"', "''")) or "Σ" in text
    assert "".join(text[start:end] for start, end in found) == "".join(text.split())


def test_ids_fall_with_the_count_and_rise_with_the_alphabet() -> None:
    lists = [["b", "a", "c"], ["b", "a", "c"], ["b", "rare"], ["b"]]
    vocabulary = Vocabulary.build(words(*lists), min_count=2)
    assert vocabulary.words == (*SPECIALS, "b", "a", "c")
    assert Vocabulary.build(words(*lists)[::-1], min_count=2) == vocabulary != Vocabulary.build(words(*lists))
    assert hash(Vocabulary.build(words(*lists)[::-1], min_count=2)) == hash(vocabulary)
    assert len(vocabulary) == 7
    assert Vocabulary.build(words(["four"] * 4, ["three"] * 3)).words[4:] == ("four",)


@settings(max_examples=150)
@given(token_lists, token_lists, st.booleans())
def test_encoding_equals_one_word_at_a_time(known: list[list[str]], lists: list[list[str]], part: bool) -> None:
    vocabulary = Vocabulary.build(words(*known), min_count=1)
    tokens, lengths = vocabulary.encode_all(words(["other"], *lists)[1:] if part else words(*lists))
    assert tokens.dtype == lengths.dtype == np.int32
    naive = [
        [1, *(vocabulary.ids[word] if word in vocabulary.ids and word not in SPECIALS else 3 for word in own), 2]
        for own in lists
    ]
    assert lengths.tolist() == [len(ids) for ids in naive]
    assert tokens.shape == (len(lists), max(map(len, naive), default=2))
    assert [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)] == naive
    assert all(not row[length:].any() for row, length in zip(tokens, lengths, strict=True))


def test_a_published_file_loads_with_its_own_ids_and_is_written_so(tmp_path: Path) -> None:
    known = [*SPECIALS, "zebra", "Åpple"]
    ids = {word: index for index, word in enumerate(known)}
    published = {"word2idx": ids, "idx2word": {str(index): word for word, index in ids.items()}, "idx": 6}
    path = tmp_path / "f30k_precomp_vocab.json"
    path.write_text(json.dumps(published))
    vocabulary = Vocabulary.load(path)
    assert vocabulary.encode_all(words(["Åpple", "pear", "zebra"]))[0].tolist() == [[1, 5, 3, 4, 2]]
    vocabulary.save(path)
    assert path.read_text(encoding="utf-8") == json.dumps(published, ensure_ascii=False)
    assert Vocabulary.load(path) == vocabulary


@pytest.mark.parametrize(
    ("key", "change", "value"),
    [
        ("idx2word", None, "has no idx2word; it has word2idx, idx"),
        ("word2idx", lambda words: [], "word2idx is [], expected an object"),
    ],
)
def test_broken_vocabularies_are_refused(tmp_path: Path, key: str, change: Any, value: str) -> None:
    path = tmp_path / "v.json"
    Vocabulary.build(words(["dog", "cat"]), min_count=1).save(path)
    content = json.loads(path.read_text())
    old = content.pop(key)
    path.write_text(json.dumps(content | ({key: change(old)} if change else {})))
    with pytest.raises(DataError, match=f"^{re.escape(str(path))}.*{re.escape(value)}"):
        Vocabulary.load(path)
