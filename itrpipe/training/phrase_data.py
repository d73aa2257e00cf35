"""A split for models that read phrases: words and phrases of scene graphs, and which of them hold for an image."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from itrpipe.datasets.prepared import Split
from itrpipe.datasets.vocabulary import Vocabulary
from itrpipe.features.store import FeatureFile
from itrpipe.scene_graph.phrases import CaptionPhrases
from itrpipe.training.data import SplitData
from itrpipe.training.texts import PhraseTexts


class PhraseSplitData(SplitData):
    """Batches of one split with phrases; captions are words alone, without start and end.

    Args:
        split: images and captions.
        features: file that holds the features of all its images.
        vocabulary: of `phrase_vocabulary`.
        phrases: of all captions of the dataset.
        with_phrases: give the words only when off.

    Raises:
        DataError: the features have no regions, or a caption has no scene graph.

    Attributes:
        graph_rows: [T] row of each caption's scene graph in the artifact of `parse`.
    """

    def __init__(
        self, split: Split, features: FeatureFile, vocabulary: Vocabulary, phrases: CaptionPhrases, with_phrases: bool
    ) -> None:
        super().__init__(split, features, None)
        self._texts = PhraseTexts(phrases, split.caption_ids.tolist(), vocabulary, with_phrases)
        self._phrases, self._with_phrases = phrases, with_phrases
        self.graph_rows = self._texts.graph_rows
        self._graph_images = phrases.image_rows(split.image_ids.tolist())

    def matching(self, images: np.ndarray, captions: np.ndarray, num_phrases: int, num_words: int) -> torch.Tensor:
        """Which phrases and words of captions hold for images, by the semantic labels of the images' own captions.

        Args:
            images, captions: [N] rows, held against each other.
            num_phrases, num_words: P and W of the batch that the captions are in, at least what they need.

        Returns:
            bool [N, P + W], the phrases first; False for padding.

        Source: SSAMT, phrase labels.
        """
        words, phrases = self._phrases.positive(self.graph_rows[captions], self._graph_images[images])
        matching = np.zeros((len(captions), num_phrases + num_words), dtype=bool)
        if self._with_phrases:
            matching[:, : phrases.shape[1]] = phrases
        matching[:, num_phrases : num_phrases + words.shape[1]] = words
        return torch.from_numpy(matching)


def phrase_vocabulary(phrases: CaptionPhrases, train: Split, min_count: int) -> Vocabulary:
    """The words of the training captions that occur often enough.

    Source: SSAMT, implementation details: five occurrences, training captions only.
    """
    rows = phrases.rows(train.caption_ids.tolist())
    numbers = phrases.batch(rows).words
    known = numbers >= 0
    words = pa.array(phrases.words, pa.string()).take(pa.array(numbers[known]))
    offsets = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int32)
    return Vocabulary.build(pa.ListArray.from_arrays(pa.array(offsets), words), min_count)
