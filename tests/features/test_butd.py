"""The bottom-up-attention detector against a recorded forward pass, from the decoded image to the regions kept."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from itrpipe.features.extractors.butd.anchors import caffe_anchors, place_anchors
from itrpipe.features.extractors.butd.declaration import Butd
from itrpipe.features.extractors.butd.extractor import pad_pictures
from itrpipe.features.extractors.butd.network import ButdNetwork, Predictions
from itrpipe.features.extractors.butd.selection import Picture, RegionRules, bgr_minus_mean, caffe_size
from itrpipe.features.extractors.butd.weights import load_network

REFERENCE = Path(__file__).resolve().parents[1] / "reference" / "butd_forward.npz"
CPU = torch.device("cpu")
# For each anchor in the order of the published conversion its place in Caffe's.
CAFFE_ORDER = torch.arange(12).view(3, 4).T.flatten()

Arrays = dict[str, np.ndarray]


def generated(reference: Arrays, name: str, shape: list[int]) -> np.ndarray:
    """The reference's random weights: a function of a tensor's name, with biases that are stored."""
    if name.endswith("cell_anchors.0"):
        return reference["anchors_cell"]
    if f"w_{name}" in reference:
        return reference[f"w_{name}"]
    bits = np.random.Philox(key=zlib.crc32(f"butd14:{name}".encode())).random_raw(int(np.prod(shape)))
    x = ((bits >> np.uint64(11)) / 2**53 * 2 - 1).reshape(shape)
    leaf = name.rpartition(".")[2]
    if ".norm." in name:
        factor = 0.3 if ".conv3.norm." in name else 1
        values = {"weight": factor * (1 + 0.2 * x), "running_var": 1 + 0.3 * x}.get(leaf, 0.1 * x)
    elif name.endswith("cls_embedding.weight"):
        values = 8 * x
    elif leaf == "weight":
        gain = json.loads(str(reference["meta"]))["gain"].get(name, np.sqrt(2))
        values = gain * np.sqrt(3 / np.prod(shape[1:])) * x
    else:
        values = 0.1 * x
    return values.astype(np.float32)


@pytest.fixture(scope="module")
def reference() -> Arrays:
    with np.load(REFERENCE, allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def network(reference: Arrays, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ButdNetwork]:
    path = tmp_path_factory.mktemp("weights") / "pytorch_model.bin"
    shapes = json.loads(str(reference["meta"]))["state_dict"]
    torch.save({name: torch.tensor(generated(reference, name, shape)) for name, shape in shapes.items()}, path)
    settings = Butd(
        kind="butd",
        weights=str(path),
        revision="main",
        precision="fp32",
        min_regions=36,
        max_regions=36,
        min_score=0,
    )
    network, notes = load_network(settings)
    path.unlink()  # a quarter of a gigabyte
    assert notes == ()
    with torch.inference_mode():
        yield network.for_inference(CPU, "fp32")


def resized(reference: Arrays, image: str, size: list[int]) -> Picture:
    """A picture of the size at which the reference was recorded, where each axis has a factor of its own."""
    pixels = bgr_minus_mean(rgb(reference[image]))[None]
    pixels = F.interpolate(pixels, size=size, mode="bilinear", align_corners=False)[0]
    return Picture.of(pixels, rgb(reference[image]), 1)


@pytest.fixture(scope="module")
def picture(reference: Arrays) -> Picture:
    return resized(reference, "in_image_bgr", reference["pre_sizes"][0].tolist())


@pytest.fixture(scope="module")
def feature_map(network: ButdNetwork, picture: Picture) -> Tensor:
    return network.feature_map(pad_pictures([picture]))


def rgb(bgr: np.ndarray) -> Tensor:
    return torch.tensor(np.ascontiguousarray(bgr[:, :, ::-1].transpose(2, 0, 1)))


def assert_close(actual: Tensor | np.ndarray, expected: np.ndarray, rtol: float = 1e-4) -> None:
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= rtol * np.abs(expected).max()


def assert_same(actual: Tensor, expected: np.ndarray) -> None:
    assert actual.tolist() == expected.tolist()


def test_generator_of_the_weights(reference: Arrays) -> None:
    shapes = json.loads(str(reference["meta"]))["state_dict"]
    names = json.loads(str(reference["meta"]))["gen_check_names"]
    values = np.stack([generated(reference, name, shapes[name]).ravel()[:4] for name in names])
    assert_close(values, reference["gen_check_first4"], rtol=1e-7)


def test_sizes_of_resized_images(reference: Arrays) -> None:
    sizes = reference["resize_800_1333_in_hw"].tolist()
    caffe = [list(caffe_size(height, width, 600, 1000)[1:]) for height, width in sizes]
    assert caffe == reference["resize_600_1000_out_hw"].tolist()


@pytest.mark.parametrize(
    ("image", "case"), [("in_image_bgr", "a"), ("batch_in_image2_bgr", "b"), ("caffe_pre_in_c_bgr", "c")]
)
def test_caffe_preprocessing(reference: Arrays, image: str, case: str) -> None:
    picture = RegionRules(36, 36, 0.2, short_side=225, long_side=300).resize(rgb(reference[image]))
    assert [1, 3, *picture.size] == reference[f"caffe_pre_shape_{case}"].tolist()
    assert picture.scale == pytest.approx(reference[f"caffe_pre_scale_{case}"].item(), rel=1e-6)
    expected = reference[f"caffe_pre_sub4_{case}"]
    assert np.abs(picture.pixels[None, :, ::4, ::4].numpy() - expected).max() < 1e-3
    height, width = reference[image].shape[:2]
    whole = picture.fractions(torch.tensor([0, 0, width, height]) * picture.scale)
    assert whole.tolist() == [0, 0, 1, 1]


def test_activations(reference: Arrays, network: ButdNetwork, picture: Picture) -> None:
    values = pad_pictures([picture])
    found = {name: (values := stage(values)) for name, stage in network.backbone.named_children()}
    assert_close(found["stem"][:, ::16, ::2, ::2], reference["act_stem"])
    assert_close(found["res2"][:, ::64], reference["act_res2"])
    assert_close(found["res3"][:, ::64], reference["act_res3"])
    assert_close(found["res4"][:, ::128], reference["act_res4"])


def test_region_proposal_head(reference: Arrays, network: ButdNetwork, feature_map: Tensor) -> None:
    height, width = feature_map.shape[-2:]
    logits, deltas = network.rpn_head(feature_map)
    assert_close(logits.view(1, height, width, 12).permute(0, 3, 1, 2), reference["rpn_logits"])
    maps = deltas.view(1, height, width, 48).permute(0, 3, 1, 2)
    assert_close(maps[:, :, ::3, ::4], reference["rpn_deltas_sub"])
    # Every proposal of the reference is one of these anchors, by falling logit.
    recorded = reference["proposal_logits"]
    assert (np.diff(recorded) <= 0).all()
    nearest = (logits.flatten()[:, None] - torch.tensor(recorded)).abs().amin(dim=0)
    assert nearest.max() < 1e-4


def test_anchors(reference: Arrays) -> None:
    assert_same(caffe_anchors()[CAFFE_ORDER.argsort()], reference["caffe_anchors_cell"])
    placed = place_anchors(14, 20, CPU).view(14, 20, 12, 4)
    assert list(placed.flatten(0, 2).shape) == reference["anchors_shape"][2:].tolist()
    assert_same(placed[3, 5] - caffe_anchors(), np.tile([80.0, 48.0], (12, 2)))


@pytest.mark.slow
def test_regions_and_what_is_said_of_them(reference: Arrays, network: ButdNetwork, feature_map: Tensor) -> None:
    features = network.region_features(feature_map, [torch.tensor(reference["proposals"])])
    said = network.box_predictor(features)
    classes, attributes = said.class_logits, said.attribute_logits
    assert_close(features[:, ::16], reference["roi_features_sub"])
    assert_close(features.norm(dim=1), reference["roi_feature_norm"])
    assert_close(classes[:, ::100], reference["roi_obj_logits_sub"])
    assert_close(classes.amax(dim=1), reference["roi_class_logit_max"])
    assert_same(classes.argmax(dim=1), reference["roi_class_incl_background"])
    assert_same(classes[:, :-1].argmax(dim=1), reference["roi_best_class"])
    assert_close(attributes[:, ::20], reference["roi_attr_logits_sub"])
    assert_same(attributes[:, :-1].argmax(dim=1), reference["roi_attr_argmax_fg"])


def test_padded_batch(reference: Arrays, network: ButdNetwork) -> None:
    """Two images of unequal size, the second of an odd size that tells Caffe's max pool from the usual one."""
    sizes = reference["batch_sizes"].tolist()
    images = ("in_image_bgr", "batch_in_image2_bgr")
    padded = pad_pictures([resized(reference, name, size) for name, size in zip(images, sizes, strict=True)])
    assert list(padded.shape) == reference["batch_shape"].tolist()
    assert_close(padded[1, :, ::8, ::8], reference["batch_tensor2_sub8"])
    assert_close(network.feature_map(padded)[:, ::128], reference["batch_act_res4"])


def test_what_is_too_small_or_outside_uses_up_no_candidates() -> None:
    """The 5,999 surest of 6,500 anchors lie outside."""
    sides = torch.tensor([0.0, 0, 20, 20])
    outside, inside = sides.repeat(5999, 1) + 200, sides.repeat(501, 1)
    inside[1:] += 50
    logits = torch.arange(6500, 0, -1) / 100
    picture = Picture(torch.zeros(3, 100, 100), 1, (100, 100, 100, 100))
    arguments = logits, torch.zeros(6500, 4), torch.cat([outside, inside]), picture
    assert RegionRules(1, 1, 0).propose(*arguments).tolist() == [[0, 0, 21, 21], [50, 50, 71, 71]]
    assert len(RegionRules(1, 1, 0, proposals=1).propose(*arguments)) == 1


def test_caffe_proposals(reference: Arrays) -> None:
    scores = torch.tensor(reference["caffe_rpn_in_cls_score"])[0].permute(1, 2, 0)  # [h, w, 24]
    logits = (scores[..., 12:] - scores[..., :12])[..., CAFFE_ORDER].flatten()
    deltas = torch.tensor(reference["caffe_rpn_in_bbox_pred"])[0].permute(1, 2, 0).unflatten(2, (12, 4))
    height, width, scale = reference["caffe_rpn_in_im_info"].tolist()
    picture = Picture(torch.zeros(3, int(height), int(width)), scale, (width, height, width, height))
    anchors = place_anchors(9, 13, CPU)
    rules = RegionRules(36, 36, 0.2)
    found = rules.propose(logits, deltas[:, :, CAFFE_ORDER].reshape(-1, 4), anchors, picture)
    expected = reference["caffe_rpn_out_rois"]
    assert found.shape == expected.shape
    assert np.abs(found.numpy() - expected).max() < 1e-3
    recorded = torch.tensor(reference["caffe_rpn_out_scores"])
    assert (logits.sigmoid()[:, None] - recorded).abs().amin(dim=0).max() < 1e-5


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        ((36, 36, 0.2), "36_36"),
        ((10, 100, 0.2), "10_100"),
        ((10, 20, 0.2), "10_20"),
        ((10, 100, 0.8), "10_100_strict"),
        ((10, 100, 0.97), "10_100_very_strict"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_caffe_selection(reference: Arrays, limits: tuple[int, int, float], name: str) -> None:
    proposals, scale = torch.tensor(reference["caffe_sel_in_rois"]), float(reference["caffe_sel_in_scale"])
    probabilities = torch.tensor(reference["caffe_sel_in_prob"]).roll(-1, dims=1)  # background last
    attributes = torch.zeros(150, 401).index_fill_(1, torch.tensor(7), 5)
    predictions = Predictions(probabilities.log(), attributes)
    picture = Picture(torch.zeros(3, 600, 800), scale, (800, 600, 800, 600))
    # A second image with fewer proposals is filled up and must change nothing.
    other = Predictions(*(part[:40] for part in (predictions.class_logits, attributes)))
    found, small = RegionRules(*limits).select([predictions, other], [proposals, proposals[:40]], [picture] * 2)
    assert_same(found.rows, reference[f"caffe_sel_out_index_{name}"])
    assert_same(found.labels, probabilities[found.rows, :-1].argmax(dim=1).numpy())
    assert_close(found.scores, probabilities[found.rows, :-1].amax(dim=1).numpy())
    assert found.attributes.tolist() == [7] * len(found.rows)
    assert_close(found.attribute_scores, attributes.softmax(dim=1)[found.rows, 7].numpy())
    assert_same(found.boxes, proposals[found.rows].numpy())
    assert limits[0] <= len(small.rows) <= limits[1]
    assert set(small.rows.tolist()) <= set(range(40))
    if name == "36_36":
        assert_close(found.boxes / scale, reference["caffe_sel_out_boxes_36_36"])


def test_caffe_overlaps_are_those_in_the_file() -> None:
    """Ten times enlarged, these two overlap by 0.28; in pixels of the file, which a width includes, by 0.32."""
    proposals = torch.tensor([[0.0, 0, 90, 90], [0, 51, 90, 141]])
    predictions = Predictions(torch.tensor([[9.0, 0, 0], [8, 0, 0]]), torch.zeros(2, 401))
    picture = Picture(torch.zeros(3, 200, 200), 10, (200, 200, 200, 200))
    found = RegionRules(1, 2, 0.5).select([predictions], [proposals], [picture])[0]
    assert found.rows.tolist() == [0]
    assert len(RegionRules(1, 2, 0.5).select([predictions], [proposals], [replace(picture, scale=1)])[0].rows) == 2
