"""Importer of the TSV files that the bottom-up-attention tools write: one image a line, arrays in base64.

Files have no header. Their columns, told apart by number, are

* 6: image_id, image_w, image_h, num_boxes, boxes, features (tools/generate_tsv.py of bottom-up-attention),
* 10: img_id, img_h, img_w, objects_id, objects_conf, attrs_id, attrs_conf, num_boxes, boxes, features (LXMERT).

Ids of objects and attributes are int64, everything else float32, both little-endian; boxes are x0, y0, x1, y1 in
pixels of the image as it is on disk. Ids count without the background class, as they are stored. A folder of files is
one source: extraction on several GPUs writes one file each, and some name an image in two of them.
"""

from __future__ import annotations

import base64
import math
from pathlib import Path
from typing import Any, BinaryIO

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
_INTEGERS = ("labels", "attributes")
# A line takes 0.4 to 1.1 MB, and what comes before its features 6 kB for 100 regions.
_HEAD_BYTES = 16_384
_LONGEST_LINE = 1 << 26


class TsvSource(Entries):
    """Indexed TSV files."""

    def __init__(self, path: Path, settings: ButdTsv) -> None:
        """Find the lines of a .tsv file or of a folder of them.

        Raises:
            DataError: a line has other columns or is cut off, two lines name the same image and differ, or none has
                regions.
        """
        super().__init__(path)
        self._columns = tuple[str, ...]()
        self._width = 0
        self._counts = set[int]()
        for file in _files(path):
            with file.open("rb", buffering=_HEAD_BYTES) as stream:
                number = 0
                size = file.stat().st_size
                while stream.tell() < size:
                    number += 1
                    with reading(f"{file}, line {number}", "features", "remove the line or extract it again"):
                        self._add_line(file, stream)
        tool = "LXMERT's" if "labels" in self._columns else "bottom-up-attention's"
        self.describe(f"{tool} TSV", self._counts, self._width, self._columns)

    def _add_line(self, file: Path, stream: BinaryIO) -> None:
        """Note the next line, unless it is blank.

        The number of regions tells where a line ends. So features are read only of the first line, which tells how wide
        they are, and of lines that do not end there.
        """
        start = stream.tell()
        line = stream.readline(_HEAD_BYTES if self._width else _LONGEST_LINE)
        if not line.strip():
            return
        while not line.endswith(b"\n") and line.count(b"\t") < len(self._columns) - 1:
            more = stream.readline(_HEAD_BYTES)
            if not more:
                break
            line += more
        if not self._columns:
            self._columns = _COLUMNS.get(line.count(b"\t") + 1, ())
        fields = self._fields(line)
        regions = int(_bare(fields["count"]))
        if regions < 0:
            raise ValueError(f"it has {regions} regions")
        features_start = start + len(line) - len(fields["regions"])
        stop = features_start + math.ceil(4 * regions * self._width / 3) * 4
        stream.seek(stop - 1)
        last = stream.readline(3)
        if line.endswith(b"\n") or not last or last[1:].strip():
            stream.seek(start)
            line = stream.readline(_LONGEST_LINE)
            stop = start + len(line.rstrip(b"\r\n"))
            size = _values(self._fields(line)["regions"], "<f4").size
            if not self._width:
                self._width = size // max(1, regions)
            if size != regions * self._width or bool(size) != bool(regions):
                raise ValueError(f"{size:,} numbers are not {regions} regions of width {self._width}: it is cut off")
        name = _bare(fields["name"]).decode()
        if not name:
            raise ValueError("it names no image")
        self.add(name, Place(file, start, stop - start))
        self._counts.add(regions)

    def _fields(self, line: bytes) -> dict[str, bytes]:
        fields = line.split(b"\t")
        if len(fields) != len(self._columns):
            expected = len(self._columns) or " or ".join(map(str, _COLUMNS))
            raise ValueError(f"it has {len(fields)} columns and should have {expected}")
        return dict(zip(self._columns, fields, strict=True))

    def entry(self, place: Place) -> dict[str, Any]:
        """See `Entries`."""
        fields = self._fields(place.content())
        regions = int(_bare(fields["count"]))
        arrays: dict[str, Any] = {"size": [int(_bare(fields[side])) for side in ("height", "width")]}
        for name in self.spec.keys() - {"count"}:
            dtype = "<i8" if name in _INTEGERS else "<f4"
            arrays[name] = _values(fields[name], dtype).reshape(regions, *self.spec[name][1:])
        return arrays


open_source = TsvSource


def layout(path: Path) -> Layout | None:
    """Return a .tsv file or a folder of such; the first line of the first one must have their columns."""
    files = _files(path)
    if not files:
        return None
    with files[0].open("rb") as stream:
        columns = 1 + stream.readline(_LONGEST_LINE).count(b"\t")
    if columns in _COLUMNS:
        return Layout(files)
    return Layout(files, f"{' or '.join(map(str, _COLUMNS))} columns in {files[0].name}")


def _files(path: Path) -> list[Path]:
    candidates = sorted(path.glob("*")) if path.is_dir() else [path]
    return [file for file in candidates if file.suffix.lower() == ".tsv" and file.is_file()]


def _values(text: bytes, dtype: str) -> np.ndarray:
    """Return the values of a field in base64, whose padding some tools leave out."""
    text = _bare(text)
    padding = b"=" * (-len(text) % 4)
    return np.frombuffer(base64.b64decode(text + padding, validate=True), dtype)


def _bare(text: bytes) -> bytes:
    """Return a field without the b'...' that some tools wrote around it under Python 3."""
    text = text.strip()
    if text[:2] in (b"b'", b'b"') and text[-1:] in (b"'", b'"'):
        return text[2:-1]
    return text
