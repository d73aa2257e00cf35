"""Settings, commands and messages for other people's eyes: names of files, and not where on this machine they lie."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from itrpipe.judging.declaration import JudgeName, judge_name

_ELSEWHERE = r"(?:~[\w.-]*|\.\.)?/"
"""Begins a path that leads out of the current folder; hub ids and paths below it begin with a name."""
_PLACE = re.compile(rf"\A{_ELSEWHERE}.*\Z|(?<=([\"'])){_ELSEWHERE}.*?(?=\1)", re.DOTALL)
"""A whole text that is such a path, or one in quotes, as in lists."""
_IN_TEXT = re.compile(rf"(?<![\w.:/~\\-]){_ELSEWHERE}(?=[^\s/])[^\s'\"<>|(),;:]*")


def without_places(value: Any) -> Any:
    """Return settings with the name of every file and folder instead of its place.

    Args:
        value: text, or what JSON has, with text anywhere in it.
    """
    if isinstance(value, str):
        return _PLACE.sub(_name, value)
    if isinstance(value, Mapping):
        return {key: without_places(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return list(map(without_places, value))
    return value


def command_without_places(command: str) -> str:
    """Return a command line with names instead of places: `--data=/mnt/data` becomes `--data=data`."""
    return shlex.join(map(_argument, shlex.split(command)))


def text_without_places(text: str) -> str:
    """Return a message with names instead of places; a path ends at its first space."""
    return _IN_TEXT.sub(_name, text)


def judge_without_place(text: str) -> str:
    """Return the name of a judge, of a folder its last part alone."""
    kind, model = judge_name(text)
    return str(JudgeName(kind, without_places(model)))


def _argument(text: str) -> str:
    key, equals, value = text.partition("=")
    if equals and "/" not in key:
        return f"{key}={_argument(value)}"  # `--set=stage.key=PATH`
    return _PLACE.sub(_name, text)


def _name(path: re.Match[str]) -> str:
    return PurePosixPath(path[0]).name or path[0]
