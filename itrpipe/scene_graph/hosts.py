"""Which noun or verb a participle or a preposition belongs to.

Grammar leaves it open in most captions; what decides is who can act, what is worn, and what is a part of what.
"""

from __future__ import annotations

from itrpipe.scene_graph import words as lists
from itrpipe.scene_graph.chunks import Chunk
from itrpipe.scene_graph.clause import Clause

VERB_KINDS = frozenset({"V", "VBG", "VBN"})


class Hosts:
    """Attachment by meaning, for one caption.

    Args:
        words: lower case.
        tags: of the words.
        lemmas: of the words.
        chunks: of the caption.
    """

    def __init__(self, words: list[str], tags: list[str], lemmas: list[str], chunks: list[Chunk]) -> None:
        self.words = words
        self.tags = tags
        self.lemmas = lemmas
        self.chunks = chunks

    def nearest(self, clause: Clause, group: frozenset[str]) -> int | None:
        """Last noun so far that is one of a group of lemmas."""
        return next((noun for noun in reversed(clause.nouns) if self.lemmas[noun] in group), None)

    # -- participles ---------------------------------------------------------------------------------------------------

    def doer(self, clause: Clause, verb: int) -> int | None:
        """Noun that a bare active participle speaks of: people and animals act, things next to them mostly do not."""
        last, lemma = clause.last, self.lemmas[verb]
        if last is None or self.lemmas[last] in lists.PERSONS or self.tags[last] == "PRP":
            return last
        if lemma in lists.PERSON_VERBS:
            person = self.nearest(clause, lists.PERSONS)
            return person if person is not None else self._animal_or_vehicle(clause, last)
        told = clause.main_verb is not None and clause.prepositions.get(last) == "with"
        driven = self.lemmas[last] in lists.VEHICLES and lemma in lists.VEHICLE_VERBS
        if self.lemmas[last] in lists.ANIMALS or lemma in lists.THING_VERBS or told or driven:
            return last
        return self._animal_or_vehicle(clause, last)

    def _animal_or_vehicle(self, clause: Clause, last: int) -> int:
        doer = self.nearest(clause, lists.ANIMATE)
        if doer is None:
            doer = self.nearest(clause, lists.VEHICLES)
        return last if doer is None else doer

    def sufferer(self, clause: Clause, verb: int) -> int | None:
        """Noun that a bare passive participle speaks of: the nearest, unless it is said of people alone."""
        last = clause.last
        if last is None or self.words[verb] not in lists.PERSONAL_PARTICIPLES or self.lemmas[last] in lists.ANIMATE:
            return last
        person = self.nearest(clause, lists.ANIMATE)
        return last if person is None else person

    # -- prepositions --------------------------------------------------------------------------------------------------

    def noun_of_preposition(self, clause: Clause, index: int) -> int | None:
        """Noun that a preposition belongs to, None for the last verb.

        Args:
            clause: what came before.
            index: number of the preposition's chunk; a noun follows it.
        """
        last = clause.last
        if last is None or clause.after in VERB_KINDS:
            return None if clause.verb is not None else last
        preposition, thing = self.words[self.chunks[index].head], self.lemmas[self.chunks[index + 1].head]
        if preposition == "during":
            return clause.nouns[0] if clause.verb is None else None
        if self._is_held(clause, index, last):
            return last
        if preposition == "with" and thing in lists.FEATURES:
            return self._home(clause, last, thing)
        if preposition == "in" and thing in lists.CLOTHES and self.lemmas[last] not in lists.CLOTHES:
            wearer = self.nearest(clause, lists.ANIMATE)
            return wearer if wearer is not None else last
        return self._by_verb(clause, last, thing)

    def _by_verb(self, clause: Clause, last: int, thing: str) -> int | None:
        if thing in lists.PERSONAL_PRONOUNS and last != clause.actor:
            return last  # people behind him
        if clause.after == "," and clause.verb is None and clause.subject is not None:
            return clause.subject
        if clause.verb is None or (clause.predicate is not None and self.tags[clause.verb] == "BE"):
            return self._home(clause, last, thing)
        verb = self.lemmas[clause.verb]
        if last in clause.objects and verb == "have":
            return last
        if last in clause.objects and verb == "wear":
            return last if thing in lists.BODY_PARTS else clause.actor
        return None

    def _is_held(self, clause: Clause, index: int, noun: int) -> bool:
        """With a stick in its mouth, with a leg in the air; a wall with drawings on it."""
        if clause.prepositions.get(noun) == "with":
            owned = self.words[self.chunks[index + 1].first] in lists.POSSESSIVE_PRONOUNS
            return owned or self.words[self.chunks[index + 1].head] == "air"
        following = [chunk.kind for chunk in self.chunks[index + 2 : index + 4]]
        if self.words[self.chunks[index].head] != "with" or following != ["P", "NP"]:
            return False
        pronoun = self.words[self.chunks[index + 3].head]
        return pronoun == "it" or (pronoun in lists.PERSONAL_PRONOUNS and self.lemmas[noun] in lists.ANIMATE)

    def _home(self, clause: Clause, noun: int, thing: str) -> int:
        """The noun itself, or the one it belongs to: a man in a hat on a bench, a glass of wine on a table."""
        home = clause.homes.get(noun)
        while home is not None:
            worn = self.lemmas[noun] in lists.FEATURES | lists.BODY_PARTS and thing not in lists.GARMENT_FEATURES
            holder = self.lemmas[home] in lists.HOLDERS and clause.prepositions.get(noun) == "of"
            if not worn and not holder:
                return noun
            noun, home = home, clause.homes.get(home)
        return noun
