"""The phrases of a whole dataset as flat arrays, and the words of its captions that are masked together.

Each element of a graph has a phrase: a set of token numbers, which is what a mask needs, and a label, which is what two
captions can have in common. An element stands in its phrase with the heads of the objects that it is said of; the label
holds lemmas, modifiers before what they modify and subject before predicate before object, so that `the frisbee is
yellow` gives `yellow frisbee`. A phrase lacks tokens altogether if the words of its object, of an attribute, or of one
side of a relation are not in the caption. A model sees the phrases with tokens, each set of tokens once per kind.

Source: SSAMT, Sec. 3.1, which does not say how many phrases a caption may have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.errors import DataError
from itrpipe.scene_graph.graph import KINDS
from itrpipe.scene_graph.stored import ELEMENTS, SceneGraphFile, flattened
from itrpipe.storage.ragged import Ragged
from itrpipe.storage.tables import rows_of

MAX_WORDS, MAX_PHRASES = 64, 32
COLUMNS = ("tokens", *ELEMENTS)
LABELS_AT_ONCE = 2**16
LAST = np.iinfo(np.int64).max
NONE = -1


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
        """Rows int64 of captions, for other methods.

        Raises:
            DataError: one of them has no graph.
        """
        return _positions(self.caption_ids, caption_ids, "caption")

    def masks(self, rows: np.ndarray, width: int) -> np.ndarray:
        """Which words make up the groups of captions, bool [B, G, W], padded to the most groups.

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
        words, labels = _Numbers(), _Numbers()
        read = (_rows(table, words, labels, max_words, max_phrases) for table in file.row_groups(COLUMNS))
        word_ids, word_labels, element_labels, phrase_labels, kinds, tokens = map(
            Ragged.joined, zip(*read, strict=True)
        )
        said = ((caption_image[each.owners()], each.values) for each in (word_labels, element_labels))
        return cls(
            caption_ids=file.caption_ids,
            groups=Ragged.of_counts(kinds.counts),
            tokens=tokens,
            image_ids=list(numbers),
            caption_image=caption_image,
            words=list(words),
            word_ids=_cut(word_ids, max_words),
            word_labels=_cut(word_labels, max_words),
            phrase_labels=phrase_labels,
            kinds=kinds,
            held=_held(said, labels),
            max_words=max_words,
            longer=word_ids.counts > max_words,
        )

    def image_rows(self, image_ids: Sequence[str]) -> np.ndarray:
        """Rows int64 of images, for other methods.

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
        words, kinds = (each.take(rows).padded(fill=NONE) for each in (self.word_ids, self.kinds))
        return words, kinds, self.masks(rows, words.shape[1])

    def positive(self, captions: np.ndarray, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which words and phrases of captions are labels of images, or contained in one.

        Args:
            captions: int64 [B], rows of captions.
            images: int64 [B], row of the image that each is held against.

        Returns:
            bool [B, W] of the words and bool [B, P] of the phrases, in the layout of `batch`; padding is False.

        Source: SSAMT, Sec. 3.4; words are compared by their lemmas.
        """
        found = []
        for labels in (self.word_labels, self.phrase_labels):
            own = labels.take(captions)
            keys = images[own.owners()] << 32 | own.values
            found.append(Ragged(own.offsets, self.held[np.searchsorted(self.held, keys)] == keys).padded())
        return found[0], found[1]


@dataclass(frozen=True)
class MaskCandidates(CaptionGroups):
    """Which words of T captions are masked together, in words as `tokenise` counts them; the groups are the candidates.

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
        read = []
        for table in file.row_groups(COLUMNS):
            rows, words = flattened(table, "tokens")
            spans = np.stack([words.field(name).to_numpy() for name in ("start", "end")], axis=1)
            captions, tokens = _elements([flattened(table, name) for name in reversed(ELEMENTS)])
            order = np.argsort(captions, kind="stable")
            order = order[tokens.counts[order] > 0]
            counts = np.bincount(captions[order], minlength=len(table))
            read.append((Ragged.of_counts(counts), tokens.take(order), Ragged(rows.offsets, spans)))
        groups, tokens, spans = map(Ragged.joined, zip(*read, strict=True))
        return cls(file.caption_ids, Ragged.of_counts(groups.counts), tokens, spans)

    def batch(self, rows: np.ndarray) -> np.ndarray:
        """Candidates bool [B, P, W] of the captions of the given rows [B], padded to the largest counts."""
        return self.masks(rows, int(self.spans.counts[rows].max(initial=0)))

    def words_at(self, rows: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Which word each piece of a caption is part of, however the caption was cut into pieces.

        Args:
            rows: int64 [B], of captions.
            starts, ends: int [B, n], characters of the pieces, end exclusive; equal where there is no piece.

        Returns:
            int64 [B, n], the first word that shares a character with the piece; -1 where none does.
        """
        spans = self.spans.take(rows).padded()[:, None]  # [B, 1, W, 2]
        shares = (starts[..., None] < spans[..., 1]) & (spans[..., 0] < ends[..., None])  # [B, n, W]
        first = shares.argmax(axis=2) if shares.shape[2] else np.zeros(starts.shape, dtype=np.int64)
        return np.where(np.any(shares, axis=2), first, NONE)


# -- reading -----------------------------------------------------------------------------------------------------------


class _Numbers(dict[str, int]):
    """Numbers distinct strings in the order in which they come."""

    def of(self, column: pa.Array, spelled: Callable[[str], str] = str) -> np.ndarray:
        """Numbers int32 of the strings of a column as `spelled` writes them."""
        encoded = column.dictionary_encode()
        own = [self.setdefault(spelled(text), len(self)) for text in encoded.dictionary.to_pylist()]
        return np.array(own, dtype=np.int32)[encoded.indices.to_numpy()]


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """The distinct ones of numbers from 0, rising; `np.unique` hashes them, which takes several times as long."""
    numbers = np.sort(numbers)
    return numbers[np.diff(numbers, prepend=-1) > 0]


def _elements(columns: Sequence[tuple[Ragged, pa.StructArray]]) -> tuple[np.ndarray, Ragged]:
    """The caption of every element of some columns, one column behind the other, and its tokens."""
    lists = pa.concat_arrays([fields.field("token_ids") for _, fields in columns])
    tokens = Ragged.of_counts(np.diff(lists.offsets.to_numpy()), lists.flatten().to_numpy())
    return np.concatenate([rows.owners() for rows, _ in columns]), tokens


def _rows(
    table: pa.Table, words: _Numbers, labels: _Numbers, max_words: int, max_phrases: int
) -> tuple[Ragged, Ragged, Ragged, Ragged, Ragged, Ragged]:
    """What rows of a file add to `CaptionPhrases`.

    Returns:
        Of each caption its words, all of them; their labels; the labels of its elements; the labels of its phrases and
        their kinds; and the tokens of each phrase.
    """
    rows, tokens = flattened(table, "tokens")
    columns = [flattened(table, name) for name in ELEMENTS]
    (objects, things), (attributes, properties), (relations, edges) = columns
    captions, own = _elements(columns)
    kinds = np.repeat(np.arange(len(KINDS), dtype=np.int8), [len(fields) for _, fields in columns])

    # The objects that each element is said of, by which it has a head or two among its words.
    thing = objects.offsets[attributes.owners()] + properties.field("object").to_numpy()
    subject, target = (
        objects.offsets[relations.owners()] + edges.field(name).to_numpy() for name in ("subject", "object")
    )
    itself = np.arange(len(things))
    places = things.field("head").to_numpy().astype(np.int64)
    heads = places[[np.concatenate([itself, thing, subject]), np.concatenate([itself, thing, target])]]

    whole = (heads.min(axis=0) >= 0) & ((own.counts > 0) | (kinds == KINDS.index("relation")))
    kept = np.flatnonzero(whole)
    pairs = np.concatenate([own.owners() << 16 | own.values, *(kept << 16 | head[kept] for head in heads)])
    pairs = _distinct(pairs[whole[pairs >> 16]])  # a predicate may name a head again
    sets = Ragged.of_counts(np.bincount(pairs >> 16, minlength=len(kinds)), (pairs & 0xFFFF).astype(np.int16))
    kept = kept[sets.values[sets.offsets[kept + 1] - 1] < max_words]
    kept = kept[np.argsort(captions[kept], kind="stable")]
    kept = kept[_first_of_equals(captions[kept] * len(KINDS) + kinds[kept], sets.take(kept))]
    kept = kept[Ragged.of_counts(np.bincount(captions[kept], minlength=len(table))).places() < max_phrases]

    in_caption = pa.array(rows.offsets[objects.owners()] + places, mask=places < 0)
    names = things.field("lemma").dictionary_encode()
    last = pa.array([name.split()[-1] for name in names.dictionary.to_pylist()], pa.string()).take(names.indices)
    head = pc.call_function("coalesce", [tokens.field("lemma").take(in_caption), last])
    described = [properties.field("lemma"), head.take(pa.array(thing))]
    related = [head.take(pa.array(subject)), edges.field("lemma"), head.take(pa.array(target))]
    joined = [pc.call_function("binary_join_element_wise", [*each, pa.scalar(" ")]) for each in (described, related)]
    numbers = labels.of(pa.concat_arrays([tokens.field("lemma"), things.field("lemma"), *joined]))
    element_labels = numbers[len(tokens) :]
    counts = np.bincount(captions[kept], minlength=len(table))
    return (
        Ragged(rows.offsets, words.of(tokens.field("text"), str.lower)),
        Ragged(rows.offsets, numbers[: len(tokens)]),
        Ragged.of_owners(captions, len(table), element_labels),
        Ragged.of_counts(counts, element_labels[kept]),
        Ragged.of_counts(counts, kinds[kept]),
        sets.take(kept),
    )


def _first_of_equals(keys: np.ndarray, lists: Ragged) -> np.ndarray:
    """Rising numbers of the first of equal lists under equal keys; `lists` are of int16, keys below 2^31."""
    buffers = [None, pa.py_buffer((2 * lists.offsets).astype(np.int32)), pa.py_buffer(lists.values)]
    spelled = pa.Array.from_buffers(pa.binary(), len(lists), buffers).dictionary_encode().indices.to_numpy()
    return np.sort(np.unique(keys << 32 | spelled, return_index=True)[1])


def _cut(lists: Ragged, most: int) -> Ragged:
    """The first values of every list, at most so many."""
    return Ragged.of_counts(np.minimum(lists.counts, most), lists.values[lists.places() < most])


def _held(said: Iterable[tuple[np.ndarray, np.ndarray]], labels: Iterable[str]) -> np.ndarray:
    """`CaptionPhrases.held`: images with their labels and all labels that are contiguous parts of these.

    Args:
        said: arrays of images and of the numbers of labels of theirs, repeated or not.
        labels: by their numbers.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    lists = []
    for label in numbers:
        words = label.split()
        ends = range(1, len(words) + 1)
        spelled = (" ".join(words[start:end]) for end in ends for start in range(end))
        lists.append([numbers[part] for part in spelled if part in numbers])
    parts = Ragged.of_lists(lists, np.int32)
    keys = [np.zeros(0, np.int64)]
    for images, own in said:
        for start in range(0, len(own), LABELS_AT_ONCE):
            block = slice(start, start + LABELS_AT_ONCE)
            found = parts.take(own[block])
            keys.append(_distinct(images[block][found.owners()] << 32 | found.values))
    return np.append(_distinct(np.concatenate(keys)), LAST)


def _positions(known: list[str], wanted: Sequence[str], what: str) -> np.ndarray:
    rows = rows_of(*(pa.array(each, pa.string()) for each in (wanted, known)))
    if len(missing := np.flatnonzero(rows < 0)):
        raise DataError(
            f"{len(missing):,} of {len(wanted):,} {what}s have no scene graph (the first: {wanted[missing[0]]!r}); "
            "run `itrpipe parse` for this dataset"
        )
    return rows
