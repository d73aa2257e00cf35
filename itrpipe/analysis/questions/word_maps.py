"""Where in an image a model sees a word, of dual encoders whose scores are means over words and patches."""

from __future__ import annotations

import pyarrow.parquet as pq

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.artifact import WORD_MAPS


def asks(evaluation: EvaluatedModel) -> bool:
    """Asked of single models whose backbone can have them."""
    return evaluation.is_single and "word-maps" in evaluation.backbone.answers


def answer(evaluation: EvaluatedModel, split: SplitScores) -> None:
    """Writes word_maps.parquet, where the model has such scores."""
    from itrpipe.analysis.word_maps import has_word_maps, word_maps

    if has_word_maps(evaluation.saved) and (sources := evaluation.sources_for(WORD_MAPS)):
        table = word_maps(evaluation.saved, sources, evaluation.settings.split, split)
        pq.write_table(table, evaluation.folder / WORD_MAPS)
