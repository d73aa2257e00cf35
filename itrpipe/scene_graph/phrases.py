"""The phrases of a whole dataset as flat arrays, and the words of its captions that are masked together.

Each element of a graph has a phrase: a set of token numbers, which is what a mask needs, and a label, which is what two
captions can have in common. An element stands in its phrase with the heads of the objects that it is said of; the label
holds lemmas, modifiers before what they modify and subject before predicate before object, so that `the frisbee is
yellow` gives `yellow frisbee`. A phrase lacks tokens altogether if the words of its object, of an attribute, or of one
side of a relation are not in the caption. A model sees the phrases with tokens, each set of tokens once per kind.

Source: SSAMT, Sec. 3.1, which does not say how many phrases a caption may have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pyarrow as pa

from itrpipe.errors import DataError
from itrpipe.scene_graph.stored import ELEMENTS, SceneGraphFile, flattened
from itrpipe.storage.ragged import Ragged
from itrpipe.storage.tables import rows_of

MAX_WORDS, MAX_PHRASES = 64, 32
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

    def __len__(self) -> int:
        return len(self.caption_ids)

    def rows(self, caption_ids: Sequence[str]) -> np.ndarray:
        """Return the rows int64 of captions, for other methods.

        Raises:
            DataError: one of them has no graph.
        """
        return _positions(self.caption_ids, caption_ids, "caption")

    def masks(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Return the words of the groups of captions, bool [B, G, W], padded to the most groups.

        Args:
            rows: int64 [B], of captions.
            width: W.
        """
        own = self.groups.take(rows)
        tokens = self.tokens.take(own.values)
        group = tokens.owners()
        found = np.zeros((len(rows), int(own.counts.max(initial=0)), width), dtype=bool)
        found[own.owners()[group], own.places()[group], tokens.values] = True
        return found


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
    def read(cls, folder: Path, max_words: int = MAX_WORDS, max_phrases: int = MAX_PHRASES) -> CaptionPhrases:
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
        numbers = {image_id: row for row, image_id in enumerate(dict.fromkeys(file.image_ids))}
        caption_image = np.array([numbers[image_id] for image_id in file.image_ids], dtype=np.int64)
        words: dict[str, int] = {}
        labels: dict[str, int] = {}
        read = [_read_rows(table, words, labels, max_words, max_phrases) for table in file.row_groups(COLUMNS)]
        word_ids, word_labels, said, phrase_labels, kinds, tokens = map(Ragged.joined, zip(*read, strict=True))
        counts = np.minimum(word_ids.counts, max_words)
        first = word_ids.places() < max_words
        return cls(
            caption_ids=file.caption_ids,
            groups=Ragged.of_counts(kinds.counts),
            tokens=tokens,
            image_ids=list(numbers),
            caption_image=caption_image,
            words=list(words),
            word_ids=Ragged.of_counts(counts, word_ids.values[first]),
            word_labels=Ragged.of_counts(counts, word_labels.values[first]),
            phrase_labels=phrase_labels,
            kinds=kinds,
            held=_held(caption_image[said.owners()] << 32 | said.values, labels),
            max_words=max_words,
            longer=word_ids.counts > max_words,
        )

    def image_rows(self, image_ids: Sequence[str]) -> np.ndarray:
        """Return the rows int64 of images, for other methods.

        Raises:
            DataError: one of them has no captions.
        """
        return _positions(self.image_ids, image_ids, "image")

    def batch(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pads some captions, int64 [B], to the longest of them: B captions, W words, P phrases.

        Returns:
            Numbers in `words`, int32 [B, W], -1 for padding; positions in `KINDS` of the phrases, int8 [B, P], -1 for
            padding; and which words make up a phrase, bool [B, P, W].
        """
        words = self.word_ids.take(rows).padded(fill=NONE)
        kinds = self.kinds.take(rows).padded(fill=NONE)
        return words, kinds, self.masks(rows, words.shape[1])

    def positive(self, captions: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Tell which words and phrases of captions are labels of images, or contained in one.

        Args:
            captions: int64 [B], rows of captions.
            images: int64 [B], row of the image that each is held against.

        Returns:
            bool [B, W] of the words and bool [B, P] of the phrases, in the layout of `batch`; padding is False.

        Source: SSAMT, Sec. 3.4; words are compared by their lemmas.
        """

        def are_held(labels: Ragged) -> np.ndarray:
            own = labels.take(captions)
            keys = images[own.owners()] << 32 | own.values
            return Ragged(own.offsets, self.held[np.searchsorted(self.held, keys)] == keys).padded()

        return are_held(self.word_labels), are_held(self.phrase_labels)


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
            for row in table.select(ELEMENTS[::-1]).to_pylist():
                before = len(candidates)
                for element in chain.from_iterable(row.values()):
                    if element["token_ids"]:
                        candidates.append(element["token_ids"])
                counts.append(len(candidates) - before)
        groups, tokens = Ragged.of_counts(np.array(counts)), _ragged(candidates, pa.int16())
        return cls(file.caption_ids, groups, tokens, Ragged.joined(spans))

    def batch(self, rows: np.ndarray) -> np.ndarray:
        """Return the candidates bool [B, P, W] of the captions of rows [B], padded to the largest counts."""
        return self.masks(rows, int(self.spans.counts[rows].max(initial=0)))

    def words_at(self, rows: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Find the word that each piece of a caption is part of, however the caption was cut into pieces.

        Args:
            rows: int64 [B], of captions.
            starts, ends: int [B, n], characters of the pieces, end exclusive; equal where there is no piece.

        Returns:
            int64 [B, n], the first word that shares a character with the piece; -1 where none does.
        """
        spans = self.spans.take(rows).padded()[:, None]  # [B, 1, W, 2]
        shares = (starts[..., None] < spans[..., 1]) & (spans[..., 0] < ends[..., None])  # [B, n, W]
        if not shares.shape[2]:
            return np.full(starts.shape, NONE)
        return np.where(shares.any(axis=2), shares.argmax(axis=2), NONE)


# -- reading -----------------------------------------------------------------------------------------------------------


def _read_rows(
    table: pa.Table, words: dict[str, int], labels: dict[str, int], max_words: int, max_phrases: int
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
    word_ids, word_labels, said, phrase_labels, kinds, phrase_tokens = [], [], [], [], [], []
    for row in table.to_pylist():
        tokens = row["tokens"]
        word_ids.append([words.setdefault(token["text"].lower(), len(words)) for token in tokens])
        word_labels.append([labels.setdefault(token["lemma"], len(labels)) for token in tokens])

        # Each element with the heads of the objects that it is said of, which are among its words, and its label.
        heads, names, elements = [], [], []
        for thing in row["objects"]:
            head, lemma = thing["head"], thing["lemma"]
            heads.append(head)
            names.append(lemma.split()[-1] if head < 0 else tokens[head]["lemma"])
            elements.append((OBJECT, thing, [head], lemma))
        for attribute in row["attributes"]:
            owner = attribute["object"]
            label = f"{attribute['lemma']} {names[owner]}"
            elements.append((ATTRIBUTE, attribute, [heads[owner]], label))
        for relation in row["relations"]:
            one, other = relation["subject"], relation["object"]
            label = f"{names[one]} {relation['lemma']} {names[other]}"
            elements.append((RELATION, relation, [heads[one], heads[other]], label))

        spoken = list(word_labels[-1])
        phrases: dict[tuple[int, tuple[int, ...]], int] = {}
        for kind, element, around, label in elements:
            number = labels.setdefault(label, len(labels))
            spoken.append(number)
            own = element["token_ids"]
            spelled = tuple(sorted({*own, *around}))
            whole = spelled[0] >= 0 and (own or kind == RELATION)
            if whole and spelled[-1] < max_words and len(phrases) < max_phrases:
                phrases.setdefault((kind, spelled), number)
        said.append(spoken)
        phrase_labels.append(list(phrases.values()))
        kinds.append([kind for kind, _ in phrases])
        phrase_tokens += [spelled for _, spelled in phrases]
    return [
        *(_ragged(lists, pa.int32()) for lists in (word_ids, word_labels, said, phrase_labels)),
        _ragged(kinds, pa.int8()),
        _ragged(phrase_tokens, pa.int16()),
    ]


def _ragged(lists: Sequence[Sequence[int]], kind: pa.DataType) -> Ragged:
    """Read lists of Python by Arrow, which takes a tenth of NumPy's time."""
    array = pa.array(lists, pa.list_(kind))
    return Ragged(array.offsets.to_numpy().astype(np.int64), array.flatten().to_numpy())


def _held(said: np.ndarray, labels: dict[str, int]) -> np.ndarray:
    """Return `CaptionPhrases.held`: images with their labels and all labels that are contiguous parts of these.

    Args:
        said: int64, image << 32 | label, repeated or not.
        labels: with their numbers.
    """
    lists = []
    for label in labels:
        words = label.split()
        parts = []
        for start, end in combinations(range(len(words) + 1), 2):
            part = " ".join(words[start:end])
            if part in labels:
                parts.append(labels[part])
        lists.append(parts)
    said = np.unique(said)
    parts = _ragged(lists, pa.int64()).take(said & 0xFFFFFFFF)
    return np.append(np.unique((said >> 32)[parts.owners()] << 32 | parts.values), LAST)


def _positions(known: list[str], wanted: Sequence[str], what: str) -> np.ndarray:
    rows = rows_of(pa.array(wanted, pa.string()), pa.array(known, pa.string()))
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        raise DataError(
            f"{len(missing):,} of {len(wanted):,} {what}s have no scene graph (the first: {wanted[missing[0]]!r}); "
            "run `itrpipe parse` for this dataset"
        )
    return rows
