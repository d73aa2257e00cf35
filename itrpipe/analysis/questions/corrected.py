"""Recall as people and judges correct it: what they find to fit counts as right beside the own image or caption."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from itrpipe.analysis.judges import ask_judges, split_material
from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.datasets.decisions import read_decisions
from itrpipe.datasets.truth import Decided, PairSet
from itrpipe.evaluation.intervals import Figures
from itrpipe.evaluation.metrics import COMPARED, CUTOFFS, RSUM, ranks_of_matches
from itrpipe.evaluation.metrics import ranks as own_ranks
from itrpipe.evaluation.rankings import rankings
from itrpipe.evaluation.results import with_matches
from itrpipe.evaluation.tables import Cells, Content, Measured
from itrpipe.features.embeddings import SplitScores
from itrpipe.judging.shares import LEAST
from itrpipe.mining.judged import LIKELY
from itrpipe.review import Estimates, write_judged
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
_FIRST = {
    "i2t": "wrong first captions of this split",
    "t2i": "wrong first images of this split",
}


def _cells(content: Content) -> Cells:
    cells = {}
    if "judged_percent" in content:
        judged = min(content["judged_percent"].values())
        cells["", f"of the first {DEPTH} places judged by people, %"] = judged
        for name, title in _SHOWN.items():
            cells[title, "with pairs that fit"] = content["corrected"][name]
            if name in COMPARED:  # which no further match can lower
                cells[title, "at most"] = content["at_most"][name]
    if "by_judges" not in content:
        return cells

    by_judges = content["by_judges"]
    is_calibrated = by_judges["calibration"]["decisions"] >= LEAST
    by = "by the judge"
    if not is_calibrated:
        by = "by the judge's default curve, mean probability"
    for side, title in _FIRST.items():
        cells[title, f"right after all {by}, %"] = by_judges["right_after_all"][side]
    if is_calibrated:
        for name, title in _SHOWN.items():
            if name in COMPARED:
                cells[title, by] = by_judges["recalls"][name]
    return cells


SHOWN = (
    Measured(
        "Right after all",
        CORRECTED,
        _cells,
        "Candidates judged as fitting count as right, like own captions, and unjudged ones as wrong; "
        "at most, all of the latter among the first ten is right, too. The true recall lies between the two; mAP@R "
        "has no such bound. By the judge: its estimate of the same, calibrated by people's decisions; with an interval "
        "where these were drawn at random. Nobody has checked its default curve.",
        turned=True,
    ),
)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure recall with the decisions of a file, and with the probabilities of judges, where these are named.

    `corrected` counts what fits as right and all that nobody judged as wrong; `at_most`, of recalls and RSum alone,
    counts as right whatever was not judged among the first ten, too. An interval that knows how much was judged goes
    from the low end of the one to the high end of the other. More matches can only raise a recall; they make R larger,
    so that mAP@R and R-Precision have no such bound. `judged_percent` says how many of these places were judged.
    `by_judges`: see `_by_judges`.

    Raises:
        DataError: the file is damaged.
        UsageError, MissingInputError: see `itrpipe.judging.opened.open_judge`.
    """
    settings = evaluation.settings
    if not (settings.decisions or settings.judges):
        return None
    verdicts = {}
    if settings.decisions:
        verdicts = read_decisions(Path(settings.decisions).expanduser()).verdicts
    depth = min(DEPTH, *split.matrix.shape)
    image_ids = split.image_ids.tolist()
    caption_ids = split.caption_ids.tolist()
    of_images, of_captions = rankings(split.matrix, depth, image_ids, caption_ids)
    best_captions, _ = of_images
    best_images, _ = of_captions
    places = {}
    for side, captions, images in (
        ("i2t", best_captions, np.indices(best_captions.shape)[0]),
        ("t2i", np.indices(best_images.shape)[0], best_images),
    ):
        captions = captions.astype(np.int64)
        is_wrong = split.caption_image[captions] != images
        places[side] = Places(captions, images.astype(np.int64), is_wrong)
    decided = Decided.of(verdicts, split.image_ids, split.caption_ids)
    figures = {}
    if len(decided.fits) or len(decided.differs):
        figures = _by_people(evaluation, split, places, decided)
    elif not settings.judges:
        evaluation.warn(
            f"{settings.decisions} decides no pair of this split; decide some with `itrpipe serve --split "
            f"{settings.split}`"
        )
    if settings.judges and len(split.image_ids) > 1:
        figures["by_judges"] = _by_judges(evaluation, split, places, decided)
    return figures or None


class Places(NamedTuple):
    """The first places of the queries of one direction.

    Attributes:
        captions, images: int64 [Q, K] rows of the pair of each place.
        is_wrong: bool [Q, K], whether the caption belongs to another image.
    """

    captions: np.ndarray
    images: np.ndarray
    is_wrong: np.ndarray


def _by_people(
    evaluation: EvaluatedModel,
    split: SplitScores,
    places: Mapping[str, Places],
    decided: Decided,
) -> dict[str, Any]:
    """Return the figures of decisions alone."""
    fits = decided.fits
    differs = decided.differs
    judged = {}
    unjudged = []
    for side, place in places.items():
        rows = np.stack([place.captions, place.images])
        is_decided = fits.has(*rows) | differs.has(*rows)
        wrong = max(1, place.is_wrong.sum())
        share = float((is_decided & place.is_wrong).sum() / wrong)
        judged[side] = round(100 * share, 3)
        unjudged.append(rows[:, place.is_wrong & ~is_decided])
    fitting = np.stack([fits.caption_rows, fits.image_rows])
    at_most = _figures(evaluation, split, fitting, *unjudged)
    return {
        "pairs": {
            "fits": len(fits),
            "differs": len(differs),
            "unsure or disputed": len(decided.doubtful),
        },
        "judged_percent": judged,
        "corrected": _figures(evaluation, split, fitting),
        "at_most": {name: at_most[name] for name in COMPARED},
    }


def _by_judges(
    evaluation: EvaluatedModel,
    split: SplitScores,
    places: Mapping[str, Places],
    decided: Decided,
) -> dict[str, Any]:
    """Return how many wrong answers are right after all by judges, whom decisions calibrate, and recall with them.

    Decisions on mined lists do not calibrate here: among pairs of one score, fewer or more of the hardest of a training
    set are right than of a smaller split.

    With P the probability of a place, 0 of an own pair,

        R@K = mean over queries of 1 where the own one is among the first K, else 1 - prod_{k <= K} (1 - P_k)

    `right_after_all`, of the wrong answers at rank 1 in percent, and R@1 have prediction-powered intervals from `LEAST`
    decisions on, where some of these were drawn at random: they hold even if the judges are wrong. R@5, R@10 and RSum
    are what the judges say. `judged.parquet` has what they say of each pair, by which `itrpipe.review` orders pairs.
    `likely` lists the wrong answers at rank 1 with P above 1/2: image, caption and P.
    """
    wrong = []
    for place in places.values():
        rows = np.stack([place.captions, place.images])
        wrong.append(rows[:, place.is_wrong])
    captions, images = np.concatenate(wrong, axis=1)
    pairs = PairSet.of(captions, images, len(split.image_ids))
    images = pairs.image_rows
    captions = pairs.caption_rows
    log_odds = ask_judges(
        evaluation.settings.judges,
        split_material(evaluation, split),
        images,
        captions,
        evaluation.job.made,
        "judged",
        evaluation.place,
    )
    estimates = Estimates.of(pairs, log_odds, decided)
    calibration = estimates.calibration
    assert calibration is not None
    write_judged(
        evaluation.folder,
        split.image_ids[images],
        split.caption_ids[captions],
        log_odds,
        calibration.probabilities(log_odds),
    )
    if calibration.decisions < LEAST:
        estimates = replace(estimates, is_drawn=np.zeros(len(pairs), dtype=bool))
        evaluation.warn(
            f"{calibration.decisions:,} decisions are about pairs of this split, where {LEAST} calibrate the judge and "
            "those on mined lists do not: its default curve may be far off; decide others with "
            f"`itrpipe serve --split {evaluation.settings.split}`"
        )
    elif not calibration.knows:
        evaluation.warn(
            f"{calibration.decisions:,} decisions do not show that the judges know which answers are right; each "
            "has the share of right ones among the decisions"
        )
    is_unanswered = np.isnan(estimates.answers)
    probabilities = np.where(is_unanswered, estimates.probabilities, estimates.answers)

    shares = {}
    likely = {}
    recalls = {}
    for side, ranks in own_ranks(split.matrix, split.caption_image).sides.items():
        rows = pairs.places(places[side].captions, places[side].images)
        wrong_chances = 1 - np.where(rows >= 0, probabilities[rows], 0.0)
        missed = np.cumprod(wrong_chances, axis=1)
        for k in CUTOFFS:
            last = min(k, missed.shape[1]) - 1
            right = np.where(ranks < k, 1.0, 1 - missed[:, last])
            recalls[f"{side}_r{k}"] = {"value": 100 * float(right.mean())}
        first = rows[rows[:, 0] >= 0, 0]
        likely[side] = []
        for pair in first[probabilities[first] > LIKELY]:
            image_id = split.image_ids[images[pair]]
            caption_id = split.caption_ids[captions[pair]]
            likely[side].append((image_id, caption_id, float(probabilities[pair])))
        shares[side] = None
        if len(first):
            shares[side] = estimates.share(first).percent()
            own_percent = 100 * float((ranks == 0).mean())
            wrong_share = len(first) / len(rows)
            recalls[f"{side}_r1"] = {}
            for name, value in shares[side].items():
                recalls[f"{side}_r1"][name] = own_percent + wrong_share * value
    total = sum(recall["value"] for recall in recalls.values())
    recalls[RSUM] = {"value": total}
    return {
        "calibration": asdict(calibration),
        "right_after_all": shares,
        "likely": likely,
        "recalls": recalls,
    }


def _figures(
    evaluation: EvaluatedModel,
    split: SplitScores,
    *added: np.ndarray,
) -> Figures:
    """Return every metric with all correct matches counted: captions with their image, and added rows [2, n] each."""
    rows = np.arange(len(split.caption_image))
    own_pairs = np.stack([rows, split.caption_image])
    captions, images = np.concatenate([own_pairs, *added], axis=1)
    matches = PairSet.of(captions, images, len(split.image_ids))
    pairs = matches.image_rows, matches.caption_rows
    ranks = ranks_of_matches(split.matrix, *pairs)
    return with_matches(split.matrix, split.caption_image, ranks, pairs, *evaluation.sampling)
