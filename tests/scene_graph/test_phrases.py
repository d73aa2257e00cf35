"""Phrases and labels of one graph, and the arrays of whole datasets against loops over the graphs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.scene_graph.graph import (
    KINDS,
    Attribute,
    Label,
    Object,
    Phrase,
    Relation,
    SceneGraph,
    Token,
    elements_of,
    phrases_of,
)
from itrpipe.scene_graph.phrases import NONE, CaptionPhrases, MaskCandidates
from tests.scene_graph.shared import write

VOCABULARY = ("dog", "cat", "red", "ball", "catch", "on", "mat", "two", ".")


def words(text: str, lemmas: dict[str, str] | None = None) -> tuple[Token, ...]:
    found, at = [], 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        found.append(Token(word, start, at, "N", (lemmas or {}).get(word, word.lower())))
    return tuple(found)


TEXT = "The plastic frisbee is yellow and caught by two dogs with his tail"
FRISBEE = SceneGraph(
    TEXT,
    words(TEXT, {"dogs": "dog", "caught": "catch", "is": "be"}),
    (Object(0, 2, (1, 2), "plastic frisbee"), Object(1, 9, (9,), "dog"), Object(2, 12, (12,), "tail")),
    (Attribute(0, 0, (4,), "yellow", "copula"), Attribute(1, 1, (8,), "two", "number")),
    (Relation(0, 1, 0, (6,), "catch", "agent"), Relation(1, 1, 2, (11,), "have", "have")),
)
PARTIAL = SceneGraph(
    "a dog runs far",
    words("a dog runs far"),
    (Object(0, 1, (1,), "dog"), Object(1, -1, (), "wide road"), Object(2, 3, (3,), "far")),
    (Attribute(0, 0, (), "fast", "adjective"), Attribute(1, 1, (2,), "grey", "adjective")),
    (Relation(0, 0, 1, (2,), "run on", "verb_prep"), Relation(0, 0, 2, (), "have", "have")),
    "partial",
)


def word_labels(graph: SceneGraph) -> list[Label]:
    return [tuple(token.lemma.split()) for token in graph.tokens]


def parts_of_labels(graphs: Iterable[SceneGraph]) -> set[Label]:
    """The semantic labels of an image, those of all elements and all words of its captions, and their contiguous parts.

    Source: SSAMT, Sec. 3.4, phrase labels.
    """
    labels = {
        label for graph in graphs for label in [*(each.label for each in elements_of(graph)), *word_labels(graph)]
    }
    return {label[i:j] for label in labels for j in range(len(label) + 1) for i in range(j)}


def test_phrases_are_the_words_of_their_elements() -> None:
    found = phrases_of(FRISBEE)
    assert found == [
        Phrase("object", (1, 2), ("plastic", "frisbee")),
        Phrase("object", (9,), ("dog",)),
        Phrase("object", (12,), ("tail",)),
        Phrase("attribute", (2, 4), ("yellow", "frisbee")),
        Phrase("attribute", (8, 9), ("two", "dog")),
        Phrase("relation", (2, 6, 9), ("dog", "catch", "frisbee")),
        Phrase("relation", (9, 11, 12), ("dog", "have", "tail")),
    ]
    again = Attribute(2, 0, (4,), "yellow", "adjective")
    assert phrases_of(replace(FRISBEE, attributes=(*FRISBEE.attributes, again))) == found
    assert phrases_of(FRISBEE, limit=4) == found[:4]
    assert phrases_of(FRISBEE, max_words=9) == [found[0], found[3]]
    assert phrases_of(SceneGraph("", (), (), (), ())) == []


def test_elements_whose_words_the_caption_lacks_are_labels_and_no_phrases() -> None:
    joined = ("dog", "have", "far")  # a relation without a word of its own joins its objects
    assert [phrase.label for phrase in phrases_of(PARTIAL)] == [("dog",), ("far",), joined]
    lacking = {("wide", "road"), ("fast", "dog"), ("grey", "road"), ("dog", "run", "on", "road"), ("run", "on")}
    assert lacking <= parts_of_labels([PARTIAL])


# -- whole datasets ----------------------------------------------------------------------------------------------------


@st.composite
def graphs(draw: st.DrawFn) -> SceneGraph:
    tokens = words(" ".join(draw(st.lists(st.sampled_from(VOCABULARY), max_size=9))))
    heads = [-1, *range(len(tokens))]
    phrases = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=3).map(" ".join)
    places = st.lists(st.sampled_from(heads[1:]), max_size=3, unique=True) if tokens else st.just([])
    places = places.map(lambda chosen: tuple(sorted(chosen)))
    objects = []
    for number in range(draw(st.integers(0, 4))):
        head = draw(st.sampled_from(heads))
        own = tuple(sorted({head, *draw(places)})) if head >= 0 else ()
        objects.append(Object(number, head, own, draw(phrases)))
    ids = st.integers(0, max(len(objects) - 1, 0))
    attributes = [
        Attribute(number, draw(ids), draw(places), draw(phrases), "adjective")
        for number in range(draw(st.integers(0, 4)) if objects else 0)
    ]
    pairs = st.tuples(ids, ids).filter(lambda pair: pair[0] != pair[1])
    relations = [
        Relation(number, *draw(pairs), draw(places), draw(phrases), "verb")
        for number in range(draw(st.integers(0, 4)) if len(objects) > 1 else 0)
    ]
    text = " ".join(token.text for token in tokens)
    return SceneGraph(text, tokens, tuple(objects), tuple(attributes), tuple(relations))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(graphs(), min_size=1, max_size=3), min_size=1, max_size=4),
    st.sampled_from([(64, 32), (4, 3), (70, 2), (200, 1), (1, 32)]),
    st.data(),
)
def test_arrays_say_what_the_graphs_say(
    tmp_path_factory: pytest.TempPathFactory,
    images: list[list[SceneGraph]],
    limits: tuple[int, int],
    data: st.DataObject,
) -> None:
    max_words, max_phrases = limits
    flat = [graph for own in images for graph in own]
    owners = [image for image, own in enumerate(images) for _ in own]
    folder = write(tmp_path_factory.mktemp("graphs"), flat, owners)
    arrays, masks = CaptionPhrases.read(folder, max_words, max_phrases), MaskCandidates.read(folder)
    rows = np.array(data.draw(st.lists(st.integers(0, len(flat) - 1), min_size=1, max_size=6)))
    against = np.array(data.draw(st.lists(st.integers(0, len(images) - 1), min_size=len(rows), max_size=len(rows))))
    batch, (held_words, held_phrases), candidates = (
        arrays.batch(rows),
        arrays.positive(rows, against),
        masks.batch(rows),
    )
    for place, (row, image) in enumerate(zip(rows, against, strict=True)):
        graph, labels = flat[row], parts_of_labels(images[image])
        phrases = phrases_of(graph, max_phrases, max_words)
        own = [token.text.lower() for token in graph.tokens][:max_words]
        assert [arrays.words[word] for word in batch.words[place] if word >= 0] == own
        found = zip(batch.kinds[place], batch.phrase_words[place], strict=True)
        assert [(KINDS[kind], tuple(np.nonzero(mask)[0])) for kind, mask in found if kind >= 0] == [
            (phrase.kind, phrase.tokens) for phrase in phrases
        ]
        assert np.flatnonzero(held_words[place]).tolist() == [
            i for i, label in enumerate(word_labels(graph)[:max_words]) if label in labels
        ]
        assert np.flatnonzero(held_phrases[place]).tolist() == [
            i for i, phrase in enumerate(phrases) if phrase.label in labels
        ]
        elements = [each.tokens for each in (*graph.relations, *graph.attributes, *graph.objects) if each.tokens]
        assert [tuple(np.nonzero(mask)[0]) for mask in candidates[place] if mask.any()] == elements
    assert arrays.longer.tolist() == [len(graph.tokens) > max_words for graph in flat]
    assert arrays.caption_image.tolist() == owners


def test_pieces_find_the_word_they_are_of(tmp_path: Path) -> None:
    masks = MaskCandidates.read(write(tmp_path, [FRISBEE, SceneGraph("", (), (), (), ())], [0, 0]))
    # "The", "plastic frisbee", "frisbee" cut in two, between words, and nothing
    starts, ends = np.array([[0, 4, 12, 15, 3, 0]] * 2), np.array([[3, 19, 15, 19, 4, 0]] * 2)
    assert masks.words_at(np.array([0, 1]), starts, ends).tolist() == [[0, 1, 2, 2, NONE, NONE], [NONE] * 6]
    assert masks.words_at(np.array([1]), starts[:1], ends[:1]).tolist() == [[NONE] * 6]


def test_what_has_no_graph_or_is_out_of_order_is_named(tmp_path: Path) -> None:
    arrays = CaptionPhrases.read(write(tmp_path, [FRISBEE] * 3, [0, 0, 1]))
    assert (len(arrays), arrays.rows(["caption 2", "caption 0"]).tolist()) == (3, [2, 0])
    assert arrays.image_rows(["image 1"]).tolist() == [1]
    with pytest.raises(DataError, match=r"1 of 2 captions .*'other'.*itrpipe parse"):
        arrays.rows(["caption 1", "other"])
    with pytest.raises(DataError, match=r"1 of 1 images .*'other'"):
        arrays.image_rows(["other"])
    with pytest.raises(DataError, match="captions of an image do not follow each other"):
        CaptionPhrases.read(write(tmp_path, [FRISBEE] * 3, [0, 1, 0]))
