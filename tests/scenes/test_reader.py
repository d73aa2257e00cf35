"""Reading sentences: the inverse of writing captions, and sentences whose words others have changed."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.scenes import Caption, LogicalForm, Predicate, Scene, describes, generate
from itrpipe.scenes.grammar import GARMENTS, NOUNS, RELATION_WORDINGS
from itrpipe.scenes.layout import PlacedObject
from itrpipe.scenes.reader import CaptionReader, Reading
from itrpipe.scenes.world import MAX_OBJECTS, OUTDOOR_SETTINGS, PEOPLE

DOG, CAT, TABLE, MAN = (Predicate((kind,)) for kind in ("dog", "cat", "table", "man"))
WORDS = (
    "a",
    "an",
    "two",
    "dogs",
    "cat",
    "red",
    "in",
    "on",
    "is",
    "the snow",
    ",",
    "and",
    "with",
    "it",
    "top",
    "N",
    "#",
)
READER = CaptionReader({"one": 1, "fifty": 50})


def captions_of(seed: int, scenes: int = 250, **settings: Any) -> list[Caption]:
    dataset = generate(train=scenes, val=0, test=0, seed=seed, **settings)
    return [caption for five in dataset.captions for caption in five]


def means_the_same(one: LogicalForm, other: LogicalForm) -> bool:
    """Whether two forms differ in nothing but the numbers of their objects."""
    if one.settings != other.settings or one.counts != other.counts or len(one.objects) != len(other.objects):
        return False
    wanted = sorted(other.relations)
    return any(
        all(predicate == other.objects[place] for predicate, place in zip(one.objects, places, strict=True))
        and sorted((places[first], name, places[second]) for first, name, second in one.relations) == wanted
        for places in itertools.permutations(range(len(one.objects)))
    )


def only(text: str) -> Reading:
    (reading,) = READER.readings(text)
    return reading


def form(text: str) -> LogicalForm:
    reading = only(text)
    assert reading.certain
    return reading.form


@pytest.mark.parametrize(
    ("seed", "settings"), [(1, {}), (2, {}), (3, {"units": 5, "caption_detail": 0.0}), (4, {"caption_detail": 1.0})]
)
def test_captions_are_read_as_they_were_meant(seed: int, settings: dict[str, Any]) -> None:
    for caption in captions_of(seed, **settings):
        (reading,) = CaptionReader().readings(caption.text)
        assert reading.certain, caption
        assert means_the_same(reading.form, caption.form), (caption, reading)


def test_the_check_itself_sees_differences() -> None:
    on = LogicalForm((DOG, DOG, TABLE), ((0, "on", 2), (1, "near", 2)))
    assert means_the_same(on, LogicalForm((TABLE, DOG, DOG), ((1, "near", 0), (2, "on", 0))))
    assert not means_the_same(on, LogicalForm((TABLE, DOG, DOG), ((1, "near", 0), (0, "on", 2))))
    assert not means_the_same(on, replace(on, settings=("park",)))


def test_a_changed_word_changes_what_is_claimed() -> None:
    before = form("a red dog is on a table in the snow")
    assert before == LogicalForm((replace(DOG, colour="red"), TABLE), ((0, "on", 1),), ("snow",))
    assert form("a blue dog is on a table in the snow").objects[0] == replace(DOG, colour="blue")
    assert form("a red cat is on a table in the snow").objects[0] == replace(CAT, colour="red")
    assert form("a red dog is under a table in the snow").relations == ((0, "under", 1),)
    assert form("a red dog is on a table in the desert").settings == ("desert",)
    assert form("a red dog is on a table outdoors").settings == OUTDOOR_SETTINGS
    assert form("three dogs and a cat") == LogicalForm((CAT,), counts=((DOG, 3),))
    assert form("fifty dogs and a cat").counts == ((DOG, 50),)


@pytest.mark.parametrize(
    "text",
    [
        "A red Dog is on the table in the snow.",
        "an red dogs are on a table on the snow",
        "red dog sits on a table at the snow",
        "there is a red puppy resting on a desk in winter",
        "in the snow, a table with a red dog on it",
    ],
)
def test_what_changes_no_meaning_does_not_matter(text: str) -> None:
    assert means_the_same(form(text), form("a red dog is on a table in the snow"))


def test_a_setting_takes_another_word_for_the_place() -> None:
    assert form("a dog in the beach").settings == form("a dog at the sea").settings == ("beach",)
    assert READER.readings("a dog under the sea") == ()


@pytest.mark.parametrize(
    ("text", "relation"),
    [
        ("a dog beneath a cat", (0, "under", 1)),
        ("a dog is beneath a cat", (0, "under", 1)),
        ("a dog rests beside a cat", (0, "near", 1)),
        ("a dog waits under a cat", (0, "under", 1)),
        ("a dog sits below a cat", (1, "above", 0)),
        ("a cat with a dog behind it", (1, "behind", 0)),
        ("a dog with a cat", (0, "hold", 1)),
        ("a dog on the left and a cat on the right", (0, "left", 1)),
    ],
)
def test_verbs_and_prepositions_go_together_freely(text: str, relation: tuple[int, str, int]) -> None:
    assert form(text).relations == (relation,)


def test_every_wording_of_a_relation_is_read_for_any_kinds() -> None:
    for relation, wordings in RELATION_WORDINGS.items():
        for wording in wordings:
            read = form(wording.format(a="a tent", b="a lamp"))
            assert [(read.objects[first].kinds, name) for first, name, _ in read.relations] == [(("tent",), relation)]


def test_flying_is_a_claim_about_the_one_that_flies() -> None:
    assert form("a dog flying in the air") == LogicalForm((replace(DOG, state="fly"),))
    assert form("a dog flying behind a cat").objects == (replace(DOG, state="fly"), CAT)
    assert form("a bird is flying over a cat").objects[0].state is None
    assert form("a bird flying below a cat").objects[0].state == "fly"


def test_clothes_are_worn_by_those_who_have_them() -> None:
    assert form("a person in a red shirt").objects[0] == Predicate(("man", "boy"), colour="red")
    assert form("a person dressed in red").objects[0] == Predicate(PEOPLE, colour="red")
    assert form("a man in a red dress").objects[0].kinds == ()
    assert form("a dog in red").objects[0].kinds == ()
    assert form("a man in blue top").objects[0] == replace(MAN, colour="blue")
    for kind, garments in GARMENTS.items():
        assert all(form(f"a {kind} in a {garment}").objects == (Predicate((kind,)),) for garment in garments)


@pytest.mark.parametrize(
    ("text", "claimed"),
    [
        ("a small bird", Predicate(("bird",))),
        ("a white man in a blue top", replace(MAN, colour="blue")),
        ("a man in a tiny blue top", replace(MAN, colour="blue")),
        ("a blue red striped box", Predicate(("box",), pattern="striped")),
        ("a dog is parked", DOG),
        ("a table waits", TABLE),
    ],
)
def test_what_the_world_has_no_truth_about_makes_readings_uncertain(text: str, claimed: Predicate) -> None:
    assert only(text) == Reading(LogicalForm((claimed,)), certain=False)


def test_words_that_are_left_out_of_counts_make_them_less() -> None:
    assert only("two small birds and a dog") == Reading(LogicalForm((*[Predicate(("bird",))] * 2, DOG)), False)


def test_what_is_counted_in_a_relation_or_beside_its_like_are_so_many_objects() -> None:
    both = form("two dogs are under a table")
    assert both == LogicalForm((DOG, DOG, TABLE), ((0, "under", 2), (1, "under", 2)))
    assert form("two dogs with a cat") == LogicalForm((CAT,), counts=((DOG, 2),))
    assert form("two tables with a cat on it").relations == ((2, "on", 0), (2, "on", 1))
    assert form("two dogs and a white dog").objects == (DOG, DOG, replace(DOG, colour="white"))
    assert form("two dogs and an animal").counts == ((DOG, 2),)
    assert len(form("fifty dogs are under a table").objects) == MAX_OBJECTS + 2
    assert form("one dog and a cat").counts == ((DOG, 1),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "outside",
        "there is",
        "dog",
        "a zebra on a table",
        "a dog on",
        "is on a table",
        "a dog a cat",
        "a dog and on a table",
        "a dog table is on a cat",
        "a dog is on a table in the park in the snow",
        "a dog in the park is on a table",
        "a dog on a cat on a table",
        "a table floor a cat",
        "a dog under the beach",
        "a dog ##s",
        "A @ N",
        "the",
    ],
)
def test_nonsense_is_not_read(text: str) -> None:
    assert READER.readings(text) == ()


@given(st.lists(st.sampled_from([*WORDS])))
def test_any_words_are_read_or_refused_but_do_no_harm(words: list[str]) -> None:
    for reading in READER.readings(" ".join(words)):
        claims = reading.form
        assert claims.objects or claims.counts
        assert all(max(first, second) < len(claims.objects) for first, _, second in claims.relations)


def test_synonyms_are_one_kind() -> None:
    for kind, nouns in NOUNS.items():
        assert {form(f"a {noun}").objects[0].kinds for noun in nouns} == {(kind,)}
        assert {form(f"two {noun}s").counts[0][0].kinds for noun in nouns} == {(kind,)}


def test_a_reading_is_judged_against_scenes() -> None:
    box = (0.1, 0.1, 0.2, 0.2)
    dog, table = (
        PlacedObject("dog", "brown", "plain", "large", box, 0.2),
        PlacedObject("table", "red", "plain", "medium", box, 0.2),
    )
    scene = Scene("i", "train", 0, "base", "park", 0.5, (dog, table), ((0, "under", 1),), 0)
    told = {"a big puppy rests under a desk": True, "a big puppy rests on a desk": False, "a dog in a red top": False}
    assert {text: describes(form(text), scene) for text in told} == told
