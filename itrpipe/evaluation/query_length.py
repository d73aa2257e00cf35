"""Recall of captions by how long they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from itrpipe.evaluation.metrics import CUTOFFS, recall

SHORTEST = (1, 8, 10, 12, 15)
"""Least number of words of each bucket: up to 7, 8 and 9, 10 and 11, 12 to 14, 15 and more."""


def recall_by_length(ranks: np.ndarray, words: np.ndarray) -> list[dict[str, Any]]:
    """Recall of caption queries in each bucket of lengths.

    Args:
        ranks: [T] 0-based ranks of the image of each caption.
        words: [T] number of words of each caption.

    Returns:
        For each bucket `from` and `to` (words, both inclusive; the last ends nowhere), `captions`, and `t2i_r1`,
        `t2i_r5` and `t2i_r10` in percent, None where the bucket is empty.

    Source: AsCL (Gong et al.), Fig. 5, which samples 1,000 captions; its bounds are not printed and these are ours.
    """
    bucket = np.searchsorted(SHORTEST, words, side="right") - 1
    ends = [*(start - 1 for start in SHORTEST[1:]), None]
    found = []
    for number, (start, end) in enumerate(zip(SHORTEST, ends, strict=True)):
        own = ranks[np.maximum(bucket, 0) == number]  # a caption without words is as short as they come
        recalls = {f"t2i_r{k}": recall(own, k) if len(own) else None for k in CUTOFFS}
        found.append({"from": start, "to": end, "captions": len(own), **recalls})
    return found
