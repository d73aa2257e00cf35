"""Vocabularies: deterministic to build, exact to encode with, published in SCAN's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary
from itrpipe.errors import DataError, MissingInputError

WORDS = ["a", "dog", "cat", "Å", "zebra", "<pad>", "<end>", ""]
token_lists = st.lists(st.lists(st.sampled_from(WORDS), max_size=6), max_size=8)


def test_ids_fall_with_the_count_and_rise_with_the_alphabet() -> None:
    captions = [["b", "a", "c"], ["b", "a", "c"], ["b", "rare"], ["b"]]
    vocabulary = Vocabulary.build(captions, min_count=2)
    assert vocabulary.words == (*SPECIALS, "b", "a", "c")
    assert Vocabulary.build(captions[::-1], min_count=2) == vocabulary
    assert len(vocabulary) == 7


def test_four_occurrences_are_enough_by_default() -> None:
    assert Vocabulary.build([["four"] * 4, ["three"] * 3]).words[4:] == ("four",)


@settings(max_examples=150)
@given(token_lists, token_lists, st.booleans())
def test_encoding_equals_one_word_at_a_time(known: list[list[str]], captions: list[list[str]], as_arrow: bool) -> None:
    vocabulary = Vocabulary.build(known, min_count=1)
    given_lists: Any = pa.array(captions, type=pa.list_(pa.string())) if as_arrow else captions
    tokens, lengths = vocabulary.encode_all(given_lists)
    assert tokens.dtype == lengths.dtype == np.int32
    naive = [
        [1, *(vocabulary.ids[word] if word in vocabulary.ids and word not in SPECIALS else 3 for word in words), 2]
        for words in captions
    ]
    assert lengths.tolist() == [len(ids) for ids in naive]
    assert tokens.shape == (len(captions), max(map(len, naive), default=2))
    assert [row[:length].tolist() for row, length in zip(tokens, lengths, strict=True)] == naive
    assert all(not row[length:].any() for row, length in zip(tokens, lengths, strict=True))


def test_a_slice_of_an_arrow_column_is_encoded_as_such() -> None:
    column = pa.array([["a"], ["b", "a"], ["c"], ["a", "a"]], type=pa.list_(pa.string()))
    vocabulary = Vocabulary.build(column, min_count=1)
    tokens, lengths = vocabulary.encode_all(column[1:3])
    assert lengths.tolist() == [4, 3]
    assert tokens.tolist() == [[1, vocabulary.ids["b"], vocabulary.ids["a"], 2], [1, vocabulary.ids["c"], 2, 0]]


@given(token_lists)
def test_the_published_form_survives_a_round_trip(captions: list[list[str]]) -> None:
    vocabulary = Vocabulary.build(captions, min_count=1)
    content = json.loads(json.dumps(vocabulary.to_json()))
    assert Vocabulary.from_json(content, Path("v.json")) == vocabulary


def test_saving_and_loading(tmp_path: Path) -> None:
    vocabulary = Vocabulary.build([["Å", "dog"]], min_count=1)
    vocabulary.save(tmp_path / "vocab.json")
    assert Vocabulary.load(tmp_path / "vocab.json") == vocabulary
    assert "Å" in (tmp_path / "vocab.json").read_text(encoding="utf-8")


def test_a_published_file_loads_with_its_own_ids(tmp_path: Path) -> None:
    words = [*SPECIALS, "zebra", "apple"]
    published = {
        "idx": 6,
        "idx2word": {str(index): word for index, word in enumerate(words)},
        "word2idx": {word: index for index, word in reversed(list(enumerate(words)))},
    }
    (tmp_path / "f30k_precomp_vocab.json").write_text(json.dumps(published))
    vocabulary = Vocabulary.load(tmp_path / "f30k_precomp_vocab.json")
    assert vocabulary.ids["zebra"] == 4
    assert vocabulary.encode_all([["apple", "pear"]])[0].tolist() == [[1, 5, 3, 2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("idx2word"), "has no tables"),
        (lambda content: content.update(word2idx=[]), "has no tables"),
        (lambda content: content.update(idx=7), "without gaps"),
        (lambda content: content.pop("idx"), "without gaps"),
        (lambda content: content["idx2word"].pop("4"), "without gaps"),
        (lambda content: content["word2idx"].update(dog=4), "contradict"),
        (lambda content: content["word2idx"].pop("dog"), "contradict"),
        (lambda content: content["idx2word"].update({"5": "cat"}), "contradict"),
    ],
)
def test_broken_vocabularies_are_refused(change: Any, message: str) -> None:
    content = Vocabulary.build([["dog", "cat"]], min_count=1).to_json()
    change(content)
    with pytest.raises(DataError, match=rf"^v\.json: .*{message}"):
        Vocabulary.from_json(content, Path("v.json"))


def test_wrong_specials_and_repeated_words_are_refused() -> None:
    words = ["<start>", "<pad>", "<end>", "<unk>"]
    content = {
        "idx": 4,
        "idx2word": dict(zip("0123", words, strict=True)),
        "word2idx": dict(zip(words, range(4), strict=True)),
    }
    with pytest.raises(DataError, match=r"^v\.json: vocabulary begins with <start>, <pad>"):
        Vocabulary.from_json(content, Path("v.json"))
    with pytest.raises(DataError, match="begins with nothing"):
        Vocabulary([])
    with pytest.raises(DataError, match="holds 1 words twice"):
        Vocabulary([*SPECIALS, "dog", "dog"])


def test_a_missing_or_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"vocab\.json: cannot be read"):
        Vocabulary.load(tmp_path / "vocab.json")
    (tmp_path / "vocab.json").write_text('{"word2idx": {')
    with pytest.raises(DataError, match="is not valid JSON"):
        Vocabulary.load(tmp_path / "vocab.json")
