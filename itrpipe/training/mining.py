"""Mine the training set once more while a model trains: `mine_again`."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.truth import Decided, known_pairs
from itrpipe.engine.run import MapExecution, Maps
from itrpipe.mining.filters import drop
from itrpipe.mining.lists import CandidateLists, HeldRows, matching
from itrpipe.mining.mine import mine_split
from itrpipe.mining.statistics import summary
from itrpipe.training.search_settings import MineSettings


def mine_again(
    images: np.ndarray,
    texts: np.ndarray,
    split: Split,
    job: Any,
    folder: Path,
) -> dict[str, np.ndarray]:
    """Mine other vectors of a training set as lists were mined before, and print the figures on the new lists.

    Args:
        images: [N, D] vectors as they are now.
        texts: [T, D].
        split: training set.
        job: of the training, see `itrpipe.stages.base.Job`; its lists are the artifact `mine_negatives`.
        folder: for the files of parts, which are gone afterwards; is made.

    Returns:
        Lists of both directions as methods read them, see `itrpipe.learning.mined.Lists`.

    Raises:
        UsageError: see `mine_split`.
    """
    mined = job.inputs["mine_negatives"]
    settings = MineSettings.model_validate(mined.manifest.settings)
    ids = split.image_ids, split.caption_ids
    decided = Decided.read(mined.folder, *ids)
    candidates = defaultdict(list)

    def keep(direction: str, part: slice, lists: CandidateLists) -> None:
        if decided is not None:
            fitting = matching(decided.fits.has, direction, part, lists)
            lists, _ = drop(lists, {"decisions": fitting})
        candidates[direction].append(lists.candidates)

    job.reporter.say("  mining again with the weights as they are")
    parts = folder / "mining"
    parts.mkdir(parents=True)
    statistics = mine_split(
        HeldRows(images),
        HeldRows(texts),
        split.caption_image,
        settings,
        Maps(parts, job.reporter, job.warn, MapExecution()),
        keep,
        device=job.execution.device,
        captions=split.texts,
        truth=known_pairs(job.inputs["prepare"].folder, *ids),
    )
    for line in summary(statistics):
        job.reporter.say(line)
    shutil.rmtree(parts)
    return {direction: np.concatenate(parts_of_lists) for direction, parts_of_lists in candidates.items()}
