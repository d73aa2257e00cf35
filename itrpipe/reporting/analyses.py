"""Tables of what every run was measured by beside recall: precision over all matches, alignment, length of captions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from itrpipe.evaluation.rsum import CUTOFFS
from itrpipe.reporting.collect import DIRECTIONS, Run
from itrpipe.reporting.tables import DASH, ORACLE, Cell, Row, Table

PRECISION = {"map_at_r": "mAP@R", "r_precision": "R-P"}
RECALLS = {f"r{k}": f"R@{k}" for k in CUTOFFS}
_DISTANCES = {"image_text": "own pair", "text_text": "same image", "images": "images", "texts": "captions"}


@dataclass(frozen=True)
class SpannedTable:
    """A table whose columns stand in groups.

    Attributes:
        table: the numbers.
        spans: headings of the groups, each with its number of columns.
    """

    table: Table
    spans: list[tuple[str, int]]


@dataclass(frozen=True)
class Analyses:
    """Of the runs on one test set.

    Attributes:
        precision: where all true matches are known, and with the matches of ECCV Caption and CxC; often empty.
        alignment: of models with embeddings that compare by inner product; None without such a run.
        query_length: recall by the length of captions; None where no evaluation measured it.
    """

    precision: list[SpannedTable]
    alignment: SpannedTable | None
    query_length: SpannedTable | None


def analyses_of(runs: Sequence[Run]) -> Analyses:
    """The tables of the runs on one test set."""
    measured = [
        _by_direction(runs, _oracle_precision, PRECISION, "All true matches gathered", _ORACLE_CAPTION),
        _by_direction(runs, _part("eccv_caption"), PRECISION | {"r1": "R@1"}, "ECCV Caption", _ECCV_CAPTION),
        _by_direction(runs, _part("cxc"), RECALLS, "CxC", _CXC_CAPTION),
    ]
    return Analyses([table for table in measured if table], _alignment(runs), _query_length(runs))


_MEANINGS = (
    "Of the R true matches of a query, R-P (R-Precision) is the share among its first R candidates; mAP@R also counts "
    "in which of these R places they stand. In percent, mean over queries."
)
_ORACLE_CAPTION = f"{_MEANINGS} Recall looks at the best match alone. Below each number its bootstrap interval."
_ECCV_CAPTION = (
    f"{_MEANINGS} With the matches that people found for 1,261 images and 1,332 captions of the 5K test split of COCO "
    "(Chun et al., ECCV 2022)."
)
_CXC_CAPTION = "Recall in percent with the matches of Crisscrossed Captions on the 5K test split of COCO."


def _oracle_precision(run: Run) -> Mapping[str, Any] | None:
    found = run.metrics.get(ORACLE, {})
    return found if f"i2t_{next(iter(PRECISION))}" in found else None


def _part(name: str) -> Callable[[Run], Mapping[str, Any] | None]:
    return lambda run: None if run.eccv_caption is None else run.eccv_caption[name]


def _by_direction(
    runs: Sequence[Run],
    figures: Callable[[Run], Mapping[str, Any] | None],
    columns: Mapping[str, str],
    title: str,
    caption: str,
) -> SpannedTable | None:
    """One row for each run that has figures, with the same columns for both directions."""
    shown = [(run, found) for run in runs if (found := figures(run)) is not None]
    if not shown:
        return None
    rows = [
        Row(
            run.name,
            [
                _percent(f"{side[0]}→{side[2]} {heading}", found[f"{side}_{name}"])
                for side in DIRECTIONS
                for name, heading in columns.items()
            ],
            run.label,
        )
        for run, found in shown
    ]
    table = Table(title, list(columns.values()) * len(DIRECTIONS), rows, caption)
    return SpannedTable(table, [(direction, len(columns)) for direction in DIRECTIONS.values()])


def _percent(heading: str, value: float | Mapping[str, float]) -> Cell:
    if isinstance(value, Mapping):
        return Cell(heading, f"{value['value']:.1f}", f"{value['low']:.1f}{DASH}{value['high']:.1f}")
    return Cell(heading, f"{value:.1f}")


def _alignment(runs: Sequence[Run]) -> SpannedTable | None:
    shown = [(run, run.alignment) for run in runs if run.alignment is not None]
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


def _query_length(runs: Sequence[Run]) -> SpannedTable | None:
    shown = [(run, run.query_length) for run in runs if run.query_length is not None]
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
