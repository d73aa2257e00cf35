"""Recall by how many words a caption has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from itrpipe.evaluation.rsum import CUTOFFS
from itrpipe.reporting.collect import Run
from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.tables import DASH, Cell, Row, SpannedTable, Table
from itrpipe.storage.artifact import QUERY_LENGTH

TITLE, ORDER = "Length of captions", 70
READS = (QUERY_LENGTH,)


def view(source: Source) -> list[tuple[Group, SpannedTable]] | None:
    """Groups in which it was measured."""
    found = [(group, _query_length(group.runs)) for group in source.groups]
    return [(group, table) for group, table in found if table is not None] or None


def _query_length(runs: Sequence[Run]) -> SpannedTable | None:
    shown = [(run, run.figures(QUERY_LENGTH)) for run in runs if run.figures(QUERY_LENGTH) is not None]
    if not shown:
        return None
    columns = [f"{_words(bucket)} ({bucket['captions']:,})" for bucket in shown[0][1]]
    rows = [
        Row(run.name, [_recalls(heading, bucket) for heading, bucket in zip(columns, found, strict=True)], run.label)
        for run, found in shown
    ]
    caption = (
        "Recall of images for captions by how many words these have, in percent: R@1, below it R@5 and R@10. In "
        f"brackets the number of captions; few say little. {DASH}: there are none."
    )
    return SpannedTable(
        Table("Recall by the length of captions", columns, rows, caption), [("Words of a caption", len(columns))]
    )


def _words(bucket: Mapping[str, Any]) -> str:
    if bucket["to"] is None:
        return f"from {bucket['from']}"
    return f"up to {bucket['to']}" if bucket["from"] == 1 else f"{bucket['from']} to {bucket['to']}"


def _recalls(heading: str, bucket: Mapping[str, Any]) -> Cell:
    first, *rest = (bucket[f"t2i_r{k}"] for k in CUTOFFS)
    if first is None:
        return Cell(heading, DASH)
    return Cell(heading, f"{first:.1f}", ", ".join(f"{value:.1f}" for value in rest))
