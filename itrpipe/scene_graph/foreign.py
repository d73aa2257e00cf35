"""Graphs of other parsers, which give names without saying where in the caption they stand, found in its words.

Objects come first, then attributes, then relations, each in the order given. An element is the leftmost run of words
with its lemmas that no other element has; a predicate may also have other words between its own (`hold it up`). An
attribute or predicate that is named again where no further run is left shares the words of the first (`red shirt and
pants`). What is not found is kept without words, and the status of the graph is then `partial`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from itrpipe.scene_graph.graph import (
    Attribute,
    AttributeKind,
    Object,
    Relation,
    RelationKind,
    SceneGraph,
    Status,
    Token,
    status_of,
)
from itrpipe.scene_graph.lexicon import lemma_of
from itrpipe.scene_graph.words import IDIOMS, NUMERALS, PREPOSITIONS, VAGUE_NUMBERS

if TYPE_CHECKING:
    from itrpipe.scene_graph.parsing import Item
    from itrpipe.scene_graph.rules import RulesParser

FOREIGN_VERSION = "1"
"""Changes with every change of the alignment."""
DIGITS: dict[str, str] = {
    "1": "one",
    "2": "two",
    "3": "three",
    "4": "four",
    "5": "five",
    "6": "six",
    "7": "seven",
    "8": "eight",
    "9": "nine",
    "10": "ten",
}
NO_HEAD = -1


def foreign_version(tokens: str) -> str:
    """`ForeignParser.version`.

    Args:
        tokens: version of the rules that give the words of captions their lemmas.
    """
    return f"foreign/{FOREIGN_VERSION} {tokens}"


class ForeignParser:
    """Aligns given graphs with the words of their captions.

    Args:
        rules: give these words their lemmas.
    """

    def __init__(self, rules: RulesParser) -> None:
        self._rules = rules
        self.version = foreign_version(rules.version)

    def parse(self, item: Item) -> SceneGraph:
        """The graph of one caption."""
        tokens = self._rules.analyse(item.text).tokens
        graph = align(item.text, tokens, json.loads(item.given))
        return replace(graph, status=status_of(item.text, graph.status))


_Pair = tuple[int, str, int]
"""Subject, predicate, object."""


class _Names:
    """Objects by their names; an object that is in relation to one of its own name is a second one."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[tuple[str, int], int] = {}

    def number(self, name: str, occurrence: int = 0) -> int:
        if (name, occurrence) not in self._numbers:
            self._numbers[name, occurrence] = len(self.names)
            self.names.append(name)
        return self._numbers[name, occurrence]


def align(text: str, tokens: tuple[Token, ...], tuples: list[list[str]]) -> SceneGraph:
    """Makes a graph of tuples.

    Args:
        text: the caption.
        tokens: its words.
        tuples: (object), (object, attribute), (object, `is`, attribute) or (subject, predicate, object), in lower
            case; an empty one stands for what could not be read.
    """
    names = _Names()
    properties, pairs = _sort(tuples, names)
    words = _Words(tokens)
    objects = tuple(_object(number, name, words) for number, name in enumerate(names.names))
    attributes = tuple(
        Attribute(number, owner, words.find(name), name, _attribute_kind(name))
        for number, (owner, name) in enumerate(properties)
    )
    relations = tuple(
        Relation(number, subject, target, words.find(predicate, gaps=True), predicate, _relation_kind(predicate))
        for number, (subject, predicate, target) in enumerate(pairs)
    )
    found = all(each.tokens for each in (*objects, *attributes, *relations)) and all(tuples)
    status: Status = "ok" if found else "partial" if any(tuples) else "failed"
    return SceneGraph(text, tokens, objects, attributes, relations, status)


def _sort(tuples: list[list[str]], names: _Names) -> tuple[list[tuple[int, str]], list[_Pair]]:
    """Attributes with their objects, and relations, each once and in their order."""
    properties: dict[tuple[int, str], None] = {}
    pairs: dict[_Pair, None] = {}
    for each in tuples:
        if not each:
            continue
        first = names.number(each[0])
        if len(each) == 2 or each[1:2] == ["is"]:
            properties[first, each[-1]] = None
        elif len(each) == 3:
            pairs[first, each[1], names.number(each[2], int(each[2] == each[0]))] = None
    return list(properties), list(pairs)


class _Words:
    """The words of a caption, of which each belongs to one element unless it is named again."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self._forms = [{token.lemma, token.text.lower()} for token in tokens]
        self._used: set[int] = set()
        self._known: dict[str, tuple[int, ...]] = {}

    def find(self, name: str, *, shared: bool = True, gaps: bool = False) -> tuple[int, ...]:
        """Token numbers of a name, rising; none if they are not there.

        Args:
            name: one or more words.
            shared: an element that is named again may have the words of the first.
            gaps: other words may stand between them.
        """
        forms = [_forms(word) for word in name.split()]
        found = next(self._runs(forms), ()) or (self._scattered(forms) if gaps else ())
        if not found:
            return self._known.get(name, ()) if shared else ()
        self._used.update(found)
        self._known.setdefault(name, found)
        return found

    def _runs(self, forms: list[set[str]]) -> Iterator[tuple[int, ...]]:
        for start in range(len(self._forms) - len(forms) + 1):
            run = tuple(range(start, start + len(forms)))
            if all(self._free(token, own) for token, own in zip(run, forms, strict=True)):
                yield run

    def _scattered(self, forms: list[set[str]]) -> tuple[int, ...]:
        found: list[int] = []
        for own in forms:
            later = range(found[-1] + 1 if found else 0, len(self._forms))
            token = next((token for token in later if self._free(token, own)), None)
            if token is None:
                return ()
            found.append(token)
        return tuple(found)

    def _free(self, token: int, forms: set[str]) -> bool:
        return token not in self._used and bool(self._forms[token] & forms)


def _forms(word: str) -> set[str]:
    word = DIGITS.get(word, word)
    return {word, lemma_of(word, "N"), lemma_of(word, "V")}


def _object(number: int, name: str, words: _Words) -> Object:
    tokens = words.find(name, shared=False)
    return Object(number, tokens[-1] if tokens else NO_HEAD, tokens, name)


def _attribute_kind(name: str) -> AttributeKind:
    if name in NUMERALS or name.isdigit():
        return "number"
    return "quantity" if name in VAGUE_NUMBERS else "adjective"


def _relation_kind(predicate: str) -> RelationKind:
    words = tuple(predicate.split())
    if words in (("have",), ("has",)):
        return "have"
    if words in IDIOMS or all(word in PREPOSITIONS for word in words):
        return "prep"
    return "verb_prep" if words[-1] in PREPOSITIONS else "verb"
