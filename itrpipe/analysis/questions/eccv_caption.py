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
from itrpipe.errors import DataError
from itrpipe.evaluation.metrics import CUTOFFS, SIDES, precision_of_matches, query_ranks, recall
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.artifact import ECCV_CAPTION
from itrpipe.storage.disk import write_json

PACKAGE = "eccv_caption"
Truth = Mapping[str, Mapping[int, Sequence[int]]]
"""`i2t` -> image id -> caption ids, and `t2i` -> caption id -> image ids, with COCO's own ids."""
_TITLES = {"map_at_r": "mAP@R", "r_precision": "R-P", "r1": "R@1"}
_SIDES = {"i2t": "Image → text", "t2i": "Text → image"}


def _cells(part: str, titles: Mapping[str, str], found: Mapping[str, Any]) -> Cells:
    return {
        (side_title, title): Number.of(found[part][f"{side}_{name}"])
        for side, side_title in _SIDES.items()
        for name, title in titles.items()
    }


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


def asks(evaluation: EvaluatedModel) -> bool:
    """Asked where the option is given."""
    return evaluation.settings.eccv


def answer(evaluation: EvaluatedModel, split: SplitScores) -> None:
    """Writes eccv_caption.json.

    Raises:
        DataError: the split is not COCO's 5K test split.
    """
    ids = (split.image_ids.tolist(), split.caption_ids.tolist())
    found = eccv_caption_metrics(split.matrix, *ids, *ground_truth())
    package = {"package": f"{PACKAGE} {metadata.version(PACKAGE)}"}
    write_json(evaluation.folder / ECCV_CAPTION, package | found)


def ground_truth() -> tuple[Truth, Truth, Truth]:
    """Return what the package, which has to be installed, knows of COCO's 5K test split.

    Returns:
        Every image with its five captions; matches of some images and of some captions, by ECCV Caption; and matches of
        all images and of nearly all captions, by CxC.
    """
    with warnings.catch_warnings():
        # It recommends two packages that would make its own computation faster, which is not used.
        warnings.simplefilter("ignore")
        found = import_module(PACKAGE).Metrics()
    return found.coco_gts, found.eccv_gts, found.cxc_gts


def eccv_caption_metrics(
    scores: np.ndarray, image_ids: Sequence[str], caption_ids: Sequence[str], own: Truth, eccv: Truth, cxc: Truth
) -> dict[str, Any]:
    """Metrics of both sets of matches. Candidates are the 5,000 images and 25,000 captions of the package.

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
    images, captions = _positions(image_ids, own["i2t"], "image"), _positions(caption_ids, own["t2i"], "caption")
    if (len(images), len(captions)) != scores.shape:
        scores = scores[np.ix_(list(images.values()), list(captions.values()))]
        images, captions = ({name: place for place, name in enumerate(each)} for each in (images, captions))
    found = {"eccv_caption": {}, "cxc": {}}
    for side, queries, candidates in zip(SIDES, (images, captions), (captions, images), strict=True):
        rows, *matches = _matches(eccv[side], queries, candidates)
        chosen = scores[rows]
        average, r_precision = precision_of_matches(chosen, *matches)
        found["eccv_caption"] |= {
            f"{side}_queries": len(rows),
            f"{side}_map_at_r": 100.0 * float(average.mean()),
            f"{side}_r_precision": 100.0 * float(r_precision.mean()),
            f"{side}_r1": recall(query_ranks(chosen, *matches), 1),
        }
        rows, *matches = _matches(cxc[side], queries, candidates)
        # Where every row is a query, there is no need for another copy of them all.
        ranks = query_ranks(scores[rows] if len(rows) < len(scores) else scores, *matches)
        found["cxc"] |= {f"{side}_queries": len(rows), **{f"{side}_r{k}": recall(ranks, k) for k in CUTOFFS}}
        scores = scores.T
    found["cxc"]["rsum"] = sum(found["cxc"][f"{side}_r{k}"] for side in SIDES for k in CUTOFFS)
    return found


def _matches(
    truth: Mapping[int, Sequence[int]], rows: Mapping[int, int], columns: Mapping[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows [q], rising, of the queries of a ground truth, and its matches [M] as number of the query and column.

    The ground truth names two captions that are none of the 25,000. They are left out here, whereas the package's
    own figures count them as never found, which makes its mAP@R of images lower by less than 0.01.
    """
    queries = sorted((query for query in truth if query in rows), key=rows.__getitem__)
    pairs = [
        (number, columns[candidate])
        for number, query in enumerate(queries)
        for candidate in sorted({each for each in truth[query] if each in columns})
    ]
    query, candidate = np.array(pairs, dtype=np.int64).T
    return np.array([rows[each] for each in queries]), query, candidate


def _positions(ids: Sequence[str], wanted: Mapping[int, Any], what: str) -> dict[int, int]:
    """COCO id -> position among `ids`, of the ids that are wanted."""
    place = {int(name): number for number, name in enumerate(ids) if name.isdecimal()}
    missing = [each for each in wanted if each not in place]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(wanted):,} {what}s of COCO's 5K test split are not among the {len(ids):,} here "
            f"(such as {what} {missing[0]}): ECCV Caption is for `--dataset coco --split test`, prepared from "
            "dataset_coco.json"
        )
    return {each: place[each] for each in wanted}
