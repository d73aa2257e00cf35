"""Where in an image a model sees a word, of dual encoders whose scores are means over words and patches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.storage.artifact import WORD_MAPS

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores


def asks(evaluation: Evaluation) -> bool:
    """Asked of single models whose backbone can have them."""
    return evaluation.is_single and "word-maps" in evaluation.backbone.answers


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes word_maps.parquet, where the model has such scores."""
    import pyarrow.parquet as pq

    from itrpipe.analysis.word_maps import has_word_maps, word_maps
    from itrpipe.training.saved import load_model

    saved = load_model(evaluation.trained)
    if not has_word_maps(saved):
        return
    sources = evaluation.sources_for(WORD_MAPS)
    if sources is not None:
        table = word_maps(saved, sources, evaluation.settings.split, split, evaluation.place)
        pq.write_table(table, evaluation.folder / WORD_MAPS)
