"""Edits of scene graphs: what each kind makes of a caption, and what keeps it from that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from itrpipe.scene_graph.build import RulesParser
from itrpipe.scene_graph.graph import Item
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, graphs_table, with_ids, write_graphs
from itrpipe.synthesis.edits import EDITS, Corpus
from itrpipe.synthesis.sentences import apply_edits
from itrpipe.synthesis.tagged import Image, TaggedCaption, tagged_captions

PARSER = RulesParser("lexicon")
CORPUS = (
    *("a blue cup", "a red table", "an orange cup", "a big cup", "a red bowl", "a red house"),
    *("a cup under a table", "a cat chases a dog", "a table on a cup"),
    *("a dog left of a cat", "three dogs", "two cats"),
)
"""What captions of other images say."""


def tagged(text: str) -> TaggedCaption:
    graph = PARSER.parse(Item(text))
    return TaggedCaption(text, graph.tokens, graph.objects, graph.attributes, graph.relations)


def made(kind: str, text: str, *own: str, corpus: tuple[str, ...] = CORPUS) -> set[str]:
    """Sentences of a kind for a caption, beside further captions of its image."""
    caption = tagged(text)
    image = Image([caption, *map(tagged, own)])
    starts = [token.start for token in caption.tokens]
    options = EDITS[kind](caption, image, Corpus([*map(tagged, corpus)], 1))
    return {apply_edits(text, starts, sorted(option.edits())) for option in options}


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("attribute", "a red cup", {"a blue cup", "an orange cup"}),
        ("attribute", "The red cup", {"The blue cup", "The orange cup"}),
        ("attribute", "a small cup", {"a big cup", "a large cup", "a huge cup"}),
        ("exchange", "a red cup on a blue table", {"a blue cup on a red table"}),
        ("object", "a red cup", {"a red bowl"}),
        ("ends", "a dog chases a cat", {"a cat chases a dog"}),
        ("relation", "a cup on a table", {"a cup under a table"}),
        ("count", "two dogs", {"three dogs"}),
    ],
)
def test_one_detail_is_another_that_captions_of_other_images_name(kind: str, text: str, expected: set[str]) -> None:
    assert made(kind, text) == expected
    assert made(kind, text, *expected) == set()  # which captions of its own image say


def test_left_and_right_change_places_where_they_are_sides() -> None:
    assert made("side", "a dog on the right") == {"a dog on the left"}
    assert made("side", "a dog left of a cat") == {"a dog right of a cat"}
    assert made("side", "a dog on the left, a cat on the right") == {"a dog on the right, a cat on the left"}


@pytest.mark.parametrize(
    ("kind", "text", "own"),
    [
        ("attribute", "a red cup", "a cup and a cup"),
        ("attribute", "a red cup", "two cups"),
        ("attribute", "a red cup", "a mug beside a cup"),  # which may both be mugs
        ("attribute", "red cups", "a table"),
        ("exchange", "a red cup on a blue table", "two tables"),
        ("object", "a red cup", "a bowl"),
        ("ends", "a dog chases a cat", "two cats"),
        ("ends", "a cup beside a table", "a dog"),  # holds both ways round
        ("relation", "a cup on a table", "two cups"),
        ("side", "a dog left of a cat", "some dogs"),
        ("side", "a dog left of a cat that has left", "a dog"),
        ("side", "a dog has left", "a dog"),
    ],
)
def test_nothing_is_written_that_may_be_true(kind: str, text: str, own: str) -> None:
    assert made(kind, text, own, corpus=(*CORPUS, "a table beside a cup")) == set()


@pytest.mark.parametrize("kind", EDITS)
def test_what_no_other_caption_says_is_not_written(kind: str) -> None:
    text = "two red dogs and a blue cup on a red table"
    assert made(kind, text, corpus=("a tree",)) == set()


def test_elements_that_a_foreign_parser_found_without_words_are_left_out(tmp_path: Path) -> None:
    graph = PARSER.parse(Item("a red cup on a blue table"))
    bare = replace(graph, attributes=(replace(graph.attributes[0], tokens=()), *graph.attributes[1:]))
    headless = replace(graph, objects=(replace(graph.objects[0], head=-1), *graph.objects[1:]))
    ids = pa.table({"caption_id": ["a", "b"], "image_id": ["i", "i"]})
    write_graphs(tmp_path / SCENE_GRAPHS_FILE, [with_ids(ids, graphs_table([bare, headless], "test"))])
    first, second = tagged_captions(tmp_path, ["a", "b"], [graph.text] * 2)
    assert first.attributes == graph.attributes[1:]
    assert second.objects == second.attributes == second.relations == ()
