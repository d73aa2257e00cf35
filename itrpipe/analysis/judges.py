"""Judges that are asked about pairs of an evaluation.

A judge encodes and parses the evaluated captions itself: they are few, and artifacts of `encode` and `parse` would hold
those of the training set, too.

Shapes: P pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.datasets.definition import image_root
from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.engine.work import Made, Work
from itrpipe.errors import UsageError
from itrpipe.features.embeddings import EMBEDDINGS, SplitScores, read_embeddings
from itrpipe.judging.declaration import judge_name
from itrpipe.judging.material import Material
from itrpipe.judging.pairs import JudgedPairs
from itrpipe.storage.arrays import HeldRows
from itrpipe.storage.tables import rows_of

LOOKING = ("dual", "itm", "vlm")
"""Kinds of judges that look at photographs."""


def split_material(evaluation: EvaluatedModel, split: SplitScores) -> Material:
    """Return the captions, photographs and vectors of the evaluated split that judges read.

    Raises:
        UsageError: the given files hold no text of captions.
        MissingInputError: there are no photographs, and a judge looks at them.
    """
    settings = evaluation.settings
    prepared = PreparedDataset.open(evaluation.prepare, tokens=False).split(settings.split)
    caption_rows = rows_of(pa.array(split.caption_ids), prepared.captions["caption_id"])
    texts = prepared.captions["text"].take(caption_rows).to_pylist()
    if not any(texts):
        raise UsageError(
            f"--judge {settings.judges[0]} reads captions, of which the given files hold no text; leave it out"
        )
    photographs = None
    if any(judge_name(judge).kind in LOOKING for judge in settings.judges):
        from itrpipe.features.extraction import ImageFiles

        image_rows = rows_of(pa.array(split.image_ids), prepared.images["image_id"])
        files = ImageFiles.of_split(image_root(evaluation.prepare), prepared)
        photographs = files.of(image_rows)
    vectors = None
    if EMBEDDINGS in evaluation.manifest.outputs:
        embeddings = read_embeddings(evaluation.trained / EMBEDDINGS, settings.split)
        vectors = HeldRows(embeddings.images[:]), HeldRows(embeddings.texts[:])
    return Material(
        texts,
        split.caption_image,
        len(split.image_ids),
        photographs,
        vectors=vectors,
    )


def ask_judges(
    judges: Sequence[str],
    material: Material,
    images: np.ndarray,
    captions: np.ndarray,
    made: Callable[[Work, str], Made],
    folder: str,
    device: str,
) -> np.ndarray:
    """Let judges score pairs.

    Args:
        judges: names, see `itrpipe.judging.declaration.judge_name`.
        material: texts and pictures that they read.
        images, captions: int64 [P] rows.
        made: makes a map, such as `itrpipe.stages.base.Job.made`.
        folder: for the parts of the maps.
        device: `auto`, `cpu` or `cuda`.

    Returns:
        Log-odds [P, J].

    Raises:
        UsageError, MissingInputError, DataError: see `itrpipe.judging.opened.open_judge`.
    """
    log_odds = np.empty((len(images), len(judges)))
    for column, judge in enumerate(judges):
        work = JudgedPairs(
            judge_name(judge),
            partial(replace, material),
            images,
            captions,
            device,
        )
        parts = made(work, f"{folder}-{column}").paths
        scores, scale = work.join(parts)
        log_odds[:, column] = scale.log_odds(scores)
    return log_odds
