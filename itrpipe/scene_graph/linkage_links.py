"""Links of link grammar as the typed links that `extract_graph` reads.

Source of the labels: the documentation of link grammar's English dictionary.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from itrpipe.scene_graph.graph import Link
from itrpipe.scene_graph.linkgrammar_library import Linkage
from itrpipe.scene_graph.words import BE, NUMBERS, PREPOSITIONS

_LABEL = re.compile(r"([A-Z]+)(.*)")
_TAGS = {
    **dict.fromkeys("nspmfblou", "N"),
    **dict.fromkeys("vwg", "V"),
    "a": "J",
    "r": "P",
    "e": "R",
    "d": "D",
}
"""Subscripts of the dictionary and the tags of the rules backend."""


class Words(NamedTuple):
    """The words of a linkage.

    Attributes:
        texts: without subscripts, lower case.
        tags: see `itrpipe.scene_graph.tagger.TAGS`; `X` where the subscript says nothing.
    """

    texts: list[str]
    tags: list[str]


class _Raw(NamedTuple):
    kind: str
    detail: str
    left: int
    right: int


def words_of(linkage: Linkage) -> Words:
    """Words and tags; a word of quantity before `of` is a noun."""
    texts, tags = [], []
    for word in linkage.words:
        text, _, subscript = word.partition(".") if len(word) > 1 else (word, "", "")
        texts.append(text.lower().strip("[]~!"))
        tags.append(_tag(texts[-1], subscript))
    for link in linkage.links:
        if link.label.startswith("OF") and tags[link.left] == "D":
            tags[link.left] = "N"
        elif re.match(r"A(?![A-Z])", link.label) and tags[link.left] in ("V", "VBG"):
            tags[link.left] = "J"  # a fallen log, a burning car
    return Words(texts, tags)


def _tag(text: str, subscript: str) -> str:
    tag = _TAGS.get(subscript[:1], "X")
    if tag == "N" and (text in PREPOSITIONS or not text[:1].isalnum()):
        return "P"  # the dictionary marks plurals and some prepositions alike
    if tag == "V" and text in BE:
        return "BE"
    if tag == "V" and text.endswith("ing"):
        return "VBG"
    return tag


def links_of(linkage: Linkage, words: Words) -> list[Link]:
    """Typed links between words of a linkage, sorted, each once."""
    found = set(_Mapping(linkage, words).links())
    return sorted(found, key=lambda link: (link.dependent, link.head, link.kind))


class _Mapping:
    """One generator of links per label; labels without one say nothing that a graph shows."""

    def __init__(self, linkage: Linkage, words: Words) -> None:
        self.texts, self.tags = words
        self._idioms = self._joined_idioms(linkage)
        self.raw = self._progressive([self._read(*link) for link in linkage.links if _LABEL.match(link.label)])
        self._members = self._conjuncts()
        self._subjects: defaultdict[int, list[int]] = defaultdict(list)
        self._collect_subjects()
        # The library may join a preposition to a verb and to a noun at once; captions mean the verb.
        self._of_verbs = {raw.right for raw in self.raw if raw.kind == "MV"}
        self._modifying = {raw.right for raw in self.raw if raw.kind == "M" and raw.detail[:1] in ("g", "v")}
        self._by_kind: dict[str, Callable[[_Raw], Iterator[Link]]] = {
            "P": self._participle,
            "M": self._modifier,
            "MX": self._apposed,
            "MV": self._adverbial,
            "A": self._backward("A"),
            "AN": self._backward("AN"),
            "G": self._backward("AN"),
            "GN": self._backward("AN"),
            "D": self._determiner,
            "YS": self._backward("YS"),
            "YP": self._backward("YS"),
            "O": self._forward("O"),
            "J": self._forward("J"),
            "OF": self._forward("OF"),
            "K": self._forward("K"),
            "R": self._forward("R"),
            "RS": self._forward("RS"),
            "B": self._object_relative,
        }

    def links(self) -> Iterator[Link]:
        for verb, nouns in self._subjects.items():
            for noun in nouns:
                yield Link("S", verb, noun)
        for raw in self.raw:
            if raw.kind in self._by_kind:
                for left in self._spread(raw.left):
                    for right in self._spread(raw.right):
                        yield from self._by_kind[raw.kind](raw._replace(left=left, right=right))
        for conjunction, members in self._members.items():
            for noun in members if len(members) > 1 and self._joins_nouns(conjunction) else []:
                yield Link("SJl" if noun < conjunction else "SJr", conjunction, noun)
        for first, others in self._idioms.items():
            yield from (Link("IX", first, other) for other in others)

    # -- preparation ---------------------------------------------------------------------------------------------------

    def _read(self, label: str, left: int, right: int) -> _Raw:
        match = _LABEL.match(label)
        assert match is not None
        first = {other: head for head, others in self._idioms.items() for other in others}
        return _Raw(match[1], match[2], first.get(left, left), first.get(right, right))

    def _progressive(self, raw: list[_Raw]) -> list[_Raw]:
        """Reads "is dancing" as a verb where the library took dancing, or being in "is being held", for a noun."""
        read = {}
        for each in raw:
            if each.kind == "O" and self.tags[each.left] == "BE" and self.texts[each.right].endswith("ing"):
                read[each.right] = each.left
        changed = []
        for each in raw:
            if each.kind == "O" and each.right in read:
                each = each._replace(kind="P", detail="g")
            elif each.kind == "M" and each.left in read:
                passive = each.detail[:1] == "v"
                new = ("P", "v", read[each.left]) if passive else ("MV", each.detail, each.left)
                each = _Raw(*new, each.right)
            changed.append(each)
        passives = {each.left for each in changed if each.kind == "P" and each.detail == "v"}
        return [each for each in changed if not (each.right in read and each.kind == "P" and each.left in passives)]

    @staticmethod
    def _joined_idioms(linkage: Linkage) -> dict[int, list[int]]:
        """First word of every idiom -> its other words; the library links them by labels that begin with `_`."""
        idioms: dict[int, list[int]] = {}
        for link in sorted((each for each in linkage.links if each.label.startswith("_")), key=lambda each: each.left):
            first = next((head for head, others in idioms.items() if link.left in others), link.left)
            idioms.setdefault(first, []).append(link.right)
        return idioms

    def _conjuncts(self) -> dict[int, list[int]]:
        """Conjunction -> what it joins; a comma that is joined itself gives its members away."""
        members: defaultdict[int, list[int]] = defaultdict(list)
        for kind, _, left, right in self.raw:
            if kind in ("SJ", "VJ", "AJ", "MJ"):
                joined, conjunction = (left, right) if self.texts[right] in ("and", "or", "&", ",") else (right, left)
                members[conjunction].append(joined)
        for conjunction in sorted(members):
            if any(conjunction in others for others in members.values()):
                continue
            while inner := next((each for each in members[conjunction] if each in members), None):
                members[conjunction] = [each for each in members[conjunction] if each != inner] + members.pop(inner)
        return {conjunction: sorted(set(joined)) for conjunction, joined in members.items()}

    def _joins_nouns(self, conjunction: int) -> bool:
        return any(raw.kind == "SJ" and conjunction in raw for raw in self.raw)

    def _spread(self, word: int) -> list[int]:
        """What a link to a conjunction means: the first noun of a list, or each verb, adjective or preposition."""
        members = self._members.get(word)
        if not members:
            return [word]
        return members[:1] if self._joins_nouns(word) else members

    def _collect_subjects(self) -> None:
        for raw in self.raw:
            if raw.kind in ("S", "SX", "SI"):
                noun, verb = (raw.right, raw.left) if raw.kind == "SI" else (raw.left, raw.right)
                for each in self._spread(verb):
                    self._subjects[each] += self._spread(noun)
        # A modal, a form of have, or "to" hands the subject on to the verb that follows it.
        for raw in sorted(self.raw, key=lambda raw: raw.left):
            handed = raw.kind in ("I", "PP", "TO") or (raw.kind == "MV" and raw.detail.startswith("i"))
            if handed and self._subjects.get(raw.left):
                for verb in self._spread(raw.right):
                    self._subjects[verb] += self._subjects[raw.left]
        for auxiliary in {raw.left for raw in self.raw if raw.kind in ("I", "PP")}:
            self._subjects.pop(auxiliary, None)

    # -- links ---------------------------------------------------------------------------------------------------------

    def _forward(self, kind: str) -> Callable[[_Raw], Iterator[Link]]:
        def link(raw: _Raw) -> Iterator[Link]:
            yield Link(kind, raw.left, raw.right)

        return link

    def _backward(self, kind: str) -> Callable[[_Raw], Iterator[Link]]:
        def link(raw: _Raw) -> Iterator[Link]:
            yield Link(kind, raw.right, raw.left)

        return link

    def _participle(self, raw: _Raw) -> Iterator[Link]:
        if raw.detail[:1] in ("g", "v", "a"):
            yield Link(f"P{raw.detail[0]}", raw.left, raw.right)
        elif raw.detail[:1] == "p":
            yield Link("MVp", raw.left, raw.right)

    def _modifier(self, raw: _Raw) -> Iterator[Link]:
        if raw.detail[:1] in ("g", "v"):
            for noun in self._participants(raw.left):
                yield Link(f"M{raw.detail[0]}", noun, raw.right)
        elif raw.detail[:1] == "a":
            yield Link("A", raw.left, raw.right)
        elif raw.detail[:1] in ("p", "f") and raw.right not in self._of_verbs:
            yield Link("OF" if self.texts[raw.right] == "of" else "Mp", raw.left, raw.right)

    def _participants(self, word: int) -> list[int]:
        """Who does what a participle says: the noun it modifies, or after "while" the subject of the verb before."""
        verbs = [raw.left for raw in self.raw if raw.kind == "MV" and raw.right == word]
        return [noun for verb in verbs for noun in self._subjects.get(verb, [])] if verbs else [word]

    def _apposed(self, raw: _Raw) -> Iterator[Link]:
        if "r" in raw.detail:
            yield Link("R", raw.left, raw.right)
        elif "p" in raw.detail and self.tags[raw.right] in ("V", "VBG"):
            yield Link("Mg" if self.tags[raw.right] == "VBG" else "Mv", raw.left, raw.right)

    def _adverbial(self, raw: _Raw) -> Iterator[Link]:
        if raw.detail[:1] == "p" and not raw.detail.startswith("pn"):
            # Is dancing on a stage, pulls a cart filled with hay: the library joins the preposition to either verb, we
            # mean the participle.
            own = [raw.right - 1] if raw.right - 1 in self._modifying else self._participles(raw.left)
            for verb in own or [raw.left]:
                yield Link("MVp", verb, raw.right)

    def _participles(self, be: int) -> list[int]:
        found = [raw.right for raw in self.raw if raw.kind == "P" and raw.detail[:1] in ("g", "v") and raw.left == be]
        return [verb for right in found for verb in self._spread(right)]

    def _determiner(self, raw: _Raw) -> Iterator[Link]:
        if raw.detail.startswith("mcn") or self.texts[raw.left] in NUMBERS:
            yield Link("Dmcn", raw.right, raw.left)
        else:
            yield Link("D", raw.right, raw.left)

    def _object_relative(self, raw: _Raw) -> Iterator[Link]:
        """The horse that a man rides: the verb has another subject, so the noun is its object."""
        relative = any(each.kind == "RS" and each.right == raw.right for each in self.raw)
        if not relative and self._subjects.get(raw.right):
            yield Link("O", raw.right, raw.left)
