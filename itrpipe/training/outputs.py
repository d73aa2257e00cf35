"""What a finished training writes beside its weights: its history, and the embeddings or scores of the splits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from itrpipe.features.scores import SplitScores
from itrpipe.features.scores import write_scores as write_split_scores
from itrpipe.models.base import DualEncoder
from itrpipe.progress import Reporter
from itrpipe.training.data import SplitData
from itrpipe.training.encode import AnyMatcher, score_split, write_split


def write_history(path: Path, history: list[dict[str, Any]]) -> None:
    """Writes one row per validation.

    Args:
        path: the file.
        history: rows, whose columns may differ: the first epochs may be trained with another loss.
    """
    names = list(dict.fromkeys(name for row in history for name in row))
    pq.write_table(pa.table({name: [row.get(name) for row in history] for name in names}), path)


def write_embeddings(
    path: Path,
    model: DualEncoder,
    splits: Mapping[str, SplitData],
    device: torch.device,
    block: int,
    reporter: Reporter,
) -> None:
    """Embeds all images and captions of every split.

    Args:
        path: the file; what an interrupted run has left there is replaced.
        model: the trained one.
        splits: name -> data.
        device: the model's.
        block: rows per forward pass.
        reporter: shows the progress.
    """
    path.unlink(missing_ok=True)
    total = sum(data.num_images + data.num_captions for data in splits.values())
    with reporter.task("embedding all splits", total, "rows") as task:
        for data in splits.values():
            write_split(path, model, data, device, block, task.advance)


def write_scores(
    path: Path,
    model: AnyMatcher,
    splits: Mapping[str, SplitData],
    device: torch.device,
    block: int,
    precision: str,
    reporter: Reporter,
) -> None:
    """Scores val and test; the scores of the training split would be a matrix that nothing reads.

    Args:
        path, model, splits, device, block, reporter: see `write_embeddings`.
        precision: `fp32` or `bf16`.
    """
    path.unlink(missing_ok=True)
    scored = {name: data for name, data in splits.items() if name != "train"}
    pairs = sum(data.num_images * data.num_captions for data in scored.values())
    with reporter.task("scoring val and test", pairs, "pairs") as task:
        for name, data in scored.items():
            rows = np.arange(data.num_captions)
            matrix = score_split(model, data, device, block, data.num_images, rows, precision, task.advance)
            split = data.split
            scores = SplitScores(matrix, split.image_ids, split.caption_ids, split.caption_image)
            write_split_scores(path, name, scores)
