"""Which negatives a model trained with FNE takes for false ones, and which are."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.storage.artifact import FALSE_NEGATIVES, HARD_CANDIDATES
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores


def _cells(direction: str, found: Mapping[str, Any]) -> Cells:
    drawn, hardest = found["drawn"][direction], found["hardest"][direction]
    step, training_set = "Candidates of a step", "Hardest of the training set"
    return {
        (step, "drawn true, %"): Number.of(drawn["drawn"]),
        (step, "hardest true, %"): Number.of(drawn["hardest"]),
        (step, "area"): Number.of(drawn["roc_area"], digits=3),
        (training_set, "likely, %"): Number.of(hardest["likely_percent"]),
        (training_set, "area"): Number.of(hardest["roc_area"], digits=3),
        (training_set, "area of similarity"): Number.of(hardest["roc_area_of_similarity"], digits=3),
    }


_MEANING = (
    "Drawn true: correct matches among the negatives that sampling by probability draws from a batch and the memory; "
    "hardest true: among the hardest of these. Area: under the ROC curve of the probability, of correct matches "
    "against the others; of similarity: of the bare similarity. Likely: candidates with a probability above a half."
)
SHOWN = (
    Measured(
        "Estimated false negatives, captions for images",
        FALSE_NEGATIVES,
        partial(_cells, "texts_for_images"),
        _MEANING,
        marks=False,
    ),
    Measured(
        "Estimated false negatives, images for captions",
        FALSE_NEGATIVES,
        partial(_cells, "images_for_texts"),
        _MEANING,
        marks=False,
    ),
)


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
