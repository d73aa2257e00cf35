"""The grammar: what captions look like, and that they are true."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError
from itrpipe.scenes import (
    Caption,
    PlacedObject,
    Scene,
    ScenesDataset,
    describes,
    generate,
    true_matches,
    write_captions,
)
from itrpipe.scenes.captions import MAX_WORDS, STYLES, noun_phrase
from itrpipe.scenes.grammar import HYPERNYMS, NOUNS, RELATION_WORDINGS, SETTING_PHRASES
from itrpipe.scenes.layout import RELATIONS
from itrpipe.scenes.world import KINDS, SETTINGS


@pytest.fixture(scope="module")
def dataset() -> ScenesDataset:
    return generate(train=800, val=0, test=0, seed=5)


@pytest.fixture(scope="module")
def captions(dataset: ScenesDataset) -> list[Caption]:
    return [caption for five in dataset.captions for caption in five]


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text)


def test_tables_cover_the_world() -> None:
    assert tuple(NOUNS) == KINDS
    assert set(SETTING_PHRASES) == set(SETTINGS)
    assert set(RELATION_WORDINGS) == set(RELATIONS)


def test_every_caption_is_true_of_its_scene(dataset: ScenesDataset) -> None:
    for scene, five in zip(dataset.scenes, dataset.captions, strict=True):
        assert len(five) == 5
        assert all(describes(caption, scene) for caption in five)


def test_texts_of_an_image_differ(dataset: ScenesDataset) -> None:
    assert all(len({caption.text for caption in five}) == 5 for five in dataset.captions)


def test_length_and_vocabulary(captions: list[Caption]) -> None:
    lengths = [len(_words(caption.text)) for caption in captions]
    assert max(lengths) <= MAX_WORDS == 22
    assert 12 < np.mean(lengths) < 16
    vocabulary = {word for caption in captions for word in _words(caption.text)}
    assert 180 <= len(vocabulary) <= 220


def test_text_is_natural(captions: list[Caption]) -> None:
    for caption in captions:
        text = caption.text
        assert not re.search(r"\s[,;]|[,;](?!\s)|\s\s|^\s|\s$|[{}]", text), text
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", text), text
        assert text == text.lower()


def test_every_style_occurs(captions: list[Caption]) -> None:
    counts = Counter(caption.style for caption in captions)
    assert set(counts) == set(STYLES)
    assert min(counts.values()) > 50


def test_styles_differ_in_how_much_they_tell(captions: list[Caption]) -> None:
    lengths = {style: np.mean([len(_words(c.text)) for c in captions if c.style == style]) for style in STYLES}
    assert lengths["long"] > lengths["middle"] > lengths["single"]


def test_colour_words_are_claimed(captions: list[Caption]) -> None:
    """A colour in the text is in the form and the other way round."""
    for caption in captions:
        predicates = [*caption.form.objects, *(predicate for predicate, _ in caption.form.counts)]
        claimed = Counter(predicate.colour for predicate in predicates if predicate.colour)
        text = caption.text.replace("green field", "field")
        named = Counter(word for word in _words(text) if word in claimed or word in ("red", "blue", "grey"))
        assert claimed == named, caption


def test_keep_probability_decides_how_specific_captions_are() -> None:
    def shared(keep_probability: float) -> int:
        dataset = generate(train=200, val=0, test=0, seed=3, keep_probability=keep_probability)
        return sum(
            describes(caption, sibling)
            for scene, five in zip(dataset.scenes, dataset.captions, strict=True)
            for sibling in dataset.scenes
            if sibling.family == scene.family and sibling is not scene
            for caption in five
        )

    assert 0 < shared(0.0) < shared(0.1) < shared(1.0)


def test_caption_detail_decides_how_many_scenes_a_caption_fits() -> None:
    """Told without rejecting any: what changes is how much each tells."""
    means = []
    for detail in (1.0, 0.75, 0.5, 0.25, 0.0):
        dataset = generate(200, 0, 0, seed=3, family_size=1, keep_probability=1.0, caption_detail=detail)
        captions = [caption for five in dataset.captions for caption in five]
        assert max(len(_words(caption.text)) for caption in captions) <= MAX_WORDS
        means.append(np.mean([len(found) for found in true_matches(captions, dataset.scenes)]))
    assert means[0] < 1.1
    assert np.all(np.diff(means) > 0)
    assert means[-1] > 10


def test_captions_without_detail_name_neither_looks_nor_setting_and_those_with_all_of_it_both() -> None:
    generalised = {kind for row in HYPERNYMS for kind in row.kinds}
    for detail in (0.0, 1.0):
        dataset = generate(60, 0, 0, seed=3, units=5, keep_probability=1.0, caption_detail=detail)
        for scene, five in zip(dataset.scenes, dataset.captions, strict=True):
            for caption in five:
                assert describes(caption, scene)
                assert len(caption.form.settings) == detail
                for predicate in caption.form.objects:
                    assert (predicate.colour is not None) == detail
                    assert detail or (predicate.pattern, predicate.size) == (None, None)
                    assert (len(predicate.kinds) > 1) == (not detail and not generalised.isdisjoint(predicate.kinds))
                assert detail or all(predicate.colour is None for predicate, _ in caption.form.counts)


def test_caption_survives_json(captions: list[Caption]) -> None:
    for caption in captions[:100]:
        assert Caption.from_json(json.loads(json.dumps(caption.to_json()))) == caption


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_noun_phrase_claims_only_what_is_so(seed: int, detail: float) -> None:
    item = PlacedObject("umbrella", "orange", "striped", "large", (0.1, 0.1, 0.2, 0.2), 0.2)
    text, predicate = noun_phrase(Random(seed), item, detail)
    assert item.kind in predicate.kinds
    assert ("orange" in text) == (predicate.colour == "orange")
    assert (("striped" in text) or ("stripy" in text)) == (predicate.pattern == "striped")
    assert any(word in text for word in ("large", "big", "huge")) == (predicate.size == "large")


def test_scene_without_words_is_refused(dataset: ScenesDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("itrpipe.scenes.captions.MAX_WORDS", 1)
    with pytest.raises(DataError, match="train-000000"):
        write_captions(Random(0), dataset.scenes[0], [], 0.1)


def test_siblings_make_captions_more_specific(dataset: ScenesDataset) -> None:
    """With keep probability 0 and a sibling that differs in one colour, most captions name that colour."""
    scene = next(scene for scene in dataset.scenes if len(scene.objects) == 2)
    sibling = _recoloured(scene)
    told = [write_captions(Random(seed), scene, [sibling], 0.0) for seed in range(20)]
    untold = [write_captions(Random(seed), scene, [], 0.0) for seed in range(20)]
    assert _share_true(told, sibling) < 0.5 * _share_true(untold, sibling)


def _recoloured(scene: Scene) -> Scene:
    first, *rest = scene.objects
    return replace(scene, objects=(replace(first, colour="nothing else has this colour"), *rest))


def _share_true(captions: list[list[Caption]], scene: Scene) -> float:
    return float(np.mean([describes(caption, scene) for five in captions for caption in five]))
