"""Reads sentences as logical forms: the inverse of `sayings`, for sentences whose words others have changed.

    CaptionReader().readings("a red dog is on a table in the snow")

Whatever `sayings` writes is read to the form that it was written with, its objects in the order of the text. Beyond
that, sentences are read in which words of the captions stand in each other's place: "a tree holds two dogs".

- Articles, letter case, `in`, `on` and `at` before a setting, and agreement in number do not matter.
- About some things the world has no truth: a tree that waits, a tiny bird (all have one size), a blue man (people have
  the colour of their clothes), a ball of two colours. Such words are left out of the form, and the reading is not
  certain: what it says is untrue when its form is, and undecided when its form is true.
- Clothes are worn by those who have them: "a dog in a red dress" is true of nothing.
- Captions count the whole scene: "two dogs and a cat" means exactly two. Where what is counted stands in a relation,
  "two dogs under a tree", so many different objects do; and of "two dogs and a white dog" there are three.

A sentence is read in two steps. Its noun phrases are understood and replaced by marks, which leaves its *frame*: that
of `a dog is on a table and a red car` is `A is on A and A`. A noun phrase with a number is `N`, since the captions say
`two dogs with a cat` of any two dogs, but `a man with a cup` of a man who holds it. Frames are the wordings of the
captions, and what comes of them by the exchange of single words: another verb before the same preposition, a copula
more or less.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, product
from typing import NamedTuple

from itrpipe.scenes.layout import Triple
from itrpipe.scenes.oracle import LogicalForm, Predicate
from itrpipe.scenes.sayings import SAYINGS
from itrpipe.scenes.world import COLOURS, KIND_TABLE, MAX_OBJECTS, PEOPLE

Span = tuple[int, int]
NOWHERE: Span = (-1, -1)
_SINGLE, _COUNTED = "A", "N"  # marks of noun phrases; sentences have no capitals once they are normalised
_SAME_WORDS = {"an": "a", "the": "a", "are": "is"}
_TOKENS = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")
_MARKS = re.compile(r" *([AN]) *")
_WORDING = re.compile(r"\{([ab])\} (.*) \{[ab]\} ?(.*)")
_COPULA = "is "
_BESIDE = "with"  # between a counted noun phrase and what there is beside it
# What may stand for the first word of a phrase for a setting.
_PLACES = {"in": ("on", "at"), "on": ("in", "at"), "at": ("in", "on"), "by": ("at",)}
_WORN = ("in", "dressed in", "wearing")
_WITHOUT_ARTICLE = "someone"


class Reading(NamedTuple):
    """A meaning of a sentence.

    Attributes:
        form: what it claims, as far as the world has a truth about it.
        certain: whether that is all that it claims.
    """

    form: LogicalForm
    certain: bool


class Look(NamedTuple):
    """An adjective of a noun phrase: its characters from `start` to before `end`, and what it says."""

    start: int
    end: int
    attribute: str
    value: str


class NounPhrase(NamedTuple):
    """The meaning of a noun phrase.

    Attributes:
        text: as it is written.
        predicate: of what it names, as far as the world has a truth about it.
        certain: whether that is all that it says.
        number: None after an article.
        article, noun: where the article (or number) and the noun are in it; `NOWHERE` if they are not.
        looks: its adjectives, those of clothes and a colour that is worn included.
        garment: that is worn; empty: none.
    """

    text: str
    predicate: Predicate
    certain: bool
    number: int | None
    article: Span
    noun: Span
    looks: tuple[Look, ...]
    garment: str


class _Structure(NamedTuple):
    """The claims of a frame about its noun phrases, which are numbered from left to right.

    Attributes:
        relations: (i, relation, j).
        verbs: (i, verb), without copula; verbs that captions use of anything are left out.
    """

    relations: tuple[Triple, ...] = ()
    verbs: tuple[tuple[int, str], ...] = ()

    def saying(self, number: int, verb: str, *relations: Triple) -> _Structure:
        """Add claims about a noun phrase: a verb, unless it is empty, and relations."""
        verbs = self.verbs
        if verb:
            verbs = ((number, verb), *verbs)
        return _Structure((*relations, *self.relations), verbs)


class _Clause(NamedTuple):
    """Two noun phrases in a relation.

    Attributes:
        relation: its name.
        swapped: whether the second noun phrase is the first object of the relation.
        tail: what stands behind the second noun phrase.
        verb: of the first noun phrase, as in `_Structure`.
    """

    relation: str
    swapped: bool
    tail: str = ""
    verb: str = ""


class CaptionReader:
    """Reads sentences.

    Args:
        numbers: number words that may occur beside those of the captions -> value.
    """

    def __init__(self, numbers: Mapping[str, int] | None = None) -> None:
        self._numbers = {word: value for value, word in SAYINGS.numbers.items()} | dict(numbers or {})
        nouns = _any_of(_KINDS_OF_NOUNS.keys() - {_WITHOUT_ARTICLE})
        looks = f"(?:(?:{_any_of(_LOOKS)}) )"
        # An adjective in the place of the article leaves "orange cat", which is clear enough.
        named = f"(?:(?P<article>a|{_any_of(self._numbers)}) {looks}*|{looks}+)(?P<noun>{nouns})"
        worn = f"(?P<worn>(?:a )?{looks}*(?P<garment>{_any_of(_WEARERS)})|(?:{_any_of(COLOURS)}))"
        self._phrase = re.compile(rf"\b(?:{named}|{_WITHOUT_ARTICLE})\b(?: (?:{_any_of(_WORN)}) {worn}\b)?")
        # Sentences share their noun phrases, which take most of the time to understand.
        self._understand = lru_cache(1 << 16)(self._understand_anew)

    def readings(self, text: str) -> tuple[Reading, ...]:
        """Return all that a sentence can mean; nothing where the grammar has no such sentence.

        Args:
            text: of any letter case; a full stop at its end is skipped.
        """
        frame = _normalised(text)
        settings = ()
        if setting := _SETTING_PATTERN.search(frame):
            settings = _SETTINGS_OF_PHRASES[setting[0].strip(" ,")]
            frame = frame[: setting.start()] + frame[setting.end() :]
        phrases: list[NounPhrase] = []

        def mark(match: re.Match[str]) -> str:
            phrase = self._understand(match[0])
            phrases.append(phrase)
            return _SINGLE if phrase.number is None else _COUNTED

        structures = _read_frame(self._phrase.sub(mark, frame))
        return tuple(_reading(structure, phrases, settings) for structure in structures)

    def noun_phrases(self, text: str) -> list[tuple[int, NounPhrase]]:
        """Return what a sentence says of things, each with the place where it names them.

        Args:
            text: in lower case, with `a` for every `an`.
        """
        return [(match.start(), self._understand(match[0])) for match in self._phrase.finditer(text)]

    def _understand_anew(self, phrase: str) -> NounPhrase:
        match = self._phrase.fullmatch(phrase)
        assert match is not None, phrase
        kinds = _KINDS_OF_NOUNS[match["noun"] or _WITHOUT_ARTICLE]
        found = [Look(*each.span(), *_LOOKS[each[0]]) for each in _LOOK_PATTERN.finditer(phrase)]
        certain = True
        told = found
        if set(kinds) <= set(PEOPLE):  # who have the colours of their clothes
            told = [look for look in found if match["worn"] and look.start >= match.start("worn")]
            certain = told == found
        values: dict[str, set[str]] = defaultdict(set)
        for look in told:
            values[look.attribute].add(look.value)
        sized = any(KIND_TABLE[kind].sized for kind in kinds)
        claims = {}
        for attribute, values_of_it in values.items():
            if len(values_of_it) == 1 and (sized or attribute != "size"):
                (claims[attribute],) = values_of_it
            else:  # two values, or a size where there is but one, are left out
                certain = False
        garment = match["garment"] or ""
        if match["worn"]:
            wearers = _WEARERS.get(garment, PEOPLE)
            kinds = tuple(kind for kind in kinds if kind in wearers)
        number = self._numbers.get(match["article"] or "")
        places = match.span("article"), match.span("noun")
        return NounPhrase(phrase, Predicate(kinds, **claims), certain, number, *places, tuple(found), garment)


def _normalised(text: str) -> str:
    """Return lower-case words and punctuation marks between single spaces; articles are all `a`, and `are` is `is`."""
    found: list[str] = _TOKENS.findall(text.lower())
    tokens = [_SAME_WORDS.get(token, token) for token in found]
    return " ".join(tokens).removesuffix(".").rstrip()


def _reading(structure: _Structure, phrases: Sequence[NounPhrase], settings: tuple[str, ...]) -> Reading:
    phrases = list(phrases)
    for number, verb in structure.verbs:
        phrase = phrases[number]
        if verb in _FLYING:
            phrases[number] = phrase._replace(predicate=replace(phrase.predicate, state="fly"))
        elif _DONE[verb].isdisjoint(phrase.predicate.kinds):
            phrases[number] = phrase._replace(certain=False)
    related = set()
    for first, _, second in structure.relations:
        related |= {first, second}
    objects: list[Predicate] = []
    counts: list[tuple[Predicate, int]] = []
    places: list[range] = []
    for position, phrase in enumerate(phrases):
        copies = 1
        if phrase.number is not None:
            others = phrases[:position] + phrases[position + 1 :]
            # What other noun phrases name that this one covers, its number does not include.
            covers = any(set(phrase.predicate.kinds).issuperset(other.predicate.kinds) for other in others)
            # Without one of its words a count would say something else, and not less.
            if phrase.certain and position not in related and not covers:
                counts.append((phrase.predicate, phrase.number))
                copies = 0
            else:  # one object more than a scene can have is as impossible as many more
                copies = min(phrase.number, MAX_OBJECTS + 1)
        places.append(range(len(objects), len(objects) + copies))
        objects += [phrase.predicate] * copies
    relations = []
    for first, name, second in structure.relations:
        relations += product(places[first], [name], places[second])
    form = LogicalForm(tuple(objects), tuple(relations), settings, tuple(counts))
    return Reading(form, all(phrase.certain for phrase in phrases))


@lru_cache(1 << 14)
def _read_frame(frame: str) -> tuple[_Structure, ...]:
    """Return all that a frame can mean; nothing where it is no frame of a sentence."""
    lead, *rest = _MARKS.split(frame)
    marks, after = rest[::2], rest[1::2]  # `A` or `N` of every noun phrase, and what stands behind it
    if not marks or lead not in _LEADS:
        return ()

    def said(number: int) -> list[str]:
        """Return what may be said behind a noun phrase if a part of the sentence ends there."""
        text = after[number]
        if number + 1 == len(marks):
            return [text]
        found = [text.removesuffix(joint).rstrip() for joint in _JOINTS if text.endswith(joint)]
        if marks[number] == _COUNTED and text == _BESIDE:
            found.insert(0, "")
        return found

    def structures(first: int) -> Iterator[_Structure]:
        """Yield what the noun phrases from number `first` on can mean."""
        if first == len(marks):
            yield _Structure()
            return
        for text in said(first):
            if text in _SAID:
                for rest in structures(first + 1):
                    yield rest.saying(first, _SAID[text])
        if first + 1 == len(marks):
            return
        beside = marks[first] == _COUNTED and after[first] == _BESIDE
        for clause in _CLAUSES.get(after[first], ()):
            if clause.tail in said(first + 1) and (clause.tail or not beside):
                one, other = (first + 1, first) if clause.swapped else (first, first + 1)
                for rest in structures(first + 2):
                    yield rest.saying(first, clause.verb, (one, clause.relation, other))

    return tuple(dict.fromkeys(structures(0)))


# The words of the captions turned round: tables from words to meanings.


def _verbs_of(table: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Return verbs without copula -> kinds that a table of the captions has them for."""
    kinds: dict[str, set[str]] = defaultdict(set)
    for kind, verbs in table.items():
        for verb in verbs:
            kinds[_normalised(verb).removeprefix(_COPULA)].add(kind)
    return kinds


def _clauses() -> dict[str, list[_Clause]]:
    """Return what stands between two noun phrases -> what it says.

    These are the wordings of the captions, and those with every verb, or none, before every preposition, each with a
    copula and without.
    """
    made: dict[str, list[_Clause]] = {}
    prepositions: dict[str, _Clause] = {}
    for middle, clauses in _WORDINGS.items():
        made[middle] = list(clauses)
        if middle != "and":
            made[_COPULA + middle] = list(clauses)
        if clauses[0].relation != "hold" and not clauses[0].tail:
            verb, _, rest = middle.partition(" ")
            prepositions[rest if verb in _VERBS else middle] = clauses[0]
    for preposition, clause in prepositions.items():
        # What is above something flies: captions do not say so twice.
        is_above = clause.relation == "above" and not clause.swapped
        for verb, noted in ({"": ""} | _VERBS).items():
            said = clause._replace(verb="" if is_above and verb in _FLYING else noted)
            middle = f"{verb} {preposition}".strip()
            made.setdefault(middle, [said])
            made.setdefault(_COPULA + middle, [said])
    tails = {clause.tail for clause in made["with"]}
    for preposition, clause in prepositions.items():
        tail = f"{preposition} it"
        if tail not in tails:
            made["with"].append(_Clause(clause.relation, not clause.swapped, tail))
    return made


_DONE, _FLYING = _verbs_of(SAYINGS.verbs), _verbs_of(SAYINGS.flying_verbs)
_WORDINGS: dict[str, list[_Clause]] = defaultdict(list)
"""Words between two noun phrases, without the copula -> what they say."""
for _relation, _wordings in SAYINGS.relations.items():
    for _wording in _wordings:
        _first, _middle, _tail = _WORDING.findall(_wording)[0]
        _clause = _Clause(_relation, _first == "b", _normalised(_tail))
        _WORDINGS[_normalised(_middle).removeprefix(_COPULA)].append(_clause)
_VERBS: dict[str, str] = {}
"""Verb -> what is noted of it, as in `_Structure`."""
for _verb in sorted({*_DONE, *_FLYING}):
    _VERBS[_verb] = _verb
for _middle in _WORDINGS:
    _verb, _, _rest = _middle.partition(" ")
    if _rest in _WORDINGS and _verb not in _FLYING:
        _VERBS[_verb] = ""  # wordings of relations have it, whatever it is that stands in them
_SAID = dict(_VERBS)
"""Words about a noun phrase alone -> its verb, as in `_Structure`."""
for _verb, _air in product(sorted(_FLYING), SAYINGS.air_phrases):
    _SAID[_normalised(_verb + _air)] = _verb
_SAID |= {_COPULA + _text: _verb for _text, _verb in _SAID.items()}
_SAID[""] = ""


def _any_of(words: Iterable[str]) -> str:
    """Return a pattern of the longest of some words or phrases."""
    return "|".join(re.escape(word) for word in sorted(set(words), key=lambda word: (-len(word), word)))


_LEADS = {_normalised(lead) for lead in SAYINGS.enumeration_leads}
_JOINTS = {_normalised(joint) for joint in (*SAYINGS.clause_joints, ", ")}
_CLAUSES = _clauses()
_KINDS_OF_NOUNS: dict[str, tuple[str, ...]] = {}
"""Singular and plural nouns -> kinds. Plurals that are no word do no harm."""
_ROWS = [((_kind,), _nouns, (SAYINGS.plurals[_kind],)) for _kind, _nouns in SAYINGS.nouns.items()]
for _kinds, _nouns, _plurals in (*_ROWS, *((row.kinds, row.singular, row.plural) for row in SAYINGS.hypernyms)):
    for _noun in _nouns:
        for _form in (*_plurals, _noun, f"{_noun}s", f"{_noun}es", f"{_noun[:-1]}ies"):
            _KINDS_OF_NOUNS[_form] = _kinds
_LOOKS: dict[str, tuple[str, str]] = {}
"""Adjective -> attribute and value."""
for _attribute, _table in SAYINGS.looks.items():
    for _value, _words in _table.items():
        _LOOKS |= dict.fromkeys(_words, (_attribute, _value))
_LOOK_PATTERN = re.compile(rf"\b(?:{_any_of(_LOOKS)})\b")
_WEARERS: dict[str, tuple[str, ...]] = dict.fromkeys(chain(*SAYINGS.garments.values()), ())
"""Garment -> kinds that wear it."""
for _kind in PEOPLE:
    for _garment in {*SAYINGS.garments[_kind], SAYINGS.unisex_garment} & _WEARERS.keys():
        _WEARERS[_garment] += (_kind,)
_SETTINGS_OF_PHRASES: dict[str, tuple[str, ...]] = {}
"""Phrase -> settings, those of the captions and with another word for the place."""
for _name, _phrases in SAYINGS.settings.items():
    _SETTINGS_OF_PHRASES |= dict.fromkeys(map(_normalised, _phrases), (_name,))
for _settings, _phrases in SAYINGS.general_settings:
    _SETTINGS_OF_PHRASES |= dict.fromkeys(map(_normalised, _phrases), _settings)
for _phrase, _settings in list(_SETTINGS_OF_PHRASES.items()):
    _place, _, _rest = _phrase.partition(" ")
    for _other in _PLACES.get(_place, ()):
        _SETTINGS_OF_PHRASES.setdefault(f"{_other} {_rest}", _settings)
# At the beginning or the end; elsewhere a phrase for the setting makes no sense.
_SETTING_PATTERN = re.compile(r"^(?:{0}) , |(?:^| )(?:{0})$".format(_any_of(_SETTINGS_OF_PHRASES)))
