"""Typed links to a scene graph: the rules of SPICE's parser, in terms of our links and with the words kept.

Source: Schuster et al., "Generating semantically precise scene graphs from textual descriptions", VL 2015, section 4;
Anderson et al., "SPICE", ECCV 2016, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from itrpipe.scene_graph import words as lists
from itrpipe.scene_graph.graph import (
    Analysis,
    Attribute,
    AttributeKind,
    Object,
    Relation,
    RelationKind,
    SceneGraph,
)
from itrpipe.scene_graph.references import References
from itrpipe.scene_graph.syntax import Syntax

LINKING_VERBS = frozenset({"look", "seem", "appear", "become", "get", "feel", "remain", "be"})
"""Verbs that are no action where an adjective follows."""
EMPTY_VERBS = frozenset({"seem", "appear", "become", "remain"})
"""Verbs that are never an action."""
NEVER_OBJECTS = lists.PRONOUNS | lists.DETERMINERS | lists.NUMBERS | {"other", "same", "each", "'s"}
NOUN_ROLES = ("O", "J", "S", "YS", "SJl", "SJr")
"""Links whose dependent is a noun whatever its tag."""
COLOUR_ROLES = ("O", "J")
"""Links that make a colour an object: a woman in blue."""


class Property(NamedTuple):
    """An attribute before objects have numbers: noun, words, kind."""

    noun: int
    words: tuple[int, ...]
    kind: AttributeKind


class Edge(NamedTuple):
    """A relation before objects have numbers: two nouns, words, kind."""

    subject: int
    object: int
    words: tuple[int, ...]
    kind: RelationKind


def extract_graph(text: str, analysis: Analysis) -> SceneGraph:
    """Scene graph that the links of a caption amount to.

    Args:
        text: the caption.
        analysis: its tokens and links.

    Returns:
        Objects in the order of their heads; no relation joins an object to itself, no pronoun or quantity is an object,
        and nothing is said twice.
    """
    return _Extraction(Syntax(analysis)).graph(text, analysis)


class _Extraction:
    """The rules, each a generator of properties and edges between tokens."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        self.nouns = self._nouns()
        self.references = References(syntax, sorted(self.nouns))
        self.properties: list[Property] = []
        self.edges: list[Edge] = []

    def graph(self, text: str, analysis: Analysis) -> SceneGraph:
        syntax = self.syntax
        for verb in self._verbs():
            self._say_of_verb(verb)
        self._say_of_nouns()
        heads = sorted(self._objects())
        number = {head: i for i, head in enumerate(heads)}
        objects = tuple(self._object(i, head) for head, i in number.items())
        return SceneGraph(
            text,
            syntax.tokens,
            objects,
            tuple(self._attributes(number)),
            tuple(self._relations(number)),
            analysis.status,
        )

    # -- nouns ---------------------------------------------------------------------------------------------------------

    def _nouns(self) -> set[int]:
        """Tokens that can be objects (rule 13): nouns that neither modify, nor count, nor only say where."""
        syntax = self.syntax
        found = {i for i, token in enumerate(syntax.tokens) if token.tag == "N"}
        found.update(noun for kind in NOUN_ROLES for _, noun in syntax.pairs[kind])
        found.difference_update(word for kind in ("AN", "IX", "K") for _, word in syntax.pairs[kind])
        return {noun for noun in found if not self._is_excluded(noun)}

    def _is_excluded(self, noun: int) -> bool:
        word = self.syntax.words[noun]
        if word in NEVER_OBJECTS or not word[0].isalnum() or word.isdecimal():
            return True
        if word in lists.COLOURS and not any(self.syntax.heads(kind, noun) for kind in COLOUR_ROLES):
            return True
        return self.syntax.content(noun) != noun or self.syntax.is_location(noun)

    def _referents(self, noun: int, excluded: list[int] | None = None, nearest: bool = False) -> list[int]:
        """Objects that a noun in some role stands for: its list, what it counts, what the pronoun means."""
        found: list[int] = []
        for member in self.syntax.joined(noun):
            content = self.syntax.content(member)
            others = self.syntax.joined(content) if content != member else [member]
            for other in others:
                if other not in self.nouns:
                    meant = self.references.antecedent(other, excluded or [], nearest)
                    found += [] if meant is None else self.syntax.joined(meant)
                else:
                    found.append(other)
        return [noun for noun in dict.fromkeys(found) if noun in self.nouns]

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def _verbs(self) -> list[int]:
        syntax = self.syntax
        heads = {verb for verb, _ in syntax.pairs["S"]}
        governed = {verb for kind in ("Pg", "Pv", "Mg", "Mv", "RS") for _, verb in syntax.pairs[kind]}
        return sorted(heads | governed)

    def _subjects(self, verb: int) -> list[int]:
        """Nouns that do, are or suffer what a verb says."""
        syntax = self.syntax
        found = [noun for subject in syntax.dependents("S", verb) for noun in self._referents(subject)]
        for be in syntax.heads("Pg", verb) + syntax.heads("Pv", verb):
            found += self._subjects(be) if be != verb else []
        for pronoun in syntax.heads("RS", verb):
            found += [noun for head in syntax.heads("R", pronoun) for noun in self._content(head)]
        for noun in syntax.heads("Mg", verb) + syntax.heads("Mv", verb):
            found += self._referents(noun) if self._is_tight(noun) else self._content(noun)
        return list(dict.fromkeys(found))

    def _content(self, noun: int) -> list[int]:
        """What one noun stands for, without the others of its list."""
        content = self.syntax.content(noun)
        if content in self.nouns:
            return [content]
        meant = self.references.antecedent(content, [])
        return [] if meant is None else [meant]

    def _is_tight(self, noun: int) -> bool:
        """Whether nothing but nouns and their modifiers lies within the list of a noun, so that what follows it is said
        of all: a man and a woman sitting; not a man in a hat and a woman sitting."""
        members = self.syntax.joined(noun)
        verbs_and_prepositions = {
            i for kind in ("MVp", "Mp", "Mg", "Mv", "S") for pair in self.syntax.pairs[kind] for i in pair
        }
        nouns = self.nouns
        return not any(i in verbs_and_prepositions and i not in nouns for i in range(members[0], members[-1]))

    def _say_of_verb(self, verb: int) -> None:
        subjects = self._subjects(verb)
        if self.syntax.tokens[verb].lemma == "be":
            self._say_of_be(verb, subjects)
            return
        words = (verb, *self.syntax.dependents("K", verb))
        said = self._predicates(verb, words, subjects)
        for subject in subjects:
            for edge in said:
                self.edges.append(
                    Edge(edge[0] if edge[0] >= 0 else subject, edge[1] if edge[1] >= 0 else subject, *edge[2:])
                )
            for adjective in self.syntax.dependents("Pa", verb):
                self.properties.append(Property(subject, (adjective,), "adjective"))
            if not said and not self._is_linking(verb):
                self.properties.append(Property(subject, words, "action"))

    def _is_linking(self, verb: int) -> bool:
        lemma = self.syntax.tokens[verb].lemma
        return lemma in EMPTY_VERBS or (lemma in LINKING_VERBS and bool(self.syntax.dependents("Pa", verb)))

    def _predicates(self, verb: int, words: tuple[int, ...], subjects: list[int]) -> list[Edge]:
        """What a verb says beside its subject (rules 1, 2, 9), as edges with -1 in the place of the subject."""
        syntax, found = self.syntax, []
        passive = bool(syntax.heads("Mv", verb) or syntax.heads("Pv", verb))
        for thing in syntax.dependents("O", verb):
            found += [Edge(-1, noun, words, "verb") for noun in self._referents(thing, subjects)]
        for preposition in syntax.dependents("MVp", verb):
            for extra, target in syntax.targets(preposition):
                for noun in self._referents(target, subjects):
                    if passive and self._is_agent(verb, extra):
                        found.append(Edge(noun, -1, words, "agent"))
                    else:
                        found.append(Edge(-1, noun, (*words, *extra), "verb_prep"))
        return found

    def _is_agent(self, verb: int, preposition: tuple[int, ...]) -> bool:
        words = self.syntax.words
        return [words[i] for i in preposition] == ["by"] and words[verb] not in lists.STATIVE_PARTICIPLES

    def _say_of_be(self, be: int, subjects: list[int]) -> None:
        """Rules 4 and 6: what somebody is, and where."""
        syntax = self.syntax
        for subject in subjects:
            for adjective in syntax.dependents("Pa", be):
                self.properties.append(Property(subject, (adjective,), "adjective"))
            for noun in syntax.dependents("O", be):
                if noun in self.nouns:
                    self.properties.append(Property(subject, (*self._compound(noun), noun), "copula"))
            self._locate(subject, syntax.dependents("MVp", be))

    def _locate(self, subject: int, prepositions: list[int], nearest: bool = False) -> None:
        for preposition in prepositions:
            for words, target in self.syntax.targets(preposition):
                for noun in self._referents(target, [subject], nearest):
                    self.edges.append(Edge(subject, noun, words, "prep"))

    # -- what nouns say ------------------------------------------------------------------------------------------------

    def _say_of_nouns(self) -> None:
        syntax = self.syntax
        for noun, preposition in syntax.pairs["Mp"]:
            for subject in self._content(noun):
                self._locate(subject, [preposition], nearest=True)
        for noun, of in syntax.pairs["OF"]:
            if noun in self.nouns:
                self._locate(noun, [of])
            elif syntax.content(noun) != noun:
                self._quantify(noun)
        for thing, word in syntax.pairs["D"]:
            self._own(thing, word)
        for noun, adjective in syntax.pairs["A"]:
            self._describe(noun, adjective, "adjective")
        for noun, number in syntax.pairs["Dmcn"]:
            self._describe(noun, number, "number" if self._is_numeral(number) else "quantity")
        for noun, modifier in syntax.pairs["AN"]:
            self._describe(noun, modifier, "compound")

    def _is_numeral(self, word: int) -> bool:
        return self.syntax.words[word] not in lists.VAGUE_NUMBERS

    def _describe(self, noun: int, word: int, kind: AttributeKind) -> None:
        self.properties.append(Property(noun, (word,), kind))

    def _quantify(self, quantity: int) -> None:
        for noun in self._content(quantity):
            self.properties.append(Property(noun, (quantity,), "quantity"))

    def _own(self, thing: int, word: int) -> None:
        """Rule 8: possession by 's or by a pronoun."""
        owners = [noun for owner in self.syntax.dependents("YS", word) for noun in self._referents(owner)]
        if self.syntax.words[word] in lists.POSSESSIVE_PRONOUNS:
            meant = self.references.owner(word, thing, self._subjects_over(thing))
            owners = [] if meant is None else [meant]
        self.edges.extend(Edge(owner, thing, (word,), "have") for owner in owners)

    def _subjects_over(self, thing: int) -> list[int]:
        """Subjects of the verbs that a noun is an object of, or the noun of a preposition of."""
        syntax = self.syntax
        verbs = syntax.heads("O", thing)
        for preposition in syntax.heads("J", thing):
            verbs += syntax.heads("MVp", preposition)
            verbs += [verb for noun in syntax.heads("Mp", preposition) for verb in syntax.heads("O", noun)]
        return [noun for verb in verbs for noun in self._subjects(verb)]

    # -- assembly ------------------------------------------------------------------------------------------------------

    def _objects(self) -> set[int]:
        """Nouns without those that only say what another one is; these stay where something else is said of them."""
        named = {said.words[-1] for said in self.properties if said.kind == "copula"}
        described = {said.noun for said in self.properties if said.kind != "compound"}
        described.update(noun for edge in self.edges for noun in edge[:2])
        return self.nouns - (named - described)

    def _compound(self, head: int) -> tuple[int, ...]:
        modifiers = set(self.syntax.dependents("AN", head))
        first = head
        while first - 1 in modifiers:
            first -= 1
        return tuple(range(first, head))

    def _object(self, number: int, head: int) -> Object:
        words = (*self._compound(head), head)
        return Object(number, head, words, self.syntax.lemma(words))

    def _attributes(self, number: dict[int, int]) -> Iterator[Attribute]:
        seen: set[tuple[int, str]] = set()
        for said in sorted(set(self.properties), key=lambda said: (said.noun, sorted(said.words), said.kind)):
            lemma = self.syntax.lemma(said.words)
            if said.noun in number and (said.noun, lemma) not in seen:
                seen.add((said.noun, lemma))
                yield Attribute(len(seen) - 1, number[said.noun], tuple(sorted(said.words)), lemma, said.kind)

    def _relations(self, number: dict[int, int]) -> Iterator[Relation]:
        seen: set[tuple[int, int, str]] = set()
        for edge in sorted(
            set(self.edges), key=lambda edge: (edge.subject, sorted(edge.words), edge.object, edge.kind)
        ):
            lemma = "have" if edge.kind == "have" else self.syntax.lemma(edge.words)
            key = (edge.subject, edge.object, lemma)
            if edge.subject in number and edge.object in number and edge.subject != edge.object and key not in seen:
                seen.add(key)
                ends = number[edge.subject], number[edge.object]
                yield Relation(len(seen) - 1, *ends, tuple(sorted(edge.words)), lemma, edge.kind)
