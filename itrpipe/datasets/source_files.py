"""What the readers of all formats share: finding files, reading text and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.storage.disk import reading_error

Kind = TypeVar("Kind")


def files_present(source: Path, names: Sequence[str]) -> list[Path]:
    """Return the source itself if it is a file of one of these names, or the files so named in the folder."""
    if source.is_file():
        return [source] if source.name in names else []
    return [source / name for name in names if (source / name).is_file()]


def one_file(source: Path, names: Sequence[str]) -> Path:
    """Return the one data file that a source stands for.

    Args:
        source: the file itself, under any name, or a folder that holds exactly one file of `names`.
        names: file names that the format goes by.

    Raises:
        MissingInputError: there is no such file.
        UsageError: the folder holds several.
    """
    if source.is_file():
        return source
    found = files_present(source, names)
    if not found:
        raise MissingInputError(f"{source}: none of {', '.join(names)} is there; name the file or its folder")
    if len(found) > 1:
        several = ", ".join(path.name for path in found)
        raise UsageError(f"{source}: holds {len(found)} data files ({several}); name one of them as the source")
    return found[0]


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, with or without byte order mark, line ends included.

    Raises:
        DataError: the file is not UTF-8.
        MissingInputError: there is no such file.
        UnavailableError: it cannot be read now.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            yield from stream
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({error.reason}); convert it, for example with iconv") from error
    except OSError as error:
        missing = MissingInputError(f"{path}: cannot be read ({error.strerror}); check the path")
        raise reading_error(error, path, missing) from error


def lines_of(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file without their ends; empty ones at its end are no lines. Errors as above."""
    lines = [line.rstrip("\r\n") for line in text_lines(path)]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def load_json_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds.

    Raises:
        DataError: the file is not UTF-8, not JSON, or its top level is not an object.
        MissingInputError: the file cannot be opened.
    """
    return _load_json(path, dict, "an object")


def load_json_list(path: Path) -> list[Any]:
    """Return the list that a JSON file holds; errors as in `load_json_object`."""
    return _load_json(path, list, "a list")


def load_json(path: Path) -> dict[str, Any] | list[Any]:
    """Return the object or the list that a JSON file holds; errors as in `load_json_object`."""
    return _load_json(path, (dict, list), "an object or a list")


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file that has one in each line, with the number of the line; empty lines are skipped.

    Raises:
        DataError: the file is not UTF-8, or a line is not JSON or no object.
        MissingInputError: the file cannot be opened.
    """
    for number, line in enumerate(text_lines(path), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # also whole numbers of thousands of digits
            raise DataError(f"{path}: line {number} is not valid JSON ({error}); write one object per line") from error
        if not isinstance(record, dict):
            raise DataError(f"{path}: line {number} is a {type(record).__name__}; write one object per line")
        yield number, record


def _load_json(path: Path, kind: type[Kind] | tuple[type[Kind], ...], called: str) -> Kind:
    try:
        content = json.loads("".join(text_lines(path)))
    except (ValueError, RecursionError) as error:  # also whole numbers of thousands of digits
        raise DataError(f"{path}: is not valid JSON ({error}); get it again") from error
    if not isinstance(content, kind):
        raise DataError(f"{path}: top level is a {type(content).__name__}, expected {called}; is this the right file?")
    return content


def required(record: Any, key: str, kind: type[Kind] | tuple[type[Kind], ...], path: Path, where: str) -> Kind:
    """Return `record[key]` after checking that the record is an object and the value of the kind.

    Raises:
        DataError: anything else; the message names the file and where in it.
    """
    if not isinstance(record, dict):
        raise DataError(f"{path}: {where} is a {type(record).__name__}, expected an object")
    if key not in record:
        raise DataError(f"{path}: {where} has no {key!r}; it has {', '.join(map(repr, record)) or 'nothing'}")
    value = record[key]
    if not isinstance(value, kind) or isinstance(value, bool):  # which is a kind of int
        kinds = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise DataError(f"{path}: {where}: {key!r} is a {type(value).__name__}, expected {kinds}")
    return value
