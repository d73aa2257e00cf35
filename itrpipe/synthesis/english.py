"""Small pieces of English that edits need: numbers, articles, plurals, and which words contradict each other.

The words are in words.json. Nouns on a line of `nouns` stand below the noun that it begins with, and a noun on several
lines is below several others; nouns joined by a bar mean the same. Prepositions of one list may say the same of two
things. Of both the lists are our own; `numbers` are those that VSE-C writes.
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
_VOWELS = tuple("aeiou")
_LIKE_CONSONANTS, _LIKE_VOWELS = tuple(_WORDS["like_consonants"]), tuple(_WORDS["like_vowels"])


def number_value(word: str) -> int | None:
    """Value of a lower-case number word or of digits, else None."""
    return int(word) if word.isdecimal() else NUMBER_VALUES.get(word)


def article_before(word: str) -> str:
    """`an` before what begins with the sound of a vowel, else `a`."""
    lower = word.lower()
    vowel = lower.startswith(_VOWELS) and not lower.startswith(_LIKE_CONSONANTS)
    return "an" if vowel or lower.startswith(_LIKE_VOWELS) else "a"


@functools.lru_cache(maxsize=1 << 14)
def plural(noun: str) -> str:
    """Plural of a lower-case singular. Source: the SPECIALIST lexicon, as lemminflect packages it; VSE-C's `people`."""
    from lemminflect import getInflection

    return _WORDS["plurals"].get(noun) or next(iter(getInflection(noun, "NNS")), noun)


def singular(lemma: str) -> str:
    """Singular of a lower-case lemma, of which our lexicon has two that are plurals. Source: VSE-C's code."""
    return _WORDS["singulars"].get(lemma, lemma)


def contradicting(preposition: str) -> tuple[str, ...]:
    """The common prepositions that are in no list with a lower-case one; none where it is unknown.

    Source: VSE-C's third rule.
    """
    near = {word for group in _WORDS["prepositions"] if preposition in group for word in group}
    return tuple(word for word in COMMON if word not in near) if near else ()


def _noun_kinds() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Kinds of each noun, and the kinds right above each kind; a kind has the name of the first of its nouns."""
    kinds: dict[str, set[str]] = {}
    parents: dict[str, set[str]] = defaultdict(set)
    for line in _WORDS["nouns"]:
        top, below = line.split(": ")
        for nouns in (top, *below.split()):
            first, *others = nouns.split("|")
            own = kinds.setdefault(first, {first})
            for other in others:
                kinds.setdefault(other, set()).update(own)
            if nouns is not top:
                for kind in own:
                    parents[kind] |= kinds[top.partition("|")[0]]
    return kinds, dict(parents)


NOUN_KINDS, _PARENTS = _noun_kinds()


def contradict(first: str, second: str) -> bool:
    """Whether two nouns of `NOUN_KINDS` never name the same: neither means what the other means, or a kind of it.

    Source: VSE-C (Shi et al., COLING 2018), which asks WordNet for what is next above and below.
    """
    kinds = itertools.product(NOUN_KINDS[first], NOUN_KINDS[second])
    return not any(one in _lineage(other) or other in _lineage(one) for one, other in kinds)


@functools.cache
def are_siblings(first: str, second: str) -> bool:
    """Whether two nouns of `NOUN_KINDS` contradict each other and are right below the same one.

    People of different ages or deeds may be the same ones, and so may vague words.
    """
    above = [{parent for kind in NOUN_KINDS[noun] for parent in _PARENTS.get(kind, ())} for noun in (first, second)]
    shared = (above[0] & above[1]).difference(_WORDS["compatible"])
    return bool(shared) and contradict(first, second) and {first, second}.isdisjoint(_WORDS["vague"])


@functools.cache
def may_be(first: str, second: str) -> bool:
    """Whether two nouns may name the same thing; of those that are not known, only equal ones."""
    return first == second or (first in NOUN_KINDS and second in NOUN_KINDS and not contradict(first, second))


@functools.cache
def usual_attribute(word: str) -> str:
    """The first of the attributes that mean the same."""
    groups = (group.split() for groups in _WORDS["attributes"] for group in groups)
    return next((group[0] for group in groups if word in group), word)


@functools.cache
def contradicting_attributes(word: str) -> tuple[str, ...]:
    """Attributes of the class of a lower-case one that do not mean the same; none of one that is not known."""
    found = []
    for groups in _WORDS["attributes"]:
        own = [set(group.split()) for group in groups if word in group.split()]
        if own:
            found += [each for group in groups for each in group.split() if each not in own[0]]
    return tuple(found)


@functools.cache
def _lineage(kind: str) -> frozenset[str]:
    """A kind with all that stand above it."""
    return frozenset({kind}).union(*map(_lineage, _PARENTS.get(kind, ())))
