"""Regions of torchvision's Faster R-CNN against its parts called one image at a time; weights from files."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor
from torchvision.models.detection import FasterRCNN_ResNet50_FPN_V2_Weights, fasterrcnn_resnet50_fpn_v2
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import nms

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.extractors.frcnn.declaration import Frcnn
from itrpipe.features.extractors.frcnn.extractor import FrcnnExtractor, Prepare, build

CPU = torch.device("cpu")
SIZES = ((60, 80), (61, 79), (30, 40))  # one group
CLASSES = 5


def settings(**changed: Any) -> Frcnn:
    values: dict[str, Any] = {
        "kind": "frcnn",
        "weights": "random",
        "min_regions": 4,
        "max_regions": 12,
        "min_score": 0.5,
        "nms": 0.3,
        "proposals": 30,
        "short_side": 64,
        "long_side": 112,
        "precision": "fp32",
    }
    return Frcnn(**(values | changed))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def extractor() -> FrcnnExtractor:
    return build(settings(), CPU)


def noise(height: int, width: int) -> np.ndarray:
    coarse = np.random.default_rng(height * width).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
    return coarse.repeat(8, axis=0).repeat(8, axis=1)[:height, :width]


def prepared(extractor: FrcnnExtractor, *sizes: tuple[int, int]) -> list[Tensor]:
    return [torch.from_numpy(extractor.transform(noise(*size))) for size in sizes]


def rows_of(extractor: FrcnnExtractor, *sizes: tuple[int, int]) -> dict[str, np.ndarray]:
    return extractor(prepared(extractor, *sizes), np.array(sizes))


@torch.inference_mode()
def naive_rows(network: Any, image: Tensor, given: Frcnn) -> dict[str, np.ndarray]:
    """One image [3, h, w]: torchvision's parts one after the other, and a loop over classes."""
    scaled, _ = network.transform([image / 255])
    maps = network.backbone(scaled.tensors)
    (boxes,), _ = network.rpn(scaled, maps)
    vectors = network.roi_heads.box_head(network.roi_heads.box_roi_pool(maps, [boxes], scaled.image_sizes))
    probabilities = network.roi_heads.box_predictor(vectors)[0].softmax(dim=1).numpy()
    confidence = np.zeros(len(boxes), dtype=np.float32)
    for label in range(1, probabilities.shape[1]):
        kept = nms(boxes, torch.from_numpy(probabilities[:, label]), given.nms).numpy()
        confidence[kept] = np.maximum(confidence[kept], probabilities[kept, label])
    kept = np.flatnonzero(confidence >= given.min_score)
    if not given.min_regions <= len(kept) <= given.max_regions:
        limit = given.min_regions if len(kept) < given.min_regions else given.max_regions
        kept = confidence.argsort(kind="stable")[::-1][:limit]
    height, width = scaled.image_sizes[0]
    return {
        "regions": vectors.numpy()[kept],
        "boxes": boxes.numpy()[kept] / [width, height, width, height],
        "labels": probabilities[kept, 1:].argmax(axis=1) + 1,
        "scores": probabilities[kept, 1:].max(axis=1),
    }


def assert_close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    scale = np.abs(expected["regions"]).max()
    np.testing.assert_allclose(found["regions"], expected["regions"], atol=1e-3 * scale)
    np.testing.assert_allclose(found["boxes"], expected["boxes"], atol=1e-4)
    np.testing.assert_array_equal(found["labels"], expected["labels"])
    np.testing.assert_allclose(found["scores"], expected["scores"], atol=1e-4)


@pytest.mark.parametrize("limits", [(4, 12, 0.5), (12, 12, 0.2), (3, 30, 0.2), (30, 30, 0.2), (2, 12, 0.99)])
def test_rows_are_those_of_torchvisions_parts(extractor: FrcnnExtractor, limits: tuple[int, int, float]) -> None:
    minimum, maximum, min_score = limits
    given = settings(min_regions=minimum, max_regions=maximum, min_score=min_score)
    other = FrcnnExtractor(extractor._network, given, CPU)
    found = rows_of(other, *SIZES)
    for number, image in enumerate(prepared(other, *SIZES)):
        expected = naive_rows(other._network, image, given)
        count = found["count"][number]
        assert count == len(expected["labels"])
        assert minimum <= count <= maximum
        assert_close({name: found[name][number, :count] for name in expected}, expected)
        assert not any(found[name][number, count:].any() for name in expected)


def test_rows_fit_the_spec(extractor: FrcnnExtractor) -> None:
    found = rows_of(extractor, *SIZES)
    shapes = extractor.spec.shapes()
    assert shapes == {"regions": (12, 1024), "count": (), "boxes": (12, 4), "labels": (12,), "scores": (12,)}
    assert {name: array.shape for name, array in found.items()} == {n: (3, *shape) for n, shape in shapes.items()}
    types = {name: str(array.dtype) for name, array in found.items()}
    assert types == {
        "regions": "float16",
        "count": "int16",
        "boxes": "float32",
        "labels": "int16",
        "scores": "float32",
    }
    corners = found["boxes"][0, : found["count"][0]]
    assert corners.min() >= 0
    assert corners.max() <= 1
    assert (corners[:, :2] < corners[:, 2:]).all()
    assert extractor.notes == ("random weights: these features are noise",)


def test_random_weights_are_always_the_same(extractor: FrcnnExtractor) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    again = build(settings(), CPU)
    assert torch.equal(torch.random.get_rng_state(), before)
    expected = extractor._network.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in again._network.state_dict().items())


def test_a_batch_gives_what_single_images_give(extractor: FrcnnExtractor) -> None:
    assert len({extractor.group(*size) for size in SIZES}) == 1
    together = rows_of(extractor, *SIZES)
    for number, size in enumerate(SIZES):
        alone = rows_of(extractor, size)
        assert alone["count"][0] == together["count"][number] > 0
        assert_close({name: array[number] for name, array in together.items()}, {n: a[0] for n, a in alone.items()})


def test_images_of_one_size_may_come_as_a_tensor(extractor: FrcnnExtractor) -> None:
    images = [torch.from_numpy(extractor.transform(noise(60, 80))), torch.zeros(3, 60, 80, dtype=torch.uint8)]
    listed = extractor(images, np.array([(60, 80)] * 2))
    stacked = extractor(torch.stack(images), np.array([(60, 80)] * 2))
    assert all(np.array_equal(listed[name], stacked[name]) for name in listed)


@hypothesis_settings(max_examples=60)
@given(st.integers(1, 700), st.integers(1, 700), st.sampled_from([(96, 160), (100, 333), (32, 32), (64, 40)]))
@example(1, 1, (96, 160))
@example(1, 700, (96, 160))
@example(700, 9, (96, 160))
def test_the_group_is_the_padded_size(height: int, width: int, sides: tuple[int, int]) -> None:
    short_side, long_side = sides
    planned = FrcnnExtractor.__new__(FrcnnExtractor)
    planned._settings, planned.transform = settings(short_side=short_side, long_side=long_side), Prepare(long_side)
    image = torch.from_numpy(planned.transform(np.zeros((height, width, 3), dtype=np.uint8)))
    scaling = GeneralizedRCNNTransform(short_side, long_side, [0.0] * 3, [1.0] * 3)
    scaled, _ = scaling([image / 255])
    assert planned.group(height, width) == tuple(scaled.tensors.shape[-2:])


def test_only_images_of_a_pixel_or_less_are_changed() -> None:
    prepare = pickle.loads(pickle.dumps(Prepare(160)))
    image = noise(20, 300)
    np.testing.assert_array_equal(prepare(image), image.transpose(2, 0, 1))
    assert prepare(image).flags.c_contiguous
    assert prepare(noise(3, 240)).shape == (3, 3, 240)  # 160 / 240 of 3 lines are 2
    assert prepare(noise(3, 241)).shape == (3, 2, 160)
    assert prepare(noise(5000, 1)).shape == (3, 160, 2)
    assert (prepare(np.full((1, 5000, 3), 77, dtype=np.uint8)) == 77).all()


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (500, 3), (1, 2000)])
def test_tiny_images_have_regions(size: tuple[int, int]) -> None:
    # Of a new extractor: on its first call the pooling learns the strides of the feature maps.
    fresh = build(settings(min_regions=12, max_regions=12, proposals=12), CPU)
    found = rows_of(fresh, size)
    count = found["count"][0]
    assert 0 < count <= 12
    assert np.isfinite(found["regions"].astype(np.float32)).all()
    assert (found["boxes"] >= 0).all()
    assert (found["boxes"] <= 1).all()
    assert (found["labels"][0, :count] > 0).all()
    assert not found["regions"][0, count:].any()
    pool = fresh._network.roi_heads.box_roi_pool
    assert pool.scales == [1 / 4, 1 / 8, 1 / 16, 1 / 32]


def test_an_image_without_proposals_has_no_regions(extractor: FrcnnExtractor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractor._network.rpn, "score_thresh", 2.0)
    found = rows_of(extractor, *SIZES)
    assert found["count"].tolist() == [0, 0, 0]
    assert not any(array.any() for array in found.values())


def test_bfloat16_gives_nearly_the_same_and_spares_boxes_and_scores(extractor: FrcnnExtractor) -> None:
    mixed = build(settings(precision="bf16"), CPU)
    images = prepared(extractor, (60, 80))
    with torch.inference_mode():
        pixels = extractor._network.transform([images[0] / 255])[0].tensors
        maps, exact = mixed._network.backbone(pixels)["1"], extractor._network.backbone(pixels)["1"]
        proposals = mixed.propose(images)
    assert maps.dtype == torch.float32
    difference = (maps - exact).abs().max() / exact.abs().max()
    assert 1e-4 < difference < 0.05
    for values in (proposals.boxes[0], proposals.probabilities):
        assert values.dtype == torch.float32
        assert not torch.equal(values, values.bfloat16().float())
    assert mixed(images, np.array([(60, 80)]))["count"][0] > 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"max_regions": 31}, "smaller than max_regions"), ({"short_side": 31}, "32"), ({"long_side": 31}, "32")],
)
def test_settings_that_cannot_work_are_refused(changed: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        settings(**changed)


@pytest.fixture(scope="module")
def small_state() -> dict[str, Tensor]:
    """A state dict of few bytes: every tensor repeats one number."""
    with torch.device("meta"):
        network = fasterrcnn_resnet50_fpn_v2(weights=None, weights_backbone=None, num_classes=CLASSES)
    state = network.state_dict()
    return {
        name: torch.tensor(0 if "num_batches" in name else 0.5 + number / 1000).expand(tensor.shape)
        for number, (name, tensor) in enumerate(state.items())
    }


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_come_from_a_file(suffix: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    network: Any = fasterrcnn_resnet50_fpn_v2(
        weights=None,
        weights_backbone=None,
        num_classes=CLASSES,
        min_size=64,
        max_size=112,
        rpn_post_nms_top_n_test=30,
    ).eval()
    state = {name: value.half() if value.is_floating_point() else value for name, value in network.state_dict().items()}
    network.load_state_dict(state)
    path = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":  # as some converters write them, without counters
        save_file({name: value for name, value in state.items() if "num_batches" not in name}, path)
    else:
        torch.save(state, path)
    given = settings(weights=str(path))
    loaded = build(given, CPU)
    path.unlink()
    assert loaded.notes == ()
    found = rows_of(loaded, (60, 80))
    expected = naive_rows(network, prepared(loaded, (60, 80))[0], given)
    count = found["count"][0]
    assert_close({name: found[name][0, :count] for name in expected}, expected)
    assert 1 <= found["labels"][0, :count].min() <= found["labels"].max() < CLASSES


def lacking(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name != "rpn.head.bbox_pred.bias"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lacking, r"lacks 'rpn.head.bbox_pred.bias'; name weights of torchvision's fasterrcnn_resnet50_fpn_v2.$"),
        (lambda state: state | {"roi_heads.mask.bias": torch.ones(1)}, "holds 'roi_heads.mask.bias', which this"),
        (
            lambda state: state | {"backbone.body.conv1.weight": torch.ones(64, 3, 3, 3)},
            "'backbone.body.conv1.weight' has the shape 64 x 3 x 3 x 3, this network's is 64 x 3 x 7 x 7",
        ),
        (
            lambda state: state | {"rpn.head.cls_logits.bias": torch.full((3,), torch.nan)},
            r"'rpn.head.cls_logits.bias' \(torch.float32\) holds no finite numbers",
        ),
        (lambda state: {}, "lacks 'roi_heads.box_predictor.cls_score.weight'"),
        (
            lambda state: (
                state
                | {f"roi_heads.box_predictor.cls_score.{name}": torch.ones(1, 1024)[:, 0] for name in ("bias",)}
                | {"roi_heads.box_predictor.cls_score.weight": torch.ones(1, 1024)}
                | {"roi_heads.box_predictor.bbox_pred.weight": torch.ones(4, 1024)}
                | {"roi_heads.box_predictor.bbox_pred.bias": torch.ones(4)}
            ),
            "knows no class beside the background",
        ),
        (lambda state: state | {"epoch": 3}, "'epoch' is not a tensor"),
        (lambda state: [1, 2], "holds a list"),
        (lambda state: {"path": Path("x")}, "holds Python objects"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    change: Callable[[Any], object], message: str, small_state: dict[str, Tensor], tmp_path: Path
) -> None:
    path = tmp_path / "weights.pth"
    torch.save(change(small_state), path)
    with pytest.raises(DataError, match=message) as caught:
        build(settings(weights=str(path)), CPU)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_that_fit_are_read_as_they_are(small_state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(small_state, path)
    loaded = build(settings(weights=str(path)), CPU)._network.state_dict()
    assert loaded.keys() == small_state.keys()
    assert all(torch.equal(loaded[name], value) for name, value in small_state.items())


@pytest.mark.parametrize("name", ["weights.pth", "weights.pt", "weights.safetensors"])
def test_a_damaged_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04 not weights")
    with pytest.raises(DataError, match=name):
        build(settings(weights=str(tmp_path / name)), CPU)


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"'COCO_V7' are neither a file nor one of COCO_V1, DEFAULT"):
        build(settings(weights="COCO_V7"), CPU)
    (tmp_path / "weights.ckpt").touch()
    with pytest.raises(DataError, match=r"weights\.ckpt is no file of weights; name one that ends in \.pth"):
        build(settings(weights=str(tmp_path / "weights.ckpt")), CPU)


def test_torchvisions_weights_are_fetched_or_the_remedy_is_told(
    small_state: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: object, **options: object) -> None:
        raise URLError("no route")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", unreachable)
    cached = tmp_path / "hub" / "checkpoints" / FasterRCNN_ResNet50_FPN_V2_Weights.COCO_V1.url.rpartition("/")[2]
    with pytest.raises(MissingInputError) as caught:
        build(settings(weights="COCO_V1"), CPU)
    assert f"(<urlopen error no route>); put that file at {cached}, or name a local file" in str(caught.value)
    assert "\n" not in str(caught.value)
    cached.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(DataError, match="remove it, then it is fetched again"):
        build(settings(weights="COCO_V1"), CPU)
    torch.save(small_state, cached)
    loaded = build(settings(weights="DEFAULT"), CPU)._network.state_dict()
    assert torch.equal(loaded["rpn.head.cls_logits.bias"], small_state["rpn.head.cls_logits.bias"])
