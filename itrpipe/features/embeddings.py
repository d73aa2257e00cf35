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
        """Return the scores [N, T] of every image with every caption; higher is better."""
        return score_matrix(self.images, self.texts, self.measure)


def score_matrix(images: np.ndarray, texts: np.ndarray, measure: str) -> np.ndarray:
    """Return the scores [N, T] of every image with every caption; higher is better.

    Args:
        images: [N, D].
        texts: [T, D].
        measure: `INNER_PRODUCT`; or `ORDER`, -|max(0, text - image)|. Source: Order-embeddings (Vendrov et al., ICLR
            2016).
    """
    if measure == INNER_PRODUCT:
        return images @ texts.T
    images_at_once = max(1, _BLOCK_VALUES // texts.size)
    blocks = []
    for start in range(0, len(images), images_at_once):
        block = images[start : start + images_at_once, None]
        violations = np.maximum(texts[None] - block, 0)
        blocks.append(-np.linalg.norm(violations, axis=2))
    return np.concatenate(blocks)


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
    """Yield `write(side, start, block)`, which writes rows `start ...` of the `images` or `texts` of a split.

    Args:
        path: the HDF5 file, appended to.
        split: name of the split.
        image_ids, caption_ids, caption_image: as in `SplitEmbeddings`.
        width: D.
        measure: how two embeddings are compared.

    Raises:
        DiskFullError: the disk cannot hold them.
    """
    ids = _id_datasets(image_ids, caption_ids, caption_image)
    counts = {"images": len(ids["image_id"]), "texts": len(caption_image)}
    row_bytes = 4 * width
    needed = row_bytes * sum(counts.values()) + BYTES_OF_HEADERS
    for values in ids.values():
        needed += values.nbytes
    require_space(path, needed, f"embedding {split}")
    offsets = {}
    # HDF5 leaves its file open and half written when the disk fills up, so it only lays the file out.
    with h5py.File(path, "a", alignment_threshold=1, alignment_interval=ALIGNMENT) as file:
        group = file.create_group(split)
        group.attrs["measure"] = measure
        for name, values in ids.items():
            group.create_dataset(name, data=values, track_times=False)
        for side, count in counts.items():
            offsets[side] = reserve(group, side, count, np.dtype(("<f4", (width,))))
    with path.open("r+b", buffering=0) as stream:

        def write(side: str, start: int, block: np.ndarray) -> None:
            offset = offsets[side] + start * row_bytes
            write_at(stream.fileno(), offset, block.astype("<f4", copy=False))

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
        """Find the embeddings of a split.

        Raises:
            DataError: the file is truncated or not an embeddings file.
            MissingInputError: it has no such split.
        """
        file = _open_split(path, split, "embeddings", "run `itrpipe train` again")
        measure = str(file.attributes(split)["measure"])
        names = ("images", "texts", "caption_image", "image_id", "caption_id")
        rows = [file.stored(f"{split}/{name}") for name in names]
        return cls(*rows, measure=measure)

    def ids(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all images [N] and captions [T] as strings."""
        image_ids = np.char.decode(self.image_ids.read(), "utf-8")
        caption_ids = np.char.decode(self.caption_ids.read(), "utf-8")
        return image_ids, caption_ids


def read_embeddings(path: Path, split: str) -> SplitEmbeddings:
    """Open the embeddings of a split as memory maps; errors as of `EmbeddingRows.open`."""
    rows = EmbeddingRows.open(path, split)
    image_ids, caption_ids = rows.ids()
    images = rows.images.mapped()
    texts = rows.texts.mapped()
    return SplitEmbeddings(images, image_ids, texts, caption_ids, rows.owners.read(), rows.measure)


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


def write_split_scores(path: Path, split: str, scores: SplitScores) -> None:
    """Add a split to a file of scores.

    Raises:
        DiskFullError: the disk cannot hold it.
    """
    require_space(path, scores.matrix.nbytes, f"scores of {split}")
    datasets = {"scores": scores.matrix.astype("<f4")}
    datasets |= _id_datasets(scores.image_ids, scores.caption_ids, scores.caption_image)
    with on_disk(path), h5py.File(path, "a") as file:
        group = file.create_group(split)
        for name, values in datasets.items():
            group.create_dataset(name, data=values, track_times=False)


def read_scores(path: Path, split: str) -> SplitScores:
    """Read the scores of a split.

    Raises:
        DataError: the file is truncated or not a file of scores.
        MissingInputError: it has no such split.
    """
    file = _open_split(path, split, "scores", "run `itrpipe evaluate` again")

    def read(name: str) -> np.ndarray:
        return file.stored(f"{split}/{name}").read()

    image_ids = np.char.decode(read("image_id"), "utf-8")
    caption_ids = np.char.decode(read("caption_id"), "utf-8")
    return SplitScores(read("scores"), image_ids, caption_ids, read("caption_image"))


def _id_datasets(
    image_ids: Iterable[str], caption_ids: Iterable[str], caption_image: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the datasets that say what rows are; strings are UTF-8 bytes of one length, as HDF5 files keep them."""
    datasets = {}
    for name, ids in (("image_id", image_ids), ("caption_id", caption_ids)):
        datasets[name] = np.char.encode(np.asarray(list(ids), dtype=str), "utf-8")
    datasets["caption_image"] = caption_image.astype(np.int64)
    return datasets


def _open_split(path: Path, split: str, what: str, remedy: str) -> NamedArrays:
    file = open_arrays(path.absolute(), what, remedy)
    if not any(name.startswith(f"{split}/") for name in file):
        splits = dict.fromkeys(name.partition("/")[0] for name in file)
        raise MissingInputError(f"{path} has no split {split!r}; it has {', '.join(splits)}")
    return file
