"""Embeddings of photographs on the disk: of whole indexes and of parts of interrupted runs, and how they are joined.

Shapes: N photographs, D embedding width.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.engine.work import AGAIN, ARRAYS
from itrpipe.errors import DataError
from itrpipe.features.embeddings import INNER_PRODUCT
from itrpipe.retrieval.photo_folder import PhotoFile
from itrpipe.storage.artifact import WORK
from itrpipe.storage.disk import check_stamp, make_folder, on_disk, require_space
from itrpipe.storage.integrity import checked
from itrpipe.storage.locks import unused
from itrpipe.storage.parts import ArrayFile, write_arrays

PHOTOS, EMBEDDINGS = "photos.parquet", "embeddings.npy"
_BLOCK = 4_096
_VECTORS, _SIZES = "vectors", "sizes"


class PartFacts(NamedTuple):
    """What a part says of itself beside its arrays.

    Attributes:
        model: digest of the model.
        measure: how embeddings are compared.
        photographs: the rows.
        failed: path -> reason, of those without a row.
    """

    model: str
    measure: str
    photographs: list[PhotoFile]
    failed: dict[str, str]


def write_part(path: Path, vectors: np.ndarray, sizes: np.ndarray, facts: PartFacts) -> None:
    """Writes a part.

    Args:
        path: of its file.
        vectors: [n, D] float32.
        sizes: [n, 2] int32, width and height in pixels.
        facts: of these n rows.
    """
    write_arrays(path, {_VECTORS: vectors, _SIZES: sizes}, facts._asdict())


class PartRows:
    """Rows of a part.

    Args:
        path: its file.

    Raises:
        DataError: it is no such file.

    Attributes:
        model, measure, photographs, failed: see `PartFacts`.
        width: D.
    """

    def __init__(self, path: Path) -> None:
        self._file = ArrayFile(path)
        facts = self._file.facts
        self.model, self.measure, self.failed = facts["model"], facts["measure"], facts["failed"]
        self.photographs = [PhotoFile(*each) for each in facts["photographs"]]
        self.width = self._file[_VECTORS].shape[1]

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Embeddings [n, D] of some rows."""
        return self._file[_VECTORS].read()[rows]

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Width and height [n, 2] of some rows."""
        return self._file[_SIZES].read()[rows]


class IndexRows:
    """Rows of a whole index.

    Args:
        folder: of the artifact.
        measure: how its embeddings are compared.

    Raises:
        DataError: a file of it is damaged.

    Attributes:
        measure: as given.
        photographs: the rows.
        width: D.
    """

    def __init__(self, folder: Path, measure: str) -> None:
        table = pq.read_table(checked(folder / PHOTOS))
        self.photographs = _read_photographs(table)
        self._sizes = np.stack([table[name].to_numpy() for name in ("width", "height")], axis=1)
        self._vectors = np.load(checked(folder / EMBEDDINGS), mmap_mode="r", allow_pickle=False)
        self.width, self.measure = int(self._vectors.shape[1]), measure

    def vectors(self, rows: np.ndarray | slice) -> np.ndarray:
        """Embeddings [n, D] of some rows; mapped, where rows are a slice."""
        return self._vectors[rows]

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Width and height [n, 2] of some rows."""
        return self._sizes[rows]


def listed(folder: Path) -> set[PhotoFile]:
    """The photographs of a whole index.

    Raises:
        DataError: the file is damaged.
    """
    return set(_read_photographs(pq.read_table(checked(folder / PHOTOS))))


def _read_photographs(table: pa.Table) -> list[PhotoFile]:
    return [PhotoFile(*each) for each in zip(*(table[name].to_pylist() for name in PhotoFile._fields), strict=True)]


class KnownRows:
    """Embeddings that are there, by photograph: one that has another size or time is another photograph."""

    def __init__(self) -> None:
        self._sources: list[PartRows | IndexRows] = []
        self._places: dict[PhotoFile, tuple[int, int]] = {}

    def __contains__(self, photograph: PhotoFile) -> bool:
        return photograph in self._places

    def __len__(self) -> int:
        return len(self._places)

    @property
    def width(self) -> int:
        """D; 0 where nothing is known."""
        return self._sources[0].width if self._sources else 0

    @property
    def measure(self) -> str:
        """How embeddings are compared."""
        return self._sources[0].measure

    @property
    def measured_by_product(self) -> bool:
        """Whether an inner product compares them."""
        return self.measure == INNER_PRODUCT

    def add(self, rows: PartRows | IndexRows) -> None:
        """Adds the rows that are not known yet."""
        number = len(self._sources)
        self._sources.append(rows)
        for row, photograph in enumerate(rows.photographs):
            self._places.setdefault(photograph, (number, row))

    def gathered(self, photographs: Sequence[PhotoFile]) -> tuple[np.ndarray, np.ndarray]:
        """Embeddings [n, D] float32 and sizes [n, 2] int32 of photographs that are known."""
        places = np.array([self._places[each] for each in photographs], dtype=np.int64)
        vectors = np.empty((len(places), self.width), dtype=np.float32)
        sizes = np.empty((len(places), 2), dtype=np.int32)
        for number in np.unique(places[:, 0]):
            own = places[:, 0] == number
            vectors[own] = self._sources[number].vectors(places[own, 1])
            sizes[own] = self._sources[number].sizes(places[own, 1])
        return vectors, sizes


def kept_parts(
    partials: Iterable[Path],
    own: Path,
    places: Sequence[str],
    model: str,
    into: Path,
    warn: Callable[[str], None],
) -> Iterator[PartRows]:
    """Yields what interrupted runs over the same or an earlier state of the folder have encoded.

    Args:
        partials: unfinished folders; those that a process is at work on are left alone.
        own: the one of this run.
        places: folders below their `.work` that hold parts.
        model: digest of the model, whose parts alone count.
        into: where parts are moved to, after which the other folders are gone.
        warn: is told what was damaged.
    """
    damaged = 0
    for partial in partials:
        mine = partial == own
        with nullcontext(True) if mine else unused(partial) as free:
            if not free:
                continue
            files = [path for place in places for path in sorted((partial / WORK / place).glob(f"*{ARRAYS}"))]
            left = 0
            for path in files:
                try:
                    check_stamp(path, AGAIN)
                    rows = PartRows(path)
                except DataError:
                    damaged += 1
                    continue
                if rows.model != model:
                    left += 1
                elif path.parent == into:
                    yield rows
                else:
                    yield PartRows(_moved(path, into))
            if not mine and files and not left:
                shutil.rmtree(partial)
        if mine:
            shutil.rmtree(partial / WORK / places[0], ignore_errors=True)
    if damaged:
        warn(f"{damaged:,} parts of earlier runs were damaged; their photographs are encoded again")


def _moved(path: Path, into: Path) -> Path:
    make_folder(into)
    taken = {each.name for each in into.iterdir()}
    number = next(number for number in range(len(taken) + 1) if f"{number:06}{ARRAYS}" not in taken)
    target = into / f"{number:06}{ARRAYS}"
    os.replace(path, target)
    return target


def write_rows(
    folder: Path, photographs: Sequence[PhotoFile], known: KnownRows, advance: Callable[[int], object]
) -> int:
    """Writes `photos.parquet` and `embeddings.npy`, some rows at a time.

    Args:
        folder: exists.
        photographs: N, the rows, all of them known.
        known: has their embeddings.
        advance: called with the number of rows done.

    Returns:
        D.

    Raises:
        DiskFullError: the disk cannot hold them.
    """
    count, width = len(photographs), known.width
    require_space(folder, count * width * 4, "the embeddings")
    layout = {"descr": "<f4", "fortran_order": False, "shape": (count, width)}
    sizes: list[np.ndarray] = []
    with on_disk(folder), (folder / EMBEDDINGS).open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, layout)
        for start in range(0, count, _BLOCK):
            vectors, found = known.gathered(photographs[start : start + _BLOCK])
            stream.write(vectors.astype("<f4", copy=False).tobytes())
            sizes.append(found)
            advance(len(found))
    whole = np.concatenate(sizes)
    files, lengths, changed = zip(*photographs, strict=True)
    columns = {"file": pa.array(files, pa.string())}
    columns |= {"bytes": pa.array(lengths, pa.int64()), "changed": pa.array(changed, pa.int64())}
    columns |= {name: pa.array(whole[:, column]) for column, name in enumerate(("width", "height"))}
    with on_disk(folder):
        pq.write_table(pa.table(columns), folder / PHOTOS, compression="zstd", write_page_checksum=True)
    return width
