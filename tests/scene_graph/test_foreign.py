"""Graphs of other parsers: what their files may look like, and how their names are found in the captions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError, MissingInputError
from itrpipe.scene_graph.foreign import ForeignParser, align
from itrpipe.scene_graph.foreign_files import read_foreign
from itrpipe.scene_graph.graph import SceneGraph, Token
from itrpipe.scene_graph.lexicon import lemma_of
from itrpipe.scene_graph.parsing import Item
from itrpipe.scene_graph.rules import RulesParser
from itrpipe.scene_graph.tokenise import tokenise

DOG = "A brown dog jumps over two logs."
CAT = "a cat"
FACTUAL = "( dog , is , brown ) , ( dog , jump over , log ) , ( log , is , 2 )"
DOG_TUPLES = [["dog"], ["dog", "brown"], ["dog", "jump over", "log"], ["log", "2"]]


def token(word: str, start: int, end: int) -> Token:
    lower = word.lower()
    lemmas = [lemma for tag in "NV" if (lemma := lemma_of(lower, tag)) != lower]
    return Token(word, start, end, "N", lemmas[0] if lemmas else lower)


def aligned(text: str, tuples: list[list[str]]) -> SceneGraph:
    return align(text, tuple(token(*place) for place in tokenise(text)), tuples)


def said(graph: SceneGraph) -> dict[str, list[str]]:
    """Lemma -> the words of the caption, of all elements."""
    elements = [*graph.objects, *graph.attributes, *graph.relations]
    return {each.lemma: [graph.tokens[token].text for token in each.tokens] for each in elements}


# Files


def read(path: Path, content: Any, form: str = "") -> list[list[list[str]]]:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return [json.loads(item.given) for item in read_foreign(path, form, ["7", "8"], [DOG, CAT])]


@pytest.mark.parametrize(
    "content",
    [
        {"7": FACTUAL, "8": "( cat )"},
        {DOG: FACTUAL, CAT: "( cat )"},
        [{"caption": f" {DOG} ", "scene_graph": FACTUAL}, {"caption": CAT, "scene_graph": "(cat)"}],
        [{"caption": DOG, "image_id": 1, "graph": FACTUAL}, {"caption": CAT, "image_id": 1, "graph": "( cat )"}],
    ],
    ids=["by id", "by caption", "records", "records with images"],
)
def test_factual_is_read_by_id_or_by_caption(content: Any, tmp_path: Path) -> None:
    dog = [["dog", "is", "brown"], ["dog", "jump over", "log"], ["log", "is", "2"]]
    assert read(tmp_path / "graphs.json", content) == [dog, [["cat"]]]


def test_spice_and_tuples_are_read(tmp_path: Path) -> None:
    spice = [
        {"image_id": 7, "scores": {}, "test_tuples": [{"tuple": each, "truth_value": False} for each in DOG_TUPLES]},
        {"image_id": 8, "scores": {}, "test_tuples": []},
    ]
    assert read(tmp_path / "spice.json", spice) == [DOG_TUPLES, []]
    assert read(tmp_path / "tuples.json", {"7": DOG_TUPLES, "8": []}) == [DOG_TUPLES, []]


def test_json_lines_are_read(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps({"caption_id": key, "graph": [[key]]}) for key in "78")
    assert read(tmp_path / "graphs.jsonl", lines + "\n") == [[["7"]], [["8"]]]


def test_marks_case_and_blanks_are_left_out(tmp_path: Path) -> None:
    text = "( Man , v: hold , coffee  cup ) , ( cup , p:on , table ) , ( log , pv:hold by , man )"
    expected = [["man", "hold", "coffee cup"], ["cup", "on", "table"], ["log", "hold by", "man"]]
    assert read(tmp_path / "graphs.json", {"7": text, "8": ""}) == [expected, []]


@pytest.mark.parametrize("broken", ["( dog , is , ( brown )", "( dog ) and", "dog", "( a , b , c , d )", "( dog , )"])
def test_what_cannot_be_read_is_one_empty_tuple(broken: str, tmp_path: Path) -> None:
    assert read(tmp_path / "graphs.json", {"7": broken, "8": ""})[0].count([]) == 1


@pytest.mark.parametrize(
    ("content", "form", "parts"),
    [
        ({"7": FACTUAL}, "", ["1 of 2 captions", "'8'", "'a cat'"]),
        ({DOG: FACTUAL}, "", ["1 of 2 captions", "'a cat'"]),
        ({"7": FACTUAL, "8": [["cat"]]}, "", ["no format that is known (factual, tuples, spice)", "['cat']"]),
        ({"7": FACTUAL, "8": ""}, "tuples", ["not all of the format tuples", "( dog"]),
        ({"7": 3, "8": 4}, "", ["'3'"]),
        ("{", "", ["not valid JSON"]),
        ("3", "", ["is 3, expected a list or an object"]),
        ([{"caption_id": "7"}], "", ["record 1 needs a key caption_id"]),
        ([["7", FACTUAL]], "", ["record 1 needs a key"]),
        ([{"caption_id": 7, "graph": "( a )"}, {"caption_id": "7", "graph": "( b )"}], "", ["'7' has two different"]),
    ],
)
def test_files_that_cannot_be_used(content: Any, form: str, parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "graphs.json"
    with pytest.raises(DataError) as caught:
        read(path, content, form)
    message = str(caught.value)
    assert all(part in message for part in [str(path), *parts]), message
    assert "\n" not in message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"nowhere\.json"):
        read_foreign(tmp_path / "nowhere.json", "", ["7"], [DOG])


# Words


def test_names_are_found_by_their_lemmas() -> None:
    graph = ForeignParser(RulesParser("lexicon")).parse(Item(DOG, json.dumps(DOG_TUPLES)))
    assert graph.status == "ok"
    assert said(graph) == {
        "dog": ["dog"],
        "log": ["logs"],
        "brown": ["brown"],
        "2": ["two"],
        "jump over": ["jumps", "over"],
    }
    assert [(each.subject, each.object, each.kind) for each in graph.relations] == [(0, 1, "verb_prep")]
    assert [(each.object, each.kind) for each in graph.attributes] == [(0, "adjective"), (1, "number")]


def test_is_makes_an_attribute() -> None:
    with_is = aligned(DOG, [["dog", "is", "brown"], ["log"]])
    assert with_is == aligned(DOG, [["dog", "brown"], ["log"]])
    assert [each.lemma for each in with_is.attributes] == ["brown"]


def test_each_word_belongs_to_one_element_and_the_leftmost_comes_first() -> None:
    graph = aligned("a red dog and a red cat", [["dog", "red"], ["cat", "red"]])
    assert [each.tokens for each in graph.attributes] == [(1,), (5,)]


def test_what_is_said_once_of_two_is_shared() -> None:
    graph = aligned(
        "red shirt and pants on a chair",
        [["shirt", "red"], ["pants", "red"], ["shirt", "on", "chair"], ["pants", "on", "chair"]],
    )
    assert graph.status == "ok"
    assert [each.tokens for each in graph.attributes] == [(0,), (0,)]
    assert [each.tokens for each in graph.relations] == [(4,), (4,)]


def test_a_predicate_may_have_words_between_its_own_and_prefers_none() -> None:
    assert said(aligned("man picks a cup up", [["man", "pick up", "cup"]]))["pick up"] == ["picks", "up"]
    tight = aligned("man picks and picks up cup", [["man", "pick up", "cup"]])
    assert tight.relations[0].tokens == (3, 4)


def test_compounds_are_contiguous_and_their_last_word_is_the_head() -> None:
    graph = aligned("man throws soccer ball", [["man", "throw", "soccer ball"]])
    assert (graph.objects[1].tokens, graph.objects[1].head) == ((2, 3), 3)
    assert aligned("ball of soccer", [["soccer ball"]]).objects[0].tokens == ()


def test_what_is_not_in_the_caption_is_kept_without_words() -> None:
    graph = aligned(CAT, [["cat", "grey"], ["cat", "sit on", "mat"]])
    assert graph.status == "partial"
    assert said(graph) == {"cat": ["cat"], "mat": [], "grey": [], "sit on": []}
    assert graph.objects[1].head == -1


def test_an_object_in_relation_to_its_own_name_is_a_second_one() -> None:
    graph = aligned("a dog near another dog", [["dog", "near", "dog"]])
    assert [each.head for each in graph.objects] == [1, 4]
    assert (graph.relations[0].subject, graph.relations[0].object) == (0, 1)


@pytest.mark.parametrize(
    ("tuples", "status"), [([], "ok"), ([[]], "failed"), ([["cat"], []], "partial"), ([["cat"]], "ok")]
)
def test_the_status_says_whether_everything_was_read(tuples: list[list[str]], status: str) -> None:
    assert aligned(CAT, tuples).status == status


NAMES = st.lists(st.sampled_from(["dog", "cat", "red", "on", "jump", "two"]), min_size=1, max_size=2).map(" ".join)


@given(
    st.text("adogctre \n狗é.", max_size=30) | st.just("two red dogs jump on a red cat"),
    st.lists(st.lists(NAMES, max_size=3), max_size=6),
)
def test_any_tuples_make_a_legal_graph(text: str, tuples: list[list[str]]) -> None:
    graph = aligned(text, tuples)
    count = len(graph.objects)
    assert [each.id for each in graph.objects] == list(range(count))
    assert all(0 <= each.object < count for each in graph.attributes)
    assert all(0 <= each.subject != each.object < count and each.subject < count for each in graph.relations)
    for each in (*graph.objects, *graph.attributes, *graph.relations):
        assert list(each.tokens) == sorted(set(each.tokens))
        assert all(0 <= number < len(graph.tokens) for number in each.tokens)
    assert len({number for each in graph.objects for number in each.tokens}) == sum(
        len(each.tokens) for each in graph.objects
    )
