"""The detector of `scenes`: its geometry against naive references, and its shipped weights."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torchvision.ops import box_iou, nms

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.extractors.scenes.boxes import (
    decode,
    kept_first,
    make_anchors,
    overlaps,
    spread,
    suppress,
)
from itrpipe.features.extractors.scenes.declaration import Scenes
from itrpipe.features.extractors.scenes.extractor import ScenesExtractor, build, load_detector
from itrpipe.features.store import FeatureFile, write_features
from itrpipe.features.weights import SCENES_DETECTOR
from itrpipe.scenes import ScenesDataset, generate, paint
from itrpipe.scenes.build import JPEG_QUALITY
from itrpipe.scenes.world import KINDS

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
    """The pictures [40, 3, 144, 192] uint8 as they come out of the dataset's JPEG files."""
    pixels = []
    for scene in fresh.scenes:
        paint(scene).save(buffer := io.BytesIO(), "JPEG", quality=JPEG_QUALITY)
        pixels.append(np.asarray(Image.open(buffer)))
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)


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


def test_decoding_moves_by_sizes_and_scales_by_logarithms() -> None:
    anchor, deltas = torch.tensor([10.0, 20, 30, 60]), torch.tensor([0.5, -0.25, 2, 0.5])
    deltas[2:].log_()
    torch.testing.assert_close(decode(deltas, anchor, WIDTH, HEIGHT), torch.tensor([10.0, 20, 50, 40]))


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


# The shipped weights.


def test_shipped_weights_are_small_and_in_half_precision() -> None:
    assert SCENES_DETECTOR.stat().st_size < 1_400_000
    with safe_open(SCENES_DETECTOR, framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float16}  # noqa: SIM118


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
    rows = extract(extractor, images[:5])
    write_features(path, [str(row) for row in range(5)], extractor.spec, "scenes", [(np.arange(5), rows)])
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
    rows = extract(extractor, images)
    total, found, named = 0, 0, 0
    for scene, boxes, labels in zip(fresh.scenes, rows["boxes"], rows["labels"], strict=True):
        overlap, region = box_iou(torch.tensor([item.box for item in scene.objects]), torch.tensor(boxes[1:])).max(
            dim=1
        )
        hit = overlap > 0.5
        kinds = np.array([KINDS.index(item.kind) for item in scene.objects])
        total, found = total + len(kinds), found + int(hit.sum())
        named += int((labels[1:][region] == kinds)[hit].sum())
    assert found / total > 0.9
    assert named / found > 0.85


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
