"""Words and where they stand, against nltk itself."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.tokenize.destructive import NLTKWordTokenizer

from itrpipe.datasets.tokens import spans, tokenize

REFERENCE = NLTKWordTokenizer()
# Pieces on which the rules act, beside plain words: whole Unicode would hardly ever hit one.
PIECES = [
    *("a", "b", "dog", "3", "é", " ", "  ", ".", ",", ",,", "-", "--", "...", ":", ";", "!", "?", "#", "&", "*", "\n"),
    *("'", '"', "''", "``", "'s", "n't", "'ll", "d'ye", "'tis", "cannot", "gonna", "wanna", "more'n", "(", ")"),
    *("\u201c", "\u201d", "\u2019", "\u00ab", "\u2013", "\u00a0", "\u0130", "<pad>"),
]
captions = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
plain_captions = st.lists(st.sampled_from(["a", "dog", "cannot", "3", " ", ",", "-", "."]), max_size=12).map("".join)


@settings(max_examples=400)
@given(captions | plain_captions)
def test_words_are_those_of_nltk(text: str) -> None:
    assert tokenize(text) == REFERENCE.tokenize(text.lower())


@settings(max_examples=400)
@given(captions | st.text(max_size=12))
def test_spans_cut_the_words_out_of_the_caption(text: str) -> None:
    words, found = tokenize(text), spans(text)
    assert len(found) == len(words)
    for (start, end), word in zip(found, words, strict=True):
        written = text[start:end]
        assert written.lower() == word or (word in ("``", "''") and written in ('"', "''")) or "Σ" in text
    assert "".join(text[start:end] for start, end in found) == "".join(text.split())


def test_spans_survive_letters_that_grow_when_lower_cased() -> None:
    text = "\u0130\u0130 dogs ."
    assert [text[start:end] for start, end in spans(text)] == ["\u0130\u0130", "dogs", "."]


def test_long_runs_of_spaces_and_words_take_no_time() -> None:
    assert tokenize("a" + " " * 100_000 + "!") == ["a", "!"]
    assert len(tokenize("a  " * 20_000 + "!")) == 20_001
