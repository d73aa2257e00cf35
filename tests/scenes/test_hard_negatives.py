"""Hard negatives of the embedded dataset: false by the oracle, and the same whatever else is there."""

from __future__ import annotations

import re

import pytest

from itrpipe.scenes import ScenesDataset, describes, generate
from itrpipe.scenes.hard_negatives import HardNegative, hard_negatives
from itrpipe.scenes.readback import CaptionReader


@pytest.fixture(scope="module")
def dataset() -> ScenesDataset:
    return generate(train=0, val=0, test=120, seed=3)


@pytest.fixture(scope="module")
def made(dataset: ScenesDataset) -> list[HardNegative]:
    return hard_negatives(dataset.scenes, dataset.captions)


def test_every_caption_is_its_images_and_every_negative_false(dataset: ScenesDataset, made: list[HardNegative]) -> None:
    scenes = {scene.image_id: scene for scene in dataset.scenes}
    captions = {scene.image_id: own for scene, own in zip(dataset.scenes, dataset.captions, strict=True)}
    reader = CaptionReader()
    assert len({(each.image_id, each.category) for each in made}) == len(made) > 350
    for each in made:
        assert each.caption in {own.text for own in captions[each.image_id]}
        readings = reader.readings(each.negative)
        verdicts = {(reading.certain, describes(reading.form, scenes[each.image_id])) for reading in readings}
        assert verdicts == {(True, False)}, each.negative
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", each.negative), each.negative


def test_the_same_seed_gives_the_same_sentences_whatever_else_is_there(
    dataset: ScenesDataset, made: list[HardNegative]
) -> None:
    assert hard_negatives(dataset.scenes, dataset.captions, seed=1) != made
    some = hard_negatives(dataset.scenes[:30], dataset.captions[:30])
    known = {scene.image_id for scene in dataset.scenes[:30]}
    whole = [each for each in made if each.image_id in known and each.category != "swap_rel"]
    assert [each for each in some if each.category != "swap_rel"] == whole  # which asks what relations there are
