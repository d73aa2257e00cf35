"""How far apart embeddings lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from itrpipe.reporting.collect import Run
from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.tables import DASH, Cell, Row, SpannedTable, Table
from itrpipe.storage.artifact import ALIGNMENT

TITLE, ORDER = "Alignment and uniformity", 60
READS = (ALIGNMENT,)
_DISTANCES = {"image_text": "own pair", "text_text": "same image", "images": "images", "texts": "captions"}


def view(source: Source) -> list[tuple[Group, SpannedTable]] | None:
    """Groups in which it was measured."""
    found = [(group, _alignment(group.runs)) for group in source.groups]
    return [(group, table) for group, table in found if table is not None] or None


def _alignment(runs: Sequence[Run]) -> SpannedTable | None:
    shown = [(run, run.figures(ALIGNMENT)) for run in runs if run.figures(ALIGNMENT) is not None]
    if not shown:
        return None
    rows = [
        Row(run.name, [_distance(heading, found[name]) for name, heading in _DISTANCES.items()], run.label)
        for run, found in shown
    ]
    caption = (
        "Mean Euclidean distance of embeddings of length one, 0 to 2, below it its variance. Alignment, the lower the "
        "closer: a caption with its own image, two captions of one image. Uniformity, the higher the further apart: "
        "two images, and the first captions of two images; random directions are 1.41 apart. "
        f"{DASH}: there are no such pairs."
    )
    table = Table("Distances of embeddings", list(_DISTANCES.values()), rows, caption)
    return SpannedTable(table, [("Alignment", 2), ("Uniformity", 2)])


def _distance(heading: str, figures: Mapping[str, float | int | None]) -> Cell:
    if figures["mean"] is None:
        return Cell(heading, DASH)
    return Cell(heading, f"{figures['mean']:.3f}", f"variance {figures['variance']:.4f}")
