"""Lists of noun phrases: a laptop, a mug and a pair of glasses."""

from __future__ import annotations

from itrpipe.scene_graph import words as lists
from itrpipe.scene_graph.chunks import Chunk

CLAUSE_BORDERS = frozenset({"SUB", "WH", ".", "EX"})


class Lists:
    """Noun phrases of a caption that follow each other, joined by commas and a conjunction."""

    def __init__(self, lemmas: list[str], chunks: list[Chunk]) -> None:
        self.lemmas = lemmas
        self.chunks = chunks
        self._member_of: dict[int, tuple[int, int]] = {}
        self._heads: dict[int, list[int]] = {}
        for index, chunk in enumerate(chunks):
            if chunk.kind == "CC":
                self._find(index)

    def joins(self, index: int) -> bool:
        """Whether a chunk is a member of a list, other than its first."""
        return index in self._member_of

    def place(self, index: int) -> tuple[int, int]:
        """Token number of the conjunction of a member's list, and of the head of the first member."""
        return self._member_of[index]

    def members(self, head: int) -> list[int]:
        """Heads of the list that a noun is in; the noun alone where there is none."""
        return self._heads.get(head, [head])

    def is_new(self, left: int, right: int) -> bool:
        """Whether one phrase is somebody's part of the body and the other one nothing that bodies have."""
        part, thing = self.chunks[left], self.chunks[right]
        owned = self.lemmas[part.first] in lists.POSSESSIVE_PRONOUNS and self.lemmas[part.head] in lists.BODY_PARTS
        return owned and self.lemmas[thing.head] not in lists.BODY_PARTS | lists.FEATURES

    def clause_follows(self, index: int) -> bool:
        """Whether a noun phrase, with the prepositions after it, is the subject of a finite verb."""
        index += 1
        while self._kind(index) == "P" and self._kind(index + 1) in {"NP", "J"}:
            index += 2
        return self._kind(index) in {"V", "BE"}

    def _kind(self, index: int) -> str:
        return self.chunks[index].kind if 0 <= index < len(self.chunks) else ""

    def _find(self, conjunction: int) -> None:
        right = conjunction + 1
        left = conjunction - 1 - (self._kind(conjunction - 1) == ",")
        if self._kind(right) != "NP" or self._kind(left) != "NP" or self._opens_clause(conjunction):
            return
        if not self._alike(left, right):
            return
        members = [left, right]
        while self._kind(left - 1) == "," and self._kind(left - 2) == "NP" and self._alike(left - 2, left):
            left -= 2
            members.insert(0, left)
        first = self.chunks[members[0]].head
        heads = [self.chunks[member].head for member in members]
        self._heads.update(dict.fromkeys(heads, heads))
        for member in members[1:]:
            self._member_of[member] = (self.chunks[conjunction].head, first)

    def _opens_clause(self, conjunction: int) -> bool:
        if not self.clause_follows(conjunction + 1):
            return False
        for index in range(conjunction - 1, -1, -1):
            if self._kind(index) in CLAUSE_BORDERS:
                return False
            if self._kind(index) in {"V", "BE"}:
                return True
        return False

    def _alike(self, left: int, right: int) -> bool:
        """Whether a list may hold both.

        A person does not join a thing while another person stands further left, nor does a new thing join a part of the
        body: a dog with a stick in its mouth and a puppy.
        """
        if self.lemmas[self.chunks[right].head] not in lists.ANIMATE:
            return not self.is_new(left, right)
        if self.lemmas[self.chunks[left].head] in lists.ANIMATE:
            return True
        return not any(self.lemmas[chunk.head] in lists.ANIMATE for chunk in self.chunks[:left])
