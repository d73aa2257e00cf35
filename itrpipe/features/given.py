"""Embeddings that another program has made: checked, put in the order of a dataset, and written as `embeddings.h5`.

Shapes: N images, T captions, D width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.errors import DataError, UsageError
from itrpipe.features.embeddings import INNER_PRODUCT, ORDER, EmbeddingWriter, Side
from itrpipe.features.given_files import GivenSide, as_ids, open_side, read_owners
from itrpipe.features.given_files import Side as GivenName
from itrpipe.features.given_source import GivenFiles

if TYPE_CHECKING:
    from itrpipe.datasets.prepared import Split

COSINE, ORDER_MEASURE = "cosine", "order"
UNIT = 1e-5
"""A vector whose length is 1 but for so much is taken as it is: that is what single precision leaves of unit length."""
ONE: dict[GivenName, Side] = {"images": "image", "captions": "caption"}


@dataclass(frozen=True)
class GivenRows:
    """What files of embeddings say of the images and captions of a split.

    Attributes:
        image_ids: [N] strings; row numbers where the file has no ids.
        caption_ids: [T] strings; likewise.
        owners: [T] int64, row of the image of each caption.
        texts: [T] strings; empty ones where the file has none.
    """

    image_ids: pa.Array
    caption_ids: pa.Array
    owners: np.ndarray
    texts: pa.Array

    def digest(self) -> str:
        """sha256 of all of it."""
        total = hashlib.sha256(self.owners.astype("<i8").tobytes())
        for column in (self.image_ids, self.caption_ids, self.texts):
            total.update("\0".join([str(len(column)), *column.to_pylist(), ""]).encode())
        return total.hexdigest()


class GivenSplit:
    """Files with the embeddings of one split, opened.

    Args:
        files: which.
        split: name.

    Raises:
        MissingInputError: a file is not there, or has no such split.
        DataError: a file is of no known form or damaged, or they do not belong together.
    """

    def __init__(self, files: GivenFiles, split: str) -> None:
        self._files, self._split, paths = files, split, files.paths
        self.images = open_side(paths["images"], "images", split)
        self.captions = open_side(paths["texts"], "captions", split)
        widths = self.images.shape[1], self.captions.shape[1]
        if widths[0] != widths[1]:
            raise DataError(
                f"{files.images} holds vectors of width {widths[0]:,} and {files.texts} of {widths[1]:,}; give those "
                "of one model"
            )
        self._stated = read_owners(paths["owners"]) if files.owners else self.captions.owners
        self._says = files.owners or files.texts
        if self._stated is not None and len(self._stated) != self.captions.shape[0]:
            raise DataError(
                f"{self._says} names the images of {len(self._stated):,} captions and {files.texts} holds "
                f"{self.captions.shape[0]:,}; give one for each"
            )

    @property
    def owners(self) -> np.ndarray | None:
        """Row of the image of each caption, int64 [T]; None where no file says so.

        Raises:
            DataError: it is no row and no id of an image.
        """
        stated, count = self._stated, self.images.shape[0]
        if stated is None:
            return None
        rows = stated.to_numpy(zero_copy_only=False) if pa.types.is_integer(stated.type) else None
        if rows is not None and not (outside := (rows < 0) | (rows >= count)).any():
            return rows.astype(np.int64)
        found = _places(as_ids(stated), _ids(self.images))
        if not (unknown := np.flatnonzero(found < 0)).size:
            return found
        if rows is not None:
            first = int(np.flatnonzero(outside)[0])
            raise DataError(
                f"{self._says}: the image of caption row {first:,} is {rows[first]}, and {self._files.images} has the "
                f"rows 0 to {count - 1:,}; give row numbers or image ids"
            )
        raise DataError(
            f"{self._says}: {unknown.size:,} of {len(stated):,} captions are of images that {self._files.images} does "
            f"not have, such as {stated[int(unknown[0])].as_py()!r}; give row numbers or image ids"
        )

    def rows(self) -> GivenRows:
        """What the files say of images and captions, for a dataset that is known by nothing else.

        Raises:
            DataError: they do not say which image a caption describes, an image has none, or an id comes twice.
        """
        owners = self.owners
        if owners is None:
            raise DataError(
                f"{self._files.texts} does not say which image each caption describes; give --owners FILE with the row "
                "number or id of each one's image, or the --dataset that they are of"
            )
        alone = np.flatnonzero(np.bincount(owners, minlength=self.images.shape[0]) == 0)
        ids = _ids(self.images)
        if alone.size:
            raise DataError(
                f"{self._files.images}: {alone.size:,} of {len(ids):,} images have no caption, such as row "
                f"{alone[0]:,} ({ids[int(alone[0])].as_py()}); leave them out"
            )
        for side in (self.images, self.captions):
            _refuse_twice(side)
        texts = self.captions.texts
        empty = pa.array([""] * self.captions.shape[0], pa.string()) if texts is None else texts
        return GivenRows(ids, _ids(self.captions), owners, empty)

    def places(self, split: Split, *, by_row: bool) -> tuple[np.ndarray, np.ndarray]:
        """Where each row of the files belongs in a dataset.

        Args:
            split: of the dataset.
            by_row: files without ids are in the order of the dataset; else their ids are row numbers.

        Returns:
            Row within the split of every image [N] and caption [T], int64.

        Raises:
            DataError: they are not the images and captions of the split.
        """
        images = self._placed(self.images, split.image_ids, by_row)
        captions = self._placed(self.captions, split.caption_ids, by_row)
        owners = self.owners
        if owners is not None:
            wrong = np.flatnonzero(images[owners] != split.caption_image[captions])
            if wrong.size:
                row = int(wrong[0])
                theirs, ours = images[owners[row]], split.caption_image[captions[row]]
                raise DataError(
                    f"{self._says}: {wrong.size:,} of {len(owners):,} captions belong to other images in the dataset: "
                    f"caption row {row:,} to {split.image_ids[ours]} and not to {split.image_ids[theirs]}; give a file "
                    "with their caption_id, or captions in the order of the dataset"
                )
        return images, captions

    def _placed(self, side: GivenSide, wanted: np.ndarray, by_row: bool) -> np.ndarray:
        one, where = ONE[side.side], f"split {self._split!r} of the dataset"
        if side.ids is None and by_row:
            if side.shape[0] != len(wanted):
                raise DataError(
                    f"{side.path} holds {side.shape[0]:,} {side.side} without ids and {where} has {len(wanted):,}; "
                    f"give all in its order, or a file with their {one}_id"
                )
            return np.arange(len(wanted))
        _refuse_twice(side)
        ids = _ids(side)
        found = _places(ids, pa.array(wanted.tolist(), pa.string()))
        if (unknown := np.flatnonzero(found < 0)).size:
            raise DataError(
                f"{side.path}: {unknown.size:,} of {len(ids):,} ids are of no {one} of {where}, such as "
                f"{ids[int(unknown[0])].as_py()!r}; leave them out, or name their dataset"
            )
        if len(ids) < len(wanted):
            missing = np.setdiff1d(np.arange(len(wanted)), found)
            raise DataError(
                f"{side.path} lacks {missing.size:,} of {len(wanted):,} {side.side} of {where}, such as "
                f"{str(wanted[missing[0]])!r}; embed them too"
            )
        return found


def write_given(
    path: Path, given: GivenSplit, split: Split, measure: str, *, by_row: bool, advance: Callable[[int], object]
) -> dict[str, Any]:
    """Writes the embeddings of a split in the order of a dataset.

    Args:
        path: of `embeddings.h5`; what an interrupted run has left there is replaced.
        given: the files.
        split: of the dataset.
        measure: `cosine`, for which vectors are made unit vectors where they are not, `inner-product` or `order`.
        by_row: see `GivenSplit.places`.
        advance: told of rows that are written.

    Returns:
        `images`, `captions`, `width`; `numbers` where they are not float32; `made_unit`, vectors that were not.

    Raises:
        DataError: see `GivenSplit.places`; or a vector holds NaN or infinity, or is zero and has no direction.
        UsageError: the files hold order embeddings and these are to be compared otherwise.
    """
    for side in (given.images, given.captions):
        if side.is_order and measure != ORDER_MEASURE:
            raise UsageError(
                f"{side.path} holds order embeddings, of which {measure} says nothing; add --measure order"
            )
    places = given.places(split, by_row=by_row)
    path.unlink(missing_ok=True)
    width = given.images.shape[1]
    compared = ORDER if measure == ORDER_MEASURE else INNER_PRODUCT
    about = (split.image_ids, split.caption_ids, split.caption_image, width, compared)
    made_unit = 0
    with EmbeddingWriter(path, split.name, *about) as writer:
        for kind, side, place in zip(("images", "texts"), (given.images, given.captions), places, strict=True):
            start = 0
            for block in side.read():
                vectors, changed = checked_vectors(block, side.path, start, unit=measure == COSINE)
                _write(writer, kind, place[start : start + len(block)], vectors)
                start, made_unit = start + len(block), made_unit + changed
                advance(len(block))
    kinds = sorted({side.kind for side in (given.images, given.captions)} - {"float32"})
    facts = {"images": len(split.image_ids), "captions": len(split.caption_ids), "width": width}
    return facts | ({"numbers": " and ".join(kinds)} if kinds else {}) | {"made_unit": made_unit}


def checked_vectors(block: np.ndarray, path: Path, start: int, *, unit: bool) -> tuple[np.ndarray, int]:
    """Rows as float32, unit vectors where these are wanted, and how many were not.

    Args:
        block: [n, D], which stays as it is.
        path, start: file and first row, for messages.
        unit: whether they are wanted.

    Raises:
        DataError: a row holds NaN, infinity or what float32 cannot hold; or it is zero and has no direction.
    """
    wide = block.astype(np.float32 if block.dtype.itemsize < 4 else block.dtype.newbyteorder("="), copy=False)
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide, dtype=np.float64))
    if not np.isfinite(lengths).all():
        row = start + int(np.flatnonzero(~np.isfinite(lengths))[0])
        raise DataError(f"{path}: row {row:,} holds NaN or infinity; embed it again")
    if unit and not lengths.all():
        row = start + int(np.flatnonzero(lengths == 0)[0])
        raise DataError(f"{path}: row {row:,} is zero, which has no cosine; embed it again, or give --measure")
    off = np.flatnonzero(np.abs(lengths - 1) > UNIT) if unit else np.arange(0)
    if off.size:
        wide = wide.copy() if wide is block else wide
        wide[off] = wide[off] / lengths[off, None]
    with np.errstate(over="ignore"):
        vectors = wide.astype(np.float32, copy=False)
    if vectors is not wide and not np.isfinite(vectors).all():
        row = start + int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])
        raise DataError(f"{path}: row {row:,} holds numbers beyond single precision; scale them")
    return vectors, off.size


def _write(writer: EmbeddingWriter, kind: str, place: np.ndarray, vectors: np.ndarray) -> None:
    """Writes rows where they belong, those that stay together at once."""
    if np.any(np.diff(place) < 0):
        order = np.argsort(place)
        place, vectors = place[order], vectors[order]
    starts = np.flatnonzero(np.diff(place, prepend=-2) != 1).tolist()
    for first, stop in zip(starts, [*starts[1:], len(place)], strict=True):
        writer.write(kind, int(place[first]), vectors[first:stop])


def _ids(side: GivenSide) -> pa.Array:
    """Ids of the rows, or else their numbers."""
    return pa.array(np.arange(side.shape[0])).cast(pa.string()) if side.ids is None else side.ids


def _places(ids: pa.Array, among: pa.Array) -> np.ndarray:
    """Row of each id among others, int64; -1 where it is not there."""
    found = pc.call_function("index_in", [ids], pc.SetLookupOptions(value_set=among))
    return found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def _refuse_twice(side: GivenSide) -> None:
    if side.ids is None or len(pc.call_function("unique", [side.ids])) == len(side.ids):
        return
    first = _places(side.ids, side.ids)
    row = int(np.flatnonzero(first != np.arange(len(first)))[0])
    raise DataError(
        f"{side.path}: {ONE[side.side]} id {side.ids[row].as_py()!r} comes twice, in rows {first[row]:,} and {row:,}; "
        "give every one once"
    )
