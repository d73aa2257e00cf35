"""Networks of transformers: pixels as their own processors make them, weights from folders and the hub, refusals."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.features.frames import Framing, load_preprocessing
from itrpipe.features.hub import PATCHES, RANDOM_NOTE
from itrpipe.features.towers import Grid, open_network, open_vision
from tests.features.test_extractors import built, pictures, rows_of, save
from tests.features.test_hub import Intruder

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
# One of each class, and each way of resizing and cropping that published checkpoints use.
PROCESSORS: dict[str, tuple[str, dict[str, Any]]] = CASES["processors"]
REFUSED: dict[str, tuple[str, dict[str, Any]]] = CASES["refused processors"]


def photo(height: int, width: int) -> np.ndarray:
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image.setflags(write=False)  # as a caller's may be
    return image


def saved(folder: Path, name: str, settings: dict[str, Any]) -> Any:
    processor = getattr(t, f"{name}ImageProcessor")(**settings)
    processor.save_pretrained(folder)
    return processor


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", PROCESSORS)
def test_frames_are_those_of_the_processor_byte_for_byte(name: str, tmp_path: Path) -> None:
    processor = saved(tmp_path, *PROCESSORS[name])
    loaded = load_preprocessing(tmp_path)
    for size in [(375, 500), (500, 375), (61, 50), (82, 73), (3, 40)]:
        frame = pickle.loads(pickle.dumps(loaded.framing))(photo(*size))
        call = partial(processor, np.array(photo(*size)), input_data_format="channels_last")
        assert np.array_equal(frame, call(do_rescale=False, do_normalize=False)["pixel_values"][0])
        assert (frame.shape, frame.flags.c_contiguous) == ((3, *loaded.framing.frame), True)
        found = loaded(torch.from_numpy(frame)[None])
        expected = call(return_tensors="pt")["pixel_values"].float()
        # DINOv3's resizes before it rounds to bytes: up to a grey level.
        error = ((found - expected) * loaded.std).abs().max()
        assert 0.1 < error <= 1 if name == "dinov3" else error < 1e-4
    assert [note[:14] for note in loaded.notes] == (["resized pixels"] if name == "dinov3" else [])


def test_boxes_are_the_cells_in_the_image() -> None:
    cells, sizes = Grid(1, 2, 64, 32).cells((64, 64)), np.array([[100, 200], [200, 100]])
    # 200 x 100 becomes 128 x 64, of which columns 32 to 96 are kept.
    cropped = Framing(64, (64, 64)).boxes(cells, sizes)
    assert cropped[0].tolist() == [[0.25, 0, 0.5, 1], [0.5, 0, 0.75, 1]]
    assert cropped[1].tolist() == [[0, 0.25, 0.5, 0.75], [0.5, 0.25, 1, 0.75]]
    # A crop of 96 around 64 x 64 pixels: a margin of 16 on all sides, a quarter of the image.
    margin = Framing((64, 64), (96, 96)).boxes(Grid(1, 3, 96, 32).cells((96, 96)), np.array([[10, 10]]))
    assert (margin.dtype, margin[0].tolist()) == (np.float32, [[0, 0, 0.25, 1], [0.25, 0, 0.75, 1], [0.75, 0, 1, 1]])
    # 384 pixels hold 27 patches of 14, 378 pixels; an odd rest of a crop goes to the right and to the bottom.
    patches = Framing((384, 384), (384, 384)).boxes(Grid(27, 27, 14, 14).cells((384, 384)), sizes)
    assert patches[1, -1, 3] == np.float32(378 / 384)
    assert Framing(None, (3, 5)).placed(np.array([[6, 8], [2, 2]]))[1].tolist() == [[1, 1], [0, -1]]


@pytest.mark.parametrize("name", REFUSED)
def test_processors_without_one_size_are_refused(name: str, tmp_path: Path) -> None:
    saved(tmp_path, *REFUSED[name])
    with pytest.raises(UsageError, match=f"{tmp_path}: the image processor {REFUSED[name][0]}"):
        load_preprocessing(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The checkpoint of a tiny ViT, to be damaged."""
    return save("vit", tmp_path / "model")


def change(folder: Path, file: str = "config.json", **changes: Any) -> None:
    config = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(config | changes))


def weights_of(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Saves changed weights as safetensors, without the metadata of a shard."""
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})


def cut(path: Path, end: int) -> None:
    path.write_bytes(path.read_bytes()[:end])


def pickled(folder: Path, content: Any = None) -> Path:
    """Replaces the safetensors of a folder by a pickle."""
    torch.save(content or load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder / "pytorch_model.bin"


def without(part: str) -> Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]:
    return lambda state: {name: each for name, each in state.items() if part not in name}


def other_frame(folder: Path) -> None:
    change(folder, "preprocessor_config.json", size=48)
    cut(folder / "model.safetensors", 9)  # of no use, and so not read


NAN = {"layernorm.weight": torch.full((32,), torch.nan)}
DAMAGE: dict[str, tuple[Callable[[Path], object], type[ItrpipeError], str]] = {
    "not finite": (lambda f: weights_of(f, lambda s: s | NAN), DataError, "'layernorm.weight'"),
    "cut off": (lambda f: cut(f / "model.safetensors", 3000), DataError, "weights"),
    "a layer less": (lambda f: weights_of(f, without("layer.1.")), DataError, "16 of .* ViTModel.* lack 'layers.1."),
    "code in a pickle": (lambda f: pickled(f, {"a": Intruder()}), DataError, "never loaded"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), MissingInputError, "no model.safetensors"),
    "no configuration": (lambda f: (f / "config.json").unlink(), MissingInputError, "no config.json"),
    "no processor": (lambda f: (f / "preprocessor_config.json").unlink(), MissingInputError, "preprocessor_config"),
    "no processor's size": (lambda f: change(f, "preprocessor_config.json", size="x"), DataError, "preprocessor"),
    "no scale": (lambda f: change(f, "preprocessor_config.json", image_std=[0, 1, 1]), DataError, "image_std"),
    "other frame": (other_frame, UsageError, r"\(48, 48\)"),
    "unknown type": (lambda f: change(f, model_type="swin"), UsageError, "'swin'.*siglip"),
    "a width that is none": (lambda f: change(f, hidden_size="wide"), DataError, "hidden_size"),
    "no projection": (lambda f: weights_of(save("clip", f), without("visual_proj")), DataError, "visual_projection"),
    "no probe": (lambda f: weights_of(save("siglip", f), without("head.probe")), DataError, "head.probe"),
    "no head": (lambda f: change(save("siglip_vision", f), vision_use_head=False), UsageError, "no pooling head"),
    "another width": (lambda f: change(f, intermediate_size=64), DataError, r"[ \[]48\] is \[.*64\] by config.json"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_cannot_be_loaded_is_one_line(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, kind, told = DAMAGE[name]
    damage(folder)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=told) as caught:
        built("vit", folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("intruder").exists()


def test_what_checkpoints_may_lack(tmp_path: Path) -> None:
    for name, lacks in {"resnet_classifier": "num_batches_tracked", "dinov2": "mask_token"}.items():
        before = rows_of(built(name, save(name, tmp_path / name)), pictures(name))["regions"]
        weights_of(tmp_path / name, without(lacks))
        assert np.array_equal(rows_of(built(name, tmp_path / name), pictures(name))["regions"], before)


def test_pickled_weights_are_read_as_tensors_and_only_without_safetensors(folder: Path) -> None:
    expected = rows_of(built("vit", folder), pictures("vit"))["regions"]
    torch.save({"layernorm.weight": torch.zeros(32)}, folder / "pytorch_model.bin")
    assert np.array_equal(rows_of(built("vit", folder), pictures("vit"))["regions"], expected)
    pickled(folder)
    assert np.array_equal(rows_of(built("vit", folder), pictures("vit"))["regions"], expected)


def test_random_weights_are_the_same_every_time_and_say_what_they_are(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    made = []
    for seed in range(2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        made.append(built("vit", folder, weights="random"))
        assert torch.equal(torch.get_rng_state(), before)  # the caller's random numbers stay as they are
    found, again = (rows_of(each, pictures("vit"))["regions"] for each in made)
    assert np.array_equal(found, again)
    assert made[0].notes == (RANDOM_NOTE,)
    for name, width in {"clip_vision": 32, "clip_projected": 24}.items():
        assert built(name, save(name, tmp_path / name), weights="random").spec["global"] == (width,)


def test_precision_and_what_is_computed(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change(folder, output_hidden_states=True, return_dict=False, dtype="float16", attn_implementation="evil/kernel")
    change(folder, auto_map={"AutoConfig": "evil.Config"})
    (folder / "evil.py").write_text("raise SystemExit\n")
    exact, coarse = (built("vit", folder, precision=precision) for precision in ("fp32", "bf16"))
    found, near = (rows_of(each, pictures("vit"))["regions"].astype(float) for each in (exact, coarse))
    assert 1e-3 < np.abs(found - near).max() < 0.2
    network = exact.network
    assert network.config._attn_implementation == "sdpa"
    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    assert not network.training
    assert not any("pooler" in name for name, _ in network.named_parameters())
    capfd.readouterr()
    before = t.logging.get_verbosity(), t.logging.is_progress_bar_enabled()
    built("vit", folder)
    assert capfd.readouterr() == ("", "")
    assert (t.logging.get_verbosity(), t.logging.is_progress_bar_enabled()) == before


def test_a_missing_pooler_is_asked_for_and_noted(folder: Path) -> None:
    weights_of(folder, without("pooler"))
    for opened in (open_network(str(folder), "main", PATCHES), open_vision(str(folder), "main", PATCHES)[0]):
        assert opened.notes == ()
    assert "starts at random" in open_vision(str(folder), "main", PATCHES, pooled=True)[0].notes[0]


def test_weights_beyond_float16_become_infinite_rows(folder: Path) -> None:
    weights_of(folder, lambda s: s | {"layernorm.weight": s["layernorm.weight"] * 1e6})
    assert np.isinf(rows_of(built("vit", folder), pictures("vit"))["regions"]).any()


def test_what_is_asked_of_the_hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = tmp_path / "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(folder, commit)
    asked: list[tuple[str, list[str]]] = []

    def download(model: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((revision, allow_patterns))
        return str(commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    hub_id = "someone/small"
    assert built("vit", hub_id, revision="v1").notes == (f"{hub_id} is at commit {commit.name}",)
    assert [revision for revision, _ in asked] == ["v1"]
    needed = {"config.json", "preprocessor_config.json", "model.safetensors", "model-*-of-*.safetensors"}
    assert needed < set(asked[0][1])
    assert not any(".bin" in name for name in asked[0][1])  # pickles are not asked for where there are safetensors
    built("vit", hub_id, weights="random")
    assert not any(name.startswith("model") for name in asked[1][1])
    pickled(commit)
    built("vit", hub_id)
    assert [revision for revision, _ in asked[2:]] == ["main", commit.name]
    assert asked[3][1] == ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"]
