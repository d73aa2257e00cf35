"""What others read names files, and not the folders of the machine that they lay in."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.exporting.places import command_without_places, text_without_places, without_places

CASES = json.loads(Path(__file__).with_name("cases.json").read_text())


@pytest.mark.parametrize(("command", "shown"), CASES["commands"])
def test_commands_name_files_without_their_places(command: str, shown: str) -> None:
    assert command_without_places(command) == shown


@pytest.mark.parametrize(("value", "shown"), CASES["settings"])
def test_settings_name_files_without_their_places(value: Any, shown: Any) -> None:
    assert without_places(value) == shown


@pytest.mark.parametrize(("text", "shown"), CASES["messages"])
def test_messages_name_files_without_their_places(text: str, shown: str) -> None:
    assert text_without_places(text) == shown


@given(st.lists(st.text(st.sampled_from("ab/ ~.='\"[]"), max_size=12), max_size=4))
def test_once_is_enough(arguments: list[str]) -> None:
    once = command_without_places(shlex.join(arguments))
    assert len(shlex.split(once)) == len(arguments)
    assert not any(each.startswith(("/", "../", "~/")) and each.strip("/.~") for each in shlex.split(once))
