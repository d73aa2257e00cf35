"""The phrases of a whole dataset as flat arrays, and the words of its captions that are masked together.

Each element of a graph has a phrase: a set of token numbers, which is what a mask needs, and a label, which is what two
captions can have in common. An element stands in its phrase with the heads of the objects that it is said of; the label
holds lemmas, modifiers before what they modify and subject before predicate before object, so that `the frisbee is
yellow` gives `yellow frisbee`. A phrase lacks tokens altogether if the words of its object, of an attribute, or of one
side of a relation are not in the caption. A model sees the phrases with tokens, each set of tokens once per kind.

Source: SSAMT, Sec. 3.1, which does not say how many phrases a caption may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from itrpipe.errors import DataError
from itrpipe.scene_graph.stored import ELEMENTS, SceneGraphFile, flattened
from itrpipe.storage.arrays import Ragged
from itrpipe.storage.tables import rows_of

MAX_PHRASES = 32
COLUMNS = ("tokens", *ELEMENTS)
LAST = np.iinfo(np.int64).max
NONE = -1
KINDS = ("object", "attribute", "relation")
"""Kinds of phrases."""
OBJECT, ATTRIBUTE, RELATION = range(len(KINDS))


@dataclass(frozen=True)
class CaptionGroups:
    """Groups of words of T captions.

    Attributes:
        caption_ids: T of them, in the order of the file.
        groups: numbers of the groups of each caption.
        tokens: word numbers int16 of each group, within its caption.
    """

    caption_ids: list[str]
    groups: Ragged
    tokens: Ragged

    def rows(self, caption_ids: Sequence[str]) -> np.ndarray:
        """Return the rows int64 of captions, for other methods.

        Raises:
            DataError: one of them has no graph.
        """
        return _rows(self.caption_ids, caption_ids, "caption")

    def masks(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Return the words of the groups of captions, bool [B, G, W], padded to the most groups.

        Args:
            rows: int64 [B], of captions.
            width: W.
        """
        groups = self.groups.take(rows)
        tokens = self.tokens.take(groups.values)
        most = int(groups.counts.max(initial=0))
        masks = np.zeros((len(rows), most, width), dtype=bool)
        group = tokens.owners()
        caption = groups.owners()[group]
        place = groups.places()[group]
        masks[caption, place, tokens.values] = True
        return masks


@dataclass(frozen=True)
class CaptionPhrases(CaptionGroups):
    """Words, phrases and labels of T captions of N images; the groups are the phrases.

    Attributes:
        image_ids: N of them, in the order of their captions.
        caption_image: int64 [T], 0..N - 1.
        words: distinct lower-case words.
        word_ids: int32, positions in `words` of the words of each caption.
        word_labels, phrase_labels: int32, numbers of the labels of the words and of the phrases of each caption.
        kinds: int8, positions in `KINDS` of the phrases of each caption.
        held: int64, image << 32 | label for every image and label that is one of the image's, or a contiguous part of
            one; rising, and the last one is above all.
        max_words: words kept of a caption.
        longer: bool [T], captions that have more.
    """

    image_ids: list[str]
    caption_image: np.ndarray
    words: list[str]
    word_ids: Ragged
    word_labels: Ragged
    phrase_labels: Ragged
    kinds: Ragged
    held: np.ndarray
    max_words: int
    longer: np.ndarray

    @classmethod
    def read(
        cls,
        folder: Path,
        max_words: int,
        max_phrases: int = MAX_PHRASES,
    ) -> CaptionPhrases:
        """Reads the artifact of `itrpipe parse`.

        Args:
            folder: the artifact.
            max_words: words kept of a caption.
            max_phrases: phrases kept of a caption, in the order objects, attributes, relations.

        Raises:
            MissingInputError: there is no such file.
            DataError: it is damaged.
        """
        file = SceneGraphFile(folder)
        ids = file.read(["caption_id", "image_id"])
        image_ids = ids["image_id"].unique()
        caption_image = rows_of(ids["image_id"], image_ids)

        words: dict[str, int] = {}
        labels: dict[str, int] = {}
        groups = []
        for table in file.row_groups(COLUMNS):
            groups.append(_read_rows(table, words, labels, max_words, max_phrases))
        columns = map(Ragged.joined, zip(*groups, strict=True))
        word_ids, word_labels, all_labels, phrase_labels, kinds, tokens = columns

        counts = np.minimum(word_ids.counts, max_words)
        is_kept = word_ids.places() < max_words
        return cls(
            caption_ids=ids["caption_id"].to_pylist(),
            groups=Ragged.of_counts(kinds.counts),
            tokens=tokens,
            image_ids=image_ids.to_pylist(),
            caption_image=caption_image,
            words=list(words),
            word_ids=Ragged.of_counts(counts, word_ids.values[is_kept]),
            word_labels=Ragged.of_counts(counts, word_labels.values[is_kept]),
            phrase_labels=phrase_labels,
            kinds=kinds,
            held=_held(caption_image[all_labels.owners()] << 32 | all_labels.values, labels),
            max_words=max_words,
            longer=word_ids.counts > max_words,
        )

    def image_rows(self, image_ids: Sequence[str]) -> np.ndarray:
        """Return the rows int64 of images, for other methods.

        Raises:
            DataError: one of them has no captions.
        """
        return _rows(self.image_ids, image_ids, "image")

    def batch(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pads some captions, int64 [B], to the longest of them: B captions, W words, P phrases.

        Returns:
            Numbers in `words`, int32 [B, W], -1 for padding; positions in `KINDS` of the phrases, int8 [B, P], -1 for
            padding; and which words make up a phrase, bool [B, P, W].
        """
        words = self.word_ids.take(rows).padded(fill=NONE)
        kinds = self.kinds.take(rows).padded(fill=NONE)
        return words, kinds, self.masks(rows, words.shape[1])

    def positive(
        self,
        captions: np.ndarray,
        images: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Tell which words and phrases of captions are labels of images, or contained in one.

        Args:
            captions: int64 [B], rows of captions.
            images: int64 [B], row of the image that each is held against.

        Returns:
            bool [B, W] of the words and bool [B, P] of the phrases, in the layout of `batch`; padding is False.

        Source: SSAMT, Sec. 3.4; words are compared by their lemmas.
        """
        masks = []
        for all_labels in (self.word_labels, self.phrase_labels):
            labels = all_labels.take(captions)
            keys = images[labels.owners()] << 32 | labels.values
            is_held = self.held[np.searchsorted(self.held, keys)] == keys
            masks.append(Ragged(labels.offsets, is_held).padded())
        of_words, of_phrases = masks
        return of_words, of_phrases


@dataclass(frozen=True)
class MaskCandidates(CaptionGroups):
    """Words of T captions that are masked together, as `tokenise` counts them; the groups are the candidates.

    A candidate is what one element of the scene graph adds of its own: the predicate of a relation, the words of an
    attribute, or an object with its compound words, in this order. (A phrase says more: that of an attribute has its
    object, and that of a relation both of its.)

    Attributes:
        spans: int32 [..., 2], first character of every word in its caption, and one more than its last.

    Source: TAGS-DC, section 2.1.1: objects, relations and attributes of the scene graph.
    """

    spans: Ragged

    @classmethod
    def read(cls, folder: Path) -> MaskCandidates:
        """Reads the artifact of `itrpipe parse`; elements whose words are not in the caption are left out.

        Raises:
            MissingInputError: there is no such file.
            DataError: it is damaged.
        """
        file = SceneGraphFile(folder)
        counts: list[int] = []
        candidates: list[list[int]] = []
        spans = []
        for table in file.row_groups(COLUMNS):
            rows, words = flattened(table, "tokens")
            ends = np.stack([words.field("start"), words.field("end")], axis=1)
            spans.append(Ragged(rows.offsets, ends))
            for row in table.to_pylist():
                elements = row["relations"] + row["attributes"] + row["objects"]
                words_of_elements = [element["token_ids"] for element in elements if element["token_ids"]]
                counts.append(len(words_of_elements))
                candidates += words_of_elements
        groups = Ragged.of_counts(np.array(counts))
        tokens = _ragged(candidates, pa.int16())
        return cls(
            file.read(["caption_id"])["caption_id"].to_pylist(),
            groups,
            tokens,
            Ragged.joined(spans),
        )

    def batch(self, rows: np.ndarray) -> np.ndarray:
        """Return the candidates bool [B, P, W] of the captions of rows [B], padded to the largest counts."""
        return self.masks(rows, int(self.spans.counts[rows].max(initial=0)))

    def words_at(
        self,
        rows: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
    ) -> np.ndarray:
        """Find the word that each piece of a caption is part of, however the caption was cut into pieces.

        Args:
            rows: int64 [B], of captions.
            starts, ends: int [B, n], characters of the pieces, end exclusive; equal where there is no piece.

        Returns:
            int64 [B, n], the first word that shares a character with the piece; -1 where none does.
        """
        spans = self.spans.take(rows).padded()[:, None]  # [B, 1, W, 2]
        begins_before = starts[..., None] < spans[..., 1]  # [B, n, W]
        ends_behind = spans[..., 0] < ends[..., None]
        shares = begins_before & ends_behind
        if not shares.shape[2]:
            return np.full(starts.shape, NONE)
        return np.where(shares.any(axis=2), shares.argmax(axis=2), NONE)


# -- reading -----------------------------------------------------------------------------------------------------------


def _read_rows(
    table: pa.Table,
    words: dict[str, int],
    labels: dict[str, int],
    max_words: int,
    max_phrases: int,
) -> list[Ragged]:
    """Read the words, labels and phrases of rows of a file.

    Args:
        table: the rows.
        words, labels: with their numbers; get those that are new.
        max_words, max_phrases: see `CaptionPhrases.read`.

    Returns:
        Of each caption its words, all of them; their labels; these and the labels of its elements; the labels of its
        phrases and their kinds; and the tokens of each phrase.
    """
    word_ids = []
    word_labels = []
    all_labels = []
    phrase_labels = []
    phrase_kinds = []
    phrase_tokens = []
    for row in table.to_pylist():
        words_of_caption = []
        labels_of_caption = []
        for token in row["tokens"]:
            words_of_caption.append(words.setdefault(token["text"].lower(), len(words)))
            labels_of_caption.append(labels.setdefault(token["lemma"], len(labels)))
        word_ids.append(words_of_caption)
        word_labels.append(list(labels_of_caption))

        phrases: dict[tuple[int, tuple[int, ...]], int] = {}
        for kind, words_of_element, heads, label in _elements(row):
            number = labels.setdefault(label, len(labels))
            labels_of_caption.append(number)
            spelled = tuple(sorted({*words_of_element, *heads}))
            is_whole = spelled[0] >= 0 and (words_of_element or kind == RELATION)
            if is_whole and spelled[-1] < max_words and len(phrases) < max_phrases:
                phrases.setdefault((kind, spelled), number)
        all_labels.append(labels_of_caption)
        phrase_labels.append(list(phrases.values()))
        phrase_kinds.append([kind for kind, _ in phrases])
        phrase_tokens += [spelled for _, spelled in phrases]
    return [
        _ragged(word_ids, pa.int32()),
        _ragged(word_labels, pa.int32()),
        _ragged(all_labels, pa.int32()),
        _ragged(phrase_labels, pa.int32()),
        _ragged(phrase_kinds, pa.int8()),
        _ragged(phrase_tokens, pa.int16()),
    ]


def _elements(row: dict[str, Any]) -> Iterator[tuple[int, list[int], list[int], str]]:
    """Yield kind, words and label of each element of a graph, and the heads of the objects that it is said of."""
    heads = []
    names = []
    for thing in row["objects"]:
        head = thing["head"]
        name = thing["lemma"].split()[-1]
        if head >= 0:
            name = row["tokens"][head]["lemma"]
        heads.append(head)
        names.append(name)
        yield OBJECT, thing["token_ids"], [head], thing["lemma"]
    for attribute in row["attributes"]:
        owner = attribute["object"]
        label = f"{attribute['lemma']} {names[owner]}"
        yield ATTRIBUTE, attribute["token_ids"], [heads[owner]], label
    for relation in row["relations"]:
        subject = relation["subject"]
        target = relation["object"]
        label = f"{names[subject]} {relation['lemma']} {names[target]}"
        yield RELATION, relation["token_ids"], [heads[subject], heads[target]], label


def _ragged(lists: Sequence[Sequence[int]], kind: pa.DataType) -> Ragged:
    """Read lists of Python by Arrow, which takes a tenth of NumPy's time."""
    array = pa.array(lists, pa.list_(kind))
    offsets = array.offsets.to_numpy().astype(np.int64)
    return Ragged(offsets, array.flatten().to_numpy())


def _held(pairs: np.ndarray, labels: dict[str, int]) -> np.ndarray:
    """Return `CaptionPhrases.held`: images with their labels and all labels that are contiguous parts of these.

    Args:
        pairs: int64, image << 32 | label, repeated or not.
        labels: with their numbers.
    """
    parts_of_labels = []
    for label in labels:
        words = label.split()
        parts = []
        for start, end in combinations(range(len(words) + 1), 2):
            part = " ".join(words[start:end])
            if part in labels:
                parts.append(labels[part])
        parts_of_labels.append(parts)
    pairs = np.unique(pairs)
    images = pairs >> 32
    parts = _ragged(parts_of_labels, pa.int64()).take(pairs & 0xFFFFFFFF)
    held = np.unique(images[parts.owners()] << 32 | parts.values)
    return np.append(held, LAST)


def _rows(all_ids: list[str], ids: Sequence[str], what: str) -> np.ndarray:
    rows = rows_of(pa.array(ids, pa.string()), pa.array(all_ids, pa.string()))
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        raise DataError(
            f"{len(missing):,} of {len(ids):,} {what}s have no scene graph (the first: {ids[missing[0]]!r}); "
            "run `itrpipe parse` for this dataset"
        )
    return rows
