"""What is masked together, read from stored graphs, against the graphs themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from itrpipe.errors import DataError
from itrpipe.scene_graph.graph import Attribute, Object, Relation, SceneGraph, Token
from itrpipe.scene_graph.phrases import NONE, MaskCandidates
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, SCHEMA, graphs_table, write_graphs


def words(text: str) -> tuple[Token, ...]:
    found, at = [], 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        found.append(Token(word, start, at, "N", word))
    return tuple(found)


def two_graphs() -> list[SceneGraph]:
    """A caption with all kinds of elements, one foreign element without words, and a caption without any."""
    text = "two ice hockey players look at a ball"
    objects = (Object(0, 3, (1, 2, 3), "ice hockey player"), Object(1, 7, (7,), "ball"), Object(2, -1, (), "crowd"))
    attributes = (Attribute(0, 0, (0,), "two", "number"),)
    relations = (Relation(0, 0, 1, (4, 5), "look at", "verb_prep"),)
    full = SceneGraph(text, words(text), objects, attributes, relations, "partial")
    bare = SceneGraph("so it goes", words("so it goes"), (), (), ())
    return [full, bare]


@pytest.fixture
def candidates(tmp_path: Path) -> MaskCandidates:
    tables = []
    for number, graph in enumerate([*two_graphs(), *two_graphs()]):
        table = graphs_table([graph], "test")
        ids = [pa.array([f"{name}{number}"]) for name in ("caption", "image")]
        tables.append(pa.Table.from_arrays([*ids, *table.columns], schema=SCHEMA))
    write_graphs(tmp_path / SCENE_GRAPHS_FILE, [tables[0], pa.concat_tables(tables[1:])])
    return MaskCandidates.read(tmp_path)


def members(found: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(row).tolist() for row in found if row.any()]


def test_candidates_are_what_elements_add_of_their_own(candidates: MaskCandidates) -> None:
    assert len(candidates) == 4
    rows = candidates.rows(["caption2", "caption1"])
    found = candidates.batch(rows)
    assert found.shape == (2, 4, 8)
    assert members(found[0]) == [[4, 5], [0], [1, 2, 3], [7]]
    assert members(found[1]) == []
    assert candidates.batch(np.array([3])).shape == (1, 0, 3)


def test_pieces_find_the_word_they_are_of(candidates: MaskCandidates) -> None:
    # "two", "ice hockey", "players" cut in two, and nothing
    starts = np.array([[0, 4, 15, 19, 0], [0, 0, 0, 0, 0]])
    ends = np.array([[3, 14, 19, 22, 0], [2, 0, 0, 0, 0]])
    found = candidates.words_at(np.array([0, 1]), starts, ends)
    assert found.tolist() == [[0, 1, 3, 3, NONE], [0, NONE, NONE, NONE, NONE]]


def test_captions_without_a_graph_are_named(candidates: MaskCandidates) -> None:
    with pytest.raises(DataError, match=r"1 of 2 captions have no scene graph.*'other'.*itrpipe parse"):
        candidates.rows(["caption0", "other"])
