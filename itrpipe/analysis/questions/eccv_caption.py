"""Metrics with the matches of ECCV Caption and CxC, on COCO's 5K test split."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.evaluation.metrics import CUTOFFS
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.storage.artifact import ECCV_CAPTION
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores

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


def asks(evaluation: Evaluation) -> bool:
    """Where it is asked for."""
    return evaluation.settings.eccv


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes eccv_caption.json.

    Raises:
        DataError: the split is not COCO's 5K test split.
    """
    from itrpipe.evaluation.eccv_caption import eccv_caption_metrics, load_ground_truth

    ids = (split.image_ids.tolist(), split.caption_ids.tolist())
    write_json(evaluation.folder / ECCV_CAPTION, eccv_caption_metrics(split.matrix, *ids, load_ground_truth()))
