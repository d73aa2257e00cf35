"""Captions are true, natural, and read back as they were meant; so are sentences whose words others have changed."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.scenes import LogicalForm, Predicate, ScenesDataset, describes, generate
from itrpipe.scenes.oracle import LOOKS
from itrpipe.scenes.readback import CaptionReader
from itrpipe.scenes.sayings import MAX_WORDS, SAYINGS, write_captions
from itrpipe.scenes.world import MAX_OBJECTS

READER = CaptionReader({"one": 1, "fifty": 50})
UNTOLD, TOLD = {"seed": 3, "units": 5, "caption_detail": 0.0}, {"seed": 4, "caption_detail": 1.0}


@pytest.fixture(scope="module", params=[{"seed": 1}, UNTOLD, TOLD], ids=["usual", "untold", "told"])
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


def test_a_scene_without_words_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (scene,) = generate(1, 0, 0, seed=0).scenes
    monkeypatch.setattr("itrpipe.scenes.sayings.MAX_WORDS", 1)
    with pytest.raises(DataError, match="train-000000"):
        write_captions(Random(0), scene, [], 0.1)


READ: dict[str, str] = json.loads(Path(__file__).with_name("readings.json").read_text())
"""Sentence -> its form as `told` writes it; empty for nonsense."""


def told(text: str) -> str:
    """Claims of the only reading of a sentence, such as `dog(red), 2 cat; 0 on 1; beach`; `?` if it is uncertain."""

    def thing(predicate: Predicate) -> str:
        looks = [getattr(predicate, look) for look in LOOKS]
        return "|".join(predicate.kinds) + f"({' '.join(filter(None, looks))})".replace("()", "")

    if not (found := READER.readings(text)):
        return ""
    ((form, certain),) = found
    things = [thing(each) for each in form.objects] + [f"{number} {thing(each)}" for each, number in form.counts]
    parts = ", ".join(things), ", ".join(f"{one} {name} {other}" for one, name, other in form.relations)
    return "; ".join(filter(None, (*parts, "|".join(form.settings)))) + ("" if certain else "?")


@pytest.mark.parametrize("text", READ)
def test_sentences_are_read(text: str) -> None:
    assert told(text) == READ[text]


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


WORDS = ["a", "an", "two", "dogs", "cat", "red", "in", "on", "is", "the snow", ",", "and", "with", "it", "N", "#"]


@given(st.lists(st.sampled_from(WORDS)))
def test_any_words_are_read_or_refused_but_do_no_harm(words: list[str]) -> None:
    for reading in READER.readings(" ".join(words)):
        claims = reading.form
        assert claims.objects or claims.counts
        assert all(max(first, second) < len(claims.objects) for first, _, second in claims.relations)
