"""Rows of embeddings that are searched, lists of candidates, and the files of these.

Searched are the embeddings of a training set and, behind them, further candidates: embeddings of images or
captions that belong to nobody. They are read some rows at a time, so that mining needs no more memory for more of them.

Lists that are finished lie in one Parquet file for each direction, every anchor with its hardest candidates.
`texts_for_images.parquet` has a row per image, `images_for_texts.parquet` a row per caption:

    anchor_id       string                     image_id or caption_id
    candidate_rows  fixed_size_list<int32>[K]  hardest first; row k of the other file is the candidate; int64 where
                                               there are more than 2^31 of them
    scores          fixed_size_list<float16>[K]
    false_negative_probability  fixed_size_list<float16>[K], 0..1, only where a judge was asked (`--judge`)

The two files name each other's candidates: candidate row r of an image is row r of `images_for_texts`,
whose `anchor_id` is the caption.

Shapes: A anchors with lists, K candidates of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.engine.work import Part, Work, Worker, numbered
from itrpipe.errors import UsageError
from itrpipe.storage.arrays import (
    ArrayFile,
    HeldRows,
    JoinedRows,
    Rows,
    StoredRows,
    array_writer,
    check_fit,
    check_numbers,
)
from itrpipe.storage.disk import on_disk, reading

NO_ROW = -1
"""Stands where a list has no candidate; its score is minus infinity."""
DIRECTIONS: tuple[str, str] = ("texts_for_images", "images_for_texts")
FILES = {name: f"{name}.parquet" for name in DIRECTIONS}
PROBABILITY = "false_negative_probability"
LARGEST_ROW = 2**32 - 2
"""Keys have 32 bits for a row of either side."""
Shapes = Mapping[str, tuple[int, int, int]]
"""Direction -> anchors, length of a list, and candidates in all."""
PLACES = 1 << 20
"""About so many places of lists are in memory at a time; also in a row group of the final files."""
_LARGEST_INT32 = 2**31 - 1
_BYTES_AT_ONCE = 1 << 24
_ANCHORS_AT_ONCE = 8_192
_REMEDY = "run `itrpipe mine-negatives` again"


# What is searched


def taken(values: Rows, rows: np.ndarray) -> np.ndarray:
    """Read the vectors [..., D] of rows [...], in any order."""
    if isinstance(values, JoinedRows):
        vectors = np.empty((*rows.shape, *values.shape[1:]), values.dtype)
        for part in values.parts:
            is_in_part = (rows >= 0) & (rows < part.shape[0])
            vectors[is_in_part] = taken(part, rows[is_in_part])
            rows = rows - part.shape[0]
        return vectors
    if isinstance(values, HeldRows):
        return values.array[rows]
    assert isinstance(values, StoredRows)
    return np.asarray(values.mapped("r")[rows])


def slices(count: int, at_once: int) -> list[slice]:
    """Cut so many rows into slices of `at_once` rows; the last may have fewer."""
    starts = range(0, count, at_once)
    return [slice(start, min(start + at_once, count)) for start in starts]


def list_slices(anchors: int, width: int) -> list[slice]:
    """Cut anchors into slices whose lists are looked at together."""
    return slices(anchors, max(1, PLACES // width))


def rows_at_once(values: Rows) -> int:
    """Return how many vectors a slice of about 16 MiB holds."""
    return max(1, _BYTES_AT_ONCE // (4 * values.shape[1]))


@dataclass
class Searched:
    """Both sides of a search by inner product, read once to see whether it can be.

    Attributes:
        sides: [N, D] one vector per image, and [T, D] one per caption.
        owners: [T] row of the image that each caption belongs to, -1 for none; these pairs are never candidates.
        widths: captions wanted per image, and images per caption; at most those that any anchor has as candidates.
        first: how many images and captions get lists, the others being candidates alone; None for all.
        counts: N and T.
        anchors: images and captions that get lists.
        shapes: of the lists.
        own_counts: [N] captions of each image.

    Raises:
        DataError: the arrays do not fit each other; or a vector holds NaN or infinity, or vectors are so long that a
            score can leave the range of float32.
        UsageError: there are no candidates, none were asked for, or there are more rows than keys can tell apart.
    """

    sides: tuple[Rows, Rows]
    owners: np.ndarray
    widths: tuple[int, int]
    first: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        images, texts = self.sides
        num_images = images.shape[0]
        num_texts = texts.shape[0]
        self.counts = num_images, num_texts
        self.anchors = self.first or self.counts
        if max(self.counts) > LARGEST_ROW:
            raise UsageError(f"more than {LARGEST_ROW:,} rows of one side cannot be mined: leave some out")
        check_fit(images.shape, texts.shape, self.owners)
        has_owner = self.owners >= 0
        self.own_counts = np.bincount(self.owners[has_owner], minlength=num_images)
        image_anchors, text_anchors = self.anchors
        text_width, image_width = self.widths
        own_texts = self.own_counts[:image_anchors]
        own_images = has_owner[:text_anchors]
        fewest_texts = num_texts - int(own_texts.max())
        fewest_images = num_images - int(own_images.max())
        if min(fewest_texts, fewest_images, *self.widths) < 1:
            raise UsageError(
                f"{text_width} captions per image and {image_width} images per caption were asked for, and "
                f"{fewest_texts} and {fewest_images} are candidates of some; it takes one of each at least, so two "
                "images with captions"
            )
        text_width = min(text_width, num_texts - int(own_texts.min()))
        image_width = min(image_width, num_images - int(own_images.min()))
        self.widths = text_width, image_width
        self.shapes: Shapes = {
            DIRECTIONS[0]: (image_anchors, text_width, num_texts),
            DIRECTIONS[1]: (text_anchors, image_width, num_images),
        }
        check_numbers(_blocks(images), _blocks(texts))


def _blocks(values: Rows) -> Iterator[np.ndarray]:
    for part in slices(values.shape[0], rows_at_once(values)):
        yield values.read(part.start, part.stop)


# Lists


@dataclass(frozen=True)
class CandidateLists:
    """The candidates of every anchor of one direction, hardest first, in rows of one width.

    Attributes:
        candidates: [A, K] int32, or int64 where there are more, rows of the other side; `NO_ROW` behind the last
            candidate of a shorter list.
        scores: [A, K] float32; minus infinity behind the last candidate.
    """

    candidates: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True)
class MinedLists:
    """Hard negatives of every image and caption, hardest first.

    Attributes:
        texts_for_images: [N, num_texts] int32, or int64 where there are more than 2^31 captions; rows of captions.
        texts_for_images_scores: [N, num_texts] float32.
        images_for_texts: [T, num_images] int32 or int64, rows of images.
        images_for_texts_scores: [T, num_images] float32.
    """

    texts_for_images: np.ndarray
    texts_for_images_scores: np.ndarray
    images_for_texts: np.ndarray
    images_for_texts_scores: np.ndarray

    def __repr__(self) -> str:
        texts = self.texts_for_images.shape
        images = self.images_for_texts.shape
        return f"MinedLists: texts_for_images {texts}, images_for_texts {images}"


def matching(
    has: Callable[[np.ndarray, np.ndarray], np.ndarray],
    direction: str,
    part: slice,
    lists: CandidateLists,
) -> np.ndarray:
    """Return which candidates are one of some pairs with their anchor, bool [A, K]; places without any are not.

    Args:
        has: tells it of rows of captions and images, such as `PairSet.has`.
        direction: of the lists.
        part: rows of the anchors.
        lists: theirs.
    """
    stop = part.start + len(lists.candidates)
    anchors = np.arange(part.start, stop)[:, None]
    if direction == DIRECTIONS[0]:
        return has(lists.candidates, anchors)
    return has(anchors, lists.candidates)


def by_score(candidates: np.ndarray, scores: np.ndarray) -> CandidateLists:
    """Order lists by falling score, by rising row where scores are equal, and padding last.

    Args:
        candidates: [A, K] rows, `NO_ROW` anywhere.
        scores: [A, K] numbers without NaN; those of padding are not read.
    """
    is_missing = candidates == NO_ROW
    scores = np.where(is_missing, -np.inf, scores).astype(np.float32)
    order = np.lexsort((candidates, -scores, is_missing), axis=1)
    return CandidateLists(
        np.take_along_axis(candidates, order, axis=1),
        np.take_along_axis(scores, order, axis=1),
    )


# While lists are made


def row_type(candidates: int) -> str:
    """Return the type of the rows of so many candidates: 32 bits where they suffice."""
    return "<i4" if candidates <= _LARGEST_INT32 else "<i8"


def write_lists(
    path: Path,
    shapes: Shapes,
    lists: Iterable[tuple[str, int, CandidateLists]],
) -> None:
    """Write lists to a file of arrays, which `ListFiles` reads.

    Args:
        path: the file.
        shapes: of all lists.
        lists: direction, row of the first anchor, and the lists of consecutive anchors.

    Raises:
        DiskFullError: no space is left.
    """
    arrays: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for direction, (anchors, width, candidates) in shapes.items():
        arrays[f"{direction}/rows"] = (row_type(candidates), (anchors, width))
        arrays[f"{direction}/scores"] = ("<f4", (anchors, width))
    with array_writer(path, arrays) as writer:
        for direction, start, block in lists:
            writer.write(f"{direction}/rows", start, block.candidates)
            writer.write(f"{direction}/scores", start, block.scores)


class ListFiles:
    """Reads lists, some anchors at a time, out of files of `write_lists`.

    Args:
        paths: of the files; those of a direction hold consecutive anchors.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._arrays: dict[str, list[Rows]] = {}
        for path in paths:
            for name, array in ArrayFile(path).items():
                self._arrays.setdefault(name, []).append(array)

    def read(
        self,
        direction: str,
        start: int = 0,
        stop: int = LARGEST_ROW,
    ) -> CandidateLists:
        """Return the lists of consecutive anchors, by default of all."""
        candidates = JoinedRows(self._arrays[f"{direction}/rows"])
        scores = JoinedRows(self._arrays[f"{direction}/scores"])
        return CandidateLists(
            candidates.read(start, stop),
            scores.read(start, stop),
        )


class ListWork(Work[Worker]):
    """A map over anchors: a part is some lists of one direction, and its file holds these.

    Args:
        shapes: of all lists.
        blocks: direction -> lists of a part.
    """

    unit = "candidates"

    def __init__(self, shapes: Shapes, blocks: Mapping[str, int]) -> None:
        self.shapes = shapes
        self._blocks = blocks

    def parts(self) -> list[Part]:
        """Return consecutive anchors, one direction behind the other."""
        contents = []
        for direction, (anchors, width, _) in self.shapes.items():
            for part in slices(anchors, self._blocks[direction]):
                places = width * (part.stop - part.start)
                contents.append((places, (direction, part.start, part.stop)))
        return numbered(contents)

    def write(self, path: Path, direction: str, lists: CandidateLists) -> None:
        """Write the file of a part."""
        _, _, num_candidates = self.shapes[direction]
        shape = (*lists.candidates.shape, num_candidates)
        write_lists(path, {direction: shape}, [(direction, 0, lists)])

    def lists(
        self,
        paths: Sequence[Path],
        direction: str,
    ) -> Iterator[tuple[slice, CandidateLists]]:
        """Yield all lists of a direction, some consecutive anchors at a time.

        Args:
            paths: of all parts.
            direction: which.
        """
        files = ListFiles(paths)
        anchors, width, _ = self.shapes[direction]
        for part in list_slices(anchors, width):
            yield part, files.read(direction, part.start, part.stop)


# Finished lists


@dataclass(frozen=True)
class MinedList:
    """The finished lists of one direction.

    Attributes:
        anchor_ids: [A] strings.
        candidates: [A, K] int32 or int64 rows of the other direction's anchors, hardest first.
        scores: [A, K] float16.
        false_negative_probability: [A, K] float16, 0..1, or None where mining did not estimate it.
    """

    anchor_ids: np.ndarray
    candidates: np.ndarray
    scores: np.ndarray
    false_negative_probability: np.ndarray | None = None


class ListWriter(AbstractContextManager["ListWriter"]):
    """Writes the files of both directions, some anchors at a time, each time as a row group.

    Args:
        folder: that the files are written to.
        image_ids, caption_ids: of all anchors, UTF-8.

    Attributes:
        widths: direction -> K, of those that were written.
    """

    def __init__(self, folder: Path, image_ids: Rows, caption_ids: Rows) -> None:
        self._folder = folder
        self._anchor_ids = dict(zip(DIRECTIONS, (image_ids, caption_ids), strict=True))
        self._files: dict[str, pq.ParquetWriter] = {}
        self.widths: dict[str, int] = {}

    def write(
        self,
        direction: str,
        part: slice,
        lists: CandidateLists,
        probability: np.ndarray | None = None,
    ) -> None:
        """Write the next anchors of a direction.

        Args:
            direction: a key of `FILES`.
            part: rows of the anchors.
            lists: theirs.
            probability: [a, K] to be false negatives; for all anchors or for none.

        Raises:
            DiskFullError: no space is left.
        """
        width = lists.candidates.shape[1]
        columns = {
            "candidate_rows": lists.candidates,
            "scores": lists.scores.astype(np.float16),
        }
        if probability is not None:
            columns[PROBABILITY] = probability.astype(np.float16)
        ids = self._anchor_ids[direction].read(part.start, part.stop)
        arrays: dict[str, pa.Array] = {}
        arrays["anchor_id"] = pa.array(ids.tolist()).cast(pa.string())
        for name, values in columns.items():
            flat = pa.array(values.reshape(-1))
            arrays[name] = pa.FixedSizeListArray.from_arrays(flat, width)
        table = pa.table(arrays)
        path = self._folder / FILES[direction]
        with on_disk(path):
            if direction not in self._files:
                self.widths[direction] = width
                file = pq.ParquetWriter(path, table.schema, compression="zstd")
                self._files[direction] = file
            rows = max(1, len(table))
            self._files[direction].write_table(table, row_group_size=rows)

    def __exit__(self, *exception: object) -> None:
        for direction, file in self._files.items():
            with on_disk(self._folder / FILES[direction]):
                file.close()


def count_anchors(folder: Path, direction: str) -> int:
    """Return how many finished lists of a direction a folder holds; errors are those of `list_blocks`."""
    path = folder / FILES[direction]
    with reading(path, "mined lists", _REMEDY):
        return pq.read_metadata(path).num_rows


def list_blocks(folder: Path, direction: str) -> Iterator[tuple[slice, CandidateLists]]:
    """Yield the finished lists of a direction, some consecutive anchors at a time.

    Args:
        folder: holds the file.
        direction: a key of `FILES`.

    Raises:
        DataError: the file is truncated or not a mined list.
    """
    path = folder / FILES[direction]
    with reading(path, "mined lists", _REMEDY), pq.ParquetFile(path) as file:
        start = 0
        for batch in file.iter_batches(_ANCHORS_AT_ONCE, columns=["candidate_rows", "scores"]):
            stop = start + len(batch)
            candidates = _matrix(batch.columns[0])
            scores = _matrix(batch.columns[1]).astype(np.float32)
            yield slice(start, stop), CandidateLists(candidates, scores)
            start = stop


def _matrix(lists: pa.FixedSizeListArray) -> np.ndarray:
    values = lists.flatten().to_numpy(zero_copy_only=False)
    return values.reshape(-1, lists.type.list_size)


def read_list(folder: Path, direction: str, most: int | None = None) -> MinedList:
    """Read the finished lists of one direction, some anchors at a time.

    Args:
        folder: holds the file.
        direction: a key of `FILES`.
        most: candidates of each anchor to keep, the hardest; None keeps all.

    Raises:
        DataError: the file is truncated or not a mined list.
    """
    path = folder / FILES[direction]
    with reading(path, "mined lists", _REMEDY), pq.ParquetFile(path) as file:

        def column(name: str) -> np.ndarray:
            pieces = []
            for batch in file.iter_batches(_ANCHORS_AT_ONCE, columns=[name]):
                values = _matrix(batch[0])
                pieces.append(values[:, :most].copy())  # what is cut off does not stay in memory
            return np.concatenate(pieces)

        ids = file.read(["anchor_id"])["anchor_id"].to_pylist()
        probabilities = column(PROBABILITY) if PROBABILITY in file.schema_arrow.names else None
        return MinedList(
            np.asarray(ids, dtype=str),
            column("candidate_rows"),
            column("scores"),
            probabilities,
        )
