"""Whatever the caption, the graph is well formed: any Unicode, and any order of the words that captions are made of."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.scene_graph import words as lists
from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.graph import SceneGraph
from itrpipe.scene_graph.links import KINDS
from itrpipe.scene_graph.rules import RulesParser
from itrpipe.scene_graph.tagger import TAGS

WORDS = """
a the two several man men woman dog dogs couple group lot of people in on with and or , . who that is are being been
wearing holding covered parked red white and blue his its their her them it one another each other there while as to
catch jumps jump ride 's ' on front next top side edge not very quickly up out puts puts watch watching see number 5
snow t-shirt back who whose which has have had can does because !
"""
CAPTIONS = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(WORDS.split()), max_size=25).map(" ".join),
)
TAGGERS = ("hanta", "lexicon")


@cache
def parser(tagger: str) -> RulesParser:
    return RulesParser("lexicon") if tagger == "lexicon" else RulesParser("hanta")


@cache
def other_parser(tagger: str) -> RulesParser:
    """A second one, which has seen other captions."""
    other = RulesParser("lexicon") if tagger == "lexicon" else RulesParser("hanta")
    other.analyse("Men run and a dog barks at the red-hot sun.")
    return other


def parse(text: str, tagger: str) -> SceneGraph:
    return extract_graph(text, parser(tagger).analyse(text))


@pytest.mark.parametrize("tagger", TAGGERS)
@given(text=CAPTIONS)
@settings(max_examples=300)
def test_analysis_is_well_formed(tagger: str, text: str) -> None:
    analysis = parser(tagger).analyse(text)
    end = 0
    for token in analysis.tokens:
        assert text[token.start : token.end] == token.text
        assert token.start >= end
        assert not text[end : token.start].strip()
        assert token.tag in TAGS
        end = token.end
    assert not text[end:].strip()
    for link in analysis.links:
        assert link.kind in KINDS
        assert 0 <= link.head < len(analysis.tokens)
        assert 0 <= link.dependent < len(analysis.tokens)
        assert link.head != link.dependent


@pytest.mark.parametrize("tagger", TAGGERS)
@given(text=CAPTIONS)
@settings(max_examples=300)
def test_graph_is_well_formed(tagger: str, text: str) -> None:
    graph = parse(text, tagger)
    assert graph.text == text
    for elements in (graph.objects, graph.attributes, graph.relations):
        assert [element.id for element in elements] == list(range(len(elements)))
        for element in elements:
            assert element.tokens
            assert list(element.tokens) == sorted(set(element.tokens))
            assert set(element.tokens) <= set(range(len(graph.tokens)))
    assert len({thing.head for thing in graph.objects}) == len(graph.objects)
    for thing in graph.objects:
        assert thing.tokens == tuple(range(thing.tokens[0], thing.head + 1))
        assert graph.tokens[thing.head].text.lower() not in lists.PRONOUNS
    for said in graph.attributes:
        assert said.object in range(len(graph.objects))
        assert graph.objects[said.object].head not in said.tokens
    for edge in graph.relations:
        assert {edge.subject, edge.object} <= set(range(len(graph.objects)))
        assert edge.subject != edge.object
    assert len({(said.object, said.lemma) for said in graph.attributes}) == len(graph.attributes)
    assert len({(edge.subject, edge.lemma, edge.object) for edge in graph.relations}) == len(graph.relations)


@pytest.mark.parametrize("tagger", TAGGERS)
@given(text=CAPTIONS)
@settings(max_examples=50)
def test_the_same_caption_gives_the_same_graph(tagger: str, text: str) -> None:
    assert parse(text, tagger) == extract_graph(text, other_parser(tagger).analyse(text))


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_caption_gives_an_empty_graph(text: str) -> None:
    assert parse(text, "hanta") == SceneGraph(text, (), (), (), (), "ok")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("A dog.", "ok"),
        ("Running quickly.", "failed"),
        ("...", "ok"),
        ("A man in his", "ok"),
        ("jumps", "ok"),
        ("Dark bushes, clouds", "partial"),
    ],
)
def test_status_says_how_much_was_understood(text: str, status: str) -> None:
    assert parse(text, "hanta").status == status
