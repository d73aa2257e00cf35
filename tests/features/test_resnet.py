"""Convolutional networks: their grid against transformers' own feature map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from itrpipe.errors import DataError, UsageError
from itrpipe.features.extractors.pretrained import RANDOM_NOTE
from itrpipe.features.extractors.resnet import extractor as resnet
from itrpipe.features.extractors.resnet.declaration import Resnet
from itrpipe.features.store import FeatureSpec

WIDTHS: dict[str, Any] = {"hidden_sizes": [8, 16], "depths": [1, 1]}


def make(name: str) -> Any:
    t = transformers
    if name == "resnet":
        return t.ResNetModel(t.ResNetConfig(embedding_size=8, layer_type="bottleneck", **WIDTHS))
    if name == "resnet_classifier":
        return t.ResNetForImageClassification(t.ResNetConfig(embedding_size=8, layer_type="basic", **WIDTHS))
    if name == "regnet":
        return t.RegNetModel(t.RegNetConfig(embedding_size=8, groups_width=4, **WIDTHS))
    if name == "convnext":
        return t.ConvNextModel(t.ConvNextConfig(num_stages=2, **WIDTHS))
    return t.ConvNextV2Model(t.ConvNextV2Config(num_stages=2, **WIDTHS))


NAMES = ("resnet", "resnet_classifier", "regnet", "convnext", "convnextv2")
# 48 x 64 pixels at a stride of eight: six rows and eight columns, which a mistaken order would show.
ROWS, COLUMNS = 6, 8


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for number, name in enumerate(NAMES):
        torch.manual_seed(number)
        found[name] = tmp_path_factory.mktemp(name)
        model = make(name)
        for tensor in [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]:
            tensor.data += 0.1 * torch.rand_like(tensor)  # away from the identity; a variance stays positive
        model.save_pretrained(found[name])
        transformers.ViTImageProcessor(size={"height": 48, "width": 64}).save_pretrained(found[name])
    return found


def settings_of(folder: Path, weights: str = "pretrained", precision: str = "fp32") -> Resnet:
    return Resnet.model_validate(
        {"kind": "resnet", "model": str(folder), "revision": "main", "weights": weights, "precision": precision}
    )


def photos(count: int = 2) -> list[np.ndarray]:
    generator = np.random.default_rng(5)
    return [generator.integers(0, 256, (40 + 9 * number, 50, 3), dtype=np.uint8) for number in range(count)]


def extract(extractor: Any, images: list[np.ndarray]) -> dict[str, np.ndarray]:
    frames = torch.stack([torch.from_numpy(extractor.transform(image)) for image in images])
    return extractor(frames, np.array([image.shape[:2] for image in images]))


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_transformers(name: str, folders: dict[str, Path]) -> None:
    extractor = resnet.build(settings_of(folders[name]), "cpu")
    found = extract(extractor, photos())
    model = transformers.AutoModel.from_pretrained(folders[name]).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folders[name])
    with torch.no_grad():
        expected = model(processor(photos(), return_tensors="pt").pixel_values)
    feature_map = expected.last_hidden_state.numpy()
    width = feature_map.shape[1]
    assert feature_map.shape[2:] == (ROWS, COLUMNS)
    assert extractor.spec == FeatureSpec(ROWS * COLUMNS, width, width, boxes=True)
    scale = np.abs(feature_map).max()
    for row, column in np.ndindex(ROWS, COLUMNS):
        region = found["regions"][:, row * COLUMNS + column]
        np.testing.assert_allclose(region, feature_map[:, :, row, column], rtol=2e-3, atol=1e-3 * scale)
    np.testing.assert_allclose(found["global"], expected.pooler_output.flatten(1), rtol=2e-3, atol=1e-3 * scale)
    assert found["regions"].dtype == found["global"].dtype == np.float16
    assert (found["count"] == ROWS * COLUMNS).all()


def test_boxes_divide_the_image_row_by_row(folders: dict[str, Path]) -> None:
    boxes = extract(resnet.build(settings_of(folders["resnet"]), "cpu"), photos())["boxes"]
    assert boxes.shape == (2, ROWS * COLUMNS, 4)
    assert boxes[0, 0] == pytest.approx([0, 0, 1 / 8, 1 / 6])
    assert boxes[1, 1] == pytest.approx([1 / 8, 0, 2 / 8, 1 / 6])
    assert boxes[1, COLUMNS] == pytest.approx([0, 1 / 6, 1 / 8, 2 / 6])
    assert boxes[0, -1] == pytest.approx([7 / 8, 5 / 6, 1, 1])


def test_bf16_is_near_fp32(folders: dict[str, Path]) -> None:
    exact = extract(resnet.build(settings_of(folders["resnet"]), "cpu"), photos())["regions"].astype(float)
    coarse = extract(resnet.build(settings_of(folders["resnet"], precision="bf16"), "cpu"), photos())["regions"]
    difference = np.abs(exact - coarse).max() / np.abs(exact).max()
    assert 1e-4 < difference < 0.05


def test_convolutions_run_with_channels_last(folders: dict[str, Path]) -> None:
    extractor = resnet.build(settings_of(folders["resnet"]), "cpu")
    weights = [value for value in extractor.network.parameters() if value.ndim == 4 and value.shape[2:] != (1, 1)]
    assert weights
    assert all(value.is_contiguous(memory_format=torch.channels_last) for value in weights)
    assert not extractor.network.training


def test_random_weights_say_what_they_are(folders: dict[str, Path]) -> None:
    first = resnet.build(settings_of(folders["convnext"], weights="random"), "cpu")
    second = resnet.build(settings_of(folders["convnext"], weights="random"), "cpu")
    assert first.notes == (RANDOM_NOTE,)
    assert np.array_equal(extract(first, photos())["regions"], extract(second, photos())["regions"])


def test_counters_of_batches_may_be_missing_and_statistics_may_not(folders: dict[str, Path], tmp_path: Path) -> None:
    state = load_file(folders["resnet"] / "model.safetensors")
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_bytes((folders["resnet"] / name).read_bytes())
    expected = extract(resnet.build(settings_of(folders["resnet"]), "cpu"), photos())["regions"]
    without_counters = {key: value for key, value in state.items() if "num_batches_tracked" not in key}
    save_file(without_counters, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert np.array_equal(extract(resnet.build(settings_of(tmp_path), "cpu"), photos())["regions"], expected)
    without_means = {key: value for key, value in state.items() if "running_mean" not in key}
    save_file(without_means, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match="running_mean"):
        resnet.build(settings_of(tmp_path), "cpu")


def test_transformers_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    for name in ("preprocessor_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folders["resnet"] / name).read_bytes())
    with pytest.raises(UsageError, match="model type 'vit' is not supported, supported are resnet, regnet"):
        resnet.build(settings_of(tmp_path), "cpu")


def test_a_loaded_network_can_be_trained(folders: dict[str, Path]) -> None:
    network = resnet.load(settings_of(folders["resnet"])).network.train()
    found = network(torch.randn(2, 3, 44, 64))
    (found.regions.sum() + found.global_.sum()).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert found.grid == (ROWS, COLUMNS, 44 / ROWS, 8)  # a last row of half a stride has its share too
