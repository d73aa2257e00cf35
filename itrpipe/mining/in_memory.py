"""Exact mining of vectors that are in memory, in one call: what `itrpipe mine-negatives` does with those of a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.console import Console

from itrpipe.engine.run import MapExecution, make_parts
from itrpipe.errors import DataError
from itrpipe.mining.duplicates import DuplicateCaptions
from itrpipe.mining.exact import DEFAULT_MEMORY, ExactMining
from itrpipe.mining.lists import CandidateLists, MinedLists
from itrpipe.mining.merging import join_mined
from itrpipe.mining.mined import DIRECTIONS, MinedFile
from itrpipe.mining.products import Precision, measured_norms
from itrpipe.mining.vectors import HeldRows
from itrpipe.mining.windows import Window, filtered, lowest_positives, positive_scores
from itrpipe.progress import Reporter, SafeConsole


def mine(
    images: np.ndarray | torch.Tensor,
    texts: np.ndarray | torch.Tensor,
    owners: np.ndarray | torch.Tensor | Sequence[int],
    *,
    num_texts: int = 300,
    num_images: int = 60,
    range_min: int = 0,
    range_max: int | None = None,
    min_score: float | None = None,
    max_score: float | None = None,
    absolute_margin: float | None = None,
    relative_margin: float | None = None,
    captions: Sequence[str] | None = None,
    precision: Precision = "bf16+fp32",
    device: str = "auto",
    memory: int = DEFAULT_MEMORY,
    progress: bool = False,
) -> MinedLists:
    """The hardest texts of every image and the hardest images of every text, own pairs left out, by exact search.

    The score of a pair is the inner product of its vectors: normalise them for cosines. Equal scores come in the order
    of their rows. What a limit drops makes a list shorter, and the rest moves up.

    Args:
        images: [N, D] vectors of any model.
        texts: [T, D].
        owners: [T] row of the image that each text belongs to, -1 for none.
        num_texts: texts mined for each image; 300 and 60 are those of AOQ, section 4.2.
        num_images: images mined for each text.
        range_min, range_max, min_score, max_score, absolute_margin, relative_margin: see `itrpipe.mining.windows`.
            The positive of an image is its own text with the lowest score.
        captions: T texts; candidates that read like one of the positive's, but for case and punctuation, are dropped.
        precision: of the products; `bf16+fp32` finds the lists of `fp32` in bfloat16 and checks them in single
            precision; `bf16` leaves them as they are.
        device: `auto` takes CUDA where there is one.
        memory: bytes that the products take at a time; the lists come on top, through files in the temporary folder.
        progress: show it, on standard error.

    Returns:
        Rows of candidates and their scores, hardest first; -1 and minus infinity behind the last of a shorter list.

    Raises:
        DataError: the arrays do not fit each other, or hold values that are not finite.
        UsageError: fewer candidates exist than are asked for, or the limits leave nothing.

    Example:
        >>> images, texts = np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[[0, 1, 2, 1]]
        >>> mine(images, texts, [0, 1, 2, 0], num_texts=2, num_images=1).images_per_text.tolist()
        [[1], [0], [0], [1]]

    Source: AOQ (Chen et al., ECCV 2020), section 3.1.
    """
    window = Window(range_min, range_max, min_score, max_score, absolute_margin, relative_margin)
    sides = HeldRows(_vectors("images", images)), HeldRows(_vectors("texts", texts))
    rows = _owners(owners)
    if captions is not None and len(captions) != len(rows):
        raise DataError(f"there are {len(captions):,} captions and {len(rows):,} owners; give one for each text")
    reporter = Reporter(SafeConsole(stderr=True) if progress else Console(quiet=True))
    with TemporaryDirectory(prefix="itrpipe-") as name:
        folder = Path(name)
        work = ExactMining(
            *sides,
            HeldRows(rows),
            measured_norms(*sides, folder / "norms.arrays"),
            num_texts,
            num_images,
            precision=precision,
            device=device,
            memory=memory,
        )
        made = make_parts(work, folder / "parts", MapExecution(workers=1), reporter, reporter.say)
        join_mined(work, made.paths, folder / "mined.arrays")
        lists = MinedFile(folder / "mined.arrays").lists()
    if window == Window() and captions is None:
        return lists
    positives = positive_scores(*sides, HeldRows(rows))
    anchors = {DIRECTIONS[0]: lowest_positives(positives, rows, len(sides[0].array)), DIRECTIONS[1]: positives}
    same = None if captions is None else DuplicateCaptions(captions, rows)
    kept = []
    for direction, scores in anchors.items():
        found: CandidateLists = getattr(lists, direction)
        going = {} if same is None else {"duplicates": same.mark(direction, slice(0, len(scores)), found)}
        kept.append(filtered(found, window, scores, going)[0])
    return MinedLists(kept[0].candidates, kept[0].scores, kept[1].candidates, kept[1].scores)


def _vectors(name: str, given: Any) -> np.ndarray:
    """[rows, D] float32."""
    found = _array(given)
    if found.ndim != 2 or found.dtype.kind != "f" or not found.size:
        raise DataError(f"{name} are {found.dtype} {list(found.shape)} and not vectors [rows, D] of real numbers")
    return np.ascontiguousarray(found, dtype=np.float32)


def _owners(given: Any) -> np.ndarray:
    """[T] int64."""
    found = _array(given)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise DataError(f"owners are {found.dtype} {list(found.shape)} and not one row of an image for each text")
    return found.astype(np.int64)


def _array(given: Any) -> np.ndarray:
    if isinstance(given, torch.Tensor):
        kept = given.detach().cpu()
        return (kept.float() if kept.is_floating_point() else kept).numpy()
    return np.asarray(given)
