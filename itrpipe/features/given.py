"""Embeddings that another program has made: checked, put in the order of a dataset, and written as `embeddings.h5`.

Shapes: N images, T captions, D width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from itrpipe.datasets.captions import SPLITS, UNUSABLE_ID, is_id
from itrpipe.datasets.source_files import LIST, lines_of, load_json
from itrpipe.errors import DataError, MissingInputError, UsageError
from itrpipe.features.declaration import GivenFiles, ids_beside
from itrpipe.features.embeddings import INNER_PRODUCT, ORDER, embedding_writer
from itrpipe.storage.array_formats import FileRows, labels, open_arrays
from itrpipe.storage.arrays import ArrayFile, Rows, array_writer, runs
from itrpipe.storage.disk import reading
from itrpipe.storage.tables import rows_of

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import Split


COSINE, ORDER_MEASURE = "cosine", "order"
_BYTES_AT_ONCE = 1 << 24
_LONGEST = np.finfo(np.float32).max
UNIT = 1e-5
"""A vector whose length is 1 but for so much is taken as it is: that is what single precision leaves of unit length."""
_FORMS = (
    "give .npy [rows, D]; Parquet, or a folder of it, with the columns embedding, image_id and for captions "
    "caption_id; or HDF5 with images and texts"
)
_SIDES = {
    "caption_id": "caption",
    "texts": "caption",
    "captions": "caption",
    "image_id": "image",
    "images": "image",
    "caption": "caption",
    "image": "image",
}
"""Column of a file, or its name, that tells of which side it is -> side."""
_VECTOR = "embedding"
_CANDIDATE_FORMS = (
    "give a Parquet file, or a folder of them, with the columns image_id or caption_id and embedding; or images.npy or "
    "captions.npy with the ids in images.ids.json or captions.ids.json next to it; or an HDF5 file with image_id and "
    "images, or caption_id and texts"
)
_IDS = "give whole numbers or strings: .npy, .json with a list of them, or .txt with one image id a line"
_MATRICES = {
    "image": ("images", "embedding", "embeddings"),
    "caption": ("texts", "captions", "embedding"),
}


@dataclass(frozen=True)
class GivenSide:
    """Embeddings of the images or of the captions of a split.

    Attributes:
        path: file or folder.
        side: of which they are.
        vectors: [rows, D] of float16, float32 or float64.
        ids: [rows] strings; the numbers of rows where the file has none.
        numbered: whether the file has none.
        owners: of captions, int64 rows or ids [T] of their images; None where the file does not say.
        texts: of captions, [T] strings; empty ones where the file has none.
        is_order: whether the file says that they are order embeddings.
    """

    path: Path
    side: str
    vectors: FileRows
    ids: pa.Array
    numbered: bool
    owners: pa.Array | None
    texts: pa.Array
    is_order: bool

    def __len__(self) -> int:
        return self.vectors.shape[0]

    def check_ids(self) -> None:
        """Refuse ids of which one cannot be an id or comes twice."""
        unusable = np.array([not is_id(name) for name in self.ids.to_pylist()], dtype=bool)
        _refuse(self.path, unusable, f"ids of {self.side}s {UNUSABLE_ID}", "give others", self.ids)
        is_repeated = rows_of(self.ids, self.ids) != np.arange(len(self))
        _refuse(self.path, is_repeated, f"ids of {self.side}s come twice", "give every one once", self.ids)

    def read(self, *, unit: bool) -> Iterator[tuple[int, np.ndarray, int]]:
        """Yield all rows in order, some at a time, as float32.

        Args:
            unit: make them unit vectors where they are not.

        Yields:
            The number of the first, rows [n, D], and how many of them were not unit vectors.

        Raises:
            DataError: a row holds NaN, infinity or what float32 cannot hold; or it is zero and has no direction.
        """
        row_bytes = self.vectors.shape[1] * self.vectors.dtype.itemsize
        rows_at_once = max(1, _BYTES_AT_ONCE // row_bytes)
        for start in range(0, len(self), rows_at_once):
            rows = self.vectors.read(start, start + rows_at_once)
            vectors, changed = checked_vectors(self.path, rows, start, unit=unit)
            yield start, vectors, changed


def checked_vectors(where: Path | str, rows: np.ndarray, start: int, *, unit: bool) -> tuple[np.ndarray, int]:
    """Return vectors [n, D] as float32, and how many of them were not unit vectors.

    Args:
        where: they are from, for messages.
        rows: [n, D] decimal numbers.
        start: number of the first row, for messages.
        unit: make them unit vectors where they are not.

    Raises:
        DataError: a row holds NaN, infinity or what float32 cannot hold; or it is zero and has no direction.
    """
    vectors = rows.astype(np.result_type(rows.dtype, np.float32), copy=False)
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
    is_unusable = ~(lengths <= _LONGEST)  # NaN is not
    _refuse(where, is_unusable, "vectors hold more than float32 can, or NaN", "embed them again", start=start)
    changed = 0
    if unit:
        remedy = "embed them again, or give --measure"
        _refuse(where, lengths == 0, "vectors are zero and have no cosine", remedy, start=start)
        is_off = np.abs(lengths - 1) > UNIT
        changed = int(is_off.sum())
        if changed:
            vectors = np.where(is_off[:, None], vectors / lengths[:, None], vectors)
    return vectors.astype(np.float32, copy=False), changed


def open_side(path: Path, side: str, split: str) -> GivenSide:
    """Open a file of embeddings; the embeddings themselves are not read yet.

    Args:
        path: what the user named.
        side: whose embeddings are wanted.
        split: whose, where a file has several.

    Raises:
        MissingInputError: it has no such split.
        DataError: it is of no known form, damaged, or holds something else than [rows, D] of float16, 32 or 64.
    """
    arrays = open_arrays(path, f"embeddings of {side}s", _FORMS)
    splits = []
    for name in SPLITS:
        if any(array.startswith(f"{name}/") for array in arrays):
            splits.append(name)
    if splits and split not in splits:
        raise MissingInputError(f"{path} has no split {split!r}; it has {', '.join(splits)}")
    prefix = f"{split}/" if splits else ""
    names = [name.removeprefix(prefix) for name in arrays if name.startswith(prefix)]

    def column(name: str) -> pa.Array | None:
        if name not in names:
            return None
        return pa.array(labels(arrays[prefix + name]))

    with reading(path, f"embeddings of {side}s", _FORMS):
        matrices = [name for name in _MATRICES[side] if name in names]
        if not matrices:  # one matrix that is alone may have any name
            for name in names:
                is_of_a_side = name in _MATRICES["image"] or name in _MATRICES["caption"]
                if not is_of_a_side and len(arrays[prefix + name].shape) == 2:
                    matrices.append(name)
            if len(matrices) != 1:
                raise ValueError(f"it has no {_MATRICES[side][0]} [rows, D] among {names}")
        vectors = arrays[prefix + matrices[0]]
        if len(vectors.shape) != 2 or vectors.dtype.kind != "f" or not all(vectors.shape):
            raise ValueError(f"it holds {vectors.dtype.name} {list(vectors.shape)} and no decimal numbers [rows, D]")
        rows = vectors.shape[0]
        ids = column(f"{side}_id")
        beside = ids_beside(path)
        if ids is None and beside.is_file():
            ids = read_ids(beside)
        numbered = ids is None
        if ids is None:
            ids = pa.array(range(rows))
        if len(ids) != rows:
            raise ValueError(f"it has {rows:,} vectors and {len(ids):,} ids")
        owners = texts = None
        if side == "caption":
            owners = column("caption_image")
            texts = column("text")
            if owners is None and "images" not in names:
                owners = column("image_id")
        if texts is None:
            texts = pa.array([""] * rows)
        is_order = arrays.attributes(prefix).get("measure") == ORDER
    return GivenSide(path, side, vectors, ids.cast("string"), numbered, owners, texts.cast("string"), is_order)


def read_ids(path: Path) -> pa.Array:
    """Read ids or row numbers, such as of the image that each caption describes: int64 or strings.

    Raises:
        DataError: it is no array of whole numbers or strings, no JSON list of these, and no text of one id a line.
    """
    if path.suffix == ".txt":
        return pa.array(lines_of(path), pa.string())
    with reading(path, "ids", _IDS):
        if path.suffix == ".json":
            ids = pa.array(load_json(path, LIST))
        else:
            ids = pa.array(labels(*open_arrays(path, "ids", _IDS).values()))
        is_known = pa.types.is_integer(ids.type) or pa.types.is_string(ids.type)
        if not is_known or ids.null_count:
            raise ValueError(f"it holds {ids.type}, and {ids.null_count:,} of it are empty")
        return ids


class GivenSplit:
    """Files with the embeddings of one split, opened.

    Args:
        files: which.
        split: name.

    Attributes:
        images, captions: what they hold.
        owners: row of the image of each caption, int64 [T]; None where no file says so.

    Raises:
        MissingInputError: a file is not there, or has no such split.
        DataError: a file is of no known form or damaged, or they do not belong together.
    """

    def __init__(self, files: GivenFiles, split: str) -> None:
        paths = files.paths
        self._split = split
        self.images = open_side(paths["images"], "image", split)
        self.captions = open_side(paths["texts"], "caption", split)
        image_width = self.images.vectors.shape[1]
        caption_width = self.captions.vectors.shape[1]
        if image_width != caption_width:
            raise DataError(
                f"{files.images} holds vectors of width {image_width:,} and {files.texts} of {caption_width:,}; give "
                "those of one model"
            )
        self.owners = None
        self._owners_file = files.owners or files.texts
        owners = self.captions.owners
        if files.owners:
            owners = read_ids(paths["owners"])
        if owners is None:
            return
        if len(owners) != len(self.captions):
            raise DataError(
                f"{self._owners_file} names the images of {len(owners):,} captions and {files.texts} holds "
                f"{len(self.captions):,}; give one for each"
            )
        self.owners = rows_of(owners.cast("string"), self.images.ids)
        if pa.types.is_integer(owners.type):
            rows = owners.to_numpy(zero_copy_only=False)
            if ((rows >= 0) & (rows < len(self.images))).all():
                self.owners = rows.astype(np.int64)
        what = f"captions are of no image of {self.images.path}"
        _refuse(self._owners_file, self.owners < 0, what, "give row numbers or image ids", owners)

    def alone(self) -> np.ndarray:
        """Return the owners, where images and captions are known by these files and by no dataset.

        Raises:
            DataError: they do not say which image a caption describes, an image has none, or an id comes twice.
        """
        if self.owners is None:
            raise DataError(
                f"{self.captions.path} does not say which image each caption describes; give --owners FILE with the "
                "row number or id of each one's image, or the --dataset that they are of"
            )
        has_none = np.bincount(self.owners, minlength=len(self.images)) == 0
        _refuse(self.images.path, has_none, "images have no caption", "leave them out", self.images.ids)
        self.images.check_ids()
        self.captions.check_ids()
        return self.owners

    def digest(self) -> str:
        """Return the sha256 of the ids, texts and owners, where these are all that is known of images and captions."""
        sha256 = hashlib.sha256(self.alone().astype("<i8").tobytes())
        for column in (self.images.ids, self.captions.ids, self.captions.texts):
            fields = [str(len(column)), *column.to_pylist(), ""]
            sha256.update("\0".join(fields).encode())
        return sha256.hexdigest()

    def places(self, split: Split, *, by_row: bool) -> tuple[np.ndarray, np.ndarray]:
        """Find the place of each row of the files in a dataset.

        Args:
            split: of the dataset.
            by_row: files without ids are in the order of the dataset; else their ids are row numbers.

        Returns:
            Row within the split of every image [N] and caption [T], int64.

        Raises:
            DataError: they are not the images and captions of the split.
        """
        images = self._places_of(self.images, split.image_ids, by_row)
        captions = self._places_of(self.captions, split.caption_ids, by_row)
        if self.owners is not None:
            is_other = images[self.owners] != split.caption_image[captions]
            what = "captions belong to other images in the dataset"
            remedy = "give them in its order, or their caption_id"
            _refuse(self._owners_file, is_other, what, remedy, self.captions.ids)
        return images, captions

    def _places_of(self, side: GivenSide, ids: np.ndarray, by_row: bool) -> np.ndarray:
        """Return the place of each row of a side among the ids of the dataset."""
        where = f"{side.side}s of split {self._split!r} of the dataset"
        if side.numbered and by_row:
            if len(side) != len(ids):
                raise DataError(
                    f"{side.path} holds {len(side):,} vectors without ids for {len(ids):,} {where}; give all in its "
                    f"order, or a file with their {side.side}_id"
                )
            return np.arange(len(ids))
        side.check_ids()
        places = rows_of(side.ids, pa.array(ids.tolist(), pa.string()))
        _refuse(side.path, places < 0, f"ids are of no {where}", "leave them out, or name their dataset", side.ids)
        is_missing = np.bincount(places, minlength=len(ids)) == 0
        _refuse(side.path, is_missing, f"{where} are missing", "embed them too", ids)
        return places


def write_given(
    path: Path, given: GivenSplit, split: Split, measure: str, *, by_row: bool, advance: Callable[[int], object]
) -> dict[str, int]:
    """Write the embeddings of a split in the order of a dataset.

    Args:
        path: of `embeddings.h5`; what an interrupted run has left there is replaced.
        given: the files.
        split: of the dataset.
        measure: `cosine`, for which vectors are made unit vectors where they are not, `inner-product` or `order`.
        by_row: see `GivenSplit.places`.
        advance: told of rows that are written.

    Returns:
        `images`, `captions`, `width`; `made_unit`, vectors that were not.

    Raises:
        DataError: see `GivenSplit.places` and `GivenSide.read`.
        UsageError: the files hold order embeddings and these are to be compared otherwise.
    """
    for side in (given.images, given.captions):
        if side.is_order and measure != ORDER_MEASURE:
            raise UsageError(
                f"{side.path} holds order embeddings, of which {measure} says nothing; add --measure order"
            )
    image_places, caption_places = given.places(split, by_row=by_row)
    path.unlink(missing_ok=True)
    width = given.images.vectors.shape[1]
    compared = ORDER if measure == ORDER_MEASURE else INNER_PRODUCT
    sides = (("images", given.images, image_places), ("texts", given.captions, caption_places))
    made_unit = 0
    with embedding_writer(
        path, split.name, split.image_ids, split.caption_ids, split.caption_image, width, compared
    ) as write:
        for name, side, places in sides:
            for start, vectors, changed in side.read(unit=measure == COSINE):
                block = places[start : start + len(vectors)]
                order = np.argsort(block)
                block = block[order]
                vectors = vectors[order]
                for first, stop in runs(block):
                    write(name, int(block[first]), vectors[first:stop])
                made_unit += changed
                advance(len(vectors))
    counts = {"images": len(split.image_ids), "captions": len(split.caption_ids)}
    return counts | {"width": width, "made_unit": made_unit}


def open_further(
    path: Path, copy: Path, width: int, ids: tuple[np.ndarray, np.ndarray], *, unit: bool = False
) -> tuple[str, list[str], Rows]:
    """Read further candidates to a split.

    Args:
        path: what the user named.
        copy: file for the vectors.
        width: D of the split's vectors.
        ids: of the split's images and of its captions.
        unit: make vectors unit vectors where they are not.

    Returns:
        Of which side they are, their ids, and their vectors [M, D] float32.

    Raises:
        DataError: the file is of no known form, or damaged; its vectors have another width, or an id is one of the
            split's.
    """
    with reading(f"--candidates {path}", "embeddings", _CANDIDATE_FORMS):
        arrays = open_arrays(path, "embeddings", _CANDIDATE_FORMS)
        names = [*arrays, path.stem]
        sides = [side for name, side in _SIDES.items() if name in names]
        if not sides:
            raise ValueError(f"neither its name nor {', '.join(filter(None, arrays))} in it say of what they are")
        side = sides[0]
        candidates = open_side(path, side, "")
        if candidates.numbered:
            raise ValueError("it has no ids")
    if candidates.vectors.shape[1] != width:
        raise DataError(
            f"--candidates {path} holds vectors of width {candidates.vectors.shape[1]} and the mining model's have "
            f"{width}; embed them with the model that mines"
        )
    further_ids = candidates.ids.to_pylist()
    image_ids, caption_ids = ids
    training_ids = caption_ids if side == "caption" else image_ids
    twice = set(training_ids.tolist()).intersection(further_ids)
    if twice:
        raise DataError(
            f"--candidates {path}: {len(twice):,} of {len(further_ids):,} ids are in the training set, such as "
            f"{min(twice)}; leave them out, they are candidates already"
        )
    with array_writer(copy, {_VECTOR: ("<f4", candidates.vectors.shape)}) as writer:
        for start, vectors, _ in candidates.read(unit=unit):
            writer.write(_VECTOR, start, vectors)
    return side, further_ids, ArrayFile(copy)[_VECTOR]


def _refuse(
    where: Path | str,
    is_wrong: np.ndarray,
    what: str,
    remedy: str,
    names: pa.Array | np.ndarray | None = None,
    start: int = 0,
) -> None:
    """Refuse rows of which some are wrong, bool [n], and name the first."""
    if is_wrong.any():
        row = int(np.argmax(is_wrong))
        name = "" if names is None else f"{str(names[row])!r} in "
        raise DataError(
            f"{where}: {is_wrong.sum():,} of {len(is_wrong):,} {what}, such as {name}row {start + row:,}; {remedy}"
        )
