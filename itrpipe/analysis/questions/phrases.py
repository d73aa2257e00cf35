"""Accuracy of models that read phrases in telling wrong phrases from right ones."""

from __future__ import annotations

from functools import partial
from typing import Any

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.evaluation.metrics import SIDES
from itrpipe.evaluation.tables import Cells, Content, Measured
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.artifact import MATCHING


def _cells(negatives: str, content: Content) -> Cells:
    cells = {}
    for side, title in SIDES.items():
        for name in ("global", "local", "phrase"):
            cells[title, name] = content[negatives][side][name]
    return cells


_MEANING = (
    "How many pairs of a caption and its image, in percent, beat a negative one {drawn}. Global: by the score of the "
    "whole caption with the whole image; local: of words and phrases with regions; chance is 50 %. Phrase: in the "
    "negative pair, words and phrases that hold for the image score higher on average than the others."
)
SHOWN = (
    Measured(
        "Matching accuracy, random negatives",
        MATCHING,
        partial(_cells, "uniform"),
        _MEANING.format(drawn="drawn at random"),
    ),
    Measured(
        "Matching accuracy, hardest negatives",
        MATCHING,
        partial(_cells, "hardest"),
        _MEANING.format(drawn="that is the hardest of 128 by the encoders that see an image or a caption alone"),
    ),
)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure a single model that scores phrases.

    Raises:
        MissingInputError: what the model was trained on was removed since.
    """
    if not (evaluation.is_single and evaluation.backbone.reads_phrases):
        return None
    if evaluation.manifest.settings["model"].get("phase") != "inter":
        return None
    from itrpipe.analysis.phrases import PhraseModel, matching_accuracy

    return matching_accuracy(PhraseModel.open(evaluation))
