"""Models of the hub are asked for with one request or none; weights in files are whole, and of the network."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError, RevisionNotFoundError
from safetensors.torch import save_file

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features import hub

ANSWER: Any = SimpleNamespace(headers={}, request=None, status_code=404)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Requests to a hub that has every model; nothing was fetched before."""
    found: list[tuple[str, str]] = []

    def model_info(self: Any, model: str, *, revision: str, timeout: float) -> None:
        found.append((model, revision))

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    hub._ask.cache_clear()
    return found


def test_what_is_known_already_is_not_asked_for(asked: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingInputError, match=r"has no config\.json, and so is no model of transformers"):
        hub.require_reachable(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    hub.require_reachable(str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: "config.json")
    hub.require_reachable("someone/fetched")
    (tmp_path / "sentence-transformers" / "0_CLIPModel").mkdir(parents=True)
    modules = tmp_path / "sentence-transformers" / "modules.json"
    modules.write_text('[{"type": "sentence_transformers.models.CLIPModel"}, {"type": "x.models.Dense"}]')
    with pytest.raises(MissingInputError, match="has a module Dense"):
        hub.local_folder(f"{tmp_path}/sentence-transformers")
    modules.write_text('[{"type": "sentence_transformers.models.CLIPModel"}]')
    assert hub.local_folder(f"{tmp_path}/sentence-transformers") == tmp_path / "sentence-transformers" / "0_CLIPModel"
    assert asked == []
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    for _ in range(2):
        hub.require_reachable("someone/model", "v1")
    assert asked == [("someone/model", "v1")]


def refusing(error: Exception) -> Callable[..., None]:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    return refuse


TOLD = {
    "there is no such model, or it needs a login": RepositoryNotFoundError("no", response=ANSWER),
    "it has no revision 'v1'": RevisionNotFoundError("no", response=ANSWER),
    "HF_HUB_OFFLINE is set": OfflineModeIsEnabled("offline"),
    "no connection, and no earlier download": httpx.ConnectTimeout("slow"),
}


@pytest.mark.parametrize("told", TOLD)
def test_what_cannot_be_fetched_is_one_line(asked: list, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refusing(TOLD[told]))
    with pytest.raises(MissingInputError, match=rf"someone/none: the Hugging Face hub does not give it \({told}"):
        hub.require_reachable("someone/none", "v1")


# Weights in files.


class Intruder:
    """An object whose pickle writes a file when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (Path("intruder"), "ran")


def test_damaged_files_are_one_line_and_nothing_in_them_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_file({"a": torch.arange(1000.0)}, "cut.safetensors")
    torch.save({"a": torch.arange(100.0)}, "cut.pt")
    torch.save({"a": torch.arange(100.0)}, "old.pth", _use_new_zipfile_serialization=False)
    assert hub.read_state(Path("old.pth")).keys() == {"a"}
    for path in map(Path, ("cut.safetensors", "cut.pt", "old.pth")):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    Path("plain.bin").write_bytes(pickle.dumps({"a": Intruder()}, protocol=2))
    for name, content in {"objects": {"a": Intruder()}, "number": {"a": 3}, "list": ["a"]}.items():
        torch.save(content, f"{name}.pt")
    for path in sorted(Path().iterdir()):
        with pytest.raises(DataError, match=f"^{path.name} [^\n]*; get it again, or name a plain state dict$"):
            hub.read_state(path)
    assert not Path("intruder").exists()


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


@pytest.mark.parametrize("wrong", [None, torch.zeros(3, 2), torch.full((3,), torch.nan), torch.zeros(3).long()])
def test_weights_of_another_network_are_one_line(wrong: torch.Tensor | None) -> None:
    state = {name: each for name, each in {**network().state_dict(), "1.bias": wrong}.items() if each is not None}
    with pytest.raises(DataError, match=r"w\.pt .*\b1\.bias|w\.pt: '1\.bias'") as caught:
        hub.fill(network(), Path("w.pt"), state, "get it again")
    assert "\n" not in str(caught.value)


def test_weights_may_be_halves_and_further_tensors_are_noted(tmp_path: Path) -> None:
    halves = {name: each.half() for name, each in network().state_dict().items() if each.is_floating_point()}
    torch.save({"model": halves | {"x.num_batches_tracked": torch.tensor(1)}, "epoch": 5}, tmp_path / "w.pt")
    state = hub.read_state(tmp_path / "w.pt")
    with torch.device("meta"):
        made = network()
    assert hub.fill(made, Path("w.pt"), state, "") == ()
    assert {(each.dtype, each.is_meta) for each in made.parameters()} == {(torch.float32, False)}
    notes = hub.fill(made, Path("w.pt"), state | {"x": torch.ones(1)}, "")
    assert notes == ("w.pt: 'x', one of 1 tensors, is none of this network",)


def test_files_of_weights_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty/no.txt", "two/a.bin", "two/b.pth", "weights.pkl"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    for weights, error, told in (
        ("nothing.bin", MissingInputError, "does not exist"),
        ("/nowhere/folder", MissingInputError, "does not exist"),
        ("empty", MissingInputError, "holds 0 files"),
        ("two", DataError, "holds 2 files"),
        ("weights.pkl", DataError, "holds 0 files of weights; name one that ends in .bin"),
    ):
        with pytest.raises(error, match=told):
            hub.local_weights(weights)
