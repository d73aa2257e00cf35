"""Sentences by rules, the edits they consist of, what earlier versions made, and which words contradict each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.errors import UsageError
from itrpipe.scenes import generate
from itrpipe.synthesis import edits, english
from itrpipe.synthesis.edits import Corpus, NounVocabulary
from itrpipe.synthesis.rules import RuleMaker
from itrpipe.synthesis.sentences import apply_edits
from itrpipe.synthesis.tagged import Option, TaggedCaption
from tests.definitions import sentence_settings
from tests.synthesis.test_edits import PARSER
from tests.synthesis.test_masked import GOLDEN, digest, split_of

VSE_C = ("nouns", "numerals", "relations")
WORDS = ("a", "an", "two", "3", "dog", "dogs", "red", "and", "with", "on", "under", ",", ".", "is", "running", "The")


def tagged(text: str) -> TaggedCaption:
    return TaggedCaption(text, PARSER.analyse(text).tokens)


def sentences(text: str, options: Iterable[Option]) -> set[str]:
    starts = [token.start for token in tagged(text).tokens]
    return {apply_edits(text, starts, sorted(option.edits())) for option in options}


def vocabulary(*captions: str) -> NounVocabulary:
    return NounVocabulary(map(tagged, captions), 1)


def test_nouns_are_counted_by_lemma_and_rare_ones_are_not_used() -> None:
    captions = list(map(tagged, ["a dog", "three dogs", "a cat", "his idea", "an idea"]))
    assert NounVocabulary(captions, 2).nouns == ["dog"]
    with pytest.raises(UsageError, match="none of 3 nouns occurs 9 times"):
        NounVocabulary(captions, 9)


@settings(max_examples=40)
@given(st.lists(st.sampled_from(WORDS), max_size=9))
def test_every_rule_takes_any_caption_and_changes_it(words: list[str]) -> None:
    caption = tagged(text := " ".join(words))
    known = vocabulary("a cat, a horse and an elephant")
    for options in (
        edits.noun_options(caption, [caption], known),
        edits.numeral_options(caption),
        edits.relation_options(caption),
    ):
        assert text not in sentences(text, options)


def rule_maker(rules: Sequence[str], keep: int, texts: tuple[str, ...], images: list[int]) -> RuleMaker:
    captions = list(map(tagged, texts))
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
    assert all(each.kept and each.score is each.log_probability is None for each in made)


def test_words_of_english() -> None:
    words = ["apple", "unicycle", "hour", "horse", "Elephant", "one-way", "umbrella", "x-ray"]
    assert [english.article_before(word) for word in words] == ["an", "a", "an", "a", "an", "a", "an", "an"]
    assert [english.plural(noun) for noun in ("bus", "child", "person")] == ["buses", "children", "people"]
    assert [english.number_value(word) for word in ("an", "twenty", "eighty", "17", "many")] == [1, 20, 80, 17, None]
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
    captions = list(map(tagged, texts))
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
