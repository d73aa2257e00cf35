"""Sentences that rules make of captions: another noun, another number, another relation.

    nouns       `a dog on a mat`   ->  `a horse on a mat`
    numerals    `two dogs`         ->  `three dogs`, `a dog`
    relations   `a dog on a mat`   ->  `a mat on a dog`, `a dog under a mat`

Source: Shi et al., "Learning Visually-Grounded Semantics from Contrastive Adversarial Samples" (VSE-C), COLING 2018.
Words keep their number and articles fit what follows them, which its code does not see to.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from itrpipe.errors import UsageError
from itrpipe.scene_graph.chunks import Chunk, Chunker
from itrpipe.scene_graph.graph import Token
from itrpipe.scene_graph.tokenise import plain
from itrpipe.synthesis.edits import Edit
from itrpipe.synthesis.english import ARTICLES, NUMBER_VALUES, article_before, like, number_value, plural, singular
from itrpipe.synthesis.nouns import KINDS, contradict
from itrpipe.synthesis.prepositions import contradicting

RULES = ("nouns", "numerals", "relations")
_LETTERS = re.compile(r"[a-z]+")
_JOINED_BY = frozenset({"with", "and", "or", "&", ","})
_BEFORE_NOUNS = frozenset({"J", "VBG", "VBN", "R", "CC"})


@dataclass(frozen=True)
class TaggedCaption:
    """A caption with its words and their parts of speech.

    Attributes:
        text: as published.
        tokens: as `itrpipe.scene_graph.rules.RulesParser` tags them.
    """

    text: str
    tokens: tuple[Token, ...]

    @cached_property
    def words(self) -> list[str]:
        """Lower case."""
        return [plain(token.text) for token in self.tokens]

    @cached_property
    def tags(self) -> list[str]:
        """Keys of `itrpipe.scene_graph.tagger.TAGS`."""
        return [token.tag for token in self.tokens]

    @cached_property
    def chunks(self) -> list[Chunk]:
        """Noun phrases, prepositions and other words, from left to right."""
        return Chunker(self.words, self.tags).chunks()

    def nouns(self) -> Iterable[int]:
        """Numbers of the heads of noun phrases that are written in plain letters."""
        for chunk in self.chunks:
            plain_words = all(map(_LETTERS.fullmatch, self.words[chunk.first : chunk.last + 1]))
            if chunk.kind == "NP" and self.tags[chunk.last] == "N" and plain_words:
                yield chunk.last

    def edit(self, first: int, last: int, new: str) -> Edit:
        """Writes something instead of the words from `first` to `last`."""
        old = self.text[self.tokens[first].start : self.tokens[last].end]
        return Edit(first, old, like(old, new))

    def with_article(self, position: int, new: str) -> list[Edit]:
        """Writes another word, and the article right before it so that it fits."""
        edits = [self.edit(position, position, new)]
        before = position - 1
        if before >= 0 and self.words[before] in ARTICLES and article_before(new) != self.words[before]:
            edits.insert(0, self.edit(before, before, article_before(new)))
        return edits


@dataclass(frozen=True)
class Slot:
    """A place of a caption at which one of several things can be written.

    Attributes:
        options: these things.
        edits: what changes with one of them.
    """

    options: Sequence[str]
    edits: Callable[[str], list[Edit]]


class NounVocabulary:
    """The nouns that captions are given instead of their own: frequent ones that name things.

    Args:
        captions: that are counted; singular and plural of a noun count together.
        min_count: fewest occurrences of a noun.

    Raises:
        UsageError: no noun is frequent enough.
    """

    def __init__(self, captions: Iterable[TaggedCaption], min_count: int) -> None:
        counts = Counter(
            noun_of(token) for caption in captions for token in caption.tokens if token.tag == "N" and _is_plain(token)
        )
        frequent = sorted(noun for noun, count in counts.items() if count >= min_count and noun in KINDS)
        if not frequent:
            raise UsageError(f"none of {len(counts):,} nouns occurs {min_count} times and is known; lower min_count")
        self.nouns = tuple(frequent)
        self._instead: dict[str, tuple[str, ...]] = {}

    def instead_of(self, noun: str) -> tuple[str, ...]:
        """The nouns that contradict a noun (lower-case lemma); none for one that is not known."""
        if noun not in self._instead:
            known = noun in KINDS
            self._instead[noun] = tuple(other for other in self.nouns if known and contradict(noun, other))
        return self._instead[noun]


def noun_slots(caption: TaggedCaption, own_words: Collection[str], vocabulary: NounVocabulary) -> list[Slot]:
    """Another noun for the head of a noun phrase.

    Args:
        caption: is changed.
        own_words: lower-case words and lemmas of all captions of the image, which are not written.
        vocabulary: the nouns that are.
    """
    slots = []
    for position in caption.nouns():
        lemma = noun_of(caption.tokens[position])
        several = caption.words[position] != lemma
        options = [
            form
            for noun in vocabulary.instead_of(lemma)
            if noun not in own_words and (form := plural(noun) if several else noun) not in own_words
        ]
        slots.append(Slot(options, lambda new, at=position: caption.with_article(at, new)))
    return slots


def numeral_slots(caption: TaggedCaption) -> list[Slot]:
    """Another number before a noun, which takes the form that the number asks for."""
    slots = []
    for position, word in enumerate(caption.words):
        value = number_value(word)
        noun = _counted_noun(caption, position) if value is not None else None
        if value is None or noun is None:
            continue
        after = caption.words[position + 1]
        ones = {"one", article_before(after)}
        options = [new for new, other in NUMBER_VALUES.items() if other != value and (other > 1 or new in ones)]
        slots.append(Slot(options, lambda new, at=position, of=noun, old=value: _recount(caption, at, of, old, new)))
    return slots


def relation_slots(caption: TaggedCaption) -> list[Slot]:
    """Another preposition before a noun phrase, or two noun phrases in each other's place."""
    chunks, slots = caption.chunks, []
    for chunk, following in itertools.pairwise(chunks):
        if chunk.kind == "P" and following.kind == "NP":
            written = " ".join(caption.words[chunk.first : chunk.last + 1])
            options = contradicting(written)
            slots.append(Slot(options, lambda new, at=chunk: [caption.edit(at.first, at.last, new)]))
    return slots + _swaps(caption)


def draw_sentences(slots: Sequence[Slot], most: int, rng: np.random.Generator) -> list[list[Edit]]:
    """Edits of some sentences in random order, one slot changed in each; all that the slots allow if they are few.

    Args:
        slots: of one caption.
        most: how many at most.
        rng: source of randomness.
    """
    ends = np.cumsum([len(slot.options) for slot in slots], dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    drawn = rng.choice(total, size=min(most, total), replace=False) if total else np.zeros(0, dtype=np.int64)
    found = []
    for number in drawn.tolist():
        place = int(np.searchsorted(ends, number, side="right"))
        slot = slots[place]
        found.append(slot.edits(slot.options[number - int(ends[place]) + len(slot.options)]))
    return found


def noun_of(token: Token) -> str:
    """Lemma of a noun; that of `people` is `person`, but `glasses` may well be worn."""
    return singular(token.lemma) if token.lemma == "people" else token.lemma


def _is_plain(token: Token) -> bool:
    return bool(_LETTERS.fullmatch(plain(token.text))) and bool(_LETTERS.fullmatch(token.lemma))


def _counted_noun(caption: TaggedCaption, position: int) -> int | None:
    """The last noun of the run that a number counts; None where it is part of a longer number or counts none."""
    tags = caption.tags
    at = position + 1
    if (position and tags[position - 1] == "CD") or (at < len(tags) and tags[at] == "CD"):
        return None
    while at < len(tags) and tags[at] in _BEFORE_NOUNS:
        at += 1
    end = at
    while end < len(tags) and tags[end] == "N":
        end += 1
    return end - 1 if end > at else None


def _recount(caption: TaggedCaption, position: int, noun: int, old: int, new: str) -> list[Edit]:
    lemma, written = singular(caption.tokens[noun].lemma), caption.words[noun]
    form = lemma if NUMBER_VALUES[new] == 1 else plural(lemma) if old == 1 else written
    edits = [caption.edit(position, position, new)]
    return edits if form == written else [*edits, caption.edit(noun, noun, form)]


def _swaps(caption: TaggedCaption) -> list[Slot]:
    """Exchanges of two noun phrases that are not joined, as in `a dog and a cat`."""
    chunks = caption.chunks
    groups, found = {}, []
    for number, chunk in enumerate(chunks):
        if chunk.kind == "NP":
            before = _joined_to(caption, chunks, number)
            groups[number] = groups[before] if before is not None else number
            found.append(number)
    slots = []
    for place, first in enumerate(found):
        for second in found[place + 1 :]:
            phrases = [_phrase(caption, chunks[number]) for number in (first, second)]
            if groups[first] != groups[second] and phrases[0].lower() != phrases[1].lower():
                slots.append(_swap(caption, chunks[first], chunks[second]))
    return slots


def _joined_to(caption: TaggedCaption, chunks: Sequence[Chunk], number: int) -> int | None:
    """The noun phrase that stands right before one, or before the words that join the two."""
    before = number - 1
    while before >= 0 and " ".join(caption.words[chunks[before].first : chunks[before].last + 1]) in _JOINED_BY:
        before -= 1
    return before if before >= 0 and chunks[before].kind == "NP" else None


def _phrase(caption: TaggedCaption, chunk: Chunk) -> str:
    return caption.text[caption.tokens[chunk.first].start : caption.tokens[chunk.last].end]


def _swap(caption: TaggedCaption, first: Chunk, second: Chunk) -> Slot:
    one, other = _phrase(caption, first), _phrase(caption, second)
    lowered = one[:1].lower() + one[1:] if caption.tags[first.first] in {"D", "CD", "J"} else one
    edits = [caption.edit(first.first, first.last, other), Edit(second.first, other, lowered)]
    return Slot(("swap",), lambda _: edits)
