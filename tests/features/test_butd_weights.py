"""Weights of the bottom-up-attention detector: names, kinds of files, and one line for what is wrong."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from torch import Tensor

from itrpipe.errors import DataError, ItrpipeError, MissingInputError
from itrpipe.features.extractors.butd import weights as butd_weights
from itrpipe.features.extractors.butd.declaration import Butd
from itrpipe.features.extractors.butd.extractor import pad_pictures, propose
from itrpipe.features.extractors.butd.network import ButdNetwork
from itrpipe.features.extractors.butd.selection import RegionRules
from itrpipe.features.extractors.butd.weights import file_name, find_weights, load_network, random_network
from itrpipe.features.extractors.state_dict import read_state

State = dict[str, Tensor]
RULES = RegionRules(5, 5, 0, short_side=64, long_side=120, proposals=8)
SCORES = "roi_heads.box_predictor.cls_score"


def settings(weights: Path | str) -> Butd:
    values = {"min_regions": 36, "max_regions": 36, "min_score": 0, "precision": "fp32", "revision": "main"}
    return Butd.model_validate({"kind": "butd", "weights": str(weights), **values})


@pytest.fixture(scope="module")
def network() -> ButdNetwork:
    """A random one in which no two rows are alike, biases included."""
    network = random_network()
    generator = torch.Generator().manual_seed(1)
    for tensor in network.state_dict().values():
        if tensor.ndim == 1:
            tensor.add_(torch.rand(tensor.shape, generator=generator) / 8)
    return network


@pytest.fixture(scope="module")
def state(network: ButdNetwork) -> State:
    """The network as the published conversion would save it."""
    return {file_name(name): tensor for name, tensor in network.state_dict().items()}


@pytest.fixture
def slim(state: State) -> State:
    """All names and shapes in a file of 200 kB: the tensors repeat a few numbers."""
    return {name: torch.full((), 0.5).expand(tensor.shape) for name, tensor in state.items()}


def outputs(network: ButdNetwork) -> list[Tensor]:
    """What a network makes of a small image: proposals, then everything that is said of them."""
    image = torch.randint(0, 256, (3, 40, 50), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    network = network.for_inference(torch.device("cpu"), "fp32")
    with torch.inference_mode():
        pictures = [RULES.resize(image)]
        feature_map = network.feature_map(pad_pictures(pictures))
        proposals = propose(network, RULES, feature_map, pictures)
        features = network.region_features(feature_map, proposals)
        said = network.box_predictor(features)
    return [*proposals, features, said.class_logits, said.attribute_logits]


@pytest.fixture(scope="module")
def expected(network: ButdNetwork) -> list[Tensor]:
    copy = ButdNetwork()
    copy.load_state_dict(network.state_dict())
    return outputs(copy)


def test_a_published_file_in_a_folder(tmp_path: Path, state: State, expected: list[Tensor]) -> None:
    """Counters, anchors and the regression of boxes are known and not read."""
    unread = {
        "backbone.stem.conv1.norm.num_batches_tracked": torch.tensor(7),
        "proposal_generator.anchor_generator.cell_anchors.0": torch.zeros(12, 4),
        "roi_heads.box_predictor.bbox_pred.bias": torch.zeros(6400),
        "pixel_mean": torch.zeros(3),
    }
    torch.save({"model": state | unread, "iteration": 5}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.yaml").write_text("model: {}", encoding="utf-8")
    network, notes = load_network(settings(tmp_path))
    assert notes == ()
    for found, due in zip(outputs(network), expected, strict=True):
        assert torch.allclose(found, due, rtol=1e-4, atol=1e-4 * due.abs().max().item())


def test_half_precision_is_read_as_single(tmp_path: Path, slim: State) -> None:
    torch.save({name: tensor.half() for name, tensor in slim.items()}, tmp_path / "half.bin")
    network, _ = load_network(settings(tmp_path / "half.bin"))
    assert {tensor.dtype for tensor in network.state_dict().values()} == {torch.float32}


def test_random_weights_are_the_same_every_time() -> None:
    before = torch.random.get_rng_state()
    first, notes = load_network(settings("random"))
    second, _ = load_network(settings("random"))
    assert notes == ("random weights: these features are noise",)
    assert torch.equal(before, torch.random.get_rng_state())
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert first.box_predictor.cls_score.weight.std() > 0


def test_tensors_of_other_networks_are_noted(tmp_path: Path, slim: State) -> None:
    path = tmp_path / "weights.bin"
    more = {"mask_head.bias": torch.zeros(2), "z": torch.zeros(1), "pixel_mean": torch.zeros(3)}
    torch.save(slim | more, path)
    assert load_network(settings(path))[1] == (
        f"{path}: 2 tensors, such as 'mask_head.bias', are not of this detector: unused",
    )


def refused(kind: type[ItrpipeError], weights: Path | str) -> str:
    """The one line with which weights are refused."""
    with pytest.raises(kind) as caught:
        load_network(settings(weights))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_tensors(tmp_path: Path, slim: State) -> None:
    path, key = tmp_path / "weights.bin", f"{SCORES}.weight"
    torch.save({name: tensor for name, tensor in slim.items() if name != key}, path)
    assert refused(DataError, path).startswith(f"{path} lacks '{key}'; ")
    torch.save({"fc.weight": torch.zeros(2)}, path)
    assert f"and {len(slim) - 1} more tensors" in refused(DataError, path)


@pytest.mark.parametrize(
    ("key", "due"),
    [
        ("proposal_generator.rpn_head.objectness_logits.bias", "12"),
        ("roi_heads.res5.0.shortcut.weight", "2048 x 1024 x 1 x 1"),
    ],
)
def test_wrong_shapes(tmp_path: Path, slim: State, key: str, due: str) -> None:
    path = tmp_path / "weights.bin"
    torch.save(slim | {key: torch.zeros(3, 2)}, path)
    assert refused(DataError, path).startswith(f"{path}: '{key}' has the shape 3 x 2, this detector's is {due};")


@pytest.mark.parametrize("value", [torch.full((1601,), float("nan")), torch.zeros(1601, dtype=torch.int64)])
def test_values_that_are_no_numbers(tmp_path: Path, slim: State, value: Tensor) -> None:
    path, key = tmp_path / "weights.bin", f"{SCORES}.bias"
    torch.save(slim | {key: value}, path)
    assert refused(DataError, path).startswith(f"{path}: '{key}' ({value.dtype}) holds values that are not finite")


class Burglar:
    """Unpickling this would make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_code_in_a_pickle_is_never_run(tmp_path: Path, writer: str) -> None:
    path, folder = tmp_path / "weights.pth", tmp_path / "broken_in"
    content = {"a": Burglar(folder)}
    if writer == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content, protocol=2))
    assert refused(DataError, path) == (
        f"{path} is damaged or holds Python objects beside its tensors, which are never loaded; "
        "name a plain state dict, or convert it to .safetensors."
    )
    assert not folder.exists()


@pytest.mark.parametrize("name", ["weights.bin", "weights.pth", "weights.safetensors"])
def test_damaged_files(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    tensors = {"a": torch.arange(1000.0), "b": torch.ones(3)}
    save_file(tensors, path) if path.suffix == ".safetensors" else torch.save(tensors, path)
    whole = path.read_bytes()
    assert read_state(path).keys() == tensors.keys()
    for content in (
        b"",
        b"\0" * 100,
        b"<!DOCTYPE html>",
        *(whole[:end] for end in range(1, len(whole), len(whole) // 12)),
    ):
        path.write_bytes(content)
        refused(DataError, path)


def test_damaged_files_in_the_old_format(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save({"a": torch.arange(100.0)}, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    assert read_state(path).keys() == {"a"}
    for end in range(1, len(whole), 9):
        path.write_bytes(whole[:end])
        refused(DataError, path)


def test_content_that_is_no_state_dict(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    torch.save([torch.zeros(2)], path)
    assert refused(DataError, path) == f"{path} holds a list; name a plain state dict."
    torch.save({"iteration": 3}, path)
    assert refused(DataError, path) == f"{path}: 'iteration' is not a tensor; name a plain state dict."


def test_files_and_folders_that_are_not_there(tmp_path: Path) -> None:
    path = tmp_path / "nothing.bin"
    asked = "name a file of weights, a folder that holds one, or a hub id."
    assert refused(MissingInputError, path) == f"{path} does not exist; {asked}"
    assert refused(MissingInputError, tmp_path / "no_folder") == f"{tmp_path / 'no_folder'} does not exist; {asked}"
    assert refused(MissingInputError, "weights.pth") == f"weights.pth does not exist; {asked}"
    assert refused(MissingInputError, tmp_path) == (
        f"{tmp_path} holds no file that ends in .bin, .pth, .safetensors; put the weights there."
    )
    for name in ("a.bin", "b.pth"):
        (tmp_path / name).touch()
    assert refused(DataError, tmp_path) == (f"{tmp_path} holds 2 files of weights (a.bin, b.pth); name one of them.")
    (tmp_path / "weights.pkl").touch()
    assert refused(DataError, tmp_path / "weights.pkl") == (
        f"{tmp_path / 'weights.pkl'} is no file of weights; name one that ends in .bin, .pth, .safetensors."
    )


def test_hub_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def download(repo_id: str, filename: str, *, revision: str) -> str:
        return str(tmp_path / repo_id / revision / filename)

    monkeypatch.setattr(butd_weights, "hf_hub_download", download)
    assert find_weights("unc-nlp/frcnn-vg-finetuned", "v1") == (
        tmp_path / "unc-nlp" / "frcnn-vg-finetuned" / "v1" / "pytorch_model.bin"
    )


@pytest.mark.parametrize("name", ["unc-nlp/frcnn-vg-finetuned", "no//id", "a/b/c"])
def test_the_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    message = refused(MissingInputError, name)
    assert message.startswith(
        f"pytorch_model.bin of '{name}', revision 'main', is neither here nor comes from the hub ("
    )
    assert message.endswith("); check the name and the network, or name a file of yours with --set weights=FILE.")
