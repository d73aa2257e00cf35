"""Single numbers of a run that sections compare; None where nobody measured one."""

from __future__ import annotations

from typing import Any

from itrpipe.datasets.definition import EMBEDDED
from itrpipe.reporting.collect import Run
from itrpipe.reporting.tables import FULL, ORACLE


def rsum(run: Run) -> float:
    """Own image or caption right."""
    return run.metrics[FULL]["rsum"]["value"]


def oracle_rsum(run: Run) -> float | None:
    """The same with every true match counted as right."""
    return run.metrics[ORACLE]["rsum"]["value"] if ORACLE in run.metrics else None


def map_at_r(side: str, run: Run) -> float | None:
    """mAP@R of one direction, `i2t` or `t2i`, with every true match counted as right, in percent.

    Recall looks at the first true match, mAP@R at all of them (ECCV Caption).
    """
    return run.metrics[ORACLE][f"{side}_map_at_r"]["value"] if ORACLE in run.metrics else None


def told_from_edits(benchmarks: Any) -> float | None:
    """Percent of the embedded dataset's hard negatives, edited captions, that score below their caption.

    Args:
        benchmarks: what the evaluation wrote of all benchmarks; None where nobody asked.
    """
    found = (benchmarks or {}).get(EMBEDDED)
    return None if found is None or found["accuracy"] is None else found["accuracy"]["value"]
