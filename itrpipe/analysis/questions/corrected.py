"""Recall as people's judgements correct it: what they found to fit counts as right beside the own image or caption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.datasets.decisions import DISPUTED, UNSURE, read_decisions
from itrpipe.datasets.truth import Decided, PairSet, pair_set
from itrpipe.evaluation.metrics import COMPARED, ranks_of_matches
from itrpipe.evaluation.rankings import rankings
from itrpipe.evaluation.results import Figures, with_matches
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.artifact import CORRECTED

DEPTH = 10
"""Places of a ranking that the recalls look at."""
_SHOWN = {
    "rsum": "RSum",
    "i2t_r1": "captions R@1",
    "t2i_r1": "images R@1",
    "i2t_map_at_r": "captions mAP@R",
    "t2i_map_at_r": "images mAP@R",
}


def _cells(found: Any) -> Cells:
    judged = min(found["judged_percent"].values())
    cells: dict[tuple[str, str], Number | None] = {("", f"of the first {DEPTH} places judged, %"): Number(judged)}
    for name, title in _SHOWN.items():
        cells[title, "with pairs that fit"] = Number.of(found["corrected"][name])
        if name in COMPARED:  # which no further match can lower
            cells[title, "at most"] = Number.of(found["at_most"][name])
    return cells


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


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure recall with the decisions of a file, where one is named.

    `corrected` counts what fits as right and all that nobody judged as wrong; `at_most`, of recalls and RSum alone,
    counts as right whatever was not judged among the first ten, too. An interval that knows how much was judged goes
    from the low end of the one to the high end of the other. More matches can only raise a recall; they make R larger,
    so that mAP@R and R-Precision have no such bound. `judged_percent` says how many of these places were judged.

    Raises:
        DataError: the file is damaged, or no pair of this split was judged.
    """
    if not evaluation.settings.decisions:
        return None
    verdicts = read_decisions(Path(evaluation.settings.decisions).expanduser()).verdicts
    ids = split.image_ids, split.caption_ids
    decided = Decided.of(verdicts, *ids)
    fits, differs = decided.fits, decided.differs
    unsure = pair_set([pair for pair, verdict in verdicts.items() if verdict in (DISPUTED, UNSURE)], *ids)
    unjudged, judged = _first_places(split, fits, differs)
    at_most = _figures(evaluation, split, fits, unjudged)
    return {
        "pairs": {"fits": len(fits), "differs": len(differs), "unsure or disputed": len(unsure)},
        "judged_percent": judged,
        "corrected": _figures(evaluation, split, fits),
        "at_most": {name: at_most[name] for name in COMPARED},
    }


def _first_places(split: SplitScores, fits: PairSet, differs: PairSet) -> tuple[PairSet, dict[str, float]]:
    """Return the pairs among the first places of both directions that nobody judged, and the percent that were.

    Own pairs need no judgement.
    """
    depth = min(DEPTH, *split.matrix.shape)
    best_captions, best_images = rankings(split.matrix, depth, split.image_ids.tolist(), split.caption_ids.tolist())
    captions, _ = best_captions
    images, _ = best_images
    pairs = {
        "i2t": (captions.ravel(), np.repeat(np.arange(len(captions)), depth)),
        "t2i": (np.repeat(np.arange(len(images)), depth), images.ravel()),
    }
    unjudged, judged = [], {}
    for side, (captions, images) in pairs.items():
        others = split.caption_image[captions] != images
        told = fits.has(captions, images) | differs.has(captions, images)
        judged[side] = round(100 * float((told & others).sum() / max(1, others.sum())), 3)
        unjudged.append(np.stack([captions, images])[:, others & ~told])
    captions, images = np.concatenate(unjudged, axis=1)
    return PairSet.of(captions, images, len(split.image_ids)), judged


def _figures(evaluation: EvaluatedModel, split: SplitScores, *added: PairSet) -> Figures:
    """Return every metric with all correct matches counted: the own ones and those added."""
    captions = [np.arange(len(split.caption_ids)), *(pairs.caption_rows for pairs in added)]
    images = [split.caption_image, *(pairs.image_rows for pairs in added)]
    matches = PairSet.of(np.concatenate(captions), np.concatenate(images), len(split.image_ids))
    pairs = matches.image_rows, matches.caption_rows
    ranks = ranks_of_matches(split.matrix, *pairs)
    return with_matches(split.matrix, split.caption_image, ranks, pairs, *evaluation.sampling)
