"""Chunks to links: which verb a noun is subject or object of, and what a preposition or participle belongs to."""

from __future__ import annotations

from collections.abc import Callable

from itrpipe.scene_graph import words as lists
from itrpipe.scene_graph.chunks import Chunk
from itrpipe.scene_graph.clause import Clause
from itrpipe.scene_graph.coordination import Lists
from itrpipe.scene_graph.graph import Link
from itrpipe.scene_graph.hosts import VERB_KINDS, Hosts

JOINED_PARTICIPLES = {
    "Mg": {"Pg": "Pg", "Pv": "Pg", "Mg": "Mg", "Mv": "Mg"},
    "Mv": {"Pg": "Pv", "Pv": "Pv", "Mg": "Mv", "Mv": "Mv"},
}
"""Link of a participle after "and", by its own kind and by the link of the participle before."""


class Attacher:
    """One pass over the chunks of a caption.

    Attributes:
        links: found so far.
    """

    def __init__(self, words: list[str], tags: list[str], lemmas: list[str], chunks: list[Chunk]) -> None:
        """Takes the words (lower case), tags, lemmas and chunks of one caption."""
        self.words = words
        self.lemmas = lemmas
        self.chunks = chunks
        self.links: list[Link] = []
        self._governor: dict[int, Link] = {}
        self.lists = Lists(lemmas, chunks)
        self.hosts = Hosts(words, tags, lemmas, chunks)
        self.clause = Clause()
        self.steps: dict[str, Callable[[int, Chunk], None]] = {
            "NP": self._noun,
            "J": self._adjective,
            "V": self._finite,
            "BE": self._be,
            "VBG": self._active,
            "VBN": self._passive,
            "P": self._preposition,
            "SUB": self._subordinator,
            "WH": self._relative_pronoun,
            "EX": self._existential,
            ",": self._comma,
            ".": self._sentence_end,
        }

    def attach(self) -> list[Link]:
        """Links between the chunks, in the order of their discovery."""
        for index, chunk in enumerate(self.chunks):
            if chunk.kind in self.steps:
                self.steps[chunk.kind](index, chunk)
            self.clause.after = chunk.kind
        return self.links

    def _link(self, kind: str, head: int, dependent: int) -> None:
        self.links.append(Link(kind, head, dependent))
        self._governor[dependent] = self.links[-1]

    def _kind(self, index: int) -> str:
        return self.chunks[index].kind if 0 <= index < len(self.chunks) else ""

    # -- nouns ---------------------------------------------------------------------------------------------------------

    def _noun(self, index: int, chunk: Chunk) -> None:
        clause, noun = self.clause, chunk.head
        if self.lists.joins(index):
            self._conjunct(index, noun)
        elif clause.after == "CC" and clause.main_verb is not None and self.lists.clause_follows(index):
            self._new_subject(chunk)
        elif clause.after == "CC" and clause.nouns:
            self._conjunct_at_distance(index, noun)
        elif clause.preposition is not None:
            self._follow_preposition(clause.preposition, noun)
        elif clause.be is not None:
            self._link("O", clause.be, noun)
            clause.predicate = noun
            clause.subject = noun if clause.subject is None else clause.subject
        elif clause.open_verb is not None or self._is_second_object():
            verb = clause.open_verb if clause.open_verb is not None else clause.objects[clause.nouns[-1]]
            self._link("O", verb, noun)
            clause.objects[noun] = verb
        else:
            self._new_subject(chunk)
        clause.close_verb()
        clause.nouns.append(noun)

    def _is_second_object(self) -> bool:
        """Whether a noun follows another one that is the object of the last verb: gives the boy a ball."""
        clause = self.clause
        if clause.after != "NP" or clause.verb is None:
            return False
        return clause.objects.get(clause.nouns[-1]) == clause.verb

    def _conjunct(self, index: int, noun: int) -> None:
        """A further member of a list of noun phrases."""
        conjunction, first = self.lists.place(index)
        if self.clause.last == first:
            self._link("SJl", conjunction, first)
        self._link("SJl" if noun < conjunction else "SJr", conjunction, noun)
        self.clause.copy_role(noun, first)

    def _conjunct_at_distance(self, index: int, noun: int) -> None:
        """A man in a hat and a woman: people are joined to people, though a thing stands nearer."""
        clause = self.clause
        left = self.hosts.nearest(clause, lists.ANIMATE) if self.lemmas[noun] in lists.ANIMATE else None
        if left is None:
            left = clause.nouns[0 if index > 1 and self.lists.is_new(index - 2, index) else -1]
        conjunction = self.chunks[index - 1].head
        self._link("SJl", conjunction, left)
        self._link("SJr", conjunction, noun)
        if left not in clause.objects and left != clause.nouns[-1]:
            clause.verb = clause.actor = None
        clause.copy_role(noun, left)

    def _follow_preposition(self, preposition: int, noun: int) -> None:
        self._link("J", preposition, noun)
        self.clause.prepositions[noun] = self.words[preposition]
        self._pass_subject(preposition, noun)
        self._close_participle()

    def _close_participle(self) -> None:
        """After "filled with hay", a further preposition belongs to the main verb."""
        clause = self.clause
        if clause.main_verb is not None and clause.verb in clause.bare_participles:
            clause.verb, clause.actor = clause.main_verb, clause.main_subject

    def _pass_subject(self, preposition: int, member: int) -> None:
        """What a group of people does, the people do."""
        group = self.clause.homes.get(member)
        if group is None or group != self.clause.subject or self.words[preposition] != "of":
            return
        if self.lemmas[group] in lists.COLLECTIVES:
            self.clause.subject = self.clause.main_subject = member

    def _new_subject(self, chunk: Chunk) -> None:
        clause, noun = self.clause, chunk.head
        if clause.relative is not None:
            clause.gap, clause.relative = clause.last, None
        if clause.gap is not None or self.words[chunk.first] == "whose":
            clause.subject, clause.interrupted = noun, True
            return
        if clause.after == "," and clause.subject is not None and clause.main_verb is None and clause.verb is None:
            return  # an insertion: a photographer, camera in hand, kneels
        clause.forget_verb()
        clause.subject = clause.main_subject = noun
        for kind, participle in clause.dangling:
            self._link(kind, noun, participle)
        clause.dangling.clear()

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def _finite(self, index: int, chunk: Chunk) -> None:
        self._take_subject(chunk.head)
        self.clause.open_verb = chunk.head
        if self.clause.gap is not None and self._kind(index + 1) != "NP":
            self._link("O", chunk.head, self.clause.gap)
            self.clause.gap = None

    def _be(self, index: int, chunk: Chunk) -> None:
        self._take_subject(chunk.head)
        self.clause.be = chunk.head

    def _take_subject(self, verb: int) -> None:
        clause = self.clause
        subject = self._subject_of(verb)
        clause.close_verb()
        if clause.relative is not None and clause.last is not None:
            self._link("RS", clause.relative, verb)
            clause.actor, clause.relative = clause.last, None
            clause.subject = clause.main_subject
        elif subject is not None:
            self._link("S", verb, subject)
            clause.actor = subject
        if clause.interrupted:
            clause.subject, clause.interrupted = clause.main_subject, False
        elif clause.after != "TO":
            clause.main_verb = verb
        clause.verb = verb

    def _subject_of(self, verb: int) -> int | None:
        clause, last = self.clause, self.clause.last
        if clause.after == "TO":
            return clause.actor if clause.actor is not None else clause.subject
        watcher = clause.objects.get(last) if last is not None and clause.after == "NP" else None
        if watcher is None or self.lemmas[watcher] not in lists.PERCEPTION_VERBS:
            return clause.subject
        return last if self.lemmas[verb] == self.words[verb] else clause.subject

    def _active(self, index: int, chunk: Chunk) -> None:
        clause, verb = self.clause, chunk.head
        if clause.be is not None:
            self._link("Pg", clause.be, verb)
        elif not self._share_subject(verb, "Mg"):
            self._modify("Mg", verb, self.hosts.doer(clause, verb))
        clause.close_verb()
        clause.verb = clause.open_verb = verb

    def _passive(self, index: int, chunk: Chunk) -> None:
        clause, verb = self.clause, chunk.head
        if clause.be is not None:
            self._link("Pv", clause.be, verb)
        elif self._is_past(index):
            self._finite(index, chunk)
            return
        elif not self._share_subject(verb, "Mv"):
            self._modify("Mv", verb, self.hosts.sufferer(clause, verb))
            clause.bare_participles.add(verb)
        clause.close_verb()
        clause.verb = verb

    def _share_subject(self, verb: int, kind: str) -> bool:
        """A participle after and, while, a comma or another verb has the subject of the verb before."""
        clause = self.clause
        previous = self._governor.get(clause.verb) if clause.after == "CC" and clause.verb is not None else None
        if previous is not None and previous.kind in JOINED_PARTICIPLES[kind]:
            self._link(JOINED_PARTICIPLES[kind][previous.kind], previous.head, verb)
            return True
        if clause.after in {"NP", "J", ""} or (clause.after == "P" and clause.preposition is None):
            return False
        subject = clause.subject if clause.subject is not None else clause.actor
        if subject is None:
            return False
        if kind == "Mg":
            self._link("S", verb, subject)
        else:
            self._link("Mv", subject, verb)
        clause.actor = subject
        return True

    def _modify(self, kind: str, participle: int, noun: int | None) -> None:
        if noun is None:
            self.clause.dangling.append((kind, participle))
            return
        self._link(kind, noun, participle)
        self.clause.actor = noun

    def _is_past(self, index: int) -> bool:
        """Whether a word in -ed is the finite verb: the clause has none, and an object follows."""
        clause = self.clause
        if clause.main_verb is not None or clause.subject is None or self._kind(index + 1) != "NP":
            return False
        return clause.after in {"NP", "WH", "CC", "SUB"}

    # -- prepositions --------------------------------------------------------------------------------------------------

    def _preposition(self, index: int, chunk: Chunk) -> None:
        clause, word, following = self.clause, chunk.head, self._kind(index + 1)
        if following == "VBG" and not (clause.after in VERB_KINDS and self.words[word] in lists.LONE_PARTICLES):
            if clause.verb is not None:
                self._link("MVp", clause.verb, word)
            clause.preposition = word
        elif following not in {"NP", "J"}:
            self._particle(word)
        elif following == "NP" and self._is_phrasal(word):
            self._link("K", clause.verb or 0, word)
        else:
            self._attach_preposition(index, chunk)
            clause.close_verb()
            clause.preposition = word

    def _particle(self, word: int) -> None:
        clause = self.clause
        last_is_object = clause.last is not None and clause.objects.get(clause.last) == clause.verb
        near = clause.after in VERB_KINDS or (last_is_object and clause.after == "NP")
        if clause.verb is not None and near and self.words[word] in lists.PARTICLES:
            self._link("K", clause.verb, word)

    def _is_phrasal(self, word: int) -> bool:
        """Whether verb and particle take the next noun as their object: puts on a hat."""
        clause = self.clause
        if clause.open_verb is None or clause.after not in {"V", "VBG"}:
            return False
        return (self.lemmas[clause.open_verb], self.words[word]) in lists.PHRASAL_VERBS

    def _attach_preposition(self, index: int, chunk: Chunk) -> None:
        clause, word, target = self.clause, chunk.head, self.chunks[index + 1].head
        if self.words[word] == "of" and clause.last is not None and clause.after not in VERB_KINDS:
            self._link("OF", clause.last, word)
            clause.homes[target] = clause.last
            return
        noun = None if clause.be is not None else self.hosts.noun_of_preposition(clause, index)
        if noun is not None:
            for host in self._sharers(noun, word, target):
                self._link("Mp", host, word)
            clause.homes[target] = noun
        elif clause.verb is not None and not self._belongs_to_adjective(word):
            self._link("MVp", clause.verb, word)
            clause.homes[target] = clause.actor

    def _belongs_to_adjective(self, word: int) -> bool:
        """Is ready for a guest; not is safe on a shelf, nor is blue with dots."""
        after_be = self.clause.after == "J" and self.clause.verb is not None and self.lemmas[self.clause.verb] == "be"
        return after_be and self.words[word] in lists.ADJECTIVE_PREPOSITIONS

    def _sharers(self, noun: int, word: int, target: int) -> list[int]:
        """Nouns that share a preposition: a man and a woman on a bench; not a man and a woman in a dress."""
        members = self.lists.members(noun)
        place = self.words[word] in lists.PLACES and self.lemmas[target] not in lists.CLOTHES
        return members if place and members[0] == self.clause.subject else [noun]

    # -- the rest ------------------------------------------------------------------------------------------------------

    def _adjective(self, index: int, chunk: Chunk) -> None:
        clause, word = self.clause, chunk.head
        colour = self.words[word] in lists.COLOURS
        if clause.preposition is not None or (clause.open_verb is not None and colour):
            self._noun(index, chunk)
        elif clause.be is not None:
            self._link("Pa", clause.be, word)
        elif clause.open_verb is not None:
            self._link("Pa", clause.open_verb, word)
        elif clause.after == "CC":
            self._joined_adjective(word)
        elif clause.after == "NP" and clause.last is not None:
            self._link("A", clause.last, word)

    def _joined_adjective(self, word: int) -> None:
        previous = self.links[-1] if self.links else None
        if previous is not None and previous.kind in {"Pa", "J", "O", "A"}:
            self._link(previous.kind, previous.head, word)

    def _subordinator(self, index: int, chunk: Chunk) -> None:
        self.clause.forget_verb()
        self.clause.relative = None

    def _relative_pronoun(self, index: int, chunk: Chunk) -> None:
        clause = self.clause
        clause.close_verb()
        if clause.last is not None:
            self._link("R", clause.last, chunk.head)
            clause.relative = chunk.head

    def _existential(self, index: int, chunk: Chunk) -> None:
        self.clause.subject = None

    def _comma(self, index: int, chunk: Chunk) -> None:
        self.clause.close_verb()

    def _sentence_end(self, index: int, chunk: Chunk) -> None:
        self.clause = Clause()
