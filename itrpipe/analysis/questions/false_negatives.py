"""Which negatives a model trained with FNE takes for false ones, and which are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.storage.artifact import FALSE_NEGATIVES, HARD_CANDIDATES
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores


def asks(evaluation: Evaluation) -> bool:
    """Asked of single models whose method estimates them."""
    return evaluation.is_single and "false-negatives" in evaluation.method.answers


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes false_negatives.json and .parquet, about the training split whichever is evaluated."""
    import pyarrow.parquet as pq

    from itrpipe.analysis.false_negatives import TrainingSet, analyse

    trained = evaluation.manifest.settings
    data = TrainingSet.open(evaluation.trained, evaluation.prepare)
    settings: Any = evaluation.method.model_validate(trained["loss"])
    figures, candidates = analyse(data, settings, trained["batch_size"])
    write_json(evaluation.folder / FALSE_NEGATIVES, figures)
    pq.write_table(candidates, evaluation.folder / HARD_CANDIDATES)
