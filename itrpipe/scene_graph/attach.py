"""Chunks to links: which verb a noun is subject or object of, and what a preposition or participle belongs to.

Grammar leaves the last open in most captions; who can act, what is worn, and what is a part of what decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from itrpipe.scene_graph.chunks import Chunk, Chunker, Lists
from itrpipe.scene_graph.graph import Link
from itrpipe.scene_graph.tag import TaggedWords
from itrpipe.scene_graph.words import lists

VERB_KINDS = frozenset({"V", "VBG", "VBN"})
PARTICIPLES = frozenset({"Pg", "Pv", "Mg", "Mv"})
"""Links of active (g) and passive (v) participles, with a form of be (P) or after a noun (M)."""
Number = int | None
"""Number of a token; None where there is none."""


@dataclass(slots=True)
class Clause:
    """The words of a sentence that later ones may belong to, on the way from left to right.

    Attributes:
        subject: noun that a finite verb would take.
        main_subject: subject of the clause that a relative clause interrupts.
        interrupted: whether a relative clause with a subject of its own waits for its verb.
        actor: noun that does what the last verb says.
        verb: last verb, participle or form of be.
        main_verb: finite verb of the clause.
        be: form of be that still waits for its predicate.
        open_verb: verb that still waits for its object.
        preposition: preposition that still waits for its noun.
        relative: relative pronoun that still waits for its verb.
        gap: noun before a relative clause that has a subject of its own: the ball she throws.
        predicate: noun that stands after a form of be.
        nouns: heads of the noun phrases so far.
        objects: of these, the ones that are the object of a verb, with that verb.
        homes: of these, the ones after a preposition, with the noun that the preposition belongs to.
        prepositions: of these, the ones after a preposition, with that word.
        dangling: participles before the first noun, with the link that they wait for.
        bare_participles: passive participles that follow their noun without a form of be.
        after: kind of the chunk before.
    """

    subject: Number = None
    main_subject: Number = None
    actor: Number = None
    verb: Number = None
    main_verb: Number = None
    be: Number = None
    open_verb: Number = None
    preposition: Number = None
    relative: Number = None
    gap: Number = None
    predicate: Number = None
    nouns: list[int] = field(default_factory=list)
    objects: dict[Number, int] = field(default_factory=dict)
    homes: dict[Number, Number] = field(default_factory=dict)
    prepositions: dict[Number, str] = field(default_factory=dict)
    dangling: list[tuple[str, int]] = field(default_factory=list)
    bare_participles: set[int] = field(default_factory=set)
    interrupted: bool = False
    after: str = ""

    @property
    def last(self) -> Number:
        """Return the head of the last noun phrase."""
        return self.nouns[-1] if self.nouns else None

    @property
    def follows_object(self) -> bool:
        """Return whether the last noun phrase is the object of the last verb, and nothing stands behind it."""
        return self.after == "NP" and self.objects.get(self.last) == self.verb

    def close_verb(self) -> None:
        """Let nothing wait for a noun or predicate any more."""
        self.be = None
        self.open_verb = None
        self.preposition = None

    def forget_verb(self) -> None:
        """Begin a new clause."""
        self.close_verb()
        self.verb = None
        self.actor = None
        self.main_verb = None


class Attacher:
    """One pass over the chunks of a tagged caption.

    Attributes:
        links: between the chunks, found so far.
    """

    def __init__(self, sentence: TaggedWords) -> None:
        self.words = sentence.words
        self.tags = sentence.tags
        self.lemmas = sentence.lemmas
        self._chunker = Chunker(sentence)
        self.chunks = self._chunker.chunks()
        self.lists = Lists(sentence.lemmas, self.chunks)
        self.kinds = self.lists.kinds
        self.links: list[Link] = []
        self._governor: dict[Number, Link] = {}
        self.clause = Clause()

    def attach(self) -> list[Link]:
        """Return the links between and inside the chunks, in any order."""
        for index, chunk in enumerate(self.chunks):
            clause = self.clause
            head = chunk.head
            match chunk.kind:
                case "NP":
                    self._attach_noun(index, chunk)
                case "J":
                    self._attach_adjective(index, chunk)
                case "V":
                    self._attach_finite_verb(index, head)
                case "BE":
                    self._take_subject(head)
                    clause.be = head
                case "VBG":
                    self._attach_participle("g", head)
                    clause.open_verb = head
                case "VBN":
                    lacks_verb = clause.be is None and clause.main_verb is None and clause.subject is not None
                    follows_noun = clause.after in {"NP", "WH", "CC", "SUB"}
                    if lacks_verb and follows_noun and self.kinds[index + 1] == "NP":
                        self._attach_finite_verb(index, head)  # a boy kicked the ball
                    else:
                        self._attach_participle("v", head)
                case "P":
                    self._attach_preposition(index, head)
                case "SUB":
                    clause.forget_verb()
                    clause.relative = None
                case "WH":
                    clause.close_verb()
                    if clause.last is not None:
                        self._link("R", clause.last, head)
                        clause.relative = head
                case "EX":
                    clause.subject = None
                case ",":
                    clause.close_verb()
                case ".":
                    self.clause = Clause()
            self.clause.after = chunk.kind
        return self.links + self._chunker.links

    def _link(self, kind: str, head: int, dependent: int) -> None:
        link = Link(kind, head, dependent)
        self.links.append(link)
        self._governor[dependent] = link

    def _nearest(self, *groups: frozenset[str]) -> Number:
        """Return the last noun so far of the first group of lemmas that has any; the last of all where none has."""
        for group in groups:
            for noun in reversed(self.clause.nouns):
                if self.lemmas[noun] in group:
                    return noun
        return self.clause.last

    # -- nouns ---------------------------------------------------------------------------------------------------------

    def _attach_noun(self, index: int, chunk: Chunk) -> None:
        clause = self.clause
        noun = chunk.head
        if index in self.lists.place:
            # A further member of a list of noun phrases.
            conjunction, first = self.lists.place[index]
            self._link("SJl", conjunction, first)
            self._link("SJl" if noun < conjunction else "SJr", conjunction, noun)
            self._copy_role(noun, first)
        elif clause.after == "CC" and clause.main_verb is not None and self.lists.clause_follows(index):
            self._new_subject(chunk)
        elif clause.after == "CC" and clause.nouns:
            # A man in a hat and a woman: people are joined to people, though a thing stands nearer.
            left = clause.last
            if self.lemmas[noun] in lists.ANIMATE:
                left = self._nearest(lists.ANIMATE)
            is_new = self.lists.is_new(index - 2, index)
            if left is None or (is_new and self.lemmas[left] not in lists.ANIMATE):
                left = clause.nouns[0]
            conjunction = self.chunks[index - 1].head
            self._link("SJl", conjunction, left)
            self._link("SJr", conjunction, noun)
            if left not in clause.objects and left != clause.nouns[-1]:
                clause.verb = None
                clause.actor = None
            self._copy_role(noun, left)
        elif clause.preposition is not None:
            preposition = self.words[clause.preposition]
            self._link("J", clause.preposition, noun)
            clause.prepositions[noun] = preposition
            group = clause.homes.get(noun)
            is_group = group is not None and self.lemmas[group] in lists.COLLECTIVES
            if is_group and preposition == "of" and group == clause.subject:
                # What a group of people does, the people do.
                clause.subject = noun
                clause.main_subject = noun
            if clause.main_verb is not None and clause.verb in clause.bare_participles:
                # After "filled with hay", a further preposition belongs to the main verb.
                clause.verb = clause.main_verb
                clause.actor = clause.main_subject
        elif clause.be is not None:
            self._link("O", clause.be, noun)
            clause.predicate = noun
            if clause.subject is None:
                clause.subject = noun
        else:
            verb = clause.open_verb
            if verb is None and clause.follows_object:
                verb = clause.verb  # which takes a second object after the first: gives the boy a ball
            if verb is None:
                self._new_subject(chunk)
            else:
                self._link("O", verb, noun)
                clause.objects[noun] = verb
        clause.close_verb()
        clause.nouns.append(noun)

    def _copy_role(self, noun: int, other: int) -> None:
        """Gives a noun the verb and preposition of another one in its list."""
        role: dict[Number, Any]
        for role in (self.clause.objects, self.clause.homes, self.clause.prepositions):
            if other in role:
                role[noun] = role[other]

    def _new_subject(self, chunk: Chunk) -> None:
        clause = self.clause
        noun = chunk.head
        if clause.relative is not None:
            clause.gap = clause.last
            clause.relative = None
        if clause.gap is not None or self.words[chunk.first] == "whose":
            clause.subject = noun
            clause.interrupted = True
            return
        is_verbless = clause.main_verb is None and clause.verb is None
        if clause.after == "," and clause.subject is not None and is_verbless:
            return  # an insertion: a photographer, camera in hand, kneels
        clause.forget_verb()
        clause.subject = noun
        clause.main_subject = noun
        for kind, participle in clause.dangling:
            self._link(kind, noun, participle)
        clause.dangling.clear()

    def _attach_adjective(self, index: int, chunk: Chunk) -> None:
        clause = self.clause
        word = chunk.head
        is_colour = self.words[word] in lists.COLOURS
        if clause.preposition is not None or (clause.open_verb is not None and is_colour):
            self._attach_noun(index, chunk)
        elif clause.be is not None:
            self._link("Pa", clause.be, word)
        elif clause.open_verb is not None:
            self._link("Pa", clause.open_verb, word)
        elif clause.after == "CC":
            if self.links and self.links[-1].kind in {"Pa", "J", "O", "A"}:
                kind, head, _ = self.links[-1]
                self._link(kind, head, word)
        elif clause.after == "NP" and clause.last is not None:
            self._link("A", clause.last, word)

    # -- verbs ---------------------------------------------------------------------------------------------------------

    def _attach_finite_verb(self, index: int, verb: int) -> None:
        clause = self.clause
        self._take_subject(verb)
        clause.open_verb = verb
        if clause.gap is not None and self.kinds[index + 1] != "NP":
            self._link("O", verb, clause.gap)
            clause.gap = None

    def _take_subject(self, verb: int) -> None:
        clause = self.clause
        last = clause.last
        subject = clause.subject
        if clause.after == "TO":
            if clause.actor is not None:
                subject = clause.actor
        elif clause.after == "NP" and last in clause.objects:
            is_watched = self.lemmas[clause.objects[last]] in lists.PERCEPTION_VERBS
            if is_watched and self.lemmas[verb] == self.words[verb]:
                subject = last
        clause.close_verb()
        if clause.relative is not None and last is not None:
            self._link("RS", clause.relative, verb)
            clause.actor = last
            clause.relative = None
            clause.subject = clause.main_subject
        elif subject is not None:
            self._link("S", verb, subject)
            clause.actor = subject
        if clause.interrupted:
            clause.subject = clause.main_subject
            clause.interrupted = False
        elif clause.after != "TO":
            clause.main_verb = verb
        clause.verb = verb

    def _attach_participle(self, voice: str, verb: int) -> None:
        """Link a participle with a form of be, with the subject of the verb before, or with a noun.

        Args:
            voice: `g` for active, `v` for passive.
            verb: the participle.
        """
        clause = self.clause
        previous = self._governor.get(clause.verb)
        subject = clause.subject
        if subject is None:
            subject = clause.actor
        follows_particle = clause.after == "P" and clause.preposition is None
        if clause.be is not None:
            self._link("P" + voice, clause.be, verb)
        elif clause.after == "CC" and previous is not None and previous.kind in PARTICIPLES:
            self._link(previous.kind[0] + voice, previous.head, verb)
        elif subject is not None and clause.after not in {"NP", "J", ""} and not follows_particle:
            # After and, while, a comma or another verb: the subject of the verb before.
            if voice == "g":
                self._link("S", verb, subject)
            else:
                self._link("Mv", subject, verb)
            clause.actor = subject
        else:
            noun = clause.last
            if voice == "g":
                noun = self._doer(verb)
            elif self.words[verb] in lists.PERSONAL_PARTICIPLES:
                # The nearest noun suffers, unless it is said of people alone.
                noun = self._nearest(lists.ANIMATE)
            if voice == "v":
                clause.bare_participles.add(verb)
            if noun is None:
                clause.dangling.append(("M" + voice, verb))
            else:
                self._link("M" + voice, noun, verb)
                clause.actor = noun
        clause.close_verb()
        clause.verb = verb

    def _doer(self, verb: int) -> Number:
        """Return the noun that a bare active participle speaks of: people and animals act, things mostly do not."""
        clause = self.clause
        last = clause.last
        if last is None or self.tags[last] == "PRP":
            return last
        lemma = self.lemmas[verb]
        noun = self.lemmas[last]
        if lemma in lists.PERSON_VERBS and noun not in lists.PERSONS:
            return self._nearest(lists.PERSONS, lists.ANIMATE, lists.VEHICLES)
        if noun in lists.ANIMATE or lemma in lists.THING_VERBS:
            return last
        if noun in lists.VEHICLES and lemma in lists.VEHICLE_VERBS:
            return last
        if clause.main_verb is not None and clause.prepositions.get(last) == "with":
            return last
        return self._nearest(lists.ANIMATE, lists.VEHICLES)

    # -- prepositions --------------------------------------------------------------------------------------------------

    def _attach_preposition(self, index: int, token: int) -> None:
        clause = self.clause
        word = self.words[token]
        following = self.kinds[index + 1]
        if following == "VBG" and not (clause.after in VERB_KINDS and word in lists.LONE_PARTICLES):
            if clause.verb is not None:
                self._link("MVp", clause.verb, token)
            clause.preposition = token
            return
        if following not in {"NP", "J"}:
            is_near = clause.after in VERB_KINDS or clause.follows_object
            if clause.verb is not None and is_near and word in lists.PARTICLES:
                self._link("K", clause.verb, token)
            return
        takes_object = clause.after in {"V", "VBG"} and following == "NP"
        verb = clause.open_verb
        if takes_object and verb is not None and (self.lemmas[verb], word) in lists.PHRASAL_VERBS:
            self._link("K", verb, token)  # verb and particle take the noun together: puts on a hat
            return

        target = self.chunks[index + 1].head
        noun = self._noun_of_preposition(index)
        if word == "of" and clause.last is not None and clause.after not in VERB_KINDS:
            self._link("OF", clause.last, token)
            clause.homes[target] = clause.last
        elif noun is not None:
            # Members of a list share a place: a man and a woman on a bench; not a man and a woman in a dress.
            hosts = self.lists.heads.get(noun, [noun])
            is_place = word in lists.PLACES and self.lemmas[target] not in lists.CLOTHES
            if not is_place or hosts[0] != clause.subject:
                hosts = [noun]
            for host in hosts:
                self._link("Mp", host, token)
            clause.homes[target] = noun
        elif clause.verb is not None:
            # Is ready for a guest: for belongs to the adjective; not so in "safe on a shelf", "blue with dots".
            after_adjective = clause.after == "J" and self.lemmas[clause.verb] == "be"
            if not (after_adjective and word in lists.ADJECTIVE_PREPOSITIONS):
                self._link("MVp", clause.verb, token)
                clause.homes[target] = clause.actor
        clause.close_verb()
        clause.preposition = token

    def _noun_of_preposition(self, index: int) -> Number:
        """Return the noun that a preposition belongs to, None for the last verb.

        Args:
            index: number of the preposition's chunk; a noun follows it.
        """
        clause = self.clause
        last = clause.last
        if last is None or clause.be is not None or clause.after in VERB_KINDS:
            if clause.verb is None:
                return last
            return None
        preposition = self.words[self.chunks[index].head]
        target = self.chunks[index + 1]
        thing = self.lemmas[target.head]
        if preposition == "during":
            if clause.verb is None:
                return clause.nouns[0]
            return None
        # With a stick in its mouth, with a leg in the air; a wall with drawings on it.
        if clause.prepositions.get(last) == "with":
            is_owned = self.words[target.first] in lists.POSSESSIVE_PRONOUNS
            if is_owned or self.words[target.head] == "air":
                return last
        elif preposition == "with" and self.kinds[index + 2 : index + 4] == ["P", "NP"]:
            pronoun = self.words[self.chunks[index + 3].head]
            if pronoun == "it":
                return last
            if pronoun in lists.PERSONAL_PRONOUNS and self.lemmas[last] in lists.ANIMATE:
                return last
        if preposition == "with" and thing in lists.FEATURES:
            return self._home(last, thing)
        if preposition == "in" and thing in lists.CLOTHES and self.lemmas[last] not in lists.CLOTHES:
            return self._nearest(lists.ANIMATE)
        if thing in lists.PERSONAL_PRONOUNS and last != clause.actor:
            return last  # people behind him
        if clause.after == "," and clause.verb is None and clause.subject is not None:
            return clause.subject
        if clause.verb is None:
            return self._home(last, thing)
        if clause.predicate is not None and self.tags[clause.verb] == "BE":
            return self._home(last, thing)
        if last in clause.objects:
            verb = self.lemmas[clause.verb]
            if verb == "wear" and thing not in lists.BODY_PARTS:
                return clause.actor
            if verb in {"have", "wear"}:
                return last
        return None

    def _home(self, noun: int, thing: str) -> int:
        """Return the noun itself, or the one it belongs to: a man in a hat on a bench, a glass of wine on a table."""
        clause = self.clause
        home = clause.homes.get(noun)
        while home is not None:
            is_held = self.lemmas[home] in lists.HOLDERS and clause.prepositions.get(noun) == "of"
            is_part = self.lemmas[noun] in lists.FEATURES | lists.BODY_PARTS
            if not is_held and (not is_part or thing in lists.GARMENT_FEATURES):
                break
            noun = home
            home = clause.homes.get(noun)
        return noun
