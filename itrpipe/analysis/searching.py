"""Images for a caption and captions for an image, by a trained model: what `itrpipe search` computes.

Models with embeddings embed the query and search those that training wrote, through an index where an inner product
compares them. All others score every pair of the query with what is searched, by the functions that training writes
scores with.

Shapes: N images, T captions, D embedding width.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from itrpipe.datasets.prepared import PreparedDataset, Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.errors import UsageError
from itrpipe.evaluation.ranks import check_finite
from itrpipe.features.embeddings import INNER_PRODUCT, SplitEmbeddings
from itrpipe.features.store import FEATURES, FeatureFile
from itrpipe.mining.faiss_engine import IndexKind, search_index
from itrpipe.mining.lists import NO_ROW
from itrpipe.models.base import DualEncoder, ImageBatch, TextBatch
from itrpipe.scene_graph.graph import SceneGraph
from itrpipe.scene_graph.phrase_arrays import CaptionPhrases
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, SCHEMA, graphs_table, write_graphs
from itrpipe.training.captions import WordIds
from itrpipe.training.data import SplitData
from itrpipe.training.encode import score_split
from itrpipe.training.phrase_data import PhraseSplitData
from itrpipe.training.saved import load_model, max_tokens_of
from itrpipe.training.splits import open_split

BLOCK = 256
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


@dataclass(frozen=True)
class Side:
    """Some images or some captions of data that a model reads.

    Attributes:
        data: holds them.
        rows: int64 [n], which.
    """

    data: SplitData
    rows: np.ndarray


@dataclass(frozen=True)
class Pairing:
    """Images of one data with captions of another, as `score_split` takes them; see `Rows`."""

    of_images: Side
    of_captions: Side

    @property
    def num_images(self) -> int:
        """N."""
        return len(self.of_images.rows)

    @property
    def num_captions(self) -> int:
        """T."""
        return len(self.of_captions.rows)

    def images(self, rows: np.ndarray) -> ImageBatch:
        """The given images [B]."""
        return self.of_images.data.images(self.of_images.rows[rows])

    def texts(self, rows: np.ndarray) -> TextBatch:
        """The given captions [T]."""
        return self.of_captions.data.texts(self.of_captions.rows[rows])


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
        self.folder, self.label, self._device = folder, label, torch.device(device)
        self._saved = load_model(folder)
        self._model = self._saved.model.to(self._device)

    @property
    def embeds(self) -> bool:
        """Whether it makes one vector of an image and one of a caption."""
        return isinstance(self._model, DualEncoder)

    def unknown_words(self, pair: Split) -> list[str]:
        """Words of a query that the model does not know; none where its tokenizer spells every word."""
        return [word for word, known in self._words(pair).items() if not known]

    def _words(self, pair: Split) -> dict[str, bool]:
        """Words of a query and whether the model knows them; empty where its tokenizer spells every word."""
        tokens = self._saved.tokens
        vocabulary = tokens.vocabulary if isinstance(tokens, WordIds) else tokens
        if not isinstance(vocabulary, Vocabulary):
            return {}
        read = tokens.reading.words(pair) if isinstance(tokens, WordIds) else pair.tokens
        return {word: word in vocabulary.ids for word in read.flatten().to_pylist()}

    @torch.inference_mode()
    def embed(self, query: Query) -> np.ndarray:
        """Embedding [1, D] float32 of a query, of a model that has some."""
        assert isinstance(self._model, DualEncoder)
        row, data = np.zeros(1, dtype=np.int64), self._read(query)
        if query.finds == "images":
            encoded = self._model.encode_texts(data.texts(row).to(self._device))
        else:
            encoded = self._model.encode_images(data.images(row).to(self._device))
        return encoded.embedding.float().cpu().numpy()

    def scores(
        self, query: Query, searched: Searched, rows: np.ndarray, advance: Callable[[int], object]
    ) -> np.ndarray:
        """Scores [n] float32 of a query with images or captions.

        Args:
            query: what is searched with.
            searched: what holds them.
            rows: [n] which of them.
            advance: called with the number of pairs done.
        """
        own = Side(self._read(query), np.zeros(1, dtype=np.int64))
        if query.finds == "images":
            pairing = Pairing(Side(self._images(searched.split, searched.features), rows), own)
        else:
            pairing = Pairing(own, Side(self._captions(searched.split, searched.features, searched.graphs), rows))
        precision = self._saved.config.get("score_precision", "fp32")  # older models have no such setting
        images, captions = pairing.num_images, np.arange(pairing.num_captions)
        found = score_split(self._model, pairing, self._device, BLOCK, images, captions, precision, advance)
        return found.reshape(-1)

    def _read(self, query: Query) -> SplitData:
        if query.finds == "captions":
            return self._images(query.pair, query.features)
        words = self._words(query.pair)
        if words and not any(words.values()):
            raise UsageError(
                f"{self.label} knows no word of the query ({', '.join(words)}), so any order would be chance; search "
                "with words of its training captions"
            )
        data = self._given_caption(query)
        length, longest = int(data.texts(np.zeros(1, dtype=np.int64)).lengths[0]), max_tokens_of(self._model)
        if length > longest:
            raise UsageError(f"the query has more than the {longest} tokens that {self.label} reads; shorten it")
        return data

    def _given_caption(self, query: Query) -> SplitData:
        if not self._saved.settings.reads_phrases:
            return self._captions(query.pair, query.features, None)
        assert query.graph is not None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / SCENE_GRAPHS_FILE
            write_graphs(path, [_stored(query.graph, query.pair)])
            return self._captions(query.pair, query.features, path.parent)

    def _images(self, split: Split, features: FeatureFile) -> SplitData:
        """Data whose images can be read; those of models that read phrases need no scene graphs."""
        return open_split(split, features, self._saved.tokens, self._saved.settings, self._saved.frame)

    def _captions(self, split: Split, features: FeatureFile, graphs: Path | None) -> SplitData:
        settings: Any = self._saved.settings
        if not settings.reads_phrases:
            return self._images(split, features)
        assert graphs is not None
        phrases = CaptionPhrases.read(graphs, settings.max_words)
        return PhraseSplitData(split, features, self._saved.vocabulary, phrases, settings.phrases)


def nearest(embeddings: SplitEmbeddings, kind: Kind, query: np.ndarray, top: int, index: IndexKind) -> Found:
    """The embeddings of a split that are nearest to a query.

    Args:
        embeddings: of the split.
        kind: which of them are searched.
        query: [1, D].
        top: how many are wanted; fewer come where there are fewer, or where `ivf` finds fewer.
        index: `flat` or `ivf`, for embeddings that compare by inner product.

    Raises:
        UsageError: `ivf` is asked for and the embeddings compare otherwise.
        MissingInputError: faiss is needed and not installed.
        DataError: an embedding holds NaN or infinity.
    """
    vectors, ids = (
        (embeddings.images, embeddings.image_ids) if kind == "images" else (embeddings.texts, embeddings.caption_ids)
    )
    if embeddings.measure == INNER_PRODUCT:
        rows, scores = (found[0] for found in search_index(vectors, query, min(top, len(vectors)), index))
        known = rows != NO_ROW
        return best(scores[known], ids[rows[known]], top)
    if index == "ivf":
        raise UsageError(f"--index ivf searches inner products and these embeddings compare by {embeddings.measure}")
    compared = replace(embeddings, texts=query) if kind == "images" else replace(embeddings, images=query)
    return best(compared.scores().reshape(-1), ids, top)


def best(scores: np.ndarray, ids: np.ndarray, top: int) -> Found:
    """The highest of some scores [n] of candidates with these ids [n], at most `top` of them.

    Raises:
        DataError: a score is NaN or infinite.
    """
    check_finite(scores[None])
    order = np.lexsort((ids, -scores))[:top]
    return Found(ids[order], scores[order])


def _stored(graph: SceneGraph, pair: Split) -> pa.Table:
    """A graph as the row of a file of scene graphs."""
    own = [pair.captions["caption_id"], pair.captions["image_id"]]
    return pa.Table.from_arrays([*own, *graphs_table([graph], "given").columns], schema=SCHEMA)
