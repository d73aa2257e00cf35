"""Sentences by rules, the edits they consist of, and which nouns contradict each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from itrpipe.errors import DataError, UsageError
from itrpipe.scene_graph.rules import RulesParser
from itrpipe.synthesis.edits import Edit, apply_edits
from itrpipe.synthesis.english import article_before, number_value, plural
from itrpipe.synthesis.nouns import KINDS, contradict
from itrpipe.synthesis.prepositions import COMMON, GROUPS, contradicting
from itrpipe.synthesis.rules import (
    NounVocabulary,
    Slot,
    TaggedCaption,
    draw_sentences,
    noun_slots,
    numeral_slots,
    relation_slots,
)

PARSER = RulesParser("lexicon")
WORDS = ("a", "an", "two", "3", "dog", "dogs", "red", "and", "with", "on", "under", ",", ".", "is", "running", "The")


def tagged(text: str) -> TaggedCaption:
    return TaggedCaption(text, PARSER.analyse(text).tokens)


def sentences(text: str, slots: list[Slot]) -> set[str]:
    found = draw_sentences(slots, 10_000, np.random.default_rng(0))
    starts = [token.start for token in tagged(text).tokens]
    return {apply_edits(text, starts, edits) for edits in found}


def vocabulary(*captions: str) -> NounVocabulary:
    return NounVocabulary(map(tagged, captions), 1)


# Edits


def test_edits_replace_words_and_keep_all_else() -> None:
    text, starts = "Two  dogs, one cat.", [0, 5, 9, 11, 15, 18]
    edits = [Edit(3, "one cat", "a bird"), Edit(0, "Two", "Three")]
    assert apply_edits(text, starts, edits) == "Three  dogs, a bird."
    assert apply_edits(text, starts, []) == text
    for wrong in ([Edit(1, "cats", "x")], [Edit(9, "dogs", "x")], [Edit(3, "one cat", "x"), Edit(4, "cat", "y")]):
        with pytest.raises(DataError, match="the edits are of another caption"):
            apply_edits(text, starts, wrong)


# Nouns


def test_another_noun_contradicts_keeps_its_number_and_is_no_word_of_the_image() -> None:
    text = "A dog with two puppies near an umbrella."
    known = vocabulary("dogs, cats and animals", "an elephant or a bus near an umbrella", "one pet and one car")
    found = sentences(text, noun_slots(tagged(text), {"car", "cars", *tagged(text).words}, known))
    assert "A cat with two puppies near an umbrella." in found
    assert "An elephant with two puppies near an umbrella." in found
    assert "A dog with two buses near an umbrella." in found
    assert "A dog with two puppies near a cat." in found
    together = " ".join(found)
    assert "car" not in together
    # Of the umbrella there is no other name, of a dog and of puppies there are two.
    assert len(found) == 3 + 3 + 5
    assert not any(("animal" in each or "pet" in each) and "an umbrella" in each for each in found)


def test_nouns_are_counted_by_lemma_and_rare_ones_are_not_used() -> None:
    captions = list(map(tagged, ["a dog", "three dogs", "a cat", "his idea", "an idea"]))
    assert NounVocabulary(captions, 2).nouns == ("dog",)
    with pytest.raises(UsageError, match="none of 3 nouns occurs 9 times"):
        NounVocabulary(captions, 9)


def test_unknown_nouns_are_left_alone() -> None:
    known = vocabulary("a dog and a cat")
    assert known.instead_of("zeitgeist") == ()
    assert known.instead_of("puppy") == ("cat",)


# Numerals


def test_another_number_changes_the_form_of_its_noun() -> None:
    found = sentences("Two old buses.", numeral_slots(tagged("Two old buses.")))
    assert {"One old bus.", "An old bus.", "Three old buses.", "Eighty old buses."} <= found
    assert "A old bus." not in found
    assert "Two old buses." not in found
    assert len(found) == 26 - 1 + 1
    found = sentences("a red bus and a man", numeral_slots(tagged("a red bus and a man")))
    assert {"two red buses and a man", "a red bus and seven men"} <= found
    assert not any(one in sentence for sentence in found for one in ("one ", "an "))
    assert "four dogs" in sentences("3 dogs", numeral_slots(tagged("3 dogs")))


@pytest.mark.parametrize("text", ["one", "a big", "twenty two dogs", "", "dogs run", "five"])
def test_numbers_that_count_nothing_are_left_alone(text: str) -> None:
    assert numeral_slots(tagged(text)) == []


def test_articles_follow_the_sound() -> None:
    words = ["apple", "unicycle", "hour", "horse", "Elephant", "one-way", "umbrella", "x-ray"]
    assert [article_before(word) for word in words] == ["an", "a", "an", "a", "an", "a", "an", "an"]
    assert [plural(noun) for noun in ("bus", "child", "sheep", "city")] == ["buses", "children", "sheep", "cities"]
    assert [number_value(word) for word in ("an", "twenty", "eighty", "17", "many")] == [1, 20, 80, 17, None]


# Relations


def test_noun_phrases_change_places_unless_they_are_joined() -> None:
    text = "A man and a boy sit on a red bench, under a tree."
    found = sentences(text, relation_slots(tagged(text)))
    assert "A red bench and a boy sit on a man, under a tree." in found
    assert "A man and a tree sit on a red bench, under a boy." in found
    assert "A boy and a man sit on a red bench, under a tree." not in found
    listed = "a cup, a bowl and a plate"
    assert sentences(listed, relation_slots(tagged(listed))) == set()
    same = "a dog behind a dog"
    assert "a dog behind a dog" not in sentences(same, relation_slots(tagged(same)))


def test_another_preposition_contradicts_the_old_one() -> None:
    text = "a dog next to a box"
    found = sentences(text, relation_slots(tagged(text)))
    assert {"a dog behind a box", "a dog under a box", "a box next to a dog"} <= found
    assert "a dog near a box" not in found
    assert not any(word in contradicting(word) for group in GROUPS for word in group)
    assert contradicting("of") == ()
    assert set(contradicting("behind")) < set(COMMON)


# Drawing


@settings(max_examples=60)
@given(st.lists(st.integers(0, 5), max_size=5), st.integers(0, 12), st.integers(0, 1000))
def test_draws_are_distinct_and_come_from_all_slots(sizes: list[int], most: int, seed: int) -> None:
    slots = [
        Slot([f"{row}:{column}" for column in range(size)], lambda new, at=row: [Edit(at, "x", new)])
        for row, size in enumerate(sizes)
    ]
    found = draw_sentences(slots, most, np.random.default_rng(seed))
    written = [edit.new for edits in found for edit in edits]
    assert len(set(written)) == len(written) == min(most, sum(sizes))
    assert all(edit.new.startswith(f"{edit.position}:") for edits in found for edit in edits)
    again = draw_sentences(slots, most, np.random.default_rng(seed))
    assert again == found


@settings(max_examples=40)
@given(st.lists(st.sampled_from(WORDS), max_size=9))
def test_every_rule_takes_any_caption_and_changes_it(words: list[str]) -> None:
    text = " ".join(words)
    caption = tagged(text)
    known = vocabulary("a cat, a horse and an elephant")
    for slots in (noun_slots(caption, set(caption.words), known), numeral_slots(caption), relation_slots(caption)):
        assert text not in sentences(text, slots)


# Nouns


def test_nouns_know_what_stands_above_and_below() -> None:
    for first, second in (("dog", "puppy"), ("boy", "person"), ("boy", "child"), ("taxi", "car"), ("someone", "lady")):
        assert not contradict(first, second)
        assert not contradict(second, first)
    assert contradict("dog", "cat")
    assert contradict("boy", "woman")
    assert all(not contradict(noun, noun) for noun in KINDS)
