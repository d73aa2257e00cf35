"""A model in mteb: its scores are those of the embeddings."""

from __future__ import annotations

from typing import Any

import mteb
import numpy as np
import pytest
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from PIL import Image

from itrpipe.errors import UsageError
from itrpipe.features.embeddings import INNER_PRODUCT, ORDER
from itrpipe.mteb import Encoder

SHADES = (0, 60, 120, 180)
TEXTS = ["shade 10", "shade 20", "shade 40"]
"""Of the first three images; one other is nearer to the second caption, and two to the third."""


class Shades:
    """Embeds images by their shade, and captions by the shade that they name."""

    measure = INNER_PRODUCT

    def encode_images(self, images: list[Any], *, batch_size: int = 1) -> np.ndarray:
        return self._near([np.asarray(each).mean() for each in images])

    def encode_texts(self, texts: list[str], *, batch_size: int = 1) -> np.ndarray:
        return self._near([float(each.split()[1]) for each in texts])

    def _near(self, shades: list[float]) -> np.ndarray:
        angles = np.array(shades, np.float32) / 200
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


class Tiny(AbsTaskRetrieval):
    metadata = TaskMetadata(
        name="TinyT2IRetrieval",
        description="Captions of small pictures.",
        dataset={"path": "nowhere", "revision": "none"},
        type="Any2AnyRetrieval",
        category="t2i",
        modalities=["text", "image"],
        eval_splits=["test"],
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def load_data(self, **_: Any) -> None:
        ids, names = ([f"{kind}{row}" for row in range(count)] for kind, count in (("d", 4), ("q", 3)))
        images = [Image.new("RGB", (8, 8), (shade,) * 3) for shade in SHADES]
        corpus = Dataset.from_dict({"id": ids, "image": images, "modality": ["image"] * len(ids)})
        queries = Dataset.from_dict({"id": names, "text": TEXTS, "modality": ["text"] * len(names)})
        relevant = {name: {ids[row]: 1} for row, name in enumerate(names)}
        split = {"corpus": corpus, "queries": queries, "relevant_docs": relevant, "top_ranked": None}
        self.dataset = {"default": {"test": split}}  # pyright: ignore[reportAttributeAccessIssue]
        self.data_loaded = True


def test_mteb_scores_what_the_embeddings_give(monkeypatch: pytest.MonkeyPatch) -> None:
    result = mteb.evaluate(Encoder(Shades(), "us/tiny"), Tiny(), cache=None, co2_tracker=False)
    ranks = np.arange(3)
    found = result.task_results[0].scores["test"][0]
    assert found["ndcg_at_10"] == pytest.approx(float((1 / np.log2(ranks + 2)).mean()), abs=1e-5)
    assert found["recall_at_1"] == pytest.approx(float((ranks == 0).mean()), abs=1e-5)
    monkeypatch.setattr(Shades, "measure", ORDER)
    with pytest.raises(UsageError, match="mteb compares embeddings by inner product and this model's by order"):
        Encoder(Shades())
