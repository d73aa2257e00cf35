"""Loading pretrained networks: from folders and the hub, random ones, and every way in which it can fail."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from itrpipe.errors import DataError, ItrpipeError, MissingInputError, UsageError
from itrpipe.features.extractors.pretrained import RANDOM_NOTE, GridExtractor, load_config
from itrpipe.features.extractors.resnet.extractor import FAMILIES
from itrpipe.features.extractors.vit import extractor as vit
from itrpipe.features.extractors.vit.declaration import Vit

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a tiny ViT, as `save_pretrained` writes it."""
    target = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(**SMALL)).save_pretrained(target)
    transformers.ViTImageProcessor(size=32).save_pretrained(target)
    return target


@pytest.fixture(scope="module")
def saved_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a tiny CLIP, image and text."""
    target = tmp_path_factory.mktemp("clip")
    torch.manual_seed(0)
    config = transformers.CLIPConfig(vision_config=SMALL, text_config=TEXT, projection_dim=24)
    transformers.CLIPModel(config).save_pretrained(target)
    transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32).save_pretrained(target)
    return target


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy of the ViT's checkpoint, to be damaged."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


def settings_of(model: Path | str, weights: str = "pretrained") -> Vit:
    return Vit.model_validate(
        {"kind": "vit", "model": str(model), "revision": "main", "weights": weights, "precision": "fp32"}
    )


def regions(extractor: GridExtractor) -> np.ndarray:
    image = np.random.default_rng(5).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    return extractor(torch.from_numpy(extractor.transform(image))[None], np.array([[30, 50]]))["regions"]


def change(folder: Path, file: str = "config.json", **changes: Any) -> None:
    """Changes settings in a file of a checkpoint."""
    config = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(config | changes))


def test_random_weights_are_the_same_every_time_and_say_what_they_are(saved: Path, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.manual_seed(1)
    first = vit.build(settings_of(folder, weights="random"), "cpu")
    expected = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), expected)  # the caller's random numbers stay as they are
    second = vit.build(settings_of(folder, weights="random"), "cpu")
    assert np.array_equal(regions(first), regions(second))
    assert first.notes == (RANDOM_NOTE,)
    trained = vit.build(settings_of(saved), "cpu")
    assert trained.notes == ()
    assert trained.spec == first.spec
    assert not np.array_equal(regions(first), regions(trained))


def test_pickled_weights_are_read_as_tensors_and_only_without_safetensors(saved: Path, folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    torch.save({key: value * 0 for key, value in state.items()}, folder / "pytorch_model.bin")
    expected = regions(vit.build(settings_of(saved), "cpu"))
    assert np.array_equal(regions(vit.build(settings_of(folder), "cpu")), expected)
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    assert np.array_equal(regions(vit.build(settings_of(folder), "cpu")), expected)


class Intruder:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.path, "ran")


def test_pickled_code_does_not_run(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Intruder(tmp_path / "trace")}, folder / "pytorch_model.bin")
    with pytest.raises(DataError, match="holds more than tensors"):
        vit.build(settings_of(folder), "cpu")
    assert not (tmp_path / "trace").exists()


def test_loading_writes_nothing_to_the_terminal(saved_clip: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = logging.WARNING, True
    transformers.logging.set_verbosity(before[0])
    transformers.logging.enable_progress_bar()
    # The text tower's configuration has token ids that transformers warns of, and its weights are not used.
    vit.build(settings_of(saved_clip), "cpu")
    assert capfd.readouterr() == ("", "")
    assert (transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()) == before


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:3000])


def drop_a_layer(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    kept = {key: value for key, value in state.items() if "layer.1." not in key}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


def drop_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    keys = load_file(folder / "model-00001-of-00002.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(keys, "model-00002-of-00002.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def truncate_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes((folder / "pytorch_model.bin").read_bytes()[:9000])


def spoil_a_weight(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    state["layernorm.weight"][0] = float("nan")
    save_file(state, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "kind", "said"),
    [
        (spoil_a_weight, DataError, "'layernorm.weight' holds 1 values that are no finite numbers; download"),
        (truncate, DataError, "cannot be read as weights"),
        (drop_a_layer, DataError, "lack 16 parameters of ViTModel, such as 'layers.1.attention"),
        (drop_a_shard, DataError, "model-00002-of-00002"),
        (truncate_pickle, DataError, "cannot be read as weights"),
        (lambda folder: (folder / "model.safetensors").unlink(), MissingInputError, "has no model.safetensors"),
        (lambda folder: (folder / "config.json").unlink(), MissingInputError, "has no config.json"),
        (lambda folder: (folder / "preprocessor_config.json").unlink(), MissingInputError, "no preprocessor_config"),
        (lambda folder: (folder / "config.json").write_text("{"), DataError, "config.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), DataError, "config.json cannot be read"),
    ],
)
def test_damaged_folders_are_one_line(
    damage: Callable[[Path], object],
    kind: type[ItrpipeError],
    said: str,
    folder: Path,
) -> None:
    damage(folder)
    with pytest.raises(kind, match=said) as caught:
        vit.build(settings_of(folder), "cpu")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"model_type": "swin"}, UsageError, "model type 'swin' is not supported, supported are vit, .*siglip"),
        ({"model_type": None}, UsageError, "model type 'None'"),
        ({"hidden_size": "wide"}, DataError, "hidden_size"),
        ({"intermediate_size": 64}, DataError, r"shape \(48,\) in the weights and \(64,\)"),
        (
            {"file": "preprocessor_config.json", "size": 48},
            UsageError,
            "gives 48 x 48 pixels and the network takes 32 x",
        ),
    ],
)
def test_settings_that_do_not_fit_are_one_line(
    changes: dict[str, Any], kind: type[ItrpipeError], said: str, folder: Path
) -> None:
    change(folder, **changes)
    with pytest.raises(kind, match=said) as caught:
        vit.build(settings_of(folder), "cpu")
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("model", ["./nowhere", "~/nowhere", "/nowhere", "a/b/c"])
def test_a_folder_that_is_not_there_is_never_looked_for_on_the_hub(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("asked the hub"))
    with pytest.raises(MissingInputError, match="is not a folder"):
        vit.build(settings_of(model), "cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, which is out of reach."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("model", ["someone/nothing", "nothing", "no such id"])
def test_unknown_hub_ids_name_the_remedy(model: str) -> None:
    with pytest.raises(MissingInputError, match="download it where there is a network and name its folder") as caught:
        vit.build(settings_of(model), "cpu")
    assert model in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_cached_hub_id_loads_without_network_and_notes_its_commit(saved: Path, cache: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = cache / "models--someone--small"
    shutil.copytree(saved, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    extractor = vit.build(settings_of("someone/small"), "cpu")
    assert extractor.notes == (f"someone/small is at commit {commit}",)
    expected = regions(vit.build(settings_of(saved), "cpu"))
    assert np.array_equal(regions(extractor), expected)


def test_what_is_asked_of_the_hub(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = tmp_path / "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(saved, commit)
    asked: list[tuple[str, tuple[str, ...]]] = []

    def download(model: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((revision, tuple(allow_patterns)))
        return str(commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    vit.build(settings_of("someone/small", weights="random"), "cpu")
    assert [revision for revision, _ in asked] == ["main"]
    vit.build(settings_of("someone/small"), "cpu")
    # The weights are those of the commit that the configuration is of; pickles are not asked for.
    assert [revision for revision, _ in asked[1:]] == ["main", commit.name]
    assert not any(name.endswith(".bin") for _, names in asked for name in names)
    torch.save(load_file(commit / "model.safetensors"), commit / "pytorch_model.bin")
    (commit / "model.safetensors").unlink()
    vit.build(settings_of("someone/small"), "cpu")
    assert asked[-1] == (commit.name, ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"))


def test_a_configuration_names_neither_code_nor_an_implementation_of_attention(tmp_path: Path) -> None:
    named = {"auto_map": {"AutoConfig": "evil.Config"}, "attn_implementation": "evil/kernel"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "resnet", **named}))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit\n")
    _, config = load_config(tmp_path, FAMILIES)
    assert config._attn_implementation is None
    assert not (tmp_path / "ran").exists()
