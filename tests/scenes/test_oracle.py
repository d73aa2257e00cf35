"""The oracle against a naive evaluation, and small cases by hand."""

from __future__ import annotations

import itertools
import re
from random import Random

import numpy as np
import pytest

from itrpipe.scenes.build import ScenesDataset, generate
from itrpipe.scenes.hard_negatives import hard_negatives
from itrpipe.scenes.layout import PlacedObject, Scene
from itrpipe.scenes.oracle import Caption, LogicalForm, Predicate, describes, true_matches
from itrpipe.scenes.readback import CaptionReader
from itrpipe.scenes.sayings import SAYINGS


@pytest.fixture(scope="module", params=[3, 5], ids=["usual", "crowded"])
def dataset(request: pytest.FixtureRequest) -> ScenesDataset:
    return generate(train=0, val=0, test=30 if request.param == 3 else 6, seed=21, units=request.param)


def _fulfils(item: PlacedObject, predicate: Predicate) -> bool:
    told = [(getattr(predicate, name), getattr(item, name)) for name in ("colour", "pattern", "size", "state")]
    return item.kind in predicate.kinds and all(value is None or value == own for value, own in told)


def _naive(form: LogicalForm, scene: Scene) -> bool:
    """Tries every assignment of different objects."""
    if form.settings and scene.setting not in form.settings:
        return False
    if any(sum(_fulfils(item, what) for item in scene.objects) != number for what, number in form.counts):
        return False
    return any(
        all(_fulfils(scene.objects[index], what) for index, what in zip(chosen, form.objects, strict=True))
        and all((chosen[first], name, chosen[second]) in scene.relations for first, name, second in form.relations)
        for chosen in itertools.permutations(range(len(scene.objects)), len(form.objects))
    )


def _random_form(rng: Random, scene: Scene) -> LogicalForm:
    """A form about objects of the scene that is often, not always, true: relations are drawn at random."""
    chosen = rng.sample(scene.objects, rng.randint(1, min(4, len(scene.objects))))
    predicates = []
    for item in chosen:
        kinds = (item.kind, "cat", "man") if rng.random() < 0.5 else (item.kind,)
        looks = [name for name in ("colour", "pattern", "size", "state") if rng.random() < 0.3]
        predicates.append(Predicate(kinds, **{name: getattr(item, name) for name in looks}))
    pairs = [rng.sample(range(len(chosen)), 2) for _ in range(rng.randint(0, len(chosen) - 1))]
    relations = tuple((first, rng.choice([*SAYINGS.relations]), second) for first, second in pairs)
    settings = (scene.setting, "park") if rng.random() < 0.3 else ()
    counts = ((Predicate((scene.objects[0].kind,)), rng.randint(1, 2)),) if rng.random() < 0.3 else ()
    return LogicalForm(tuple(predicates), relations, settings, counts)


def test_oracle_and_describes_equal_the_naive_evaluation(dataset: ScenesDataset) -> None:
    rng = Random(1)
    forms = [caption.form for caption in itertools.chain.from_iterable(dataset.captions)]
    random = [_random_form(rng, rng.choice(dataset.scenes)) for _ in range(200)]
    matches = true_matches([Caption("", form, "") for form in forms + random], dataset.scenes)
    truths = 0
    for form, rows in zip(forms + random, matches, strict=True):
        expected = [_naive(form, scene) for scene in dataset.scenes]
        assert rows.tolist() == np.flatnonzero(expected).tolist()
        assert [describes(form, scene) for scene in dataset.scenes] == expected
        truths += sum(expected)
    assert truths > len(forms) + 100  # the comparison is not one of falsehoods alone


def test_oracle_of_no_scenes() -> None:
    form = LogicalForm((Predicate(("cat",)),), settings=("park",))
    assert true_matches([Caption("", form, "")], [])[0].shape == (0,)


def test_every_caption_is_its_images_and_every_negative_false() -> None:
    dataset = generate(train=0, val=0, test=120, seed=3)
    made = hard_negatives(dataset.scenes, dataset.captions)
    scenes = {scene.image_id: scene for scene in dataset.scenes}
    captions = {scene.image_id: own for scene, own in zip(dataset.scenes, dataset.captions, strict=True)}
    reader = CaptionReader()
    assert len({(each.image_id, each.category) for each in made}) == len(made) > 350
    for each in made:
        assert each.caption in {own.text for own in captions[each.image_id]}
        readings = reader.meanings(each.negative)
        verdicts = {(reading.certain, describes(reading.form, scenes[each.image_id])) for reading in readings}
        assert verdicts == {(True, False)}, each.negative
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", each.negative), each.negative
