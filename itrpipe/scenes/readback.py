"""Reads sentences as logical forms: the inverse of `sayings`, for sentences whose words others have changed.

    CaptionReader().meanings("a red dog is on a table in the snow")

Whatever `sayings` writes is read to the form that it was written with, its objects in the order of the text. Beyond
that, sentences are read in which words of the captions stand in each other's place: "a tree holds two dogs".

- Articles, letter case, `in`, `on` and `at` before a setting, and agreement in number do not matter.
- About some things the world has no truth: a tree that waits, a tiny bird (all have one size), a blue man (people have
  the colour of their clothes), a ball of two colours. Such words are left out of the form, and the meaning is not
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
from itertools import product
from typing import NamedTuple

from itrpipe.scenes.layout import Triple
from itrpipe.scenes.oracle import LogicalForm, Predicate
from itrpipe.scenes.sayings import SAYINGS, Hypernym
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
_PLACES = {
    "in": ("on", "at"),
    "on": ("in", "at"),
    "at": ("in", "on"),
    "by": ("at",),
}
_WORN = ("in", "dressed in", "wearing")
_WITHOUT_ARTICLE = "someone"


class Meaning(NamedTuple):
    """A meaning of a sentence.

    Attributes:
        form: what it claims, as far as the world has a truth about it.
        certain: whether that is all that it claims.
    """

    form: LogicalForm
    certain: bool


class Adjective(NamedTuple):
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
        adjectives: those of clothes and a colour that is worn included.
        garment: that is worn; empty: none.
    """

    text: str
    predicate: Predicate
    certain: bool
    number: int | None
    article: Span
    noun: Span
    adjectives: tuple[Adjective, ...]
    garment: str


class _Claims(NamedTuple):
    """The claims of a frame about its noun phrases, which are numbered from left to right.

    Attributes:
        relations: (i, relation, j).
        verbs: (i, verb), without copula; verbs that captions use of anything are left out.
    """

    relations: tuple[Triple, ...] = ()
    verbs: tuple[tuple[int, str], ...] = ()


class _Clause(NamedTuple):
    """Two noun phrases in a relation.

    Attributes:
        relation: its name.
        swapped: whether the second noun phrase is the first object of the relation.
        tail: what stands behind the second noun phrase.
        verb: of the first noun phrase, as in `_Claims`.
    """

    relation: str
    swapped: bool
    tail: str = ""
    verb: str = ""


def _normalised(text: str) -> str:
    """Return lower-case words and punctuation marks between single spaces; articles are all `a`, and `are` is `is`."""
    tokens: list[str] = _TOKENS.findall(text.lower())
    tokens = [_SAME_WORDS.get(token, token) for token in tokens]
    return " ".join(tokens).removesuffix(".").rstrip()


def _any_of(words: Iterable[str]) -> str:
    """Return a pattern of the longest of some words or phrases."""
    longest_first = sorted(set(words), key=lambda word: (-len(word), word))
    return "|".join(map(re.escape, longest_first))


# -- the words of the captions turned round: tables from words to meanings ---------------------------------------------


def _verbs(table: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
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
    clauses: dict[str, list[_Clause]] = {}
    prepositions: dict[str, _Clause] = {}
    for middle, meanings in _WORDINGS.items():
        clauses[middle] = list(meanings)
        if middle != "and":
            clauses[_COPULA + middle] = list(meanings)
        if meanings[0].relation != "hold" and not meanings[0].tail:
            verb, _, preposition = middle.partition(" ")
            if verb not in _VERBS:
                preposition = middle
            prepositions[preposition] = meanings[0]
    tails = {clause.tail for clause in clauses["with"]}
    for preposition, clause in prepositions.items():
        # What is above something flies: captions do not say so twice.
        is_above = clause.relation == "above" and not clause.swapped
        for verb, claim in ({"": ""} | _VERBS).items():
            if is_above and verb in _FLYING_VERBS:
                claim = ""
            middle = f"{verb} {preposition}".strip()
            clauses.setdefault(middle, [clause._replace(verb=claim)])
            clauses.setdefault(_COPULA + middle, [clause._replace(verb=claim)])
        tail = f"{preposition} it"
        if tail not in tails:
            clauses["with"].append(_Clause(clause.relation, not clause.swapped, tail))
    return clauses


_GROUND_VERBS = _verbs(SAYINGS.verbs)
_FLYING_VERBS = _verbs(SAYINGS.flying_verbs)
_WORDINGS: dict[str, list[_Clause]] = defaultdict(list)
"""Words between two noun phrases, without the copula -> what they say in captions."""
for _relation, _texts in SAYINGS.relations.items():
    for _text in _texts:
        _first, _middle, _tail = _WORDING.findall(_text)[0]
        _clause = _Clause(_relation, _first == "b", _normalised(_tail))
        _WORDINGS[_normalised(_middle).removeprefix(_COPULA)].append(_clause)
_VERBS = {verb: verb for verb in sorted({*_GROUND_VERBS, *_FLYING_VERBS})}
"""Verb -> what is noted of it, as in `_Claims`."""
for _middle in _WORDINGS:
    _verb, _, _rest = _middle.partition(" ")
    if _rest in _WORDINGS and _verb not in _FLYING_VERBS:
        _VERBS[_verb] = ""  # wordings of relations have it, whatever it is that stands in them
_CLAUSES = _clauses()
_STATEMENTS = dict(_VERBS)
"""Words about a noun phrase alone -> its verb, as in `_Claims`."""
for _verb, _air in product(sorted(_FLYING_VERBS), SAYINGS.air_phrases):
    _STATEMENTS[_normalised(_verb + _air)] = _verb
for _text, _verb in list(_STATEMENTS.items()):
    _STATEMENTS[_COPULA + _text] = _verb
_STATEMENTS[""] = ""
_LEADS = set(map(_normalised, SAYINGS.enumeration_leads))
_JOINTS = set(map(_normalised, (*SAYINGS.clause_joints, ", ")))

_KINDS_OF_NOUNS: dict[str, tuple[str, ...]] = {}
"""Singular and plural nouns -> kinds. Plurals that are no word do no harm."""
_NOUNS: list[Hypernym] = []
for _kind, _nouns in SAYINGS.nouns.items():
    _NOUNS.append(Hypernym((_kind,), _nouns, (SAYINGS.plurals[_kind],)))
for _row in (*_NOUNS, *SAYINGS.hypernyms):
    for _noun in _row.singular:
        for _spelling in (*_row.plural, _noun, f"{_noun}s", f"{_noun}es", f"{_noun[:-1]}ies"):
            _KINDS_OF_NOUNS[_spelling] = _row.kinds

_ADJECTIVES: dict[str, tuple[str, str]] = {}
"""Adjective -> attribute and value."""
for _attribute, _words_of_values in SAYINGS.looks.items():
    for _value, _words in _words_of_values.items():
        for _word in _words:
            _ADJECTIVES[_word] = (_attribute, _value)
_ADJECTIVE = re.compile(rf"\b(?:{_any_of(_ADJECTIVES)})\b")

_WEARERS: dict[str, tuple[str, ...]] = {}
"""Garment -> kinds that wear it."""
for _garments in SAYINGS.garments.values():
    for _garment in _garments:
        _WEARERS[_garment] = ()
for _garment in _WEARERS:
    for _kind in PEOPLE:
        if _garment in SAYINGS.garments[_kind] or _garment == SAYINGS.unisex_garment:
            _WEARERS[_garment] += (_kind,)

_SETTINGS_OF_PHRASES: dict[str, tuple[str, ...]] = {}
"""Phrase -> settings, those of the captions and with another word for the place."""
for _name, _phrases in SAYINGS.settings.items():
    for _phrase in _phrases:
        _SETTINGS_OF_PHRASES[_normalised(_phrase)] = (_name,)
for _settings, _phrases in SAYINGS.general_settings:
    for _phrase in _phrases:
        _SETTINGS_OF_PHRASES[_normalised(_phrase)] = _settings
for _phrase, _settings in list(_SETTINGS_OF_PHRASES.items()):
    _place, _, _rest = _phrase.partition(" ")
    for _other in _PLACES.get(_place, ()):
        _SETTINGS_OF_PHRASES.setdefault(f"{_other} {_rest}", _settings)
# At the beginning or the end; elsewhere a phrase for the setting makes no sense.
_SETTING = re.compile(r"^(?:{0}) , |(?:^| )(?:{0})$".format(_any_of(_SETTINGS_OF_PHRASES)))


# -- reading -----------------------------------------------------------------------------------------------------------


class CaptionReader:
    """Reads sentences.

    Args:
        numbers: number words that may occur beside those of the captions -> value.
    """

    def __init__(self, **numbers: int) -> None:
        self._numbers = {word: value for value, word in SAYINGS.numbers.items()} | numbers
        nouns = _any_of(_KINDS_OF_NOUNS.keys() - {_WITHOUT_ARTICLE})
        adjective = f"(?:(?:{_any_of(_ADJECTIVES)}) )"
        # An adjective in the place of the article leaves "orange cat", which is clear enough.
        start = f"(?:(?P<article>a|{_any_of(self._numbers)}) {adjective}*|{adjective}+)"
        garment = f"(?:a )?{adjective}*(?P<garment>{_any_of(_WEARERS)})"
        worn = rf"(?: (?:{_any_of(_WORN)}) (?P<worn>{garment}|(?:{_any_of(COLOURS)}))\b)?"
        self._phrase = re.compile(rf"\b(?:{start}(?P<noun>{nouns})|{_WITHOUT_ARTICLE})\b{worn}")
        # Sentences share their noun phrases, which take most of the time to understand.
        self._understand = lru_cache(1 << 16)(self._understand_anew)

    def meanings(self, text: str) -> tuple[Meaning, ...]:
        """Return all that a sentence can mean; nothing where the grammar has no such sentence.

        Args:
            text: of any letter case; a full stop at its end is skipped.
        """
        text = _normalised(text)
        settings = ()
        setting = _SETTING.search(text)
        if setting is not None:
            settings = _SETTINGS_OF_PHRASES[setting[0].strip(" ,")]
            text = text[: setting.start()] + text[setting.end() :]
        phrases = []
        frame = ""
        end = 0
        for match in self._phrase.finditer(text):
            phrase = self._understand(match[0])
            phrases.append(phrase)
            mark = _SINGLE if phrase.number is None else _COUNTED
            frame += text[end : match.start()] + mark
            end = match.end()
        frame += text[end:]
        return tuple(_meaning(claims, phrases, settings) for claims in _read_frame(frame))

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
        adjectives = []
        for adjective in _ADJECTIVE.finditer(phrase):
            attribute, value = _ADJECTIVES[adjective[0]]
            adjectives.append(Adjective(adjective.start(), adjective.end(), attribute, value))
        certain = True
        values: dict[str, set[str]] = defaultdict(set)
        for adjective in adjectives:
            is_worn = match["worn"] and adjective.start >= match.start("worn")
            if is_worn or not set(kinds) <= set(PEOPLE):
                values[adjective.attribute].add(adjective.value)
            else:  # people have the colours of their clothes
                certain = False
        claims = {}
        for attribute, claimed in values.items():
            is_sizeless = attribute == "size" and not any(KIND_TABLE[kind].sized for kind in kinds)
            if is_sizeless or len(claimed) > 1:
                certain = False
            else:
                claims[attribute] = claimed.pop()
        garment = match["garment"] or ""
        if match["worn"]:
            wearers = _WEARERS.get(garment, PEOPLE)
            kinds = tuple(kind for kind in kinds if kind in wearers)
        return NounPhrase(
            phrase,
            Predicate(kinds, **claims),
            certain,
            self._numbers.get(match["article"] or ""),
            match.span("article"),
            match.span("noun"),
            tuple(adjectives),
            garment,
        )


def _meaning(
    claims: _Claims,
    phrases: Sequence[NounPhrase],
    settings: tuple[str, ...],
) -> Meaning:
    phrases = list(phrases)
    for index, verb in claims.verbs:
        phrase = phrases[index]
        if verb in _FLYING_VERBS:
            flying = replace(phrase.predicate, state="fly")
            phrases[index] = phrase._replace(predicate=flying)
        elif _GROUND_VERBS[verb].isdisjoint(phrase.predicate.kinds):
            phrases[index] = phrase._replace(certain=False)
    related = set()
    for first, _, second in claims.relations:
        related |= {first, second}
    objects: list[Predicate] = []
    counts: list[tuple[Predicate, int]] = []
    places: list[range] = []
    for index, phrase in enumerate(phrases):
        copies = 1
        if phrase.number is not None:
            # What other noun phrases name that this one covers, its number does not include.
            others = phrases[:index] + phrases[index + 1 :]
            kinds = set(phrase.predicate.kinds)
            covers = any(kinds.issuperset(other.predicate.kinds) for other in others)
            # Without one of its words a count would say something else, and not less.
            if phrase.certain and index not in related and not covers:
                counts.append((phrase.predicate, phrase.number))
                copies = 0
            else:  # one object more than a scene can have is as impossible as many more
                copies = min(phrase.number, MAX_OBJECTS + 1)
        places.append(range(len(objects), len(objects) + copies))
        objects += [phrase.predicate] * copies
    relations: list[Triple] = []
    for first, name, second in claims.relations:
        relations += product(places[first], [name], places[second])
    form = LogicalForm(
        tuple(objects),
        tuple(relations),
        settings,
        tuple(counts),
    )
    return Meaning(form, all(phrase.certain for phrase in phrases))


@lru_cache(1 << 14)
def _read_frame(frame: str) -> tuple[_Claims, ...]:
    """Return all that a frame can mean; nothing where it is no frame of a sentence."""
    lead, *rest = _MARKS.split(frame)
    # Of every noun phrase, `A` or `N`, and what stands behind it.
    marks = rest[::2]
    after = rest[1::2]
    if not marks or lead not in _LEADS:
        return ()
    return tuple(dict.fromkeys(_claims(marks, after, 0)))


def _claims(
    marks: Sequence[str],
    after: Sequence[str],
    first: int,
) -> Iterator[_Claims]:
    """Yield what the noun phrases from number `first` on can mean."""
    if first == len(marks):
        yield _Claims()
        return
    for text in _statements(marks, after, first):
        if text in _STATEMENTS:
            verb = _STATEMENTS[text]
            for relations, verbs in _claims(marks, after, first + 1):
                if verb:
                    verbs = ((first, verb), *verbs)
                yield _Claims(relations, verbs)
    second = first + 1
    if second == len(marks):
        return
    is_beside = marks[first] == _COUNTED and after[first] == _BESIDE
    for clause in _CLAUSES.get(after[first], ()):
        if clause.tail not in _statements(marks, after, second) or (is_beside and not clause.tail):
            continue
        triple = (first, clause.relation, second)
        if clause.swapped:
            triple = (second, clause.relation, first)
        for relations, verbs in _claims(marks, after, second + 1):
            if clause.verb:
                verbs = ((first, clause.verb), *verbs)
            yield _Claims((triple, *relations), verbs)


def _statements(
    marks: Sequence[str],
    after: Sequence[str],
    index: int,
) -> list[str]:
    """Return what may be said behind a noun phrase if a part of the sentence ends there."""
    text = after[index]
    if index + 1 == len(marks):
        return [text]
    statements = []
    if marks[index] == _COUNTED and text == _BESIDE:
        statements.append("")
    for joint in _JOINTS:
        if text.endswith(joint):
            statements.append(text.removesuffix(joint).rstrip())
    return statements
