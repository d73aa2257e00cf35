"""How much of an object the nearer ones hide, measured on a coarse raster of their solid parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

COLUMNS, ROWS = 128, 96
MAX_HIDDEN = 0.6
"""Most that may be hidden of an object's solid parts."""
Cells = npt.NDArray[np.bool_]

# Parts of an object that hide what is behind them, as x0, y0, x1, y1 in fractions of its box when it
# looks to the left. A kind that is not listed fills its box. One can see between the legs of a table.
SOLID_PARTS: dict[str, tuple[tuple[float, float, float, float], ...]] = {
    "bike": ((0.0, 0.35, 1.0, 1.0),),
    "tree": ((0.0, 0.0, 1.0, 0.72), (0.43, 0.5, 0.57, 1.0)),
    "house": ((0.07, 0.4, 0.93, 1.0), (0.25, 0.1, 0.75, 0.4)),
    "tent": ((0.4, 0.1, 0.6, 0.4), (0.25, 0.4, 0.75, 1.0), (0.05, 0.75, 0.95, 1.0)),
    "flower": ((0.1, 0.0, 0.9, 0.55), (0.1, 0.62, 0.9, 0.86)),
    "table": ((0.0, 0.04, 1.0, 0.28), (0.08, 0.2, 0.14, 1.0), (0.86, 0.2, 0.92, 1.0)),
    "chair": ((0.76, 0.0, 0.94, 1.0), (0.0, 0.52, 0.94, 0.66), (0.06, 0.58, 0.18, 1.0)),
    "balloon": ((0.0, 0.0, 1.0, 0.62),),
    "kite": ((0.15, 0.08, 0.85, 0.5),),
    "umbrella": ((0.0, 0.04, 1.0, 0.5), (0.46, 0.5, 0.54, 1.0)),
    "lamp": ((0.0, 0.0, 1.0, 0.46), (0.35, 0.46, 0.65, 1.0)),
}
_WHOLE_BOX = ((0.0, 0.0, 1.0, 1.0),)


class _Placed(Protocol):
    """What this module needs to know of a placed object."""

    @property
    def kind(self) -> str: ...
    @property
    def box(self) -> tuple[float, float, float, float]: ...
    @property
    def depth(self) -> float: ...
    @property
    def facing(self) -> int: ...


def _solid_cells(item: _Placed) -> Cells:
    """Raster cells that the object's solid parts cover.  # [rows, columns]"""
    cells = np.zeros((ROWS, COLUMNS), dtype=bool)
    x0, y0, x1, y1 = item.box
    for left, top, right, bottom in SOLID_PARTS.get(item.kind, _WHOLE_BOX):
        if item.facing > 0:
            left, right = 1 - right, 1 - left
        columns = slice(round((x0 + left * (x1 - x0)) * COLUMNS), round((x0 + right * (x1 - x0)) * COLUMNS))
        rows = slice(round((y0 + top * (y1 - y0)) * ROWS), round((y0 + bottom * (y1 - y0)) * ROWS))
        cells[rows, columns] = True
    return cells


def hidden_fraction(objects: Sequence[_Placed], in_front: Cells | None = None) -> list[float]:
    """How much of each object is hidden.

    Args:
        objects: of a scene.
        in_front: raster cells that something before all objects hides.  # [ROWS, COLUMNS]

    Returns:
        Fraction of the solid parts of each that nearer objects and `in_front` hide, in 0..1.
    """
    covered = np.zeros((ROWS, COLUMNS), dtype=bool) if in_front is None else in_front.copy()
    fractions = [0.0] * len(objects)
    for index in sorted(range(len(objects)), key=lambda number: objects[number].depth, reverse=True):
        cells = _solid_cells(objects[index])
        fractions[index] = float((cells & covered).sum()) / max(1, int(cells.sum()))
        covered |= cells
    return fractions
