"""Recall and precision on COCO's 5K test split with the matches that its own captions leave out.

COCO knows five captions of an image, and calls every other one wrong. The package `eccv_caption` brings matches that
people found: those of ECCV Caption, of a part of the queries, and those of CxC (Crisscrossed Captions).

Source: Chun et al., "ECCV Caption", ECCV 2022; Parekh et al., "Crisscrossed Captions", EACL 2021. The ground truth is
the package's, the computation ours: a negative with the score of a match counts as ahead of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Any

import numpy as np

from itrpipe.errors import DataError
from itrpipe.evaluation.metrics import CUTOFFS, query_ranks, recall
from itrpipe.evaluation.precision import precision_of_matches

PACKAGE = "eccv_caption"
Truth = Mapping[str, Mapping[int, Sequence[int]]]
"""`i2t` -> image id -> caption ids, and `t2i` -> caption id -> image ids, with COCO's own ids."""


@dataclass(frozen=True)
class GroundTruth:
    """What the package knows of COCO's 5K test split.

    Attributes:
        own: every image with its five captions.
        eccv: matches of some images and of some captions.
        cxc: matches of all images and of nearly all captions.
        version: of the package.
    """

    own: Truth
    eccv: Truth
    cxc: Truth
    version: str


def load_ground_truth() -> GroundTruth:
    """Reads the ground truth out of the package, which has to be installed."""
    with warnings.catch_warnings():
        # It recommends two packages that would make its own computation faster, which is not used.
        warnings.simplefilter("ignore")
        found = import_module(PACKAGE).Metrics()
    return GroundTruth(found.coco_gts, found.eccv_gts, found.cxc_gts, metadata.version(PACKAGE))


def eccv_caption_metrics(
    scores: np.ndarray, image_ids: Sequence[str], caption_ids: Sequence[str], truth: GroundTruth
) -> dict[str, Any]:
    """Metrics of both sets of matches. Candidates are the 5,000 images and 25,000 captions of the package.

    Args:
        scores: [N, T] score of image n with caption t.
        image_ids: N of COCO's image ids.
        caption_ids: T of COCO's caption ids.
        truth: of `load_ground_truth`.

    Returns:
        `eccv_caption`: mAP@R, R-Precision and R@1 of either direction; `cxc`: recalls and their sum; all in percent
        and with the number of queries. `package`: its version.

    Raises:
        DataError: the scores lack an image or a caption of COCO's 5K test split, or one is NaN or infinite.
    """
    candidates = _candidates(scores, image_ids, caption_ids, truth)
    found: dict[str, Any] = {"package": f"{PACKAGE} {truth.version}", "eccv_caption": {}, "cxc": {}}
    for side, own in (("i2t", candidates), ("t2i", candidates.turned())):
        rows, query, candidate = own.matches(truth.eccv[side])
        chosen = own.scores[rows]
        precision = precision_of_matches(chosen, query, candidate)
        found["eccv_caption"] |= {
            f"{side}_queries": len(rows),
            f"{side}_map_at_r": 100.0 * float(precision.average.mean()),
            f"{side}_r_precision": 100.0 * float(precision.r_precision.mean()),
            f"{side}_r1": recall(query_ranks(chosen, query, candidate), 1),
        }
        rows, query, candidate = own.matches(truth.cxc[side])
        # Where every row is a query, there is no need for another copy of them all.
        ranks = query_ranks(own.scores[rows] if len(rows) < len(own.scores) else own.scores, query, candidate)
        found["cxc"] |= {f"{side}_queries": len(rows), **{f"{side}_r{k}": recall(ranks, k) for k in CUTOFFS}}
    found["cxc"]["rsum"] = sum(found["cxc"][f"{side}_r{k}"] for side in ("i2t", "t2i") for k in CUTOFFS)
    return found


@dataclass(frozen=True)
class _Candidates:
    """Scores [Q, C] with the rows of queries and the columns of candidates by their COCO id."""

    scores: np.ndarray
    rows: dict[int, int]
    columns: dict[int, int]

    def turned(self) -> _Candidates:
        """Candidates as queries."""
        return _Candidates(self.scores.T, self.columns, self.rows)

    def matches(self, truth: Mapping[int, Sequence[int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows [q], rising, of the queries of a ground truth, and its matches [M] as number of the query and column.

        The ground truth names two captions that are none of the 25,000. They are left out here, whereas the package's
        own figures count them as never found, which makes its mAP@R of images lower by less than 0.01.
        """
        queries = sorted((query for query in truth if query in self.rows), key=self.rows.__getitem__)
        pairs = [
            (number, self.columns[candidate])
            for number, query in enumerate(queries)
            for candidate in sorted({each for each in truth[query] if each in self.columns})
        ]
        query, candidate = np.array(pairs, dtype=np.int64).T
        return np.array([self.rows[each] for each in queries]), query, candidate


def _candidates(
    scores: np.ndarray, image_ids: Sequence[str], caption_ids: Sequence[str], truth: GroundTruth
) -> _Candidates:
    images = _positions(image_ids, truth.own["i2t"], "image")
    captions = _positions(caption_ids, truth.own["t2i"], "caption")
    rows, columns = np.fromiter(images.values(), np.int64), np.fromiter(captions.values(), np.int64)
    if (len(rows), len(columns)) == scores.shape:
        return _Candidates(scores, images, captions)
    return _Candidates(
        scores[np.ix_(rows, columns)],
        {name: place for place, name in enumerate(images)},
        {name: place for place, name in enumerate(captions)},
    )


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
