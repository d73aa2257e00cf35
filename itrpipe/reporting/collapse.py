"""Runs that tell nothing apart, in one sentence that says what to do; see `itrpipe.evaluation.collapse`."""

from __future__ import annotations

from collections.abc import Sequence

from itrpipe.evaluation.chance import random_recalls
from itrpipe.evaluation.collapse import MOST, REMEDY, is_alike, share_of_hubs
from itrpipe.reporting.collect import DIRECTIONS, Run
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import FULL

_GIVEN = "see that its embeddings belong to these images and captions"


def why_collapsed(run: Run) -> str:
    """Chance within the interval of its RSum, or few answers to most queries; empty for a run that has not."""
    rsum, chance = run.metrics[FULL]["rsum"], random_recalls(*run.size)["rsum"]
    if rsum["low"] <= chance:
        return f"its RSum of {rsum['value']:.1f} is no better than chance, {chance:.1f}"
    for side, what in zip(DIRECTIONS, ("captions", "images"), strict=True):
        share, items, queries = answered_by_hubs(run, side)
        if is_alike(share, items, queries):
            return f"{MOST} {what} are its first answer to {100 * share:.0f} % of the queries"
    return ""


def answered_by_hubs(run: Run, side: str) -> tuple[float, int, int]:
    """Share of the queries of a direction that hubs answer, 0..1, and how many items and queries there are."""
    queries, (images, captions) = run.rankings[side], run.size
    share = share_of_hubs(each[0] for each in queries.candidates if each)
    return share, *((captions, images) if side == "i2t" else (images, captions))


def said_of_collapsed(series: Sequence[Series[Run]]) -> str:
    """One sentence on the runs of which every seed has collapsed; empty where there are none."""
    found = {each.name: each for each in series if all(map(why_collapsed, each.all))}
    if not found:
        return ""
    given = all(each.first.is_untrained for each in found.values())
    name, first = next(iter(found.items()))
    if len(found) == 1:
        why = f"{name[0].upper()}{name[1:]} has collapsed: {why_collapsed(first.first)}"
        return f"{why}; {_GIVEN if given else REMEDY}."
    return (
        f"{len(found)} of {len(series)} models have collapsed ({'; '.join(found)}): they rank no better than chance or "
        f"answer most queries alike; {_GIVEN if given else REMEDY}."
    )
