"""Negatives that a model trained with FNE takes for false ones, and which of them are correct matches.

How many of its negatives were correct matches in training stands in the history of that training.

Shapes: A anchors, M candidates of an anchor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.datasets.truth import PairSet, known_pairs
from itrpipe.evaluation.tables import Cells, Content, Measured
from itrpipe.features.declaration import is_given
from itrpipe.features.embeddings import EMBEDDINGS, SplitEmbeddings, SplitScores, read_embeddings
from itrpipe.methods.fne.declaration import Fne
from itrpipe.storage.artifact import FALSE_NEGATIVES
from itrpipe.training.settings import method_of

if TYPE_CHECKING:
    from itrpipe.learning.false_negatives import Gaussians

DIRECTIONS = {
    "texts_for_images": "Captions for images",
    "images_for_texts": "Images for captions",
}
ANCHORS = 500
"""Anchors of each direction."""
DEPTH = 20
"""Hardest candidates of each anchor."""


def _cells(content: Content) -> Cells:
    cells = {}
    for direction, title in DIRECTIONS.items():
        hardest = content["hardest"][direction]
        cells[title, "likely, %"] = hardest["likely_percent"]
        cells[title, "true, %"] = hardest["true_percent"]
    return cells


SHOWN = (
    Measured(
        "Estimated false negatives",
        FALSE_NEGATIVES,
        _cells,
        "Of the hardest candidates in the training set. Likely: with a probability above a half to be correct matches; "
        "true: correct matches, where the dataset knows them.",
    ),
)


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure a single model whose method estimates them, on the training split whichever is evaluated."""
    if not evaluation.is_single or is_given(evaluation.settings.backbone):
        return None
    method = method_of(evaluation.settings.method)
    if "false-negatives" not in method.answers:
        return None
    trained = evaluation.manifest.settings
    embeddings = read_embeddings(evaluation.trained / EMBEDDINGS, "train")
    matches = known_pairs(evaluation.prepare, embeddings.image_ids, embeddings.caption_ids)
    settings: Any = method.model_validate(trained["loss"])
    return analyse(embeddings, matches, settings, trained["batch_size"])


def analyse(
    embeddings: SplitEmbeddings,
    matches: PairSet | None,
    settings: Fne,
    batch_size: int,
) -> dict[str, Any]:
    """Estimate the distributions of similarities, and the probability of the hardest candidates to match.

    Args:
        embeddings: of the training split, by the finished model.
        matches: all correct matches; None where they are not known.
        settings: that the model was trained with.
        batch_size: that it was trained with.

    Returns:
        Figures ready for JSON: the distributions of `matches` and `mismatches`, and `hardest`, of the hardest
        candidates of the whole split in either direction.
    """
    from itrpipe.learning.false_negatives import estimate_gaussians

    gaussians = estimate_gaussians(
        embeddings.images,
        embeddings.texts,
        embeddings.caption_image,
        batch_size=batch_size,
        mask_same_image=settings.mask_same_image,
        source=settings.negative_source,
        ties=settings.ties,
        floor=True,
    )
    hardest = {}
    figures: dict[str, Any] = {"hardest": hardest}
    for row, name in enumerate(("matches", "mismatches")):
        figures[name] = {
            "mean": number(gaussians.mean[row].item()),
            "variance": number(gaussians.variance[row].item()),
            "count": int(gaussians.count[row]),
        }
    for direction in DIRECTIONS:
        hardest[direction] = _hardest_candidates(embeddings, matches, direction, settings, gaussians)
    return figures


def _hardest_candidates(
    embeddings: SplitEmbeddings,
    matches: PairSet | None,
    direction: str,
    settings: Fne,
    gaussians: Gaussians,
) -> dict[str, Any]:
    """Return how many of the hardest candidates of some anchors are likely, and how many are, correct matches."""
    import torch

    from itrpipe.learning.false_negatives import false_negative_probability

    images = embeddings.images, np.arange(len(embeddings.images))
    texts = embeddings.texts, embeddings.caption_image
    by_image = direction == "texts_for_images"
    if by_image:
        queries, query_owners = images
        others, other_owners = texts
    else:
        queries, query_owners = texts
        others, other_owners = images
    shuffled = np.random.default_rng(0).permutation(len(queries))
    anchors = np.sort(shuffled[:ANCHORS])
    vectors = torch.from_numpy(queries[anchors])
    similarities = vectors @ torch.from_numpy(others[:]).T  # [A, M]
    is_match = torch.from_numpy(query_owners[anchors, None] == other_owners)
    similarities.masked_fill_(is_match, float("-inf"))

    depth = min(DEPTH, similarities.shape[1])
    best = similarities.topk(depth, dim=1)
    is_candidate = best.values.isfinite()
    probability = false_negative_probability(
        best.values[is_candidate],
        gaussians,
        settings.prior,
        monotone=settings.monotone,
    )
    is_likely = probability.numpy() > 0.5
    figures = {
        "candidates": len(is_likely),
        "likely_percent": number(100 * is_likely.mean()),
        "true_percent": None,
    }
    if matches is not None:
        captions = best.indices[is_candidate].numpy()
        image_rows = anchors[is_candidate.nonzero()[:, 0].numpy()]
        if not by_image:
            captions, image_rows = image_rows, captions
        is_true = matches.has(captions, image_rows)
        figures["true_percent"] = number(100 * is_true.mean())
    return figures


def number(value: float) -> float | None:
    """Round a number for JSON, which has no NaN."""
    if not np.isfinite(value):
        return None
    return round(float(value), 6)
