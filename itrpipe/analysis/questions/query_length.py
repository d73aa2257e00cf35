"""How recall of captions depends on their number of words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.storage.artifact import QUERY_LENGTH
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores


def _cells(found: Sequence[Mapping[str, Any]]) -> Cells:
    return {("Words", _words(each)): Number.of(each["t2i_r1"]) for each in found}


def _words(bucket: Mapping[str, Any]) -> str:
    if bucket["to"] is None:
        return f"from {bucket['from']}"
    return f"up to {bucket['to']}" if bucket["from"] == 1 else f"{bucket['from']} to {bucket['to']}"


SHOWN = (
    Measured(
        "Recall by the length of captions",
        QUERY_LENGTH,
        _cells,
        "R@1 of images for captions, in percent, by how many words these have.",
    ),
)


def asks(evaluation: Evaluation) -> bool:
    """Asked of every model."""
    return True


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes query_length.json, where any caption has words: of given embeddings they may not be known."""
    import numpy as np
    import pyarrow.compute as pc

    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.evaluation.metrics import ranks
    from itrpipe.evaluation.query_length import recall_by_length

    captions = PreparedDataset.open(evaluation.prepare).split(evaluation.settings.split)
    counts = pc.call_function("list_value_length", [captions.tokens]).to_pylist()
    if not any(counts):
        return
    words = dict(zip(captions.caption_ids.tolist(), counts, strict=True))
    lengths = np.array([words[caption] for caption in split.caption_ids.tolist()])
    found = ranks(split.matrix, split.caption_image).texts_to_images
    write_json(evaluation.folder / QUERY_LENGTH, recall_by_length(found, lengths))
