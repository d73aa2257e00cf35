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
from itrpipe.judging.declaration import JudgeName
from itrpipe.judging.material import Material
from itrpipe.judging.opened import Scale
from itrpipe.judging.pairs import JudgedPairs
from itrpipe.storage.arrays import HeldRows
from itrpipe.storage.tables import rows_of

LOOKING = ("dual", "itm", "vlm")
"""Kinds of judges that look at photographs."""


def split_material(evaluation: EvaluatedModel, split: SplitScores, judges: Sequence[JudgeName]) -> Material:
    """Return what judges read of the evaluated split.

    Raises:
        UsageError: the given files hold no text of captions.
        MissingInputError: there are no photographs, and a judge looks at them.
    """
    prepared = PreparedDataset.open(evaluation.prepare, tokens=False).split(evaluation.settings.split)
    image_rows = rows_of(pa.array(split.image_ids), prepared.images["image_id"])
    caption_rows = rows_of(pa.array(split.caption_ids), prepared.captions["caption_id"])
    texts = prepared.captions["text"].take(caption_rows).to_pylist()
    if not any(texts):
        raise UsageError(f"--judge {judges[0]} reads captions, of which the given files hold no text; leave it out")
    photographs = vectors = None
    if any(name.kind in LOOKING for name in judges):
        from itrpipe.features.extraction import ImageFiles

        photographs = ImageFiles.of_split(image_root(evaluation.prepare), prepared).of(image_rows)
    if EMBEDDINGS in evaluation.manifest.outputs:
        embeddings = read_embeddings(evaluation.trained / EMBEDDINGS, evaluation.settings.split)
        vectors = HeldRows(embeddings.images[:]), HeldRows(embeddings.texts[:])
    return Material(texts, split.caption_image, len(split.image_ids), photographs, vectors=vectors)


def ask_judge(
    name: JudgeName,
    material: Material,
    images: np.ndarray,
    captions: np.ndarray,
    made: Callable[[Work, str], Made],
    folder: str,
    device: str,
) -> tuple[np.ndarray, Scale]:
    """Let a judge score pairs, each once.

    Args:
        name: of the judge.
        material: what it reads.
        images, captions: int64 [P] rows.
        made: makes a map, such as `itrpipe.stages.base.Job.made`.
        folder: for the parts of the map.
        device: `auto`, `cpu` or `cuda`.

    Returns:
        Scores [P] float32 and their scale.

    Raises:
        UsageError, MissingInputError, DataError: see `itrpipe.judging.opened.open_judge`.
    """
    count = len(material.captions)
    pairs, places = np.unique(images * count + captions, return_inverse=True)
    work = JudgedPairs(name, partial(replace, material), pairs // count, pairs % count, device)
    scores, scale = work.join(made(work, folder).paths)
    return scores[places], scale
