"""Recall as people's judgements correct it: what they found to fit counts as right beside the own image or caption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.datasets.decisions import DISPUTED, UNSURE, read_decisions
from itrpipe.datasets.truth import DIFFERS, FITS, PairSet
from itrpipe.evaluation.metrics import COMPARED, SIDES
from itrpipe.evaluation.rankings import rankings
from itrpipe.evaluation.results import Figures, oracle_ranks, with_matches
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.artifact import CORRECTED
from itrpipe.storage.disk import write_json

DEPTH = 10
"""Places of a ranking that the recalls look at."""
_SHOWN = {
    "rsum": "RSum",
    "i2t_r1": "captions R@1",
    "t2i_r1": "images R@1",
    "i2t_map_at_r": "captions mAP@R",
    "t2i_map_at_r": "images mAP@R",
}


def _cells(found: Mapping[str, Any]) -> Cells:
    judged = min(found["judged_percent"].values())
    cells = {}
    for name, title in _SHOWN.items():
        cells[title, "with pairs that fit"] = Number.of(found["corrected"][name])
        if name in COMPARED:  # which no further match can lower
            cells[title, "at most"] = Number.of(found["at_most"][name])
    return {("", f"of the first {DEPTH} places judged, %"): Number(judged), **cells}


SHOWN = (
    Measured(
        "With what people judged",
        CORRECTED,
        _cells,
        "Candidates judged as fitting count as right, like own captions, and unjudged ones as wrong; "
        "at most, all of the latter among the first ten is right, too. The true recall lies between the two; mAP@R "
        "has no such bound.",
        turned=True,
    ),
)


def asks(evaluation: EvaluatedModel) -> bool:
    """Asked where a file of decisions is named."""
    return bool(evaluation.settings.decisions)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> None:
    """Writes corrected.json.

    `corrected` counts what fits as right and all that nobody judged as wrong; `at_most`, of recalls and RSum alone,
    counts as right whatever was not judged among the first ten, too. An interval that knows how much was judged goes
    from the low end of the one to the high end of the other. More matches can only raise a recall; they make R larger,
    so that mAP@R and R-Precision have no such bound. `judged_percent` says how many of these places were judged.

    Raises:
        DataError: the file is damaged, or no pair of this split was judged.
    """
    verdicts = read_decisions(Path(evaluation.settings.decisions).expanduser()).verdicts
    groups = (FITS,), (DIFFERS,), (DISPUTED, UNSURE)
    fits, differs, unsure = (verdicts.pairs(split.image_ids, split.caption_ids, *group) for group in groups)
    unjudged, judged = _first_places(split, fits, differs)
    most = _figures(evaluation, split, fits, unjudged)
    found = {
        "pairs": {"fits": len(fits), "differs": len(differs), "unsure or disputed": len(unsure)},
        "judged_percent": judged,
        "corrected": _figures(evaluation, split, fits),
        "at_most": {name: most[name] for name in COMPARED},
    }
    write_json(evaluation.folder / CORRECTED, found)


def _first_places(split: SplitScores, *known: PairSet) -> tuple[PairSet, dict[str, float]]:
    """The pairs among the first places of both directions that nobody judged, and the percent of places that were.

    Own pairs need no judgement.
    """
    depth, ids = min(DEPTH, *split.matrix.shape), (split.image_ids.tolist(), split.caption_ids.tolist())
    found, judged = [], {}
    for side, (indices, _) in zip(SIDES, rankings(split.matrix, depth, *ids), strict=True):
        queries = np.broadcast_to(np.arange(len(indices))[:, None], indices.shape)
        images, captions = (queries, indices) if side == SIDES[0] else (indices, queries)
        others = split.caption_image[captions] != images
        told = np.any([pairs.has(captions, images) for pairs in known], axis=0)
        judged[side] = round(100 * float((told & others).sum() / max(1, others.sum())), 3)
        found.append([each[others & ~told] for each in (captions, images)])
    captions, images = map(np.concatenate, zip(*found, strict=True))
    return PairSet.of(captions, images, len(split.image_ids)), judged


def _figures(evaluation: EvaluatedModel, split: SplitScores, *added: PairSet) -> Figures:
    """Every metric with all correct matches counted: the own ones and those added."""
    captions = np.concatenate([np.arange(len(split.caption_ids)), *(each.caption_rows for each in added)])
    images = np.concatenate([split.caption_image, *(each.image_rows for each in added)])
    matches = PairSet.of(captions, images, len(split.image_ids))
    ranks, pairs = oracle_ranks(split, matches), (matches.image_rows, matches.caption_rows)
    settings = evaluation.settings
    options = settings.bootstrap_samples, settings.interval_level
    return with_matches(split.matrix, split.caption_image, ranks, pairs, *options)
