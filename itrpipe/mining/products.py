"""Products of embeddings in low precision, how far they can be off, and which of them reach a threshold.

A bfloat16 product costs a quarter of a float32 one. With x' and y' the rounded vectors,

    |x.y - x'.y'| <= |x - x'| |y'| + |x| |y - y'|        (Cauchy-Schwarz)

and adding up D products in float32 is off by at most D * 2^-23 |x||y|. The norms of the rounding residuals are
measured rather than bounded by half a unit in the last place, which makes the bound about 2.5 times tighter.
Rounding the finished sum to bfloat16 costs nothing: rounding keeps the order, so a sum that reaches a threshold
still reaches the rounded threshold.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from itrpipe.engine.work import AGAIN, has_bfloat16_units
from itrpipe.errors import DataError
from itrpipe.mining.threads import one_thread
from itrpipe.mining.vectors import Rows, rows_at_once, slices, take
from itrpipe.storage.disk import check_stamp
from itrpipe.storage.parts import ArrayFile, ArrayWriter, array_writer

Precision = Literal["fp32", "bf16", "bf16+fp32", "fp32+fp32"]
"""How embeddings are compared: exactly; rounded to bfloat16 and added up in float32; or, where there are two, rounded
or not to find the candidates that may belong to a list, which are then scored in float32, each by itself."""
_IN_TWO_STEPS = ("bf16+fp32", "fp32+fp32")

_NORM_ROWS = 1 << 20
_SELECT_ROWS = 64
_GATHERED_PAIRS = 1 << 18
_SMALLEST = 1e-30


@dataclass(frozen=True)
class SideNorms:
    """What bounds the rounding of the vectors of one side.

    Attributes:
        values: [A, 2] float32: Euclidean norm of every vector, and of what rounding it to bfloat16 takes away.
        largest: of the norms.
    """

    values: Rows
    largest: float

    def read(self, start: int, stop: int) -> np.ndarray:
        """Those of consecutive rows."""
        return self.values.read(start, stop)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Those of some rows."""
        return take(self.values, rows)


@dataclass(frozen=True)
class Norms:
    """What bounds the rounding of both sides."""

    images: SideNorms
    texts: SideNorms


def measured_norms(images: Rows, texts: Rows, path: Path) -> Norms:
    """Measures both sides, a slice at a time, unless that was done before.

    Args:
        images: [N, D].
        texts: [T, D].
        path: of the file of arrays that keeps them.

    Raises:
        DataError: a vector holds NaN or infinity, or vectors are so long that a product of two can leave the range of
            float32; or the file is damaged.
    """
    sides = {"image": images, "caption": texts}
    if not path.exists():
        arrays = {name: ("<f4", (values.shape[0], 2)) for name, values in sides.items()}
        with array_writer(path, arrays) as writer:
            for name, values in sides.items():
                _measure(name, values, writer)
    check_stamp(path, AGAIN)
    found = ArrayFile(path)
    image, caption = (SideNorms(found[name], _largest(found[name])) for name in sides)
    if not image.largest * caption.largest < torch.finfo(torch.bfloat16).max:
        raise DataError(
            f"scores are NaN or infinite: the longest vectors have norms {image.largest:g} and {caption.largest:g}; "
            "normalise the embeddings"
        )
    return Norms(image, caption)


def _measure(name: str, values: Rows, writer: ArrayWriter) -> None:
    bad = 0
    for part in slices(values.shape[0], rows_at_once(values)):
        vectors = torch.from_numpy(np.ascontiguousarray(values.read(part.start, part.stop), dtype=np.float32))
        norms = torch.linalg.vector_norm(vectors, dim=1)
        lost = torch.linalg.vector_norm(vectors - vectors.bfloat16().float(), dim=1)
        if not bool(norms.isfinite().all()):
            bad += int((~vectors.isfinite().all(dim=1)).sum())
        writer.write(name, part.start, torch.stack([norms, lost], dim=1).numpy())
    if bad:
        raise DataError(f"{bad} of {values.shape[0]} {name} embeddings hold NaN or infinity: embed or train again")


def _largest(values: Rows) -> float:
    parts = slices(values.shape[0], _NORM_ROWS)
    return max(float(values.read(part.start, part.stop)[:, 0].max()) for part in parts)


@dataclass(frozen=True)
class Embeddings:
    """Some vectors of one side, images or captions, and the norms that bound their rounding.

    Attributes:
        vectors: [A, D] float32 on the device.
        norms: [A] Euclidean norm of every vector.
        residuals: [A] norm of what rounding a vector to bfloat16 takes away.
    """

    vectors: Tensor
    norms: Tensor
    residuals: Tensor

    @classmethod
    def of(cls, vectors: np.ndarray, norms: np.ndarray, device: torch.device | str) -> Embeddings:
        """Puts vectors [A, D] with their norms [A, 2] on the device; on the CPU float32 arrays are not copied."""
        placed = torch.as_tensor(np.ascontiguousarray(vectors, dtype=np.float32), device=device)
        measured = torch.as_tensor(norms, dtype=torch.float32, device=device)
        return cls(placed, measured[:, 0], measured[:, 1])


def in_two_steps(precision: Precision) -> bool:
    """Whether the products only find what is scored afterwards; the lists are then the same for both."""
    return precision in _IN_TWO_STEPS


def faster_in_two_steps(device: torch.device) -> Precision:
    """The one of these that this machine is faster with."""
    return "bf16+fp32" if has_bfloat16_units(device.type) else "fp32+fp32"


def score_dtype(precision: Precision, device: torch.device) -> torch.dtype:
    """Type in which products are kept: the processor writes bfloat16 ones twice as fast as float32 ones."""
    return torch.bfloat16 if precision == "bf16+fp32" and device.type == "cpu" else torch.float32


def rounded(vectors: Tensor, precision: Precision) -> Tensor:
    """Vectors as `multiply` takes them.

    "bf16" on the CPU keeps the rounded vectors in float32, see `multiply`.
    """
    if precision in ("fp32", "fp32+fp32"):
        return vectors
    brain = vectors.bfloat16()
    return brain.float() if precision == "bf16" and not brain.is_cuda else brain


def multiply(texts: Tensor, images: Tensor, precision: Precision, out: Tensor) -> None:
    """Writes the inner products [t, b] of vectors [t, D] and [b, D] from `rounded` to `out`.

    "bf16" scores are kept in float32: with the 8 bits of bfloat16 most neighbours in a list would tie. CUDA
    multiplies bfloat16 into float32; the CPU cannot, but multiplies float32 through the processor's bfloat16
    units where it is allowed to, which loses nothing on vectors that are already rounded.
    """
    if images.is_cuda and images.dtype == torch.bfloat16:
        out.copy_(torch.mm(texts, images.T, out_dtype=torch.float32))
        return
    with _float32_products("medium" if precision == "bf16" else "highest"):
        torch.mm(texts, images.T, out=out)


@contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def error_bounds(anchors: Embeddings, others: Embeddings, precision: Precision) -> Tensor:
    """How far the product of each anchor with any of the others can lie from the score that ranks them.

    Args:
        anchors, others: both sides.
        precision: those in two steps rank by other scores than their products.

    Returns:
        [a] float32, 0 where products are the scores.
    """
    norms, residuals = anchors.norms, anchors.residuals
    if not in_two_steps(precision):
        return torch.zeros_like(norms)
    other_norm, other_residual = others.norms.max(), others.residuals.max()
    if precision == "fp32+fp32":
        residuals, other_residual = torch.zeros_like(residuals), torch.zeros_like(other_residual)
    # Products added up in bfloat16 units round twice per term; the float32 score itself rounds once.
    adding_up = 1.5 * anchors.vectors.shape[1] * 2.0**-23
    bound = residuals * (other_norm + other_residual) + norms * (other_residual + adding_up * other_norm)
    return bound * (1 + 1e-5) + _SMALLEST


@one_thread()
def reaching(scores: Tensor, row_threshold: Tensor, column_threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the scores that reach the threshold of their row or of their column.

    Scores of minus infinity reach nothing.

    Args:
        scores: [r, c] float32, or bfloat16 on the CPU.
        row_threshold: [r] float32, minus infinity where every score counts.
        column_threshold: [c] float32.

    Returns:
        Rows and columns, int64, row after row and columns rising.
    """
    lowest = torch.finfo(scores.dtype).min
    by_row, by_column = (limit.clamp(min=lowest).to(scores.dtype) for limit in (row_threshold, column_threshold))
    if scores.is_cuda:
        row, column = ((scores >= by_row[:, None]) | (scores >= by_column)).nonzero(as_tuple=True)
        return row, column
    comparable, rows, columns = scores, by_row, by_column
    if scores.dtype == torch.bfloat16:
        comparable, rows, columns = _as_integers(scores, by_row, by_column)
    return _nonzero(comparable.numpy(), rows.numpy(), columns.numpy())


def _as_integers(scores: Tensor, *thresholds: Tensor) -> tuple[Tensor, ...]:
    """Integers that compare as bfloat16 scores with thresholds do; numpy compares them with vector instructions.

    The bits of numbers from zero on are in order as they are, and above those of all negative numbers. A threshold
    of zero becomes minus zero, which minus zero reaches too.
    """
    signed = [torch.where(limit == 0, -0.0, limit).view(torch.int16) for limit in thresholds]
    if all(bool((limit > 0).all()) for limit in signed):
        return (scores.view(torch.int16), *signed)
    return tuple(ordered_bits(bits) for bits in (scores.view(torch.int16), *signed))


def ordered_bits(bits: Tensor) -> Tensor:
    """The 16 bits of bfloat16 numbers as integers in the order of the numbers, minus zero below zero."""
    return bits ^ ((bits >> 15) & 0x7FFF)


def _nonzero(scores: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> tuple[Tensor, Tensor]:
    found = []
    width = scores.shape[1]
    for start in range(0, len(scores), _SELECT_ROWS):  # few enough rows to stay in the cache
        part = scores[start : start + _SELECT_ROWS]
        reached = part >= columns
        reached |= part >= rows[start : start + _SELECT_ROWS, None]
        found.append(np.flatnonzero(reached) + start * width)
    places = torch.from_numpy(np.concatenate(found))
    row = places // width
    return row, places - row * width


def pair_scores(left: Tensor, right: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Inner products of chosen pairs in float32; each depends on its two vectors alone, not on the other pairs.

    Args:
        left: [a, D] float32.
        right: [o, D] float32.
        rows: [P] rows of `left`, ascending.
        columns: [P] rows of `right`.

    Returns:
        [P] float32.
    """
    if left.is_cuda:
        pieces = zip(rows.split(_GATHERED_PAIRS), columns.split(_GATHERED_PAIRS), strict=True)
        return torch.cat([(left[row] * right[column]).sum(dim=1) for row, column in pieces])
    offsets = torch.zeros(len(left) + 1, dtype=torch.int64)
    torch.cumsum(rows.bincount(minlength=len(left)), dim=0, out=offsets[1:])
    # A product that is computed only where a sparse matrix has places: no vector is copied.
    with warnings.catch_warnings(), torch.sparse.check_sparse_tensor_invariants(False):
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        size = (len(left), len(right))
        wanted = torch.sparse_csr_tensor(offsets, columns, torch.zeros(len(rows)), size=size)
        return torch.sparse.sampled_addmm(wanted, left, right.T, beta=0.0).values()
