"""The detector of `scenes`: its geometry against naive references, its shipped weights, and its training."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torchvision.ops import box_iou, nms

from itrpipe.datasets.scenes import KINDS, SETTINGS, ScenesDataset, generate
from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.extractors.scenes.boxes import (
    decode,
    encode,
    kept_first,
    make_anchors,
    overlaps,
    spread,
    suppress,
)
from itrpipe.features.extractors.scenes.declaration import Scenes
from itrpipe.features.extractors.scenes.detector import ScenesDetector
from itrpipe.features.extractors.scenes.detector_loss import Objects, objects_of
from itrpipe.features.extractors.scenes.extractor import ScenesExtractor, build, load_detector, training_record
from itrpipe.features.extractors.scenes.train import (
    main,
    measure,
    paint_all,
    round_weights,
    train,
    write_weights,
)
from itrpipe.features.store import FeatureFile, FeatureWriter, create_features
from itrpipe.features.weights import SCENES_DETECTOR

WIDTH, HEIGHT = 192, 144


def random_boxes(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corners = torch.rand(*shape, 2, 2, generator=generator).sort(dim=-2).values
    return (corners * torch.tensor([WIDTH, HEIGHT])).flatten(-2)


@pytest.fixture(scope="module")
def fresh() -> ScenesDataset:
    return generate(0, 0, 40, seed=31)


@pytest.fixture(scope="module")
def images(fresh: ScenesDataset) -> torch.Tensor:
    return paint_all(fresh.scenes)


def build_extractor() -> ScenesExtractor:
    return build(Scenes(kind="scenes"), torch.device("cpu"))


def extract(extractor: ScenesExtractor, images: torch.Tensor) -> dict[str, np.ndarray]:
    return extractor(images, np.full((len(images), 2), images.shape[2:]))


@pytest.fixture(scope="module")
def extractor() -> ScenesExtractor:
    return build_extractor()


# Geometry.


def test_overlaps_equal_those_of_torchvision() -> None:
    first, second = random_boxes(1, 2, 9), random_boxes(2, 2, 7)
    for image in range(2):
        torch.testing.assert_close(overlaps(first, second)[image], box_iou(first[image], second[image]))
    assert overlaps(torch.zeros(1, 4), first[0]).eq(0).all()


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.3, 0.5, 0.7]))
@settings(max_examples=30)
def test_suppression_keeps_what_greedy_suppression_keeps(seed: int, threshold: float) -> None:
    boxes = random_boxes(seed, 3, 40)
    keep = suppress(boxes, threshold)
    falling = torch.arange(40, 0, -1).float()
    for image in range(3):
        expected = nms(boxes[image], falling, threshold)
        assert keep[image].nonzero()[:, 0].tolist() == expected.tolist()


def test_suppressed_boxes_only_fill_up() -> None:
    keep = torch.tensor([[True, False, True, False], [False, False, False, True]])
    assert kept_first(keep, 3).tolist() == [[0, 2, 1], [3, 0, 1]]


def naive_spread(boxes: torch.Tensor, threshold: float) -> list[int]:
    """One image: groups of neighbours around the kept boxes, dealt out in rounds, the best first in each round."""
    overlap = box_iou(boxes, boxes)
    groups: dict[int, list[int]] = {}
    for index in range(len(boxes)):
        owner = next((kept for kept in groups if overlap[kept, index] > threshold), index)
        groups.setdefault(owner, []).append(index)
    rounds = [(members.index(index), index) for members in groups.values() for index in members]
    return [index for _, index in sorted(rounds)]


@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.3, 0.5]))
@settings(max_examples=30)
def test_filling_up_deals_the_neighbours_out_in_rounds(seed: int, threshold: float) -> None:
    boxes = random_boxes(seed, 2, 30)
    indices = spread(boxes, threshold, 20)
    for image in range(2):
        assert indices[image].tolist() == naive_spread(boxes[image], threshold)[:20]


def test_decoding_undoes_encoding() -> None:
    boxes, anchors = random_boxes(3, 20) * 0.8 + 10, random_boxes(4, 20) + torch.tensor([0, 0, 8, 8])
    torch.testing.assert_close(decode(encode(boxes, anchors), anchors, WIDTH, HEIGHT), boxes, atol=1e-3, rtol=1e-4)


def test_decoded_boxes_stay_inside_the_image_whatever_the_network_says() -> None:
    anchors = make_anchors(HEIGHT // 8, WIDTH // 8, 8, (16, 84), (0.6, 2.0))
    boxes = decode(torch.randn(len(anchors), 4) * 100, anchors, WIDTH, HEIGHT)
    assert boxes.min() >= 0
    assert boxes[:, 0::2].max() <= WIDTH
    assert boxes[:, 1::2].max() <= HEIGHT


def test_anchors_stand_on_their_cells() -> None:
    anchors = make_anchors(2, 3, 8, (16,), (0.25, 4.0))
    assert anchors.shape == (2 * 3 * 2, 4)
    assert anchors[0].tolist() == [0, -12, 8, 20]  # 8 wide and 32 high around (4, 4)
    assert anchors[11].tolist() == [4, 8, 36, 16]  # 32 wide and 8 high around (20, 12)


# The objects.


def test_objects_hold_what_the_scenes_say(fresh: ScenesDataset) -> None:
    objects = objects_of(fresh.scenes)
    for row, scene in enumerate(fresh.scenes):
        assert int(objects.real[row].sum()) == len(scene.objects)
        assert SETTINGS[objects.settings[row]] == scene.setting
        for column, item in enumerate(scene.objects):
            expected = torch.tensor(item.box) * torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
            torch.testing.assert_close(objects.boxes[row, column], expected)
            assert KINDS[objects.kinds[row, column]] == item.kind


def test_mirroring_twice_changes_nothing(fresh: ScenesDataset) -> None:
    objects = objects_of(fresh.scenes)
    flip = torch.arange(40) % 2 == 0
    once = objects.mirrored(flip)
    torch.testing.assert_close(once.mirrored(flip).boxes, objects.boxes)
    assert torch.equal(once.boxes[1::2], objects.boxes[1::2])
    assert torch.equal(once.boxes[0, 0, [0, 2]], WIDTH - objects.boxes[0, 0, [2, 0]])
    assert once.boxes[~objects.real].eq(0).all()


# The shipped weights.


def test_shipped_weights_are_small_half_precision_and_say_where_they_come_from() -> None:
    assert SCENES_DETECTOR.stat().st_size < 1_400_000
    with safe_open(SCENES_DETECTOR, framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118
    record = training_record(SCENES_DETECTOR)
    assert set(record) == {"command", "seed", "steps", "quality"}
    assert f"--seed {record['seed']} --steps {record['steps']}" in str(record["command"])


def test_rows_have_the_promised_shapes_and_ranges(extractor: ScenesExtractor, images: torch.Tensor) -> None:
    rows = extract(extractor, images[:7])
    assert {name: (array.shape, str(array.dtype)) for name, array in rows.items()} == {
        "regions": ((7, 12, 256), "float16"),
        "count": ((7,), "int16"),
        "boxes": ((7, 12, 4), "float32"),
        "labels": ((7, 12), "int16"),
        "scores": ((7, 12), "float32"),
        "global": ((7, 96), "float16"),
    }
    assert (rows["boxes"][:, 0] == [0, 0, 1, 1]).all()
    assert (rows["boxes"][..., :2] <= rows["boxes"][..., 2:]).all()
    assert (rows["labels"][:, 0] == -1).all()
    assert set(rows["labels"][:, 1:].flatten()) <= set(range(len(KINDS)))
    assert np.isfinite(rows["regions"]).all()
    assert (rows["count"] == 12).all()


def test_rows_fit_the_feature_file(tmp_path: Path, extractor: ScenesExtractor, images: torch.Tensor) -> None:
    path = tmp_path / "features.h5"
    create_features(path, [str(row) for row in range(5)], extractor.spec, "scenes")
    rows = extract(extractor, images[:5])
    with FeatureWriter(path) as writer:
        writer.write(0, rows)
    file = FeatureFile.open(path)
    assert file.spec == extractor.spec
    assert file.regions is not None
    np.testing.assert_array_equal(file.regions, rows["regions"])


def test_extraction_is_deterministic_and_images_do_not_influence_each_other(
    extractor: ScenesExtractor, images: torch.Tensor
) -> None:
    rows, again, alone = (
        extract(extractor, images[:6]),
        extract(build_extractor(), images[:6]),
        extract(extractor, images[4:5]),
    )
    for name, array in rows.items():
        np.testing.assert_array_equal(array, again[name])
    # Rounding depends on the size of the batch and can exchange the neighbours that fill up the set.
    for name in ("regions", "boxes", "labels", "scores"):
        np.testing.assert_allclose(rows[name][4, :3], alone[name][0, :3], atol=2e-2, rtol=1e-2)


def test_shipped_weights_find_and_name_the_objects_of_fresh_scenes(
    extractor: ScenesExtractor, fresh: ScenesDataset, images: torch.Tensor
) -> None:
    quality = measure(load_detector(SCENES_DETECTOR), images, objects_of(fresh.scenes))
    floors = {"recall": 0.9, "kind": 0.85, "colour": 0.9, "pattern": 0.9, "size": 0.85}
    assert {name: share for name, share in dataclasses.asdict(quality).items() if share < floors[name]} == {}


def test_scores_order_the_regions_unless_they_only_fill_up(extractor: ScenesExtractor, images: torch.Tensor) -> None:
    scores = extract(extractor, images)["scores"]
    assert (scores[:, 0] == 1).all()
    assert (np.diff(scores[:, 1:3], axis=1) <= 0).all()  # every picture shows two things or more


def test_images_of_another_size_are_refused(extractor: ScenesExtractor) -> None:
    with pytest.raises(DataError, match=r"\(3, 224, 224\)"):
        extract(extractor, torch.zeros(1, 3, 224, 224, dtype=torch.uint8))


def test_weights_that_are_absent_truncated_or_foreign_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="absent"):
        load_detector(tmp_path / "absent.safetensors")
    truncated = tmp_path / "truncated.safetensors"
    truncated.write_bytes(SCENES_DETECTOR.read_bytes()[:-1])
    with pytest.raises(DataError, match="not a whole safetensors file"):
        load_detector(truncated)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.zeros(3)}, foreign)
    with pytest.raises(DataError, match="does not fit"):
        load_detector(foreign)


# Training.


def untrained() -> ScenesDetector:
    torch.manual_seed(0)
    return ScenesDetector()


def test_training_lowers_the_loss(fresh: ScenesDataset, images: torch.Tensor) -> None:
    model = untrained()
    history = train(model, images, objects_of(fresh.scenes), steps=32, seed=0, report=False)
    assert len(history) == 32
    assert np.mean(history[-5:]) < 0.75 * np.mean(history[:5])


def test_training_is_repeatable(fresh: ScenesDataset, images: torch.Tensor) -> None:
    objects = objects_of(fresh.scenes)
    first, second = (train(untrained(), images, objects, steps=3, seed=5, report=False) for _ in range(2))
    assert first == second


def test_quality_is_perfect_for_the_truth_and_counts_every_kind_of_error(fresh: ScenesDataset) -> None:
    objects = objects_of(fresh.scenes)
    assert dataclasses.asdict(measure(_Oracle(objects), torch.zeros(40, 1), objects)) == dict.fromkeys(
        ("recall", "kind", "colour", "pattern", "size"), 1.0
    )
    wrong_kinds = objects._replace(kinds=(objects.kinds + 1) % len(KINDS))
    assert measure(_Oracle(wrong_kinds), torch.zeros(40, 1), objects).kind == 0.0
    nowhere = objects._replace(boxes=torch.zeros_like(objects.boxes))
    assert measure(_Oracle(nowhere), torch.zeros(40, 1), objects).recall == 0.0


class _Oracle(ScenesDetector):
    """Answers with the objects it was given."""

    def __init__(self, objects: Objects) -> None:
        super().__init__()
        self._objects = objects

    def forward(self, images: torch.Tensor):
        from itrpipe.features.extractors.scenes.detector import Detections

        assert len(images) == len(self._objects.boxes)
        size = torch.tensor([WIDTH, HEIGHT, WIDTH, HEIGHT])
        pad = torch.nn.functional.pad
        attributes = {name: pad(values, (1, 0), value=-1) for name, values in self._objects.attributes.items()}
        return Detections(
            regions=torch.empty(0),
            boxes=pad(self._objects.boxes / size, (0, 0, 1, 0)),
            labels=pad(self._objects.kinds, (1, 0), value=-1),
            scores=torch.empty(0),
            attributes=attributes,
            global_=torch.empty(0),
        )


def test_written_weights_come_back_rounded_to_half_precision(tmp_path: Path, images: torch.Tensor) -> None:
    model = untrained().eval()
    path = tmp_path / "weights.safetensors"
    round_weights(model)
    write_weights(model, path, {"steps": 0})
    assert training_record(path) == {"steps": 0}
    loaded = load_detector(path).eval()
    torch.testing.assert_close(loaded(images[:2]).regions, model(images[:2]).regions, atol=0, rtol=0)


def test_the_command_trains_measures_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "weights.safetensors"
    main(["--images", "8", "--held-out", "4", "--seed", "77", "--steps", "2", "--out", str(path)])
    assert "held-out: recall" in capsys.readouterr().out
    record = training_record(path)
    assert record["command"] == (
        "python -m itrpipe.features.extractors.scenes.train "
        "--images 8 --held-out 4 --seed 77 --steps 2 --out weights.safetensors"
    )
    assert set(json.loads(json.dumps(record["quality"]))) == {"recall", "kind", "colour", "pattern", "size"}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--images", "-3"], ["--out", "absent/weights.safetensors"]])
def test_senseless_options_are_refused_before_any_work(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--out", str(tmp_path / "weights.safetensors"), *arguments])
    assert caught.value.code == 2
