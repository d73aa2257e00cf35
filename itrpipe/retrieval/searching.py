"""Images for a caption and captions for an image, by a trained model: what `itrpipe search` computes.

Models with embeddings compare the query with those that training wrote. All others score every pair of the query with
what is searched, by the functions that training writes scores with.

Shapes: N images, T captions, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from itrpipe.datasets.prepared import PreparedDataset, Split, no_known_word
from itrpipe.evaluation.metrics import check_finite
from itrpipe.features.embeddings import SplitEmbeddings
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.models.base import DualEncoder
from itrpipe.retrieval.captions import known_words, read_captions
from itrpipe.scene_graph.graph import SceneGraph
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.training.data import PhraseSplitData, PhraseTexts, SplitData, TokenTexts, open_split
from itrpipe.training.encoding import Encoder, embeddings
from itrpipe.training.saved import load_model

BLOCK = 256
_FIRST = np.zeros(1, dtype=np.int64)
"""Images or captions per forward pass."""
Kind = Literal["images", "captions"]


@dataclass(frozen=True)
class Query:
    """What is searched with.

    Attributes:
        pair: a split of one image and one caption; the one that is not searched with only completes it.
        features: of that image.
        finds: `images` for the caption, or `captions` for the image.
        graph: of the caption, for models that read phrases.
    """

    pair: Split
    features: FeatureFile
    finds: Kind
    graph: SceneGraph | None = None


@dataclass(frozen=True)
class Searched:
    """What is searched in.

    Attributes:
        prepare: artifact of the images and captions.
        whole: the split.
        split: the split as models are trained to read it: training images without features are left out.
        features: of its images.
        graphs: artifact of `parse`, for models that read phrases.
    """

    prepare: Path
    whole: Split
    split: Split
    features: FeatureFile
    graphs: Path | None

    @classmethod
    def open(cls, prepare: Path, extract: Path, name: str, graphs: Path | None) -> Searched:
        """Opens a split of a dataset.

        Raises:
            UsageError: the dataset has no such split.
            MissingInputError, DataError: a file is not there or damaged.
        """
        whole, features = PreparedDataset.open(prepare).split(name), FeatureFile.open(extract / FEATURES)
        absent = features.absent(whole.image_ids.tolist()) if name == "train" else []
        return cls(prepare, whole, whole.without(absent) if absent else whole, features, graphs)

    def ids(self, kind: Kind) -> np.ndarray:
        """Ids of its images or captions, text [n]."""
        return self.split.image_ids if kind == "images" else self.split.caption_ids

    def captions_reading(self, text: str) -> np.ndarray:
        """Rows int64 [n] of the captions of the whole split that are this text word for word."""
        return np.array([row for row, each in enumerate(self.whole.texts) if each == text], dtype=np.int64)


class Found(NamedTuple):
    """The best candidates, best first; equal scores in the order of their ids.

    Attributes:
        ids: text [k], of images or captions.
        scores: float32 [k].
    """

    ids: np.ndarray
    scores: np.ndarray


class SearchModel:
    """A trained model that reads queries.

    Args:
        folder: artifact of `train`.
        label: its name.
        device: `cpu` or `cuda`.

    Attributes:
        folder, label: as given.

    Raises:
        DataError: the artifact is damaged.
    """

    def __init__(self, folder: Path, label: str, device: str) -> None:
        self.folder, self.label = folder, label
        self._saved = load_model(folder)
        self._encoder = Encoder.of(self._saved, torch.device(device), BLOCK)

    @property
    def embeds(self) -> bool:
        """Whether it makes one vector of an image and one of a caption."""
        return isinstance(self._encoder.model, DualEncoder)

    def unknown_words(self, pair: Split) -> list[str]:
        """Words of a query that the model does not know; none where its tokenizer spells every word."""
        return [word for word, known in known_words(self._saved, pair).items() if not known]

    @torch.inference_mode()
    def embed(self, query: Query) -> np.ndarray:
        """Embedding [1, D] float32 of a query, of a model that has some."""
        assert isinstance(self._encoder.model, DualEncoder)
        if query.finds == "images":
            found = self._encoder.texts(self._query_text(query), _FIRST)
        else:
            found = self._encoder.images(self._images(query.pair, query.features), _FIRST)
        return next(embeddings(found))

    def scores(self, query: Query, searched: Searched, advance: Callable[[int], object]) -> np.ndarray:
        """Scores [n] float32 of a query with all images or captions.

        Args:
            query: what is searched with.
            searched: what holds them.
            advance: called with the number of pairs done.
        """
        encoder, rows = self._encoder, np.arange(len(searched.ids(query.finds)))
        if query.finds == "images":
            images = encoder.images(self._images(searched.split, searched.features), rows)
            texts = encoder.texts(self._query_text(query), _FIRST)
        else:
            images = encoder.images(self._images(query.pair, query.features), _FIRST)
            texts = encoder.texts(self._captions(searched.split, searched.features, searched.graphs), rows)
        return encoder.scores(images, texts, advance).reshape(-1)

    def _query_text(self, query: Query) -> TokenTexts | PhraseTexts:
        words = known_words(self._saved, query.pair)
        if words and not any(words.values()):
            raise no_known_word(self.label, words)
        return read_captions(self._saved, query.pair, self.label, None if query.graph is None else [query.graph])

    def _images(self, split: Split, features: FeatureFile) -> SplitData:
        """Data whose images can be read; those of models that read phrases need no scene graphs."""
        return open_split(split, features, None, self._saved.settings, self._saved.frame)

    def _captions(self, split: Split, features: FeatureFile, graphs: Path | None) -> SplitData:
        settings: Any = self._saved.settings
        if not settings.reads_phrases:
            return open_split(split, features, self._saved.tokens, settings, self._saved.frame)
        assert graphs is not None
        phrases = CaptionPhrases.read(graphs, settings.max_words)
        return PhraseSplitData(split, features, self._saved.vocabulary, phrases, settings.phrases)


def embedded_scores(embeddings: SplitEmbeddings, kind: Kind, query: np.ndarray) -> np.ndarray:
    """Scores [n] of the images or captions of a split with the embedding [1, D] of a query."""
    compared = replace(embeddings, texts=query) if kind == "images" else replace(embeddings, images=query)
    return compared.scores().reshape(-1)


def best(scores: np.ndarray, ids: np.ndarray, top: int) -> Found:
    """The highest of some scores [n] of candidates with these ids [n], at most `top` of them.

    Raises:
        DataError: a score is NaN or infinite.
    """
    check_finite(scores[None])
    order = np.lexsort((ids, -scores))[:top]
    return Found(ids[order], scores[order])
