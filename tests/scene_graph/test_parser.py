"""The parser by rules, from words to graphs: the tables of `cases.toml`, and what holds of any caption."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.errors import MissingInputError
from itrpipe.scene_graph.build import RulesParser
from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.graph import Item, SceneGraph
from itrpipe.scene_graph.hanta import HantaTagger
from itrpipe.scene_graph.settings import FOREIGN_VERSION, RULES_VERSION, ParseSettings, parser_version
from itrpipe.scene_graph.words import MOST_LETTERS, MOST_WORDS, lemma_of, lists, parsed_part, tokenise
from tests.scene_graph.shared import TAGGERS, facts_of, parser

CASES: dict[str, list[list[str]]] = tomllib.loads((Path(__file__).parent / "cases.toml").read_text("utf-8"))


@cache
def hanta() -> HantaTagger:
    return HantaTagger()


def parse(text: str, tagger: str = "hanta") -> SceneGraph:
    return parser(tagger).parse(Item(text))


def cases(name: str) -> Any:
    return pytest.mark.parametrize("case", CASES[name], ids=[case[0] for case in CASES[name]])


# -- words and tags ----------------------------------------------------------------------------------------------------


@cases("tokens")
def test_tokens(case: list[str]) -> None:
    assert "|".join(word for word, _, _ in tokenise(case[0])) == case[1]


@cases("lemmas")
def test_lemmas(case: list[str]) -> None:
    assert lemma_of(*case[:2]) == case[2]


def test_viterbi_agrees_with_the_library() -> None:
    for text in [case[0] for case in CASES["hanta"]] + ["two snowboarders zworkling down the Hillside"]:
        words = text.split()
        assert hanta().most_likely(words, [None] * len(words)) == hanta().model.tag_sent(words, taglevel=0)


# -- graphs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tagger", TAGGERS)
@cases("rules")
def test_rules(case: list[str], tagger: str) -> None:
    objects, attributes, relations = facts_of(parse(case[1], tagger))
    found = [", ".join(sorted(f"{noun}:{lemma}" for noun, lemma in attributes))]
    found += [", ".join(sorted(f"{subject} [{predicate}] {thing}" for subject, predicate, thing in relations))]
    assert [" ".join(sorted(objects)), *found] == case[2:]


@cases("statuses")
def test_the_status_says_how_much_was_understood(case: list[str]) -> None:
    assert parse(case[0]).status == case[1]


# -- any caption -------------------------------------------------------------------------------------------------------

WORDS = """
a the two several man men woman dog dogs couple group lot of people in on with and or , . who that is are being been
wearing holding covered parked red white and blue his its their her them it one another each other there while as to
catch jumps jump ride 's ' on front next top side edge not very quickly up out puts puts watch watching see number 5
snow t-shirt back who whose which has have had can does because !
"""
PIECES = ["dog", "a", "'s", "'S", "\u2019s", "'", "-", "_", ".", " ", "\n", "x" * 59, "y" * 61, "é", "e\u0301", "狗"]
CAPTIONS = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(PIECES), max_size=60).map("".join),
    st.lists(st.sampled_from(WORDS.split()), max_size=25).map(" ".join),
)


@pytest.mark.parametrize("tagger", TAGGERS)
@given(text=CAPTIONS)
@settings(max_examples=300, deadline=None)
def test_analysis_and_graph_are_well_formed(tagger: str, text: str) -> None:
    part = parsed_part(text)
    analysis = parser(tagger).analyse(text)
    end = 0
    for token in analysis.tokens:
        assert text[token.start : token.end] == token.text
        assert not text[end : token.start].strip()
        assert token.tag in lists.TAGS
        end = token.end
    assert not part[end:].strip()
    assert all(link.kind in lists.LINKS and link.head != link.dependent for link in analysis.links)
    graph = extract_graph(text, analysis)
    for elements in (graph.objects, graph.attributes, graph.relations):
        assert all(each.tokens and list(each.tokens) == sorted(set(each.tokens)) for each in elements)
    assert all(graph.objects[said.object].head not in said.tokens for said in graph.attributes)
    assert all(edge.subject != edge.object for edge in graph.relations)
    assert parser(tagger).parse(Item(text)) == graph


@given(CAPTIONS)
@settings(deadline=None)
def test_the_part_that_is_parsed_has_the_words_that_the_text_begins_with(text: str) -> None:
    part = parsed_part(text)
    assert text.startswith(part)
    whole, own = tokenise(text), tokenise(part)
    assert len(own) <= MOST_WORDS + 1  # half a word may end in a mark, which then stands alone
    assert all(end - start <= MOST_LETTERS for _, start, end in own)
    kept = sum(end <= len(part) for _, _, end in whole)
    assert own[:kept] == whole[:kept]
    assert bool(own) == bool(whole)  # models of words have no use for a caption without any


def test_texts_are_parsed_up_to_their_limits() -> None:
    for text in ("", " \n", "dog " * MOST_WORDS, "x" * MOST_LETTERS, f"{'x' * MOST_LETTERS}-"):
        assert parsed_part(text) == text
    words = " ".join(f"w{number}" for number in range(MOST_WORDS))
    assert parsed_part(f"  {words} more") == f"  {words}"
    assert parsed_part("." * 10_000) == "." * MOST_WORDS
    assert parsed_part(f"a dog {'x' * (MOST_LETTERS + 1)} and a cat") == f"a dog {'x' * MOST_LETTERS}"


# -- versions ----------------------------------------------------------------------------------------------------------


def test_the_version_names_rules_tagger_and_packages() -> None:
    own = [f"{name}-{metadata.version(name)}" for name in ("lemminflect", "HanTa")]
    given = ParseSettings(tagger="lexicon", file="graphs.json")
    assert parser_version("hanta") == f"{RULES_VERSION} hanta {own[0]} {own[1]}"
    assert parser_version("lexicon") == f"{RULES_VERSION} lexicon {own[0]}"
    assert parser_version(given.tagger, given.file) == f"foreign/{FOREIGN_VERSION} {parser_version('lexicon')}"


def test_without_hanta_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = Mock(side_effect=("1", metadata.PackageNotFoundError("HanTa"), "1"))
    monkeypatch.setattr("itrpipe.scene_graph.settings.version", versions)
    with pytest.raises(MissingInputError, match=r"pip install HanTa, or choose --tagger lexicon$"):
        RulesParser("hanta")
    assert RulesParser("lexicon").parse(Item("A bus.")).status == "ok"
