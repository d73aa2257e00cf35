"""Importer of the TSV files that the bottom-up-attention tools write: one image a line, arrays in base64.

Files have no header. Their columns, told apart by number, are

* 6: image_id, image_w, image_h, num_boxes, boxes, features (tools/generate_tsv.py of bottom-up-attention),
* 10: img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes, boxes, features (LXMERT).

Ids of objects and attributes are int64, everything else float32, both little-endian; boxes are x0, y0, x1, y1 in
pixels of the image as it is on disk. Ids count without the background class, as they are stored. A folder of files is
one source: extraction on several GPUs writes one file each, and some name an image in two of them.
"""

import base64
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.features.importers.base import Entries, Layout, Place
from itrpipe.features.importers.butd_tsv.declaration import ButdTsv
from itrpipe.storage.disk import reading

# The columns by the names of the store.
_CLASSES = ("labels", "scores", "attributes", "attribute_scores")
_COLUMNS = {
    6: ("name", "width", "height", "count", "boxes", "regions"),
    10: ("name", "height", "width", *_CLASSES, "count", "boxes", "regions"),
}
_NUMBERS = "6 or 10"
_INTEGERS = ("labels", "attributes")
_LONGEST_LINE = 1 << 26
"""Bytes; a line of 100 regions takes 1.1 MB."""


class TsvSource(Entries):
    """Indexed TSV files."""

    def __init__(self, path: Path, settings: ButdTsv) -> None:
        """Finds the lines of a .tsv file or of a folder of them.

        Raises:
            DataError: a line has other columns or is cut off, two lines name the same image and differ, or none has
                regions.
        """
        super().__init__(path)
        self._columns = tuple[str, ...]()
        self._width = 0
        self._counts = set[int]()
        for file in _files(path):
            with file.open("rb") as stream:
                lines = iter(partial(stream.readline, _LONGEST_LINE), b"")
                start = 0
                for number, line in enumerate(lines, 1):
                    with reading(f"{file}, line {number}", "features", "remove the line or extract it again"):
                        self._add_line(line, Place(file, start, len(line.rstrip(b"\r\n"))))
                    start += len(line)
        tool = "LXMERT's" if "labels" in self._columns else "bottom-up-attention's"
        self.describe(f"{tool} TSV", self._counts, self._width, self._columns)

    def _add_line(self, line: bytes, place: Place) -> None:
        """Notes a line and its place, unless it is blank."""
        if not line.strip():
            return
        self._columns = self._columns or _COLUMNS.get(line.count(b"\t") + 1, ())
        fields = self._fields(line)
        regions = int(fields["count"])
        size = _values(fields["regions"], "<f4").size
        self._width = self._width or size // max(1, regions)
        if size != regions * self._width or bool(size) != bool(regions):
            raise ValueError(f"{size:,} numbers are not {regions} regions of width {self._width}: it is cut off")
        if not fields["name"]:
            raise ValueError("it names no image")
        self.add(fields["name"].decode(), place)
        self._counts.add(regions)

    def _fields(self, line: bytes) -> dict[str, bytes]:
        fields = line.split(b"\t")
        if len(fields) != len(self._columns):
            raise ValueError(f"it has {len(fields)} columns and should have {len(self._columns) or _NUMBERS}")
        return dict(zip(self._columns, map(_bare, fields), strict=True))

    def entry(self, place: Place) -> dict[str, Any]:
        """See `Entries`."""
        fields = self._fields(place.content())
        regions = int(fields["count"])
        found: dict[str, Any] = {"size": [int(fields["height"]), int(fields["width"])]}
        for name in self.spec.keys() - {"count"}:
            dtype = "<i8" if name in _INTEGERS else "<f4"
            found[name] = _values(fields[name], dtype).reshape(regions, *self.spec[name][1:])
        return found


open_source = TsvSource


def layout(path: Path) -> Layout | None:
    """A .tsv file or a folder of such; the first line of the first one must have their columns."""
    found = _files(path)
    if not found:
        return None
    with found[0].open("rb") as file:
        known = 1 + file.readline(_LONGEST_LINE).count(b"\t") in _COLUMNS
    return Layout(found, "" if known else f"{_NUMBERS} columns in {found[0].name}")


def _files(path: Path) -> list[Path]:
    candidates = sorted(path.glob("*")) if path.is_dir() else [path]
    return [file for file in candidates if file.suffix.lower() == ".tsv" and file.is_file()]


def _values(text: bytes, dtype: str) -> np.ndarray:
    """The values of a field in base64, whose padding some tools leave out."""
    return np.frombuffer(base64.b64decode(text + b"=" * (-len(text) % 4), validate=True), dtype)


def _bare(text: bytes) -> bytes:
    """A field without the b'...' that some tools wrote around it under Python 3."""
    text = text.strip()
    return text[2:-1] if text[:2] in (b"b'", b'b"') and text[-1:] in (b"'", b'"') else text
