"""Texts that are no captions: how much of them is parsed, that the rest costs nothing, and that the graph says so."""

from __future__ import annotations

import json
import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.scene_graph.foreign import ForeignParser
from itrpipe.scene_graph.hanta import HantaTagger
from itrpipe.scene_graph.parsing import Item
from itrpipe.scene_graph.rules import RulesParser
from itrpipe.scene_graph.tokenise import MOST_LETTERS, MOST_WORDS, parsed_part, tokenise

CAPTION = "A dog in a red sweater jumps over two logs."
TAGGERS = ("hanta", "lexicon")
# Words that are cut, bounds, marks that bind or part words, and all that regular expressions count as letters.
PIECES = st.sampled_from(
    ["dog", "a", "'s", "'S", "\u2019s", "'", "-", "_", ".", " ", "\n", "x" * 59, "y" * 61, "é", "e\u0301", "狗"]
)
TEXTS = st.lists(PIECES, max_size=60).map("".join)


@cache
def parser(tagger: str) -> RulesParser:
    return RulesParser("lexicon") if tagger == "lexicon" else RulesParser("hanta")


# The part that is parsed


def test_a_caption_within_the_limits_is_parsed_whole() -> None:
    for text in ("", " \n", CAPTION, "dog " * MOST_WORDS, "x" * MOST_LETTERS, f"{'x' * MOST_LETTERS}-"):
        assert parsed_part(text) == text


def test_words_and_marks_beyond_the_limit_are_not_parsed() -> None:
    words = [f"w{number}" for number in range(MOST_WORDS + 1)]
    assert parsed_part("  " + " ".join(words)) == "  " + " ".join(words[:-1])
    assert parsed_part("." * 10_000) == "." * MOST_WORDS


def test_parsing_stops_inside_a_word_that_is_too_long() -> None:
    assert parsed_part(f"a dog {'x' * (MOST_LETTERS + 1)} and a cat") == f"a dog {'x' * MOST_LETTERS}"


@given(TEXTS)
@settings(deadline=None)
def test_the_part_has_the_words_that_the_whole_text_begins_with(text: str) -> None:
    part = parsed_part(text)
    assert text.startswith(part)
    whole, own = tokenise(text), tokenise(part)
    assert len(own) <= MOST_WORDS + 1  # half a word may end in a mark, which then stands alone
    assert all(end - start <= MOST_LETTERS for _, start, end in own)
    kept = sum(end <= len(part) for _, _, end in whole)
    assert own[:kept] == whole[:kept]
    assert bool(own) == bool(whole)  # models of words have no use for a caption without any


# What it costs


@pytest.mark.parametrize("text", ["a dog and " * 10_000, "x" * 100_000, "x-" * 50_000, "'s" * 50_000])
def test_the_rules_are_given_no_more(text: str) -> None:
    rules = parser("lexicon")
    for own, elements in ((rules, ""), (ForeignParser(rules), "[]")):
        tokens = own.parse(Item(text, elements)).tokens
        assert len(tokens) <= MOST_WORDS + 1
        assert all(len(token.text) <= MOST_LETTERS for token in tokens)


def test_the_work_of_hanta_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    letters: list[int] = []
    real = HantaTagger._readings

    def counted(tagger: HantaTagger, word: str, cased: bool) -> dict[int, float]:
        letters.append(len(word))
        return real(tagger, word, cased)

    monkeypatch.setattr(HantaTagger, "_readings", counted)
    rules = RulesParser("hanta")
    for text in (" ".join(f"word{number}" for number in range(2_000)), "y" * 5_000):
        letters.clear()
        rules.parse(Item(text))
        assert 0 < len(letters) <= MOST_WORDS
        assert max(letters) <= MOST_LETTERS


@pytest.mark.parametrize("tagger", TAGGERS)
def test_sixteen_captions_of_ten_thousand_words_end(tagger: str) -> None:
    draw = random.Random(0)
    words = ["a", "dog", "in", "red", "and", "holds", ",", "who", "man's", "running", "qzx", "of"]
    rules = parser(tagger)
    for _ in range(16):
        text = " ".join(draw.choice(words) for _ in range(10_000))
        graph = rules.parse(Item(text))
        assert len(graph.tokens) <= MOST_WORDS
        assert (graph.text, graph.status) == (text, "partial")


# What comes out


@pytest.mark.parametrize("tagger", TAGGERS)
@pytest.mark.parametrize("more", [" and a man sings" * 200, f" {'z' * 200} and a man sings"])
def test_the_beginning_of_a_long_caption_has_its_graph(tagger: str, more: str) -> None:
    text = f"\n {CAPTION} {more}"
    graph = parser(tagger).parse(Item(text))
    assert graph.status == "partial"
    assert all(text[token.start : token.end] == token.text for token in graph.tokens)
    assert {"dog", "sweater", "log"} <= {each.lemma for each in graph.objects}
    assert "red" in {each.lemma for each in graph.attributes}


@pytest.mark.parametrize("tagger", TAGGERS)
def test_the_limits_change_no_caption_within_them(tagger: str) -> None:
    assert parser(tagger).parse(Item(CAPTION)).status == "ok"


def test_what_is_no_noun_phrase_stays_failed() -> None:
    assert parser("lexicon").parse(Item("quickly " * 500)).status == "failed"


def test_an_imported_graph_is_found_in_the_part_that_is_parsed() -> None:
    own = ForeignParser(parser("lexicon"))
    text = f"a dog {'and ' * 500} a cat"
    found = own.parse(Item(text, json.dumps([["dog"], ["cat"]])))
    assert ([each.tokens for each in found.objects], found.status) == ([(1,), ()], "partial")
    assert own.parse(Item(text, json.dumps([["dog"]]))).status == "partial"
    assert own.parse(Item("a dog", json.dumps([["dog"]]))).status == "ok"
