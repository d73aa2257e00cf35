"""Negatives that a model trained with FNE takes for false ones, and which of them are correct matches.

How many of its negatives were correct matches in training stands in the history of that training.

Shapes: A anchors, M candidates of an anchor.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from itrpipe.analysis.questions.base import EvaluatedModel
from itrpipe.datasets.truth import PairSet, known_pairs
from itrpipe.evaluation.metrics import roc_area
from itrpipe.evaluation.tables import Cells, Measured, Number
from itrpipe.features.embeddings import EMBEDDINGS, SplitEmbeddings, SplitScores, read_embeddings
from itrpipe.methods.fne.declaration import Fne
from itrpipe.storage.artifact import FALSE_NEGATIVES, HARD_CANDIDATES

if TYPE_CHECKING:
    from itrpipe.learning.false_negatives import Gaussians

DIRECTIONS = ("texts_for_images", "images_for_texts")
ANCHORS, DEPTH = 500, 20
"""Anchors of each direction, and the hardest candidates of each."""


def _cells(direction: str, found: Any) -> Cells:
    hardest = found["hardest"][direction]
    return {
        ("", "likely, %"): Number.of(hardest["likely_percent"]),
        ("", "true, %"): Number.of(hardest["true_percent"]),
        ("", "area"): Number.of(hardest["roc_area"], digits=3),
        ("", "area of similarity"): Number.of(hardest["roc_area_of_similarity"], digits=3),
    }


_MEANING = (
    "Of the hardest candidates in the training set. Likely: with a probability above a half to be correct matches; "
    "true: correct matches, where the dataset knows them. Area: under the ROC curve of the probability, of correct "
    "matches against the others; of similarity: of the bare similarity."
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


def answer(evaluation: EvaluatedModel, split: SplitScores) -> Any:
    """Measure a single model whose method estimates them, on the training split whichever is evaluated.

    false_negatives.parquet has the candidates.
    """
    if not (evaluation.is_single and "false-negatives" in evaluation.method.answers):
        return None
    trained = evaluation.manifest.settings
    embeddings = read_embeddings(evaluation.trained / EMBEDDINGS, "train")
    matches = known_pairs(evaluation.prepare, embeddings.image_ids, embeddings.caption_ids)
    settings: Any = evaluation.method.model_validate(trained["loss"])
    figures, candidates = analyse(embeddings, matches, settings, trained["batch_size"])
    pq.write_table(candidates, evaluation.folder / HARD_CANDIDATES)
    return figures


def analyse(
    embeddings: SplitEmbeddings, matches: PairSet | None, settings: Fne, batch_size: int
) -> tuple[dict[str, Any], pa.Table]:
    """Estimate the distributions of similarities, and the probability of the hardest candidates to match.

    Args:
        embeddings: of the training split, by the finished model.
        matches: all correct matches; None where they are not known.
        settings: that the model was trained with.
        batch_size: that it was trained with.

    Returns:
        Figures ready for JSON: the distributions of `matches` and `mismatches`, and `hardest`, of the hardest
        candidates of the whole split. And these candidates as a table: rows of anchors one after the other, hardest
        first: `direction`, `anchor_id`, `rank` (from 0), `candidate_id`, `similarity`, `probability` (0..1) and
        `true_match`, null where matches are not known.
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
    figures: dict[str, Any] = {"hardest": {}}
    for row, name in enumerate(("matches", "mismatches")):
        figures[name] = {
            "mean": number(gaussians.mean[row].item()),
            "variance": number(gaussians.variance[row].item()),
            "count": int(gaussians.count[row]),
        }
    tables = []
    for direction in DIRECTIONS:
        table = _hardest_candidates(embeddings, matches, direction, settings, gaussians)
        figures["hardest"][direction] = _figures(table)
        tables.append(table)
    return figures, pa.concat_tables(tables)


def _hardest_candidates(
    embeddings: SplitEmbeddings, matches: PairSet | None, direction: str, settings: Fne, gaussians: Gaussians
) -> pa.Table:
    """Return the hardest candidates of some anchors of one direction."""
    import torch

    from itrpipe.learning.false_negatives import false_negative_probability

    images = (embeddings.images, embeddings.image_ids, np.arange(len(embeddings.images)))
    texts = (embeddings.texts, embeddings.caption_ids, embeddings.caption_image)
    by_image = direction == DIRECTIONS[0]
    (own, own_ids, own_owners), (others, other_ids, other_owners) = (images, texts) if by_image else (texts, images)
    anchors = np.sort(np.random.default_rng(0).permutation(len(own))[:ANCHORS])
    similarities = torch.from_numpy(own[anchors]) @ torch.from_numpy(others[:]).T  # [A, M]
    similarities.masked_fill_(torch.from_numpy(own_owners[anchors, None] == other_owners), float("-inf"))
    best = similarities.topk(min(DEPTH, similarities.shape[1]), dim=1)
    row, rank = np.nonzero(np.isfinite(best.values.numpy()))
    similarity = best.values.numpy()[row, rank]
    candidates = best.indices.numpy()[row, rank]
    probability = false_negative_probability(
        torch.from_numpy(similarity), gaussians, settings.prior, monotone=settings.monotone
    )
    match = pa.nulls(len(row), pa.bool_())
    if matches is not None:
        pairs = (candidates, anchors[row]) if by_image else (anchors[row], candidates)
        match = matches.has(*pairs)
    columns = {
        "direction": [direction] * len(row),
        "anchor_id": pa.array(own_ids[anchors[row]].tolist(), pa.string()),
        "rank": pa.array(rank, pa.int32()),
        "candidate_id": pa.array(other_ids[candidates].tolist(), pa.string()),
        "similarity": similarity,
        "probability": probability.numpy(),
        "true_match": match,
    }
    return pa.table(columns)


def _figures(candidates: pa.Table) -> dict[str, Any]:
    """Return how well probability and similarity tell correct matches from other hard candidates."""
    likely = candidates["probability"].to_numpy()
    figures = {"candidates": len(likely), "likely_percent": number(100 * (likely > 0.5).mean())}
    figures |= dict.fromkeys(("true_percent", "roc_area", "roc_area_of_similarity"))
    if not candidates["true_match"].null_count:
        match = candidates["true_match"].to_numpy()
        figures["true_percent"] = number(100 * match.mean())
        figures["roc_area"] = number(roc_area(likely, match))
        figures["roc_area_of_similarity"] = number(roc_area(candidates["similarity"].to_numpy(), match))
    return figures


def number(value: float | None) -> float | None:
    """Round a number for JSON, which has no NaN."""
    return None if value is None or not np.isfinite(value) else round(float(value), 6)
