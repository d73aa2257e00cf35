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

NOUN_ROLES = frozenset({"O", "J", "S", "YS", "SJl", "SJr"})
"""Links whose dependent is a noun whatever its tag."""
MODIFIER_ROLES = frozenset({"AN", "IX", "K"})
"""Links whose dependent is a part of another word."""
VERB_ROLES = frozenset({"Pg", "Pv", "Mg", "Mv", "RS"})
"""Links whose dependent is a verb."""
SEPARATING = frozenset({"MVp", "Mp", "Mg", "Mv", "S"})
"""Links that divide a list of nouns, within which one of their tokens stands."""
Words = tuple[int, ...]


def extract_graph(text: str, analysis: Analysis) -> SceneGraph:
    """Return the scene graph that the links of a caption amount to.

    Args:
        text: the caption.
        analysis: its tokens and links.

    Returns:
        Objects in the order of their heads; no relation joins an object to itself, no pronoun or quantity is an object,
        and nothing is said twice.
    """
    extraction = _Extraction(analysis)
    extraction.read_verbs()
    extraction.read_nouns()
    # Nouns that only say what another one is are no objects, but where something else is said of them.
    bare = {words[-1] for _, words, kind in extraction.properties if kind == "copula"}
    bare -= {noun for noun, _, kind in extraction.properties if kind != "compound"}
    for subject, _, thing, _ in extraction.edges:
        bare -= {subject, thing}

    objects: dict[int, Object] = {}
    for noun in extraction.nouns:
        if noun not in bare:
            words = extraction.compound(noun)
            objects[noun] = Object(
                len(objects),
                noun,
                words,
                extraction.lemma(words),
            )
    attributes: dict[tuple[int, str], Attribute] = {}
    for noun, words, kind in sorted(extraction.properties):
        lemma = extraction.lemma(words)
        if noun in objects and (noun, lemma) not in attributes:
            attributes[noun, lemma] = Attribute(
                len(attributes),
                objects[noun].id,
                words,
                lemma,
                kind,
            )
    relations: dict[tuple[int, int, str], Relation] = {}
    for subject, words, thing, kind in sorted(extraction.edges):
        lemma = "have" if kind == "have" else extraction.lemma(words)
        key = (subject, thing, lemma)
        if subject in objects and thing in objects and subject != thing and key not in relations:
            relations[key] = Relation(
                len(relations),
                objects[subject].id,
                objects[thing].id,
                words,
                lemma,
                kind,
            )
    return SceneGraph(
        text,
        analysis.tokens,
        tuple(objects.values()),
        tuple(attributes.values()),
        tuple(relations.values()),
        analysis.status,
    )


class _Extraction:
    """The rules over the links of one caption.

    Attributes:
        words: see `itrpipe.scene_graph.words.plain`.
        lemmas: of the tokens.
        pairs: heads and dependents of each kind of link, rising.
        governed: tokens that a head governs by a kind of link, rising.
        governing: tokens that govern a dependent by a kind of link, rising.
        members: of each token, all members of the list that it is in, rising; the token alone where there is none.
        nouns: tokens that can be objects, rising.
        verbs: tokens that say what nouns do, are or suffer.
        separators: tokens that divide a list of nouns, so that what follows is not said of all: of a man in a hat and a
            woman sitting, only the woman sits; of a man and a woman sitting, both.
        properties: attributes before objects have numbers: noun, words, kind.
        edges: relations before objects have numbers: subject, words, object, kind.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.words = [plain(token.text) for token in analysis.tokens]
        self.lemmas = [token.lemma for token in analysis.tokens]
        self.properties: set[tuple[int, Words, str]] = set()
        self.edges: set[tuple[int, Words, int, str]] = set()
        self.pairs: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.governed: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.governing: dict[tuple[str, int], list[int]] = defaultdict(list)
        self.verbs: set[int] = set()
        self.separators: set[int] = set()
        nouns = {i for i, token in enumerate(analysis.tokens) if token.tag == "N"}
        modifiers: set[int] = set()
        for kind, head, dependent in sorted(set(analysis.links)):
            self.pairs[kind].append((head, dependent))
            self.governed[kind, head].append(dependent)
            self.governing[kind, dependent].append(head)
            if kind in NOUN_ROLES:
                nouns.add(dependent)
            if kind in MODIFIER_ROLES:
                modifiers.add(dependent)
            if kind in VERB_ROLES:
                self.verbs.add(dependent)
            if kind == "S":
                self.verbs.add(head)
            if kind in SEPARATING:
                self.separators |= {head, dependent}

        # Lists that share a noun are one.
        self.members = {i: [i] for i in range(len(analysis.tokens))}
        for conjunction, _ in self.pairs["SJl"] + self.pairs["SJr"]:
            members: set[int] = set()
            for noun in self.governed["SJl", conjunction] + self.governed["SJr", conjunction]:
                members.update(self.members[noun])
            for noun in members:
                self.members[noun] = sorted(members)

        # Rule 13: nouns that neither modify, nor count, nor only say where.
        self.nouns: list[int] = []
        for noun in sorted(nouns - modifiers):
            word = self.words[noun]
            if word in lists.NEVER_OBJECTS or word.isdecimal() or not word[0].isalnum():
                continue
            is_worn = self.governing["O", noun] or self.governing["J", noun]  # a woman in blue
            if word in lists.COLOURS and not is_worn:
                continue
            if self._counted(noun) == noun and not self._is_location(noun):
                self.nouns.append(noun)
        self.separators.difference_update(self.nouns)

    def lemma(self, words: Iterable[int]) -> str:
        """Return the lemmas of some tokens."""
        return " ".join(self.lemmas[i] for i in words)

    # -- nouns ---------------------------------------------------------------------------------------------------------

    def _after_of(self, noun: int) -> list[tuple[int, int]]:
        """Return the nouns that follow a noun and "of", each with its "of"."""
        things = []
        for of in self.governed["OF", noun]:
            for thing in self.governed["J", of]:
                things.append((of, thing))
        return things

    def _counted(self, noun: int) -> int:
        """Return the noun that a quantity counts (dogs in "a couple of dogs"), or the noun itself.

        Source: Schuster et al., 2015, section 4.1 (quantificational modifiers).
        """
        things = self._after_of(noun)
        while things and self.words[noun] in lists.COUNTING:
            _, noun = things[0]
            things = self._after_of(noun)
        return noun

    def _is_location(self, noun: int) -> bool:
        """Return whether a noun only says where at something: side in "on the side of X"."""
        if self.lemmas[noun] not in lists.LOCATIONS or not self._after_of(noun):
            return False
        prepositions = {self.words[i] for i in self.governing["J", noun]}
        return not prepositions.isdisjoint(lists.LOCATION_PREPOSITIONS)

    def _targets(self, preposition: int) -> Iterator[tuple[Words, int]]:
        """Yields the nouns after a preposition, with all words that amount to the preposition.

        "On the edge of a table" leads to the table by "on edge of".
        """
        words = (preposition, *self.governed["IX", preposition])
        for noun in self.governed["J", preposition]:
            if not self._is_location(noun):
                yield words, noun
                continue
            for of, thing in self._after_of(noun):
                yield (*words, noun, of), thing

    def _referents(
        self,
        noun: int,
        excluded: Sequence[int] = (),
        nearest: bool = False,
    ) -> list[int]:
        """Return the objects that a noun in some role stands for: its list, what it counts, what the pronoun means."""
        things: list[int] = []
        for member in self.members[noun]:
            counted = self._counted(member)
            if counted == member:
                things.append(member)
            else:
                things += self.members[counted]
        referents: list[int] = []
        for thing in things:
            if thing in self.nouns:
                referents.append(thing)
                continue
            meant = self._antecedent(thing, excluded, nearest)
            if meant is not None:
                referents += self.members[meant]
        return [noun for noun in dict.fromkeys(referents) if noun in self.nouns]

    def _referent(self, noun: int) -> list[int]:
        """Return the object that one noun stands for, without the others of its list; nothing where it is none."""
        counted = self._counted(noun)
        if counted in self.nouns:
            return [counted]
        meant = self._antecedent(counted)
        if meant is None:
            return []
        return [meant]

    def compound(self, noun: int) -> Words:
        """Return a noun and the words before it that make a compound with it."""
        first = noun
        while first - 1 in self.governed["AN", noun]:
            first -= 1
        return tuple(range(first, noun + 1))

    # -- pronouns ------------------------------------------------------------------------------------------------------
    # The search of Schuster et al., 2015, section 4.2 (after Hobbs, 1978) comes down, in sentences as plain as
    # captions, to the first noun that agrees, the subject of the clause before the others.

    def _owner(self, pronoun: int, thing: int) -> int | None:
        """Return the owner that a possessive pronoun means.

        Subjects of what happens to the thing are preferred where they agree.
        """
        word = self.words[pronoun]
        if word == "whose":
            before = [noun for noun in self.nouns if noun < pronoun and noun != thing]
            return max(before, default=None)
        verbs = list(self.governing["O", thing])
        for preposition in self.governing["J", thing]:
            verbs += self.governing["MVp", preposition]
            for noun in self.governing["Mp", preposition]:
                verbs += self.governing["O", noun]
        subjects: list[int] = []
        for verb in verbs:
            subjects += self._subjects(verb)
        for candidates in (self.members[thing], subjects, self.nouns):
            before = [noun for noun in candidates if noun < pronoun and noun != thing]
            owner = self._choose(word, before)
            if owner is not None:
                return owner
        return None

    def _antecedent(
        self,
        pronoun: int,
        excluded: Sequence[int] = (),
        nearest: bool = False,
    ) -> int | None:
        """Return the noun that a personal pronoun stands for; for "one", the nearest plural.

        Args:
            pronoun: he, him, she, her, it, they, them, one.
            excluded: nouns it cannot mean, such as the subject of its own verb.
            nearest: look from right to left, as after a noun and its preposition: a shirt with a number on it.
        """
        before = [noun for noun in self.nouns if noun < pronoun and noun not in excluded]
        if self.words[pronoun] == "one":
            return max(filter(self._is_plural, before), default=None)
        if nearest:
            before.reverse()
        return self._choose(self.words[pronoun], before)

    def _choose(self, pronoun: str, nouns: list[int]) -> int | None:
        """Return the first of the most fitting nouns: people before animals before things, for "they" plurals first."""
        ranks: dict[int, int] = {}
        for noun in nouns:
            rank = self._rank(pronoun, noun)
            if rank is not None:
                ranks[noun] = rank
        return min(ranks, key=ranks.__getitem__, default=None)

    def _rank(self, pronoun: str, noun: int) -> int | None:
        """Return how far a noun is from the likeliest meaning of a pronoun; None where they do not agree."""
        lemma = self.lemmas[noun]
        is_plural = self._is_plural(noun)
        is_person = lemma in lists.PERSONS
        is_thing = lemma not in lists.ANIMATE
        if pronoun in lists.PLURAL:
            if is_plural:
                return int(is_thing)
            return 2 if is_person else None
        if pronoun not in lists.REFERRING:
            return None
        if is_plural and len(self.members[noun]) == 1:
            return None
        if pronoun in lists.MASCULINE:
            others = lists.FEMALES
        elif pronoun in lists.FEMININE:
            others = lists.MALES
        elif is_person:
            return None
        else:
            return int(is_thing and pronoun not in lists.NEUTER)
        if lemma in others:
            return None
        if is_thing and any(self.lemmas[other] in lists.ANIMATE for other in self.nouns):
            return None
        return is_thing + (not is_person)

    def _is_plural(self, noun: int) -> bool:
        lemma = self.lemmas[noun]
        if lemma in lists.MANY or self.words[noun] != lemma:
            return True
        return len(self.members[noun]) > 1

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def _subjects(self, verb: int) -> list[int]:
        """Return the nouns that do, are or suffer what a verb says."""
        subjects: list[int] = []
        for subject in self.governed["S", verb]:
            subjects += self._referents(subject)
        for be in self.governing["Pg", verb] + self.governing["Pv", verb]:
            if be != verb:
                subjects += self._subjects(be)
        for pronoun in self.governing["RS", verb]:
            for head in self.governing["R", pronoun]:
                subjects += self._referent(head)
        for noun in self.governing["Mg", verb] + self.governing["Mv", verb]:
            members = self.members[noun]
            if self.separators.isdisjoint(range(members[0], members[-1])):
                subjects += self._referents(noun)
            else:
                subjects += self._referent(noun)
        return list(dict.fromkeys(subjects))

    def read_verbs(self) -> None:
        """Finds what verbs say of nouns."""
        for verb in self.verbs:
            subjects = self._subjects(verb)
            for subject, adjective in product(subjects, self.governed["Pa", verb]):
                self.properties.add((subject, (adjective,), "adjective"))
            if self.lemmas[verb] == "be":  # rules 4 and 6: what somebody is, and where
                for subject, noun in product(subjects, self.governed["O", verb]):
                    if noun in self.nouns:
                        self.properties.add((subject, self.compound(noun), "copula"))
                for subject, preposition in product(subjects, self.governed["MVp", verb]):
                    self._locate(subject, preposition)
            else:
                self._read_action(verb, subjects)

    def _read_action(self, verb: int, subjects: list[int]) -> None:
        """Finds whom and where an action meets, or the action alone: rules 1, 2, 3 and 9."""
        words = tuple(sorted([verb, *self.governed["K", verb]]))
        lemma = self.lemmas[verb]
        is_link = lemma in lists.LINKING_VERBS and self.governed["Pa", verb]
        is_alone = not is_link and lemma not in lists.EMPTY_VERBS
        for thing in self.governed["O", verb]:
            for noun in self._referents(thing, subjects):
                is_alone = False
                for subject in subjects:
                    self.edges.add((subject, words, noun, "verb"))
        is_passive = self.governing["Mv", verb] or self.governing["Pv", verb]
        suffers = is_passive and self.words[verb] not in lists.STATIVE_PARTICIPLES
        for preposition in self.governed["MVp", verb]:
            for extra, target in self._targets(preposition):
                by_somebody = suffers and [self.words[i] for i in extra] == ["by"]
                predicate = tuple(sorted(words + extra))
                for noun in self._referents(target, subjects):
                    is_alone = False
                    for subject in subjects:
                        if by_somebody:
                            self.edges.add((noun, words, subject, "agent"))
                        else:
                            self.edges.add((subject, predicate, noun, "verb_prep"))
        if is_alone:
            for subject in subjects:
                self.properties.add((subject, words, "action"))

    def _locate(
        self,
        subject: int,
        preposition: int,
        nearest: bool = False,
    ) -> None:
        for words, target in self._targets(preposition):
            for noun in self._referents(target, [subject], nearest):
                self.edges.add((subject, words, noun, "prep"))

    # -- what nouns say ------------------------------------------------------------------------------------------------

    def read_nouns(self) -> None:
        """Finds what nouns and the words at them say."""
        for noun, preposition in self.pairs["Mp"]:
            for subject in self._referent(noun):
                self._locate(subject, preposition, nearest=True)
        for noun, of in self.pairs["OF"]:
            if noun in self.nouns:
                self._locate(noun, of)
            elif self._counted(noun) != noun:
                for counted in self._referent(noun):
                    self.properties.add((counted, (noun,), "quantity"))
        for thing, word in self.pairs["D"]:  # rule 8: possession by 's or by a pronoun
            if self.words[word] in lists.POSSESSIVE_PRONOUNS:
                owner = self._owner(word, thing)
                if owner is not None:
                    self.edges.add((owner, (word,), thing, "have"))
                continue
            for owner in self.governed["YS", word]:
                for noun in self._referents(owner):
                    self.edges.add((noun, (word,), thing, "have"))
        for noun, adjective in self.pairs["A"]:
            self.properties.add((noun, (adjective,), "adjective"))
        for noun, number in self.pairs["Dmcn"]:
            kind = "number"
            if self.words[number] in lists.VAGUE_NUMBERS:
                kind = "quantity"
            self.properties.add((noun, (number,), kind))
        for noun, modifier in self.pairs["AN"]:
            self.properties.add((noun, (modifier,), "compound"))
