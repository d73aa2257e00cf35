"""Tagged words as chunks: noun phrases with the links inside them, prepositions of several words, and single words."""

from __future__ import annotations

from typing import NamedTuple

from itrpipe.scene_graph.graph import Link
from itrpipe.scene_graph.tag import TaggedWords
from itrpipe.scene_graph.words import lists

LONGEST_IDIOM = max(map(len, lists.IDIOMS))
INSIDE = {"N": "AN", "J": "A", "CD": "Dmcn", "D": "D", "VBG": "A"}
"""Link from the noun to a word of its phrase, by the word's tag."""
CLAUSE_BORDERS = frozenset({"SUB", "WH", ".", "EX", "V", "BE"})
"""Kinds of chunks that begin a clause or are its finite verb."""


class Chunk(NamedTuple):
    """Neighbouring words that act as one.

    Attributes:
        kind: NP for a noun phrase, J for adjectives without a noun, otherwise the tag of the word.
        head: token number of the word that stands for the chunk.
        first, last: token numbers of its outermost words.
    """

    kind: str
    head: int
    first: int
    last: int


class Chunker:
    """Cuts one tagged caption into chunks.

    Attributes:
        links: inside the chunks found so far.
    """

    def __init__(self, sentence: TaggedWords) -> None:
        self.size = sentence.size
        self.words = sentence.words
        self.tags = sentence.tags
        self.links: list[Link] = []

    def chunks(self) -> list[Chunk]:
        """Return all chunks from left to right; adverbs, auxiliaries and quotation marks belong to none."""
        chunks: list[Chunk] = []
        i = 0
        while i < self.size:
            chunk = self._expression(i) or self._noun_phrase(i)
            if chunk is None:
                last = i
                while self.tags[i] == self.tags[last + 1] == "BE":
                    last += 1
                chunk = Chunk(self.tags[i], i, i, last)
            if chunk.kind not in {"R", "AUX"} and not self._is_quote(i):
                chunks.append(chunk)
            i = chunk.last + 1
        return chunks

    def _expression(self, i: int) -> Chunk | None:
        """Return the preposition or the action of several words that starts at a word."""
        for last in range(i + LONGEST_IDIOM - 1, i, -1):
            if tuple(self.words[i : last + 1]) in lists.IDIOMS:
                for j in range(i + 1, last + 1):
                    if self.words[j] not in lists.ARTICLES:
                        self.links.append(Link("IX", i, j))
                return Chunk("P", i, i, last)
        if not self._is_incorporated(i):
            return None
        self.links.append(Link("K", i + 1, i))
        return Chunk("VBG", i + 1, i, i + 1)

    def _is_incorporated(self, i: int) -> bool:
        if self.tags[i + 1] != "VBG" or self.tags[i + 2] == "N":
            return False
        return tuple(self.words[i : i + 2]) in lists.INCORPORATED

    def _is_quote(self, i: int) -> bool:
        return self.tags[i] == "," and self.words[i] in lists.QUOTES

    def _noun_phrase(self, i: int) -> Chunk | None:
        """Return the noun phrase that starts at a word, with its owners before it."""
        if tuple(self.words[i : i + 2]) in lists.RECIPROCALS:
            phrase = Chunk("NP", i + 1, i, i + 1)
        elif self.tags[i] == "PRP":
            phrase = Chunk("NP", i, i, i)
        else:
            phrase = self._simple_phrase(i)
        while phrase and phrase.kind == "NP" and self.tags[phrase.last + 1] == "POS":
            mark = phrase.last + 1
            thing = self._simple_phrase(mark + 1)
            if thing is None or thing.kind != "NP":
                return Chunk("NP", phrase.head, phrase.first, mark)
            self.links.append(Link("YS", mark, phrase.head))
            self.links.append(Link("D", thing.head, mark))
            phrase = Chunk("NP", thing.head, phrase.first, thing.last)
        return phrase

    def _simple_phrase(self, i: int) -> Chunk | None:
        """Return the chunk of determiner, numbers, adjectives and nouns from a word on; J where there is no noun."""
        members: list[int] = []
        tags: list[str] = []
        for j in range(i, self.size):
            if not self._continues(j, tags):
                break
            if self.tags[j] not in {"CC", ","}:
                members.append(j)
                tags.append(self.tags[j])
        if not members:
            return None
        last = members[-1]
        head = last
        if "N" in tags:
            while self.tags[head] != "N":
                head -= 1
            if tags[-1] != "CD":
                last = head
        elif tags[-1] == "R":
            return None
        elif tags[-1] == "J" and tags[0] in {"J", "R"}:
            return Chunk("J", head, i, last)
        for j, tag in zip(members, tags, strict=True):
            if j <= last and j != head and tag in INSIDE:
                self.links.append(Link(INSIDE[tag], head, j))
        return Chunk("NP", head, i, last)

    def _continues(self, i: int, seen: list[str]) -> bool:
        """Return whether a phrase of words with these tags goes on with a word."""
        following = self.tags[i + 1]
        match self.tags[i]:
            case "N":
                return not self._is_incorporated(i)
            case "CD":
                if seen and self.words[i].isdecimal():
                    return following != "N"
                return "N" not in seen
            case "D":
                return set(seen) <= {"D", "CD"}
            case "VBG" if seen and following == "N":
                return tuple(self.words[i - 1 : i + 1]) in lists.INCORPORATED
            case "J":
                if "N" not in seen:
                    return True
                return following == "N" and self.words[i] not in lists.COLOURS
            case "R":
                return "N" not in seen and following == "J"
            case "CC" | "," if seen:
                if self._is_quote(i):
                    return True
                # Adjectives may go on after it, up to a noun: a black and brown dog.
                j = i + 1
                while self.tags[j] in {"CC", ",", "R"} and j < i + 3:
                    j += 1
                if seen[-1] != "J" or self.tags[j] != "J":
                    return False
                while self.tags[j] in {"J", "CC", ","}:
                    j += 1
                return self.tags[j] == "N" and self.tags[j - 1] == "J"
        return False


class Lists:
    """Noun phrases of a caption that follow each other, joined by commas and a conjunction: a cup, a pot and a pan.

    Args:
        lemmas: of the words.
        chunks: of the caption.

    Attributes:
        kinds: of the chunks, with empty ones behind the last.
        place: of each chunk that is a member of a list, other than the first: token number of the conjunction, and of
            the head of the first member.
        heads: of each noun in a list: all heads of that list.
    """

    def __init__(self, lemmas: list[str], chunks: list[Chunk]) -> None:
        self.lemmas = lemmas
        self.chunks = chunks
        self.kinds = [chunk.kind for chunk in chunks]
        self.kinds += ["", "", ""]
        self.place: dict[int, tuple[int, int]] = {}
        self.heads: dict[int, list[int]] = {}
        for conjunction, chunk in enumerate(chunks):
            if chunk.kind != "CC":
                continue
            if self.clause_follows(conjunction + 1):
                borders = [kind for kind in self.kinds[:conjunction] if kind in CLAUSE_BORDERS]
                if borders and borders[-1] in {"V", "BE"}:
                    continue  # the verb that follows is not the one that the clause before waits for
            right = conjunction + 1
            left = conjunction - 1
            if self.kinds[left] == ",":
                left -= 1
            if not self._can_join(left, right):
                continue
            members = [left, right]
            while self.kinds[left - 1] == "," and self._can_join(left - 2, left):
                left -= 2
                members.insert(0, left)
            heads = [chunks[member].head for member in members]
            for head in heads:
                self.heads[head] = heads
            for member in members[1:]:
                self.place[member] = (chunk.head, heads[0])

    def is_new(self, left: int, right: int) -> bool:
        """Return whether one phrase is somebody's part of the body and the other one nothing that bodies have."""
        part = self.chunks[left]
        if self.lemmas[part.first] not in lists.POSSESSIVE_PRONOUNS:
            return False
        if self.lemmas[part.head] not in lists.BODY_PARTS:
            return False
        thing = self.lemmas[self.chunks[right].head]
        return thing not in lists.BODY_PARTS | lists.FEATURES

    def clause_follows(self, index: int) -> bool:
        """Return whether a noun phrase, with the prepositions after it, is the subject of a finite verb."""
        index += 1
        while self.kinds[index] == "P" and self.kinds[index + 1] in {"NP", "J"}:
            index += 2
        return self.kinds[index] in {"V", "BE"}

    def _can_join(self, left: int, right: int) -> bool:
        """Return whether two chunks are noun phrases that a list may hold.

        A person does not join a thing while another person stands further left, nor does a new thing join a part of the
        body: a dog with a stick in its mouth and a puppy.
        """
        if self.kinds[left] != "NP" or self.kinds[right] != "NP":
            return False
        lemmas = [self.lemmas[chunk.head] for chunk in self.chunks]
        if lemmas[right] not in lists.ANIMATE:
            return not self.is_new(left, right)
        if lemmas[left] in lists.ANIMATE:
            return True
        return lists.ANIMATE.isdisjoint(lemmas[:left])
