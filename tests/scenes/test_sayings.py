"""Captions are true, natural, and read back as they were meant; so are sentences whose words others have changed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.scenes.build import ScenesDataset, generate
from itrpipe.scenes.oracle import LOOKS, Predicate, describes
from itrpipe.scenes.readback import CaptionReader
from itrpipe.scenes.sayings import MAX_WORDS, write_captions

READER = CaptionReader(one=1, fifty=50)
UNTOLD, TOLD = {"seed": 3, "units": 5, "caption_detail": 0.0}, {"seed": 4, "caption_detail": 1.0}


@pytest.fixture(scope="module", params=[{"seed": 1}, UNTOLD, TOLD], ids=["usual", "untold", "told"])
def dataset(request: pytest.FixtureRequest) -> ScenesDataset:
    return generate(train=200, val=0, test=0, **request.param)


def test_captions_are_true_different_short_and_natural(dataset: ScenesDataset) -> None:
    for scene, five in zip(dataset.scenes, dataset.captions, strict=True):
        assert len({caption.text for caption in five}) == 5
        for caption in five:
            assert describes(caption, scene)
            text = caption.text
            assert len(re.findall(r"[a-z]+", text)) <= MAX_WORDS == 22
            assert not re.search(r"\s[,;]|[,;](?!\s)|\s\s|^\s|\s$|[{}A-Z]", text), text
            assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text), text


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

    if not (found := READER.meanings(text)):
        return ""
    ((form, certain),) = found
    things = [thing(each) for each in form.objects] + [f"{number} {thing(each)}" for each, number in form.counts]
    parts = ", ".join(things), ", ".join(f"{one} {name} {other}" for one, name, other in form.relations)
    return "; ".join(filter(None, (*parts, "|".join(form.settings)))) + ("" if certain else "?")


@pytest.mark.parametrize("text", READ)
def test_sentences_are_read(text: str) -> None:
    assert told(text) == READ[text]


WORDS = ["a", "an", "two", "dogs", "cat", "red", "in", "on", "is", "the snow", ",", "and", "with", "it", "N", "#"]


@given(st.lists(st.sampled_from(WORDS)))
def test_any_words_are_read_or_refused_but_do_no_harm(words: list[str]) -> None:
    for reading in READER.meanings(" ".join(words)):
        claims = reading.form
        assert claims.objects or claims.counts
        assert all(max(first, second) < len(claims.objects) for first, _, second in claims.relations)
