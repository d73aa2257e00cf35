"""What the dictionary says of a single word: its possible parts of speech, and its lemma as each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from itrpipe.scene_graph.words import BE, COVER_WORDS, MISSING_ADJECTIVES

NOUN_LEMMAS = {
    "bar": "bar",
    "bars": "bar",
    "log": "log",
    "logs": "log",
    "pan": "pan",
    "pans": "pan",
    "top": "top",
    "tops": "top",
    "leaves": "leaf",
    "glasses": "glasses",
    "sunglasses": "sunglasses",
    "eyeglasses": "eyeglasses",
    "shorts": "shorts",
    "pants": "pants",
    "trousers": "trousers",
    "jeans": "jeans",
    "goggles": "goggles",
    "tights": "tights",
    "overalls": "overalls",
    "pajamas": "pajamas",
    "binoculars": "binoculars",
    "scissors": "scissors",
    "trunks": "trunks",
    "khakis": "khakis",
    "people": "people",
    "jumps": "jump",
    "dice": "dice",
    "policemen": "policeman",
    "policewomen": "policewoman",
    "firemen": "fireman",
    "groomsmen": "groomsman",
    "snowmen": "snowman",
    "kitties": "kitty",
    "panties": "panties",
    "suspenders": "suspenders",
    "christmas": "christmas",
    "tutus": "tutu",
    "media": "media",
    "data": "data",
}
"""Nouns that the dictionary lacks or whose form in it is not the one that captions mean."""
VERB_LEMMAS = {"bathing": "bathe", "putting": "put", "lay": "lay", "found": "find", "saw": "see", "felt": "feel"}
VERB_TAGS = frozenset({"V", "VBG", "VBN", "AUX"})
VOWELS = frozenset("aeiou")


@dataclass(frozen=True, slots=True)
class Entry:
    """Readings of a word.

    Attributes:
        noun, verb, adjective, adverb: lemma as that part of speech, or "" where the dictionary knows no such reading.
    """

    noun: str = ""
    verb: str = ""
    adjective: str = ""
    adverb: str = ""

    @property
    def known(self) -> bool:
        return bool(self.noun or self.verb or self.adjective or self.adverb)

    def is_third_person(self, word: str) -> bool:
        """Whether the word can be a verb that ends in the s of he, she and it."""
        return bool(self.verb) and word.endswith("s") and self.verb != word


@lru_cache(maxsize=1 << 16)
def look_up(word: str) -> Entry:
    """Entry of a lower-case word.

    Source: the SPECIALIST lexicon of the U.S. National Library of Medicine, as lemminflect packages it.
    """
    from lemminflect import getAllLemmas

    lemmas = getAllLemmas(word)
    noun, verb = _first(lemmas, "NOUN"), _first(lemmas, "VERB") or _first(lemmas, "AUX")
    return Entry(
        NOUN_LEMMAS.get(word, noun),
        VERB_LEMMAS.get(word, verb) if verb else "",
        _first(lemmas, "ADJ") or (word if word in MISSING_ADJECTIVES or (not lemmas and word.endswith("less")) else ""),
        _first(lemmas, "ADV"),
    )


def _first(lemmas: dict[str, tuple[str, ...]], part: str) -> str:
    return lemmas.get(part, ("",))[0]


@lru_cache(maxsize=1 << 16)
def lemma_of(word: str, tag: str) -> str:
    """Lemma of a word under a tag of the rules; any tag but noun and verb leaves it as it is.

    Args:
        word: lower case.
        tag: see `itrpipe.scene_graph.tagger.TAGS`.
    """
    if word in BE:
        return "be"
    if tag == "N":
        return look_up(word).noun or _singular(word)
    if tag in VERB_TAGS:
        return look_up(word).verb or _bare(word)
    return word


def _singular(word: str) -> str:
    """Singular of a noun that the dictionary lacks: its last part where it is hyphenated, else by spelling."""
    front, hyphen, last = word.rpartition("-")
    if hyphen and last:
        return front + hyphen + lemma_of(last, "N")
    if len(word) < 4 or not word.endswith("s") or word.endswith(("ss", "us", "is")):
        return word
    if word.endswith("ies"):
        return word[:-1]
    return word[:-2] if word.endswith(("ches", "shes", "xes", "sses")) else word[:-1]


def _bare(word: str) -> str:
    """Base form of a verb that the dictionary lacks; a stem that it knows as a noun decides about a final e."""
    for ending in ("ing", "ed"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) > 2 and VOWELS & set(stem):
            return _restore(stem)
    return _singular(word)


def _restore(stem: str) -> str:
    doubled = len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz"
    for candidate in (stem, stem + "e", stem[:-1] if doubled else stem):
        if look_up(candidate).known:
            return candidate
    if doubled:
        return stem[:-1]
    return stem + "e" if stem[-1] in "cvu" or (stem.endswith(("at", "id", "ad")) and stem[-3] not in VOWELS) else stem


def describes(word: str) -> bool:
    """Whether a word with a hyphen is an adjective by its last part: long-haired, snow-covered, grey-striped."""
    _, hyphen, last = word.rpartition("-")
    return bool(hyphen) and (last in COVER_WORDS or last.endswith("ed") or last in {"colored", "free", "like", "old"})
