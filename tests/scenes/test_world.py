"""Symbolic scenes, edits, arrangement, the dataset's streams, and its lines on disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from itrpipe.errors import UsageError
from itrpipe.scenes import world
from itrpipe.scenes.build import ScenesDataset, generate, read_described, write_described
from itrpipe.scenes.sayings import SAYINGS


@pytest.fixture(scope="module")
def dataset() -> ScenesDataset:
    return generate(train=200, val=20, test=22, seed=11)


def test_tables_agree_and_everything_occurs(dataset: ScenesDataset) -> None:
    assert tuple(SAYINGS.nouns) == tuple(SAYINGS.plurals) == world.KINDS
    assert set(SAYINGS.settings) == set(world.SETTINGS) == {scene.setting for scene in dataset.scenes}
    objects = [item for scene in dataset.scenes for item in scene.objects]
    weights = world.WORLD.weights
    values = {"kind": world.KINDS, "colour": world.COLOURS, "pattern": world.PATTERNS, "size": weights["size"]}
    values["state"] = ("ground", "on", "held", "fly")
    assert all({getattr(item, name) for item in objects} == set(known) for name, known in values.items())
    assert {name for scene in dataset.scenes for _, name, _ in scene.relations} == set(SAYINGS.relations)
    assert {edit for scene in dataset.scenes for edit in scene.edit.split("+")} == {"base", *weights["edit"]}


def test_bigger_set_begins_with_the_smaller_one(dataset: ScenesDataset) -> None:
    smaller = generate(train=13, val=3, test=0, seed=11)
    for split in ("train", "val", "test"):
        part, whole = smaller.of_split(split), dataset.of_split(split)
        assert part.scenes == whole.scenes[: len(part.scenes)]
        assert part.captions == whole.captions[: len(part.captions)]


def test_scenes_of_things_alike_have_two_to_five_of_them_about_equally_often_and_captions_tell_how_many() -> None:
    dataset = generate(600, 0, 0, seed=4, family_size=1, alike=1.0)
    kinds = (Counter(each.kind for each in scene.objects) for scene in dataset.scenes)
    numbers = Counter(max(each.values()) for each in kinds)
    assert set(numbers) == {2, 3, 4, 5}
    assert min(numbers.values()) > 100
    told = Counter(number for own in dataset.captions for caption in own for _, number in caption.form.counts)
    assert set(told) == {2, 3, 4, 5}
    assert max(told.values()) < 2 * min(told.values())


def test_scenes_are_read_as_they_were_written(tmp_path: Path) -> None:
    path, crowded = tmp_path / "scenes.jsonl", generate(6, 0, 0, seed=2, units=5)
    write_described(path, crowded)
    found = read_described(path)
    assert list(found) == [scene.image_id for scene in crowded.scenes]
    assert [each.scene for each in found.values()] == crowded.scenes
    assert [list(each.captions) for each in found.values()] == crowded.captions


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"train": -1}, "train images = -1; give 0 to"),
        ({"family_size": 0}, "family_size = 0; give 1 to"),
        ({"keep_probability": 1.5}, "keep_probability = 1.5; give 0 to 1"),
        ({"caption_detail": -0.5}, "caption_detail = -0.5; give 0 to 1"),
        ({"units": 6}, "units = 6; give 2 to 5"),
        ({"alike": 2}, "alike = 2; give 0 to 1"),
    ],
)
def test_wrong_arguments_are_named(changed: dict[str, float], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        generate(**{"train": 1, "val": 0, "test": 0, "seed": 0} | changed)  # type: ignore[arg-type]
