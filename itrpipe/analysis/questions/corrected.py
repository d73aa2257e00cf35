"""Recall as people's judgements correct it: what they found to fit counts as right beside the own image or caption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.evaluation.metrics import CUTOFFS
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.storage.artifact import CORRECTED
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.datasets.truth import PairSet
    from itrpipe.features.embeddings import SplitScores
    from itrpipe.review.decisions import Verdicts

DEPTH = 10
"""Places of a ranking that the recalls look at."""
BOUNDED = (*(f"{side}_r{k}" for side in ("i2t", "t2i") for k in CUTOFFS), "rsum")
"""Metrics that no further match can lower."""
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
        if name in BOUNDED:
            cells[title, "at most"] = Number.of(found["at_most"][name])
    return {("", f"of the first {DEPTH} places judged, %"): Number(judged), **cells}


SHOWN = (
    Measured(
        "With what people judged",
        CORRECTED,
        _cells,
        "What people judged to fit counts as right beside an image's own captions, and what nobody judged as wrong; "
        "at most, all of the latter among the first ten is right, too. The true recall lies between the two; mAP@R "
        "has no such bound.",
        turned=True,
    ),
)


def asks(evaluation: Evaluation) -> bool:
    """Where a file of decisions is named."""
    return bool(evaluation.settings.decisions)


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes corrected.json.

    `corrected` counts what fits as right and all that nobody judged as wrong; `at_most`, of recalls and RSum alone,
    counts as right whatever was not judged among the first ten, too. An interval that knows how much was judged goes
    from the low end of the one to the high end of the other. More matches can only raise a recall; they make R larger,
    so that mAP@R and R-Precision have no such bound. `judged_percent` says how many of these places were judged.

    Raises:
        DataError: the file is damaged, or no pair of this split was judged.
    """
    from itrpipe.review.decisions import DIFFERS, DISPUTED, FITS, UNSURE, read_decisions

    settings = evaluation.settings
    verdicts = read_decisions(Path(settings.decisions).expanduser()).verdicts
    fits, differs, open_ = (_pairs(verdicts.of(*names), split) for names in ((FITS,), (DIFFERS,), (DISPUTED, UNSURE)))
    unjudged, judged = _first_places(split, fits, differs)
    most = _figures(evaluation, split, [fits, unjudged])
    found: dict[str, Any] = {
        "pairs": {"fits": len(fits), "differs": len(differs), "unsure or disputed": len(open_)},
        "judged_percent": judged,
        "corrected": _figures(evaluation, split, [fits]),
        "at_most": {name: most[name] for name in BOUNDED},
    }
    write_json(evaluation.folder / CORRECTED, found)


def _pairs(verdicts: Verdicts, split: SplitScores) -> PairSet:
    from itrpipe.datasets.truth import PairSet

    return PairSet.of_ids((verdicts.image_ids, verdicts.caption_ids), split.image_ids, split.caption_ids)


def _first_places(split: SplitScores, *known: PairSet) -> tuple[PairSet, dict[str, float]]:
    """The pairs among the first places of both directions that nobody judged, and the percent of places that were.

    Own pairs need no judgement.
    """
    import numpy as np

    from itrpipe.datasets.truth import PairSet
    from itrpipe.evaluation.rankings import rankings

    depth, images = min(DEPTH, *split.matrix.shape), len(split.image_ids)
    ids = split.image_ids.tolist(), split.caption_ids.tolist()
    rows, columns, judged = [], [], {}
    for number, found in enumerate(rankings(split.matrix, depth, *ids)):
        queries = np.broadcast_to(np.arange(len(found.indices))[:, None], found.indices.shape)
        sides = (queries, found.indices) if number == 0 else (found.indices, queries)
        others = split.caption_image[sides[1]] != sides[0]
        told = np.zeros(others.shape, dtype=bool)
        for pairs in known:
            told |= pairs.has(sides[1], sides[0])
        judged["i2t" if number == 0 else "t2i"] = round(100 * float((told & others).sum() / max(1, others.sum())), 3)
        rows.append(sides[0][others & ~told])
        columns.append(sides[1][others & ~told])
    return PairSet.of(np.concatenate(columns), np.concatenate(rows), images), judged


def _figures(evaluation: Evaluation, split: SplitScores, added: list[PairSet]) -> dict[str, dict[str, float]]:
    """Every metric with all correct matches counted: the own ones and those added."""
    import numpy as np

    from itrpipe.datasets.truth import PairSet
    from itrpipe.evaluation.results import Measurement, oracle_ranks

    settings, count = evaluation.settings, len(split.caption_ids)
    captions = np.concatenate([np.arange(count), *(each.caption_rows for each in added)])
    images = np.concatenate([split.caption_image, *(each.image_rows for each in added)])
    matches = PairSet.of(captions, images, len(split.image_ids))
    measurement = Measurement((), settings.bootstrap_samples, settings.interval_level, settings.split, evaluation.warn)
    return measurement.with_matches(split, oracle_ranks(split, matches), matches)
