"""Tagged words as chunks: noun phrases with the links inside them, prepositions of several words, and single words."""

from __future__ import annotations

from dataclasses import dataclass

from itrpipe.scene_graph import words as lists
from itrpipe.scene_graph.graph import Link

LONGEST_IDIOM = max(map(len, lists.IDIOMS))
IDIOM_STARTS = frozenset(idiom[0] for idiom in lists.IDIOMS)
QUOTES = frozenset("\"'`\u201c\u201d\u2018\u00ab\u00bb")
RECIPROCALS = frozenset({("each", "other"), ("one", "another")})


@dataclass(frozen=True, slots=True)
class Chunk:
    """Neighbouring words that act as one.

    Attributes:
        kind: NP for a noun phrase, J for adjectives without a noun, otherwise the tag of the word; see
            `itrpipe.scene_graph.tagger.TAGS`.
        head: token number of the word that stands for the chunk.
        first, last: token numbers of its outermost words.
    """

    kind: str
    head: int
    first: int
    last: int


class Chunker:
    """Cuts one caption into chunks and keeps the links inside them.

    Attributes:
        words: lower case.
        tags: keys of `itrpipe.scene_graph.tagger.TAGS`.
        links: inside the chunks found so far.
    """

    def __init__(self, words: list[str], tags: list[str]) -> None:
        self.words = words
        self.tags = tags
        self.links: list[Link] = []

    def chunks(self) -> list[Chunk]:
        """All chunks from left to right; adverbs, auxiliaries and quotation marks belong to none."""
        found: list[Chunk] = []
        i = 0
        while i < len(self.words):
            chunk = self._idiom(i) or self._incorporated(i) or self._noun_phrase(i) or self._single(i)
            if chunk.kind not in {"R", "AUX"} and not self._is_quote(i):
                found.append(chunk)
            i = chunk.last + 1
        return found

    def _tag(self, i: int) -> str:
        return self.tags[i] if i < len(self.tags) else ""

    def _is_quote(self, i: int) -> bool:
        return self.tags[i] == "," and self.words[i] in QUOTES

    def _single(self, i: int) -> Chunk:
        last = i
        if self.tags[i] == "BE":
            while self._tag(last + 1) == "BE":
                last += 1
        return Chunk(self.tags[i], i, i, last)

    def _idiom(self, i: int) -> Chunk | None:
        if self.words[i] not in IDIOM_STARTS:
            return None
        for length in range(min(LONGEST_IDIOM, len(self.words) - i), 1, -1):
            if tuple(self.words[i : i + length]) in lists.IDIOMS:
                rest = [j for j in range(i + 1, i + length) if self.words[j] not in lists.ARTICLES]
                self.links.extend(Link("IX", i, j) for j in rest)
                return Chunk("P", i, i, i + length - 1)
        return None

    def _incorporated(self, i: int) -> Chunk | None:
        if not self._is_incorporated(i):
            return None
        self.links.append(Link("K", i + 1, i))
        return Chunk("VBG", i + 1, i, i + 1)

    def _is_incorporated(self, i: int) -> bool:
        return (
            self._tag(i + 1) == "VBG" and self._tag(i + 2) != "N" and tuple(self.words[i : i + 2]) in lists.INCORPORATED
        )

    def _reciprocal(self, i: int) -> Chunk | None:
        return Chunk("NP", i + 1, i, i + 1) if tuple(self.words[i : i + 2]) in RECIPROCALS else None

    def _noun_phrase(self, i: int) -> Chunk | None:
        """The noun phrase that starts at a word, with its owners before it."""
        pronoun = Chunk("NP", i, i, i) if self.tags[i] == "PRP" else None
        phrase = self._reciprocal(i) or pronoun or self._simple_phrase(i)
        while phrase and phrase.kind == "NP" and self._tag(phrase.last + 1) == "POS":
            mark = phrase.last + 1
            thing = self._simple_phrase(mark + 1) if mark + 1 < len(self.words) else None
            if thing is None or thing.kind != "NP":
                return Chunk("NP", phrase.head, phrase.first, mark)
            self.links += (Link("YS", mark, phrase.head), Link("D", thing.head, mark))
            phrase = Chunk("NP", thing.head, phrase.first, thing.last)
        return phrase

    def _simple_phrase(self, i: int) -> Chunk | None:
        members = self._members(i)
        if not members:
            return None
        head = self._head(members)
        last = head if self.tags[head] == "N" and self.tags[members[-1]] != "CD" else members[-1]
        members = [j for j in members if j <= last]
        if self.tags[head] == "R":
            return None
        if self.tags[head] == "J" and self.tags[members[0]] in {"J", "R"}:
            return Chunk("J", head, i, last)
        self.links.extend(Link(kind, head, j) for j in members if j != head and (kind := INSIDE.get(self.tags[j], "")))
        return Chunk("NP", head, i, last)

    def _members(self, i: int) -> list[int]:
        members: list[int] = []
        seen_noun = False
        while i < len(self.words):
            step = self._continues(i, members, seen_noun)
            if not step:
                break
            if step == 1:
                members.append(i)
                seen_noun = seen_noun or self.tags[i] == "N"
            i += 1
        return members

    def _continues(self, i: int, members: list[int], seen_noun: bool) -> int:
        """1 where the phrase goes on with this word, 2 where it goes on and the word itself does not count, 0 else."""
        tag, following = self.tags[i], self._tag(i + 1)
        if tag == "N":
            return int(not self._is_incorporated(i))
        if tag == "CD" and members and self.words[i].isdecimal():
            return int(following != "N")
        if tag in {"D", "CD"}:
            fresh = all(self.tags[j] in {"D", "CD"} for j in members) if tag == "D" else not seen_noun
            return int(fresh)
        if tag == "VBG":
            return int(following == "N" and tuple(self.words[i - 1 : i + 1]) in lists.INCORPORATED and bool(members))
        if tag == "J":
            return int(not seen_noun or (following == "N" and self.words[i] not in lists.COLOURS))
        if tag == "R":
            return int(not seen_noun and following == "J")
        if self._is_quote(i):
            return 2 if members else 0
        if tag in {"CC", ","} and members and self.tags[members[-1]] == "J":
            return 2 if self._joins_adjectives(i) else 0
        return 0

    def _joins_adjectives(self, i: int) -> bool:
        """Whether adjectives go on after a comma or conjunction and end in a noun: a black, white and brown dog."""
        j = i + 1
        while self._tag(j) in {"CC", ",", "R"} and j < i + 3:
            j += 1
        if self._tag(j) != "J":
            return False
        while self._tag(j) in {"J", "CC", ","}:
            j += 1
        return self._tag(j) == "N" and self._tag(j - 1) == "J"

    def _head(self, members: list[int]) -> int:
        nouns = [j for j in members if self.tags[j] == "N"]
        return nouns[-1] if nouns else members[-1]


INSIDE = {"N": "AN", "J": "A", "CD": "Dmcn", "D": "D", "VBG": "A"}
"""Link from the noun to a word of its phrase, by the word's tag."""
