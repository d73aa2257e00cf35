"""Regions are selected as by a loop over the classes, and as by the tool of the published bottom-up features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import box_iou, nms

from itrpipe.features.extractors.region_selection import box_overlaps, select_regions, surviving_confidence

REFERENCE = Path(__file__).parents[1] / "reference" / "butd_forward.npz"


def random_boxes(generator: torch.Generator, *shape: int) -> Tensor:
    corners = torch.rand(*shape, 2, generator=generator) * 300
    return torch.cat([corners, corners + torch.rand(*shape, 2, generator=generator) * 200], dim=-1)


def confidence_class_by_class(boxes: Tensor, probabilities: Tensor, threshold: float) -> Tensor:
    """One image: boxes [P, 4], probabilities [P, C]. torchvision takes the first of equally probable boxes first."""
    confidence = torch.zeros(len(boxes), dtype=probabilities.dtype)
    for one_class in probabilities.T:
        kept = len(boxes) - 1 - nms(boxes.flip(0), one_class.flip(0), threshold)
        confidence[kept] = torch.maximum(confidence[kept], one_class[kept])
    return confidence


def test_overlaps_are_those_of_torchvision() -> None:
    boxes = random_boxes(torch.Generator().manual_seed(0), 2, 3, 50)
    overlaps = box_overlaps(boxes, plus_one=False)
    torch.testing.assert_close(
        overlaps, torch.stack([box_iou(one, one) for one in boxes.flatten(0, 1)]).unflatten(0, (2, 3))
    )
    inclusive = boxes + torch.tensor([0.0, 0.0, 1.0, 1.0])
    torch.testing.assert_close(box_overlaps(boxes, plus_one=True), box_overlaps(inclusive, plus_one=False))


def test_boxes_without_area_overlap_nothing() -> None:
    boxes = torch.tensor([[5.0, 5.0, 5.0, 5.0], [5.0, 5.0, 5.0, 5.0], [0.0, 0.0, 10.0, 10.0]])
    assert box_overlaps(boxes, plus_one=False).tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert box_overlaps(boxes, plus_one=True)[0, 1] == 1


@pytest.mark.parametrize(("boxes", "classes"), [(1, 1), (63, 5), (64, 3), (65, 7), (300, 40)])
@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5])
def test_confidence_is_that_of_a_loop_over_the_classes(boxes: int, classes: int, threshold: float) -> None:
    generator = torch.Generator().manual_seed(boxes)
    places = random_boxes(generator, 3, boxes)
    probabilities = (3 * torch.randn(3, boxes, classes + 1, generator=generator)).softmax(dim=-1)[..., 1:]
    found = surviving_confidence(box_overlaps(places, plus_one=False), probabilities, threshold)
    expected = [confidence_class_by_class(*image, threshold) for image in zip(places, probabilities, strict=True)]
    assert torch.equal(found, torch.stack(expected))
    assert boxes == 1 or (found < probabilities.amax(dim=-1)).any()


@settings(max_examples=200)
@given(
    data=st.data(), boxes=st.integers(0, 70), classes=st.integers(0, 4), threshold=st.sampled_from([0.0, 0.25, 0.5, 1])
)
def test_ties_go_to_the_later_box(data: st.DataObject, boxes: int, classes: int, threshold: float) -> None:
    # A coarse grid and three probabilities, so that most boxes equal others and overlaps hit the threshold.
    generator = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    corners = generator.integers(0, 4, (boxes, 2))
    places = torch.tensor(np.concatenate([corners, corners + generator.integers(1, 4, (boxes, 2))], 1)).float()
    probabilities = torch.tensor(generator.choice([0.0, 0.25, 0.5], (boxes, classes))).float()
    found = surviving_confidence(box_overlaps(places, plus_one=False)[None], probabilities[None], threshold)[0]
    assert torch.equal(found, confidence_class_by_class(places, probabilities, threshold))


def test_an_image_does_not_depend_on_the_others_of_its_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    overlaps = box_overlaps(random_boxes(generator, 4, 100), plus_one=True)
    probabilities = torch.rand(4, 100, 6, generator=generator)
    together = surviving_confidence(overlaps, probabilities, 0.3)
    alone = [surviving_confidence(overlaps[[image]], probabilities[[image]], 0.3)[0] for image in range(4)]
    assert torch.equal(together, torch.stack(alone))


@pytest.mark.parametrize(
    ("minimum", "maximum", "threshold", "name"),
    [
        (10, 100, 0.2, "10_100"),
        (36, 36, 0.2, "36_36"),
        (10, 20, 0.2, "10_20"),
        (10, 100, 0.8, "10_100_strict"),
        (10, 100, 0.97, "10_100_very_strict"),
    ],
)
def test_the_tool_keeps_the_same_regions(minimum: int, maximum: int, threshold: float, name: str) -> None:
    with np.load(REFERENCE, allow_pickle=False) as reference:
        boxes = torch.from_numpy(reference["caffe_sel_in_rois"] / reference["caffe_sel_in_scale"])
        probabilities = torch.from_numpy(reference["caffe_sel_in_prob"][:, 1:])
        expected = reference[f"caffe_sel_out_index_{name}"]
        expected_boxes = reference["caffe_sel_out_boxes_36_36"]
    overlaps = box_overlaps(boxes, plus_one=True)
    confidence = surviving_confidence(overlaps[None], probabilities[None], 0.3)[0]
    kept = select_regions(confidence, minimum, maximum, threshold)
    np.testing.assert_array_equal(kept.numpy(), expected)
    if name == "36_36":
        np.testing.assert_allclose(boxes[kept].numpy(), expected_boxes, rtol=1e-6)


@pytest.mark.parametrize(
    ("minimum", "maximum", "threshold", "expected"),
    [
        (1, 6, 0.4, [0, 2, 3, 5]),  # neither limit cuts: the order of the proposals
        (4, 4, 0.4, [0, 2, 3, 5]),
        (1, 3, 0.4, [3, 5, 2]),
        (5, 6, 0.4, [3, 5, 2, 0, 4]),
        (10, 20, 0.4, [3, 5, 2, 0, 4, 1]),  # fewer proposals than asked for: all
        (2, 2, 1.0, [3, 5]),
        (1, 2, 0.9, [3]),
        (1, 1, 0.0, [3]),
    ],
)
def test_selection(minimum: int, maximum: int, threshold: float, expected: list[int]) -> None:
    confidence = torch.tensor([0.5, 0.0, 0.5, 0.9, 0.0, 0.6])
    assert select_regions(confidence, minimum, maximum, threshold).tolist() == expected


def test_selection_among_no_boxes() -> None:
    assert select_regions(torch.zeros(0), 10, 100, 0.2).tolist() == []
