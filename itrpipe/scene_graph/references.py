"""What pronouns stand for."""

from __future__ import annotations

from itrpipe.scene_graph import words as lists
from itrpipe.scene_graph.syntax import Syntax

MASCULINE = frozenset({"he", "him", "his"})
FEMININE = frozenset({"she", "her", "hers"})
NEUTER = frozenset({"it", "its"})
PLURAL = frozenset({"they", "them", "their", "theirs"})
REFERRING = MASCULINE | FEMININE | NEUTER | PLURAL | {"whose", "one"}
COLLECTIVES = lists.COLLECTIVES | {"couple", "people", "police", "audience", "duo", "trio"}


class References:
    """Antecedents of the pronouns of one caption.

    The search of Schuster et al., 2015, section 4.2 (after Hobbs, 1978) comes down, in sentences as plain as captions,
    to the first noun that agrees, the subject of the clause before the others.

    Args:
        syntax: links of the caption.
        nouns: tokens that a pronoun may stand for, rising.
    """

    def __init__(self, syntax: Syntax, nouns: list[int]) -> None:
        self.syntax = syntax
        self.nouns = nouns

    def owner(self, pronoun: int, thing: int, subjects: list[int]) -> int | None:
        """Whom a possessive pronoun means.

        Args:
            pronoun: his, her, its, their or whose.
            thing: what is owned.
            subjects: nouns that do something to the thing, preferred where they agree.
        """
        word = self.syntax.words[pronoun]
        if word not in REFERRING:
            return None
        before = [noun for noun in self.nouns if noun < pronoun and noun != thing]
        if word == "whose":
            return before[-1] if before else None
        siblings = [noun for noun in self.syntax.joined(thing) if noun < pronoun]
        for candidates in (siblings, [noun for noun in subjects if noun < pronoun], before):
            meant = self._choose(word, [noun for noun in candidates if noun != thing])
            if meant is not None:
                return meant
        return None

    def antecedent(self, pronoun: int, excluded: list[int], nearest: bool = False) -> int | None:
        """The noun that a personal pronoun stands for; for "one", the nearest plural.

        Args:
            pronoun: he, him, she, her, it, they, them, one.
            excluded: nouns it cannot mean, such as the subject of its own verb.
            nearest: look from right to left, as after a noun and its preposition: a shirt with a number on it.
        """
        word = self.syntax.words[pronoun]
        if word not in REFERRING:
            return None
        before = [noun for noun in self.nouns if noun < pronoun and noun not in excluded]
        if word == "one":
            return next((noun for noun in reversed(before) if self._is_plural(noun)), None)
        return self._choose(word, before[::-1] if nearest else before)

    def _choose(self, pronoun: str, nouns: list[int]) -> int | None:
        """First of the most fitting nouns that agree: people before animals before things, for "they" plurals first."""
        agreeing = [noun for noun in nouns if self._agrees(pronoun, noun)]
        return min(agreeing, key=lambda noun: self._distance(pronoun, noun), default=None)

    def _distance(self, pronoun: str, noun: int) -> tuple[bool, int]:
        """How badly a pronoun fits a noun that it agrees with."""
        lemma = self.syntax.tokens[noun].lemma
        if pronoun in NEUTER:
            return False, 0
        if pronoun in PLURAL:
            return not self._is_plural(noun), 0 if lemma in lists.ANIMATE else 1
        return False, 0 if lemma in lists.PERSONS else 1 if lemma in lists.ANIMATE else 2

    def _is_plural(self, noun: int) -> bool:
        word, token = self.syntax.words[noun], self.syntax.tokens[noun]
        return word != token.lemma or token.lemma in COLLECTIVES or len(self.syntax.joined(noun)) > 1

    def _agrees(self, pronoun: str, noun: int) -> bool:
        word = self.syntax.tokens[noun].lemma
        if pronoun in PLURAL:
            return self._is_plural(noun) or word in lists.PERSONS
        if self._is_plural(noun) and len(self.syntax.joined(noun)) == 1:
            return False
        if pronoun in MASCULINE:
            return word not in lists.FEMALES and (word in lists.ANIMATE or not self._has_animate())
        if pronoun in FEMININE:
            return word not in lists.MALES and (word in lists.ANIMATE or not self._has_animate())
        return word not in lists.PERSONS

    def _has_animate(self) -> bool:
        return any(self.syntax.tokens[noun].lemma in lists.ANIMATE for noun in self.nouns)
