"""Links of a caption, indexed, and what follows from them about nouns: lists, quantities, idioms, places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from itrpipe.scene_graph import words as lists
from itrpipe.scene_graph.graph import Analysis
from itrpipe.scene_graph.tokenise import plain

WORD_QUANTITIES = lists.QUANTITY_NOUNS | lists.QUANTITY_PLURALS


class Syntax:
    """Typed links of one analysis.

    Attributes:
        tokens: of the caption.
        words: see `itrpipe.scene_graph.tokenise.plain`.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.tokens = analysis.tokens
        self.words = [plain(token.text) for token in analysis.tokens]
        self._dependents: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self._heads: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.pairs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for link in sorted(set(analysis.links), key=lambda link: (link.kind, link.head, link.dependent)):
            self._dependents[link.kind, link.head].append(link.dependent)
            self._heads[link.kind, link.dependent].append(link.head)
            self.pairs[link.kind].append((link.head, link.dependent))
        self._lists = self._joined()

    def dependents(self, kind: str, head: int) -> list[int]:
        """Tokens that a word governs by a kind of link, rising."""
        return self._dependents.get((kind, head), [])

    def heads(self, kind: str, dependent: int) -> list[int]:
        """Tokens that govern a word by a kind of link, rising."""
        return self._heads.get((kind, dependent), [])

    def joined(self, noun: int) -> list[int]:
        """All members of the list that a noun is in, rising; the noun alone where there is none."""
        return self._lists.get(noun, [noun])

    def lemma(self, words: Iterable[int]) -> str:
        """Lemmas of some tokens, in the order of the caption."""
        return " ".join(self.tokens[i].lemma for i in sorted(words))

    def content(self, noun: int) -> int:
        """The noun that a quantity counts (dogs in "a couple of dogs"), or the noun itself.

        Source: Schuster et al., 2015, section 4.1 (quantificational modifiers).
        """
        seen = {noun}
        while (counted := self._counted(noun)) is not None and counted not in seen:
            seen.add(counted)
            noun = counted
        return noun

    def _counted(self, noun: int) -> int | None:
        quantity = self.words[noun] in WORD_QUANTITIES | lists.QUANTITY_WORDS
        for of in self.dependents("OF", noun) if quantity else []:
            for counted in self.dependents("J", of):
                return counted
        return None

    def targets(self, preposition: int) -> list[tuple[tuple[int, ...], int]]:
        """Nouns after a preposition, with all words that amount to the preposition.

        "On the edge of a table" leads to the table by "on edge of"; see `is_location`.
        """
        words = (preposition, *self.dependents("IX", preposition))
        found: list[tuple[tuple[int, ...], int]] = []
        for noun in self.dependents("J", preposition):
            ofs = self.dependents("OF", noun) if self.is_location(noun) else []
            found += [((*words, noun, of), thing) for of in ofs for thing in self.dependents("J", of)] or [
                (words, noun)
            ]
        return found

    def is_location(self, noun: int) -> bool:
        """Whether a noun only says where at something: side in "on the side of X"."""
        if self.tokens[noun].lemma not in lists.LOCATIONS:
            return False
        after = any(self.dependents("J", of) for of in self.dependents("OF", noun))
        before = any(self.words[preposition] in lists.LOCATION_PREPOSITIONS for preposition in self.heads("J", noun))
        return after and before

    def _joined(self) -> dict[int, list[int]]:
        """Members of every list, lists that share a noun being one."""
        lists_of: dict[int, set[int]] = {}
        conjuncts: defaultdict[int, set[int]] = defaultdict(set)
        for kind in ("SJl", "SJr"):
            for conjunction, noun in self.pairs[kind]:
                conjuncts[conjunction].add(noun)
        for members in conjuncts.values():
            merged = set(members).union(*(lists_of[noun] for noun in members if noun in lists_of))
            for noun in merged:
                lists_of[noun] = merged
        return {noun: sorted(members) for noun, members in lists_of.items()}
