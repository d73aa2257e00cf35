"""Words, phrases and labels of all captions of a dataset as flat arrays, and batches of them with padding.

What `phrases.py` says of one graph holds here for all; nothing is kept per caption that could not be kept in one
array, so that half a million captions take some hundred MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.errors import DataError
from itrpipe.scene_graph.flat_elements import NONE, Strings, flatten
from itrpipe.scene_graph.label_sets import ImageLabels, Labels, numbered, offsets, ragged
from itrpipe.scene_graph.phrases import MAX_PHRASES
from itrpipe.scene_graph.stored import SceneGraphFile

MAX_WORDS = 64


@dataclass(frozen=True)
class PhraseBatch:
    """Captions of a batch, padded to the longest: B captions, W words, P phrases.

    Attributes:
        words: int32 [B, W], numbers in `CaptionPhrases.words`; -1 is padding.
        kinds: int8 [B, P], positions in `phrases.KINDS`; -1 is padding.
        phrase_words: bool [B, P, W], which words make up a phrase.
    """

    words: np.ndarray
    kinds: np.ndarray
    phrase_words: np.ndarray


@dataclass(frozen=True)
class CaptionPhrases:
    """T captions of N images.

    Attributes:
        caption_ids: T of them, in the order of the file.
        image_ids: N of them, in the order of their captions.
        caption_image: int64 [T], 0..N - 1.
        words: lower-case words, U of them.
        lemmas: distinct lemmas; `lemma_ids` are positions in it.
        word_starts: int64 [T + 1], the words of caption t are those from `word_starts[t]` to `word_starts[t + 1]`.
        word_ids, lemma_ids: int32, of every word.
        phrase_starts: int64 [T + 1], likewise of the phrases.
        kinds: int8, positions in `phrases.KINDS`.
        phrase_labels: int32, numbers of the phrases' labels.
        token_starts: int64, one more than there are phrases, likewise of the words of a phrase.
        tokens: int16, token numbers within the caption.
        lemma_labels: int32, for each of `lemmas` the number of the label that it is as a word.
        image_labels: the semantic labels of the images.
        max_words: words kept of a caption.
        longer: bool [T], captions that have more.
    """

    caption_ids: list[str]
    image_ids: list[str]
    caption_image: np.ndarray
    words: list[str]
    lemmas: list[str]
    word_starts: np.ndarray
    word_ids: np.ndarray
    lemma_ids: np.ndarray
    phrase_starts: np.ndarray
    kinds: np.ndarray
    phrase_labels: np.ndarray
    token_starts: np.ndarray
    tokens: np.ndarray
    lemma_labels: np.ndarray
    image_labels: ImageLabels
    max_words: int
    longer: np.ndarray

    @classmethod
    def read(cls, folder: Path, max_words: int = MAX_WORDS, max_phrases: int = MAX_PHRASES) -> CaptionPhrases:
        """Reads the artifact of `itrpipe parse`.

        Args:
            folder: the artifact.
            max_words: words kept of a caption.
            max_phrases: phrases kept of a caption, in the order objects, attributes, relations.

        Raises:
            MissingInputError: there is no such file.
            DataError: it is damaged, or the captions of an image do not follow each other.
        """
        file = SceneGraphFile(folder)
        lemmas, words = Strings(), Strings()
        chunks = [_Chunk.of(table, lemmas, words, max_words, max_phrases) for table in file.row_groups(_COLUMNS)]
        image_ids, caption_image = _images(file)
        labels, element_labels, lemma_labels = _number_labels(chunks, lemmas)
        ends = np.searchsorted(caption_image, np.arange(len(image_ids) + 1))
        members = [
            (offsets(_joined(chunks, "element_counts"))[ends], element_labels),
            (offsets(_joined(chunks, "all_word_counts"))[ends], lemma_labels[_joined(chunks, "all_lemma_ids")]),
        ]
        return cls(
            caption_ids=file.caption_ids,
            image_ids=image_ids,
            caption_image=caption_image,
            words=words.known(),
            lemmas=lemmas.known(),
            word_starts=offsets(_joined(chunks, "word_counts")),
            word_ids=_joined(chunks, "word_ids"),
            lemma_ids=_joined(chunks, "lemma_ids"),
            phrase_starts=offsets(_joined(chunks, "phrase_counts")),
            kinds=_joined(chunks, "kinds"),
            phrase_labels=labels.own[element_labels[_joined(chunks, "kept")]],
            token_starts=offsets(_joined(chunks, "token_counts")),
            tokens=_joined(chunks, "tokens"),
            lemma_labels=labels.own[lemma_labels],
            image_labels=ImageLabels.of(len(image_ids), members, labels),
            max_words=max_words,
            longer=_joined(chunks, "all_word_counts") > max_words,
        )

    def __len__(self) -> int:
        return len(self.caption_ids)

    def rows(self, caption_ids: Sequence[str]) -> np.ndarray:
        """Rows int64 of captions, for other methods.

        Raises:
            DataError: one of them has no graph.
        """
        return _positions(self.caption_ids, caption_ids, "caption")

    def image_rows(self, image_ids: Sequence[str]) -> np.ndarray:
        """Rows int64 of images, for other methods.

        Raises:
            DataError: one of them has no captions.
        """
        return _positions(self.image_ids, image_ids, "image")

    def batch(self, rows: np.ndarray) -> PhraseBatch:
        """Pads some captions to the longest of them.

        Args:
            rows: int64 [B], of captions.
        """
        is_word, word_at = _padded(self.word_starts, rows)
        is_phrase, phrase_at = _padded(self.phrase_starts, rows)
        caption, phrase = np.nonzero(is_phrase)
        sizes = self.token_starts[phrase_at + 1] - self.token_starts[phrase_at]
        tokens = self.tokens[ragged(self.token_starts[phrase_at], sizes)]
        phrase_words = np.zeros((*is_phrase.shape, is_word.shape[1]), dtype=bool)
        phrase_words[np.repeat(caption, sizes), np.repeat(phrase, sizes), tokens] = True
        words, kinds = _filled(is_word, self.word_ids[word_at]), _filled(is_phrase, self.kinds[phrase_at])
        return PhraseBatch(words, kinds, phrase_words)

    def positive(self, captions: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which words and phrases of captions are labels of images, or contained in one.

        Args:
            captions: int64 [B], rows of captions.
            images: int64 [B], row of the image that each is held against.

        Returns:
            bool [B, W] of the words and bool [B, P] of the phrases, in the layout of `batch`; padding is False.

        Source: SSAMT, Sec. 3.4; words are compared by their lemmas.
        """
        words, word_at = _padded(self.word_starts, captions)
        phrases, phrase_at = _padded(self.phrase_starts, captions)
        for mask, numbers in (
            (words, self.lemma_labels[self.lemma_ids[word_at]]),
            (phrases, self.phrase_labels[phrase_at]),
        ):
            mask[mask] = self.image_labels.contain(images[np.nonzero(mask)[0]], numbers)
        return words, phrases


_COLUMNS = ("tokens", "objects", "attributes", "relations")


@dataclass(frozen=True)
class _Chunk:
    """What one row group adds to the arrays of `CaptionPhrases`; E elements, all of the graphs.

    Attributes:
        element_counts: int64, elements of each caption.
        element_lemmas: int32 [E, 3], see `Elements.lemmas`.
        kept: bool [E], which elements are phrases.
        all_lemma_ids: int32, lemmas of all words, also of those that are cut.
        all_word_counts: int64, all words of each caption.
    """

    word_counts: np.ndarray
    word_ids: np.ndarray
    lemma_ids: np.ndarray
    phrase_counts: np.ndarray
    kinds: np.ndarray
    token_counts: np.ndarray
    tokens: np.ndarray
    element_counts: np.ndarray
    element_lemmas: np.ndarray
    kept: np.ndarray
    all_lemma_ids: np.ndarray
    all_word_counts: np.ndarray

    @classmethod
    def of(cls, table: pa.Table, lemmas: Strings, words: Strings, max_words: int, max_phrases: int) -> _Chunk:
        flat = flatten(table, lemmas, words)
        elements = flat.elements
        whole = (elements.token_counts > 0) & elements.reach_below(max_words)
        distinct = whole & elements.first_of_equals(whole, max_words)
        rank = np.cumsum(distinct) - distinct
        before = np.concatenate([rank, [0]])[offsets(elements.counts)[:-1]]
        kept = distinct & (rank - np.repeat(before, elements.counts) < max_phrases)
        within = ragged(np.zeros_like(flat.word_counts), flat.word_counts) < max_words
        return cls(
            word_counts=np.minimum(flat.word_counts, max_words),
            word_ids=flat.word_ids[within],
            lemma_ids=flat.lemma_ids[within],
            phrase_counts=np.bincount(elements.caption[kept], minlength=len(table)),
            kinds=elements.kinds[kept],
            token_counts=elements.token_counts[kept],
            tokens=elements.tokens[np.repeat(kept, elements.token_counts)],
            element_counts=elements.counts,
            element_lemmas=elements.lemmas,
            kept=kept,
            all_lemma_ids=flat.lemma_ids,
            all_word_counts=flat.word_counts,
        )


def _joined(chunks: list[_Chunk], name: str) -> np.ndarray:
    return np.concatenate([getattr(chunk, name) for chunk in chunks])


def _images(file: SceneGraphFile) -> tuple[list[str], np.ndarray]:
    """Ids of the images in the order of their captions, and the image of each caption."""
    known = {image_id: row for row, image_id in enumerate(dict.fromkeys(file.image_ids))}
    caption_image = np.array([known[image_id] for image_id in file.image_ids], dtype=np.int64)
    if np.any(np.diff(caption_image) < 0):
        raise DataError(f"{file.path}: the captions of an image do not follow each other; run `itrpipe parse` again")
    return list(known), caption_image


def _number_labels(chunks: list[_Chunk], lemmas: Strings) -> tuple[Labels, np.ndarray, np.ndarray]:
    """All distinct labels; which of them each element has, and which each lemma is."""
    alone = np.full((len(lemmas), 3), NONE, dtype=np.int32)
    alone[:, 0] = np.arange(len(lemmas))
    triples = np.concatenate([alone, *(chunk.element_lemmas for chunk in chunks)]).astype(np.int64) + 1
    # Pair by pair, because a triple of numbers does not fit into 64 bits.
    _, pair = numbered(triples[:, 0], triples[:, 1])
    where, label = numbered(pair, triples[:, 2])
    label = label.astype(np.int32)
    distinct = triples[where] - 1
    starts, words = lemmas.split()
    present = distinct >= 0
    own = distinct[present]
    counts = starts[own + 1] - starts[own]
    label_counts = np.bincount(np.repeat(np.nonzero(present)[0], counts), minlength=len(distinct))
    labels = Labels.of(offsets(label_counts), words[ragged(starts[own], counts)])
    return labels, label[len(alone) :], label[: len(alone)]


def _padded(starts: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mask bool [B, longest] of what is no padding, and where the rest stands in the flat arrays."""
    counts = starts[rows + 1] - starts[rows]
    mask = np.arange(int(counts.max(initial=0))) < counts[:, None]
    return mask, ragged(starts[rows], counts)


def _filled(mask: np.ndarray, values: np.ndarray) -> np.ndarray:
    filled = np.full(mask.shape, NONE, dtype=values.dtype)
    filled[mask] = values
    return filled


def _positions(known: list[str], wanted: Sequence[str], what: str) -> np.ndarray:
    position = {name: row for row, name in enumerate(known)}
    missing = [name for name in wanted if name not in position]
    if missing:
        raise DataError(
            f"{len(missing):,} of {len(wanted):,} {what}s have no scene graph (the first: {missing[0]!r}); "
            "run `itrpipe parse` for this dataset"
        )
    return np.array([position[name] for name in wanted], dtype=np.int64)
