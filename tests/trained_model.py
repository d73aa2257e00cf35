"""A trained model with a split that it reads, to be asked once more."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import tokenize
from itrpipe.features.embeddings import SplitEmbeddings
from itrpipe.models.base import EmbeddingModel, ImageBatch, TextBatch
from itrpipe.training.data import Sources, SplitData, reopened
from itrpipe.training.distributed import AnyMatcher
from itrpipe.training.encoding import SplitEncoder, embeddings
from itrpipe.training.saved import SavedModel, load_model


@dataclass(frozen=True)
class TrainedModel:
    """A trained model and a split that it reads.

    Attributes:
        model: in evaluation mode, on `device`.
        data: the split.
        device: where to compute.
        precision: of the scores of pairs, as the model was evaluated in training.
    """

    model: AnyMatcher
    data: SplitData
    device: torch.device
    precision: str

    @classmethod
    def open(cls, folder: Path, sources: Sources, split: str, device: str) -> TrainedModel:
        """Reads a trained model and opens a split for it.

        Args:
            folder: artifact of `train`.
            sources: what the model was trained on.
            split: name.
            device: `cpu` or `cuda`.

        Raises:
            DataError: the features are not what the model reads, or a file is damaged.
        """
        saved = load_model(folder)
        place = torch.device(device)
        return cls(
            saved.model.to(place), reopened(saved, sources, [split])[split], place, saved.config["score_precision"]
        )

    def scores(self, rows: Any, block: int) -> np.ndarray:
        """Scores [N, T] of all images with all captions of `rows`, by the functions that training writes them with.

        Args:
            rows: the split, or the same with other images.
            block: images or captions per forward pass.
        """
        encoder, captions = SplitEncoder(self.model, self.device, block, self.precision), np.arange(rows.num_captions)
        sides = encoder.images(rows, np.arange(rows.num_images)), encoder.texts(rows, captions)
        if not isinstance(self.model, EmbeddingModel):
            return encoder.scores(*sides)
        images, texts = (np.concatenate(list(embeddings(each))) for each in sides)
        split = self.data.split
        ids = (split.image_ids[: len(images)], split.caption_ids[: len(texts)], split.caption_image[: len(texts)])
        return SplitEmbeddings(images, ids[0], texts, ids[1], ids[2], self.model.measure).scores()


def pair_score(saved: SavedModel, image: ImageBatch, text: str) -> float:
    """The score of one image with one sentence, on their own."""
    table = pa.table({"text": [text], "tokens": [tokenize(text)]})
    tokens, lengths = saved.tokens.encode_split(Split("test", table, table))
    read = TextBatch(torch.from_numpy(tokens.astype(np.int64)), torch.from_numpy(lengths.astype(np.int64)))
    with torch.inference_mode():
        return float(saved.model.score_matrix(saved.model.encode_images(image), saved.model.encode_texts(read)))
