"""Typed links to a scene graph: the rules of SPICE's parser, in terms of our links and with the words kept.

Source: Schuster et al., "Generating semantically precise scene graphs from textual descriptions", VL 2015, section 4;
Anderson et al., "SPICE", ECCV 2016, section 3.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from itrpipe.scene_graph.graph import Analysis, Attribute, Object, Relation, SceneGraph
from itrpipe.scene_graph.words import lists, plain

NOUN_ROLES = ("O", "J", "S", "YS", "SJl", "SJr")
"""Links whose dependent is a noun whatever its tag."""
Words = tuple[int, ...]


def extract_graph(text: str, analysis: Analysis) -> SceneGraph:
    """Scene graph that the links of a caption amount to.

    Args:
        text: the caption.
        analysis: its tokens and links.

    Returns:
        Objects in the order of their heads; no relation joins an object to itself, no pronoun or quantity is an object,
        and nothing is said twice.
    """
    return _Extraction(analysis).graph(text, analysis.status)


class _Extraction:
    """The rules over the links of one caption.

    Attributes:
        tokens: of the caption.
        words: see `itrpipe.scene_graph.words.plain`.
        lemmas: of the tokens.
        pairs: heads and dependents of each kind of link, rising.
        governed: tokens that a head governs by a kind of link, rising.
        governing: tokens that govern a dependent by a kind of link, rising.
        nouns: tokens that can be objects, rising.
        properties: attributes before objects have numbers: noun, words, kind.
        edges: relations before objects have numbers: subject, words, object, kind.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.tokens = analysis.tokens
        self.words = [plain(token.text) for token in analysis.tokens]
        self.lemmas = [token.lemma for token in analysis.tokens]
        self.properties: set[tuple[int, Words, str]] = set()
        self.edges: set[tuple[int, Words, int, str]] = set()
        self.pairs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        self.governed: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.governing: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        for kind, head, dependent in sorted(set(analysis.links)):
            self.pairs[kind].append((head, dependent))
            self.governed[kind, head].append(dependent)
            self.governing[kind, dependent].append(head)

        # Lists that share a noun are one.
        self._lists: dict[int, list[int]] = {}
        for conjunction, _ in self.pairs["SJl"] + self.pairs["SJr"]:
            members = self.governed["SJl", conjunction] + self.governed["SJr", conjunction]
            merged = sorted(set().union(*map(self._joined, members)))
            self._lists.update(dict.fromkeys(merged, merged))

        # Rule 13: nouns that neither modify, nor count, nor only say where.
        found = {i for i, token in enumerate(self.tokens) if token.tag == "N"}
        found.update(noun for kind in NOUN_ROLES for _, noun in self.pairs[kind])
        found.difference_update(word for kind in ("AN", "IX", "K") for _, word in self.pairs[kind])
        self.nouns = [noun for noun in sorted(found) if self._is_object(noun)]

    def lemma(self, words: Iterable[int]) -> str:
        """Lemmas of some tokens."""
        return " ".join(self.lemmas[i] for i in words)

    # -- nouns ---------------------------------------------------------------------------------------------------------

    def _is_object(self, noun: int) -> bool:
        word = self.words[noun]
        if word in lists.NEVER_OBJECTS or not word[0].isalnum() or word.isdecimal():
            return False
        if word in lists.COLOURS and not (self.governing["O", noun] or self.governing["J", noun]):
            return False  # a colour is one only where it is worn: a woman in blue
        return self._counted(noun) == noun and not self._is_location(noun)

    def _joined(self, noun: int) -> list[int]:
        """All members of the list that a noun is in, rising; the noun alone where there is none."""
        return self._lists.get(noun, [noun])

    def _counted(self, noun: int) -> int:
        """The noun that a quantity counts (dogs in "a couple of dogs"), or the noun itself.

        Source: Schuster et al., 2015, section 4.1 (quantificational modifiers).
        """
        seen = {noun}
        while self.words[noun] in lists.COUNTING:
            counted = [thing for of in self.governed["OF", noun] for thing in self.governed["J", of]]
            if not counted or counted[0] in seen:
                return noun
            noun = counted[0]
            seen.add(noun)
        return noun

    def _is_location(self, noun: int) -> bool:
        """Return whether a noun only says where at something: side in "on the side of X"."""
        if self.lemmas[noun] not in lists.LOCATIONS:
            return False
        before = any(self.words[each] in lists.LOCATION_PREPOSITIONS for each in self.governing["J", noun])
        return before and any(self.governed["J", of] for of in self.governed["OF", noun])

    def _targets(self, preposition: int) -> Iterator[tuple[Words, int]]:
        """Nouns after a preposition, with all words that amount to the preposition.

        "On the edge of a table" leads to the table by "on edge of".
        """
        words = (preposition, *self.governed["IX", preposition])
        for noun in self.governed["J", preposition]:
            ofs = self.governed["OF", noun] if self._is_location(noun) else []
            things = [((*words, noun, of), thing) for of in ofs for thing in self.governed["J", of]]
            yield from things or [(words, noun)]

    def _referents(self, noun: int, excluded: Sequence[int] = (), nearest: bool = False) -> list[int]:
        """Objects that a noun in some role stands for: its list, what it counts, what the pronoun means."""
        found: list[int] = []
        for member in self._joined(noun):
            content = self._counted(member)
            for other in [member] if content == member else self._joined(content):
                meant = other if other in self.nouns else self._antecedent(other, excluded, nearest)
                if meant == other:
                    found.append(other)
                elif meant is not None:
                    found += self._joined(meant)
        return [noun for noun in dict.fromkeys(found) if noun in self.nouns]

    def _content(self, noun: int) -> list[int]:
        """What one noun stands for, without the others of its list."""
        content = self._counted(noun)
        meant = content if content in self.nouns else self._antecedent(content)
        return [] if meant is None else [meant]

    def named(self, noun: int) -> Words:
        """A noun and the words before it that make a compound with it."""
        first = noun
        while first - 1 in self.governed["AN", noun]:
            first -= 1
        return tuple(range(first, noun + 1))

    # -- pronouns ------------------------------------------------------------------------------------------------------
    # The search of Schuster et al., 2015, section 4.2 (after Hobbs, 1978) comes down, in sentences as plain as
    # captions, to the first noun that agrees, the subject of the clause before the others.

    def _owner(self, pronoun: int, thing: int) -> int | None:
        """Whom a possessive pronoun means; subjects of what happens to the thing are preferred where they agree."""
        word = self.words[pronoun]
        before = [noun for noun in self.nouns if noun < pronoun and noun != thing]
        if word == "whose":
            return before[-1] if before else None
        verbs = list(self.governing["O", thing])
        for preposition in self.governing["J", thing]:
            verbs += self.governing["MVp", preposition]
            for noun in self.governing["Mp", preposition]:
                verbs += self.governing["O", noun]
        subjects = [noun for verb in verbs for noun in self._subjects(verb)]
        for candidates in (self._joined(thing), subjects, before):
            meant = self._choose(word, [noun for noun in candidates if noun < pronoun and noun != thing])
            if meant is not None:
                return meant
        return None

    def _antecedent(self, pronoun: int, excluded: Sequence[int] = (), nearest: bool = False) -> int | None:
        """The noun that a personal pronoun stands for; for "one", the nearest plural.

        Args:
            pronoun: he, him, she, her, it, they, them, one.
            excluded: nouns it cannot mean, such as the subject of its own verb.
            nearest: look from right to left, as after a noun and its preposition: a shirt with a number on it.
        """
        word = self.words[pronoun]
        before = [noun for noun in self.nouns if noun < pronoun and noun not in excluded]
        if word == "one":
            return next((noun for noun in reversed(before) if self._is_plural(noun)), None)
        return self._choose(word, before[::-1] if nearest else before)

    def _choose(self, pronoun: str, nouns: list[int]) -> int | None:
        """First of the most fitting nouns that agree: people before animals before things, for "they" plurals first."""

        ranks = {noun: rank for noun in nouns if (rank := self._rank(pronoun, noun)) is not None}
        return min(ranks, key=ranks.__getitem__, default=None)

    def _rank(self, pronoun: str, noun: int) -> int | None:
        """How far a noun is from the likeliest meaning of a pronoun; None where they do not agree."""
        lemma, plural = self.lemmas[noun], self._is_plural(noun)
        person, thing = lemma in lists.PERSONS, lemma not in lists.ANIMATE
        if pronoun in lists.PLURAL:
            return 2 * (not plural) + thing if plural or person else None
        if pronoun not in lists.REFERRING or (plural and len(self._joined(noun)) == 1):
            return None
        if pronoun not in lists.MASCULINE | lists.FEMININE:
            return None if person else thing * (pronoun not in lists.NEUTER)
        others = lists.FEMALES if pronoun in lists.MASCULINE else lists.MALES
        animate = any(self.lemmas[each] in lists.ANIMATE for each in self.nouns)
        return None if lemma in others or (thing and animate) else thing + (not person)

    def _is_plural(self, noun: int) -> bool:
        lemma = self.lemmas[noun]
        return self.words[noun] != lemma or lemma in lists.MANY or len(self._joined(noun)) > 1

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def _subjects(self, verb: int) -> list[int]:
        """Nouns that do, are or suffer what a verb says."""
        found: list[int] = []
        for subject in self.governed["S", verb]:
            found += self._referents(subject)
        for be in self.governing["Pg", verb] + self.governing["Pv", verb]:
            if be != verb:
                found += self._subjects(be)
        for pronoun in self.governing["RS", verb]:
            for head in self.governing["R", pronoun]:
                found += self._content(head)
        for noun in self.governing["Mg", verb] + self.governing["Mv", verb]:
            found += self._referents(noun) if self._is_tight(noun) else self._content(noun)
        return list(dict.fromkeys(found))

    def _is_tight(self, noun: int) -> bool:
        """Whether nothing but nouns and their modifiers lies within the list of a noun, so that what follows it is said
        of all: a man and a woman sitting; not a man in a hat and a woman sitting."""
        members = self._joined(noun)
        loose = {i for kind in ("MVp", "Mp", "Mg", "Mv", "S") for pair in self.pairs[kind] for i in pair}
        return not any(i in loose and i not in self.nouns for i in range(members[0], members[-1]))

    def _say(self, noun: int, words: Iterable[int], kind: str) -> None:
        self.properties.add((noun, tuple(sorted(words)), kind))

    def _relate(self, subject: int, words: Iterable[int], thing: int, kind: str) -> None:
        self.edges.add((subject, tuple(sorted(words)), thing, kind))

    def _say_of_verbs(self) -> None:
        verbs = {verb for verb, _ in self.pairs["S"]}
        verbs |= {verb for kind in ("Pg", "Pv", "Mg", "Mv", "RS") for _, verb in self.pairs[kind]}
        for verb in verbs:
            lemma, subjects = self.lemmas[verb], self._subjects(verb)
            for subject, adjective in product(subjects, self.governed["Pa", verb]):
                self._say(subject, [adjective], "adjective")
            if lemma == "be":  # rules 4 and 6: what somebody is, and where
                for subject, noun in product(subjects, self.governed["O", verb]):
                    if noun in self.nouns:
                        self._say(subject, self.named(noun), "copula")
                for subject, preposition in product(subjects, self.governed["MVp", verb]):
                    self._locate(subject, preposition)
                continue
            # Rules 1, 2, 3 and 9: whom and where an action meets, or the action alone.
            words = (verb, *self.governed["K", verb])
            met, places = [], []
            for thing in self.governed["O", verb]:
                met += self._referents(thing, subjects)
            for preposition in self.governed["MVp", verb]:
                for extra, target in self._targets(preposition):
                    places += [(extra, noun) for noun in self._referents(target, subjects)]
            suffers = self.governing["Mv", verb] or self.governing["Pv", verb]
            suffers = suffers and self.words[verb] not in lists.STATIVE_PARTICIPLES
            linking = lemma in lists.EMPTY_VERBS or (lemma in lists.LINKING_VERBS and self.governed["Pa", verb])
            for subject, noun in product(subjects, met):
                self._relate(subject, words, noun, "verb")
            for subject, (extra, noun) in product(subjects, places):
                if suffers and [self.words[i] for i in extra] == ["by"]:
                    self._relate(noun, words, subject, "agent")
                else:
                    self._relate(subject, (*words, *extra), noun, "verb_prep")
            for subject in subjects:
                if not (met or places or linking):
                    self._say(subject, words, "action")

    def _locate(self, subject: int, preposition: int, nearest: bool = False) -> None:
        for words, target in self._targets(preposition):
            for noun in self._referents(target, [subject], nearest):
                self._relate(subject, words, noun, "prep")

    # -- what nouns say ------------------------------------------------------------------------------------------------

    def _say_of_nouns(self) -> None:
        for noun, preposition in self.pairs["Mp"]:
            for subject in self._content(noun):
                self._locate(subject, preposition, nearest=True)
        for noun, of in self.pairs["OF"]:
            if noun in self.nouns:
                self._locate(noun, of)
            elif self._counted(noun) != noun:
                for counted in self._content(noun):
                    self._say(counted, [noun], "quantity")
        for thing, word in self.pairs["D"]:  # rule 8: possession by 's or by a pronoun
            if self.words[word] in lists.POSSESSIVE_PRONOUNS:
                owner = self._owner(word, thing)
                if owner is not None:
                    self._relate(owner, [word], thing, "have")
                continue
            for owner in self.governed["YS", word]:
                for noun in self._referents(owner):
                    self._relate(noun, [word], thing, "have")
        for noun, adjective in self.pairs["A"]:
            self._say(noun, [adjective], "adjective")
        for noun, number in self.pairs["Dmcn"]:
            self._say(noun, [number], "quantity" if self.words[number] in lists.VAGUE_NUMBERS else "number")
        for noun, modifier in self.pairs["AN"]:
            self._say(noun, [modifier], "compound")

    # -- assembly ------------------------------------------------------------------------------------------------------

    def graph(self, text: str, status: str) -> SceneGraph:
        """What the words say as a graph, each property and edge once."""
        self._say_of_verbs()
        self._say_of_nouns()
        # Nouns that only say what another one is are no objects, but where something else is said of them.
        copulas = {words[-1] for _, words, kind in self.properties if kind == "copula"}
        described = {noun for noun, _, kind in self.properties if kind != "compound"}
        described.update(noun for subject, _, thing, _ in self.edges for noun in (subject, thing))
        heads = [noun for noun in self.nouns if noun in described or noun not in copulas]
        number = dict(zip(heads, range(len(heads)), strict=True))
        objects = []
        for head in heads:
            words = self.named(head)
            objects.append(Object(len(objects), head, words, self.lemma(words)))
        attributes: dict[tuple[int, str], Attribute] = {}
        for noun, words, kind in sorted(self.properties):
            if noun in number:
                lemma = self.lemma(words)
                attribute = Attribute(len(attributes), number[noun], words, lemma, kind)
                attributes.setdefault((noun, lemma), attribute)
        relations: dict[tuple[int, int, str], Relation] = {}
        for subject, words, thing, kind in sorted(self.edges):
            if subject in number and thing in number and subject != thing:
                lemma = "have" if kind == "have" else self.lemma(words)
                relation = Relation(len(relations), number[subject], number[thing], words, lemma, kind)
                relations.setdefault((subject, thing, lemma), relation)
        values = tuple(attributes.values()), tuple(relations.values())
        return SceneGraph(text, self.tokens, tuple(objects), *values, status)
