"""The oracle against a naive evaluation, and small cases by hand."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest

from itrpipe.datasets.scenes import (
    Caption,
    LogicalForm,
    Oracle,
    PlacedObject,
    Predicate,
    Scene,
    ScenesDataset,
    describes,
    generate,
    true_matches,
)
from itrpipe.datasets.scenes.layout import RELATIONS


@pytest.fixture(scope="module", params=[3, 5], ids=["usual", "crowded"])
def dataset(request: pytest.FixtureRequest) -> ScenesDataset:
    return generate(train=0, val=0, test=60 if request.param == 3 else 8, seed=21, units=request.param)


def _fulfils(item: PlacedObject, predicate: Predicate) -> bool:
    wanted = {name: getattr(predicate, name) for name in ("colour", "pattern", "size", "state")}
    return item.kind in predicate.kinds and all(
        value is None or getattr(item, name) == value for name, value in wanted.items()
    )


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
    chosen = rng.sample(scene.objects, rng.randint(1, min(5, len(scene.objects))))
    predicates = tuple(
        Predicate(
            (item.kind, "cat", "man") if rng.random() < 0.5 else (item.kind,),
            colour=item.colour if rng.random() < 0.3 else None,
            pattern=item.pattern if rng.random() < 0.3 else None,
            size=item.size if rng.random() < 0.2 else None,
            state=item.state if rng.random() < 0.2 else None,
        )
        for item in chosen
    )
    relations = tuple(
        (*rng.sample(range(len(chosen)), 2), rng.choice(RELATIONS)) for _ in range(rng.randint(0, len(chosen) - 1))
    )
    return LogicalForm(
        predicates,
        tuple((first, name, second) for first, second, name in relations),
        (scene.setting, "park") if rng.random() < 0.3 else (),
        ((Predicate((scene.objects[0].kind,)), rng.randint(1, 2)),) if rng.random() < 0.3 else (),
    )


def test_oracle_and_describes_equal_the_naive_evaluation_of_all_captions(dataset: ScenesDataset) -> None:
    oracle = Oracle(dataset.scenes)
    for caption in itertools.chain.from_iterable(dataset.captions):
        expected = [_naive(caption.form, scene) for scene in dataset.scenes]
        assert oracle.matches(caption.form).tolist() == expected
        assert [describes(caption, scene) for scene in dataset.scenes] == expected


def test_oracle_equals_the_naive_evaluation_of_random_forms(dataset: ScenesDataset) -> None:
    rng, oracle = Random(1), Oracle(dataset.scenes)
    truths = 0
    for _ in range(600):
        form = _random_form(rng, rng.choice(dataset.scenes))
        expected = [_naive(form, scene) for scene in dataset.scenes]
        assert oracle.matches(form).tolist() == expected
        assert [describes(form, scene) for scene in dataset.scenes] == expected
        truths += sum(expected)
    assert truths > 600  # the comparison is not one of falsehoods alone


def test_true_matches_contain_the_own_scene(dataset: ScenesDataset) -> None:
    captions = list(itertools.chain.from_iterable(dataset.captions))
    matches = true_matches(captions, dataset.scenes)
    assert all(index // 5 in found for index, found in enumerate(matches))
    assert all(np.all(np.diff(found) > 0) for found in matches)
    assert sum(len(found) for found in matches) > len(captions)  # false negatives exist


def _scene(*objects: PlacedObject, relations: tuple[tuple[int, str, int], ...] = ()) -> Scene:
    return Scene("x", "test", 0, "base", "park", 0.4, objects, relations, 0)


def _object(kind: str, colour: str) -> PlacedObject:
    return PlacedObject(kind, colour, "plain", "medium", (0.1, 0.1, 0.3, 0.3), 0.3)


def test_two_quantified_objects_need_two_objects() -> None:
    two_cats = LogicalForm((Predicate(("cat",)), Predicate(("cat", "dog"))))
    cat, dog, box = _object("cat", "black"), _object("dog", "white"), _object("box", "red")
    for scene, expected in ((_scene(cat, box), False), (_scene(cat, cat), True), (_scene(cat, dog), True)):
        assert describes(two_cats, scene) is expected
        assert Oracle([scene]).matches(two_cats).tolist() == [expected]


def test_relation_must_hold_between_the_objects_that_fulfil_the_predicates() -> None:
    """A red box left of a cat is not in a scene where the blue box is left of it."""
    objects = _object("box", "red"), _object("box", "blue"), _object("cat", "black")
    scene = _scene(*objects, relations=((1, "left", 2),))
    form = LogicalForm((Predicate(("box",), colour="red"), Predicate(("cat",))), ((0, "left", 1),))
    assert not describes(form, scene)
    assert not Oracle([scene]).matches(form).any()
    assert describes(LogicalForm((Predicate(("box",)), Predicate(("cat",))), ((0, "left", 1),)), scene)


def test_counts_are_exact() -> None:
    scene = _scene(*(_object("ball", "red") for _ in range(3)))
    for number, expected in ((2, False), (3, True), (4, False)):
        form = LogicalForm(counts=((Predicate(("ball",)), number),))
        assert describes(form, scene) is expected
        assert Oracle([scene]).matches(form).tolist() == [expected]


def test_settings() -> None:
    scene = _scene(_object("ball", "red"), _object("ball", "blue"))
    assert describes(Caption("outside", LogicalForm(settings=("beach", "park")), "single"), scene)
    assert not describes(Caption("on the beach", LogicalForm(settings=("beach",)), "single"), scene)


def test_oracle_of_no_scenes() -> None:
    assert Oracle([]).matches(LogicalForm((Predicate(("cat",)),), settings=("park",))).shape == (0,)
