"""Images that are searched, and what a model thinks of them.

Shapes: N images, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from itrpipe.datasets.prepared import PreparedDataset, given_split
from itrpipe.errors import DataError, UsageError
from itrpipe.features.embeddings import EMBEDDINGS, INNER_PRODUCT, compare, read_embeddings

if TYPE_CHECKING:
    from itrpipe.retrieval.model import RetrievalModel
    from itrpipe.retrieval.photo_index import PhotoIndex
    from itrpipe.retrieval.searching import Searched, SearchModel
    from itrpipe.scene_graph.settings import ParseSettings

QUERY = "the query"


class Scoring(Protocol):
    """How well each image of a gallery fits a query: scores [N], higher is better."""

    def of_sentence(self, sentence: str) -> np.ndarray:
        """Scores with a sentence.

        Raises:
            UsageError: it has no word that the model knows.
        """
        ...

    def of_row(self, row: int) -> np.ndarray:
        """Scores with an image of the gallery.

        Raises:
            UsageError: the model compares no two images.
        """
        ...

    def of_photograph(self, pixels: np.ndarray) -> np.ndarray:
        """Scores with any photograph [H, W, 3] uint8 RGB.

        Raises:
            UsageError: the model compares no two images, or its features were imported.
            DataError: the extractor finds nothing in the photograph.
        """
        ...

    def unknown_words(self, sentence: str) -> list[str]:
        """Words of a sentence that the model does not know."""
        ...


@dataclass(frozen=True)
class Gallery:
    """Images with what a page shows of them.

    Attributes:
        image_ids: N, of a dataset, or paths of photographs.
        places: N, the split of each; empty of photographs in a folder.
        captions: id -> captions.
        scoring: ranks them.
        reads_photographs: whether any photograph can be searched with.
    """

    image_ids: list[str]
    places: list[str]
    captions: Mapping[str, Sequence[str]]
    scoring: Scoring
    reads_photographs: bool = False

    @property
    def compares_images(self) -> bool:
        """Whether images can be compared with each other."""
        return isinstance(self.scoring, Embedded) and self.scoring.measure == INNER_PRODUCT

    @cached_property
    def rows(self) -> dict[str, int]:
        """Id -> row."""
        return {image_id: row for row, image_id in enumerate(self.image_ids)}


class Embedded:
    """Scores of embeddings.

    Args:
        vectors: [N, D] float32.
        measure: how they are compared.
        opened: opens the model, which happens with the first query that it has to read.

    Attributes:
        vectors, measure: as given.
    """

    def __init__(self, vectors: np.ndarray, measure: str, opened: Callable[[], RetrievalModel]) -> None:
        self.vectors, self.measure, self._opened = vectors, measure, opened

    @cached_property
    def model(self) -> RetrievalModel:
        """The model."""
        return self._opened()

    def of_sentence(self, sentence: str) -> np.ndarray:
        """See `Scoring`."""
        return compare(self.vectors, self.model.encode_texts([sentence]), self.measure)[:, 0]

    def of_row(self, row: int) -> np.ndarray:
        """See `Scoring`."""
        self._refuse_orders()
        return self.vectors @ self.vectors[row]

    def of_photograph(self, pixels: np.ndarray) -> np.ndarray:
        """See `Scoring`."""
        self._refuse_orders()
        try:
            return self.vectors @ self.model.encode_images([pixels])[0]
        except DataError as error:
            reason = str(error).removeprefix("image 0").removeprefix(":").strip()
            raise UsageError(f"the photograph {reason}") from None

    def unknown_words(self, sentence: str) -> list[str]:
        """See `Scoring`."""
        return self.model.unknown_words(sentence)

    def _refuse_orders(self) -> None:
        if self.measure != INNER_PRODUCT:
            raise UsageError(f"the model compares by {self.measure}, not image with image; search by a sentence")


class Paired:
    """Scores of a model that reads every image beside the sentence; slow where there are many.

    Args:
        model: it.
        searched: the images.
        parser: gives sentences their scene graphs, for models that read phrases.
    """

    def __init__(self, model: SearchModel, searched: Searched, parser: ParseSettings | None) -> None:
        self._model, self._searched, self._parser = model, searched, parser

    def of_sentence(self, sentence: str) -> np.ndarray:
        """See `Scoring`."""
        from itrpipe.retrieval.searching import Query
        from itrpipe.scene_graph.build import parse_captions

        graph = None if self._parser is None else parse_captions(self._parser, [sentence])[0]
        query = Query(self._pair(sentence), self._searched.features, "images", graph)
        return self._model.scores(query, self._searched, lambda count: None)

    def of_row(self, row: int) -> np.ndarray:
        """See `Scoring`."""
        raise self._refusal()

    def of_photograph(self, pixels: np.ndarray) -> np.ndarray:
        """See `Scoring`."""
        raise self._refusal()

    def unknown_words(self, sentence: str) -> list[str]:
        """See `Scoring`."""
        return self._model.unknown_words(self._pair(sentence))

    def _pair(self, sentence: str):
        split = self._searched.split
        return given_split([sentence], [str(split.image_ids[0])], split.name, QUERY)

    def _refusal(self) -> UsageError:
        return UsageError(f"{self._model.label} scores images with sentences alone; search by a sentence")


def of_dataset(trained: Path, prepared: Path, device: str = "auto", *, reads_photographs: bool = False) -> Gallery:
    """The images of all splits, by a model with embeddings.

    Args:
        trained: artifact of the model.
        prepared: artifact of the dataset.
        device: where queries are encoded.
        reads_photographs: whether the model's features can be made of any photograph.
    """
    from itrpipe.retrieval.opening import load

    dataset = PreparedDataset.open(prepared, tokens=False)
    parts = {name: read_embeddings(trained / EMBEDDINGS, name) for name in dataset.splits}
    vectors = np.concatenate([each.images[:] for each in parts.values()])
    places = [name for name, each in parts.items() for _ in range(len(each.image_ids))]
    ids = [image_id for each in parts.values() for image_id in each.image_ids.tolist()]
    measure = next(iter(parts.values())).measure
    scoring = Embedded(vectors, measure, lambda: load(trained, device=device))
    return Gallery(ids, places, captions_of(dataset), scoring, reads_photographs and measure == INNER_PRODUCT)


def of_pairs(model: SearchModel, searched: Searched, parser: ParseSettings | None) -> Gallery:
    """The images of a split, by a model that scores pairs; see `Paired`."""
    dataset = PreparedDataset.open(searched.prepare, tokens=False)
    ids = searched.split.image_ids.tolist()
    return Gallery(ids, [searched.split.name] * len(ids), captions_of(dataset), Paired(model, searched, parser))


def of_folder(index: PhotoIndex, model: Path, device: str = "auto") -> Gallery:
    """The photographs of an index.

    Args:
        index: it.
        model: folder of the model that made it.
        device: where queries are encoded.
    """
    from itrpipe.retrieval.photo_index import open_embedding

    ids = [each.file for each in index.photographs]
    scoring = Embedded(index.vectors, index.measure, lambda: open_embedding(model, device))
    return Gallery(ids, [""] * len(ids), {}, scoring, index.measure == INNER_PRODUCT)


def captions_of(dataset: PreparedDataset) -> dict[str, list[str]]:
    """Image id -> its captions, of all splits."""
    found: dict[str, list[str]] = {}
    for image_id, text in _captions(dataset):
        found.setdefault(image_id, []).append(text)
    return found


def _captions(dataset: PreparedDataset) -> Iterator[tuple[str, str]]:
    for split in map(dataset.split, dataset.splits):
        yield from zip(split.image_ids[split.caption_image].tolist(), split.texts, strict=True)
