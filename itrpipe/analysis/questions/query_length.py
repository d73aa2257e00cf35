"""Recall of captions by their number of words.

Source: AsCL (Gong et al.), Fig. 5, which samples 1,000 captions; its bounds are not printed and these are ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.evaluation.metrics import CUTOFFS, ranks, recall
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.artifact import QUERY_LENGTH

SHORTEST = (1, 8, 10, 12, 15)
"""Least number of words of each bucket: up to 7, 8 and 9, 10 and 11, 12 to 14, 15 and more."""


def _cells(found: Any) -> Cells:
    cells = {}
    for bucket in found:
        words = f"{bucket['from']} to {bucket['to']}"
        if bucket["to"] is None:
            words = f"from {bucket['from']}"
        elif bucket["from"] == 1:
            words = f"up to {bucket['to']}"
        cells["Words", words] = Number.of(bucket["t2i_r1"])
    return cells


SHOWN = (
    Measured(
        "Recall by the length of captions",
        QUERY_LENGTH,
        _cells,
        "R@1 of images for captions, in percent, by how many words these have.",
        usual=True,
    ),
)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure any model, where any caption has words: of given embeddings they may not be known."""
    captions = PreparedDataset.open(evaluation.prepare).split(evaluation.settings.split)
    counts = pc.call_function("list_value_length", [captions.tokens]).to_pylist()
    if not any(counts):
        return None
    words = dict(zip(captions.caption_ids.tolist(), counts, strict=True))
    lengths = np.array([words[caption] for caption in split.caption_ids.tolist()])
    return recall_by_length(ranks(split.matrix, split.caption_image).texts_to_images, lengths)


def recall_by_length(ranks: np.ndarray, words: np.ndarray) -> list[dict[str, Any]]:
    """Return the recall of caption queries in each bucket of lengths.

    Args:
        ranks: [T] 0-based ranks of the image of each caption.
        words: [T] number of words of each caption; one without words is as short as they come.

    Returns:
        For each bucket `from` and `to` (words, both inclusive; the last ends nowhere), `captions`, and `t2i_r1`,
        `t2i_r5` and `t2i_r10` in percent, None where the bucket is empty.
    """
    bucket = np.maximum(np.searchsorted(SHORTEST, words, side="right") - 1, 0)
    longest = [*(start - 1 for start in SHORTEST[1:]), None]
    found = []
    for number, (start, end) in enumerate(zip(SHORTEST, longest, strict=True)):
        own = ranks[bucket == number]
        figures = {"from": start, "to": end, "captions": len(own)}
        for k in CUTOFFS:
            figures[f"t2i_r{k}"] = recall(own, k) if len(own) else None
        found.append(figures)
    return found
