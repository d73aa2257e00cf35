"""Phrases and labels: of one graph by the rules, and of whole datasets against the same rules."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.scene_graph.graph import Attribute, Object, Relation, SceneGraph, Token
from itrpipe.scene_graph.phrases import (
    KINDS,
    CaptionPhrases,
    Label,
    Phrase,
    elements_of,
    phrases_of,
)
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, SCHEMA, graphs_table, write_graphs

VOCABULARY = ("dog", "cat", "red", "ball", "catch", "on", "mat", "two", ".")


def word_labels(graph: SceneGraph) -> list[Label]:
    """The label of every word."""
    return [tuple(token.lemma.split()) for token in graph.tokens]


def label_set(graphs: Iterable[SceneGraph]) -> set[Label]:
    """The semantic labels of an image: those of all elements and all words of its captions.

    Source: SSAMT, Sec. 3.4, phrase labels.
    """
    labels: set[Label] = set()
    for graph in graphs:
        labels.update(phrase.label for phrase in elements_of(graph))
        labels.update(word_labels(graph))
    return labels


def is_positive(label: Label, labels: Collection[Label]) -> bool:
    """Whether a label is among an image's, or a contiguous part of one of them."""
    size = len(label)
    return any(label == other[at : at + size] for other in labels for at in range(len(other) - size + 1))


def words(text: str, lemmas: dict[str, str] | None = None) -> tuple[Token, ...]:
    found, at = [], 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        found.append(Token(word, start, at, "N", (lemmas or {}).get(word, word.lower())))
    return tuple(found)


def frisbee() -> SceneGraph:
    """A graph with a compound, a predicative attribute, a passive and a possessive pronoun."""
    text = "The plastic frisbee is yellow and caught by two dogs with his tail"
    return SceneGraph(
        text,
        words(text, {"dogs": "dog", "caught": "catch", "is": "be"}),
        (
            Object(0, 2, (1, 2), "plastic frisbee"),
            Object(1, 9, (9,), "dog"),
            Object(2, 12, (12,), "tail"),
        ),
        (Attribute(0, 0, (4,), "yellow", "copula"), Attribute(1, 1, (8,), "two", "number")),
        (Relation(0, 1, 0, (6,), "catch", "agent"), Relation(1, 1, 2, (11,), "have", "have")),
    )


# One graph


def test_phrases_are_the_words_of_their_elements() -> None:
    assert phrases_of(frisbee()) == [
        Phrase("object", (1, 2), ("plastic", "frisbee")),
        Phrase("object", (9,), ("dog",)),
        Phrase("object", (12,), ("tail",)),
        Phrase("attribute", (2, 4), ("yellow", "frisbee")),
        Phrase("attribute", (8, 9), ("two", "dog")),
        Phrase("relation", (2, 6, 9), ("dog", "catch", "frisbee")),
        Phrase("relation", (9, 11, 12), ("dog", "have", "tail")),
    ]


def test_the_same_words_count_once_per_kind_and_no_more_than_are_wanted() -> None:
    graph = frisbee()
    again = Attribute(2, 0, (4,), "yellow", "adjective")
    doubled = SceneGraph(
        graph.text, graph.tokens, graph.objects, (*graph.attributes, again), graph.relations, graph.status
    )
    assert phrases_of(doubled) == phrases_of(graph)
    assert phrases_of(graph, limit=4) == phrases_of(graph)[:4]
    assert [phrase.label for phrase in phrases_of(graph, max_words=9)] == [
        ("plastic", "frisbee"),
        ("yellow", "frisbee"),
    ]


def test_elements_whose_words_the_caption_lacks_are_labels_and_no_phrases() -> None:
    tokens = words("a dog runs")
    graph = SceneGraph(
        "a dog runs",
        tokens,
        (Object(0, 1, (1,), "dog"), Object(1, -1, (), "wide road")),
        (Attribute(0, 0, (), "fast", "adjective"), Attribute(1, 1, (2,), "grey", "adjective")),
        (Relation(0, 0, 1, (2,), "run on", "verb_prep"),),
        "partial",
    )
    assert [phrase.label for phrase in phrases_of(graph)] == [("dog",)]
    assert {("wide", "road"), ("fast", "dog"), ("grey", "road"), ("dog", "run", "on", "road")} <= label_set([graph])


def test_a_relation_without_a_word_of_its_own_joins_its_objects() -> None:
    graph = SceneGraph(
        "red dog ball",
        words("red dog ball"),
        (Object(0, 1, (1,), "dog"), Object(1, 2, (2,), "ball")),
        (),
        (Relation(0, 0, 1, (), "have", "have"),),
        "partial",
    )
    assert Phrase("relation", (1, 2), ("dog", "have", "ball")) in phrases_of(graph)


def test_an_empty_graph_has_neither() -> None:
    assert phrases_of(SceneGraph("", (), (), (), ())) == []
    assert label_set([SceneGraph("", (), (), (), (), "failed")]) == set()


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (("dog",), True),
        (("catch", "frisbee"), True),
        (("dog", "catch", "frisbee"), True),
        (("dog", "frisbee"), False),
        (("frisbee", "catch"), False),
        (("cat",), False),
        (("dog", "catch", "frisbee", "dog"), False),
        (("the",), True),
    ],
)
def test_a_label_is_positive_if_it_is_a_contiguous_part(label: tuple[str, ...], expected: bool) -> None:
    assert is_positive(label, label_set([frisbee()])) is expected


# Whole datasets


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


def write(folder: Path, images: list[list[SceneGraph]], row_group: int = 3) -> Path:
    flat = [graph for own in images for graph in own]
    owner = [f"image {row}" for row, own in enumerate(images) for _ in own]
    ids = [f"caption {row}" for row in range(len(flat))]
    table = graphs_table(flat, "test/1")
    table = pa.Table.from_arrays(
        [pa.array(ids, pa.string()), pa.array(owner, pa.string()), *table.columns], schema=SCHEMA
    )
    write_graphs(
        folder / SCENE_GRAPHS_FILE, [table.slice(at, row_group) for at in range(0, len(flat), row_group)] or [table]
    )
    return folder


LIMITS = st.sampled_from([(64, 32), (4, 3), (70, 2), (200, 1), (1, 32)])


@settings(max_examples=150)
@given(st.lists(st.lists(graphs(), min_size=1, max_size=3), min_size=1, max_size=4), LIMITS, st.data())
def test_arrays_say_what_the_graphs_say(
    tmp_path_factory: pytest.TempPathFactory,
    images: list[list[SceneGraph]],
    limits: tuple[int, int],
    data: st.DataObject,
) -> None:
    max_words, max_phrases = limits
    arrays = CaptionPhrases.read(write(tmp_path_factory.mktemp("graphs"), images), max_words, max_phrases)
    flat = [graph for own in images for graph in own]
    rows = np.array(data.draw(st.lists(st.integers(0, len(flat) - 1), min_size=1, max_size=6)))
    against = np.array(data.draw(st.lists(st.integers(0, len(images) - 1), min_size=len(rows), max_size=len(rows))))
    batch = arrays.batch(rows)
    positive_words, positive_phrases = arrays.positive(rows, against)
    for place, (row, image) in enumerate(zip(rows, against, strict=True)):
        graph = flat[row]
        labels = label_set(images[image])
        expected = [token.text.lower() for token in graph.tokens][:max_words]
        assert [arrays.words[word] for word in batch.words[place] if word >= 0] == expected
        phrases = phrases_of(graph, max_phrases, max_words)
        found = [
            (KINDS[kind], tuple(np.nonzero(mask)[0]))
            for kind, mask in zip(batch.kinds[place], batch.phrase_words[place], strict=True)
            if kind >= 0
        ]
        assert found == [(phrase.kind, phrase.tokens) for phrase in phrases]
        wanted = [is_positive(label, labels) for label in word_labels(graph)[:max_words]]
        assert positive_words[place].tolist() == wanted + [False] * (positive_words.shape[1] - len(wanted))
        wanted = [is_positive(phrase.label, labels) for phrase in phrases]
        assert positive_phrases[place].tolist() == wanted + [False] * (positive_phrases.shape[1] - len(wanted))
    assert arrays.longer.tolist() == [len(graph.tokens) > max_words for graph in flat]


def test_captions_of_an_image_that_do_not_follow_each_other_are_refused(tmp_path: Path) -> None:
    table = graphs_table([frisbee()] * 3, "test/1")
    ids = [pa.array(list(names), pa.string()) for names in ("123", "aba")]
    write_graphs(tmp_path / SCENE_GRAPHS_FILE, [pa.Table.from_arrays([*ids, *table.columns], schema=SCHEMA)])
    with pytest.raises(DataError, match="captions of an image do not follow each other"):
        CaptionPhrases.read(tmp_path)
