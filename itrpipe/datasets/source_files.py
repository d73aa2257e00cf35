"""Data files of users: text, JSON and tables, read into typed records; a wrong one is told in a line of its own."""

import csv
import io
import itertools
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError, with_config

from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.printable import printable
from itrpipe.storage.disk import unavailable

Kind = TypeVar("Kind")
_EXPECTED = {
    "string_type": "text",
    "float_type": "a number",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
}
"""Pydantic's type of an error -> the value that a user is to write."""
_SHOWN = 60
"""Characters of a wrong value."""


STRICT = with_config(ConfigDict(strict=True))
"""Decorates a `TypedDict` of the fields of one object or row of a data file; the file's other fields are not read.

Each value must have the type of its field. A validator of a field raises a `ValueError` that says what is expected:
`a sentence`. Dictionaries are read several times as fast as models, which is felt with 100,000 captions.
"""


def _list_or_object(value: Any) -> Any:
    if not isinstance(value, list | dict):
        raise ValueError("a list or an object")
    return value


OBJECT = TypeAdapter(dict[str, Any])
LIST = TypeAdapter(list[Any])
ANY = TypeAdapter(Annotated[list[Any] | dict[str, Any], BeforeValidator(_list_or_object)])
"""A list or an object of anything."""


def _number_as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


Id = Annotated[str, BeforeValidator(_number_as_text)]
"""An id, which may be written as a whole number."""


def files_present(source: Path, names: Sequence[str]) -> list[Path]:
    """Return the source itself if it is a file of one of these names or patterns, or all such files in the folder."""
    if source.is_file():
        for name in names:
            if fnmatchcase(source.name, name):
                return [source]
        return []
    paths = []
    for name in names:
        paths += filter(Path.is_file, sorted(source.glob(name)))
    return paths


def data_files(source: Path, names: Sequence[str], *, by_year: bool = False) -> list[Path]:
    """Return the data files of a source: one, or several of one year.

    Args:
        source: the file itself, under any name, or a folder that holds exactly one file of `names`.
        names: file names or patterns that the format goes by.
        by_year: whether the folder may hold several files, whose names end in one year.

    Raises:
        MissingInputError: there is no such file.
        UsageError: the folder holds several.
    """
    if source.is_file():
        return [source]
    paths = files_present(source, names)
    if not paths:
        raise MissingInputError(f"{source}: none of {', '.join(names)} is there; name the file or its folder")
    alternatives = {path.stem[-4:] for path in paths} if by_year else set(paths)
    if len(alternatives) > 1:
        listing = ", ".join(path.name for path in paths)
        raise UsageError(f"{source}: holds {len(paths)} data files ({listing}); name one of them as the source")
    return paths


def read_text(path: Path) -> str:
    """Return the content of a UTF-8 file without its byte order mark, line ends as they are.

    Raises:
        DataError: the file is not UTF-8.
        MissingInputError: there is no such file.
        UnavailableError: it cannot be read now.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 ({error.reason}); convert it, for example with iconv") from error
    except OSError as error:
        missing = MissingInputError(f"{path}: cannot be read ({error.strerror}); check the path")
        raise unavailable(error, path) or missing from error


def text_lines(path: Path) -> Iterator[str]:
    """Return the lines of a UTF-8 file, line ends included; errors as of `read_text`."""
    return io.StringIO(read_text(path), newline="")


def lines_of(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file without their ends, and without empty lines at its end.

    Errors are those of `read_text`.
    """
    text = read_text(path).rstrip("\r\n")
    return [line.rstrip("\r\n") for line in io.StringIO(text, newline="")]


def load_json(path: Path, kind: TypeAdapter[Kind]) -> Kind:
    """Return the content of a JSON file.

    Args:
        path: the file.
        kind: type of its content.

    Raises:
        DataError: the file is not UTF-8, not JSON or of another kind; the message names the place and the value.
        MissingInputError: the file cannot be opened.
    """
    return validated(kind.validate_json, read_text(path), path)


def rows(path: Path, kind: TypeAdapter[Kind]) -> Iterator[tuple[str, Kind]]:
    """Yield the rows of a table with the line where each ends.

    A `.jsonl` has one object in each line; empty lines are skipped. A `.json` is a list, whose elements are numbered
    from 0, or an object, whose values have keys. Anything else is a table with a header, in letters of any case. Tabs
    separate a `.tsv`; semicolons a table whose header has some and no comma, as spreadsheets write it in many
    countries; else commas. It quotes as the csv module does: a field with a separator, a quote or a line end stands in
    double quotes, and quotes within it are doubled.

    Args:
        path: the table.
        kind: type of a row.

    Raises:
        DataError: the file is not UTF-8 or malformed, or a row is of another kind.
        MissingInputError: the file cannot be opened.
    """
    suffix = path.suffix.lower()
    # Rows go to the validator itself: its adapter would take twice as long.
    if suffix == ".jsonl":
        for number, line in enumerate(text_lines(path), start=1):
            if line.strip():
                yield str(number), validated(kind.validator.validate_json, line, path, f"line {number}")
        return
    if suffix == ".json":
        unit = "record"
        content = load_json(path, ANY)
        numbered = content.items() if isinstance(content, dict) else enumerate(content)
    else:
        unit = "line"
        numbered = _delimited_rows(path, suffix)
    for number, row in numbered:
        yield str(number), validated(kind.validator.validate_python, row, path, f"{unit} {number}")


def _delimited_rows(path: Path, suffix: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the rows of a table with a header, by the line where each ends."""
    lines = text_lines(path)
    first = next(lines, "")
    separator = ","
    if suffix == ".tsv":
        separator = "\t"
    elif ";" in first and "," not in first:
        separator = ";"
    # strict: an unbalanced quote would otherwise swallow the rows up to the next quote without a word.
    reader = csv.reader(itertools.chain([first], lines), delimiter=separator, strict=True)
    try:
        names = [name.strip().lower() for name in next(reader, [])]
        header = []
        for name in names:
            count = names.count(name)
            header.append(name if count == 1 else f"{name} ({count} columns)")
        for fields in reader:
            if len(fields) == len(header):
                yield reader.line_num, dict(zip(header, fields, strict=True))
            elif fields:
                raise DataError(
                    f"{path}: line {reader.line_num} has {len(fields)} fields, not the {len(header)} of the header "
                    f"({', '.join(header)}); quote those with separators"
                )
    except csv.Error as error:
        raise DataError(
            f"{path}: line {reader.line_num}: {error}; quote fields that hold a separator or a quote: "
            '"a ""quoted"" word"'
        ) from error


def validated(validate: Callable[[Any], Kind], content: Any, path: Path, where: str = "") -> Kind:
    """Return the content as a record.

    Raises:
        DataError: it is none. The line names the file, the place in it, the field and its value.
    """
    try:
        return validate(content)
    except ValidationError as error:
        first, *more = error.errors(include_url=False)
    context = first.get("ctx", {})
    value = repr(first["input"])[:_SHOWN]
    place = list(first["loc"])
    match first["type"]:
        case "json_invalid":
            reason = f"is not valid JSON ({context['error']}); get the file again, or correct it"
        case "missing":
            missing = [str(place.pop())]
            for other in more:
                if other["type"] == "missing" and list(other["loc"][:-1]) == place:
                    missing.append(str(other["loc"][-1]))
            fields = ", ".join(first["input"]) or "nothing"
            reason = f"has no {' and no '.join(missing)}; it has {fields}; rename one of these"
        case "value_error":
            reason = f"is {value}, expected {context['error']}"
        case kind:
            reason = f"is {value}, expected {_EXPECTED.get(kind, 'another value')}"
    words = filter(None, [where, *map(str, place), reason])
    raise DataError(f"{path}: {printable(' '.join(words))}")
