"""Vision transformers: every family against transformers' own forward, and the boxes of its patches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from itrpipe.errors import DataError, UsageError
from itrpipe.features.extractors.pretrained import GridExtractor
from itrpipe.features.extractors.vit import extractor as vit
from itrpipe.features.extractors.vit.declaration import Vit
from itrpipe.features.store import FeatureFile, stored_rows, write_features

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
SIZES = np.array([[30, 50], [50, 30], [40, 40]])

Reference = Callable[[Any, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def class_token(first: int) -> Reference:
    def read(model: Any, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = model(pixel_values=pixels).last_hidden_state
        return tokens[:, first:], tokens[:, 0]

    return read


def beit(model: Any, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = model(pixel_values=pixels)
    return found.last_hidden_state[:, 1:], found.pooler_output


def clip_joint(model: Any, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = model.vision_model(pixel_values=pixels).last_hidden_state
    patches = model.vision_model.post_layernorm(tokens[:, 1:])
    return patches, model.get_image_features(pixel_values=pixels).pooler_output


def clip_vision(model: Any, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = model(pixel_values=pixels)
    return model.post_layernorm(found.last_hidden_state[:, 1:]), found.pooler_output


def clip_projected(model: Any, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = model(pixel_values=pixels)
    return model.vision_model.post_layernorm(found.last_hidden_state[:, 1:]), found.image_embeds


def siglip_joint(model: Any, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = model.vision_model(pixel_values=pixels).last_hidden_state
    return tokens, model.get_image_features(pixel_values=pixels).pooler_output


def siglip_vision(model: Any, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = model(pixel_values=pixels)
    return found.last_hidden_state, found.pooler_output


def make(name: str) -> tuple[Any, Any, Reference]:
    """A tiny network with random weights, its image processor, and the vectors that are expected of it."""
    t = transformers
    stretch, middle = t.ViTImageProcessor(size=32), t.BitImageProcessor(size={"shortest_edge": 40}, crop_size=32)
    clip = t.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32)
    siglip = t.SiglipImageProcessor(size={"height": 32, "width": 32})
    made: dict[str, Callable[[], tuple[Any, Any, Reference]]] = {
        "vit": lambda: (t.ViTModel(t.ViTConfig(**SMALL)), stretch, class_token(1)),
        "vit_classifier": lambda: (t.ViTForImageClassification(t.ViTConfig(**SMALL)), stretch, class_token(1)),
        "vit_msn": lambda: (t.ViTMSNModel(t.ViTMSNConfig(**SMALL)), stretch, class_token(1)),
        "deit": lambda: (
            t.DeiTModel(t.DeiTConfig(**SMALL)),
            t.DeiTImageProcessor(size=40, crop_size=32),
            class_token(2),
        ),
        "beit": lambda: (t.BeitModel(t.BeitConfig(**SMALL)), t.BeitImageProcessor(size=32), beit),
        "dinov2": lambda: (t.Dinov2Model(t.Dinov2Config(**{**SMALL, "image_size": 48})), middle, class_token(1)),
        "dinov2_registers": lambda: (
            t.Dinov2WithRegistersModel(t.Dinov2WithRegistersConfig(**SMALL, num_register_tokens=4)),
            middle,
            class_token(5),
        ),
        "dinov3": lambda: (
            t.DINOv3ViTModel(t.DINOv3ViTConfig(**SMALL, num_register_tokens=3)),
            t.DINOv3ViTImageProcessor(size=32),
            class_token(4),
        ),
        "clip": lambda: (
            t.CLIPModel(t.CLIPConfig(vision_config=SMALL, text_config=TEXT, projection_dim=24)),
            clip,
            clip_joint,
        ),
        "clip_vision": lambda: (t.CLIPVisionModel(t.CLIPVisionConfig(**SMALL)), clip, clip_vision),
        "clip_projected": lambda: (
            t.CLIPVisionModelWithProjection(t.CLIPVisionConfig(**SMALL, projection_dim=24)),
            clip,
            clip_projected,
        ),
        "siglip": lambda: (
            t.SiglipModel(t.SiglipConfig(vision_config=SMALL, text_config=TEXT)),
            siglip,
            siglip_joint,
        ),
        "siglip_vision": lambda: (t.SiglipVisionModel(t.SiglipVisionConfig(**SMALL)), siglip, siglip_vision),
    }
    return made[name]()


NAMES = (
    *("vit", "vit_classifier", "vit_msn", "deit", "beit", "dinov2", "dinov2_registers", "dinov3"),
    *("clip", "clip_vision", "clip_projected", "siglip", "siglip_vision"),
)
GLOBAL_DIM = {"clip": 24, "clip_projected": 24}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each kind of checkpoint, as `save_pretrained` writes it."""
    found = {}
    for number, name in enumerate(NAMES):
        torch.manual_seed(number)
        model, processor, _ = make(name)
        # Norms start as the identity, and position embeddings near zero; moved away, so that a test would see them.
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        found[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(found[name])
        processor.save_pretrained(found[name])
    return found


def settings_of(folder: Path | str, weights: str = "pretrained", precision: str = "fp32") -> Vit:
    return Vit.model_validate(
        {"kind": "vit", "model": str(folder), "revision": "main", "weights": weights, "precision": precision}
    )


def photos() -> list[np.ndarray]:
    generator = np.random.default_rng(5)
    return [generator.integers(0, 256, (height, width, 3), dtype=np.uint8) for height, width in SIZES]


def extract(extractor: GridExtractor, images: list[np.ndarray]) -> dict[str, np.ndarray]:
    frames = torch.stack([torch.from_numpy(extractor.transform(image)) for image in images])
    return extractor(frames, np.array([image.shape[:2] for image in images]))


def copy(folder: Path, tmp_path: Path, **changes: Any) -> Path:
    """A copy of a checkpoint with changed settings of the network."""
    target = tmp_path / "model"
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return target


@pytest.mark.parametrize("name", NAMES)
def test_vectors_are_those_of_transformers(name: str, folders: dict[str, Path]) -> None:
    extractor = vit.build(settings_of(folders[name]), "cpu")
    found = extract(extractor, photos())
    whole, _, reference = make(name)
    # The class that saved it, but for a classifier: its base.
    loader = transformers.ViTModel if name == "vit_classifier" else type(whole)
    model = loader.from_pretrained(folders[name]).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folders[name])
    with torch.no_grad():
        regions, global_ = reference(model, processor(photos(), return_tensors="pt").pixel_values)
    assert found["regions"].shape == (3, 16, 32)
    assert found["regions"].dtype == found["global"].dtype == np.float16
    assert found["global"].shape == (3, GLOBAL_DIM.get(name, 32))
    # float16 keeps eleven bits; DINOv3's frames are rounded to bytes besides.
    tolerance = 0.1 if name == "dinov3" else 2e-3
    np.testing.assert_allclose(found["regions"], regions.numpy(), rtol=1e-3, atol=tolerance)
    np.testing.assert_allclose(found["global"], global_.numpy(), rtol=1e-3, atol=tolerance)
    assert regions.std() > 0.3
    assert (found["count"] == 16).all()
    assert (extractor.spec.regions, extractor.spec.region_dim) == (16, 32)
    assert extractor.spec.global_dim == GLOBAL_DIM.get(name, 32)


def test_rows_fit_the_feature_file(folders: dict[str, Path], tmp_path: Path) -> None:
    extractor = vit.build(settings_of(folders["clip"]), "cpu")
    path = tmp_path / "features.h5"
    rows = extract(extractor, photos())
    stored, refused = stored_rows(extractor.spec, rows)
    assert not refused
    write_features(path, ["a", "b", "c"], extractor.spec, "vit", [(np.arange(3), stored)])
    stored = FeatureFile.open(path)
    assert set(rows) == {"regions", "global", "count", "boxes"}
    assert stored.boxes is not None
    assert np.array_equal(stored.boxes, rows["boxes"])


def test_boxes_follow_the_crop(folders: dict[str, Path]) -> None:
    boxes = extract(vit.build(settings_of(folders["clip"]), "cpu"), photos())["boxes"]
    # 50 x 30 becomes 53 x 32; 32 columns from the tenth on are left, in four patches of eight.
    assert boxes[0, 0] == pytest.approx([10 / 53, 0, 18 / 53, 0.25])
    assert boxes[0, 15] == pytest.approx([34 / 53, 0.75, 42 / 53, 1])
    assert boxes[1, 1] == pytest.approx([0.25, 10 / 53, 0.5, 18 / 53])
    assert boxes[2, 5] == pytest.approx([0.25, 0.25, 0.5, 0.5])


def test_boxes_of_a_stretched_image_are_the_patches(folders: dict[str, Path]) -> None:
    boxes = extract(vit.build(settings_of(folders["vit"]), "cpu"), photos())["boxes"]
    assert (boxes == boxes[0]).all()
    assert boxes[0, 6].tolist() == [0.5, 0.25, 0.75, 0.5]


def test_a_patch_sees_what_its_box_holds(folders: dict[str, Path], tmp_path: Path) -> None:
    # Without layers, a patch's vector depends on its own pixels alone.
    folder = copy(folders["vit"], tmp_path, num_hidden_layers=0)
    extractor = vit.build(settings_of(folder), "cpu")
    image = np.zeros((64, 96, 3), dtype=np.uint8)
    changed = image.copy()
    changed[16:32, 48:72] = 255
    before, after = extract(extractor, [image]), extract(extractor, [changed])
    # Resizing reaches a little beyond the rectangle; in its own cell the change is largest.
    cell = np.abs(after["regions"].astype(float) - before["regions"]).sum(2)[0].argmax()
    assert after["boxes"][0, cell].tolist() == [0.5, 0.25, 0.75, 0.5]


@pytest.mark.parametrize("name", ["vit", "clip", "siglip"])
def test_a_batch_is_as_its_images_alone(name: str, folders: dict[str, Path]) -> None:
    extractor = vit.build(settings_of(folders[name]), "cpu")
    together = extract(extractor, photos())
    for number, image in enumerate(photos()):
        alone = extract(extractor, [image])
        for key, values in together.items():
            np.testing.assert_allclose(values[number], alone[key][0], atol=2e-3, rtol=1e-3)
    assert len({extractor.group(height, width) for height, width in SIZES}) == 1
    frames = [torch.from_numpy(extractor.transform(image)) for image in photos()]
    assert np.array_equal(extractor(frames, SIZES)["regions"], together["regions"])


def test_bf16_is_near_fp32(folders: dict[str, Path]) -> None:
    exact = extract(vit.build(settings_of(folders["vit"]), "cpu"), photos())
    coarse = extract(vit.build(settings_of(folders["vit"], precision="bf16"), "cpu"), photos())
    assert coarse["regions"].dtype == np.float16
    difference = np.abs(exact["regions"].astype(float) - coarse["regions"])
    assert 1e-3 < difference.max() < 0.2


def test_values_beyond_float16_are_refused_by_the_writer(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(folders["vit"], tmp_path)
    state = load_file(folder / "model.safetensors")
    state["layernorm.weight"] *= 1e6
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    extractor = vit.build(settings_of(folder), "cpu")
    rows = extract(extractor, photos())
    assert np.isinf(rows["regions"]).any()
    assert "regions with the value" in stored_rows(extractor.spec, rows)[1][0]


@pytest.mark.parametrize(("name", "width"), [("clip_vision", 32), ("clip_projected", 24)])
def test_random_weights_have_the_width_of_the_checkpoint(name: str, width: int, folders: dict[str, Path]) -> None:
    assert vit.build(settings_of(folders[name], weights="random"), "cpu").spec.global_dim == width


@pytest.mark.parametrize("weights", ["pretrained", "random"])
def test_the_network_keeps_and_computes_no_more_than_is_asked(
    weights: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = copy(folders["vit"], tmp_path, output_hidden_states=True, return_dict=False, dtype="float16")
    network = vit.load(settings_of(folder, weights)).network
    config: Any = network.model.config
    assert (config.output_hidden_states, config.output_attentions) == (False, False)
    assert config._attn_implementation == "sdpa"
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert not any("pooler" in name for name, _ in network.named_parameters())
    assert not network.training


@pytest.mark.parametrize("name", ["vit", "clip", "siglip"])
def test_a_loaded_network_can_be_trained(name: str, folders: dict[str, Path]) -> None:
    network = vit.load(settings_of(folders[name])).network.train()
    found = network(torch.randn(2, 3, 32, 32))
    (found.regions.sum() + found.global_.sum()).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert found.grid == (4, 4, 8, 8)


def test_a_network_in_training_extracts_in_evaluation(folders: dict[str, Path]) -> None:
    pretrained = vit.load(settings_of(folders["vit"]))
    pretrained.network.train()
    assert not GridExtractor(pretrained, torch.device("cpu"), bf16=False).network.training


@pytest.mark.parametrize("name", ["clip_vision", "siglip_vision"])
def test_vision_towers_with_the_older_names_load(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(folders[name], tmp_path)
    state = load_file(folder / "model.safetensors")
    renamed = {f"vision_model.{key}": value for key, value in state.items()}
    save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    found = extract(vit.build(settings_of(folder), "cpu"), photos())
    expected = extract(vit.build(settings_of(folders[name]), "cpu"), photos())
    assert np.array_equal(found["global"], expected["global"])


def test_a_joint_checkpoint_must_have_its_projection(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = copy(folders["clip"], tmp_path)
    state = load_file(folder / "model.safetensors")
    del state["visual_projection.weight"]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"visual_projection\.weight"):
        vit.build(settings_of(folder), "cpu")


def test_a_siglip_tower_without_its_head_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no pooling head"):
        vit.build(settings_of(copy(folders["siglip_vision"], tmp_path, vision_use_head=False)), "cpu")
