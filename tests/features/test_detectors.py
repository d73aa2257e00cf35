"""Detectors: selection as by a loop over classes, bottom-up attention as recorded, torchvision's parts one by one."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection.transform import GeneralizedRCNNTransform

from itrpipe.errors import DataError, ItrpipeError
from itrpipe.features.extractors import regions
from itrpipe.features.extractors.butd import extractor as butd
from itrpipe.features.extractors.butd.extractor import ButdNetwork, load_network
from itrpipe.features.extractors.frcnn.extractor import FrcnnExtractor, StretchThin
from itrpipe.features.extractors.scenes import extractor as scenes
from tests.features.test_extractors import built, opened, pictures, rows_of, settings_of

__all__ = ["opened"]

CLASSES = "roi_heads.box_predictor.cls_score.weight"
# For each anchor in the order of the published conversion its place in Caffe's.
CAFFE_ORDER = torch.arange(12).view(3, 4).T.flatten()


# The rules of selection.


def test_boxes_without_area_overlap_nothing() -> None:
    assert regions.box_overlaps(torch.tensor([[[5.0, 5, 5, 5], [5, 5, 5, 5], [0, 0, 9, 9]]]))[0, 0].tolist() == [
        0,
        0,
        0,
    ]


def test_selection_at_its_limits() -> None:
    confidence = torch.tensor([0.5, 0.0, 0.5, 0.9, 0.0, 0.6])
    assert regions.select_regions(confidence, 4, 4, 0.5).tolist() == [0, 2, 3, 5]
    # Fewer proposals than asked for.
    assert regions.select_regions(confidence, 10, 20, 0.4).tolist() == [3, 5, 2, 0, 4, 1]
    assert regions.select_regions(confidence[:0], 1, 2, 0.4).tolist() == []


# Bottom-up attention against a recorded forward pass.


@cache
def recorded() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).resolve().parents[1] / "reference" / "butd_forward.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def generated(name: str, shape: list[int]) -> np.ndarray:
    """The reference's random weights: a function of a tensor's name, with biases that are stored."""
    if name.endswith("cell_anchors.0"):
        return recorded()["anchors_cell"]
    if f"w_{name}" in recorded():
        return recorded()[f"w_{name}"]
    bits = np.random.Philox(key=zlib.crc32(f"butd14:{name}".encode())).random_raw(int(np.prod(shape)))
    x = ((bits >> np.uint64(11)) / 2**53 * 2 - 1).reshape(shape)
    leaf = name.rpartition(".")[2]
    if ".norm." in name:
        factor = 0.3 if ".conv3.norm." in name else 1
        values = {"weight": factor * (1 + 0.2 * x), "running_var": 1 + 0.3 * x}.get(leaf, 0.1 * x)
    elif name.endswith("cls_embedding.weight"):
        values = 8 * x
    elif leaf == "weight":
        values = json.loads(str(recorded()["meta"]))["gain"].get(name, np.sqrt(2)) * np.sqrt(3 / np.prod(shape[1:])) * x
    else:
        values = 0.1 * x
    return values.astype(np.float32)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ButdNetwork]:
    path = tmp_path_factory.mktemp("weights") / "pytorch_model.bin"
    published = json.loads(str(recorded()["meta"]))["state_dict"]  # names and shapes
    tensors = {name: torch.tensor(generated(name, shape)) for name, shape in published.items()}
    torch.save({"model": tensors, "iteration": 5}, path)
    loaded, notes = load_network(settings_of("butd", weights=str(path.parent)))  # a folder that holds one file
    assert notes == ()
    path.unlink()  # a quarter of a gigabyte
    with torch.inference_mode():
        yield loaded.eval()


def rgb(bgr: np.ndarray) -> Tensor:
    return torch.tensor(np.ascontiguousarray(bgr[:, :, ::-1].transpose(2, 0, 1)))


def at_size(image: str, size: list[int]) -> Tensor:
    """Pixels [3, h, w] at the size at which the reference was recorded, where each axis has a factor of its own."""
    pixels = rgb(recorded()[image]).flip(0).float() - torch.tensor(butd._MEAN_BGR).view(3, 1, 1)
    return F.interpolate(pixels[None], size=size, mode="bilinear", align_corners=False)[0]


def assert_close(actual: Tensor | np.ndarray, expected: np.ndarray, rtol: float = 1e-4) -> None:
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= rtol * np.abs(expected).max()


def test_caffe_preprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = recorded()
    sizes = reference["resize_800_1333_in_hw"].tolist()
    assert [list(butd.caffe_size(*size)[1:]) for size in sizes] == reference["resize_600_1000_out_hw"].tolist()
    assert butd.caffe_size(1, 10_000) == (0.1, 1, 1000)
    assert butd.caffe_size(1201, 2001) == (600 / 1201, 600, 1000)
    monkeypatch.setattr(butd, "SHORT_SIDE", 225)
    monkeypatch.setattr(butd, "LONG_SIDE", 300)
    for image, case in {"in_image_bgr": "a", "batch_in_image2_bgr": "b", "caffe_pre_in_c_bgr": "c"}.items():
        pixels, scale = butd.resized(rgb(reference[image])[None])
        assert scale == pytest.approx(reference[f"caffe_pre_scale_{case}"].item(), rel=1e-6)
        assert np.abs(pixels[..., ::4, ::4].numpy() - reference[f"caffe_pre_sub4_{case}"]).max() < 1e-3


def test_activations_and_heads(network: ButdNetwork) -> None:
    reference = recorded()
    feature_map = network.backbone(at_size("in_image_bgr", reference["pre_sizes"][0].tolist())[None])
    assert_close(feature_map[:, ::128], reference["act_res4"])
    height, width = feature_map.shape[-2:]
    for found, name in zip(network.anchor_scores(feature_map), ("rpn_logits", "rpn_deltas_sub"), strict=True):
        by_channel = found.view(1, height, width, -1).permute(0, 3, 1, 2)
        assert_close(by_channel[:, :, ::3, ::4] if "sub" in name else by_channel, reference[name])
    some = torch.tensor(reference["proposals"])[:20]
    both = torch.cat([torch.zeros_like(feature_map), feature_map])
    features = network.region_features(both, [some[:2], some])[2:]
    classes, attributes = network.predictions(features)
    assert_close(features[:, ::16], reference["roi_features_sub"][:20], 2e-4)
    assert_close(classes[:, ::100], reference["roi_obj_logits_sub"][:20], 2e-4)
    assert classes.argmax(dim=1).tolist() == reference["roi_class_incl_background"][:20].tolist()
    assert_close(attributes[:, ::20], reference["roi_attr_logits_sub"][:20], 2e-4)


def test_an_odd_size_tells_caffes_max_pool_from_the_usual_one(network: ButdNetwork) -> None:
    sizes = recorded()["batch_sizes"].tolist()
    images = [at_size(name, size) for name, size in zip(("in_image_bgr", "batch_in_image2_bgr"), sizes, strict=True)]
    height, width = recorded()["batch_shape"][2:].tolist()
    padded = torch.stack([F.pad(each, (0, width - each.shape[2], 0, height - each.shape[1])) for each in images])
    assert_close(network.backbone(padded)[:, ::128], recorded()["batch_act_res4"])


def test_caffe_proposals() -> None:
    reference = recorded()
    assert butd.caffe_anchors()[CAFFE_ORDER.argsort()].tolist() == reference["caffe_anchors_cell"].tolist()
    scores = torch.tensor(reference["caffe_rpn_in_cls_score"])[0].permute(1, 2, 0)  # [h, w, 24]
    logits = (scores[..., 12:] - scores[..., :12])[..., CAFFE_ORDER].flatten()
    deltas = torch.tensor(reference["caffe_rpn_in_bbox_pred"])[0].permute(1, 2, 0).unflatten(2, (12, 4))
    height, width, scale = reference["caffe_rpn_in_im_info"].tolist()
    anchors = regions.place_anchors(butd.caffe_anchors(), 9, 13, 16)
    found = butd.surest(logits, deltas[:, :, CAFFE_ORDER].reshape(-1, 4), anchors, (int(height), int(width)), scale)
    assert_close(found, reference["caffe_rpn_out_rois"], 1e-5)
    # The 5,999 surest of 6,500 anchors lie outside, and use up no candidates.
    sides = torch.tensor([0.0, 0, 20, 20])
    anchors = torch.cat([sides.repeat(5999, 1) + 200, sides.repeat(1, 1), sides.repeat(500, 1) + 50])
    found = butd.surest(torch.arange(6500, 0, -1) / 100, torch.zeros(6500, 4), anchors, (100, 100), 1)
    assert found.tolist() == [[0, 0, 21, 21], [50, 50, 71, 71]]


@pytest.mark.parametrize(
    ("name", "score"),
    [("36_36", 0.2), ("10_100", 0.2), ("10_20", 0.2), ("10_100_strict", 0.8), ("10_100_very_strict", 0.97)],
)
def test_the_tool_keeps_the_same_regions(name: str, score: float) -> None:
    reference, (minimum, maximum) = recorded(), map(int, name.split("_")[:2])
    boxes, scale = torch.tensor(reference["caffe_sel_in_rois"]), float(reference["caffe_sel_in_scale"])
    probabilities = torch.tensor(reference["caffe_sel_in_prob"][:, 1:])
    # A second image with fewer proposals is filled up and must change nothing.
    vectors = torch.arange(190.0)[:, None]
    both = torch.cat([probabilities, probabilities[:40]])
    in_file = torch.stack([boxes, F.pad(boxes[:40], (0, 0, 0, 110))]) / scale
    overlaps = regions.box_overlaps(in_file + torch.tensor([0, 0, 1, 1]))
    found = regions.Proposals([boxes, boxes[:40]], [(800, 600)] * 2, overlaps, vectors, both, 1)
    given = settings_of("butd", min_regions=minimum, max_regions=maximum, min_score=score)
    rows = regions.region_rows(found, 0.3, given)
    expected = reference[f"caffe_sel_out_index_{name}"]
    count = rows["count"][0]
    assert rows["regions"][0, :count, 0].tolist() == expected.tolist()
    assert rows["labels"][0, :count].tolist() == (probabilities[expected].argmax(dim=1) + 1).tolist()
    assert_close(rows["scores"][0, :count], probabilities[expected].amax(dim=1).numpy())
    assert_close(rows["boxes"][0, :count] * [800, 600, 800, 600], boxes[expected].numpy().clip(0), 1e-6)
    assert minimum <= rows["count"][1] <= min(40, maximum)
    assert rows["regions"][1, : rows["count"][1]].min() >= 150


def test_overlaps_are_those_in_the_file(opened: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    extractor = opened("butd")  # ten pixels become 64
    monkeypatch.setattr(butd, "surest", lambda *_: torch.tensor([[0.0, 0, 64, 64], [0, 32, 64, 96]]))
    overlaps = extractor.propose([torch.zeros(3, 10, 10, dtype=torch.uint8)]).overlaps
    assert overlaps[0, 0, 1].item() == pytest.approx(11 * 6 / (2 * 11 * 11 - 11 * 6))


@pytest.mark.parametrize("kind", ["butd", "frcnn"])
@torch.inference_mode()
def test_bfloat16_spares_boxes_and_scores(kind: str, opened: Callable[[str], Any]) -> None:
    image = torch.tensor(pictures(kind)[0].transpose(2, 0, 1))
    mixed, exact = (each.propose([image]) for each in (built(kind, precision="bf16"), opened(kind)))
    assert not torch.equal(mixed.vectors[:3], exact.vectors[:3])
    for values in (mixed.boxes[0], mixed.probabilities):
        assert not torch.equal(values, values.bfloat16().float())


@pytest.mark.parametrize("name", ["butd", "frcnn"])
@pytest.mark.parametrize("size", [(1, 400), (400, 1), (2, 3), (15, 15), (16, 40)])
def test_odd_pictures(name: str, size: tuple[int, int], opened: Callable[[str], Any]) -> None:
    rows = rows_of(opened(name), [np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)])
    assert all(np.isfinite(each).all() for each in rows.values())


def test_convolutions_are_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    extractor = built("frcnn")
    extractor._network.backbone.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cudnn.allow_tf32))
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    rows_of(extractor, pictures("frcnn")[:1])
    assert (seen, torch.backends.cudnn.allow_tf32) == ([False], True)


# torchvision's Faster R-CNN.


def test_the_group_is_the_padded_size_and_only_thin_images_change() -> None:
    random = np.random.default_rng(0)
    sizes = [(1, 1), (1, 700), (700, 9), (3, 240), (3, 241), (5000, 1), *random.integers(1, 700, (40, 2)).tolist()]
    for short_side, long_side in [(96, 160), (100, 333), (64, 40)]:
        scaling = GeneralizedRCNNTransform(short_side, long_side, [0.0] * 3, [1.0] * 3)
        given = settings_of("frcnn", short_side=short_side, long_side=long_side)
        planned = FrcnnExtractor(SimpleNamespace(transform=scaling), given, torch.device("cpu"), ())
        for height, width in sizes:
            frame = planned.transform(np.zeros((height, width, 3), dtype=np.uint8))
            scaled, _ = scaling([torch.from_numpy(frame) / 255])
            assert planned.group(height, width) == tuple(scaled.tensors.shape[-2:])
    shapes = {(3, 240): (3, 240), (3, 241): (2, 160), (5000, 1): (160, 2), (20, 300): (20, 300)}
    assert {size: StretchThin(160).size(*size) for size in shapes} == shapes


@pytest.mark.parametrize("changed", [{"max_regions": 31}, {"short_side": 31}, {"long_side": 31}, {"min_regions": 7}])
def test_settings_that_cannot_work_are_refused(changed: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        settings_of("frcnn", **changed)


# Weights.


def test_weights_of_another_network_or_of_no_release_are_refused(opened: Callable[[str], Any], tmp_path: Path) -> None:
    tensors = opened("frcnn")._network.state_dict().items()
    # A file of few bytes: the tensors repeat one number.
    state = {name: torch.tensor(0.5).expand(each.shape) for name, each in tensors}
    with pytest.raises(ItrpipeError, match="COCO_V1, DEFAULT"):
        built("frcnn", weights="COCO_V7")
    for other in ({"roi_heads.mask.weight": torch.ones(1)}, {CLASSES: torch.ones(1, 1024)}):
        torch.save(state | other, tmp_path / "other.pth")
        with pytest.raises(ItrpipeError, match=r"other\.pth.*name weights of torchvision's"):
            built("frcnn", weights=str(tmp_path / "other.pth"))


# The detector of drawings.


def test_decoded_boxes_are_finite_and_stay_inside_the_image() -> None:
    anchor = torch.tensor([10.0, 20, 30, 60])
    assert scenes.decode_boxes(torch.full((4,), 100.0), anchor).isfinite().all()
    assert scenes.decode_boxes(torch.tensor([-9.0, 9, 9, 9]), anchor).tolist() == [0, 0, 192, 144]


def test_photographs_are_no_drawings(opened: Callable[[str], Any]) -> None:
    for images in (torch.zeros(1, 3, 224, 224, dtype=torch.uint8), [torch.zeros(3, 9, 9), torch.zeros(3, 8, 9)]):
        with pytest.raises(DataError, match="no images of scenes"):
            opened("scenes")(images, np.zeros((2, 2)))
