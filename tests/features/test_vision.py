"""Vision networks: rows are those of the library, boxes lie in the photograph, and refusals are one line."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import transformers as t
from PIL import Image
from safetensors.torch import load_file, save_file

from itrpipe.encoders.encoder import open_images
from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.features.extractors.vision.frames import Framing
from itrpipe.features.weights import RANDOM_NOTE
from tests.encoders import zoo
from tests.features.test_extractors import built, pictures, rows_of
from tests.features.test_weights import Intruder

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
# One of each class, and each way of resizing and cropping that published checkpoints use.
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = CASES["processors"]
CROPS: dict[str, tuple[int | tuple[int, int] | None, int]] = {
    "beit_crop": ((72, 72), 64),
    "deit": ((73, 73), 64),
    "clip": (64, 64),
    "clip_margin": (64, 81),
    "dinov2": (73, 64),
    "convnext": (73, 64),
    "convnext_small": (403, 383),
    "no_resize": (None, 64),
}
"""Processor -> short edge or sides to which it resizes, and sides of what it cuts out of the middle."""
REFUSED: dict[str, tuple[str, dict[str, Any]]] = CASES["refused processors"]


def photo(height: int, width: int) -> np.ndarray:
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image.setflags(write=False)  # as a caller's may be
    return image


def saved(folder: Path, name: str, settings: dict[str, Any]) -> Any:
    processor = getattr(t, f"{name}ImageProcessor")(**settings)
    processor.save_pretrained(folder)
    return processor


def window(size: tuple[int, int], resize: int | tuple[int, int] | None, crop: int) -> np.ndarray:
    """Return where a frame begins and ends in an image, as y0, x0, y1, x1."""
    sides = np.array(size)
    whole = sides
    if isinstance(resize, tuple):
        whole = np.array(resize)
    elif resize is not None:
        whole = resize * sides // sides.min()
    rest = whole - crop
    first = np.sign(rest) * (np.abs(rest) // 2)
    return np.concatenate([first, first + crop]) / np.tile(whole, 2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", PROCESSORS)
def test_frames_are_those_of_the_processor_and_lie_in_the_photograph(name: str, tmp_path: Path) -> None:
    processor = saved(tmp_path, *PROCESSORS[name])
    framing = pickle.loads(pickle.dumps(Framing(open_images(tmp_path))))
    cells = np.array([[0, 0, 0.5, 0.5], [0.25, 0.5, 0.75, 1]])
    for size in [(375, 500), (500, 375), (61, 50), (82, 73), (3, 40), (1, 7)]:
        frame = torch.from_numpy(framing(photo(*size)))
        due = processor(Image.fromarray(photo(*size)), return_tensors="pt")["pixel_values"]
        assert (framing.reader.normalised(frame[None]) - due).abs().max() < 1e-5 * due.abs().max()
        begin, end = np.split(window(size, *CROPS[name]) if name in CROPS else np.array([0, 0, 1, 1]), 2)
        boxes = np.tile(begin[::-1], 2) + cells * np.tile(end - begin, 2)[[1, 0, 3, 2]]
        found = framing.boxes(cells, np.array([size]))[0]
        # Of a few pixels resizing makes no line of colours.
        np.testing.assert_allclose(found, boxes.clip(0, 1), atol=0.004 if min(size) > 3 else 0.07)


@pytest.mark.parametrize("name", REFUSED)
def test_processors_without_one_size_are_refused(name: str, tmp_path: Path) -> None:
    saved(tmp_path, *REFUSED[name])
    with pytest.raises(UsageError, match=f"{REFUSED[name][0]}ImageProcessor makes images of different sizes"):
        open_images(tmp_path)


# Rows


@pytest.mark.parametrize("name", [*zoo.JOINT, *zoo.VISION_ALONE])
def test_rows_are_what_the_library_makes_of_photographs(name: str, tmp_path: Path) -> None:
    zoo.save(name, tmp_path)
    extractor = built("vision", tmp_path)
    rows = rows_of(extractor, pictures(name))
    images = [Image.fromarray(image) for image in pictures(name)]
    inputs = t.AutoImageProcessor.from_pretrained(tmp_path)(images, return_tensors="pt")
    network = t.AutoModel.from_pretrained(tmp_path).eval()
    with torch.inference_mode():
        found = network.get_image_features(**inputs) if name in zoo.JOINT else network(**inputs)
    states = found.last_hidden_state
    if states.ndim == 4:
        states = states.flatten(2).mT
    whole = found.pooler_output.flatten(1)
    for group, due in {"regions": states[:, -extractor.spec.regions :], "global": whole}.items():
        np.testing.assert_allclose(rows[group], due.half().numpy(), rtol=2e-3, atol=1e-4)


def test_a_folder_of_timm_is_a_model(tmp_path: Path) -> None:
    network = timm.create_model("resnet10t", num_classes=0).eval()
    colours = {"mean": [0.5] * 3, "std": [0.5] * 3}
    about = {"input_size": [3, 32, 32], "crop_pct": 1.0, **colours}
    config = {"architecture": "resnet10t", "num_classes": 0, "num_features": 512, "pretrained_cfg": about}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(network.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    extractor = built("vision", tmp_path)
    image = photo(32, 32)
    with torch.inference_mode():
        due = network(torch.from_numpy(image / 127.5 - 1).permute(2, 0, 1)[None].float())
    np.testing.assert_allclose(rows_of(extractor, [image])["global"], due.half().numpy(), rtol=2e-3, atol=1e-4)
    assert extractor.spec.regions == 1


# Folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The checkpoint of a tiny ViT, to be damaged."""
    return zoo.save("vit", tmp_path / "model")


def change(folder: Path, file: str = "config.json", **changes: Any) -> None:
    config = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(config | changes))


def weights_of(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Saves changed weights as safetensors, without the metadata of a shard."""
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})


def cut(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[:end])


def pickled(folder: Path) -> None:
    """Replaces the safetensors of a folder by a pickle."""
    torch.save({"a": Intruder()}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def without(part: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda state: {name: each for name, each in state.items() if part not in name}


PROCESSOR = "preprocessor_config.json"
NAN = {"layernorm.weight": torch.full((16,), torch.nan)}
SQUARE = {"height": 48, "width": 48}
DAMAGE: dict[str, tuple[Callable[[Path], object], type[ItrpipeError], str]] = {
    "not finite": (lambda f: weights_of(f, lambda s: s | NAN), DataError, "'layernorm.weight'"),
    "cut off": (lambda f: cut(f / "model.safetensors", 3000), DataError, "weights"),
    "a layer less": (lambda f: weights_of(f, without("layer.1.")), DataError, "16 of .* ViTModel.* lack 'layers.1."),
    "a pickle": (pickled, DataError, r"pytorch_model\.bin is a pickle"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), MissingInputError, "no model.safetensors"),
    "no configuration": (lambda f: (f / "config.json").unlink(), MissingInputError, "no config.json"),
    "no processor": (lambda f: (f / PROCESSOR).unlink(), MissingInputError, PROCESSOR),
    "no processor's size": (lambda f: change(f, PROCESSOR, crop_size="x"), DataError, "image processor"),
    "no scale": (lambda f: change(f, PROCESSOR, image_std=[0, 1, 1]), DataError, "image processor"),
    "other frame": (lambda f: change(f, PROCESSOR, size={"shortest_edge": 48}, crop_size=SQUARE), DataError, "48"),
    "unknown type": (lambda f: change(f, model_type="warp"), DataError, "warp"),
    "a type of captions": (lambda f: change(f, model_type="bert"), DataError, "weights do not fit"),
    "a width that is none": (lambda f: change(f, hidden_size="wide"), DataError, "hidden_size"),
    "another width": (lambda f: change(f, intermediate_size=64), DataError, r"\[32\] is \[64\] by config.json"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_cannot_be_loaded_is_one_line(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, kind, told = DAMAGE[name]
    damage(folder)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=told) as caught:
        built("vision", folder)
    assert str(folder) in str(caught.value) or "image processor" in told
    assert "\n" not in str(caught.value)
    assert not Path("intruder").exists()


def test_a_pooler_that_was_not_trained_gives_way_to_the_mean(folder: Path) -> None:
    before = rows_of(built("vision", folder), pictures("vit"))
    weights_of(folder, without("pooler"))
    rows = rows_of(built("vision", folder), pictures("vit"))
    np.testing.assert_array_equal(rows["regions"], before["regions"])
    with torch.inference_mode():
        network = t.ViTModel.from_pretrained(folder, add_pooling_layer=False).eval()
        inputs = t.AutoImageProcessor.from_pretrained(folder)(list(map(Image.fromarray, pictures("vit"))))
        due = network(torch.tensor(np.array(inputs["pixel_values"]))).last_hidden_state.mean(1)
    np.testing.assert_allclose(rows["global"], due.half().numpy(), rtol=2e-3, atol=1e-4)


def test_random_weights_are_the_same_every_time_and_say_what_they_are(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    made = []
    for seed in range(2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        made.append(built("vision", folder, weights="random"))
        assert torch.equal(torch.get_rng_state(), before)  # the caller's random numbers stay as they are
    found, again = (rows_of(each, pictures("vit"))["regions"] for each in made)
    np.testing.assert_array_equal(found, again)
    assert made[0].notes == (RANDOM_NOTE,)


def test_precision_and_what_is_computed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change(folder, output_hidden_states=True, return_dict=False, dtype="float16", attn_implementation="evil/kernel")
    change(folder, auto_map={"AutoConfig": "evil.Config"})
    (folder / "evil.py").write_text("raise SystemExit\n")
    exact, coarse = (built("vision", folder, precision=precision) for precision in ("fp32", "bf16"))
    found, near = (rows_of(each, pictures("vit"))["regions"].astype(float) for each in (exact, coarse))
    assert 1e-3 < np.abs(found - near).max() < 0.2
    network = exact.encoder.network
    assert network.config._attn_implementation == "sdpa"
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert not network.training
    capfd.readouterr()
    before = t.logging.get_verbosity(), t.logging.is_progress_bar_enabled()
    built("vision", folder)
    assert capfd.readouterr() == ("", "")
    assert (t.logging.get_verbosity(), t.logging.is_progress_bar_enabled()) == before


def test_weights_beyond_float16_become_infinite_rows(folder: Path) -> None:
    weights_of(folder, lambda s: s | {"layernorm.weight": s["layernorm.weight"] * 1e6})
    assert np.isinf(rows_of(built("vision", folder), pictures("vit"))["regions"]).any()
