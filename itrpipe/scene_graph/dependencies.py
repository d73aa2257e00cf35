"""Dependencies in the labels of ClearNLP as the typed links that `extract_graph` reads.

Source of the labels: Choi and Palmer, "Guidelines for the CLEAR style constituent to dependency conversion", 2012.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from itrpipe.scene_graph.graph import Link

SUBJECTS = frozenset({"nsubj", "nsubjpass", "csubj"})
AUXILIARIES = frozenset({"aux", "auxpass"})
BORROWING = frozenset({"conj", "xcomp", "advcl"})
"""Verbs that, without a subject of their own, have that of the verb they depend on."""
RELATIVE_TAGS = frozenset({"WDT", "WP"})
IDIOM_ENDS = frozenset({"to", "of"})


class Word(NamedTuple):
    """A word and what it depends on.

    Attributes:
        text: lower case.
        lemma: likewise.
        tag: of the Penn Treebank.
        label: of the dependency.
        head: number of the governing word, its own for the root.
    """

    text: str
    lemma: str
    tag: str
    label: str
    head: int

    @property
    def is_verb(self) -> bool:
        return self.tag.startswith("VB")

    @property
    def is_noun(self) -> bool:
        return self.tag.startswith(("NN", "PRP", "CD", "DT", "WP")) and self.tag != "PRP$"


def find_links(words: list[Word]) -> list[Link]:
    """Links of one caption, sorted, each once."""
    found = set(_Mapping(words).links())
    return sorted(found, key=lambda link: (link.dependent, link.head, link.kind))


class _Mapping:
    """One generator of links per label; labels without one say nothing that a graph shows."""

    def __init__(self, words: list[Word]) -> None:
        self.words = words
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        for number, word in enumerate(words):
            if word.head != number:
                self._children[word.head].append(number)
        self._by_label: dict[str, Callable[[int, int], Iterator[Link]]] = {
            "dobj": self._object,
            "dative": self._object,
            "oprd": self._object,
            "attr": self._predicate_noun,
            "acomp": self._predicate_adjective,
            "amod": self._adjective,
            "compound": self._plain("AN"),
            "nmod": self._plain("AN"),
            "nummod": self._plain("Dmcn"),
            "det": self._plain("D"),
            "poss": self._owner,
            "prep": self._preposition,
            "agent": self._preposition,
            "prt": self._plain("K"),
            "pobj": self._plain("J"),
        }

    def links(self) -> Iterator[Link]:
        for number, word in enumerate(self.words):
            if word.label in self._by_label and word.head != number:
                yield from self._by_label[word.label](word.head, number)
            if word.is_verb and word.label not in AUXILIARIES and word.label != "amod":
                yield from self._verb(number)
            if word.label == "conj":
                yield from self._conjunct(number)
        yield from self._lists()

    def children(self, head: int, *labels: str) -> list[int]:
        """Words that depend on `head` by one of these labels, rising."""
        return [child for child in self._children[head] if self.words[child].label in labels]

    def _plain(self, kind: str) -> Callable[[int, int], Iterator[Link]]:
        def link(head: int, dependent: int) -> Iterator[Link]:
            yield Link(kind, self._first_of_idiom(head) if kind == "J" else head, dependent)

        return link

    # -- verbs and their subjects --------------------------------------------------------------------------------------

    def _verb(self, verb: int) -> Iterator[Link]:
        word = self.words[verb]
        own = self._own_subjects(verb)
        if word.label == "relcl":
            yield from self._relative(word.head, verb, own)
        elif word.label == "acl" and not own:
            yield Link("Mv" if word.tag == "VBN" else "Mg", word.head, verb)
        else:
            for subject in self._subjects(verb):
                yield from self._subject(verb, subject)
        if self.children(verb, "expl"):
            for noun in self.children(verb, "attr"):
                yield Link("S", verb, noun)

    def _own_subjects(self, verb: int) -> list[int]:
        return [child for child in self._children[verb] if self.words[child].label in SUBJECTS]

    def _subjects(self, verb: int) -> list[int]:
        """Nouns that a verb has as subject, or borrows."""
        seen: set[int] = set()
        while verb not in seen:
            seen.add(verb)
            own = self._own_subjects(verb)
            word = self.words[verb]
            if own:
                return own
            if word.label in ("acl", "relcl"):
                return [word.head]
            if word.label == "pcomp":
                verb = self.words[word.head].head
            elif word.label in BORROWING and self.words[word.head].is_verb:
                verb = word.head
        return []

    def _subject(self, verb: int, subject: int) -> Iterator[Link]:
        be, passive = self._be(verb), self._is_passive(verb)
        if be is not None:
            yield self._subject_link(be, subject)
            yield Link("Pv" if passive else "Pg", be, verb)
        elif passive:
            yield Link("Mv", subject, verb)
        elif self.words[verb].tag == "VBG":
            yield Link("Mg", subject, verb)
        else:
            yield self._subject_link(verb, subject)

    def _subject_link(self, verb: int, subject: int) -> Link:
        is_relative = self.words[subject].tag in RELATIVE_TAGS
        return Link("RS", subject, verb) if is_relative else Link("S", verb, subject)

    def _be(self, verb: int) -> int | None:
        """The form of be before a participle."""
        own = [each for each in self.children(verb, *AUXILIARIES) if self.words[each].lemma == "be"]
        return own[-1] if own else None

    def _is_passive(self, verb: int) -> bool:
        if self.children(verb, "auxpass", "nsubjpass", "agent"):
            return True
        has_active_auxiliary = bool(self.children(verb, "aux"))
        return self.words[verb].tag == "VBN" and not has_active_auxiliary

    def _relative(self, noun: int, verb: int, own: list[int]) -> Iterator[Link]:
        """A man who rides; a horse that a man rides."""
        pronouns = [child for child in own if self.words[child].tag in RELATIVE_TAGS]
        for pronoun in pronouns:
            yield Link("R", noun, pronoun)
        for subject in own:
            yield from self._subject(verb, subject)
        if own and not pronouns and not self._has_object(verb):
            yield Link("O", verb, noun)
        if not own:
            yield from self._subject(verb, noun)

    def _has_object(self, verb: int) -> bool:
        objects = self.children(verb, "dobj", "acomp", "attr", "prep")
        return any(self.words[each].tag not in RELATIVE_TAGS for each in objects)

    # -- complements ---------------------------------------------------------------------------------------------------

    def _object(self, verb: int, noun: int) -> Iterator[Link]:
        word = self.words[noun]
        if word.tag in RELATIVE_TAGS:
            return
        if word.is_noun:
            yield Link("O", verb, noun)
        elif word.label == "dative":
            yield Link("MVp", verb, noun)
        elif word.tag.startswith("JJ"):
            yield Link("Pa", verb, noun)

    def _predicate_noun(self, verb: int, noun: int) -> Iterator[Link]:
        if not self.children(verb, "expl") and self.words[noun].is_noun:
            yield Link("O", verb, noun)

    def _predicate_adjective(self, verb: int, adjective: int) -> Iterator[Link]:
        """Is red; but is next to, is full of."""
        if self._idiom(adjective):
            yield Link("MVp", verb, adjective)
        else:
            yield Link("Pa", verb, adjective)

    def _adjective(self, noun: int, adjective: int) -> Iterator[Link]:
        yield Link("A", noun, adjective)

    def _owner(self, thing: int, owner: int) -> Iterator[Link]:
        if self.words[owner].tag in ("PRP$", "WP$"):
            yield Link("D", thing, owner)
        for possessive in self.children(owner, "case"):
            yield Link("YS", possessive, owner)
            yield Link("D", thing, possessive)

    # -- prepositions --------------------------------------------------------------------------------------------------

    def _preposition(self, head: int, preposition: int) -> Iterator[Link]:
        word = self.words[head]
        if self._first_of_idiom(preposition) != preposition:
            yield Link("IX", self._first_of_idiom(preposition), preposition)
            if word.label == "advmod":
                yield Link("MVp" if self.words[word.head].is_verb else "Mp", word.head, head)
        elif word.is_verb:
            yield Link("MVp", head, preposition)
        elif word.tag.startswith(("JJ", "RB")):
            yield Link("MVp" if self.words[word.head].is_verb else "Mp", word.head, preposition)
        elif self.words[preposition].text == "of":
            yield Link("OF", head, preposition)
        else:
            yield Link("Mp", head, preposition)

    def _first_of_idiom(self, preposition: int) -> int:
        """First word of the idiom that a preposition ends: out in "out of", next in "next to"."""
        word = self.words[preposition]
        if word.label != "prep" or word.head >= preposition:
            return preposition
        before = self.words[word.head]
        if before.label == "prep":
            return self._first_of_idiom(word.head)
        return word.head if before.label in ("advmod", "acomp") and word.text in {*IDIOM_ENDS, "from"} else preposition

    def _idiom(self, word: int) -> list[int]:
        return [each for each in self.children(word, "prep") if self._first_of_idiom(each) == word]

    # -- lists ---------------------------------------------------------------------------------------------------------

    def _conjunct(self, number: int) -> Iterator[Link]:
        """A conjunct other than a noun or verb has the head of what it is joined to: black and white dog."""
        word, first = self.words[number], number
        while self.words[first].label == "conj" and self.words[first].head < first:
            first = self.words[first].head
        joined = self.words[first]
        if word.is_verb or word.is_noun or joined.label not in self._by_label:
            return
        for link in self._by_label[joined.label](joined.head, first):
            if link.dependent == first:
                yield Link(link.kind, link.head, number)

    def _lists(self) -> Iterator[Link]:
        """Noun lists: the conjunction joins what stands left of it with what stands right of it."""
        for first, word in enumerate(self.words):
            if word.is_noun and word.label != "conj":
                members = [first]
                for member in members:
                    members += [each for each in self.children(member, "conj") if self.words[each].is_noun]
                conjunctions = [cc for member in members for cc in self.children(member, "cc")]
                for cc in conjunctions[-1:] if len(members) > 1 else []:
                    for member in members:
                        yield Link("SJl" if member < cc else "SJr", cc, member)
