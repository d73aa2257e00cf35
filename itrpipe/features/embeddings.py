"""Embeddings of images and captions by a trained dual encoder: the file `embeddings.h5`.

One group per split (`train`, `val`, `test`) with `/images [N, D] f32`, `/image_id [N]`, `/texts [T, D] f32`,
`/caption_id [T]` and `/caption_image [T] i8`, the row of the image each caption describes. Every matrix is
contiguous, so that mining and search read it as a memory map. The attribute `measure` of a group says how two
embeddings are compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import h5py
import numpy as np

from itrpipe.errors import MissingInputError
from itrpipe.features.hdf5 import open_hdf5
from itrpipe.storage.arrays import StoredRows
from itrpipe.storage.disk import reading, require_space
from itrpipe.storage.integrity import checked

EMBEDDINGS = "embeddings.h5"
INNER_PRODUCT, ORDER = "inner product", "order violation"
_BLOCK_VALUES = 1 << 24
# Every matrix starts on a cache line; the structure of a split takes a few KiB.
_ALIGNMENT = 64
_BYTES_OF_HEADERS = 16_384


@dataclass(frozen=True)
class SplitEmbeddings:
    """Embeddings of one split.

    Attributes:
        images: [N, D] float32 memory map.
        image_ids: [N] strings.
        texts: [T, D] float32 memory map.
        caption_ids: [T] strings.
        caption_image: [T] int64 row of the image that each caption describes.
        measure: `INNER_PRODUCT` or `ORDER`.
    """

    images: np.ndarray
    image_ids: np.ndarray
    texts: np.ndarray
    caption_ids: np.ndarray
    caption_image: np.ndarray
    measure: str

    def scores(self) -> np.ndarray:
        """Scores [N, T] of every image with every caption; higher is better."""
        return compare(self.images, self.texts, self.measure)


def _inner_products(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    return images @ texts.T


def _order_violations(images: np.ndarray, texts: np.ndarray) -> np.ndarray:
    """-|max(0, text - image)|, a block of images at a time. Source: Order-embeddings (Vendrov et al., ICLR 2016)."""
    height = max(1, _BLOCK_VALUES // texts.size)
    blocks = (images[start : start + height, None] for start in range(0, len(images), height))
    return np.concatenate([-np.linalg.norm(np.maximum(texts[None] - block, 0), axis=2) for block in blocks])


_MEASURES = {INNER_PRODUCT: _inner_products, ORDER: _order_violations}


def compare(images: np.ndarray, texts: np.ndarray, measure: str) -> np.ndarray:
    """Scores [N, T] of every image with every caption; higher is better.

    Args:
        images: [N, D].
        texts: [T, D].
        measure: `INNER_PRODUCT` or `ORDER`.
    """
    return _MEASURES[measure](images, texts)


class EmbeddingWriter:
    """Writes the embeddings of one split block by block.

    Args:
        path: the HDF5 file, appended to.
        split: name of the split.
        image_ids, caption_ids, caption_image: as in `SplitEmbeddings`.
        width: D.
        measure: how two embeddings are compared.
    """

    def __init__(
        self,
        path: Path,
        split: str,
        image_ids: Iterable[str],
        caption_ids: Iterable[str],
        caption_image: np.ndarray,
        width: int,
        measure: str,
    ) -> None:
        images, captions = as_bytes(image_ids), as_bytes(caption_ids)
        rows = {"images": len(images), "texts": len(captions)}
        self._row_bytes = 4 * width
        needed = self._row_bytes * sum(rows.values()) + images.nbytes + captions.nbytes + 8 * len(captions)
        require_space(path, needed + _BYTES_OF_HEADERS, f"embedding {split}")
        # HDF5 leaves its file open and half written when the disk fills up, so it only lays the file out.
        with h5py.File(path, "a", alignment_threshold=1, alignment_interval=_ALIGNMENT) as file:
            group = file.create_group(split)
            group.attrs["measure"] = measure
            group.create_dataset("image_id", data=images, track_times=False)
            group.create_dataset("caption_id", data=captions, track_times=False)
            group.create_dataset("caption_image", data=caption_image.astype(np.int64), track_times=False)
            self._offsets = {kind: _place(group, kind, (count, width)) for kind, count in rows.items()}
        self._file = os.open(path, os.O_WRONLY)

    def write(self, kind: str, start: int, block: np.ndarray) -> None:
        """Writes rows `start ...` of `images` or `texts`."""
        content = memoryview(np.ascontiguousarray(block, dtype="<f4").tobytes())
        offset = self._offsets[kind] + start * self._row_bytes
        while content:
            written = os.pwrite(self._file, content, offset)
            content, offset = content[written:], offset + written

    def close(self) -> None:
        """Flushes and closes the file."""
        os.close(self._file)

    def __enter__(self) -> EmbeddingWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


Side = Literal["image", "caption"]


@dataclass(frozen=True)
class EmbeddingRows:
    """Embeddings of one split where they lie, read some rows at a time; what is read is not mapped.

    Attributes:
        path, split: where.
        images: [N, D] float32.
        texts: [T, D] float32.
        owners: [T] int64 row of the image that each caption describes.
        measure: `INNER_PRODUCT` or `ORDER`.
    """

    path: Path
    split: str
    images: StoredRows
    texts: StoredRows
    owners: StoredRows
    measure: str

    @classmethod
    def open(cls, path: Path, split: str) -> EmbeddingRows:
        """Finds the embeddings of a split.

        Raises:
            DataError: the file is truncated or not an embeddings file.
            MissingInputError: it has no such split.
        """
        with _opened(path, split) as file:
            names = ("images", "texts", "caption_image")
            rows = [_stored(path, dataset_of(file, f"{split}/{name}")) for name in names]
            return cls(path, split, *rows, measure=str(file[split].attrs["measure"]))

    def ids(self, side: Side, start: int, stop: int) -> list[str]:
        """Ids of consecutive images or captions."""
        with _opened(self.path, self.split) as file:
            return np.char.decode(dataset_of(file, f"{self.split}/{side}_id")[start:stop], "utf-8").tolist()


def read_embeddings(path: Path, split: str) -> SplitEmbeddings:
    """Opens the embeddings of a split as memory maps.

    Raises:
        DataError: the file is truncated or not an embeddings file.
        MissingInputError: it has no such split.
    """
    with _opened(path, split) as file:
        return SplitEmbeddings(
            images=_map(path, dataset_of(file, f"{split}/images")),
            image_ids=np.char.decode(dataset_of(file, f"{split}/image_id")[:], "utf-8"),
            texts=_map(path, dataset_of(file, f"{split}/texts")),
            caption_ids=np.char.decode(dataset_of(file, f"{split}/caption_id")[:], "utf-8"),
            caption_image=dataset_of(file, f"{split}/caption_image")[:],
            measure=str(file[split].attrs["measure"]),
        )


@contextmanager
def _opened(path: Path, split: str) -> Iterator[h5py.File]:
    with reading(path, "embeddings", "run `itrpipe train` again"), open_hdf5(checked(path)) as file:
        if split not in file:
            raise MissingInputError(f"{path} has no split {split!r}; it has {', '.join(file)}")
        yield file


def dataset_of(file: h5py.File, name: str) -> h5py.Dataset:
    """Returns a dataset of an open file.

    Raises:
        KeyError, ValueError: there is nothing of this name, or a group.
    """
    found = file[name]
    if not isinstance(found, h5py.Dataset):
        raise ValueError(f"{name} is not a dataset")
    return found


def _place(group: h5py.Group, name: str, shape: tuple[int, int]) -> int:
    """Creates a contiguous float32 matrix without content and returns its first byte in the file."""
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_layout(h5py.h5d.CONTIGUOUS)
    creation.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    creation.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    creation.set_obj_track_times(False)
    kind = h5py.h5t.py_create(np.dtype("<f4"), logical=True)
    dataset = h5py.h5d.create(group.id, name.encode(), kind, h5py.h5s.create_simple(shape), creation)
    return int(dataset.get_offset())


def as_bytes(names: Iterable[str]) -> np.ndarray:
    """Returns strings as UTF-8 bytes of one length, as HDF5 files keep them."""
    return np.char.encode(np.asarray(list(names), dtype=str), "utf-8")


def _map(path: Path, dataset: h5py.Dataset) -> np.ndarray:
    # Copy-on-write: torch wants writable memory, and nothing here writes.
    return np.memmap(path, dtype=dataset.dtype, mode="c", offset=_offset(dataset), shape=dataset.shape)


def _stored(path: Path, dataset: h5py.Dataset) -> StoredRows:
    return StoredRows(path.absolute(), _offset(dataset), np.dtype(dataset.dtype.str), dataset.shape)


def _offset(dataset: h5py.Dataset) -> int:
    offset = dataset.id.get_offset()
    if offset is None:
        raise ValueError(f"{dataset.name} is empty")
    return int(offset)
