"""Folders of models, and models of the hub, which are asked for with one request or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import filter_repo_objects

from itrpipe.encoders import folders
from itrpipe.errors import MissingInputError
from tests.encoders import zoo

ANSWER: Any = SimpleNamespace(headers={}, request=None, status_code=404)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Requests to a hub that has every model; nothing was fetched before."""
    found: list[tuple[str, str]] = []

    def model_info(self: Any, model: str, *, revision: str, timeout: float) -> Any:
        found.append((model, revision))
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename="model.safetensors")])

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    folders._require_on_hub.cache_clear()
    return found


def test_what_is_known_already_is_not_asked_for(asked: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingInputError, match=r"has no config\.json, and so is no model of transformers"):
        folders.require_model(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "clip", "text_config": {}}')
    (tmp_path / "model.safetensors").touch()
    folders.require_model(str(tmp_path))
    with pytest.raises(MissingInputError, match=r"is no encoder of captions: it has none of tokenizer\.json"):
        folders.require_model(str(tmp_path), sides=("text",))
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: "config.json")
    folders.require_model("someone/fetched")
    own = tmp_path / "sentence-transformers" / "0_CLIPModel"
    own.mkdir(parents=True)
    assert folders.local_folder(str(own.parent)) == own
    assert asked == []
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: None)
    for _ in range(2):
        folders.require_model("someone/model", "v1")
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
        folders.require_model("someone/none", "v1")


def test_what_is_fetched_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = zoo.save("vit", tmp_path / "0123456789abcdef0123456789abcdef01234567")
    fetched: list[set[str]] = []

    def download(model: str, *, revision: str, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        assert revision == "v1"
        names = [*(path.name for path in commit.iterdir()), "pytorch_model.bin", "model-00001-of-00002.safetensors"]
        fetched.append(set(filter_repo_objects(names, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns)))
        return str(commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    notes = ("someone/small is at commit 0123456789abcdef0123456789abcdef01234567",)
    assert folders.find_folder("someone/small", "v1", ("vision",)) == (commit, notes)
    assert folders.find_folder("someone/small", "v1", ("vision",), weights=False) == (commit, notes)
    beside = {"config.json", "preprocessor_config.json"}
    assert fetched == [beside | {"model.safetensors", "model-00001-of-00002.safetensors"}, beside]
