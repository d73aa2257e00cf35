"""Sentences by rules: what each makes of a caption, what keeps it from that, their twins, and what they made before."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.errors import UsageError
from itrpipe.scene_graph.build import RulesParser
from itrpipe.scene_graph.graph import Item
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, graphs_table, with_ids, write_graphs
from itrpipe.scenes.build import generate
from itrpipe.synthesis import english
from itrpipe.synthesis.edits import RULES, Corpus
from itrpipe.synthesis.rules import RuleMaker
from itrpipe.synthesis.sentences import apply_edits
from itrpipe.synthesis.tagged import Image, Option, TaggedCaption, tagged_captions
from tests.definitions import sentence_settings
from tests.synthesis.test_masked import GOLDEN, digest, split_of

PARSER = RulesParser("lexicon")
VSE_C = ("nouns", "numerals", "relations")
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
    options = RULES[kind](caption, image, Corpus([*map(tagged, corpus)], 1))
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
        ("side", "a train that has just left the station", "a train"),
        ("side", "a cup with the right amount of food", "a cup"),
        ("side", "a car gives a dog the right of way", "a car"),
    ],
)
def test_nothing_is_written_that_may_be_true(kind: str, text: str, own: str) -> None:
    assert made(kind, text, own, corpus=(*CORPUS, "a table beside a cup")) == set()


@pytest.mark.parametrize("kind", [rule for rule in RULES if rule not in VSE_C])
def test_what_no_other_caption_says_is_not_written(kind: str) -> None:
    text = "two red dogs and a blue cup on a red table"
    assert made(kind, text, corpus=("a tree",)) == set()


def test_elements_that_a_foreign_parser_found_without_words_are_left_out(tmp_path: Path) -> None:
    graph = PARSER.parse(Item("a red cup on a blue table"))
    bare = replace(graph, attributes=(replace(graph.attributes[0], tokens=()), *graph.attributes[1:]))
    headless = replace(graph, objects=(replace(graph.objects[0], head=-1), *graph.objects[1:]))
    ids = pa.table({"caption_id": ["a", "b"], "image_id": ["i", "i"]})
    write_graphs(tmp_path / SCENE_GRAPHS_FILE, [with_ids(ids, graphs_table([bare, headless]))])
    first, second = tagged_captions(tmp_path, ["a", "b"])
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
    texts = [text, *itertools.chain.from_iterable(others)]
    owners = [0, *(number for number, own in enumerate(others, 1) for _ in own)]
    captions = list(map(tagged, texts))
    corpus, told = Corpus(captions, 1), sentence_settings("vse-c", rules=(kind,), twins=1)
    option = next(iter(RULES[kind](captions[0], Image(captions[:1]), corpus)))
    maker = RuleMaker(split_of(texts, owners), captions, corpus, told)
    found = maker._twin(0, option, "", np.random.default_rng(0))
    assert (None if found is None else texts[owners.index(int(found[0]))]) == expected


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
def test_what_is_details_of_both_images_is_the_detail_alone(
    kind: str, text: str, others: list[str], expected: tuple[str, str]
) -> None:
    caption = tagged(text)
    options = RULES[kind](caption, Image([caption]), Corpus([caption, *map(tagged, others)], 1))
    assert next(iter(options)).details == expected


def test_sentences_without_a_twin_are_left_out_and_sides_have_their_mirror_image() -> None:
    texts = ("a dog left of a cat", "a red cup", "a blue cup", "a sign left of a tree")
    captions = list(map(tagged, texts))
    told = sentence_settings("vse-c", rules=("attribute", "side"), keep=2, twins=1)
    maker = RuleMaker(split_of(texts, [0, 1, 2, 3]), captions, Corpus(captions, 1), told)
    sentences, drawn = maker.make(range(4), 0)
    ids = maker.split.image_ids.tolist()
    assert [(each.detail, each.twin_detail, each.twin_image_id) for each in sentences] == [
        ("a dog left of a cat", "a dog right of a cat", ids[0]),
        ("a red cup", "a blue cup", ids[2]),
        ("a blue cup", "a red cup", ids[1]),
    ]
    assert drawn == {"kept": 3, "no twin": 1}  # a mirror makes signs unreadable


WORDS = ("a", "an", "two", "3", "dog", "dogs", "red", "and", "with", "on", "under", ",", ".", "is", "running", "The")


def analysed(text: str) -> TaggedCaption:
    return TaggedCaption(text, PARSER.analyse(text).tokens)


def sentences(text: str, options: Iterable[Option]) -> set[str]:
    starts = [token.start for token in analysed(text).tokens]
    return {apply_edits(text, starts, sorted(option.edits())) for option in options}


def test_nouns_are_counted_by_lemma_and_rare_ones_are_not_used() -> None:
    captions = list(map(analysed, ["a dog", "three dogs", "a cat", "his idea", "an idea"]))
    assert Corpus(captions, 2).nouns == ["dog"]
    with pytest.raises(UsageError, match="none of 3 nouns occurs 9 times"):
        assert Corpus(captions, 9).nouns


@settings(max_examples=40)
@given(st.lists(st.sampled_from(WORDS), max_size=9))
def test_every_rule_takes_any_caption_and_changes_it(words: list[str]) -> None:
    caption = analysed(text := " ".join(words))
    known = Corpus(list(map(analysed, ("a cat, a horse and an elephant",))), 1)
    for rule in VSE_C:
        options = RULES[rule](caption, Image([caption]), known)
        assert text not in sentences(text, options)


def rule_maker(rules: Sequence[str], keep: int, texts: tuple[str, ...], images: list[int]) -> RuleMaker:
    captions = list(map(analysed, texts))
    told = sentence_settings("vse-c", rules=rules, keep=keep, seed=3)
    return RuleMaker(split_of(texts, images), captions, Corpus(captions, 1), told)


def test_what_captions_of_the_image_say_is_left_out() -> None:
    found, drawn = rule_maker(("numerals",), 99, ("a dog", "two dogs"), [0, 0]).make(range(1), 0)
    others, _ = rule_maker(("numerals",), 99, ("a dog", "two dogs"), [0, 1]).make(range(1), 0)
    assert drawn == {"false negative": 1, "kept": len(found)}
    assert {each.text for each in others} - {each.text for each in found} == {"two dogs"}
    texts = ("a dog on grass", "a cat on grass", "a horse runs")
    together, _ = rule_maker(("nouns",), 99, texts, [0, 0, 1]).make(range(1), 0)
    apart, _ = rule_maker(("nouns",), 99, texts, [0, 1, 2]).make(range(1), 0)
    assert {"a cat on grass", "a horse on grass"} <= {each.text for each in apart}
    assert not any("cat" in each.text for each in together)


def test_blocks_draw_for_themselves_and_each_rule_so_many() -> None:
    """Whatever was made before, as a resumed run has not."""
    texts, images = ("two dogs run on a mat",) * 2, [0, 1]

    def drawn(maker: RuleMaker, row: int, block: int) -> list[str]:
        return [each.text for each in maker.make(range(row, row + 1), block)[0]]

    maker = rule_maker(("numerals",), 3, texts, images)
    first, second = drawn(maker, 0, 0), drawn(maker, 0, 1)
    assert len(first) == 3
    assert first != second
    assert drawn(maker, 1, 0) == drawn(rule_maker(("numerals",), 3, texts, images), 0, 0) == first
    made, counts = rule_maker(VSE_C, 3, texts, images).make(range(1), 0)
    assert counts == {"kept": len(made)}
    assert 3 < len({each.text for each in made}) == len(made) <= 9
    assert all(each.score is each.log_probability is None for each in made)


def test_words_of_english() -> None:
    words = ["apple", "unicycle", "hour", "horse", "Elephant", "one-way", "umbrella", "x-ray"]
    assert [english.article_before(word) for word in words] == ["an", "a", "an", "a", "an", "a", "an", "an"]
    assert [english.plural(noun) for noun in ("bus", "child", "person")] == ["buses", "children", "people"]
    same = (("dog", "puppy"), ("boy", "person"), ("boy", "child"), ("taxi", "car"), ("someone", "lady"), ("dog", "dog"))
    assert not any(english.contradict(*pair) or english.contradict(*pair[::-1]) for pair in same)
    assert english.contradict("dog", "cat")
    assert english.contradict("boy", "woman")
    assert english.contradicting("of") == ()
    assert "near" not in english.contradicting("next to")
    assert set(english.contradicting("behind")) < set(english.COMMON)


def scene_rules(rules: Sequence[str]) -> RuleMaker:
    """Rules on the captions of drawn scenes and of some photographs."""
    dataset, photographs = generate(30, 0, 0, seed=3), GOLDEN["photographs"]
    texts = [caption.text for own in dataset.captions for caption in own] + photographs
    ids = [scene.image_id for scene in dataset.scenes for _ in range(5)]
    ids += [f"photograph {row}" for row in range(len(photographs))]
    captions = list(map(analysed, texts))
    told = sentence_settings("vse-c", rules=rules, keep=6, seed=5)
    return RuleMaker(split_of(texts, ids), captions, Corpus(captions, 1), told)


@pytest.mark.parametrize("rule", VSE_C)
def test_rules_write_what_they_wrote(rule: str) -> None:
    by_rules = scene_rules((rule,))
    made = [by_rules.make(range(first, first + 40), block) for block, first in enumerate((0, 40, 117))]
    found = [
        [[each.text, each.caption_id, [list(vars(edit).values()) for edit in each.edits]] for each in sentences]
        for sentences, _ in made
    ]
    assert [digest(found), [drawn for _, drawn in made]] == GOLDEN["rules"][rule]
