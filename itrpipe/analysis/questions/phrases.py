"""Accuracy of models that read phrases in telling wrong phrases from right ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.features.embeddings import SplitScores
from itrpipe.storage.artifact import MATCHING
from itrpipe.storage.disk import write_json

_SIDES = {"i2t": "Image → text", "t2i": "Text → image"}
_MEASURES = ("global", "local", "phrase")


def _cells(negatives: str, found: Mapping[str, Any]) -> Cells:
    return {
        (title, name): Number.of(found[negatives][side][name]) for side, title in _SIDES.items() for name in _MEASURES
    }


_MEANING = (
    "How many pairs of a caption and its image, in percent, beat a negative one {drawn}. Global: by the score of the "
    "whole caption with the whole image; local: of words and phrases with regions; chance is 50 %. Phrase: in the "
    "negative pair, words and phrases that hold for the image score higher on average than the others."
)
_NEGATIVES = {
    "uniform": ("random", "drawn at random"),
    "hardest": ("hardest", "that is the hardest of 128 by the encoders that see an image or a caption alone"),
}
SHOWN = tuple(
    Measured(f"Matching accuracy, {name} negatives", MATCHING, partial(_cells, choice), _MEANING.format(drawn=drawn))
    for choice, (name, drawn) in _NEGATIVES.items()
)


def asks(evaluation: EvaluatedModel) -> bool:
    """Asked of single models that score phrases."""
    return (
        evaluation.is_single
        and evaluation.backbone.reads_phrases
        and evaluation.manifest.settings["model"].get("phase") == "inter"
    )


def answer(evaluation: EvaluatedModel, split: SplitScores) -> None:
    """Write matching.json.

    Raises:
        MissingInputError: what the model was trained on was removed since.
    """
    from itrpipe.analysis.phrases import PhraseModel, matching_accuracy

    write_json(evaluation.folder / MATCHING, matching_accuracy(PhraseModel.open(evaluation)))


def reranked(evaluation: EvaluatedModel, split: SplitScores) -> SplitScores:
    """The scores of a model that ranks in two steps, with only the best of every query scored in full.

    Raises:
        MissingInputError: what the model was trained on was removed since.
    """
    from itrpipe.analysis.phrases import PhraseModel, reranked_scores

    depth = evaluation.settings.rerank
    matrix = reranked_scores(PhraseModel.open(evaluation), depth, evaluation.block, evaluation.reporter)
    return replace(split, matrix=matrix)
