"""The oracle against a naive evaluation, and small cases by hand."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np
import pytest

from itrpipe.scenes import (
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
from itrpipe.scenes.layout import RELATIONS


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


def test_oracle_of_no_scenes() -> None:
    assert Oracle([]).matches(LogicalForm((Predicate(("cat",)),), settings=("park",))).shape == (0,)
