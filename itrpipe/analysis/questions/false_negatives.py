"""Negatives that a model trained with FNE takes for false ones, and which of them are correct matches.

How many of its negatives were correct matches in training stands in the history of that training.

Shapes: A anchors, M candidates of an anchor.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from itrpipe.storage.disk import write_json

if TYPE_CHECKING:
    from itrpipe.learning.false_negatives import Gaussians

DIRECTIONS = ("texts_for_images", "images_for_texts")
ANCHORS, DEPTH = 500, 20
"""Anchors of each direction, and the hardest candidates of each."""


def _cells(direction: str, found: Mapping[str, Any]) -> Cells:
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
SHOWN = tuple(
    Measured(f"Estimated false negatives, {what}", FALSE_NEGATIVES, partial(_cells, direction), _MEANING, marks=False)
    for direction, what in zip(DIRECTIONS, ("captions for images", "images for captions"), strict=True)
)


def asks(evaluation: EvaluatedModel) -> bool:
    """Asked of single models whose method estimates them."""
    return evaluation.is_single and "false-negatives" in evaluation.method.answers


def answer(evaluation: EvaluatedModel, split: SplitScores) -> None:
    """Write false_negatives.json and .parquet, about the training split whichever is evaluated."""
    trained = evaluation.manifest.settings
    embeddings = read_embeddings(evaluation.trained / EMBEDDINGS, "train")
    matches = known_pairs(evaluation.prepare, embeddings.image_ids, embeddings.caption_ids)
    settings: Any = evaluation.method.model_validate(trained["loss"])
    figures, candidates = analyse(embeddings, matches, settings, trained["batch_size"])
    write_json(evaluation.folder / FALSE_NEGATIVES, figures)
    pq.write_table(candidates, evaluation.folder / HARD_CANDIDATES)


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
        *(embeddings.images, embeddings.texts, embeddings.caption_image),
        batch_size=batch_size,
        mask_same_image=settings.mask_same_image,
        source=settings.negative_source,
        ties=settings.ties,
        floor=True,
    )
    figures: dict[str, Any] = {}
    for row, name in enumerate(("matches", "mismatches")):
        mean, variance = gaussians.mean[row].item(), gaussians.variance[row].item()
        figures[name] = {"mean": number(mean), "variance": number(variance), "count": int(gaussians.count[row])}
    figures["hardest"], tables = {}, []
    for name in DIRECTIONS:
        figures["hardest"][name], table = _hardest_candidates(embeddings, matches, name, settings, gaussians)
        tables.append(table)
    return figures, pa.concat_tables(tables)


def _hardest_candidates(
    embeddings: SplitEmbeddings, matches: PairSet | None, direction: str, settings: Fne, gaussians: Gaussians
) -> tuple[dict[str, Any], pa.Table]:
    """Return how well probability and similarity tell correct matches from other hard candidates, and these."""
    import torch

    from itrpipe.learning.false_negatives import false_negative_probability

    order = 1 if direction == DIRECTIONS[0] else -1
    ids = (embeddings.image_ids, embeddings.caption_ids)[::order]
    owners = (np.arange(len(embeddings.images)), embeddings.caption_image)[::order]
    vectors = (embeddings.images, embeddings.texts)[::order]
    anchors = np.sort(np.random.default_rng(0).permutation(len(ids[0]))[:ANCHORS])
    similarities = torch.from_numpy(vectors[0][anchors]) @ torch.from_numpy(vectors[1][:]).T  # [A, M]
    similarities.masked_fill_(torch.from_numpy(owners[0][anchors, None] == owners[1]), float("-inf"))
    best = similarities.topk(min(DEPTH, similarities.shape[1]), dim=1)
    row, rank = np.nonzero(np.isfinite(best.values.numpy()))
    similarity, columns = (each.numpy()[row, rank] for each in (best.values, best.indices))
    likely = false_negative_probability(
        torch.from_numpy(similarity), gaussians, settings.prior, monotone=settings.monotone
    ).numpy()
    figures = {"candidates": len(row), "likely_percent": number(100 * (likely > 0.5).mean())}
    figures |= dict.fromkeys(("true_percent", "roc_area", "roc_area_of_similarity"))
    match = pa.nulls(len(row), pa.bool_())
    if matches is not None:
        match = matches.has(*(anchors[row], columns)[::-order])
        figures["true_percent"] = number(100 * match.mean())
        figures["roc_area"] = number(roc_area(likely, match))
        figures["roc_area_of_similarity"] = number(roc_area(similarity, match))
    table = {
        "direction": [direction] * len(row),
        "anchor_id": pa.array(ids[0][anchors[row]].tolist(), pa.string()),
        "rank": pa.array(rank, pa.int32()),
        "candidate_id": pa.array(ids[1][columns].tolist(), pa.string()),
        "similarity": similarity,
        "probability": likely,
        "true_match": match,
    }
    return figures, pa.table(table)


def number(value: float | None) -> float | None:
    """Rounded for JSON, which has no NaN."""
    return None if value is None or not np.isfinite(value) else round(float(value), 6)
