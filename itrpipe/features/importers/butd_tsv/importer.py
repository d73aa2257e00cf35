"""Importer of the TSV files that the bottom-up-attention tools write: one image a line, arrays in base64.

Files have no header. Their columns, told apart by number, are

* 6: image_id, image_w, image_h, num_boxes, boxes, features (tools/generate_tsv.py of bottom-up-attention),
* 10: img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes, boxes, features (LXMERT).

Ids of objects and attributes are int64, everything else float32, both little-endian; boxes are x0, y0, x1, y1 in
pixels of the image as it is on disk. Ids count without the background class, as they are stored. A folder of files is
one source: extraction on several GPUs writes one file each, and some name an image in two of them.

A line takes 0.4 to 1.1 MB. Opening finds where lines start, and since the number of boxes tells how long a line is,
it jumps over features and reads a few kB of each.
"""

from __future__ import annotations

import base64
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.importers.array_file import read_range
from itrpipe.features.importers.base import (
    Layout,
    fractions_of,
    require_floats,
    require_integers,
    require_same_aspect,
    stack_padded,
)
from itrpipe.features.importers.butd_tsv.declaration import ButdTsv
from itrpipe.storage.disk import reading_error

COLUMNS = {
    6: ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features"),
    10: (
        *("img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf"),
        *("num_boxes", "boxes", "features"),
    ),
}
# Dataset of the store, column, type.
_LABELS = (("labels", "objects_id", "<i8"), ("attributes", "attrs_id", "<i8"))
_CONFIDENCES = (("scores", "objects_conf", "<f4"), ("attribute_scores", "attrs_conf", "<f4"))

_MOST_REGIONS = np.iinfo(np.int16).max
# A head is everything before the features: 6 kB for 100 regions.
_HEAD_BYTES = 16_384
_LONGEST_HEAD = 1 << 22
_SCAN_BYTES = 1 << 20


@dataclass(frozen=True)
class _Line:
    """Where a line lies: bytes `start` to `stop`, line end not included."""

    name: str
    start: int
    stop: int
    regions: int


@dataclass
class _Index:
    """Where the entries lie, in a few bytes each."""

    files: list[Path]
    columns: tuple[str, ...] = ()
    width: int = 0
    names: list[str] = field(default_factory=list)
    file: array = field(default_factory=lambda: array("i"))
    start: array = field(default_factory=lambda: array("q"))
    stop: array = field(default_factory=lambda: array("q"))
    regions: array = field(default_factory=lambda: array("i"))
    repeated: int = 0

    def add(self, file: int, line: _Line) -> None:
        self.names.append(line.name)
        self.file.append(file)
        self.start.append(line.start)
        self.stop.append(line.stop)
        self.regions.append(line.regions)

    def content(self, entry: int) -> bytes:
        return _read_bytes(self.files[self.file[entry]], self.start[entry], self.stop[entry])


class TsvSource:
    """TSV files as a `Source`."""

    def __init__(self, path: Path, index: _Index) -> None:
        """Describes indexed files."""
        from itrpipe.features.store import FeatureSpec

        labelled = "objects_id" in index.columns
        self.path = path
        self.names: Sequence[str] = index.names
        self.captions: Sequence[Sequence[str]] | None = None
        self.spec: FeatureSpec = FeatureSpec(
            max(index.regions), index.width, boxes=True, labels=labelled, scores=labelled, attributes=labelled
        )
        self._index = index
        layout = "LXMERT's" if labelled else "bottom-up-attention's"
        self.summary = (
            f"{layout} TSV: {len(index.names):,} images in {len(index.files)} file{'s' * (len(index.files) > 1)}; "
            f"{min(index.regions)} to {max(index.regions)} regions of width {index.width}"
        )
        if index.repeated:
            self.summary += f"; {index.repeated:,} images come twice with the same content, the first is taken"

    def read(self, entries: np.ndarray, sizes: np.ndarray) -> dict[str, np.ndarray]:
        """See `Source`."""
        return stack_padded(
            [self._entry(entry, size) for entry, size in zip(entries.tolist(), sizes, strict=True)], self.spec
        )

    def _entry(self, entry: int, size: np.ndarray) -> dict[str, np.ndarray]:
        index, names = self._index, [self.names[entry]]
        path, regions = index.files[index.file[entry]], index.regions[entry]
        fields = index.content(entry).split(b"\t")
        if len(fields) != len(index.columns):
            raise DataError(f"{path}: the line of image '{names[0]}' changed while it was read; start again.")
        line = _Fields(path, names[0], dict(zip(index.columns, fields, strict=True)))
        columns = (next(name for name in index.columns if name.endswith(end)) for end in ("_w", "_h"))
        width, height = (line.number(column) for column in columns)
        require_same_aspect(path, names, np.array([[height, width]]), size[None])
        boxes = line.values("boxes", "<f4", regions * 4).reshape(1, regions, 4)
        features = line.values("features", "<f4", regions * index.width).reshape(regions, index.width)
        require_floats(path, names, "features", features[None], "f2")
        with np.errstate(invalid="ignore", over="ignore"):  # of damaged boxes, which are refused next
            fractions = fractions_of(path, names, boxes / np.array([width, height, width, height], dtype=np.float32))
        return {"regions": features, "boxes": fractions[0]} | (self._classes(line, regions) if self.spec.labels else {})

    def _classes(self, line: _Fields, regions: int) -> dict[str, np.ndarray]:
        classes = {}
        for name, column, dtype in _LABELS:
            classes[name] = line.values(column, dtype, regions)
            require_integers(line.path, [line.name], column, classes[name][None], 0, _MOST_REGIONS)
        for name, column, dtype in _CONFIDENCES:
            classes[name] = line.values(column, dtype, regions)
            require_floats(line.path, [line.name], column, classes[name][None], "f4")
        return classes


@dataclass(frozen=True)
class _Fields:
    """The fields of one line, by column."""

    path: Path
    name: str
    fields: dict[str, bytes]

    def number(self, column: str) -> int:
        value = _whole_number(self.fields[column])
        if value is None or value < 1:
            raise DataError(
                f"{self.path}: {column} of image '{self.name}' is {_shown(self.fields[column])}; pixels are needed."
            )
        return value

    def values(self, column: str, dtype: str, count: int) -> np.ndarray:
        text = _bare(self.fields[column])
        try:
            content = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
        except ValueError as error:
            raise DataError(
                f"{self.path}: {column} of image '{self.name}' are not base64 ({error}); extract it again."
            ) from error
        needed = count * np.dtype(dtype).itemsize
        if len(content) != needed:
            raise DataError(
                f"{self.path}: {column} of image '{self.name}' have {len(content):,} bytes and should have "
                f"{needed:,}; extract it again."
            )
        return np.frombuffer(content, dtype)


def layout(path: Path) -> Layout | None:
    """A .tsv file or a folder of such; the first line of the first one must have their columns."""
    found = files(path)
    if not found:
        return None
    with found[0].open("rb") as file:
        columns = 1 + file.readline(_LONGEST_HEAD).count(b"\t")
    lacks = "" if columns in COLUMNS else f"{' or '.join(map(str, COLUMNS))} columns in {found[0].name}"
    return Layout(", ".join(file.name for file in found), lacks)


def files(path: Path) -> list[Path]:
    """The .tsv files, sorted."""
    if path.is_dir():
        return sorted(file for file in path.glob("*") if file.suffix.lower() == ".tsv" and file.is_file())
    return [path] if path.suffix.lower() == ".tsv" and path.is_file() else []


def open_source(path: Path, settings: ButdTsv) -> TsvSource:
    """Finds the lines of a .tsv file or of a folder of them.

    Raises:
        MissingInputError: there is no such file, or it cannot be read.
        DataError: a line has other columns or is cut off, or two lines name the same image and differ.
    """
    if not files(path):
        raise MissingInputError(f"{path} is not a .tsv file or a folder that holds some; name one.")
    index, entry_of = _Index(files(path)), {}
    for number, file in enumerate(index.files):
        for line in _lines(file, index):
            earlier = entry_of.setdefault(line.name, len(index.names))
            if earlier == len(index.names):
                index.add(number, line)
            elif index.content(earlier) == _read_bytes(file, line.start, line.stop):
                index.repeated += 1
            else:
                other = index.files[index.file[earlier]]
                raise DataError(f"{file} has other features of image '{line.name}' than {other}; remove one of them.")
    if not index.width:
        raise DataError(f"{path} has no line with regions; name files with features.")
    return TsvSource(path, index)


def _lines(path: Path, index: _Index) -> Iterator[_Line]:
    """Yields the lines of a file; columns and width of the features are set by the first line of the first file."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError as error:
        missing = MissingInputError(f"{path} cannot be read ({error.strerror}).")
        raise reading_error(error, path, missing) from error
    try:
        start, size, number = 0, os.fstat(file).st_size, 0
        while start < size:
            number += 1
            head = _read_head(file, start, size, len(index.columns) or None)
            if head.strip(b"\r\n"):
                line = _parse_head(path, number, file, size, start, head, index)
                yield line
                start = _after_line_end(file, line.stop, size)
            else:
                start += len(head)
    finally:
        os.close(file)


def _read_head(file: int, start: int, size: int, columns: int | None) -> bytes:
    """Returns a line up to where its features start, or the whole line where the number of columns is not known."""
    length, content = _HEAD_BYTES, b""
    while True:
        content += os.pread(file, length - len(content), start + len(content))
        newline = content.find(b"\n")
        if newline >= 0:
            content = content[: newline + 1]
        tabs = content.count(b"\t")
        if newline >= 0 or (columns and tabs >= columns - 1) or start + len(content) >= size or length > _LONGEST_HEAD:
            return content
        length *= 4


def _parse_head(path: Path, number: int, file: int, size: int, start: int, head: bytes, index: _Index) -> _Line:
    where = f"{path}, line {number}"
    found = head.count(b"\t") + 1
    index.columns = index.columns or COLUMNS.get(found, ())
    if not index.columns or (found != len(index.columns)):
        kinds = " or ".join(str(count) for count in ([len(index.columns)] if index.columns else COLUMNS))
        raise DataError(f"{where} has {found} columns and should have {kinds}; remove the line or name other files.")
    fields = dict(zip(index.columns, head.split(b"\t", len(index.columns) - 1), strict=True))
    regions = _whole_number(fields["num_boxes"])
    if regions is None or not 0 <= regions <= _MOST_REGIONS:
        raise DataError(
            f"{where}: num_boxes is {_shown(fields['num_boxes'])}, not a number of regions; remove the line if it is "
            "a header."
        )
    name = _name(where, fields[index.columns[0]])
    features = start + len(head) - len(fields["features"])
    wrapped = fields["features"][:2] in (b"b'", b'b"')
    stop = _find_stop(file, size, features, _characters(regions, index.width) + 3 * wrapped if index.width else None)
    _require_whole(where, name, stop - features - 3 * wrapped, regions, index)
    return _Line(name, start, stop, regions)


def _require_whole(where: str, name: str, characters: int, regions: int, index: _Index) -> None:
    """Compares the length of base64 features with the number of regions; the first line says how wide features are."""
    if not index.width and regions:
        index.width = characters * 3 // 4 // (4 * regions)
    needed = _characters(regions, index.width)
    unpadded = -(-4 * 4 * regions * index.width // 3)
    if characters not in (needed, unpadded) or (regions and not index.width):
        raise DataError(
            f"{where} (image '{name}') has {characters:,} characters of features, and {needed:,} for {regions} regions "
            f"of width {index.width}: it is cut off; remove the line or extract it again."
        )


def _find_stop(file: int, size: int, features: int, predicted: int | None) -> int:
    """Returns the end of a line, after a look at where it should be."""
    if predicted is not None and features + predicted <= size:
        after = os.pread(file, 2, features + predicted)
        if after[:1] in (b"", b"\n") or after == b"\r\n":
            return features + predicted
    position = features
    while chunk := os.pread(file, _SCAN_BYTES, position):
        newline = chunk.find(b"\n")
        if newline >= 0:
            end = position + newline
            return end - 1 if end > features and os.pread(file, 1, end - 1) == b"\r" else end
        position += len(chunk)
    return size


def _after_line_end(file: int, stop: int, size: int) -> int:
    after = os.pread(file, 2, stop)
    return min(size, stop + (2 if after == b"\r\n" else 1))


def _characters(regions: int, width: int) -> int:
    """Base64 characters of float32 features, padding included."""
    return -(-4 * regions * width // 3) * 4


def _whole_number(text: bytes) -> int | None:
    text = _bare(text)
    return int(text) if text.isdigit() and len(text) < 10 else None


def _name(where: str, text: bytes) -> str:
    try:
        name = _bare(text).decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: the image's name is not UTF-8 ({error.reason}); convert the file first.") from error
    if not name:
        raise DataError(f"{where} has no image name; remove the line.")
    return name


def _bare(text: bytes) -> bytes:
    """Returns a field without the b'...' that some tools wrote around it under Python 3."""
    text = text.strip()
    return text[2:-1] if text[:2] in (b"b'", b'b"') and text[-1:] in (b"'", b'"') else text


def _shown(text: bytes) -> str:
    shown = text[:20].decode("utf-8", "backslashreplace")
    return repr(shown + ("..." if len(text) > 20 else ""))


def _read_bytes(path: Path, start: int, stop: int) -> bytes:
    content = bytearray(stop - start)
    read_range(path, str(path), memoryview(content), start)
    return bytes(content)
