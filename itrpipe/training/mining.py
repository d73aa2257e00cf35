"""Mines the training set once more while a model trains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.truth import Decided, known_pairs
from itrpipe.engine.run import MapExecution, Maps
from itrpipe.learning.mined import PROBABILITY_OF
from itrpipe.mining.lists import CandidateLists, HeldRows
from itrpipe.mining.mine import mine_split
from itrpipe.mining.rescoring import Guard
from itrpipe.mining.statistics import summary
from itrpipe.progress import Reporter
from itrpipe.training.settings import MineSettings


def mine_again(
    images: np.ndarray,
    texts: np.ndarray,
    split: Split,
    mined: Any,
    prepared: Path,
    folder: Path,
    device: str,
    reporter: Reporter,
    warn: Callable[[str], object],
) -> dict[str, np.ndarray]:
    """Mine other vectors of a training set as lists were mined before, and print the figures on the new lists.

    Args:
        images: [N, D] vectors as they are now.
        texts: [T, D].
        split: training set.
        mined: artifact of the lists.
        prepared: artifact of the captions.
        folder: for the files of parts.
        device: to search on.
        reporter: shows progress and figures.
        warn: is told what is to be warned of.

    Returns:
        Lists of both directions as methods read them, see `itrpipe.learning.mined.Lists`.

    Raises:
        UsageError: there is nothing for a guard to estimate from; see also `mine_split`.
    """
    settings = MineSettings.model_validate(mined.manifest.settings)
    owners, ids = split.caption_image, (split.image_ids, split.caption_ids)
    guard = None
    if settings.guard != "none":
        guard = Guard(images, texts, owners, prior=settings.guard_prior, batch_size=settings.guard_batch_size)
    pieces: dict[str, list[np.ndarray]] = {}

    def keep(direction: str, part: slice, lists: CandidateLists, probability: np.ndarray | None) -> None:
        pieces.setdefault(direction, []).append(lists.candidates)
        if probability is not None:
            pieces.setdefault(f"{PROBABILITY_OF}{direction}", []).append(probability.astype(np.float16))

    statistics = mine_split(
        HeldRows(images),
        HeldRows(texts),
        owners,
        settings,
        Maps(folder, reporter, warn, MapExecution()),
        keep,
        device=device,
        captions=split.texts,
        decided=Decided.read(mined.folder, *ids),
        truth=known_pairs(prepared, *ids),
        guard=guard,
    )
    for line in summary(statistics):
        reporter.say(line)
    return {name: np.concatenate(found) for name, found in pieces.items()}
