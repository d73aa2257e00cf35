"""Runs that tell nothing apart, in one sentence that says what to do; see `itrpipe.evaluation.collapse`."""

from __future__ import annotations

from collections.abc import Sequence

from itrpipe.evaluation.collapse import MOST, REMEDY, is_alike, share_of_hubs
from itrpipe.evaluation.metrics import random_recalls
from itrpipe.report.runs import DIRECTIONS, FULL, Run
from itrpipe.report.series import Series

_GIVEN = "see that the embeddings belong to these images and captions"
_NAMED = 3
"""Models that have collapsed which the sentence names."""


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


def said_of_collapsed(series: Sequence[Series]) -> str:
    """One sentence on the runs of which every seed has collapsed; empty where there are none."""
    found = {each.name: each for each in series if all(map(why_collapsed, each.all))}
    if not found:
        return ""
    names, first = list(found), next(iter(found.values())).first
    why, who = why_collapsed(first), f"{names[0][0].upper()}{names[0][1:]} has"
    if len(names) > 1:
        listed = "; ".join([*names[:_NAMED], *([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else [])])
        who = f"{len(names)} of {len(series)} models ({listed}) have" if len(names) < len(series) else "All models have"
        why = "they rank no better than chance or answer most queries alike"
    remedy = _GIVEN if all(each.first.is_untrained for each in found.values()) else REMEDY
    return f"{who} collapsed: {why}; {remedy}."
