"""Importer of UNITER's image databases, and of folders with one .npz file per image.

| source                                     | arrays of an image                                                      |
|--------------------------------------------|-------------------------------------------------------------------------|
| LMDB environment, or a folder of several   | features [r, D], norm_bb [r, 6], conf [r], soft_labels [r, classes]     |
| .npz files as UNITER makes databases from  | the same                                                                |
| .npz files of bottom-up-attention.pytorch  | x [r, D], bbox [r, 4] in pixels, num_bbox, image_h, image_w             |

A value of a database is .npz, or msgpack as msgpack-numpy writes it, or an LZ4 frame of either. The columns of norm_bb
are x0, y0, x1, y1, width and height as fractions. `labels` is the largest column of soft_labels as it is numbered
there: the tool that made the published features counts the background as column 0, other tools put it last.

Regions are stored by falling confidence. Of those surer than `min_score` at least `min_regions` and at most
`max_regions` are taken, from the first on; where there is no confidence, all up to `max_regions`.

Source: UNITER (Chen et al., 2020), image features of the published code.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.importers.base import BOX_SLACK, Entries, Layout, Place
from itrpipe.features.importers.uniter.declaration import Uniter
from itrpipe.features.importers.uniter.lmdb_file import values_of
from itrpipe.storage.arrays import open_arrays
from itrpipe.storage.disk import read_json, reading

_DATABASE = "data.mdb"
_PATTERNS = ((_DATABASE, f"*/{_DATABASE}", f"*/*/{_DATABASE}"), ("*.npz", "*/*.npz"))
_NAMES = {"features": "regions", "x": "regions", "norm_bb": "boxes", "bbox": "boxes", "conf": "scores"}
_KEYS = (*_NAMES, "soft_labels", "num_bbox", "image_h", "image_w")
_COUNTED = ("conf", "num_bbox", "features", "x")
_LZ4 = b"\x04\x22\x4d\x18"
# The arrays of an image take 2 MB; damaged lengths must not fill the memory.
_MOST_BYTES = 1 << 28


class UniterSource(Entries):
    """Databases or .npz files, with the regions that the settings choose."""

    def __init__(self, path: Path, settings: Uniter) -> None:
        """Looks at the first image for what there is, and for R at all of them or at UNITER's list of counts.

        Raises:
            MissingInputError: a package is not installed.
            DataError: a file is damaged or holds no features, or two databases differ in an image they share.
        """
        super().__init__(path)
        self._settings = settings
        databases, archives = _files(path)
        for file in databases:
            for key, place in values_of(file):
                if not key.startswith(b"__"):  # UNITER's own, such as the list of keys
                    self.add(key.decode(errors="backslashreplace"), place)
        for file in archives:
            self.add(file.relative_to(path).as_posix(), Place(file, 0, 0))
        if not self.names:
            raise DataError(f"{path} holds no image; name another folder")
        with self.reading(self.names[0]) as place:
            arrays = _arrays(place, _KEYS)
            first = _stored(arrays)
        counted = next(key for key in _COUNTED if key in arrays)
        counts = self._listed(databases) or [self._count(name, counted) for name in self.names]
        chosen = f"surer than {settings.min_score}" if "scores" in first else "without confidences"
        kind = "LMDB" if databases else ".npz"
        self.describe(f"{kind}, regions {chosen}", counts, first["regions"].shape[1], first.keys())

    def entry(self, place: Place) -> dict[str, Any]:
        """See `Entries`."""
        arrays = _arrays(place, _KEYS)
        kept = self._kept(arrays)
        return {name: values if name == "size" else values[:kept] for name, values in _stored(arrays).items()}

    def _listed(self, databases: Sequence[Path]) -> list[int]:
        """How many regions the settings take of each image, by the lists that UNITER keeps beside databases, if any."""
        chosen = self._settings
        file = f"nbb_th{chosen.min_score}_max{chosen.max_regions}_min{chosen.min_regions}.json"
        lists = [next((up / file for up in path.parents[:2] if (up / file).is_file()), None) for path in databases]
        if not lists or None in lists:
            return []
        with reading(f"{lists[0]}", "a list of all images", "remove it to count their regions again"):
            listed = {name: count for path in lists if path for name, count in read_json(path).items()}
            return [min(int(listed[name]), chosen.max_regions) for name in self.names]

    def _count(self, name: str, key: str) -> int:
        with self.reading(name) as place:
            return self._kept(_arrays(place, [key]))

    def _kept(self, arrays: Mapping[str, np.ndarray]) -> int:
        """How many regions the settings take of an image."""
        key = next(key for key in _COUNTED if key in arrays)
        stored = int(arrays[key]) if key == "num_bbox" else len(arrays[key])
        sure = int((arrays[key] > self._settings.min_score).sum()) if key == "conf" else stored
        return min(max(sure, self._settings.min_regions), self._settings.max_regions, stored)


open_source = UniterSource


def layout(path: Path) -> Layout | None:
    """LMDB environments, or .npz files, of which the first must hold the features of an image."""
    databases, archives = _files(path)
    if not archives:
        return Layout(databases) if databases else None
    try:
        known = open_arrays(archives[0]).keys() & {"features", "x"}
    except DataError:
        return Layout(archives, f"a whole {archives[0].name}")
    return Layout(archives, "" if known else f"features or x in {archives[0].name}")


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """The databases, or else the .npz files, sorted."""
    databases, archives = (sorted(file for pattern in kind for file in path.glob(pattern)) for kind in _PATTERNS)
    return databases, [] if databases else archives


def _stored(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """All regions of an image under the names of the store, and `size` where boxes are in pixels."""
    found: dict[str, Any] = {name: arrays[key] for key, name in _NAMES.items() if key in arrays}
    if "soft_labels" in arrays:
        found["labels"] = arrays["soft_labels"].argmax(axis=1)
    if "norm_bb" in arrays:
        first, last, extent = np.split(arrays["norm_bb"].astype("f8"), [2, 4], axis=1)
        if (np.abs(last - first - extent) > BOX_SLACK).any():
            raise ValueError("its norm_bb is not x0, y0, x1, y1, width, height")
        found["boxes"] = arrays["norm_bb"][:, :4]
    if "regions" not in found:
        raise ValueError("it holds neither 'features' nor 'x'")
    lengths = {name: len(values) for name, values in found.items()}
    if "num_bbox" in arrays:
        lengths["num_bbox"] = int(arrays["num_bbox"])
    if len(set(lengths.values())) > 1 or not found["regions"].size:
        raise ValueError(f"its arrays differ in length or are empty: {lengths}")
    return found | ({"size": [int(arrays[key]) for key in ("image_h", "image_w")]} if "bbox" in arrays else {})


def _arrays(place: Place, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that an image has. Nothing is unpickled."""
    value = place.content()
    if value.startswith(_LZ4):
        frame = _package("lz4.frame").LZ4FrameDecompressor()
        value = frame.decompress(value, max_length=_MOST_BYTES)
        if not frame.eof:
            raise EOFError("its LZ4 frame has no end")
    if not place.length or value.startswith(b"PK"):
        with np.load(io.BytesIO(value) if place.length else place.file) as archive:
            return {key: archive[key] for key in keys if key in archive}
    # Texts stay bytes: old writers knew no other type for the content of arrays.
    content = _package("msgpack").unpackb(value, raw=True)
    return {key: _array(content[key.encode()]) for key in keys if key.encode() in content}


def _array(packed: dict[bytes, Any]) -> np.ndarray:
    """An array as msgpack-numpy packs it, whose own decoder would unpickle objects."""
    dtype = np.dtype(packed[b"type"].decode())
    if packed[b"nd"] is not True or packed.get(b"kind") or dtype.kind not in "biuf":
        raise ValueError("it holds something else than plain numbers")
    return np.frombuffer(packed[b"data"], dtype).reshape(packed[b"shape"])


def _package(name: str) -> Any:
    """A package of the optional extra `uniter`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingInputError(f"this needs {name}: pip install 'itrpipe[uniter]' ({error})") from error
