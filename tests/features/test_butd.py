"""The bottom-up-attention detector against a recorded forward pass, from the decoded image to the regions kept."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from itrpipe.features.extractors.butd.anchors import caffe_anchors, exact_anchors, from_caffe_order, place_anchors
from itrpipe.features.extractors.butd.caffe_profile import CaffeProfile, caffe_size
from itrpipe.features.extractors.butd.declaration import Butd
from itrpipe.features.extractors.butd.extractor import ButdExtractor, pad_pictures, propose
from itrpipe.features.extractors.butd.hub_profile import HubProfile, hub_size
from itrpipe.features.extractors.butd.network import ButdNetwork, Predictions
from itrpipe.features.extractors.butd.profiles import Picture, Selection
from itrpipe.features.extractors.butd.weights import load_network

REFERENCE = Path(__file__).resolve().parents[1] / "reference" / "butd_forward.npz"
CPU = torch.device("cpu")
# The reference was recorded on images of this size.
SMALL = HubProfile(minimum=36, maximum=36, short_side=224, long_side=400)

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Forward:
    """One picture's way through the network: 300 proposals and what is said of them."""

    picture: Picture
    feature_map: Tensor
    proposals: Tensor
    features: Tensor
    predictions: Predictions

    def select(self, profile: HubProfile) -> Selection:
        return profile.select([self.predictions], [self.proposals], [self.picture])[0]


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
        profile="hub",
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


@pytest.fixture(scope="module")
def forward(reference: Arrays, network: ButdNetwork) -> Forward:
    picture = SMALL.resize(rgb(reference["in_image_bgr"]))
    feature_map = network.feature_map(pad_pictures([picture]))
    proposals = propose(network, SMALL, feature_map, [picture])
    features = network.region_features(feature_map, proposals)
    return Forward(picture, feature_map, proposals[0], features, network.box_predictor(features))


def rgb(bgr: np.ndarray) -> Tensor:
    return torch.tensor(np.ascontiguousarray(bgr[:, :, ::-1].transpose(2, 0, 1)))


def assert_close(actual: Tensor | np.ndarray, expected: np.ndarray, rtol: float = 1e-4) -> None:
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= rtol * np.abs(expected).max()


def assert_same(actual: Tensor, expected: np.ndarray) -> None:
    assert actual.tolist() == expected.tolist()


def in_file_pixels(picture: Picture, boxes: Tensor) -> np.ndarray:
    scale = (picture.scale_x, picture.scale_y, picture.scale_x, picture.scale_y)
    return (boxes / torch.tensor(scale)).numpy()


def test_generator_of_the_weights(reference: Arrays) -> None:
    shapes = json.loads(str(reference["meta"]))["state_dict"]
    names = json.loads(str(reference["meta"]))["gen_check_names"]
    values = np.stack([generated(reference, name, shapes[name]).ravel()[:4] for name in names])
    assert_close(values, reference["gen_check_first4"], rtol=1e-7)


def test_sizes_of_resized_images(reference: Arrays) -> None:
    sizes = reference["resize_800_1333_in_hw"].tolist()
    hub = [list(hub_size(height, width, 800, 1333)) for height, width in sizes]
    caffe = [list(caffe_size(height, width, 600, 1000)[1:]) for height, width in sizes]
    assert hub == reference["resize_800_1333_out_hw"].tolist()
    assert caffe == reference["resize_600_1000_out_hw"].tolist()


def test_hub_preprocessing(reference: Arrays) -> None:
    picture = SMALL.resize(rgb(reference["in_image_bgr"]))
    assert list(picture.size) == reference["pre_sizes"][0].tolist()
    assert_close(picture.pixels[None, :, ::4, ::4], reference["pre_tensor_sub4"])
    assert_close(picture.pixels.double().sum(dim=(1, 2)), reference["pre_sum"])
    assert_close(np.array([1 / picture.scale_y, 1 / picture.scale_x]), reference["pre_scales_yx"][0], rtol=1e-6)


def test_hub_shrinks_without_antialiasing(reference: Arrays) -> None:
    picture = HubProfile(36, 36, short_side=61, long_side=90).resize(rgb(reference["down_in_bgr"]))
    assert list(picture.size) == reference["down_sizes"][0].tolist()
    assert_close(picture.pixels[None], reference["down_out"])
    assert_close(np.array([1 / picture.scale_y, 1 / picture.scale_x]), reference["down_scales_yx"][0], rtol=1e-6)


@pytest.mark.parametrize(
    ("image", "case"), [("in_image_bgr", "a"), ("batch_in_image2_bgr", "b"), ("caffe_pre_in_c_bgr", "c")]
)
def test_caffe_preprocessing(reference: Arrays, image: str, case: str) -> None:
    picture = CaffeProfile(36, 36, 0.2, short_side=225, long_side=300).resize(rgb(reference[image]))
    assert [1, 3, *picture.size] == reference[f"caffe_pre_shape_{case}"].tolist()
    assert picture.scale_x == picture.scale_y == pytest.approx(reference[f"caffe_pre_scale_{case}"].item(), rel=1e-6)
    expected = reference[f"caffe_pre_sub4_{case}"]
    assert np.abs(picture.pixels[None, :, ::4, ::4].numpy() - expected).max() < 1e-3
    height, width = reference[image].shape[:2]
    whole = picture.fractions(torch.tensor([0, 0, width, height]) * picture.scale_x)
    assert whole.tolist() == [0, 0, 1, 1]


def test_activations(reference: Arrays, network: ButdNetwork, forward: Forward) -> None:
    values = pad_pictures([forward.picture])
    found = {name: (values := stage(values)) for name, stage in network.backbone.named_children()}
    assert_close(found["stem"][:, ::16, ::2, ::2], reference["act_stem"])
    assert_close(found["res2"][:, ::64], reference["act_res2"])
    assert_close(found["res3"][:, ::64], reference["act_res3"])
    assert_close(found["res4"][:, ::128], reference["act_res4"])


def test_region_proposal_head(reference: Arrays, network: ButdNetwork, forward: Forward) -> None:
    height, width = forward.feature_map.shape[-2:]
    logits, deltas = network.rpn_head(forward.feature_map)
    assert_close(logits.view(1, height, width, 12).permute(0, 3, 1, 2), reference["rpn_logits"])
    maps = deltas.view(1, height, width, 48).permute(0, 3, 1, 2)
    assert_close(maps[:, :, ::3, ::4], reference["rpn_deltas_sub"])
    # Every proposal of the reference is one of these anchors, by falling logit.
    recorded = reference["proposal_logits"]
    assert (np.diff(recorded) <= 0).all()
    nearest = (logits.flatten()[:, None] - torch.tensor(recorded)).abs().amin(dim=0)
    assert nearest.max() < 1e-4


def test_anchors(reference: Arrays) -> None:
    assert_close(exact_anchors(), reference["anchors_cell"], rtol=1e-6)
    assert_same(caffe_anchors()[from_caffe_order().argsort()], reference["caffe_anchors_cell"])
    placed = place_anchors(exact_anchors(), 14, 20)
    assert list(placed.shape) == reference["anchors_shape"][2:].tolist()
    assert_close(torch.cat([placed[:36], placed[-24:]]), reference["anchors_first_and_last_cells"], rtol=1e-6)


def test_hub_proposals(reference: Arrays, forward: Forward) -> None:
    assert_close(forward.proposals, reference["proposals"])


@pytest.mark.slow
def test_regions_and_what_is_said_of_them(reference: Arrays, forward: Forward) -> None:
    said = forward.predictions
    classes, deltas, attributes = said.class_logits, said.deltas, said.attribute_logits
    assert_close(forward.features[:, ::16], reference["roi_features_sub"])
    assert_close(forward.features.norm(dim=1), reference["roi_feature_norm"])
    assert_close(classes[:, ::100], reference["roi_obj_logits_sub"])
    assert_close(classes.amax(dim=1), reference["roi_class_logit_max"])
    assert_same(classes.argmax(dim=1), reference["roi_class_incl_background"])
    best = classes[:, :-1].argmax(dim=1)
    assert_same(best, reference["roi_best_class"])
    assert_close(deltas[torch.arange(300), best], reference["roi_deltas_of_best_class"])
    assert_close(attributes[:, ::20], reference["roi_attr_logits_sub"])
    assert_same(attributes[:, :-1].argmax(dim=1), reference["roi_attr_argmax_fg"])


def test_hub_regions_of_the_fixed_count(reference: Arrays, forward: Forward) -> None:
    found = forward.select(SMALL)
    assert_same(found.labels[None], reference["out_obj_ids"])
    assert_same(found.attributes[None], reference["out_attr_ids"])
    assert_close(found.scores[None], reference["out_obj_probs"])
    assert_close(found.attribute_scores[None], reference["out_attr_probs"])
    assert_close(in_file_pixels(forward.picture, found.boxes)[None], reference["out_boxes"])
    assert_close(forward.picture.fractions(found.boxes)[None], reference["out_normalized_boxes"])
    assert_close(forward.features[found.rows][None], reference["out_roi_features"])
    assert [len(found.rows)] == reference["out_preds_per_image"].tolist()
    assert list(forward.picture.size) == reference["out_sizes"][0].tolist()


def test_hub_regions_of_a_free_count(reference: Arrays, forward: Forward) -> None:
    found = forward.select(replace(SMALL, minimum=10, maximum=100))
    assert_same(found.labels, reference["out10to100_obj_ids"])
    assert_same(found.attributes, reference["out10to100_attr_ids"])
    assert_close(found.scores, reference["out10to100_obj_probs"])
    assert_close(found.attribute_scores, reference["out10to100_attr_probs"])
    assert_close(in_file_pixels(forward.picture, found.boxes), reference["out10to100_boxes"])


def test_padded_batch(reference: Arrays, network: ButdNetwork) -> None:
    """Two images of unequal size, the second of an odd size that tells Caffe's max pool from the usual one."""
    profile = replace(SMALL, minimum=8, maximum=20, proposals=40)
    images = [rgb(reference["in_image_bgr"]), rgb(reference["batch_in_image2_bgr"])]
    pictures = [profile.resize(image) for image in images]
    padded = pad_pictures(pictures)
    assert list(padded.shape) == reference["batch_shape"].tolist()
    assert [list(picture.size) for picture in pictures] == reference["batch_sizes"].tolist()
    scales = np.array([[1 / picture.scale_y, 1 / picture.scale_x] for picture in pictures])
    assert_close(scales, reference["batch_scales_yx"], rtol=1e-6)
    assert_close(padded[1, :, ::8, ::8], reference["batch_tensor2_sub8"])
    feature_map = network.feature_map(padded)
    assert_close(feature_map[:, ::128], reference["batch_act_res4"])
    for row, proposals in enumerate(propose(network, profile, feature_map, pictures)):
        assert_close(proposals, reference[f"batch_proposals{row}"])
    found = ButdExtractor(network, profile, CPU).detect(images)
    assert [len(image["labels"]) for image in found] == reference["batch_out_preds_per_image"].tolist()
    for row, (image, picture) in enumerate(zip(found, pictures, strict=True)):
        assert list(picture.size) == reference["batch_out_sizes"][row].tolist()
        assert_same(image["labels"], reference["batch_out_obj_ids"][row])
        assert_same(image["attributes"], reference["batch_out_attr_ids"][row])
        assert_close(image["scores"], reference["batch_out_obj_probs"][row])
        assert_close(image["attribute_scores"], reference["batch_out_attr_probs"][row])
        assert_close(image["regions"][:, ::32], reference["batch_out_roi_features_sub"][row])
        height, width = images[row].shape[-2:]
        assert_close(image["boxes"] * torch.tensor([width, height, width, height]), reference["batch_out_boxes"][row])


def test_what_is_outside_uses_up_candidates_in_hub_only() -> None:
    """The 5,999 surest of 6,500 anchors lie outside: `hub` takes 6,000 candidates before it drops them."""
    sides = torch.tensor([0.0, 0, 20, 20])
    outside, inside = sides.repeat(5999, 1) + 200, sides.repeat(501, 1)
    inside[1:] += 50
    logits = torch.arange(6500, 0, -1) / 100
    picture = Picture(torch.zeros(3, 100, 100), 1, 1, (100, 100, 100, 100))
    arguments = logits, torch.zeros(6500, 4), torch.cat([outside, inside]), picture
    assert HubProfile(1, 1).propose(*arguments).tolist() == [[0, 0, 20, 20]]
    assert CaffeProfile(1, 1, 0).propose(*arguments).tolist() == [[0, 0, 21, 21], [50, 50, 71, 71]]
    assert len(CaffeProfile(1, 1, 0, proposals=1).propose(*arguments)) == 1


@dataclass(frozen=True)
class HubCandidates:
    """Sixty proposals of a made-up image and what a network of twenty classes says of them."""

    predictions: Predictions
    proposals: Tensor
    picture: Picture

    def select(self, **changes: object) -> Selection:
        profile = replace(HubProfile(36, 36, thresholds=(0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)), **changes)
        return profile.select([self.predictions], [self.proposals], [self.picture])[0]


@pytest.fixture
def candidates(reference: Arrays) -> HubCandidates:
    arrays = (torch.tensor(reference[f"sel_in_{name}"]) for name in ("obj_logits", "deltas", "attr_logits"))
    logits, deltas, attributes = arrays
    height, width = reference["sel_in_size_hw"].tolist()
    # The recorded scale leads from the resized image to the file.
    scale_y, scale_x = (1 / reference["sel_in_scale_yx"]).tolist()
    picture = Picture(torch.zeros(3, height, width), scale_y, scale_x, (width, height, width, height))
    predictions = Predictions(logits, deltas.unflatten(1, (-1, 4)), attributes)
    return HubCandidates(predictions, torch.tensor(reference["sel_in_proposals"]), picture)


def test_hub_selection_tries_thresholds_in_turn(reference: Arrays, candidates: HubCandidates) -> None:
    found = candidates.select()
    assert_same(found.labels, reference["sel_out_obj_ids"])
    assert_same(found.attributes, reference["sel_out_attr_ids"])
    assert_close(found.scores, reference["sel_out_obj_probs"])
    assert_close(found.attribute_scores, reference["sel_out_attr_probs"])
    assert_close(in_file_pixels(candidates.picture, found.boxes), reference["sel_out_boxes"])
    assert_close(reference["sel_in_features"][found.rows], reference["sel_out_features"], rtol=0)
    for threshold, count in zip(range(3, 10), reference["sel_count_at_each_threshold"].tolist(), strict=True):
        assert len(candidates.select(minimum=1, maximum=60, thresholds=(threshold / 10,)).rows) == count


def test_hub_decodes_boxes_of_every_class(reference: Arrays, candidates: HubCandidates) -> None:
    """One class after the other made the surest; a picture without borders leaves the boxes as they were decoded."""
    expected = torch.tensor(reference["sel_all_boxes_before_clip"]).view(60, 20, 4)
    endless = Picture(torch.empty(3, 10**6, 10**6, device="meta"), 1, 1, (1e6, 1e6, 1e6, 1e6))
    for label in range(20):
        logits = torch.zeros(60, 21).index_fill_(1, torch.tensor(label), 9)
        predictions = replace(candidates.predictions, class_logits=logits)
        # No threshold: everything is kept, by falling score and so in its order.
        profile = HubProfile(60, 60, thresholds=())
        found = profile.select([predictions], [candidates.proposals], [endless])[0]
        assert_same(found.rows, np.arange(60))
        assert_close(found.boxes, expected[:, label].clamp(min=0).numpy())


def test_hub_keeps_the_surest_where_no_threshold_leaves_enough(candidates: HubCandidates) -> None:
    scores = candidates.predictions.class_logits.softmax(dim=1)[:, :-1].amax(dim=1)
    found = candidates.select(minimum=30, maximum=50, thresholds=(0.3,))
    assert found.rows.tolist() == scores.argsort(descending=True)[:30].tolist()
    assert len(candidates.select(minimum=70, maximum=80).rows) == 60


def test_hub_default_thresholds() -> None:
    assert HubProfile(36, 36).thresholds == (0.5, 0.6, 0.7, 0.8, 0.9)


def test_caffe_proposals(reference: Arrays) -> None:
    scores = torch.tensor(reference["caffe_rpn_in_cls_score"])[0].permute(1, 2, 0)  # [h, w, 24]
    logits = (scores[..., 12:] - scores[..., :12])[..., from_caffe_order()].flatten()
    deltas = torch.tensor(reference["caffe_rpn_in_bbox_pred"])[0].permute(1, 2, 0).unflatten(2, (12, 4))
    height, width, scale = reference["caffe_rpn_in_im_info"].tolist()
    picture = Picture(torch.zeros(3, int(height), int(width)), scale, scale, (width, height, width, height))
    anchors = place_anchors(caffe_anchors(), 9, 13)
    profile = CaffeProfile(36, 36, 0.2)
    found = profile.propose(logits, deltas[:, :, from_caffe_order()].reshape(-1, 4), anchors, picture)
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
    predictions = Predictions(probabilities.log(), torch.zeros(150, 15, 4), attributes)
    picture = Picture(torch.zeros(3, 600, 800), scale, scale, (800, 600, 800, 600))
    # A second image with fewer proposals is filled up and must change nothing.
    other = Predictions(*(part[:40] for part in (predictions.class_logits, predictions.deltas, attributes)))
    found, small = CaffeProfile(*limits).select([predictions, other], [proposals, proposals[:40]], [picture] * 2)
    assert_same(found.rows, reference[f"caffe_sel_out_index_{name}"])
    assert_same(found.labels, probabilities[found.rows, :-1].argmax(dim=1).numpy())
    assert_close(found.scores, probabilities[found.rows, :-1].amax(dim=1).numpy())
    assert found.attributes.tolist() == [7] * len(found.rows)
    assert_close(found.attribute_scores, attributes.softmax(dim=1)[found.rows, 7].numpy())
    assert_same(found.boxes, proposals[found.rows].numpy())
    assert limits[0] <= len(small.rows) <= limits[1]
    assert set(small.rows.tolist()) <= set(range(40))
    if name == "36_36":
        assert_close(in_file_pixels(picture, found.boxes), reference["caffe_sel_out_boxes_36_36"])


def test_caffe_overlaps_are_those_in_the_file() -> None:
    """Ten times enlarged, these two overlap by 0.28; in pixels of the file, which a width includes, by 0.32."""
    proposals = torch.tensor([[0.0, 0, 90, 90], [0, 51, 90, 141]])
    predictions = Predictions(torch.tensor([[9.0, 0, 0], [8, 0, 0]]), torch.zeros(2, 2, 4), torch.zeros(2, 401))
    picture = Picture(torch.zeros(3, 200, 200), 10, 10, (200, 200, 200, 200))
    found = CaffeProfile(1, 2, 0.5).select([predictions], [proposals], [picture])[0]
    assert found.rows.tolist() == [0]
    assert len(CaffeProfile(1, 2, 0.5).select([predictions], [proposals], [replace(picture, scale_x=1)])[0].rows) == 2
