"""Words: how captions are cut into them, the lists of `words.toml`, and what the dictionary says of one."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

MOST_WORDS = 400
"""Words of a caption that are parsed; published captions have fewer than 100, detailed descriptions fewer than 300."""
MOST_LETTERS = 60
"""Letters of a word that are read; the longest word of English dictionaries has 45. HanTa's time grows as the square:
11 ms for 60 letters, 1.3 s for 800."""
# A word keeps its inner hyphens and apostrophes (t-shirt, o'clock) but not a possessive or contracted 's; everything
# else that is not blank stands alone.
_POSSESSIVE = r"['\u2019][sS]\b"
_TOKEN = re.compile(rf"{_POSSESSIVE}|\w+(?:(?!{_POSSESSIVE})['\u2019\-]\w+)*|[^\w\s]")


def tokenise(text: str) -> list[tuple[str, int, int]]:
    """Split a caption into words and single punctuation marks.

    Args:
        text: any Unicode.

    Returns:
        Text, start and end (exclusive, in code points) of each token; `text[start:end]` is its text.
    """
    tokens = []
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        tokens.append((match[0], start, end))
    return tokens


def parsed_part(text: str) -> str:
    """Return the part of a text that is parsed, from its first character on: all of any caption.

    Args:
        text: any Unicode.

    Returns:
        The first `MOST_WORDS` words and marks; it ends within a word of more than `MOST_LETTERS` letters.
        `tokenise` finds in it what it finds there in the whole text.
    """
    end = 0
    for number, match in enumerate(_TOKEN.finditer(text)):
        if number == MOST_WORDS:
            return text[:end]
        start, end = match.span()
        if end - start > MOST_LETTERS:
            return text[: start + MOST_LETTERS]
    return text


def plain(word: str) -> str:
    """Write a word as the word lists have it: lower case, with a straight apostrophe."""
    return word.lower().replace("\u2019", "'")


def _read_lists() -> SimpleNamespace:
    """Read words.toml, whose first lines say how lists are written."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    word_lists: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, list):
            value = frozenset(tuple(phrase.split()) for phrase in value)
        elif isinstance(value, str):
            words = set()
            for entry in value.split():
                listed = {entry.lstrip("-")}
                if "@" in entry:
                    listed = word_lists[entry.lstrip("-@")]
                if entry.startswith("-"):
                    words -= listed
                else:
                    words |= listed
            value = frozenset(words)
        word_lists[name] = value
    return SimpleNamespace(**word_lists)


lists = _read_lists()


class LexiconEntry(NamedTuple):
    """The readings of a word by the dictionary and the lists, whatever stands around it.

    Attributes:
        word: in lower case; "" beyond the ends of a caption.
        noun, verb, adjective, adverb: lemma as that part of speech, or "" where the dictionary knows no such reading.
        known: whether there is any reading.
        bare: whether the word can be a verb in its base form.
        third_person: whether the word can be a verb that ends in the s of he, she and it.
        nounish: whether it can stand inside a noun phrase after the first word.
        opens: whether a noun phrase can start with it.
    """

    word: str = ""
    noun: str = ""
    verb: str = ""
    adjective: str = ""
    adverb: str = ""
    known: bool = False
    bare: bool = False
    third_person: bool = False
    nounish: bool = False
    opens: bool = False


@lru_cache(maxsize=1 << 16)
def look_up(word: str) -> LexiconEntry:
    """Return the entry of a lower-case word.

    Source: the SPECIALIST lexicon of the U.S. National Library of Medicine, as lemminflect packages it.
    """
    from lemminflect import getAllLemmas

    lemmas = {part: words[0] for part, words in getAllLemmas(word).items()}
    noun = lists.NOUN_LEMMAS.get(word) or lemmas.get("NOUN", "")
    verb = lemmas.get("VERB") or lemmas.get("AUX", "")
    if verb:
        verb = lists.VERB_LEMMAS.get(word, verb)
    adjective = lemmas.get("ADJ", "")
    if not lemmas and word.endswith("less"):
        adjective = word
    if not adjective and word in lists.MISSING_ADJECTIVES:
        adjective = word
    adverb = lemmas.get("ADV", "")
    known = bool(noun or verb or adjective or adverb)
    inside = word[0].isalnum() and not word.isdecimal() and word not in lists.OUTSIDE_PHRASES
    return LexiconEntry(
        word,
        noun,
        verb,
        adjective,
        adverb,
        known,
        bare=verb == word,
        third_person=bool(verb) and word.endswith("s") and verb != word,
        nounish=inside and bool(noun or adjective or not known),
        opens=word in lists.PHRASE_OPENERS or word.isdecimal(),
    )


@lru_cache(maxsize=1 << 16)
def lemma_of(word: str, tag: str) -> str:
    """Return the lemma of a word under a tag of the rules; any tag but noun and verb leaves it as it is.

    Args:
        word: lower case.
        tag: one of `lists.TAGS`.
    """
    if word in lists.BE:
        return "be"
    if tag == "N":
        return look_up(word).noun or _singular(word)
    if tag in {"V", "VBG", "VBN", "AUX"}:
        return look_up(word).verb or _bare(word)
    return word


def _singular(word: str) -> str:
    """Return the singular of a noun that the dictionary lacks; of its last part if it is hyphenated."""
    front, hyphen, last = word.rpartition("-")
    if hyphen and last:
        return front + hyphen + lemma_of(last, "N")
    if len(word) < 4 or not word.endswith("s"):
        return word
    if word.endswith(("ss", "us", "is")):
        return word
    if word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    return word[:-1]


def _bare(word: str) -> str:
    """Return the base form of a verb that the dictionary lacks; a stem that it knows decides about a final e."""
    stem = re.sub("ing$|ed$", "", word)
    if stem == word or len(stem) < 3 or set(stem).isdisjoint("aeiou"):
        return _singular(word)
    last = stem[-1]
    doubled = len(stem) > 3 and last == stem[-2] and last not in "lsz"
    candidates = [stem, stem + "e"]
    if doubled:
        candidates.append(stem[:-1])
    for candidate in candidates:
        if look_up(candidate).known:
            return candidate
    if doubled:
        return stem[:-1]
    if last in "cvu":
        return stem + "e"
    if stem.endswith(("at", "id", "ad")) and stem[-3] not in "aeiou":
        return stem + "e"
    return stem


def is_hyphenated_adjective(word: str) -> bool:
    """Return whether a word with a hyphen is an adjective by its last part: long-haired, snow-covered, grey-striped."""
    _, hyphen, last = word.rpartition("-")
    return bool(hyphen) and (last in lists.LAST_PARTS or last.endswith("ed"))
