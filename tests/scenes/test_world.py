"""Symbolic scenes, edits, arrangement, the dataset's streams, and its lines on disk."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError, UsageError
from itrpipe.scenes import ScenesDataset, generate, layout, world
from itrpipe.scenes.build import read_described, write_described
from itrpipe.scenes.sayings import SAYINGS
from itrpipe.scenes.world import SceneObject, Unit, edit_scene, is_valid, sample_scene

MAN, BALL, DOG = SceneObject("man", "red"), SceneObject("ball", "blue"), SceneObject("dog", "brown")


@pytest.fixture(scope="module")
def dataset() -> ScenesDataset:
    return generate(train=200, val=20, test=22, seed=11)


def test_tables_agree_and_everything_occurs(dataset: ScenesDataset) -> None:
    assert tuple(SAYINGS.nouns) == tuple(SAYINGS.plurals) == world.KINDS
    assert set(SAYINGS.relations) == set(layout.RELATIONS)
    assert set(SAYINGS.settings) == set(world.SETTINGS) == {scene.setting for scene in dataset.scenes}
    objects = [item for scene in dataset.scenes for item in scene.objects]
    values = {"kind": world.KINDS, "colour": world.COLOURS, "pattern": world.PATTERNS, "size": world.SIZES}
    values["state"] = ("ground", "on", "held", "fly")
    assert all({getattr(item, name) for item in objects} == set(known) for name, known in values.items())
    assert {name for scene in dataset.scenes for _, name, _ in scene.relations} == set(layout.RELATIONS)
    assert {edit for scene in dataset.scenes for edit in scene.edit.split("+")} == {"base", *world.EDIT_NAMES}


@given(st.integers(0, 2**32), st.integers(2, 5))
def test_scenes_are_valid_and_edits_change_what_their_name_says(seed: int, room: int) -> None:
    rng = Random(seed)
    scene = sample_scene(rng, room)
    edited, name = edit_scene(rng, scene)
    before, after = scene.objects, edited.objects
    assert is_valid(scene)
    assert is_valid(edited)
    assert edited != scene
    if name in ("colour", "pattern", "size", "kind"):
        ((one, other),) = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
        assert name == "kind" or replace(one, **{name: getattr(other, name)}) == other
    elif name in ("swap", "setting", "break"):
        assert Counter(before) == Counter(after)
    elif name == "exchange":
        assert Counter(item.colour for item in before) == Counter(item.colour for item in after)
    else:
        assert (len(after) > len(before)) == (name == "add")


@pytest.mark.parametrize(
    ("setting", "units", "valid"),
    [
        ("park", [Unit((MAN, BALL), "hold")], True),
        ("park", [Unit((BALL, MAN), "hold")], False),
        ("park", [Unit((MAN,))], False),  # too few objects
        ("park", [Unit((MAN,))] * 3, True),
        ("park", [Unit((MAN,))] * 4, False),
        ("park", [Unit((MAN, BALL), "hold")] * 3, False),
        ("kitchen", [Unit((MAN,)), Unit((SceneObject("bus", "red"),))], False),
        ("park", [Unit((DOG,)), Unit((SceneObject("dog", "purple"),))], False),
        ("park", [Unit((DOG,)), Unit((SceneObject("dog", "brown", "striped"),))], False),
        ("park", [Unit((DOG,)), Unit((SceneObject("dog", "brown", size="large"),))], True),
        ("park", [Unit((DOG,)), Unit((SceneObject("rabbit", "brown", size="large"),))], False),
    ],
)
def test_validity(setting: str, units: list[Unit], valid: bool) -> None:
    assert is_valid(world.SymbolicScene(setting, tuple(units))) == valid


def test_relations_agree_with_the_boxes_and_these_lie_inside_the_canvas(dataset: ScenesDataset) -> None:
    for scene in dataset.scenes:
        edges = np.array([item.box for item in scene.objects]).reshape(-1, 2, 2)
        assert 0 <= edges.min() < edges.max() <= 1
        assert (edges[:, 0] < edges[:, 1]).all()
        for first, name, second in scene.relations:
            one, other = scene.objects[first], scene.objects[second]
            hand = one.box[0] if one.facing < 0 else one.box[2]
            assert {
                "left": one.centre < other.centre,
                "behind": one.depth < other.depth,
                "above": one.state == "fly" and one.box[1] < other.box[1],
                "near": (second, "near", first) in scene.relations,
                "hold": one.pose != "rest" and other.state == "held" and abs(hand - other.centre) < 0.03,
                "on": one.state == "on",
                "under": abs(one.centre - other.centre) < other.width / 2,
            }[name], (scene.image_id, name)


def test_bigger_set_begins_with_the_smaller_one(dataset: ScenesDataset) -> None:
    smaller = generate(train=13, val=3, test=0, seed=11)
    for split in ("train", "val", "test"):
        part, whole = smaller.of_split(split), dataset.of_split(split)
        assert part.scenes == whole.scenes[: len(part.scenes)]
        assert part.captions == whole.captions[: len(part.captions)]


@pytest.mark.parametrize("damaged", ['{"scene": {}, "captions": []}', '{"scene": ', "", "7"])
def test_lines_are_read_as_they_were_written_and_a_damaged_one_is_named(tmp_path: Path, damaged: str) -> None:
    path, crowded = tmp_path / "scenes.jsonl", generate(6, 0, 0, seed=2, units=5)
    write_described(path, crowded)
    found = read_described(path)
    assert list(found) == [scene.image_id for scene in crowded.scenes]
    assert [each.scene for each in found.values()] == crowded.scenes
    assert [list(each.captions) for each in found.values()] == crowded.captions
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], damaged, *lines[3:]]))
    with pytest.raises(DataError, match=r"scenes\.jsonl: line 3 is damaged .*itrpipe prepare` again"):
        read_described(path)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"train": -1}, "train images = -1; give 0 to"),
        ({"family_size": 0}, "family_size = 0; give 1 to"),
        ({"keep_probability": 1.5}, "keep_probability = 1.5; give 0 to 1"),
        ({"caption_detail": -0.5}, "caption_detail = -0.5; give 0 to 1"),
        ({"units": 6}, "units = 6; give 2 to 5"),
    ],
)
def test_wrong_arguments_are_named(changed: dict[str, float], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        generate(**{"train": 1, "val": 0, "test": 0, "seed": 0} | changed)  # type: ignore[arg-type]
