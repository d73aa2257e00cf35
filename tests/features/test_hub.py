"""Models of the hub are asked for before anything is made for them, with one request or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError, RevisionNotFoundError

from itrpipe.errors import MissingInputError
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
    assert (hub.local_config(str(tmp_path)), hub.local_config("someone/model")) == ({"model_type": "clip"}, {})
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: "config.json")
    hub.require_reachable("someone/fetched")
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
    "there is no connection, and no earlier download": httpx.ConnectTimeout("slow"),
}


@pytest.mark.parametrize("told", TOLD)
def test_what_cannot_be_fetched_is_one_line(asked: list, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refusing(TOLD[told]))
    with pytest.raises(MissingInputError, match=rf"someone/none cannot be fetched from the hub \({told}"):
        hub.require_reachable("someone/none", "v1")


def test_a_plan_asks_before_it_makes_anything(
    asked: list, defined: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refusing(OfflineModeIsEnabled("offline")))
    where = ["--dataset", "tiny", "--data", defined]
    for command in ("train --vision ID --text ID", "extract --features vit --set model=ID"):
        for more in ([], ["--dry-run"]):
            outcome = invoke(*command.replace("ID", "someone/none").split(), *where, *more)
            assert (outcome.code, "someone/none cannot be fetched from the hub" in outcome.err) == (3, True)
            assert "default" not in outcome.err
    usual = invoke("train", "--method", "clip-finetune", *where).err
    assert "openai/clip-vit-base-patch32 cannot be fetched" in usual
    assert usual.rstrip().endswith("or name another than this default: --vision")
    assert not list(defined.glob("tiny/*/*/manifest.json"))
