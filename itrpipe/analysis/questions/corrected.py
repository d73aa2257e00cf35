"""Recall as people's judgements correct it: what they found to fit counts as right beside the own image or caption."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.evaluation.rsum import CUTOFFS
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import CORRECTED
from itrpipe.storage.disk import write_json
from itrpipe.storage.integrity import read_checked_json

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
    "i2t_r1": "i2t R@1",
    "t2i_r1": "t2i R@1",
    "i2t_map_at_r": "i2t mAP@R",
    "t2i_map_at_r": "t2i mAP@R",
}


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


def say(folder: Path, reporter: Reporter) -> None:
    """Prints the corrected figures, recalls with what they can be at most."""
    path = folder / CORRECTED
    if not path.is_file():
        return
    found = read_checked_json(path)
    pairs, judged = found["pairs"], found["judged_percent"]
    reporter.say(
        f"  decisions: {pairs['fits']:,} pairs fit, {pairs['differs']:,} do not; judged are {judged['i2t']:.1f} % of "
        f"the first {DEPTH} captions and {judged['t2i']:.1f} % of the first {DEPTH} images"
    )
    for metric, title in _SHOWN.items():
        known, bounded = found["corrected"][metric], metric in BOUNDED
        high = found["at_most"][metric]["high"] if bounded else known["high"]
        why = "since what nobody judged may be right" if bounded else "by the judgements that there are"
        reporter.say(f"  {title} corrected {known['value']:.1f} ({known['low']:.1f} to {high:.1f}, {why})")


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
    from itrpipe.evaluation.oracle import oracle_ranks
    from itrpipe.evaluation.results import Matches, Measurement

    settings, count = evaluation.settings, len(split.caption_ids)
    captions = np.concatenate([np.arange(count), *(each.caption_rows for each in added)])
    images = np.concatenate([split.caption_image, *(each.image_rows for each in added)])
    matches = Matches.of(PairSet.of(captions, images, len(split.image_ids)), count)
    measurement = Measurement((), settings.bootstrap_samples, settings.interval_level, settings.split, evaluation.warn)
    return measurement.with_matches(split, oracle_ranks(split.matrix, matches.offsets, matches.images), matches)
