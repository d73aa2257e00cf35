"""What a model trained with FNE would draw as negatives of the training set, and how many of these are correct matches.

Batches and memories are made of the embeddings of the finished model, so that all candidates are of the same age.

Shapes: N images, T captions, D embedding width, A anchors, M candidates of an anchor, K hardest ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from itrpipe.datasets.prepared import PreparedDataset
from itrpipe.datasets.truth import PairSet, read_truth
from itrpipe.evaluation.roc_area import roc_area
from itrpipe.features.embeddings import EMBEDDINGS, SplitEmbeddings, read_embeddings
from itrpipe.learning.false_negatives import Gaussians, estimate_gaussians, false_negative_probability
from itrpipe.methods.fne.declaration import Fne
from itrpipe.methods.fne.method import hardest_only, sampling_weights

DIRECTIONS = ("texts_for_images", "images_for_texts")
BATCHES, ANCHORS, DEPTH = 32, 500, 20
"""Batches that negatives are drawn for; anchors of each direction, and the hardest candidates of each."""
_SEED = 0


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
        embeddings = read_embeddings(trained / EMBEDDINGS, "train")
        image_ids = PreparedDataset.open(prepared).split("train").image_ids
        return cls.of(embeddings, image_ids, read_truth(prepared, image_ids, embeddings.caption_ids))

    @classmethod
    def of(
        cls, embeddings: SplitEmbeddings, image_ids: np.ndarray, true_images: list[np.ndarray] | None
    ) -> TrainingSet:
        """Takes the true images of every caption.

        Args:
            embeddings: of the images that were trained on.
            image_ids: of the whole split, which may hold more.
            true_images: for each caption of the embeddings rows of `image_ids`; None where they are not known.
        """
        if true_images is None:
            return cls(embeddings, None)
        row_of = {image_id: row for row, image_id in enumerate(embeddings.image_ids.tolist())}
        rows = np.array([row_of.get(image_id, -1) for image_id in image_ids.tolist()])
        captions = np.repeat(np.arange(len(true_images)), [len(each) for each in true_images])
        images = rows[np.concatenate(true_images)]
        return cls(embeddings, PairSet.of(captions[images >= 0], images[images >= 0], len(row_of)))

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
    found = data.embeddings
    gaussians = estimate_gaussians(
        found.images,
        found.texts,
        found.caption_image,
        batch_size=batch_size,
        mask_same_image=settings.mask_same_image,
        source=settings.negative_source,
        ties=settings.ties,
        floor=True,
    )
    tables = {name: hardest_candidates(data, name, settings, gaussians) for name in DIRECTIONS}
    figures: dict[str, Any] = dict(zip(("matches", "mismatches"), _moments(gaussians), strict=True))
    figures["drawn"] = drawn_matches(data, settings, gaussians, batch_size)
    figures["hardest"] = {name: _separation(table) for name, table in tables.items()}
    return figures, pa.concat_tables(tables.values())


def drawn_matches(data: TrainingSet, settings: Fne, gaussians: Gaussians, batch_size: int) -> dict[str, Any]:
    """Direction -> percent of draws that are correct matches, by probability (`drawn`) and of the `hardest` candidate.

    The percentages are expectations over the draw, not counts of one; `anchors` is how many they are means of.
    `roc_area` tells how well the probability separates all candidates; each is None where matches are not known.
    """
    shares: dict[str, dict[str, list[Tensor]]] = {name: {"drawn": [], "hardest": []} for name in DIRECTIONS}
    judged: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in DIRECTIONS}
    for rows in _pools(data.embeddings, settings.memory_size, batch_size):
        size = min(batch_size, len(rows))
        image_rows = data.embeddings.caption_image[rows]
        images, texts = (
            torch.from_numpy(data.embeddings.images[image_rows]),
            torch.from_numpy(data.embeddings.texts[rows]),
        )
        excluded = torch.from_numpy(image_rows[:size, None] == image_rows[None, :])
        for name, anchors, candidates in zip(DIRECTIONS, (images, texts), (texts, images), strict=True):
            similarities = anchors[:size] @ candidates.T  # [B, B + Q]
            positive = similarities.diagonal()
            weights = {
                "drawn": sampling_weights(similarities, positive, excluded, gaussians, settings),
                "hardest": hardest_only(similarities, excluded),
            }
            captions, image = (
                (rows, image_rows[:size, None]) if name == DIRECTIONS[0] else (rows[:size, None], image_rows)
            )
            match = data.is_match(captions, image)
            for how, weight in weights.items():
                shares[name][how].append(_expected(weight, match))
            if match is not None:
                probability = false_negative_probability(
                    similarities, gaussians, settings.prior, monotone=settings.monotone
                )
                judged[name].append((probability[~excluded].numpy(), match[~excluded.numpy()]))
    return {name: _percentages(shares[name]) | {"roc_area": _area(judged[name])} for name in DIRECTIONS}


def hardest_candidates(data: TrainingSet, direction: str, settings: Fne, gaussians: Gaussians) -> pa.Table:
    """The hardest candidates over the whole split of some anchors, with their probability to be false negatives.

    Returns:
        Rows of anchors one after the other, hardest first: `direction`, `anchor_id`, `rank` (from 0), `candidate_id`,
        `similarity`, `probability` (0..1) and `true_match`, null where matches are not known.
    """
    found, of_images = data.embeddings, direction == DIRECTIONS[0]
    ids = (found.image_ids, found.caption_ids) if of_images else (found.caption_ids, found.image_ids)
    anchors = np.sort(np.random.default_rng(_SEED).permutation(len(ids[0]))[:ANCHORS])
    sides = (found.images, found.texts) if of_images else (found.texts, found.images)
    similarities = torch.from_numpy(sides[0][anchors]) @ torch.from_numpy(sides[1][:]).T  # [A, M]
    own = anchors if of_images else found.caption_image[anchors]
    theirs = found.caption_image if of_images else np.arange(len(found.images))
    similarities.masked_fill_(torch.from_numpy(own[:, None] == theirs[None, :]), float("-inf"))
    best = similarities.topk(min(DEPTH, similarities.shape[1]), dim=1)
    columns = best.indices.numpy()
    probability = false_negative_probability(best.values, gaussians, settings.prior, monotone=settings.monotone)
    match = data.is_match(columns, anchors[:, None]) if of_images else data.is_match(anchors[:, None], columns)
    rank = np.broadcast_to(np.arange(columns.shape[1]), columns.shape)
    table = pa.table(
        {
            "direction": pa.array([direction] * columns.size, pa.string()),
            "anchor_id": pa.array(np.repeat(ids[0][anchors], columns.shape[1]).tolist(), pa.string()),
            "rank": pa.array(rank.reshape(-1), pa.int32()),
            "candidate_id": pa.array(ids[1][columns.reshape(-1)].tolist(), pa.string()),
            "similarity": pa.array(best.values.numpy().reshape(-1), pa.float32()),
            "probability": pa.array(probability.numpy().reshape(-1), pa.float32()),
            "true_match": pa.nulls(columns.size, pa.bool_()) if match is None else pa.array(match.reshape(-1)),
        }
    )
    return table.filter(np.isfinite(table["similarity"].to_numpy()))


def _pools(found: SplitEmbeddings, memory_size: int, batch_size: int) -> Iterator[np.ndarray]:
    """Captions of a batch, followed by those of the memory that it meets."""
    random = np.random.default_rng(_SEED)
    for _ in range(BATCHES):
        yield random.permutation(len(found.texts))[: batch_size + memory_size]


def _expected(weights: Tensor, match: np.ndarray | None) -> Tensor:
    """Expected share of matches among draws [A'] of the anchors that have a candidate; NaN where it is not known."""
    total = weights.sum(dim=1)
    if match is None:
        return torch.full_like(total[total > 0], float("nan"))
    return ((weights * torch.from_numpy(match)).sum(dim=1) / total)[total > 0]


def _percentages(shares: dict[str, list[Tensor]]) -> dict[str, Any]:
    found: dict[str, Any] = {how: _number(100 * torch.cat(each).double().mean().item()) for how, each in shares.items()}
    return {**found, "anchors": sum(map(len, shares["hardest"]))}


def _area(judged: list[tuple[np.ndarray, np.ndarray]]) -> float | None:
    """Area under the ROC curve of probabilities with whether these are matches; None without any."""
    if not judged:
        return None
    probability, match = (np.concatenate(each) for each in zip(*judged, strict=True))
    return _number(roc_area(probability, match))


def _moments(gaussians: Gaussians) -> Iterator[dict[str, float | int | None]]:
    for mean, variance, count in zip(gaussians.mean, gaussians.variance, gaussians.count, strict=True):
        yield {"mean": _number(mean.item()), "variance": _number(variance.item()), "count": int(count)}


def _separation(table: pa.Table) -> dict[str, Any]:
    """How well probability and similarity tell correct matches from the other hard candidates."""
    probability = table["probability"].to_numpy()
    figures: dict[str, Any] = {"candidates": len(table), "likely_percent": _number(100 * (probability > 0.5).mean())}
    if table["true_match"].null_count:
        return figures | {"true_percent": None, "roc_area": None, "roc_area_of_similarity": None}
    match = table["true_match"].to_numpy(zero_copy_only=False)
    return figures | {
        "true_percent": _number(100 * match.mean()),
        "roc_area": _number(roc_area(probability, match)),
        "roc_area_of_similarity": _number(roc_area(table["similarity"].to_numpy(), match)),
    }


def _number(value: float | None) -> float | None:
    """Rounded for JSON, which has no NaN."""
    return None if value is None or not np.isfinite(value) else round(float(value), 6)
