"""Small pieces of English grammar that edits need: numbers, articles, singular and plural."""

from __future__ import annotations

import functools

_UP_TO_TWENTY = (
    *("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen"),
    *("fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
_TENS = ("thirty", "forty", "fifty", "sixty", "seventy", "eighty")
NUMBER_VALUES: dict[str, int] = {
    **dict.fromkeys(("a", "an", "one"), 1),
    **{word: value for value, word in enumerate(_UP_TO_TWENTY, start=2)},
    **{word: 10 * value for value, word in enumerate(_TENS, start=3)},
}
"""The words that the rules write for numbers. Source: VSE-C, which lists the same numbers."""
ARTICLES = frozenset({"a", "an"})
_VOWELS = tuple("aeiou")
_LIKE_CONSONANTS = ("uni", "use", "eu", "one", "ukulele", "utensil")
_LIKE_VOWELS = ("hour", "honest", "heir", "x-ray")


def number_value(word: str) -> int | None:
    """Value of a lower-case number word or of digits, else None."""
    return int(word) if word.isdecimal() else NUMBER_VALUES.get(word)


def article_before(word: str) -> str:
    """`an` before what begins with the sound of a vowel, else `a`."""
    lower = word.lower()
    vowel = lower.startswith(_VOWELS) and not lower.startswith(_LIKE_CONSONANTS)
    return "an" if vowel or lower.startswith(_LIKE_VOWELS) else "a"


_PLURALS = {"person": "people"}
_SINGULARS = {"people": "person", "glasses": "glass"}


@functools.lru_cache(maxsize=1 << 14)
def plural(noun: str) -> str:
    """Plural of a lower-case singular. Source: the SPECIALIST lexicon, as lemminflect packages it; VSE-C's `people`."""
    from lemminflect import getInflection

    return _PLURALS.get(noun) or next(iter(getInflection(noun, "NNS")), noun)


def singular(lemma: str) -> str:
    """Singular of a lower-case lemma, of which our lexicon has two that are plurals. Source: VSE-C's code."""
    return _SINGULARS.get(lemma, lemma)


def like(written: str, word: str) -> str:
    """A word with a capital letter where what it replaces has one."""
    return word[:1].upper() + word[1:] if written[:1].isupper() else word
