"""Frames of sentences: what stands around the noun phrases, and how it relates them.

The frame of `a dog is on a table and a red car` is `A is on A and A`. A noun phrase with a number is `N`, since the
captions say `two dogs with a cat` of any two dogs, but `a man with a cup` of a man who holds it.

The wordings are those of `grammar`, and what comes of them by the exchange of single words: another verb before the
same preposition, a copula more or less.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from itrpipe.scenes import grammar

SINGLE, COUNTED = "A", "N"
"""Marks of noun phrases; sentences have no capitals once they are normalised."""
_SAME_WORDS = {"an": "a", "the": "a", "are": "is"}
_TOKENS = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")
_NOUN_PHRASE = re.compile(r" *([AN]) *")
_WORDING = re.compile(r"\{([ab])\} (.*) \{[ab]\} ?(.*)")
_COPULA = "is "
# Between a counted noun phrase and what there is beside, see `captions._general`.
_BESIDE = "with"


class Structure(NamedTuple):
    """What a frame says of its noun phrases, which are numbered from left to right.

    Attributes:
        relations: (i, relation, j).
        verbs: (i, verb), without copula; verbs that captions use of anything are left out.
    """

    relations: tuple[tuple[int, str, int], ...] = ()
    verbs: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class _Clause:
    """Two noun phrases in a relation.

    Attributes:
        relation: its name.
        swapped: whether the second noun phrase is the first object of the relation.
        tail: what stands behind the second noun phrase.
        verb: of the first noun phrase, as in `Structure`.
    """

    relation: str
    swapped: bool
    tail: str = ""
    verb: str = ""


def normalise(text: str) -> str:
    """Lower-case words and punctuation marks between single spaces; articles are all `a`, and `are` is `is`."""
    found: list[str] = _TOKENS.findall(text.lower())
    tokens = [_SAME_WORDS.get(token, token) for token in found]
    return " ".join(tokens[:-1] if tokens[-1:] == ["."] else tokens)


@lru_cache(maxsize=1 << 14)
def read_frame(frame: str) -> tuple[Structure, ...]:
    """All that a frame can mean; nothing where it is no frame of a sentence.

    Args:
        frame: `A is on A and A`, without the setting.
    """
    lead, *rest = _NOUN_PHRASE.split(frame)
    if lead not in _LEADS or not rest:
        return ()
    return tuple(dict.fromkeys(_parts(0, rest[::2], rest[1::2])))


def _parts(first: int, marks: Sequence[str], after: Sequence[str]) -> Iterator[Structure]:
    """Structures of the noun phrases from number `first` on.

    Args:
        first: number of a noun phrase.
        marks: `A` or `N` of every noun phrase.
        after: what stands behind each.
    """
    if first == len(marks):
        yield Structure()
        return
    for said, verb in _SAID.items():
        if _ends(said, first, marks, after):
            for rest in _parts(first + 1, marks, after):
                yield Structure(rest.relations, _with_verb(first, verb, rest))
    if first + 1 == len(marks):
        return
    beside = marks[first] == COUNTED and after[first] == _BESIDE
    for clause in _CLAUSES.get(after[first], ()):
        if _ends(clause.tail, first + 1, marks, after) and (clause.tail or not beside):
            pair = (first + 1, first) if clause.swapped else (first, first + 1)
            for rest in _parts(first + 2, marks, after):
                relation = (pair[0], clause.relation, pair[1])
                yield Structure((relation, *rest.relations), _with_verb(first, clause.verb, rest))


def _with_verb(number: int, verb: str, rest: Structure) -> tuple[tuple[int, str], ...]:
    return ((number, verb), *rest.verbs) if verb else rest.verbs


def _ends(tail: str, number: int, marks: Sequence[str], after: Sequence[str]) -> bool:
    """Whether a part of the sentence ends behind a noun phrase and a tail."""
    text = after[number]
    if not text.startswith(tail):
        return False
    text = text[len(tail) :].strip()
    if number + 1 == len(marks):
        return not text
    return text in _JOINTS or (text == _BESIDE and marks[number] == COUNTED and not tail)


def verbs_of(table: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Verbs without copula -> kinds that a table of the grammar has them for."""
    kinds: dict[str, set[str]] = {}
    for kind, verbs in table.items():
        for verb in verbs:
            kinds.setdefault(normalise(verb).removeprefix(_COPULA), set()).add(kind)
    return kinds


def _grammar_clauses() -> dict[str, list[_Clause]]:
    """What stands between two noun phrases, without the copula -> what it says."""
    clauses: dict[str, list[_Clause]] = {}
    for relation, wordings in grammar.RELATION_WORDINGS.items():
        for wording in wordings:
            found = _WORDING.fullmatch(wording)
            assert found is not None, wording
            first, middle, tail = found.groups()
            clause = _Clause(relation, first == "b", normalise(tail))
            clauses.setdefault(normalise(middle).removeprefix(_COPULA), []).append(clause)
    return clauses


def _clauses() -> dict[str, list[_Clause]]:
    """The clauses of the grammar, and those with every verb, or none, before every preposition.

    Each with a copula and without.
    """
    made = _grammar_clauses()
    prepositions = _prepositions(made)
    for middle in [middle for middle in made if middle != "and"]:
        made[_COPULA + middle] = list(made[middle])
    for (preposition, clause), verb in product(prepositions.items(), ("", *sorted(_VERBS | _OF_ANYTHING))):
        # What is above something flies: captions do not say so twice.
        is_above = clause.relation == "above" and not clause.swapped
        is_told = verb in _OF_ANYTHING or (is_above and verb in _FLYING)
        said = _Clause(clause.relation, clause.swapped, verb="" if is_told else verb)
        middle = f"{verb} {preposition}".strip()
        made.setdefault(middle, [said])
        made.setdefault(_COPULA + middle, [said])
    known = {clause.tail for clause in made["with"]}
    for preposition, clause in prepositions.items():
        if (tail := f"{preposition} it") not in known:
            made["with"].append(_Clause(clause.relation, not clause.swapped, tail))
    return made


def _prepositions(clauses: Mapping[str, Sequence[_Clause]]) -> dict[str, _Clause]:
    """What can stand after any verb."""
    found: dict[str, _Clause] = {}
    for middle, [clause, *_] in clauses.items():
        if clause.relation != "hold" and not clause.tail:
            verb, _, rest = middle.partition(" ")
            found[rest if verb in _VERBS | _OF_ANYTHING else middle] = clause
    return found


def _verbs_of_anything() -> set[str]:
    """The verbs that wordings of relations have, whatever it is that stands in them, and none that flies."""
    clauses = _grammar_clauses()
    parts = (middle.partition(" ") for middle in clauses)
    return {verb for verb, _, preposition in parts if preposition in clauses} - _FLYING


def _said_of_one() -> dict[str, str]:
    """What is said of a noun phrase alone -> its verb, as in `Structure`."""
    said = {verb: "" if verb in _OF_ANYTHING else verb for verb in sorted(_VERBS | _OF_ANYTHING)}
    said |= {normalise(verb + air): verb for verb, air in product(sorted(_FLYING), grammar.AIR_PHRASES)}
    return {"": ""} | said | {_COPULA + text: verb for text, verb in said.items()}


_FLYING = set(verbs_of(grammar.FLYING_VERBS))
_VERBS = set(verbs_of(grammar.VERBS)) | _FLYING
_OF_ANYTHING = _verbs_of_anything()
_LEADS = {normalise(lead) for lead in grammar.ENUMERATION_LEADS}
_JOINTS = {normalise(joint) for joint in (*grammar.CLAUSE_JOINTS, ", ")}
_CLAUSES = _clauses()
_SAID = _said_of_one()
