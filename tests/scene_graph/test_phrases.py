"""Phrases of captions, and what of them is masked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from itrpipe.errors import DataError
from itrpipe.scene_graph.graph import Attribute, Object, Relation, SceneGraph, Token
from itrpipe.scene_graph.phrases import KINDS, NONE, CaptionPhrases, MaskCandidates
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


def read(folder: Path, graph: SceneGraph, *limits: int) -> list[tuple[str, list[int]]]:
    arrays = CaptionPhrases.read(write(folder, [graph], [0]), *(limits or (64,)))
    return [(KINDS[kind], arrays.tokens[row].tolist()) for row, kind in enumerate(arrays.kinds[0])]


def test_phrases_are_the_words_of_their_elements(tmp_path: Path) -> None:
    found = read(tmp_path, FRISBEE)
    assert found == [
        ("object", [1, 2]),
        ("object", [9]),
        ("object", [12]),
        ("attribute", [2, 4]),
        ("attribute", [8, 9]),
        ("relation", [2, 6, 9]),
        ("relation", [9, 11, 12]),
    ]
    again = Attribute(2, 0, (4,), "yellow", "adjective")
    assert read(tmp_path, replace(FRISBEE, attributes=(*FRISBEE.attributes, again))) == found
    assert read(tmp_path, FRISBEE, 64, 4) == found[:4]
    assert read(tmp_path, FRISBEE, 9) == [found[0], found[3]]
    assert read(tmp_path, SceneGraph("", (), (), (), ())) == []


def test_elements_whose_words_the_caption_lacks_are_no_phrases(tmp_path: Path) -> None:
    # A relation without a word of its own joins its objects.
    assert read(tmp_path, PARTIAL) == [("object", [1]), ("object", [3]), ("relation", [1, 3])]


# -- whole datasets ----------------------------------------------------------------------------------------------------


def test_pieces_find_the_word_they_are_of(tmp_path: Path) -> None:
    masks = MaskCandidates.read(write(tmp_path, [FRISBEE, SceneGraph("", (), (), (), ())], [0, 0]))
    # "The", "plastic frisbee", "frisbee" cut in two, between words, and nothing
    starts, ends = np.array([[0, 4, 12, 15, 3, 0]] * 2), np.array([[3, 19, 15, 19, 4, 0]] * 2)
    assert masks.words_at(np.array([0, 1]), starts, ends).tolist() == [[0, 1, 2, 2, NONE, NONE], [NONE] * 6]
    assert masks.words_at(np.array([1]), starts[:1], ends[:1]).tolist() == [[NONE] * 6]


def test_what_has_no_graph_is_named(tmp_path: Path) -> None:
    arrays = CaptionPhrases.read(write(tmp_path, [FRISBEE] * 3, [0, 0, 1]), 64)
    assert (len(arrays.caption_ids), arrays.rows(["caption 2", "caption 0"]).tolist()) == (3, [2, 0])
    assert arrays.image_rows(["image 1"]).tolist() == [1]
    with pytest.raises(DataError, match=r"1 of 2 captions .*'other'.*itrpipe parse"):
        arrays.rows(["caption 1", "other"])
    with pytest.raises(DataError, match=r"1 of 1 images .*'other'"):
        arrays.image_rows(["other"])
