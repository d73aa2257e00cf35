"""The one file of visual features, `features.h5`: created once at full size, filled row by row, read as memory maps.

Schema (N images, R regions, D and G widths; every dataset contiguous, uncompressed, little-endian):

| dataset     | shape, type          | content                                                        |
|-------------|----------------------|----------------------------------------------------------------|
| `/regions`  | [N, R, D] float16    | one vector per region                                          |
| `/count`    | [N] int16            | how many of the R regions are real; the others are zero        |
| `/boxes`    | [N, R, 4] float32    | x0, y0, x1, y1 as fractions of the image's width and height    |
| `/labels`   | [N, R] int16         | class of the region in the extractor's own list                |
| `/scores`   | [N, R] float32       | the detector's confidence                                      |
| `/attributes`, `/attribute_scores` | [N, R] int16, float32 | attribute of the region, and its confidence |
| `/global`   | [N, G] float16       | one vector for the whole image                                 |
| `/pixels`   | [N, H, W, 3] uint8   | the image itself, resized, RGB                                 |
| `/image_id` | [N] UTF-8 bytes      | fixed length, padded with NUL                                  |

Attributes of the root: `extractor` (its name) and `schema_version`. An extractor that has no boxes, say, writes a file
without `/boxes`. The bytes of a file depend on its content alone: no timestamps, no padding left to chance. An image
without features has no row.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType

import numpy as np

from itrpipe.errors import DataError, MissingInputError
from itrpipe.features.layout import DAMAGE_REMEDY, TYPES, Extent, read_layout, write_layout
from itrpipe.storage.disk import full_disk_as_error, require_space, sync

FEATURES = "features.h5"
GROUPS = frozenset({"regions", "global", "pixels"})

# Room for identifiers and HDF5's own headers in the estimate of a file's size, in bytes.
_BYTES_PER_ID = 64
_BYTES_OF_HEADERS = 16_384


@dataclass(frozen=True)
class FeatureSpec:
    """Which datasets a feature file has, and how wide they are.

    Attributes:
        regions: R, regions per image; 0 if the extractor gives none.
        region_dim: D, width of a region's vector.
        global_dim: G, width of the image's vector; 0 if the extractor gives none.
        boxes, labels, scores: whether there is the dataset of this name.
        attributes: whether there are `/attributes` and `/attribute_scores`.
        pixels: height and width of the stored image, (0, 0) if there is none.
    """

    regions: int
    region_dim: int
    global_dim: int = 0
    boxes: bool = False
    labels: bool = False
    scores: bool = False
    attributes: bool = False
    pixels: tuple[int, int] = (0, 0)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of one image's row in each dataset, without the leading N and without `/image_id`."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.regions:
            shapes = {"regions": (self.regions, self.region_dim), "count": ()}
            shapes |= {"boxes": (self.regions, 4)} if self.boxes else {}
            shapes |= {name: (self.regions,) for name in ("labels", "scores") if getattr(self, name)}
            if self.attributes:
                shapes |= {"attributes": (self.regions,), "attribute_scores": (self.regions,)}
        if self.global_dim:
            shapes["global"] = (self.global_dim,)
        if self.pixels[0]:
            shapes["pixels"] = (*self.pixels, 3)
        return shapes

    def only(self, groups: Collection[str]) -> FeatureSpec:
        """Returns the part of some of the groups `regions` (with all that belongs to them), `global` and `pixels`."""
        spec = self if "regions" in groups else FeatureSpec(0, 0, self.global_dim, pixels=self.pixels)
        global_dim = self.global_dim if "global" in groups else 0
        return replace(spec, global_dim=global_dim, pixels=self.pixels if "pixels" in groups else (0, 0))

    def groups(self) -> frozenset[str]:
        """Returns which of the groups `regions`, `global` and `pixels` there are."""
        return GROUPS & set(self.shapes())

    def bytes_needed(self, n: int) -> int:
        """Returns the size in bytes of a file of `n` images, with generous room for identifiers and headers."""
        row = sum(_row_bytes(name, shape) for name, shape in self.shapes().items())
        return n * (row + _BYTES_PER_ID) + _BYTES_OF_HEADERS


def create_features(path: Path, image_ids: Sequence[str], spec: FeatureSpec, extractor: str) -> None:
    """Creates a feature file at its full size, every row zero, and reserves its disk space.

    The file appears under its name only when it is whole; a file that was there before is replaced.

    Args:
        path: the file to create; its folder must exist.
        image_ids: N identifiers in the order of the rows, each once.
        spec: which datasets to create.
        extractor: name of the extractor, kept as an attribute.

    Raises:
        DataError: there is no image, an identifier comes twice, is empty or holds a NUL, or the spec has no dataset.
        DiskFullError: the disk cannot hold the file.
        MissingInputError: the folder of `path` does not exist.
    """
    ids = _encode_ids(path, image_ids)
    if not spec.shapes():
        raise DataError(f"{path}: an extractor without regions and without global vectors has nothing to store.")
    if not path.parent.is_dir():
        raise MissingInputError(f"{path.parent} does not exist, so {path.name} cannot be created there; make it first.")
    temporary = path.with_name(path.name + ".creating")
    needed = spec.bytes_needed(len(ids))
    require_space(path, needed, path.name)
    try:
        with full_disk_as_error(path):
            write_layout(temporary, ids, spec.shapes(), extractor)
            _reserve(temporary)
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


class FeatureWriter:
    """Writes rows of a file made by `create_features` at their place, in any order and as often as needed.

    Rows go to the file by `os.pwrite`: a full disk is an error and not a signal, and since HDF5's own structures are
    never touched, a process killed in the middle of a row leaves a file in which only that row is incomplete.
    """

    def __init__(self, path: Path) -> None:
        """Opens `path` for writing.

        Raises:
            MissingInputError: there is no such file.
            DataError: the file is not a whole feature file of this schema version.
        """
        self.path = path
        _, self._extents = read_layout(path)
        self._ids = range(self._extents.pop("image_id").shape[0])
        self._file = os.open(path, os.O_WRONLY)

    def __enter__(self) -> FeatureWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def write(self, rows: int | np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """Writes rows of some or all datasets.

        Args:
            rows: the first of n consecutive rows, or n row numbers int64 [n], each once.
            arrays: for datasets of the file other than `/image_id` an array [n, ...] of the dataset's row shape.
                Values that do not fit the dataset's type are refused, never clipped.

        Returns:
            [n] uint32, `row_sums` of what was written.

        Raises:
            DataError: there is no such dataset, a shape or type does not fit, a value is not finite or too large for
                float16, a box leaves 0..1, or the rows lie outside the file. Nothing was written.
            DiskFullError: the disk is full.
        """
        if not arrays or not set(arrays) <= set(self._extents):
            raise DataError(
                f"{self.path} has the datasets {', '.join(sorted(self._extents))}; "
                f"the rows to write have {', '.join(sorted(arrays)) or 'none'}: give datasets of the file."
            )
        where = f"{self.path}, rows from {rows if isinstance(rows, int) else rows.min(initial=len(self._ids))}"
        values = {name: _convert(f"{where}: {name}", name, arrays[name], self._extents[name]) for name in arrays}
        numbers = self._check_rows(rows, values)
        starts = np.flatnonzero(np.diff(numbers, prepend=-2) != 1)  # of runs of consecutive rows
        for name, part in values.items():
            extent = self._extents[name]
            for first, stop in zip(starts, np.append(starts[1:], len(numbers)), strict=True):
                self._write_bytes(extent.offset + int(numbers[first]) * extent.row_bytes, part[first:stop])
        return row_sums(values)

    def flush(self) -> None:
        """Waits until everything written is on the disk.

        Raises:
            DiskFullError: the disk is full.
        """
        with full_disk_as_error(self.path):
            os.fsync(self._file)

    def close(self) -> None:
        """Flushes and closes the file; closing twice is allowed."""
        if self._file >= 0:
            try:
                self.flush()
            finally:
                os.close(self._file)
                self._file = -1

    def _check_rows(self, rows: int | np.ndarray, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns the row numbers [n], after a look at how the values and they fit together."""
        lengths = {name: len(part) for name, part in values.items()}
        length = next(iter(lengths.values()))
        numbers = np.arange(rows, rows + length) if isinstance(rows, int) else rows
        if set(lengths.values()) != {len(numbers)}:
            raise DataError(
                f"{self.path}: the arrays for {len(numbers)} rows differ in their number of rows: {lengths}."
            )
        if length and not (numbers.min() >= 0 and numbers.max() < len(self._ids)):
            raise DataError(
                f"{self.path} has {len(self._ids)} rows; rows {numbers.min()} to {numbers.max()} do not fit."
            )
        regions = self._extents["regions"].shape[1] if "regions" in self._extents else 0
        if "count" in values and not ((values["count"] >= 0) & (values["count"] <= regions)).all():
            raise DataError(f"{self.path}: a count of regions lies outside 0..{regions}.")
        return numbers

    def _write_bytes(self, offset: int, values: np.ndarray) -> None:
        view = values.data.cast("B") if values.size else memoryview(b"")
        while view:
            with full_disk_as_error(self.path):
                written = os.pwrite(self._file, view, offset)
            offset, view = offset + written, view[written:]


@dataclass(frozen=True)
class FeatureFile:
    """A feature file opened for reading: nothing is loaded before it is indexed.

    Attributes:
        path: the file.
        extractor: name of the extractor that made it.
        image_id: [N] identifiers as Python strings.
        regions: memory map [N, R, D] float16, or None.
        count: memory map [N] int16, or None where there are no regions.
        boxes: memory map [N, R, 4] float32 in 0..1, or None.
        labels, attributes: memory maps [N, R] int16, or None.
        scores, attribute_scores: memory maps [N, R] float32, or None.
        global_: memory map [N, G] float16, or None.
        pixels: memory map [N, H, W, 3] uint8, or None.
    """

    path: Path
    extractor: str
    image_id: np.ndarray
    regions: np.ndarray | None
    count: np.ndarray | None
    boxes: np.ndarray | None
    labels: np.ndarray | None
    scores: np.ndarray | None
    attributes: np.ndarray | None
    attribute_scores: np.ndarray | None
    global_: np.ndarray | None
    pixels: np.ndarray | None

    @classmethod
    def open(cls, path: Path) -> FeatureFile:
        """Opens `path` for reading.

        Raises:
            MissingInputError: there is no such file.
            DataError: the file is truncated, is not HDF5, or has another schema version.
        """
        extractor, extents = read_layout(path)
        maps = {
            name: np.memmap(path, extent.dtype, "r", extent.offset, extent.shape) for name, extent in extents.items()
        }
        try:
            image_id = np.char.decode(np.asarray(maps.pop("image_id")), "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path} holds an identifier that is not UTF-8 ({error.reason}); {DAMAGE_REMEDY}") from None
        optional = {("global_" if name == "global" else name): maps.get(name) for name in TYPES}
        return cls(path=path, extractor=extractor, image_id=image_id, **optional)

    def __len__(self) -> int:
        return len(self.image_id)

    @property
    def spec(self) -> FeatureSpec:
        """Which datasets the file has."""
        regions, region_dim = self.regions.shape[1:] if self.regions is not None else (0, 0)
        return FeatureSpec(
            regions=regions,
            region_dim=region_dim,
            global_dim=self.global_.shape[1] if self.global_ is not None else 0,
            boxes=self.boxes is not None,
            labels=self.labels is not None,
            scores=self.scores is not None,
            attributes=self.attributes is not None,
            pixels=self.pixels.shape[1:3] if self.pixels is not None else (0, 0),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the memory maps of all datasets but `/image_id`, by name."""
        return {name: getattr(self, "global_" if name == "global" else name) for name in self.spec.shapes()}

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.image_id.tolist())}

    def absent(self, image_ids: Sequence[str]) -> list[str]:
        """Returns those of `image_ids` that have no row, in their order."""
        return [name for name in image_ids if name not in self._row_of]

    def rows(self, image_ids: Sequence[str]) -> np.ndarray:
        """Returns the rows [n] int64 of `image_ids`, in their order.

        Raises:
            MissingInputError: some of the images are not in the file.
        """
        absent = self.absent(image_ids)
        if absent:
            raise MissingInputError(
                f"{self.path} has no features of image '{absent[0]}' ({len(absent)} of {len(image_ids)} images "
                f"missing): they could not be extracted, see manifest.json beside it; restore the files, remove "
                f"{self.path.parent} and run `itrpipe extract`, or take the images out of the dataset."
            )
        return np.array([self._row_of[name] for name in image_ids], dtype=np.int64)


def row_sums(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """CRC-32 [n] uint32 of each of n rows, over all datasets in the order of their names."""
    sums = np.zeros(len(next(iter(arrays.values()))), dtype=np.uint32)
    for _, values in sorted(arrays.items()):
        rows = np.ascontiguousarray(values).reshape(len(sums), math.prod(values.shape[1:]))
        sums[:] = [zlib.crc32(row.data, int(start)) for row, start in zip(rows, sums, strict=True)]
    return sums


def _row_bytes(name: str, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(TYPES[name]).itemsize


def _encode_ids(path: Path, image_ids: Sequence[str]) -> np.ndarray:
    if not image_ids:
        raise DataError(f"{path}: there is no image to store features of; choose a dataset with images.")
    seen: set[str] = set()
    for name in image_ids:
        if not name or "\0" in name:
            raise DataError(f"{path}: {name!r} cannot be an image identifier; it is empty or holds a NUL.")
        if name in seen:
            raise DataError(f"{path}: image identifier '{name}' comes twice; identifiers must be unique.")
        seen.add(name)
    return np.array([name.encode("utf-8") for name in image_ids])


def _reserve(path: Path) -> None:
    """Makes the disk blocks of the whole file real, so that a full disk shows up now and not hours later."""
    file = os.open(path, os.O_RDWR)
    try:
        os.posix_fallocate(file, 0, os.fstat(file).st_size)
        os.fsync(file)
    finally:
        os.close(file)


def _convert(where: str, name: str, values: np.ndarray, extent: Extent) -> np.ndarray:
    """Returns `values` contiguous and in the dataset's type, or says why they cannot be stored."""
    if values.shape[1:] != extent.shape[1:] or values.ndim != len(extent.shape):
        raise DataError(f"{where} has shape {values.shape}; one row of the file has {extent.shape[1:]}.")
    integral = extent.dtype.kind in "iu"
    allowed = "iu" if integral else "fiu"
    if values.dtype.kind not in allowed:
        raise DataError(f"{where} has type {values.dtype}, which does not convert to {extent.dtype}.")
    if integral:
        _require_integer_range(where, values, extent.dtype)
    else:
        limit, worst = float(np.finfo(extent.dtype).max), largest_magnitudes(values).max(initial=0)
        if not worst <= limit:
            raise DataError(f"{where} holds the magnitude {worst}; {extent.dtype} stores values up to {limit:g}.")
    if name == "boxes" and values.size and not (values.min() >= 0 and values.max() <= 1):
        raise DataError(
            f"{where} reaches from {values.min()} to {values.max()}; boxes are fractions of the image, 0 to 1."
        )
    return np.ascontiguousarray(values, dtype=extent.dtype)


def _require_integer_range(where: str, values: np.ndarray, dtype: np.dtype) -> None:
    limit = np.iinfo(dtype)
    if values.size and values.dtype != dtype and not (values.min() >= limit.min and values.max() <= limit.max):
        raise DataError(
            f"{where} reaches from {values.min()} to {values.max()}; {dtype} stores {limit.min} to {limit.max}."
        )


def largest_magnitudes(values: np.ndarray) -> np.ndarray:
    """Returns the largest absolute value [n] of each row of `values` [n, ...]; NaN where a row holds NaN."""
    flat = values.reshape(len(values), int(np.prod(values.shape[1:], dtype=np.int64)))
    if flat.dtype == np.dtype("<f2"):
        # Without their sign, the bits of float16 are ordered like its values, NaN last, and compare 20 times as fast.
        return (flat.view("<u2") & 0x7FFF).max(axis=1, initial=0).view("<f2")
    return np.maximum(flat.max(axis=1, initial=0), -flat.min(axis=1, initial=0))
