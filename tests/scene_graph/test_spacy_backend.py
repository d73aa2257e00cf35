"""spaCy's dependencies as links: documents written by hand, because models are no packages of an index."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from itrpipe.errors import MissingInputError, UsageError
from itrpipe.scene_graph import spacy_backend
from itrpipe.scene_graph.extract import extract_graph
from itrpipe.scene_graph.links import KINDS
from itrpipe.scene_graph.spacy_backend import SpacyBackend, analysis_of, check_labels, spacy_version
from tests.scene_graph.scoring import facts_of

# One word a line: text, lemma, tag, label and number of its head. As en_core_web_sm is documented to label them.
CAPTIONS = {
    "A dog in a red sweater is jumping over two logs .": """
        A a DT det 1
        dog dog NN nsubj 7
        in in IN prep 1
        a a DT det 5
        red red JJ amod 5
        sweater sweater NN pobj 2
        is be VBZ aux 7
        jumping jump VBG ROOT 7
        over over IN prep 7
        two two CD nummod 10
        logs log NNS pobj 8
        . . . punct 7""",
    "The ball was thrown by a tall boy": """
        The the DT det 1
        ball ball NN nsubjpass 3
        was be VBD auxpass 3
        thrown throw VBN ROOT 3
        by by IN agent 3
        a a DT det 7
        tall tall JJ amod 7
        boy boy NN pobj 4""",
    "men and women sitting next to a car": """
        men man NNS ROOT 0
        and and CC cc 0
        women woman NNS conj 0
        sitting sit VBG acl 0
        next next RB advmod 3
        to to IN prep 4
        a a DT det 7
        car car NN pobj 5""",
    "a man 's dog , which is black and white , stands in front of his house": """
        a a DT det 1
        man man NN poss 3
        's 's POS case 1
        dog dog NN nsubj 11
        , , , punct 3
        which which WDT nsubj 6
        is be VBZ relcl 3
        black black JJ acomp 6
        and and CC cc 7
        white white JJ conj 7
        , , , punct 3
        stands stand VBZ ROOT 11
        in in IN prep 11
        front front NN pobj 12
        of of IN prep 13
        his his PRP$ poss 16
        house house NN pobj 14""",
    "a soccer player seated on a bench puts on gloves while smiling": """
        a a DT det 2
        soccer soccer NN compound 2
        player player NN nsubj 7
        seated seat VBN acl 2
        on on IN prep 3
        a a DT det 6
        bench bench NN pobj 4
        puts put VBZ ROOT 7
        on on RP prt 7
        gloves glove NNS dobj 7
        while while IN mark 11
        smiling smile VBG advcl 7""",
    "there is a kite that a child holds": """
        there there EX expl 1
        is be VBZ ROOT 1
        a a DT det 3
        kite kite NN attr 1
        that that WDT dobj 7
        a a DT det 6
        child child NN nsubj 7
        holds hold VBZ relcl 3""",
    "a boy and a girl who run and laugh": """
        a a DT det 1
        boy boy NN ROOT 1
        and and CC cc 1
        a a DT det 4
        girl girl NN conj 1
        who who WP nsubj 6
        run run VBP relcl 4
        and and CC cc 6
        laugh laugh VBP conj 6""",
    "a dog is washed and brushed by girls": """
        a a DT det 1
        dog dog NN nsubjpass 3
        is be VBZ auxpass 3
        washed wash VBN ROOT 3
        and and CC cc 3
        brushed brush VBN conj 3
        by by IN agent 5
        girls girl NNS pobj 6""",
    "a cat is a pet": """
        a a DT det 1
        cat cat NN nsubj 2
        is be VBZ ROOT 2
        a a DT det 4
        pet pet NN attr 2""",
    "a man climbs out of a boat": """
        a a DT det 1
        man man NN nsubj 2
        climbs climb VBZ ROOT 2
        out out IN prep 2
        of of IN prep 3
        a a DT det 6
        boat boat NN pobj 4""",
    "dogs tired of a game are close to a goal": """
        dogs dog NNS nsubj 5
        tired tired JJ amod 0
        of of IN prep 1
        a a DT det 4
        game game NN pobj 2
        are be VBP ROOT 5
        close close JJ acomp 5
        to to IN prep 6
        a a DT det 9
        goal goal NN pobj 7""",
}
EXPECTED: dict[str, tuple[set[Any], set[Any], set[Any]]] = {
    "A dog in a red sweater is jumping over two logs .": (
        {"dog", "sweater", "log"},
        {("sweater", "red"), ("log", "two")},
        {("dog", "in", "sweater"), ("dog", "jump over", "log")},
    ),
    "The ball was thrown by a tall boy": ({"ball", "boy"}, {("boy", "tall")}, {("boy", "throw", "ball")}),
    "men and women sitting next to a car": (
        {"man", "woman", "car"},
        set(),
        {("man", "sit next to", "car"), ("woman", "sit next to", "car")},
    ),
    "a man 's dog , which is black and white , stands in front of his house": (
        {"man", "dog", "house"},
        {("dog", "black"), ("dog", "white")},
        {("man", "have", "dog"), ("dog", "stand in front of", "house"), ("man", "have", "house")},
    ),
    "a soccer player seated on a bench puts on gloves while smiling": (
        {"player", "bench", "glove"},
        {("player", "soccer"), ("player", "smile")},
        {("player", "seat on", "bench"), ("player", "put on", "glove")},
    ),
    "there is a kite that a child holds": ({"kite", "child"}, set(), {("child", "hold", "kite")}),
    "a boy and a girl who run and laugh": ({"boy", "girl"}, {("girl", "run"), ("girl", "laugh")}, set()),
    "a dog is washed and brushed by girls": ({"dog", "girl"}, {("dog", "wash")}, {("girl", "brush", "dog")}),
    "a cat is a pet": ({"cat"}, {("cat", "pet")}, set()),
    "a man climbs out of a boat": ({"man", "boat"}, set(), {("man", "climb out of", "boat")}),
    "dogs tired of a game are close to a goal": (
        {"dog", "game", "goal"},
        {("dog", "tired")},
        {("dog", "of", "game"), ("dog", "close to", "goal")},
    ),
}


@dataclass(eq=False)
class StandIn:
    """A token with the attributes of spaCy's that are read."""

    i: int
    text: str
    idx: int
    lemma_: str = ""
    tag_: str = "NN"
    dep_: str = "dep"
    is_space: bool = False
    head: Any = field(default=None, repr=False)


def document(text: str) -> list[StandIn]:
    rows = [line.split() for line in CAPTIONS[text].strip().splitlines()]
    tokens, at = [], 0
    for number, (word, lemma, tag, label, _) in enumerate(rows):
        at = text.index(word, at)
        tokens.append(StandIn(number, word, at, lemma, tag, label))
        at += len(word)
    for token, row in zip(tokens, rows, strict=True):
        token.head = tokens[int(row[4])]
    return tokens


@pytest.mark.parametrize("text", CAPTIONS)
def test_a_document_becomes_the_graph_that_people_would_draw(text: str) -> None:
    analysis = analysis_of(document(text))
    assert all(text[token.start : token.end] == token.text for token in analysis.tokens)
    assert {link.kind for link in analysis.links} <= KINDS.keys()
    assert len(set(analysis.links)) == len(analysis.links)
    assert tuple(map(set, facts_of(extract_graph(text, analysis)))) == EXPECTED[text]


def test_white_space_that_spacy_takes_for_a_word_is_left_out() -> None:
    dog = StandIn(1, "dog", 2, "dog", "NN", "ROOT")
    blank = StandIn(0, "  ", 0, "  ", "_SP", "dep", is_space=True, head=dog)
    red = StandIn(2, "red", 6, "red", "JJ", "amod", head=blank)
    dog.head = dog
    analysis = analysis_of([blank, dog, red])
    assert [(token.text, token.start) for token in analysis.tokens] == [("dog", 2), ("red", 6)]
    assert [(link.kind, link.head, link.dependent) for link in analysis.links] == [("A", 0, 1)]


def test_nothing_and_no_noun() -> None:
    assert analysis_of([]).status == "ok"
    verb = StandIn(0, "go", 0, "go", "VB", "ROOT")
    verb.head = verb
    assert analysis_of([verb]).status == "failed"


def test_a_model_with_other_labels_is_refused() -> None:
    check_labels("en_core_web_sm", ["nsubj", "nsubjpass", "dobj", "pobj", "prep", "amod", "det"])
    with pytest.raises(
        UsageError, match=r"de_core_news_sm of spaCy has no dependencies called amod, dobj, .*en_core_web_sm"
    ):
        check_labels("de_core_news_sm", ["nsubj", "obj", "obl", "nsubj:pass"])
    with pytest.raises(UsageError, match="nsubj"):
        check_labels("blank", [])


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(spacy_backend, "version", version)


def test_what_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(MissingInputError, match=r"pip install spacy, or leave out --backend"):
        spacy_version("en_core_web_sm")
    installed(monkeypatch, spacy="3.8.0")
    with pytest.raises(MissingInputError, match=r"python -m spacy download en_core_web_md, or .*--set model=NAME"):
        spacy_version("en_core_web_md")


def test_the_version_names_library_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, spacy="3.8.0", en_core_web_sm="3.8.1")
    assert spacy_version("en_core_web_sm") == "spacy/1 spacy-3.8.0 en_core_web_sm-3.8.1"


def test_a_model_is_loaded_checked_and_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    text = next(iter(CAPTIONS))
    labels = ["nsubj", "nsubjpass", "dobj", "pobj", "prep", "amod"]

    class Model:
        def __init__(self) -> None:
            self.pipe_labels = {"parser": labels}

        def __call__(self, asked: str) -> list[StandIn]:
            return document(asked)

    installed(monkeypatch, spacy="3.8.0", en_core_web_sm="3.8.1")
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=lambda model, exclude: Model()))
    backend = SpacyBackend("en_core_web_sm")
    assert backend.version == spacy_version("en_core_web_sm")
    assert backend.analyse(text) == analysis_of(document(text))
    labels.remove("dobj")
    with pytest.raises(UsageError, match="called dobj"):
        SpacyBackend("en_core_web_sm")


@pytest.mark.skipif(importlib.util.find_spec("spacy") is None, reason="needs spaCy")
@pytest.mark.parametrize("text", CAPTIONS)
def test_documents_of_spacy_itself_are_read_alike(text: str) -> None:
    from spacy.tokens import Doc  # type: ignore[import-not-found]
    from spacy.vocab import Vocab  # type: ignore[import-not-found]

    tokens = document(text)
    doc = Doc(
        Vocab(),
        words=[token.text for token in tokens],
        heads=[token.head.i for token in tokens],
        deps=[token.dep_ for token in tokens],
        tags=[token.tag_ for token in tokens],
        lemmas=[token.lemma_ for token in tokens],
    )
    assert doc.text.rstrip() == text
    assert analysis_of(doc) == analysis_of(tokens)
