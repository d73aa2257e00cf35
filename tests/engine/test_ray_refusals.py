"""What is told where there is no Ray, or no cluster; in a process that is connected to none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chains import refused

pytest.importorskip("ray")

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("address", "code", "value"),
    [
        ("", 3, "--engine ray needs the library Ray: pip install 'itrpipe[ray]'"),
        *((each, 8, f"error: no Ray cluster answers at --address {each} (") for each in (NOBODY, "auto", "nonsense")),
    ],
)
def test_refusals(data_root: Path, invoke: Any, monkeypatch: Any, address: str, code: int, value: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", NOBODY)  # where `auto` looks first
    if not address:
        monkeypatch.setitem(sys.modules, "ray", None)
    given = ("--engine", "ray", *(("--address", address) if address else ()))
    refused(invoke("prepare", "--train", 4, "--val", 4, "--test", 4, "--data", data_root, *given), code, value)
