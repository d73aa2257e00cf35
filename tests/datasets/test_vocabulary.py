"""Words and where they stand, against nltk itself; vocabularies, exact to encode with and published in SCAN's form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nltk.tokenize.destructive import NLTKWordTokenizer

from itrpipe.datasets.vocabulary import SPECIALS, Vocabulary, spans, tokenize
from itrpipe.errors import DataError, MissingInputError

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


def test_long_runs_of_spaces_and_words_take_no_time() -> None:
    assert tokenize("a" + " " * 100_000 + "!") == ["a", "!"]
    assert len(tokenize("a  " * 20_000 + "!")) == 20_001


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
    ("change", "value"),
    [
        (lambda content: content.pop("idx2word"), "has no idx2word; it has word2idx, idx"),
        (lambda content: content.update(word2idx=[]), "word2idx is [], expected an object"),
        (lambda content: content.update(idx=7), "contradict each other"),
        (lambda content: content["idx2word"].pop("4"), "contradict each other"),
        (lambda content: content["word2idx"].update(dog=4), "contradict each other"),
        (lambda content: content["word2idx"].pop("dog"), "contradict each other"),
        (lambda content: content["idx2word"].update({"5": "cat"}), "it holds 1 words twice"),
        (lambda content: content["idx2word"].update({"0": "<start>", "1": "<pad>"}), "it begins with <start>, <pad>"),
        (lambda content: content["idx2word"].clear(), "it begins with"),
    ],
)
def test_broken_vocabularies_are_refused(tmp_path: Path, change: Any, value: str) -> None:
    path = tmp_path / "v.json"
    Vocabulary.build(words(["dog", "cat"]), min_count=1).save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError) as caught:
        Vocabulary.load(path)
    assert str(caught.value).startswith(str(path))
    assert value in str(caught.value)
    (tmp_path / "v.json").unlink()
    with pytest.raises(MissingInputError, match=r"v\.json: cannot be read"):
        Vocabulary.load(path)
