"""Small pieces of English that edits need: numbers, articles, plurals, and which words contradict each other.

The words are in words.json. `below` has the nouns that stand right below each noun, and `synonyms` those that mean the
same as it. Prepositions of one list may say the same of two things. Of both the lists are our own; `numbers` are those
that VSE-C writes.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

_WORDS: dict[str, Any] = json.loads(Path(__file__).with_name("words.json").read_bytes())
NUMBER_VALUES: dict[str, int] = _WORDS["numbers"]
ARTICLES = frozenset({"a", "an"})
OPPOSITES: dict[str, list[str]] = _WORDS["opposites"]
"""Preposition -> those that contradict it wherever it stands; the longer ones first."""
POSSESSIVE = frozenset({"his", "her", "its", "their"})
SYMMETRIC = frozenset(_WORDS["symmetric"])
"""Last words of relations that hold both ways, or say little of who is where."""
WRITTEN = frozenset(_WORDS["written"])
"""Words of captions of images that show writing, which a mirror makes unreadable."""
RELATIVE = frozenset(_WORDS["relative"])
"""Attributes that are so beside other things."""
COMMON: tuple[str, ...] = tuple(_WORDS["common_prepositions"])
"""Prepositions that are written instead of another one."""
CORRECT = frozenset(_WORDS["correct"])
"""Nouns before which "right" means "correct"."""
SINGULARS: dict[str, str] = _WORDS["singulars"]
"""Singular of the lemmas that the lexicon has as plurals. Source: VSE-C's code."""

_PARENTS: dict[str, set[str]] = defaultdict(set)
"""Kinds right above each kind."""
NOUN_KINDS: dict[str, set[str]] = {}
"""Kinds of each noun; a kind has the name of one of its nouns."""
for _kind, _nouns in _WORDS["below"].items():
    for _noun in _nouns:
        _PARENTS[_noun].add(_kind)
for _kind in (*_WORDS["below"], *_PARENTS):
    NOUN_KINDS[_kind] = {_kind}
for _kind, _nouns in _WORDS["synonyms"].items():
    for _noun in _nouns:
        NOUN_KINDS.setdefault(_noun, set()).add(_kind)


def article_before(word: str) -> str:
    """Return `an` before a word that begins with the sound of a vowel, else `a`."""
    word = word.lower()
    if word.startswith(tuple(_WORDS["like_vowels"])):
        return "an"
    if word.startswith(tuple(_WORDS["like_consonants"])):
        return "a"
    return "an" if word.startswith(tuple("aeiou")) else "a"


@functools.lru_cache(maxsize=1 << 14)
def plural(noun: str) -> str:
    """Return the plural of a lower-case singular.

    Source: the SPECIALIST lexicon, as lemminflect packages it; VSE-C's `people`.
    """
    from lemminflect import getInflection

    if noun in _WORDS["plurals"]:
        return _WORDS["plurals"][noun]
    inflections = getInflection(noun, "NNS")
    return inflections[0] if inflections else noun


def contradicting(preposition: str) -> tuple[str, ...]:
    """Return the common prepositions that are in no list with a lower-case one; none where it is unknown.

    Source: VSE-C's third rule.
    """
    near: set[str] = set()
    for group in _WORDS["prepositions"]:
        if preposition in group:
            near.update(group)
    if not near:
        return ()
    return tuple(word for word in COMMON if word not in near)


@functools.cache
def contradict(first: str, second: str) -> bool:
    """Return whether two nouns of `NOUN_KINDS` never name the same: neither means the other, or a kind of it.

    Source: VSE-C (Shi et al., COLING 2018), which asks WordNet for what is next above and below.
    """
    kinds = NOUN_KINDS[first]
    other_kinds = NOUN_KINDS[second]
    return _lineage(*kinds).isdisjoint(other_kinds) and _lineage(*other_kinds).isdisjoint(kinds)


@functools.cache
def _lineage(*kinds: str) -> frozenset[str]:
    """Return kinds with all that stand above them."""
    lineage = set(kinds)
    for kind in kinds:
        if kind in _PARENTS:
            lineage |= _lineage(*_PARENTS[kind])
    return frozenset(lineage)


def are_siblings(first: str, second: str) -> bool:
    """Return whether two nouns of `NOUN_KINDS` contradict each other and are right below the same one.

    People of different ages or deeds may be the same ones, and so may vague words.
    """
    if first in _WORDS["vague"] or second in _WORDS["vague"]:
        return False
    shared = _parents(first) & _parents(second)
    return not shared.issubset(_WORDS["compatible"]) and contradict(first, second)


def _parents(noun: str) -> set[str]:
    """Return the kinds right above those of a noun."""
    parents: set[str] = set()
    for kind in NOUN_KINDS[noun]:
        parents |= _PARENTS.get(kind, set())
    return parents


def may_be(first: str, second: str) -> bool:
    """Return whether two nouns may name the same thing; of those that are not known, only equal ones."""
    if first == second:
        return True
    return first in NOUN_KINDS and second in NOUN_KINDS and not contradict(first, second)


@functools.cache
def canonical_attribute(word: str) -> str:
    """Return the first of the attributes that mean the same."""
    for groups in _WORDS["attributes"]:
        for group in groups:
            if word in group:
                return group[0]
    return word


@functools.cache
def contradicting_attributes(word: str) -> tuple[str, ...]:
    """Return attributes of the class of a lower-case one that do not mean the same; none of one that is not known."""
    attributes: list[str] = []
    for groups in _WORDS["attributes"]:
        others = [group for group in groups if word not in group]
        if len(others) < len(groups):
            attributes += itertools.chain.from_iterable(others)
    return tuple(attributes)
