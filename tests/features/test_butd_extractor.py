"""The extractor `butd` as the pipeline uses it: rows for the feature file, batches, odd images, precision."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from itrpipe.features.extractors.butd import extractor as butd
from itrpipe.features.extractors.butd.declaration import Butd
from itrpipe.features.extractors.butd.extractor import ButdExtractor, build, channels_first
from itrpipe.features.extractors.butd.network import ButdNetwork
from itrpipe.features.extractors.butd.selection import RegionRules, caffe_size
from itrpipe.features.extractors.butd.weights import random_network
from itrpipe.features.store import FeatureFile, stored_rows, write_features

CPU = torch.device("cpu")
# As much as a test can wait for.
FEW: dict[str, Any] = {"short_side": 64, "long_side": 120, "proposals": 8}
SIZES = np.array([[30, 40], [30, 40]])


@pytest.fixture(scope="module")
def network() -> ButdNetwork:
    return random_network().for_inference(CPU, "fp32")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `build` use small images and few proposals."""
    monkeypatch.setattr(butd, "RegionRules", partial(RegionRules, **FEW))


def settings(**changes: object) -> Butd:
    values = {
        "kind": "butd",
        "weights": "random",
        "revision": "main",
        "precision": "fp32",
        "min_regions": 3,
        "max_regions": 6,
        "min_score": 0.2,
    }
    return Butd.model_validate(values | changes)


def images(count: int, height: int = 30, width: int = 40) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)


@pytest.mark.usefixtures("small")
def test_rows_fit_the_feature_file(tmp_path: Path) -> None:
    extractor = build(settings(), CPU)
    rows = extractor(images(2), SIZES)
    path = tmp_path / "features.h5"
    write_features(path, ["a", "b"], extractor.spec, "butd", [(np.arange(2), stored_rows(extractor.spec, rows)[0])])
    stored = FeatureFile.open(path)
    assert stored.spec == extractor.spec
    assert stored.regions is not None
    assert stored.count is not None
    assert stored.regions.shape == (2, 6, 2048)
    assert ((stored.count >= 3) & (stored.count <= 6)).all()
    for image, count in enumerate(stored.count):
        for name, values in rows.items():
            assert name == "count" or not values[image, count:].any(), f"{name} beyond the count"
        kept = stored.regions[image, :count].astype(np.float32)
        assert (kept >= 0).all()
        assert (kept.std(axis=1) > 0).all()
    assert ((rows["labels"] >= 0) & (rows["labels"] < 1600)).all()
    assert ((rows["attributes"] >= 0) & (rows["attributes"] < 400)).all()
    assert rows["regions"].dtype == np.float16
    assert not (rows["regions"][0] == rows["regions"][1]).all()


@pytest.mark.usefixtures("small")
def test_build_passes_the_limits_on(network: ButdNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(butd, "load_network", lambda settings: (network, ()))
    few = {"max_regions": 8, "min_regions": 1}
    surest = build(settings(min_score=1, **few), CPU)(images(1), SIZES[:1])
    every = build(settings(min_score=0, **few), CPU)(images(1), SIZES[:1])
    least = build(settings(min_score=1, min_regions=4, max_regions=4), CPU)(images(1), SIZES[:1])
    assert (surest["count"][0], every["count"][0], least["count"][0]) == (1, 8, 4)


def test_an_image_has_the_same_features_alone_and_in_a_batch(network: ButdNetwork) -> None:
    extractor = ButdExtractor(network, RegionRules(4, 4, 0.2, **FEW), CPU)
    pair = images(2)
    together = extractor(pair, SIZES)
    for number, image in enumerate(pair):
        alone = extractor([image], SIZES[:1])
        for name, values in alone.items():
            assert np.allclose(values[0], together[name][number], rtol=2e-3, atol=1e-4), name


def test_blue_and_red_are_not_the_same(network: ButdNetwork) -> None:
    extractor = ButdExtractor(network, RegionRules(4, 4, 0.2, **FEW), CPU)
    picture = images(1)
    found, swapped = extractor(picture, SIZES[:1]), extractor(picture.flip(1), SIZES[:1])
    assert not np.allclose(found["regions"], swapped["regions"], rtol=0.01)


@pytest.mark.parametrize("size", [(1, 400), (400, 1), (2, 3), (1, 1)])
def test_lines_and_dots(network: ButdNetwork, size: tuple[int, int]) -> None:
    rows = ButdExtractor(network, RegionRules(2, 4, 0.2, **FEW), CPU)(images(1, *size), np.array([size]))
    assert 0 <= rows["count"][0] <= 4
    for name in ("regions", "boxes", "scores"):
        assert np.isfinite(rows[name]).all()
        assert not rows[name][0, rows["count"][0] :].any()


def test_an_image_without_proposals_has_no_region(network: ButdNetwork) -> None:
    """Proposals have at least 16 pixels of the file per side, and this one has 15 in all."""
    extractor = ButdExtractor(network, RegionRules(2, 4, 0.2, **FEW), CPU)
    dot = images(1, 15, 15)
    rows = extractor(dot, np.array([[15, 15]]))
    assert rows["count"].tolist() == [0]
    assert not any(values.any() for values in rows.values())
    mixed = extractor([dot[0], images(1)[0]], np.array([[15, 15], [30, 40]]))
    assert mixed["count"][0] == 0
    assert mixed["count"][1] >= 2


def test_sizes_are_never_empty() -> None:
    assert caffe_size(1, 10_000, 600, 1000) == (0.1, 1, 1000)


def test_transform_and_group(network: ButdNetwork) -> None:
    extractor = ButdExtractor(network, RegionRules(4, 4, 0.2), CPU)
    assert extractor.group(30, 40) == (30, 40)
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    turned = pickle.loads(pickle.dumps(extractor.transform))(image)
    assert turned.flags.c_contiguous
    assert turned.dtype == np.uint8
    assert np.array_equal(turned, image.transpose(2, 0, 1))
    assert extractor.transform is channels_first


def test_bfloat16_is_close_and_keeps_the_predictors_exact() -> None:
    exact, rounded = (random_network().for_inference(CPU, precision) for precision in ("fp32", "bf16"))
    assert rounded.box_predictor.cls_score.weight.dtype == rounded.rpn_head.anchor_deltas.weight.dtype == torch.float32
    generator = torch.Generator().manual_seed(0)
    picture = torch.randn(1, 3, 64, 96, generator=generator) * 50
    with torch.inference_mode():
        maps = exact.feature_map(picture), rounded.feature_map(picture)
        regions = [torch.tensor([[0.0, 0, 60, 60], [20, 10, 80, 50]])]
        vectors = exact.region_features(maps[0], regions), rounded.region_features(maps[1], regions)
    assert maps[1].dtype == torch.bfloat16
    assert vectors[1].dtype == torch.float32
    assert torch.cosine_similarity(*vectors).min() > 0.995
    assert not torch.equal(*vectors)


@pytest.fixture
def tf32_during_res5(network: ButdNetwork) -> Iterator[Callable[[], list[bool]]]:
    """Whether convolutions might round to TF32, at each run of the last stage."""
    seen: list[bool] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(torch.backends.cudnn.allow_tf32)

    hook = network.res5.register_forward_pre_hook(look)
    yield lambda: seen
    hook.remove()


def test_single_precision_is_not_tf32(
    network: ButdNetwork, tf32_during_res5: Callable[[], list[bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    ButdExtractor(network, RegionRules(4, 4, 0.2, **FEW), CPU)(images(1), SIZES[:1])
    assert tf32_during_res5() == [False]
    assert torch.backends.cudnn.allow_tf32


def test_many_regions_run_in_parts(network: ButdNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    feature_map = torch.rand(2, 1024, 6, 6, generator=torch.Generator().manual_seed(0))
    corners = torch.rand(9, 2, generator=torch.Generator().manual_seed(1)) * 40
    boxes = torch.cat([corners, corners + 40], dim=1)
    with torch.inference_mode():
        whole = network.region_features(feature_map, [boxes[:5], boxes[5:]])
        monkeypatch.setattr("itrpipe.features.extractors.butd.network._REGIONS_AT_ONCE", 2)
        parts = network.region_features(feature_map, [boxes[:5], boxes[5:]])
        assert network.region_features(feature_map, [boxes[:0], boxes[:0]]).shape == (0, 2048)
    assert torch.allclose(whole, parts, rtol=1e-4)
    assert not torch.allclose(whole[0], whole[5], rtol=1e-2)
