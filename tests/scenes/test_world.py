"""Symbolic scenes, edits, arrangement and the dataset's streams."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.datasets.records import CaptionRecord, ImageRecord
from itrpipe.errors import UsageError
from itrpipe.scenes import (
    COLOURS,
    KINDS,
    PATTERNS,
    SETTINGS,
    SIZES,
    Scene,
    ScenesDataset,
    SymbolicScene,
    Unit,
    annotations,
    arrange,
    edit_scene,
    generate,
    karpathy,
    sample_scene,
)
from itrpipe.scenes.edits import EDIT_NAMES
from itrpipe.scenes.layout import RELATIONS
from itrpipe.scenes.visibility import MAX_HIDDEN, SOLID_PARTS, hidden_fraction
from itrpipe.scenes.world import KIND_TABLE, SceneObject, is_valid

SEEDS = st.integers(0, 2**32)


@pytest.fixture(scope="module")
def dataset() -> ScenesDataset:
    return generate(train=200, val=20, test=22, seed=11)


def test_tables_agree_with_each_other() -> None:
    assert len(KINDS) == 24
    assert len(COLOURS) == 11
    assert len(SETTINGS) == 8
    for name, kind in KIND_TABLE.items():
        assert set(kind.colours) <= set(COLOURS), name
        assert len(kind.colours) > 1, name
        assert set(kind.settings) <= set(SETTINGS), name


@given(SEEDS)
def test_sampled_scenes_are_valid(seed: int) -> None:
    assert is_valid(sample_scene(Random(seed)))


@given(SEEDS)
def test_edits_are_valid_and_change_the_scene(seed: int) -> None:
    rng = Random(seed)
    scene = sample_scene(rng)
    edited, name = edit_scene(rng, scene)
    assert name in EDIT_NAMES
    assert is_valid(edited)
    assert edited != scene


@given(SEEDS)
def test_edits_change_what_their_name_says(seed: int) -> None:
    rng = Random(seed)
    scene = sample_scene(rng)
    edited, name = edit_scene(rng, scene)
    before, after = scene.objects, edited.objects
    if name in ("colour", "pattern", "size", "kind"):
        changed = [(one, other) for one, other in zip(before, after, strict=True) if one != other]
        assert len(changed) == 1
        if name != "kind":
            assert replace(changed[0][0], **{name: getattr(changed[0][1], name)}) == changed[0][1]
    elif name in ("swap", "setting", "break"):
        assert Counter(before) == Counter(after)
    elif name == "exchange":
        assert Counter(item.colour for item in before) == Counter(item.colour for item in after)
    else:
        assert name in ("add", "drop")
        assert (len(after) > len(before)) == (name == "add")


def test_validity_refuses_what_the_tables_forbid() -> None:
    man, ball = SceneObject("man", "red"), SceneObject("ball", "blue")
    assert is_valid(SymbolicScene("park", (Unit(man, "hold", ball),)))
    assert not is_valid(SymbolicScene("park", (Unit(ball, "hold", man),)))
    assert not is_valid(SymbolicScene("park", (Unit(man),)))  # too few objects
    assert not is_valid(SymbolicScene("kitchen", (Unit(man), Unit(SceneObject("bus", "red")))))
    assert not is_valid(SymbolicScene("park", (Unit(man), Unit(SceneObject("dog", "purple")))))
    assert not is_valid(SymbolicScene("park", (Unit(man), Unit(SceneObject("dog", "brown", "striped")))))


def test_everything_occurs(dataset: ScenesDataset) -> None:
    objects = [item for scene in dataset.scenes for item in scene.objects]
    assert {item.kind for item in objects} == set(KINDS)
    assert {item.colour for item in objects} == set(COLOURS)
    assert {item.pattern for item in objects} == set(PATTERNS)
    assert {item.size for item in objects} == set(SIZES)
    assert {item.state for item in objects} == {"ground", "on", "held", "fly"}
    assert {scene.setting for scene in dataset.scenes} == set(SETTINGS)
    assert {name for scene in dataset.scenes for _, name, _ in scene.relations} == set(RELATIONS)
    assert {edit for scene in dataset.scenes for edit in scene.edit.split("+")} == {"base", *EDIT_NAMES}


def test_boxes_lie_inside_the_canvas(dataset: ScenesDataset) -> None:
    for scene in dataset.scenes:
        assert 2 <= len(scene.objects) <= 5
        for item in scene.objects:
            x0, y0, x1, y1 = item.box
            assert 0 <= x0 < x1 <= 1
            assert 0 <= y0 < y1 <= 1


def test_relations_agree_with_the_boxes(dataset: ScenesDataset) -> None:
    for scene in dataset.scenes:
        for first, name, second in scene.relations:
            one, other = scene.objects[first], scene.objects[second]
            if name == "left":
                assert one.box[0] + one.box[2] < other.box[0] + other.box[2]
            elif name == "behind":
                assert one.depth < other.depth
            elif name == "above":
                assert one.state == "fly"
                assert one.box[1] < other.box[1]
            elif name == "near":
                assert (second, "near", first) in scene.relations
            elif name == "hold":
                assert one.pose != "rest"
                assert other.state == "held"
                hand = one.box[0] if one.facing < 0 else one.box[2]
                assert abs(hand - (other.box[0] + other.box[2]) / 2) < 0.03


def _mask(box: tuple[float, float, float, float]) -> npt.NDArray[np.bool_]:
    mask = np.zeros((576, 768), dtype=bool)
    x0, y0, x1, y1 = box
    mask[round(y0 * 576) : round(y1 * 576), round(x0 * 768) : round(x1 * 768)] = True
    return mask


def test_nothing_is_hidden_by_more_than_sixty_percent(dataset: ScenesDataset) -> None:
    """Rasterises the boxes of the kinds that fill their box, finer than the rule does."""
    checked = 0
    for scene in dataset.scenes:
        solid = [item for item in scene.objects if item.kind not in SOLID_PARTS]
        for item in solid:
            cover = np.zeros((576, 768), dtype=bool)
            for nearer in solid:
                if nearer.depth > item.depth:
                    cover |= _mask(nearer.box)
            hidden = cover[_mask(item.box)].mean()
            assert hidden < 0.63, scene.image_id
            checked += hidden > 0
    assert checked > 20


def test_crowded_arrangements_are_refused() -> None:
    """Some seeds produce an arrangement that hides an object; none of those is returned."""
    house = SceneObject("house", "red", size="large")
    crowd = SymbolicScene("park", (Unit(house), Unit(SceneObject("cat", "black", size="small")), Unit(house)))
    scenes = [arrange(Random(seed), crowd, image_id="x", split="train", family=0, edit="base") for seed in range(200)]
    placed = [scene for scene in scenes if scene is not None]
    assert placed
    assert all(max(hidden_fraction(scene.objects)) <= 0.6 for scene in placed)


@pytest.mark.parametrize("units", [2, 5])
def test_scenes_have_as_many_units_as_they_may(units: int) -> None:
    assert all(is_valid(sample_scene(Random(seed), units)) for seed in range(200))
    assert max(len(sample_scene(Random(seed), units).units) for seed in range(200)) == units
    crowded = generate(80, 0, 0, seed=11, units=units).scenes
    assert max(len(scene.objects) for scene in crowded) == units + 2
    for scene in crowded:
        assert max(hidden_fraction(scene.objects)) <= MAX_HIDDEN
        assert all(0 <= edge <= 1 for item in scene.objects for edge in item.box)


def test_scenes_and_captions_are_those_of_earlier_versions() -> None:
    """Datasets that were prepared stay up to date, so what is drawn under the same settings must not change."""
    dataset = generate(60, 0, 0, seed=4)
    content = [[scene.to_json() for scene in dataset.scenes], [[c.to_json() for c in own] for own in dataset.captions]]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    assert digest == "a63eda2f30377035bf5718371d4407e64fec7c26de0b45470b25eaf983bbf49b"


def test_scene_survives_json(dataset: ScenesDataset) -> None:
    for scene in dataset.scenes[:20]:
        assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene


def test_same_arguments_same_dataset_and_other_seed_other_scenes(dataset: ScenesDataset) -> None:
    assert generate(train=200, val=20, test=22, seed=11) == dataset
    other = generate(train=200, val=0, test=0, seed=12)
    assert not {scene.objects for scene in dataset.scenes} & {scene.objects for scene in other.scenes}


def test_bigger_set_begins_with_the_smaller_one(dataset: ScenesDataset) -> None:
    smaller = generate(train=13, val=3, test=0, seed=11)
    for split in ("train", "val", "test"):
        part, whole = smaller.of_split(split), dataset.of_split(split)
        assert part.scenes == whole.scenes[: len(part.scenes)]
        assert part.captions == whole.captions[: len(part.captions)]


def test_families(dataset: ScenesDataset) -> None:
    members: dict[tuple[str, int], list[Scene]] = {}
    for scene in dataset.scenes:
        members.setdefault((scene.split, scene.family), []).append(scene)
    assert Counter(scene.split for scene in dataset.scenes) == {"train": 200, "val": 20, "test": 22}
    sizes = Counter(len(family) for family in members.values())
    assert sizes == {4: 60, 2: 1}
    for family in members.values():
        assert [scene.edit == "base" for scene in family] == [index == 0 for index in range(len(family))]
    # No scene of one split is a copy of one in another.
    looks: dict[str, set[object]] = {}
    for scene in dataset.scenes:
        looks.setdefault(scene.split, set()).add((scene.setting, scene.objects))
    assert not looks["train"] & looks["test"]
    assert not looks["train"] & looks["val"]


def test_image_ids_count_within_the_split(dataset: ScenesDataset) -> None:
    ids = [scene.image_id for scene in dataset.of_split("val").scenes]
    assert ids == [f"val-{index:06d}" for index in range(20)]


def test_annotations_name_every_caption(dataset: ScenesDataset) -> None:
    records = annotations(dataset, Path("pictures"))
    assert records.root == Path("pictures")
    assert records.images[3] == ImageRecord("train-000003", "train-000003.jpg", "train")
    assert records.captions[7] == CaptionRecord("train-000001#2", "train-000001", dataset.captions[1][2].text)
    assert len({caption.caption_id for caption in records.captions}) == 5 * len(dataset.scenes)


def test_karpathy_format(dataset: ScenesDataset) -> None:
    record = json.loads(json.dumps(karpathy(dataset)))
    assert record["dataset"] == "scenes"
    assert len(record["images"]) == len(dataset.scenes)
    image = record["images"][201]
    assert image["filename"] == "val-000001.jpg"
    assert image["split"] == "val"
    assert image["sentids"] == [sentence["sentid"] for sentence in image["sentences"]] == list(range(1005, 1010))
    for sentence, caption in zip(image["sentences"], dataset.captions[201], strict=True):
        assert sentence["raw"] == caption.text
        assert " ".join(sentence["tokens"]) == caption.text.replace(",", "").replace(";", "")
        assert sentence["imgid"] == 201


@pytest.mark.parametrize(
    "arguments",
    [
        {"train": -1, "val": 0, "test": 0, "seed": 0},
        {"train": 1, "val": 0, "test": 0, "seed": 0, "family_size": 0},
        {"train": 1, "val": 0, "test": 0, "seed": 0, "keep_probability": 1.5},
        {"train": 1, "val": 0, "test": 0, "seed": 0, "caption_detail": -0.5},
        {"train": 1, "val": 0, "test": 0, "seed": 0, "units": 6},
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="give"):
        generate(**arguments)
