"""Models of the Hugging Face hub: whether a name can be one, and whether it can be fetched. Read without torch."""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from itrpipe.errors import MissingInputError, reason_of

CONFIG = "config.json"
_SECONDS = 10.0
"""How long the hub is waited for."""
_NO_CONNECTION = "there is no connection, and no earlier download"


def require_hub_id(model: str) -> None:
    """Refuses what is no folder and cannot be a hub id, either.

    Raises:
        MissingInputError: it reads like a path, or is a file.
    """
    path = Path(model).expanduser()
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1 or os.path.exists(path):
        raise MissingInputError(f"{model} is not a folder; name a folder with {CONFIG}, or a hub id.")


def require_reachable(model: str, revision: str = "main") -> None:
    """Refuses a folder that is no model, and a name that was never fetched and that the hub does not offer now.

    One request tells, and none where it was fetched before.

    Args:
        model: folder or hub id.
        revision: of the hub id.

    Raises:
        MissingInputError: likewise.
    """
    folder = Path(model).expanduser()
    if not os.path.isdir(folder):
        require_hub_id(model)
        _ask(model, revision)
    elif not (folder / CONFIG).is_file():
        raise MissingInputError(
            f"{model} has no {CONFIG}, and so is no model of transformers; name a folder that its `save_pretrained` or "
            "`itrpipe export` has written, or a hub id"
        )


def local_config(model: str) -> dict[str, Any]:
    """The configuration of a model that is a folder; empty of a hub id, and where it cannot be read."""
    try:
        found = json.loads((Path(model).expanduser() / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def not_on_hub(model: str, reason: str) -> MissingInputError:
    """What is said of a model that cannot be fetched."""
    here = "" if "/" in model else "there is no such folder here, and as a hub id "
    return MissingInputError(
        f"{here}{model} cannot be fetched from the hub ({reason}); correct the name, or download it where there is a "
        "network and name its folder."
    )


@contextlib.contextmanager
def fetching(model: str, revision: str) -> Iterator[None]:
    """Turns what the client of the hub raises into one line.

    Raises:
        MissingInputError: there is no such hub id or revision, or the hub cannot be reached.
    """
    from huggingface_hub.errors import (
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except RepositoryNotFoundError:
        raise not_on_hub(model, "there is no such model, or it needs a login") from None
    except RevisionNotFoundError:
        raise not_on_hub(model, f"it has no revision '{revision}'") from None
    except HFValidationError:
        raise not_on_hub(model, "this can be no name of a model") from None
    except OfflineModeIsEnabled:
        raise not_on_hub(model, "HF_HUB_OFFLINE is set, and there is no earlier download") from None
    except LocalEntryNotFoundError:
        raise not_on_hub(model, _NO_CONNECTION) from None
    except Exception as error:  # the client's own errors and those of its HTTP library have no base in common
        kind = type(error).__name__
        unconnected = "Connect" in kind or "Timeout" in kind
        raise not_on_hub(model, _NO_CONNECTION if unconnected else reason_of(error)) from None


@functools.lru_cache(maxsize=64)
def _ask(model: str, revision: str) -> None:
    """Remembers what can be fetched, so that a plan that is checked again asks once; what cannot is an error."""
    import huggingface_hub

    with fetching(model, revision):
        if not isinstance(huggingface_hub.try_to_load_from_cache(model, CONFIG, revision=revision), str):
            huggingface_hub.HfApi().model_info(model, revision=revision, timeout=_SECONDS)
