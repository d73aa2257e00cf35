"""Alignment and uniformity of embeddings that are compared by inner product, and of AsCL's mean vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from itrpipe.analysis.questions.base import Evaluation
from itrpipe.storage.artifact import ALIGNMENT
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.features.embeddings import SplitScores


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
    import torch

    from itrpipe.analysis.mean_vectors import VECTORS, mean_vectors
    from itrpipe.datasets.prepared import PreparedDataset
    from itrpipe.evaluation.alignment import alignment_and_uniformity
    from itrpipe.features.store import FEATURES, FeatureFile
    from itrpipe.models.ascl.network import AsclEncoder
    from itrpipe.training.data import open_split
    from itrpipe.training.saved import load_model

    sources = evaluation.sources_for(ALIGNMENT)
    if sources is None:
        return
    saved, device = load_model(evaluation.trained), torch.device(evaluation.place)
    split = PreparedDataset.open(sources.prepare).split(evaluation.settings.split)
    features = FeatureFile.open(sources.extract / FEATURES)
    data = open_split(split, features, saved.tokens, saved.settings, saved.frame)
    model = cast(AsclEncoder, saved.model).to(device)
    found = alignment_and_uniformity(*mean_vectors(model, data, device, evaluation.block), data.caption_image)
    write_json(evaluation.folder / ALIGNMENT, {"vectors": VECTORS, **found})
