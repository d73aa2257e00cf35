"""Reads sentences as logical forms: the inverse of `captions`, for sentences whose words others have changed.

    CaptionReader().readings("a red dog is on a table in the snow")

Whatever `captions` writes is read to the form that it was written with, its objects in the order of the text. Beyond
that, sentences are read in which words of the captions stand in each other's place: "a tree holds two dogs".

- Articles, letter case, `in`, `on` and `at` before a setting, and agreement in number do not matter.
- About some things the world has no truth: a tree that waits, a tiny bird (all have one size), a blue man (people have
  the colour of their clothes), a ball of two colours. Such words are left out of the form, and the reading is not
  certain: what it says is untrue when its form is, and undecided when its form is true.
- Clothes are worn by those who have them: "a dog in a red dress" is true of nothing.
- Captions count the whole scene: "two dogs and a cat" means exactly two. Where what is counted stands in a relation,
  "two dogs under a tree", so many different objects do; and of "two dogs and a white dog" there are three.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from itrpipe.scenes import grammar
from itrpipe.scenes.forms import LogicalForm, Predicate
from itrpipe.scenes.frames import COUNTED, SINGLE, Structure, normalise, read_frame, verbs_of
from itrpipe.scenes.world import COLOURS, KIND_TABLE, MAX_OBJECTS, PEOPLE

# What may stand for the first word of a phrase for a setting.
_PLACES = {"in": ("on", "at"), "on": ("in", "at"), "at": ("in", "on"), "by": ("at",)}
_WORN = ("in", "dressed in", "wearing")
_WITHOUT_ARTICLE = "someone"
_CACHED_PHRASES = 1 << 16


class Reading(NamedTuple):
    """What a sentence can mean.

    Attributes:
        form: what it claims, as far as the world has a truth about it.
        certain: whether that is all that it claims.
    """

    form: LogicalForm
    certain: bool


class NounPhrase(NamedTuple):
    """What a noun phrase says; `number` is None after an article, `certain` as in `Reading`."""

    predicate: Predicate
    number: int | None
    certain: bool = True


class CaptionReader:
    """Reads sentences.

    Args:
        numbers: number words that may occur beside those of the captions -> value.

    Attributes:
        understand: what a noun phrase says, as a function of its text.
    """

    def __init__(self, numbers: Mapping[str, int] | None = None) -> None:
        self._numbers = {word: value for value, word in grammar.NUMBER_WORDS.items()} | dict(numbers or {})
        self._phrase = _phrase_pattern(self._numbers)
        # Sentences share their noun phrases, which take most of the time to understand.
        self.understand = lru_cache(_CACHED_PHRASES)(self._understand_anew)

    def readings(self, text: str) -> tuple[Reading, ...]:
        """All that a sentence can mean; nothing where the grammar has no such sentence.

        Args:
            text: of any letter case; a full stop at its end is skipped.
        """
        frame, settings = _without_setting(normalise(text))
        phrases: list[NounPhrase] = []

        def mark(match: re.Match[str]) -> str:
            phrases.append(self.understand(match[0]))
            return SINGLE if phrases[-1].number is None else COUNTED

        structures = read_frame(self._phrase.sub(mark, frame))
        return tuple(_reading(structure, phrases, settings) for structure in structures)

    def noun_phrases(self, text: str) -> list[re.Match[str]]:
        """Where a sentence names things.

        Args:
            text: in lower case, with `a` for every `an`.

        Returns:
            Matches with the groups article (or number), looks, bare (looks without an article), noun, clothes (looks of
            these), garment and dye (a colour that is worn).
        """
        return list(self._phrase.finditer(text))

    def _understand_anew(self, phrase: str) -> NounPhrase:
        match = self._phrase.fullmatch(phrase)
        assert match is not None, phrase
        article, looks, bare, noun, clothes, garment, dye = (group or "" for group in match.groups())
        kinds = _KINDS_OF_NOUNS[noun or _WITHOUT_ARTICLE]
        own, worn = LOOK_PATTERN.findall(looks + bare), LOOK_PATTERN.findall(f"{clothes} {dye}")
        if set(kinds) <= set(PEOPLE):
            claimed, certain = _claims(worn, sized=False)
            certain = certain and not own
        else:
            claimed, certain = _claims(own + worn, sized=any(KIND_TABLE[kind].sized for kind in kinds))
        if garment or dye:
            wearers = _WEARERS.get(garment, PEOPLE)
            kinds = tuple(kind for kind in kinds if kind in wearers)
        return NounPhrase(Predicate(kinds, **claimed), self._numbers.get(article), certain)


def _without_setting(text: str) -> tuple[str, tuple[str, ...]]:
    """Takes the phrase for the setting from the end or the beginning; elsewhere it stays, and makes no sense."""
    match = _SETTING_PATTERN.search(text)
    if match is None:
        return text, ()
    before, after = text[: match.start()], text[match.end() :]
    if not after:
        return before.rstrip(), _SETTINGS_OF_PHRASES[match[0]]
    if not before and after.startswith(" , "):
        return after.removeprefix(" , "), _SETTINGS_OF_PHRASES[match[0]]
    return text, ()


def _claims(words: Iterable[str], *, sized: bool) -> tuple[dict[str, str], bool]:
    """Attributes of a predicate, without those of two values or of sizes where there is but one.

    Returns:
        The attributes, and whether none was left out.
    """
    values: dict[str, set[str]] = {}
    for word in words:
        attribute, value = LOOKS[word]
        values.setdefault(attribute, set()).add(value)
    claimed = {
        attribute: min(found)
        for attribute, found in values.items()
        if len(found) == 1 and (sized or attribute != "size")
    }
    return claimed, len(claimed) == len(values)


def _reading(structure: Structure, phrases: Sequence[NounPhrase], settings: tuple[str, ...]) -> Reading:
    phrases = list(phrases)
    for number, verb in structure.verbs:
        phrases[number] = _with_verb(phrases[number], verb)
    apart = {number for first, _, second in structure.relations for number in (first, second)}
    apart |= {number for number in range(len(phrases)) if _counts_another(number, phrases)}
    objects: list[Predicate] = []
    counts: list[tuple[Predicate, int]] = []
    places: dict[int, range] = {}
    for position, (predicate, number, certain) in enumerate(phrases):
        # Without one of its words a count would say something else, and not less.
        if number is not None and certain and position not in apart:
            counts.append((predicate, number))
            continue
        # One object more than a scene can have is as impossible as many more.
        copies = 1 if number is None else min(number, MAX_OBJECTS + 1)
        places[position] = range(len(objects), len(objects) + copies)
        objects += [predicate] * copies
    relations = [
        (one, name, other)
        for first, name, second in structure.relations
        for one, other in product(places[first], places[second])
    ]
    form = LogicalForm(tuple(objects), tuple(relations), settings, tuple(counts))
    return Reading(form, all(phrase.certain for phrase in phrases))


def _with_verb(phrase: NounPhrase, verb: str) -> NounPhrase:
    if verb in _FLYING_VERBS:
        return phrase._replace(predicate=replace(phrase.predicate, state="fly"))
    return phrase._replace(certain=phrase.certain and not _VERBS[verb].isdisjoint(phrase.predicate.kinds))


def _counts_another(number: int, phrases: Sequence[NounPhrase]) -> bool:
    """Whether another noun phrase names objects that this one covers, which its number does not include."""
    covered = set(phrases[number].predicate.kinds)
    return any(covered.issuperset(other.predicate.kinds) for at, other in enumerate(phrases) if at != number)


def _any_of(words: Iterable[str]) -> str:
    """Pattern of the longest of some words or phrases."""
    return "|".join(re.escape(word) for word in sorted(set(words), key=lambda word: (-len(word), word)))


def _phrase_pattern(numbers: Iterable[str]) -> re.Pattern[str]:
    nouns = _any_of(noun for noun in _KINDS_OF_NOUNS if noun != _WITHOUT_ARTICLE)
    looks, garments = f"(?:(?:{_any_of(LOOKS)}) )", _any_of(_WEARERS)
    # An adjective in the place of the article leaves "orange cat", which is clear enough.
    noun_phrase = f"(?:(?P<article>a|{_any_of(numbers)}) (?P<looks>{looks}*)|(?P<bare>{looks}+))(?P<noun>{nouns})"
    worn = f"(?:a )?(?P<clothes>{looks}*)(?P<garment>{garments})|(?P<dye>{_any_of(COLOURS)})"
    return re.compile(rf"\b(?:{noun_phrase}|{_WITHOUT_ARTICLE})\b(?: (?:{_any_of(_WORN)}) (?:{worn})\b)?")


def _plurals(noun: str) -> set[str]:
    """The regular plurals; what is no word does no harm."""
    return {f"{noun}s", f"{noun}es", f"{noun[:-1]}ies"}


def _kinds_of_nouns() -> dict[str, tuple[str, ...]]:
    """Singular and plural nouns -> kinds."""
    kinds: dict[str, tuple[str, ...]] = {}
    for kind, nouns in grammar.NOUNS.items():
        kinds |= dict.fromkeys(
            [*nouns, grammar.PLURALS[kind], *(form for noun in nouns for form in _plurals(noun))], (kind,)
        )
    for hypernym in grammar.HYPERNYMS:
        forms = {form for noun in hypernym.singular for form in _plurals(noun)}
        kinds |= dict.fromkeys([*hypernym.singular, *hypernym.plural, *forms], hypernym.kinds)
    return kinds


def _look_words() -> dict[str, tuple[str, str]]:
    """Adjective -> attribute of a predicate, its value."""
    tables = {
        "colour": {colour: (colour,) for colour in COLOURS},
        "pattern": grammar.PATTERN_WORDS,
        "size": grammar.SIZE_WORDS,
    }
    return {
        word: (attribute, value)
        for attribute, table in tables.items()
        for value, words in table.items()
        for word in words
    }


def _settings_of_phrases() -> dict[str, tuple[str, ...]]:
    """Phrase -> settings, those of the grammar and with another word for the place."""
    rows = [((setting,), phrases) for setting, phrases in grammar.SETTING_PHRASES.items()]
    known = {
        normalise(phrase): settings
        for settings, phrases in [*rows, *grammar.GENERAL_SETTING_PHRASES]
        for phrase in phrases
    }
    for phrase, settings in list(known.items()):
        place, _, rest = phrase.partition(" ")
        for other in _PLACES.get(place, ()):
            known.setdefault(f"{other} {rest}", settings)
    return known


def _wearers() -> dict[str, tuple[str, ...]]:
    """Garment -> kinds that wear it."""
    garments = {garment for worn in grammar.GARMENTS.values() for garment in worn}
    wearers = {name: tuple(kind for kind in PEOPLE if name in grammar.GARMENTS[kind]) for name in garments}
    return wearers | {grammar.UNISEX_GARMENT: PEOPLE}


_KINDS_OF_NOUNS = _kinds_of_nouns()
LOOKS = _look_words()
LOOK_PATTERN = re.compile(rf"\b(?:{_any_of(LOOKS)})\b")
_WEARERS = _wearers()
_SETTINGS_OF_PHRASES = _settings_of_phrases()
_SETTING_PATTERN = re.compile(rf"\b(?:{_any_of(_SETTINGS_OF_PHRASES)})\b")
_VERBS, _FLYING_VERBS = verbs_of(grammar.VERBS), verbs_of(grammar.FLYING_VERBS)
