"""The elements of many graphs as flat arrays, column by column and without a Python object per element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from itrpipe.scene_graph.label_sets import offsets

BITS = 64
NONE = -1


class Strings:
    """Numbers distinct strings in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def numbers(self, column: pa.Array, spelled: Callable[[str], str] = str) -> np.ndarray:
        """Numbers int32 of the strings of a column as `spelled` writes them."""
        encoded = column.dictionary_encode()
        texts = map(spelled, encoded.dictionary.to_pylist())
        own = [self._numbers.setdefault(text, len(self._numbers)) for text in texts]
        return np.array(own, dtype=np.int32)[encoded.indices.to_numpy()]

    def known(self) -> list[str]:
        """All strings by their numbers."""
        return list(self._numbers)

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """The words of every string: offsets int64 and numbers of the words, int64."""
        words: dict[str, int] = {}
        rows = [[words.setdefault(word, len(words)) for word in text.split()] for text in self._numbers]
        flat = np.array([word for row in rows for word in row], dtype=np.int64)
        return offsets(np.array([len(row) for row in rows], dtype=np.int64)), flat


@dataclass(frozen=True)
class Elements:
    """E elements of C captions in the order of the captions; of one caption objects, attributes, relations.

    Attributes:
        counts: int64 [C], elements of each caption.
        caption: int64 [E], 0..C - 1.
        kinds: int8 [E], positions in `phrases.KINDS`.
        lemmas: int32 [E, 3], numbers of the strings whose words make up the label; -1 behind the last of fewer.
        token_counts: int64 [E], tokens of the phrase; zero where words of it are not in the caption.
        tokens: int16, token numbers of all phrases, rising within each.
    """

    counts: np.ndarray
    caption: np.ndarray
    kinds: np.ndarray
    lemmas: np.ndarray
    token_counts: np.ndarray
    tokens: np.ndarray

    def reach_below(self, limit: int) -> np.ndarray:
        """Which elements have no token of this number or a higher one, bool [E]."""
        last = np.full(len(self.caption), NONE, dtype=np.int64)
        ends = np.cumsum(self.token_counts)
        some = self.token_counts > 0
        last[some] = self.tokens[ends[some] - 1]
        return last < limit

    def first_of_equals(self, candidates: np.ndarray, limit: int) -> np.ndarray:
        """Which candidates are the first of their caption with this kind and these tokens.

        Args:
            candidates: bool [E], elements whose tokens are below `limit`.
            limit: words of a caption.

        Returns:
            bool [E].
        """
        rows = np.nonzero(candidates)[0]
        tokens = self.tokens[np.repeat(candidates, self.token_counts)].astype(np.int64)
        owner = np.repeat(np.arange(len(rows)), self.token_counts[rows])
        sets = np.zeros((-(-limit // BITS), len(rows)), dtype=np.uint64)
        # No token stands twice in an element, so that adding its bits is setting them.
        np.add.at(sets, (tokens // BITS, owner), np.uint64(1) << (tokens % BITS).astype(np.uint64))
        keys = np.stack([*sets, self.kinds[rows].astype(np.uint64), self.caption[rows].astype(np.uint64)])
        order = np.lexsort(keys)  # stable: of equals the first stays the first
        new = np.ones(len(rows), dtype=bool)
        new[1:] = np.any(keys[:, order[1:]] != keys[:, order[:-1]], axis=0)
        first = np.zeros_like(candidates)
        first[rows[order[new]]] = True
        return first


class Flat(NamedTuple):
    """Words and elements of C captions.

    Attributes:
        word_counts: int64 [C].
        word_ids, lemma_ids: int32, numbers of the lower-case words and of their lemmas.
        elements: of the graphs.
    """

    word_counts: np.ndarray
    word_ids: np.ndarray
    lemma_ids: np.ndarray
    elements: Elements


def flatten(table: pa.Table, lemmas: Strings, words: Strings) -> Flat:
    """Flattens graphs.

    Args:
        table: columns tokens, objects, attributes and relations of `stored.SCHEMA`.
        lemmas, words: number the strings, those of other tables included.
    """
    tokens, word_counts = _fields(table, "tokens")
    lemma_ids = lemmas.numbers(tokens["lemma"])
    first_word = offsets(word_counts)[:-1]
    objects = _objects(table, lemmas, first_word, lemma_ids)
    attributes = _attributes(table, lemmas, objects)
    relations = _relations(table, lemmas, objects)
    return Flat(
        word_counts,
        words.numbers(tokens["text"], str.lower),
        lemma_ids,
        _merge([objects.elements, attributes, relations], len(table)),
    )


class _Part(NamedTuple):
    """Elements of one kind; `owners` and `tokens` are parallel: which element, and a token of its phrase."""

    caption: np.ndarray
    lemmas: np.ndarray
    owners: np.ndarray
    tokens: np.ndarray


class _Objects(NamedTuple):
    """Objects of all captions.

    Attributes:
        starts: int64 [C], first object of each caption.
        heads: int64, token number of each head within its caption, -1 for none.
        head_lemmas: int32, its lemma.
        elements: as phrases.
    """

    starts: np.ndarray
    heads: np.ndarray
    head_lemmas: np.ndarray
    elements: _Part


def _objects(table: pa.Table, lemmas: Strings, first_word: np.ndarray, lemma_ids: np.ndarray) -> _Objects:
    fields, counts = _fields(table, "objects")
    caption = np.repeat(np.arange(len(counts)), counts)
    heads = fields["head"].to_numpy().astype(np.int64)
    own = lemmas.numbers(fields["lemma"])
    head_lemmas = lemmas.numbers(fields["lemma"], _last_word)
    present = heads >= 0
    head_lemmas[present] = lemma_ids[first_word[caption[present]] + heads[present]]
    owners, tokens = _token_pairs(fields["token_ids"])
    return _Objects(offsets(counts)[:-1], heads, head_lemmas, _Part(caption, _triples(own), owners, tokens))


def _attributes(table: pa.Table, lemmas: Strings, objects: _Objects) -> _Part:
    fields, counts = _fields(table, "attributes")
    caption = np.repeat(np.arange(len(counts)), counts)
    target = objects.starts[caption] + fields["object"].to_numpy()
    owners, tokens = _token_pairs(fields["token_ids"])
    whole = (objects.heads[target] >= 0) & (_lengths(fields["token_ids"]) > 0)
    owners, tokens = _with_heads(owners, tokens, whole, [objects.heads[target]])
    return _Part(caption, _triples(lemmas.numbers(fields["lemma"]), objects.head_lemmas[target]), owners, tokens)


def _relations(table: pa.Table, lemmas: Strings, objects: _Objects) -> _Part:
    fields, counts = _fields(table, "relations")
    caption = np.repeat(np.arange(len(counts)), counts)
    subject, target = (objects.starts[caption] + fields[name].to_numpy() for name in ("subject", "object"))
    owners, tokens = _token_pairs(fields["token_ids"])
    whole = (objects.heads[subject] >= 0) & (objects.heads[target] >= 0)
    owners, tokens = _with_heads(owners, tokens, whole, [objects.heads[subject], objects.heads[target]])
    triples = _triples(objects.head_lemmas[subject], lemmas.numbers(fields["lemma"]), objects.head_lemmas[target])
    return _Part(caption, triples, owners, tokens)


def _fields(table: pa.Table, column: str) -> tuple[dict[str, pa.Array], np.ndarray]:
    """The fields of the structs of a list column, flat, and the length int64 of each list."""
    lists = table[column].combine_chunks()
    structs = lists.flatten()
    names = [field.name for field in structs.type]
    return dict(zip(names, structs.flatten(), strict=True)), _lengths(lists)


def _lengths(lists: pa.Array) -> np.ndarray:
    return np.diff(lists.offsets.to_numpy().astype(np.int64))


def _last_word(lemma: str) -> str:
    return lemma.split()[-1]


def _token_pairs(lists: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    counts = _lengths(lists)
    return np.repeat(np.arange(len(counts)), counts), lists.flatten().to_numpy().astype(np.int64)


def _with_heads(
    owners: np.ndarray, tokens: np.ndarray, whole: np.ndarray, heads: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of whole elements and those with the heads of their objects; none of the others."""
    rows = np.nonzero(whole)[0]
    kept = whole[owners]
    owners = np.concatenate([owners[kept], *[rows for _ in heads]])
    return owners, np.concatenate([tokens[kept], *[head[rows] for head in heads]])


def _triples(*columns: np.ndarray) -> np.ndarray:
    missing = np.full(len(columns[0]), NONE, dtype=np.int32)
    return np.stack([*columns, *[missing] * (3 - len(columns))], axis=1)


def _merge(parts: list[_Part], captions: int) -> Elements:
    """Elements of all kinds, sorted by caption; `sort` is stable, so of one caption they keep the order of kinds."""
    caption = np.concatenate([part.caption for part in parts])
    order = np.argsort(caption, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    firsts = np.cumsum([0, *(len(part.caption) for part in parts)])
    owners = place[np.concatenate([part.owners + first for part, first in zip(parts, firsts, strict=False)])]
    tokens = np.concatenate([part.tokens for part in parts])
    # A predicate may name a head again, which is one word of the phrase all the same.
    pairs = np.unique(owners << 16 | tokens)
    kinds = np.repeat(np.arange(len(parts), dtype=np.int8), [len(part.caption) for part in parts])
    return Elements(
        counts=np.bincount(caption, minlength=captions),
        caption=caption[order],
        kinds=kinds[order],
        lemmas=np.concatenate([part.lemmas for part in parts])[order],
        token_counts=np.bincount(pairs >> 16, minlength=len(order)),
        tokens=(pairs & 0xFFFF).astype(np.int16),
    )
