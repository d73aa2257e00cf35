"""Whether a second training is worth it: how hard negatives of a batch and of the dataset are, and how many false."""

from __future__ import annotations

from typing import TYPE_CHECKING

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.storage.artifact import SECOND_ROUND
from itrpipe.storage.disk import write_json
from itrpipe.training.settings import no_first_training

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores


def asks(evaluation: Evaluation) -> bool:
    """Asked of single models that are a first training."""
    return evaluation.is_single and not no_first_training(evaluation.manifest.settings)


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes second_round.json, about the training split whichever is evaluated."""
    from itrpipe.analysis.second_round import diagnose

    write_json(evaluation.folder / SECOND_ROUND, diagnose(evaluation.trained, evaluation.prepare))
