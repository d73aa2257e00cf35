"""Sentences of whole training sets by rules: edits of one detail of a caption; no model is needed.

    attribute   `a red cup`                   ->  `a blue cup`
    exchange    `a red cup on a blue table`   ->  `a blue cup on a red table`
    object      `a red cup`                   ->  `a red bowl`
    ends        `a dog chases a cat`          ->  `a cat chases a dog`
    relation    `a cup on a table`            ->  `a cup under a table`
    side        `a dog left of a cat`         ->  `a dog right of a cat`
    count       `two dogs`                    ->  `three dogs`

A scene graph says statements: an attribute of a noun, a relation between two nouns, a number of a noun. A caption is
edited only where all its new statements are among those of the training captions, so that it is no nonsense that is
told without the image, and where no caption of its own image makes one of them.

The rules of VSE-C write another noun, number or relation without that:

    nouns       `a dog on a mat`   ->  `a horse on a mat`
    numerals    `two dogs`         ->  `three dogs`, `a dog`
    relations   `a dog on a mat`   ->  `a mat on a dog`, `a dog under a mat`

Words keep their number and articles fit what follows them, which its code does not see to.

Source: ours; Hsieh et al., "SugarCrepe" (NeurIPS 2023), for the kinds; Shi et al., "Learning Visually-Grounded
Semantics from Contrastive Adversarial Samples" (VSE-C), COLING 2018.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property, partial
from itertools import combinations
from typing import Any

from itrpipe.errors import UsageError
from itrpipe.scene_graph.chunks import Chunk
from itrpipe.scene_graph.words import plain
from itrpipe.synthesis import english
from itrpipe.synthesis.english import (
    NOUN_KINDS,
    NUMBER_VALUES,
    OPPOSITES,
    POSSESSIVE,
    SYMMETRIC,
    WRITTEN,
    article_before,
    contradicting_attributes,
    may_be,
    plural,
    singular,
    usual_attribute,
)
from itrpipe.synthesis.sentences import Edit
from itrpipe.synthesis.tagged import NOUN, Image, Option, Statement, TaggedCaption, noun_of, nouns_of

_COUNTS = [word for word, value in NUMBER_VALUES.items() if word.isalpha() and 2 <= value <= 5]
_SIDES = {"left": "right", "right": "left"}
_NOT_OF_PLACE = frozenset(
    {"amount", "angle", "answer", "choice", "color", "colour", "decision", "direction", "equipment", "fit", "height"}
    | {"idea", "kind", "length", "moment", "mood", "number", "order", "people", "person", "place", "position", "size"}
    | {"sort", "spot", "thing", "time", "tool", "type", "way", "weather", "word"}
)
"""Nouns before which "right" means "correct"."""


class Corpus:
    """What training captions say.

    Args:
        captions: all of them.
        min_count: fewest occurrences of what is written.

    """

    def __init__(self, captions: Sequence[TaggedCaption], min_count: int) -> None:
        self._captions, self._min_count = captions, min_count

    @cached_property
    def said(self) -> set[Statement]:
        """Statements that occur so often."""
        counts = Counter(each for caption in self._captions for each in caption.sure)
        return {each for each, count in counts.items() if count >= self._min_count}

    @cached_property
    def vocabulary(self) -> NounVocabulary:
        """The nouns of VSE-C."""
        return NounVocabulary(self._captions, self._min_count)

    @cached_property
    def siblings(self) -> dict[str, list[str]]:
        """Noun -> those that are easily mistaken for it, by alphabet."""
        found = {noun for each in self.said for noun in nouns_of(each)}
        known = sorted(found & english.NOUN_KINDS.keys())
        return {noun: [other for other in known if english.are_siblings(noun, other)] for noun in known}

    def allows(self, image: Image, *new: Statement) -> bool:
        """Whether training captions make these statements, and none of an image makes one."""
        return all(each in self.said and each not in image.said for each in new)


def attribute_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Another attribute of its class."""
    for each in caption.attributes:
        at, noun = each.tokens[0], caption.nouns[each.object]
        others = contradicting_attributes(caption.words[at])
        for other in others if others and image.has_one(*caption.beside(each.object)) else ():
            new = "is", usual_attribute(other), noun
            if corpus.allows(image, new):
                old = "is", usual_attribute(caption.words[at]), noun
                head = caption.objects[each.object].head
                details = partial(_named, caption, [(head, caption.words[at])], [(head, other)])
                yield Option(partial(caption.replaced, {at: other}), [new], [old], details)


def exchanges(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Two things of different kinds take each other's attributes of a class."""
    for one, two in combinations(caption.attributes, 2):
        (at, there), nouns = (one.tokens[0], two.tokens[0]), [caption.nouns[each.object] for each in (one, two)]
        first, second = caption.words[at], caption.words[there]
        new, old = (
            [("is", usual_attribute(word), noun) for word, noun in zip(words, nouns, strict=True)]
            for words in ((second, first), (first, second))
        )
        if (
            second in contradicting_attributes(first)
            and corpus.allows(image, *new)
            and image.has_one(*caption.beside(one.object), *caption.beside(two.object))
        ):
            here, elsewhere = (caption.objects[each.object].head for each in (one, two))
            said, edited = ([(here, words[0]), (elsewhere, words[1])] for words in ((first, second), (second, first)))
            details = partial(_named, caption, said, edited)
            yield Option(partial(caption.replaced, {at: second, there: first}), new, old, details)


def object_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """A noun that is easily mistaken for another, of which captions say all that is said here of that one."""
    for each, noun in zip(caption.objects, caption.nouns, strict=True):
        said = [one for one in caption.said if noun in one]
        others = corpus.siblings.get(noun, ()) if said and caption.nouns.count(noun) == 1 else ()
        several = caption.words[each.head] != noun
        for other in others:
            new = [tuple(other if word == noun else word for word in one) for one in said]
            if corpus.allows(image, *new) and not any(may_be(other, known) for known in image.nouns):
                word = english.plural(other) if several else other
                names = [(NOUN, other)], [*said, (NOUN, noun)]
                details = partial(_related, (caption.words[each.head],), (word,))
                yield Option(partial(caption.replaced, {each.head: word}), *names, details)


def end_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Subject and object of a relation change places, one thing each."""
    for each in caption.near:
        subject, obj = nouns = caption.nouns[each.subject], caption.nouns[each.object]
        new = "relation", obj, each.lemma, subject
        symmetric = each.lemma.rpartition(" ")[2] in SYMMETRIC or not _SIDES.keys().isdisjoint(caption.words)
        if symmetric or not corpus.allows(image, new):
            continue
        heads = sorted(caption.objects[side].head for side in (each.subject, each.object))
        one, two = map(caption.phrase_of, heads)
        owned = any(caption.words[chunk.first] in POSSESSIVE for chunk in (one, two))
        if not owned and image.has_one(*nouns) and one.last < each.tokens[0] <= each.tokens[-1] < two.first:
            said = caption.written(each.tokens[0], each.tokens[-1])
            one_, two_ = map(caption.named, heads)
            details = partial(_related, (one_, said, two_), (two_, said, one_))
            yield Option(partial(caption.swapped, one, two), [new], [caption.related(each)], details)


def relation_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """The opposite of a preposition."""
    for each in caption.near:
        words = next((words for words in OPPOSITES if f" {each.lemma}".endswith(f" {words}")), "")
        chunk = caption.phrase_of(each.tokens[-1])
        for other in OPPOSITES.get(words, ()):
            lemma = each.lemma.removesuffix(words) + other
            old = caption.related(each)
            new = (*old[:2], lemma, old[3])
            fits = caption.words[chunk.first : chunk.last + 1] == words.split() and corpus.allows(image, new)
            if fits and image.has_one(caption.nouns[each.subject], caption.nouns[each.object]):
                ends = [caption.named(caption.objects[end].head) for end in (each.subject, each.object)]
                said = caption.written(each.tokens[0], each.tokens[-1])
                edited = said.lower().removesuffix(words) + other
                details = partial(_related, (ends[0], said, ends[1]), (ends[0], edited, ends[1]))
                yield Option(partial(caption.rewritten, chunk, other), [new], [old], details)


def side_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Left becomes right and right left, where a caption names sides."""
    named = {at: _SIDES[word] for at, word in enumerate(caption.words) if word in _SIDES}
    if not named or not all(_is_side(caption, at) for at in named):
        return
    placed = [each for each in caption.relations if not named.keys().isdisjoint(each.tokens)]
    pairs = [(caption.nouns[each.subject], caption.nouns[each.object]) for each in placed]
    if image.has_one(*(pairs[0] if len(named) == 1 and pairs else caption.nouns)):
        written = {word for each in image.captions for word in each.words} & WRITTEN
        yield Option(partial(caption.replaced, named), sides=not written)


def _is_side(caption: TaggedCaption, at: int) -> bool:
    """Return whether "left" or "right" is a side: after "the", before "of"; not a verb, nor "correct"."""
    before = caption.words[at - 1] if at > 0 else ""
    after = caption.words[at + 1 : at + 3]
    if after == ["of", "way"] or before in ("has", "have", "had", "all"):
        return False
    if before == "the":
        return not after or singular(after[0]) not in _NOT_OF_PLACE
    return after[:1] == ["of"]


def count_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Another number from two to five."""
    for each in caption.attributes:
        at, noun = each.tokens[0], caption.nouns[each.object]
        for other in _COUNTS if each.kind == "number" and caption.words[at] in _COUNTS else ():
            new, old = ("count", other, noun), ("count", caption.words[at], noun)
            if new != old and corpus.allows(image, new):
                named = caption.words[caption.objects[each.object].head]
                details = partial(_related, (caption.words[at], named), (other, named))
                yield Option(partial(caption.replaced, {at: other}), [new], [old], details)


def _named(caption: TaggedCaption, *of_both: Sequence[tuple[Any, ...]]) -> tuple[str, str]:
    """Nouns of a caption before and after, with what `TaggedCaption.named` takes for each."""
    before, after = (" and ".join(caption.named(*each) for each in nouns) for nouns in of_both)
    return before, after


def _related(*of_both: Sequence[str]) -> tuple[str, str]:
    """Words before and after."""
    before, after = map(" ".join, of_both)
    return before, after


EDITS: dict[str, Callable[[TaggedCaption, Image, Corpus], Iterator[Option]]] = {
    "attribute": attribute_edits,
    "exchange": exchanges,
    "object": object_edits,
    "ends": end_edits,
    "relation": relation_edits,
    "side": side_edits,
    "count": count_edits,
}
"""Kind -> what can be made of a caption of an image."""


_LETTERS = re.compile(r"[a-z]+")
_JOINED_BY = frozenset({"with", "and", "or", "&", ","})
_COUNTED = re.compile(r"\S+ (?:(?:J|VBG|VBN|R|CC) )*(?:N )+")
"""Parts of speech of a number and of what it counts, the noun last."""


class NounVocabulary:
    """The nouns that captions are given instead of their own: frequent ones that name things.

    Args:
        captions: that are counted; singular and plural of a noun count together.
        min_count: fewest occurrences of a noun.

    Raises:
        UsageError: no noun is frequent enough.

    Attributes:
        nouns: by alphabet.
        instead_of: the nouns that contradict a noun (lower-case lemma); none for one that is not known.
    """

    def __init__(self, captions: Iterable[TaggedCaption], min_count: int) -> None:
        counts = Counter(
            noun_of(token)
            for caption in captions
            for token in caption.tokens
            if token.tag == "N" and _LETTERS.fullmatch(plain(token.text)) and _LETTERS.fullmatch(token.lemma)
        )
        self.nouns = sorted(noun for noun, count in counts.items() if count >= min_count and noun in NOUN_KINDS)
        if not self.nouns:
            raise UsageError(f"none of {len(counts):,} nouns occurs {min_count} times and is known; lower min_count")
        self.instead_of = cache(
            lambda noun: [other for other in self.nouns if noun in NOUN_KINDS and english.contradict(noun, other)]
        )


def noun_options(caption: TaggedCaption, own: Iterable[TaggedCaption], vocabulary: NounVocabulary) -> Iterator[Option]:
    """Another noun for the head of a noun phrase in plain letters, with the article that fits it.

    Args:
        caption: is changed.
        own: all captions of the image, whose words and lemmas are not written.
        vocabulary: the nouns that are.
    """
    words = [pair for each in own for pair in zip(each.words, each.tokens, strict=True)]
    said = {form for word, token in words for form in (word, token.lemma, noun_of(token))}
    for chunk in caption.chunks:
        head, words = chunk.last, caption.words[chunk.first : chunk.last + 1]
        if chunk.kind == "NP" and caption.tags[head] == "N" and all(map(_LETTERS.fullmatch, words)):
            lemma = noun_of(caption.tokens[head])
            several = caption.words[head] != lemma
            for noun in vocabulary.instead_of(lemma):
                if noun not in said and (form := plural(noun) if several else noun) not in said:
                    yield Option(partial(caption.replaced, {head: form}))


def numeral_options(caption: TaggedCaption) -> Iterator[Option]:
    """Another number before a noun, which takes the form that the number asks for."""
    for position, word in enumerate(caption.words):
        value = english.number_value(word)
        if value is None or caption.tags[max(position - 1, 0) : position] == ["CD"]:
            continue
        if counted := _COUNTED.match(" ".join([*caption.tags[position:], ""])):
            noun, ones = position + counted[0].count(" ") - 1, {"one", article_before(caption.words[position + 1])}
            for new, other in NUMBER_VALUES.items():
                if other != value and (other > 1 or new in ones):
                    yield Option(partial(_recounted, caption, position, noun, value, new))


def _recounted(caption: TaggedCaption, at: int, noun: int, old: int, new: str) -> list[Edit]:
    lemma, written = singular(caption.tokens[noun].lemma), caption.words[noun]
    form = lemma if NUMBER_VALUES[new] == 1 else plural(lemma) if old == 1 else written
    edits = [caption.edit(at, at, new)]
    return edits if form == written else [*edits, caption.edit(noun, noun, form)]


def relation_options(caption: TaggedCaption) -> Iterator[Option]:
    """Another preposition before a noun phrase, or two noun phrases in each other's place."""
    said = [" ".join(caption.words[chunk.first : chunk.last + 1]) for chunk in caption.chunks]
    for number, (chunk, following) in enumerate(itertools.pairwise(caption.chunks)):
        if chunk.kind == "P" and following.kind == "NP":
            for new in english.contradicting(said[number]):
                yield Option(partial(caption.rewritten, chunk, new))
    # Noun phrases that are joined, as in `a dog and a cat`, are of one group and do not change places.
    phrases: list[tuple[Chunk, int]] = []
    group = joined = 0
    for chunk, words in zip(caption.chunks, said, strict=True):
        if chunk.kind == "NP":
            group += not joined
            phrases.append((chunk, group))
        joined = chunk.kind == "NP" or (joined and words in _JOINED_BY)
    for (one, group), (two, other) in itertools.combinations(phrases, 2):
        first, second = caption.written(one.first, one.last), caption.written(two.first, two.last)
        if group != other and first.lower() != second.lower():
            yield Option(partial(caption.swapped, one, two))
