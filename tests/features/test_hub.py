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

ASK = hub._ask  # which other tests must not use
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


def test_a_plan_that_is_checked_again_asks_once(asked: list) -> None:
    for _ in range(2):
        hub.require_reachable("someone/model", "v1")
    assert asked == [("someone/model", "v1")]


def test_folders_and_what_was_fetched_before_are_not_asked_for(
    asked: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingInputError, match=r"has no config\.json, and so is no model of transformers"):
        hub.require_reachable(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    hub.require_reachable(str(tmp_path))
    assert (hub.local_config(str(tmp_path)), hub.local_config("someone/model")) == ({"model_type": "clip"}, {})
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_, **__: "config.json")
    hub.require_reachable("someone/fetched")
    assert asked == []


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RepositoryNotFoundError("no", response=ANSWER), "there is no such model, or it needs a login"),
        (RevisionNotFoundError("no", response=ANSWER), "it has no revision 'v1'"),
        (OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE is set"),
        (httpx.ConnectTimeout("slow"), "there is no connection, and no earlier download"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(
    asked: list, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(MissingInputError, match="someone/none cannot be fetched from the hub") as refused:
        hub.require_reachable("someone/none", "v1")
    assert told in str(refused.value)


@pytest.mark.parametrize("command", ["train --vision ID --text ID", "extract --features vit --set model=ID"])
def test_a_plan_asks_before_it_makes_anything(
    defined: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError("gone")

    monkeypatch.setattr(hub, "_ask", ASK)
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", refuse)
    arguments = command.replace("ID", "someone/none").split()
    for more in ([], ["--dry-run"]):
        outcome = invoke(*arguments, "--dataset", "tiny", "--data", defined, *more)
        assert (outcome.code, "someone/none cannot be fetched from the hub (gone)" in outcome.err) == (3, True)
    assert not list(defined.glob("tiny/*/*/manifest.json"))


def test_a_default_that_cannot_be_fetched_is_told_to_be_one(
    asked: list, defined: Path, invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OfflineModeIsEnabled("offline")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    where = ["--dataset", "tiny", "--data", defined, "--dry-run"]
    usual = invoke("train", "--method", "clip-finetune", *where).err
    assert "openai/clip-vit-base-patch32 cannot be fetched" in usual
    assert usual.rstrip().endswith("or name another than this default: --vision")
    given = invoke("train", "--method", "clip-finetune", "--vision", "someone/none", *where).err
    assert "someone/none cannot be fetched" in given
    assert "default" not in given
