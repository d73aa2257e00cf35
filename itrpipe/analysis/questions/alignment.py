"""Alignment and uniformity of embeddings that are compared by inner product, and of AsCL's mean vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.artifacts.disk import write_json
from itrpipe.artifacts.files import ALIGNMENT

if TYPE_CHECKING:
    from itrpipe.features.scores import SplitScores


def asks(evaluation: Evaluation) -> bool:
    """Asked of single models that embed, or whose backbone has vectors to take instead."""
    return evaluation.is_single and (evaluation.backbone.embeds or "mean-vectors" in evaluation.backbone.answers)


def answer(evaluation: Evaluation, split: SplitScores) -> None:
    """Writes alignment.json. Mean vectors are named in it: they say nothing of how the model ranks."""
    from itrpipe.evaluation.alignment import alignment_and_uniformity
    from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, read_embeddings

    if not evaluation.backbone.embeds:
        _answer_of_means(evaluation)
        return
    found = read_embeddings(evaluation.trained / EMBEDDINGS, evaluation.settings.split)
    if found.measure == INNER_PRODUCT:
        figures = alignment_and_uniformity(found.images, found.texts, found.caption_image)
        write_json(evaluation.folder / ALIGNMENT, figures)


def _answer_of_means(evaluation: Evaluation) -> None:
    from itrpipe.analysis.canary import TrainedModel
    from itrpipe.analysis.mean_vectors import VECTORS, mean_vectors
    from itrpipe.evaluation.alignment import alignment_and_uniformity

    sources = evaluation.sources_for(ALIGNMENT)
    if sources is None:
        return
    opened = TrainedModel.open(evaluation.trained, sources, evaluation.settings.split, evaluation.place)
    found = alignment_and_uniformity(*mean_vectors(opened, evaluation.block), opened.data.caption_image)
    write_json(evaluation.folder / ALIGNMENT, {"vectors": VECTORS, **found})
