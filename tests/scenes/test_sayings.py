"""Captions are true, natural, and read back as they were meant; so are sentences whose words others have changed."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.scenes import LogicalForm, Predicate, ScenesDataset, describes, generate
from itrpipe.scenes.readback import CaptionReader, Reading
from itrpipe.scenes.sayings import MAX_WORDS, SAYINGS, write_captions
from itrpipe.scenes.world import MAX_OBJECTS, OUTDOOR_SETTINGS, PEOPLE

DOG, CAT, TABLE, MAN = (Predicate((kind,)) for kind in ("dog", "cat", "table", "man"))
RED_DOG = replace(DOG, colour="red")
READER = CaptionReader({"one": 1, "fifty": 50})
SETTINGS_OF_CAPTIONS: tuple[dict[str, Any], ...] = (
    {"seed": 1},
    {"seed": 3, "units": 5, "caption_detail": 0.0},
    {"seed": 4, "caption_detail": 1.0},
)


@pytest.fixture(scope="module", params=SETTINGS_OF_CAPTIONS, ids=["usual", "untold", "told"])
def dataset(request: pytest.FixtureRequest) -> ScenesDataset:
    return generate(train=200, val=0, test=0, **request.param)


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


def form(text: str) -> LogicalForm:
    (reading,) = READER.readings(text)
    assert reading.certain
    return reading.form


def test_captions_are_true_different_short_natural_and_read_as_they_were_meant(dataset: ScenesDataset) -> None:
    for scene, five in zip(dataset.scenes, dataset.captions, strict=True):
        assert len({caption.text for caption in five}) == 5
        for caption in five:
            assert describes(caption, scene)
            text = caption.text
            assert len(re.findall(r"[a-z]+", text)) <= MAX_WORDS == 22
            assert not re.search(r"\s[,;]|[,;](?!\s)|\s\s|^\s|\s$|[{}A-Z]", text), text
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text), text
            assert means_the_same(form(text), caption.form), caption


def test_caption_detail_decides_what_a_caption_tells() -> None:
    generalised = {kind for row in SAYINGS.hypernyms for kind in row.kinds}
    for detail in (0, 1):
        dataset = generate(60, 0, 0, seed=3, family_size=1, keep_probability=1.0, caption_detail=detail)
        for claimed in (caption.form for five in dataset.captions for caption in five):
            assert len(claimed.settings) == detail
            for predicate in claimed.objects:
                assert (predicate.colour is not None) == detail
                assert (len(predicate.kinds) > 1) == (not detail and not generalised.isdisjoint(predicate.kinds))


def test_a_scene_without_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (scene,) = generate(1, 0, 0, seed=0).scenes
    monkeypatch.setattr("itrpipe.scenes.sayings.MAX_WORDS", 1)
    with pytest.raises(DataError, match="train-000000"):
        write_captions(Random(0), scene, [], 0.1)


RED_DOG_ON_TABLE = LogicalForm((RED_DOG, TABLE), ((0, "on", 1),), ("snow",))
BOTH = ((0, "under", 2), (1, "under", 2))
READ: dict[str, LogicalForm] = {
    "a red dog is on a table in the snow": RED_DOG_ON_TABLE,
    "A red Dog is on the table in the snow.": RED_DOG_ON_TABLE,
    "an red dogs are on a table on the snow": RED_DOG_ON_TABLE,
    "red dog sits on a table at the snow": RED_DOG_ON_TABLE,
    "there is a red puppy resting on a desk in winter": RED_DOG_ON_TABLE,
    "in the snow, a table with a red dog on it": LogicalForm((TABLE, RED_DOG), ((1, "on", 0),), ("snow",)),
    "a dog outdoors": LogicalForm((DOG,), settings=OUTDOOR_SETTINGS),
    "a dog in the beach": LogicalForm((DOG,), settings=("beach",)),
    "a dog at the sea": LogicalForm((DOG,), settings=("beach",)),
    # Verbs and prepositions go together freely.
    "a dog beneath a cat": LogicalForm((DOG, CAT), ((0, "under", 1),)),
    "a dog is beneath a cat": LogicalForm((DOG, CAT), ((0, "under", 1),)),
    "a dog rests beside a cat": LogicalForm((DOG, CAT), ((0, "near", 1),)),
    "a dog waits under a cat": LogicalForm((DOG, CAT), ((0, "under", 1),)),
    "a dog sits below a cat": LogicalForm((DOG, CAT), ((1, "above", 0),)),
    "a cat with a dog behind it": LogicalForm((CAT, DOG), ((1, "behind", 0),)),
    "a dog with a cat": LogicalForm((DOG, CAT), ((0, "hold", 1),)),
    "a dog on the left and a cat on the right": LogicalForm((DOG, CAT), ((0, "left", 1),)),
    # Flying is a claim about the one that flies, unless that is above something.
    "a dog flying in the air": LogicalForm((replace(DOG, state="fly"),)),
    "a dog flying behind a cat": LogicalForm((replace(DOG, state="fly"), CAT), ((0, "behind", 1),)),
    "a dog is flying over a cat": LogicalForm((DOG, CAT), ((0, "above", 1),)),
    "a dog flying below a cat": LogicalForm((replace(DOG, state="fly"), CAT), ((1, "above", 0),)),
    # Clothes are worn by those who have them.
    "a person in a red shirt": LogicalForm((Predicate(("man", "boy"), colour="red"),)),
    "a person dressed in red": LogicalForm((Predicate(PEOPLE, colour="red"),)),
    "a man in a red dress": LogicalForm((Predicate((), colour="red"),)),
    "a dog in red": LogicalForm((Predicate((), colour="red"),)),
    "a man in blue top": LogicalForm((replace(MAN, colour="blue"),)),
    # Counts, and what is counted in a relation or next to its like.
    "three dogs and a cat": LogicalForm((CAT,), counts=((DOG, 3),)),
    "fifty dogs and a cat": LogicalForm((CAT,), counts=((DOG, 50),)),
    "one dog and a cat": LogicalForm((CAT,), counts=((DOG, 1),)),
    "two dogs with a cat": LogicalForm((CAT,), counts=((DOG, 2),)),
    "two dogs and an animal": LogicalForm((Predicate(("dog", "cat", "rabbit", "bird")),), counts=((DOG, 2),)),
    "two dogs are under a table": LogicalForm((DOG, DOG, TABLE), BOTH),
    "two tables with a cat on it": LogicalForm((TABLE, TABLE, CAT), ((2, "on", 0), (2, "on", 1))),
    "two dogs and a white dog": LogicalForm((DOG, DOG, replace(DOG, colour="white"))),
}
# What the world has no truth about is left out, and the reading is not certain.
UNCERTAIN: dict[str, LogicalForm] = {
    "a small bird": LogicalForm((Predicate(("bird",)),)),
    "a white man in a blue top": LogicalForm((replace(MAN, colour="blue"),)),
    "a man in a tiny blue top": LogicalForm((replace(MAN, colour="blue"),)),
    "a blue red striped box": LogicalForm((Predicate(("box",), pattern="striped"),)),
    "a dog is parked": LogicalForm((DOG,)),
    "a table waits": LogicalForm((TABLE,)),
    "two small birds and a dog": LogicalForm((*[Predicate(("bird",))] * 2, DOG)),
}
NONSENSE = """
|outside|there is|dog|a zebra on a table|a dog on|is on a table|a dog a cat|a dog and on a table|a dog table is on a cat
|a dog is on a table in the park in the snow|a dog in the park is on a table|a dog on a cat on a table|a dog ##s
|a table floor a cat|a dog under the beach|A @ N|the|a dog under the sea"""


@pytest.mark.parametrize("text", [*READ, *UNCERTAIN])
def test_sentences_are_read(text: str) -> None:
    found = READER.readings(text)
    assert found == (Reading(READ[text], True) if text in READ else Reading(UNCERTAIN[text], False),)


def test_every_wording_garment_and_synonym_is_read_for_any_kinds() -> None:
    for relation, wordings in SAYINGS.relations.items():
        for wording in wordings:
            read = form(wording.format(a="a tent", b="a lamp"))
            assert [(read.objects[first].kinds, name) for first, name, _ in read.relations] == [(("tent",), relation)]
    for kind, garments in SAYINGS.garments.items():
        assert all(form(f"a {kind} in a {garment}").objects == (Predicate((kind,)),) for garment in garments)
    for kind, nouns in SAYINGS.nouns.items():
        assert {form(f"a {noun}").objects[0].kinds for noun in nouns} == {(kind,)}
        assert {form(f"two {noun}s").counts[0][0].kinds for noun in nouns} == {(kind,)}
    assert len(form("fifty dogs are under a table").objects) == MAX_OBJECTS + 2


def test_nonsense_is_not_read() -> None:
    assert not [text for text in NONSENSE.replace("\n", "").split("|") if READER.readings(text)]


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


@given(st.lists(st.sampled_from(WORDS)))
def test_any_words_are_read_or_refused_but_do_no_harm(words: list[str]) -> None:
    for reading in READER.readings(" ".join(words)):
        claims = reading.form
        assert claims.objects or claims.counts
        assert all(max(first, second) < len(claims.objects) for first, _, second in claims.relations)
