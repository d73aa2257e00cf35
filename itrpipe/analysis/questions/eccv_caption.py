"""Metrics with the matches of ECCV Caption and CxC, on COCO's 5K test split."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.progress import Reporter
from itrpipe.storage.artifact import ECCV_CAPTION
from itrpipe.storage.disk import write_json
from itrpipe.storage.integrity import read_checked_json

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores

_TITLES = {"map_at_r": "mAP@R", "r_precision": "R-Precision", "r1": "R@1"}


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


def say(folder: Path, reporter: Reporter) -> None:
    """Prints them."""
    path = folder / ECCV_CAPTION
    if not path.is_file():
        return
    found = read_checked_json(path)
    numbers = [
        f"{side} {title} {found['eccv_caption'][f'{side}_{name}']:.1f}"
        for side in ("i2t", "t2i")
        for name, title in _TITLES.items()
    ]
    reporter.say(f"  {found['package']}: {', '.join(numbers)}")
