"""Recall and precision on COCO's 5K test split with the matches that its own captions leave out.

COCO knows five captions of an image, and calls every other one wrong. The package `eccv_caption` brings matches that
people found: those of ECCV Caption, of a part of the queries, and those of CxC (Crisscrossed Captions).

Source: Chun et al., "ECCV Caption", ECCV 2022; Parekh et al., "Crisscrossed Captions", EACL 2021. The ground truth is
the package's, the computation ours: a negative with the score of a match counts as ahead of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module, metadata
from typing import Any

import numpy as np

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.analysis.settings import ECCV_PACKAGE
from itrpipe.errors import DataError
from itrpipe.evaluation.metrics import CUTOFFS, RECALLS, RSUM, SIDES, precision_of_matches, query_ranks, recall
from itrpipe.evaluation.tables import Cells, Content, Measured
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.artifact import ECCV_CAPTION

Truth = Mapping[str, Mapping[int, Sequence[int]]]
"""`i2t` -> image id -> caption ids, and `t2i` -> caption id -> image ids, with COCO's own ids."""
_TITLES = {"map_at_r": "mAP@R", "r_precision": "R-P", "r1": "R@1"}


def _cells(part: str, titles: Mapping[str, str], content: Content) -> Cells:
    cells = {}
    for side, side_title in SIDES.items():
        for name, title in titles.items():
            cells[side_title, title] = content[part][f"{side}_{name}"]
    return cells


SHOWN = (
    Measured(
        "ECCV Caption",
        ECCV_CAPTION,
        partial(_cells, "eccv_caption", _TITLES),
        "In percent, with the matches that people found for 1,261 images and 1,332 captions of COCO's 5K test split "
        "(Chun et al., ECCV 2022).",
    ),
    Measured(
        "CxC",
        ECCV_CAPTION,
        partial(_cells, "cxc", {f"r{k}": f"R@{k}" for k in CUTOFFS}),
        "Recall in percent with the matches of Crisscrossed Captions on COCO's 5K test split.",
    ),
)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure with the matches of the package, where that is asked for.

    Raises:
        DataError: the split is not COCO's 5K test split.
    """
    if not evaluation.settings.eccv:
        return None
    own, eccv, cxc = ground_truth()
    image_ids = split.image_ids.tolist()
    caption_ids = split.caption_ids.tolist()
    figures = eccv_caption_metrics(split.matrix, image_ids, caption_ids, own, eccv, cxc)
    figures["package"] = f"{ECCV_PACKAGE} {metadata.version(ECCV_PACKAGE)}"
    return figures


def ground_truth() -> tuple[Truth, Truth, Truth]:
    """Return the ground truth of the package, which has to be installed, for COCO's 5K test split.

    Returns:
        Every image with its five captions; matches of some images and of some captions, by ECCV Caption; and matches of
        all images and of nearly all captions, by CxC.
    """
    with warnings.catch_warnings():
        # It recommends two packages that would make its own computation faster, which is not used.
        warnings.simplefilter("ignore")
        package = import_module(ECCV_PACKAGE).Metrics()
    return package.coco_gts, package.eccv_gts, package.cxc_gts


def eccv_caption_metrics(
    scores: np.ndarray,
    image_ids: Sequence[str],
    caption_ids: Sequence[str],
    own: Truth,
    eccv: Truth,
    cxc: Truth,
) -> dict[str, Any]:
    """Return metrics of both sets of matches. Candidates are the 5,000 images and 25,000 captions of the package.

    Args:
        scores: [N, T] score of image n with caption t.
        image_ids: N of COCO's image ids.
        caption_ids: T of COCO's caption ids.
        own, eccv, cxc: of `ground_truth`.

    Returns:
        `eccv_caption`: mAP@R, R-Precision and R@1 of either direction; `cxc`: recalls and their sum; all in percent
        and with the number of queries.

    Raises:
        DataError: the scores lack an image or a caption of COCO's 5K test split, or one is NaN or infinite.
    """
    images = _positions(image_ids, own["i2t"], "image")
    captions = _positions(caption_ids, own["t2i"], "caption")
    if (len(images), len(captions)) != scores.shape:
        rows = list(images.values())
        columns = list(captions.values())
        scores = scores[np.ix_(rows, columns)]
        images = {name: row for row, name in enumerate(images)}
        captions = {name: row for row, name in enumerate(captions)}
    by_eccv = {}
    by_cxc = {}
    for side, matrix, queries, candidates in (
        ("i2t", scores, images, captions),
        ("t2i", scores.T, captions, images),
    ):
        rows, match_query, match_candidate = _matches(eccv[side], queries, candidates)
        average, r_precision = precision_of_matches(matrix[rows], match_query, match_candidate)
        ranks = query_ranks(matrix[rows], match_query, match_candidate)
        by_eccv[f"{side}_queries"] = len(rows)
        by_eccv[f"{side}_map_at_r"] = 100.0 * float(average.mean())
        by_eccv[f"{side}_r_precision"] = 100.0 * float(r_precision.mean())
        by_eccv[f"{side}_r1"] = recall(ranks, 1)

        rows, match_query, match_candidate = _matches(cxc[side], queries, candidates)
        ranks = query_ranks(matrix[rows], match_query, match_candidate)
        by_cxc[f"{side}_queries"] = len(rows)
        for k in CUTOFFS:
            by_cxc[f"{side}_r{k}"] = recall(ranks, k)
    by_cxc[RSUM] = sum(by_cxc[name] for name in RECALLS)
    return {"eccv_caption": by_eccv, "cxc": by_cxc}


def _matches(
    truth: Mapping[int, Sequence[int]],
    rows: Mapping[int, int],
    columns: Mapping[int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return rows [q], rising, of the queries of a ground truth, and its matches [M] as number of the query and column.

    The ground truth names two captions that are none of the 25,000. They are left out here, whereas the package's
    own figures count them as never found, which makes its mAP@R of images lower by less than 0.01.
    """
    query_rows = sorted(rows[query] for query in truth if query in rows)
    numbers = {row: number for number, row in enumerate(query_rows)}
    pairs = set()
    for query, candidates in truth.items():
        if query not in rows:
            continue
        for candidate in candidates:
            if candidate in columns:
                pairs.add((numbers[rows[query]], columns[candidate]))
    queries, candidates = np.array(sorted(pairs), dtype=np.int64).T
    return np.array(query_rows), queries, candidates


def _positions(
    ids: Sequence[str],
    truth: Mapping[int, Sequence[int]],
    what: str,
) -> dict[int, int]:
    """Return COCO id -> position among `ids`, of the ids that the ground truth has."""
    position = {}
    for number, name in enumerate(ids):
        if name.isdecimal():
            position[int(name)] = number
    missing = [name for name in truth if name not in position]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(truth):,} {what}s of COCO's 5K test split are not among the {len(ids):,} here "
            f"(such as {what} {missing[0]}): ECCV Caption is for `--dataset coco --split test`, prepared from "
            "dataset_coco.json"
        )
    return {name: position[name] for name in truth}
