"""Edits of scene graphs: what each kind makes of a caption, what keeps it from that, and which captions are its twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from itrpipe.scene_graph.build import RulesParser
from itrpipe.scene_graph.graph import Item
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, graphs_table, with_ids, write_graphs
from itrpipe.synthesis.edits import EDITS, Corpus
from itrpipe.synthesis.rules import RuleMaker, Twins
from itrpipe.synthesis.sentences import apply_edits
from itrpipe.synthesis.tagged import Image, TaggedCaption, tagged_captions
from tests.definitions import sentence_settings
from tests.synthesis.test_masked import split_of

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


RED, BLUE = "a red cup on a table", "a blue cup"


@pytest.mark.parametrize(
    ("kind", "text", "others", "expected"),
    [
        ("attribute", RED, [[BLUE], ["a blue cup on a table"]], "a blue cup on a table"),  # has most in common
        ("attribute", RED, [[BLUE, "a red cup"]], None),  # of which the caption is true as well
        ("attribute", RED, [[BLUE, "a cup beside a cup"]], None),  # of several cups another may be red
        ("object", "a red cup", [["a red bowl", "a mug"]], None),  # which is a cup
        ("count", "two dogs", [["three dogs"]], "three dogs"),
        ("count", "two dogs", [["three dogs", "four dogs"]], None),  # nobody knows
        ("attribute", "a red cup", [["a blue cup", "a black cup"]], None),
        ("relation", "a cup on a table", [["a cup under a table"]], "a cup under a table"),
    ],
)
def test_a_twin_says_what_the_edit_says_and_contradicts_the_caption(
    kind: str, text: str, others: list[list[str]], expected: str | None
) -> None:
    texts = [[text], *others]
    captions = [[tagged(each) for each in own] for own in texts]
    every = [each for own in captions for each in own]
    owners = np.repeat(np.arange(len(texts)), [len(own) for own in texts])
    option = next(iter(EDITS[kind](captions[0][0], Image(captions[0]), Corpus(every, 1))))
    found = Twins(every, owners, lambda row: Image(captions[row])).of(
        captions[0][0], Image(captions[0]), option, np.random.default_rng(0)
    )
    assert (None if found is None else every[found].text) == expected


@pytest.mark.parametrize(
    ("kind", "text", "others", "expected"),
    [
        ("attribute", "on the grass, a small green cup", ["an orange cup"], ("a green cup", "an orange cup")),
        (
            "exchange",
            "his red cup on a blue table",
            ["a red table", "a blue cup"],
            ("red cup and a blue table", "blue cup and a red table"),
        ),
        ("object", "red cups", ["a red bowl"], ("cups", "bowls")),
        ("ends", "a black dog chases a cat", ["a cat chases a dog"], ("a dog chases a cat", "a cat chases a dog")),
        ("relation", "a cup on a red table", ["a cup under a table"], ("a cup on a table", "a cup under a table")),
        ("count", "two white dogs run", ["three dogs"], ("two dogs", "three dogs")),
    ],
)
def test_what_is_told_of_both_images_is_the_detail_alone(
    kind: str, text: str, others: list[str], expected: tuple[str, str]
) -> None:
    caption = tagged(text)
    options = EDITS[kind](caption, Image([caption]), Corpus([caption, *map(tagged, others)], 1))
    assert next(iter(options)).told() == expected


def test_sentences_without_a_twin_are_left_out_and_sides_have_their_mirror_image() -> None:
    texts = ("a dog left of a cat", "a red cup", "a blue cup", "a sign left of a tree")
    captions = list(map(tagged, texts))
    told = sentence_settings("vse-c", rules=("attribute", "side"), keep=2, twins=1)
    maker = RuleMaker(split_of(texts, [0, 1, 2, 3]), captions, Corpus(captions, 1), told)
    sentences, drawn = maker.make(range(4), 0)
    ids = maker.split.image_ids.tolist()
    assert [(each.told, each.twin_told, each.twin_image_id) for each in sentences] == [
        ("a dog left of a cat", "a dog right of a cat", ids[0]),
        ("a red cup", "a blue cup", ids[2]),
        ("a blue cup", "a red cup", ids[1]),
    ]
    assert drawn == {"kept": 3, "no twin": 1}  # a mirror makes signs unreadable
