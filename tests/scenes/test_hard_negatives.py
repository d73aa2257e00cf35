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
