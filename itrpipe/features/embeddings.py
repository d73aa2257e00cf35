"""Files of what a model says of whole splits: embeddings (`embeddings.h5`), or scores of all pairs (`scores.h5`).

A file holds a group for each split (`train`, `val`, `test`) with `/image_id [N]`, `/caption_id [T]` and
`/caption_image [T] i8`, the row of the image each caption describes. Of a dual encoder it also has `/images [N, D] f32`
and `/texts [T, D] f32`. Every matrix is contiguous, so that mining and search read it as a memory map; the attribute
`measure` of a group says how two embeddings are compared. Models that compare every region with every word have no
embedding to keep; of them it has `/scores [N, T] f4`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from itrpipe.errors import MissingInputError
from itrpipe.features.store import ALIGNMENT, BYTES_OF_HEADERS, reserve, write_at
from itrpipe.storage.array_formats import NamedArrays, open_arrays
from itrpipe.storage.arrays import StoredRows
from itrpipe.storage.disk import on_disk, require_space

EMBEDDINGS, SCORES = "embeddings.h5", "scores.h5"
INNER_PRODUCT, ORDER = "inner product", "order violation"
_BLOCK_VALUES = 1 << 24


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
        return pair_scores(self.images, self.texts, self.measure)


def pair_scores(images: np.ndarray, texts: np.ndarray, measure: str) -> np.ndarray:
    """Scores [N, T] of every image with every caption; higher is better.

    Args:
        images: [N, D].
        texts: [T, D].
        measure: `INNER_PRODUCT`; or `ORDER`, -|max(0, text - image)|. Source: Order-embeddings (Vendrov et al., ICLR
            2016).
    """
    if measure == INNER_PRODUCT:
        return images @ texts.T
    height = max(1, _BLOCK_VALUES // texts.size)  # images at a time
    blocks = (images[start : start + height, None] for start in range(0, len(images), height))
    return np.concatenate([-np.linalg.norm(np.maximum(texts[None] - block, 0), axis=2) for block in blocks])


@contextmanager
def embedding_writer(
    path: Path,
    split: str,
    image_ids: Iterable[str],
    caption_ids: Iterable[str],
    caption_image: np.ndarray,
    width: int,
    measure: str,
) -> Iterator[Callable[[str, int, np.ndarray], None]]:
    """Yields `write(side, start, block)`, which writes rows `start ...` of the `images` or `texts` of a split.

    Args:
        path: the HDF5 file, appended to.
        split: name of the split.
        image_ids, caption_ids, caption_image: as in `SplitEmbeddings`.
        width: D.
        measure: how two embeddings are compared.

    Raises:
        DiskFullError: the disk cannot hold them.
    """
    ids = _ids(image_ids, caption_ids, caption_image)
    rows = {"images": len(ids["image_id"]), "texts": len(caption_image)}
    row_bytes = 4 * width
    needed = row_bytes * sum(rows.values()) + sum(each.nbytes for each in ids.values())
    require_space(path, needed + BYTES_OF_HEADERS, f"embedding {split}")
    # HDF5 leaves its file open and half written when the disk fills up, so it only lays the file out.
    with h5py.File(path, "a", alignment_threshold=1, alignment_interval=ALIGNMENT) as file:
        group = file.create_group(split)
        group.attrs["measure"] = measure
        for name, values in ids.items():
            group.create_dataset(name, data=values, track_times=False)
        row = np.dtype(("<f4", (width,)))
        offsets = {side: reserve(group, side, count, row) for side, count in rows.items()}
    with path.open("r+b", buffering=0) as stream:

        def write(side: str, start: int, block: np.ndarray) -> None:
            write_at(stream.fileno(), offsets[side] + start * row_bytes, block.astype("<f4", copy=False))

        yield write


@dataclass(frozen=True)
class EmbeddingRows:
    """Embeddings of one split where they lie, read some rows at a time; what is read is not mapped.

    Attributes:
        images: [N, D] float32.
        texts: [T, D] float32.
        owners: [T] int64 row of the image that each caption describes.
        image_ids, caption_ids: [N] and [T] UTF-8.
        measure: `INNER_PRODUCT` or `ORDER`.
    """

    images: StoredRows
    texts: StoredRows
    owners: StoredRows
    image_ids: StoredRows
    caption_ids: StoredRows
    measure: str

    @classmethod
    def open(cls, path: Path, split: str) -> EmbeddingRows:
        """Finds the embeddings of a split.

        Raises:
            DataError: the file is truncated or not an embeddings file.
            MissingInputError: it has no such split.
        """
        file = _opened(path, split, "embeddings", "run `itrpipe train` again")
        names = ("images", "texts", "caption_image", "image_id", "caption_id")
        rows = [file.stored(f"{split}/{name}") for name in names]
        return cls(*rows, measure=str(file.attributes(split)["measure"]))

    def ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all images [N] and captions [T] as strings."""
        return np.char.decode(self.image_ids.read(), "utf-8"), np.char.decode(self.caption_ids.read(), "utf-8")


def read_embeddings(path: Path, split: str) -> SplitEmbeddings:
    """Opens the embeddings of a split as memory maps; errors as of `EmbeddingRows.open`."""
    rows = EmbeddingRows.open(path, split)
    image_ids, caption_ids = rows.ids()
    return SplitEmbeddings(
        rows.images.mapped(), image_ids, rows.texts.mapped(), caption_ids, rows.owners.read(), rows.measure
    )


@dataclass(frozen=True)
class SplitScores:
    """Scores of one split; the part of `SplitEmbeddings` that evaluation needs.

    Attributes:
        matrix: [N, T] float32, higher is better.
        image_ids: [N] strings.
        caption_ids: [T] strings.
        caption_image: [T] int64 row of the image that each caption describes.
    """

    matrix: np.ndarray
    image_ids: np.ndarray
    caption_ids: np.ndarray
    caption_image: np.ndarray


def write_scores(path: Path, split: str, scores: SplitScores) -> None:
    """Adds a split to a file of scores.

    Raises:
        DiskFullError: the disk cannot hold it.
    """
    require_space(path, scores.matrix.nbytes, f"scores of {split}")
    with on_disk(path), h5py.File(path, "a") as file:
        group = file.create_group(split)
        ids = _ids(scores.image_ids, scores.caption_ids, scores.caption_image)
        for name, values in {"scores": scores.matrix.astype("<f4"), **ids}.items():
            group.create_dataset(name, data=values, track_times=False)


def read_scores(path: Path, split: str) -> SplitScores:
    """Reads the scores of a split.

    Raises:
        DataError: the file is truncated or not a file of scores.
        MissingInputError: it has no such split.
    """
    file = _opened(path, split, "scores", "run `itrpipe evaluate` again")
    names = ("scores", "image_id", "caption_id", "caption_image")
    matrix, images, captions, owners = (file.stored(f"{split}/{name}").read() for name in names)
    return SplitScores(matrix, np.char.decode(images, "utf-8"), np.char.decode(captions, "utf-8"), owners)


def _ids(image_ids: Iterable[str], caption_ids: Iterable[str], caption_image: np.ndarray) -> dict[str, np.ndarray]:
    """The datasets that say what rows are; strings are UTF-8 bytes of one length, as HDF5 files keep them."""
    texts = {"image_id": image_ids, "caption_id": caption_ids}
    ids = {name: np.char.encode(np.asarray(list(each), dtype=str), "utf-8") for name, each in texts.items()}
    return ids | {"caption_image": caption_image.astype(np.int64)}


def _opened(path: Path, split: str, what: str, remedy: str) -> NamedArrays:
    file = open_arrays(path.absolute(), what, remedy)
    if not any(name.startswith(f"{split}/") for name in file):
        splits = dict.fromkeys(name.partition("/")[0] for name in file)
        raise MissingInputError(f"{path} has no split {split!r}; it has {', '.join(splits)}")
    return file
