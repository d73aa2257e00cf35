"""Which negatives a model trained with FNE takes for false ones, and which are correct matches.

Batches and memories are made of the embeddings of the finished model, so that all candidates are of the same age.

Shapes: N images, T captions, D embedding width, A anchors, M candidates of an anchor, K hardest ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
BATCHES, ANCHORS, DEPTH = 32, 500, 20
"""Batches that negatives are drawn for; anchors of each direction, and the hardest candidates of each."""
_SEED = 0


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
SHOWN = tuple(
    Measured(f"Estimated false negatives, {what}", FALSE_NEGATIVES, partial(_cells, direction), _MEANING, marks=False)
    for direction, what in zip(DIRECTIONS, ("captions for images", "images for captions"), strict=True)
)


def asks(evaluation: EvaluatedModel) -> bool:
    """Asked of single models whose method estimates them."""
    return evaluation.is_single and "false-negatives" in evaluation.method.answers


def answer(evaluation: EvaluatedModel, split: SplitScores) -> None:
    """Writes false_negatives.json and .parquet, about the training split whichever is evaluated."""
    trained = evaluation.manifest.settings
    data = TrainingSet.open(evaluation.trained, evaluation.prepare)
    settings: Any = evaluation.method.model_validate(trained["loss"])
    figures, candidates = analyse(data, settings, trained["batch_size"])
    write_json(evaluation.folder / FALSE_NEGATIVES, figures)
    pq.write_table(candidates, evaluation.folder / HARD_CANDIDATES)


@dataclass(frozen=True)
class TrainingSet:
    """Embeddings of the training split with what is known of its matches.

    Attributes:
        embeddings: of the finished model.
        matches: all correct matches; None where they are not known.
    """

    embeddings: SplitEmbeddings
    matches: PairSet | None

    @classmethod
    def open(cls, trained: Path, prepared: Path) -> TrainingSet:
        """Reads the embeddings of a trained model and the truth of the dataset it was trained on."""
        own = read_embeddings(trained / EMBEDDINGS, "train")
        return cls(own, known_pairs(prepared, own.image_ids, own.caption_ids))

    def is_match(self, captions: np.ndarray, images: np.ndarray) -> np.ndarray | None:
        """bool, of the shape that both broadcast to; None where matches are not known."""
        return None if self.matches is None else self.matches.has(captions, images)


def analyse(data: TrainingSet, settings: Fne, batch_size: int) -> tuple[dict[str, Any], pa.Table]:
    """Runs both analyses.

    Args:
        data: the training split.
        settings: that the model was trained with.
        batch_size: likewise.

    Returns:
        Figures ready for JSON: the distributions of `matches` and `mismatches`; `drawn`, of batches with memory; and
        `hardest`, of the hardest candidates of the whole split. And these candidates as a table.
    """
    from itrpipe.learning.false_negatives import estimate_gaussians

    found = data.embeddings
    gaussians = estimate_gaussians(
        *(found.images, found.texts, found.caption_image),
        batch_size=batch_size,
        mask_same_image=settings.mask_same_image,
        source=settings.negative_source,
        ties=settings.ties,
        floor=True,
    )
    moments = {
        name: {
            "mean": number(gaussians.mean[row].item()),
            "variance": number(gaussians.variance[row].item()),
            "count": int(gaussians.count[row]),
        }
        for row, name in enumerate(("matches", "mismatches"))
    }
    tables = {name: hardest_candidates(data, name, settings, gaussians) for name in DIRECTIONS}
    figures = {
        **moments,
        "drawn": drawn_matches(data, settings, gaussians, batch_size),
        "hardest": {name: _separation(table) for name, table in tables.items()},
    }
    return figures, pa.concat_tables(tables.values())


def drawn_matches(data: TrainingSet, settings: Fne, gaussians: Gaussians, batch_size: int) -> dict[str, Any]:
    """Direction -> percent of draws that are correct matches, by probability (`drawn`) and of the `hardest` candidate.

    The percentages are expectations over the draw, not counts of one; `anchors` is how many they are means of.
    `roc_area` tells how well the probability separates all candidates; each is None where matches are not known.
    """
    import torch

    from itrpipe.learning.false_negatives import false_negative_probability
    from itrpipe.methods.fne.method import hardest_only, sampling_weights

    found, figures = data.embeddings, {}
    for direction in DIRECTIONS:
        random, judged = np.random.default_rng(_SEED), list[tuple[np.ndarray, np.ndarray]]()
        shares = {"drawn": [], "hardest": []}
        for _ in range(BATCHES):
            # Captions of a batch, followed by those of the memory that it meets.
            rows = random.permutation(len(found.texts))[: batch_size + settings.memory_size]
            size, owners = min(batch_size, len(rows)), found.caption_image[rows]
            sides, pairs = (found.images[owners], found.texts[rows]), (rows, owners[:size, None])
            if direction == DIRECTIONS[1]:
                sides, pairs = sides[::-1], (rows[:size, None], owners)
            similarities = torch.from_numpy(sides[0][:size]) @ torch.from_numpy(sides[1]).T  # [B, B + Q]
            excluded, match = torch.from_numpy(owners[:size, None] == owners), data.is_match(*pairs)
            weights = {
                "drawn": sampling_weights(similarities, similarities.diagonal(), excluded, gaussians, settings),
                "hardest": hardest_only(similarities, excluded),
            }
            for how, weight in weights.items():
                total = weight.sum(dim=1)  # 0 for an anchor without a candidate
                true = weight * (float("nan") if match is None else torch.from_numpy(match))
                shares[how].append((true.sum(dim=1) / total)[total > 0])
            if match is not None:
                options = {"prior": settings.prior, "monotone": settings.monotone}
                probability = false_negative_probability(similarities, gaussians, **options)
                judged.append((probability[~excluded].numpy(), match[~excluded.numpy()]))
        area = roc_area(*map(np.concatenate, zip(*judged, strict=True))) if judged else None
        figures[direction] = {how: number(100 * torch.cat(each).double().mean().item()) for how, each in shares.items()}
        figures[direction] |= {"anchors": sum(map(len, shares["hardest"])), "roc_area": number(area)}
    return figures


def hardest_candidates(data: TrainingSet, direction: str, settings: Fne, gaussians: Gaussians) -> pa.Table:
    """The hardest candidates over the whole split of some anchors, with their probability to be false negatives.

    Returns:
        Rows of anchors one after the other, hardest first: `direction`, `anchor_id`, `rank` (from 0), `candidate_id`,
        `similarity`, `probability` (0..1) and `true_match`, null where matches are not known.
    """
    import torch

    from itrpipe.learning.false_negatives import false_negative_probability

    found, of_images = data.embeddings, direction == DIRECTIONS[0]
    order = 1 if of_images else -1
    ids = (found.image_ids, found.caption_ids)[::order]
    owners = (np.arange(len(found.images)), found.caption_image)[::order]
    vectors = (found.images, found.texts)[::order]
    anchors = np.sort(np.random.default_rng(_SEED).permutation(len(ids[0]))[:ANCHORS])
    similarities = torch.from_numpy(vectors[0][anchors]) @ torch.from_numpy(vectors[1][:]).T  # [A, M]
    similarities.masked_fill_(torch.from_numpy(owners[0][anchors, None] == owners[1]), float("-inf"))
    best = similarities.topk(min(DEPTH, similarities.shape[1]), dim=1)
    row, rank = np.nonzero(np.isfinite(best.values.numpy()))
    similarity, columns = (each.numpy()[row, rank] for each in (best.values, best.indices))
    likely = false_negative_probability(
        torch.from_numpy(similarity), gaussians, settings.prior, monotone=settings.monotone
    )
    match = data.is_match(*(anchors[row], columns)[::-order])
    return pa.table(
        {
            "direction": [direction] * len(row),
            "anchor_id": pa.array(ids[0][anchors[row]].tolist(), pa.string()),
            "rank": pa.array(rank, pa.int32()),
            "candidate_id": pa.array(ids[1][columns].tolist(), pa.string()),
            "similarity": similarity,
            "probability": likely.numpy(),
            "true_match": pa.nulls(len(row), pa.bool_()) if match is None else match,
        }
    )


def _separation(table: pa.Table) -> dict[str, Any]:
    """How well probability and similarity tell correct matches from the other hard candidates."""
    probability, similarity = (table[name].to_numpy() for name in ("probability", "similarity"))
    figures = {"candidates": len(table), "likely_percent": number(100 * (probability > 0.5).mean())}
    if table["true_match"].null_count:
        return figures | dict.fromkeys(("true_percent", "roc_area", "roc_area_of_similarity"))
    match = table["true_match"].to_numpy(zero_copy_only=False)
    return figures | {
        "true_percent": number(100 * match.mean()),
        "roc_area": number(roc_area(probability, match)),
        "roc_area_of_similarity": number(roc_area(similarity, match)),
    }


def number(value: float | None) -> float | None:
    """Rounded for JSON, which has no NaN."""
    return None if value is None or not np.isfinite(value) else round(float(value), 6)
