"""Embeddings where they lie: read some rows at a time, so that mining needs no more memory for more of them.

What is searched are the embeddings of a training set and, behind them, further candidates from a file that the user
names: embeddings of images or captions that belong to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from itrpipe.errors import DataError, UsageError
from itrpipe.features.embeddings import Side
from itrpipe.features.given import open_side
from itrpipe.storage.arrays import Rows, open_arrays
from itrpipe.storage.disk import reading
from itrpipe.storage.parts import ArrayFile, array_writer

LARGEST_ROW = 2**32 - 2
"""Of either side: keys have 32 bits for it."""
_LARGEST_SCORE = 3.38e38
"""Of bfloat16 and float32."""
_OWNERS_AT_ONCE = 1 << 20
_SIDES: dict[str, Side] = {"caption_id": "caption", "texts": "caption", "captions": "caption"}
_SIDES |= {"image_id": "image", "images": "image", "caption": "caption", "image": "image"}
_VECTOR = "embedding"
_FORMS = (
    "give a Parquet file, or a folder of them, with the columns image_id or caption_id and embedding; or images.npy or "
    "captions.npy with the ids in images.ids.json or captions.ids.json beside it; or an HDF5 file with image_id and "
    "images, or caption_id and texts"
)


@dataclass(frozen=True)
class HeldRows:
    """Rows that are in memory anyway."""

    array: np.ndarray

    @property
    def dtype(self) -> np.dtype:
        """Type of a number."""
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""
        return self.array.shape

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop."""
        return self.array[start:stop]


@dataclass(frozen=True)
class JoinedRows:
    """The rows of several, one behind the other."""

    parts: Sequence[Rows]

    @property
    def dtype(self) -> np.dtype:
        """Type of a number."""
        return self.parts[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop."""
        found = []
        for part in self.parts:
            found.append(part.read(max(0, start), max(0, stop)))
            start, stop = start - part.shape[0], stop - part.shape[0]
        return np.concatenate(found)


def slices(count: int, at_once: int) -> list[slice]:
    """Slices that cover so many rows."""
    return [slice(start, min(start + at_once, count)) for start in range(0, count, at_once)]


def rows_at_once(values: Rows, bytes_at_once: int = 1 << 24) -> int:
    """How many rows a slice of about so many bytes holds."""
    return max(1, bytes_at_once // (4 * max(1, int(np.prod(values.shape[1:], dtype=np.int64)))))


@dataclass
class Searched:
    """Both sides of a search by inner product, read once to see whether it can be.

    Attributes:
        sides: [N, D] one vector per image, and [T, D] one per caption.
        owners: [T] row of the image that each caption belongs to, -1 for none; these pairs are never candidates.
        widths: captions wanted per image, and images per caption.
        first: how many images and captions get lists, the others being candidates alone; None for all.
        largest_own: captions of one image, at most.

    Raises:
        DataError: the arrays do not fit each other; or a vector holds NaN or infinity, or vectors are so long that a
            score can leave the range of float32.
        UsageError: fewer candidates exist than were asked for, or more rows than keys can tell apart.
    """

    sides: tuple[Rows, Rows]
    owners: Rows
    widths: tuple[int, int]
    first: tuple[int, int] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """N and T."""
        return self.sides[0].shape[0], self.sides[1].shape[0]

    @property
    def anchors(self) -> tuple[int, int]:
        """Images and captions that get lists."""
        return self.first or self.counts

    def __post_init__(self) -> None:
        (images, texts), (num_images, num_texts) = self.sides, self.counts
        if images.shape[1] != texts.shape[1] or self.owners.shape[0] != num_texts:
            raise DataError(
                f"embeddings of images {images.shape}, of captions {texts.shape} and {self.owners.shape[0]} caption "
                "rows do not fit each other: embed both sides with one model, each caption with its row"
            )
        if max(self.counts) > LARGEST_ROW:
            raise UsageError(f"more than {LARGEST_ROW:,} rows of one side cannot be mined: leave some out")
        own = np.zeros(num_images, dtype=np.int64)
        for part in slices(num_texts, _OWNERS_AT_ONCE):
            rows = self.owners.read(part.start, part.stop)
            if rows.min() < -1 or rows.max() >= num_images:
                raise DataError(
                    f"captions name image rows {rows.min()}..{rows.max()}, but {num_images} images are embedded: "
                    "encode the whole split"
                )
            own += np.bincount(rows[rows >= 0], minlength=num_images)
        self.largest_own = int(own.max())
        available = num_texts - self.largest_own, num_images - 1
        for name, wanted, most in zip(
            ("captions per image", "images per caption"), self.widths, available, strict=True
        ):
            if not 1 <= wanted <= most:
                raise UsageError(f"{wanted} {name} were asked for, but {most} candidates exist: ask for 1..{most}")
        lengths = _longest("image", images), _longest("caption", texts)
        if not lengths[0] * lengths[1] < _LARGEST_SCORE:
            raise DataError(
                f"scores are NaN or infinite: the longest vectors have norms {lengths[0]:g} and {lengths[1]:g}; "
                "normalise the embeddings"
            )


def _longest(name: str, values: Rows) -> float:
    """The largest norm of the vectors of one side."""
    bad, longest = 0, 0.0
    for part in slices(values.shape[0], rows_at_once(values)):
        vectors = np.asarray(values.read(part.start, part.stop), dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
        if not np.isfinite(norms).all():
            bad += int((~np.isfinite(vectors).all(axis=1)).sum())
        longest = max(longest, float(norms.max()))
    if bad:
        raise DataError(f"{bad} of {values.shape[0]} {name} embeddings hold NaN or infinity: embed or train again")
    return longest


@dataclass(frozen=True)
class Corpus:
    """Further candidates of one side.

    Attributes:
        side: of which they are.
        ids: M strings.
        rows: [M, D] float32.
    """

    side: Side
    ids: list[str]
    rows: Rows


def open_corpus(path: Path, copy: Path, *, unit: bool = False) -> Corpus:
    """Reads further candidates.

    Args:
        path: what the user named.
        copy: file for the vectors.
        unit: make them unit vectors where they are not.

    Raises:
        DataError: it is of no known form, or damaged.
    """
    with reading(f"--candidates {path}", "embeddings", _FORMS):
        names = [*open_arrays(path, "embeddings", _FORMS), path.stem]
        side: Side | None = next((side for name, side in _SIDES.items() if name in names), None)
        if side is None:
            raise ValueError(f"neither its name nor {', '.join(filter(None, names[:-1]))} in it say of what they are")
        found = open_side(path, side, "")
        if found.numbered:
            raise ValueError("it has no ids")
        with array_writer(copy, {_VECTOR: ("<f4", found.vectors.shape)}) as writer:
            for start, vectors, _ in found.read(unit=unit):
                writer.write(_VECTOR, start, vectors)
    return Corpus(found.side, found.ids.to_pylist(), ArrayFile(copy)[_VECTOR])
