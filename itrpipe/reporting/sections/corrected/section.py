"""Recall as it is measured, and as it is where pairs that people found to fit count as right."""

from __future__ import annotations

from collections.abc import Sequence

from itrpipe.reporting.asked import Asked, Figures, asked_tables
from itrpipe.reporting.collect import Run
from itrpipe.reporting.groups import Group
from itrpipe.reporting.sections.base import Source
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import FULL, SpannedTable
from itrpipe.storage.artifact import CORRECTED

TITLE, ORDER = "Corrected", 27
READS = (CORRECTED,)
DECISIONS = "decisions"
"""Source of an evaluation: digest of the judgements that it read."""
_METRICS = {
    "rsum": "RSum",
    "i2t_r1": "Captions found first (R@1)",
    "t2i_r1": "Images found first (R@1)",
    "i2t_map_at_r": "mAP@R of captions",
    "t2i_map_at_r": "mAP@R of images",
}
_PLAIN, _CORRECTED, _MOST = "", "corrected", "at_most"
_COUNTED = {_PLAIN: "own pairs alone", _CORRECTED: "with pairs that fit", _MOST: "at most"}
_CAPTION = (
    "With pairs that fit, what people judged to fit counts as right beside an image's own captions, and what nobody "
    "judged as wrong; at most, all of the latter among the first ten is right, too. The true recall lies between the "
    "two; mAP@R has no such bound, and is the value under the judgements that there are."
)
Question = tuple[str, str]
"""A metric and what counts as right."""


def view(source: Source) -> list[tuple[Group, list[SpannedTable]]] | None:
    """Groups with a run that was evaluated with judgements."""
    found = [(group, corrected_tables(group.series)) for group in source.groups]
    return [(group, tables) for group, tables in found if tables] or None


def corrected_tables(series: Sequence[Series[Run]]) -> list[SpannedTable]:
    """For every metric what is measured, what is corrected and what recall can be at most; a column for each method.

    Args:
        series: of all runs on one test set.
    """
    return asked_tables(Asked("With what people judged", _CAPTION, _figures, _row, _note, _order), series)


def _figures(run: Run) -> Figures:
    found = run.figures(CORRECTED)
    if found is None:
        return {}
    by = {_PLAIN: run.metrics[FULL], _CORRECTED: found[_CORRECTED], _MOST: found[_MOST]}
    return {(metric, name): own[metric] for metric in _METRICS for name, own in by.items() if metric in own}


def _row(question: Question) -> str:
    return f"{_METRICS[question[0]]}, {_COUNTED[question[1]]}"


def _order(question: Question) -> tuple[int, int]:
    return [*_METRICS].index(question[0]), [*_COUNTED].index(question[1])


def _note(question: Question, runs: Sequence[Run]) -> str:
    """How much was judged, and whether all runs read the same judgements."""
    if question[1] != _CORRECTED:
        return ""
    side = 1 if question[0].startswith("t2i") else 0
    judged = [list(run.figures(CORRECTED)["judged_percent"].values())[side] for run in runs]
    alike = len({run.manifest.sources.get(DECISIONS) for run in runs}) == 1
    low, high = f"{min(judged):.0f}", f"{max(judged):.0f}"
    shown = low if low == high else f"{low} to {high}"
    return f"{shown} % of the first ten judged{'' if alike else ', not the same judgements for all runs'}"
