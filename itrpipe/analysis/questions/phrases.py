"""How well a model that reads phrases tells wrong phrases from right ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.storage.artifact import MATCHING, PHRASES
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.analysis.phrase_analysis import PhraseModel
    from itrpipe.features.embeddings import SplitScores


def asks(evaluation: Evaluation) -> bool:
    """Asked of single models that score phrases."""
    return (
        evaluation.is_single
        and evaluation.backbone.reads_phrases
        and evaluation.manifest.settings["model"].get("phase") == "inter"
    )


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes matching.json and phrases.parquet.

    Raises:
        MissingInputError: what the model was trained on was removed since.
    """
    import pyarrow.parquet as pq

    from itrpipe.analysis.phrase_analysis import fragment_scores, matching_accuracy

    opened = open_phrase_model(evaluation)
    write_json(evaluation.folder / MATCHING, matching_accuracy(opened))
    pq.write_table(fragment_scores(opened, block=evaluation.block), evaluation.folder / PHRASES)


def reranked(evaluation: Evaluation, split: SplitScores) -> SplitScores:
    """The scores of a model that ranks in two steps, with only the best of every query scored in full.

    Raises:
        MissingInputError: what the model was trained on was removed since.
    """
    from dataclasses import replace

    from itrpipe.analysis.rerank import reranked_scores

    depth = evaluation.settings.rerank
    matrix = reranked_scores(open_phrase_model(evaluation), depth, evaluation.block, evaluation.reporter)
    return replace(split, matrix=matrix)


def open_phrase_model(evaluation: Evaluation) -> PhraseModel:
    """The model with the split."""
    from itrpipe.analysis.phrase_analysis import PhraseModel
    from itrpipe.training.data import Sources

    sources = Sources(evaluation.existing("prepare"), evaluation.existing("extract"), evaluation.existing("parse"))
    return PhraseModel.open(evaluation.trained, sources, evaluation.settings.split, evaluation.place)
