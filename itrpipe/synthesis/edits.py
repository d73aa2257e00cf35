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
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

from itrpipe.errors import UsageError
from itrpipe.scene_graph.words import plain
from itrpipe.synthesis.english import (
    CORRECT,
    NOUN_KINDS,
    NUMBER_VALUES,
    OPPOSITES,
    POSSESSIVE,
    SINGULARS,
    SYMMETRIC,
    WRITTEN,
    are_siblings,
    article_before,
    contradict,
    contradicting,
    contradicting_attributes,
    may_be,
    plural,
    usual_attribute,
)
from itrpipe.synthesis.sentences import Edit
from itrpipe.synthesis.tagged import NOUN, Image, Option, Statement, TaggedCaption, noun_of, nouns_of

_COUNTS = [word for word, value in NUMBER_VALUES.items() if word.isalpha() and 2 <= value <= 5]
_SIDES = {"left": "right", "right": "left"}
_LETTERS = re.compile(r"[a-z]+")
_JOINED_BY = frozenset({"with", "and", "or", "&", ","})
_COUNTED = re.compile(r"\S+ (?:(?:J|VBG|VBN|R|CC) )*(?:N )+")
"""Parts of speech of a number and of what it counts, the noun last."""


class Corpus:
    """What training captions say.

    Args:
        captions: all of them.
        min_count: fewest occurrences of what is written.
    """

    def __init__(self, captions: Sequence[TaggedCaption], min_count: int) -> None:
        self.captions, self._min_count = captions, min_count

    @cached_property
    def said(self) -> set[Statement]:
        """Statements that occur so often."""
        counts = Counter(each for caption in self.captions for each in caption.sure)
        return {each for each, count in counts.items() if count >= self._min_count}

    @cached_property
    def nouns(self) -> list[str]:
        """Frequent nouns that name things, by alphabet; singular and plural of a noun count together.

        Raises:
            UsageError: no noun is frequent enough.
        """
        counts = Counter(
            noun_of(token)
            for caption in self.captions
            for token in caption.tokens
            if token.tag == "N" and _LETTERS.fullmatch(plain(token.text)) and _LETTERS.fullmatch(token.lemma)
        )
        nouns = sorted(noun for noun, count in counts.items() if count >= self._min_count and noun in NOUN_KINDS)
        if not nouns:
            raise UsageError(
                f"none of {len(counts):,} nouns occurs {self._min_count} times and is known; lower min_count"
            )
        return nouns

    @cached_property
    def siblings(self) -> dict[str, list[str]]:
        """Noun -> those that are easily mistaken for it, by alphabet."""
        known = sorted({noun for each in self.said for noun in nouns_of(each)} & NOUN_KINDS.keys())
        return {noun: [other for other in known if are_siblings(noun, other)] for noun in known}

    def allows(self, image: Image, *new: Statement) -> bool:
        """Return whether training captions make these statements, and none of an image makes one."""
        return all(each in self.said and each not in image.said for each in new)


def attribute_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Another attribute of its class."""
    for each in caption.attributes:
        at, noun, head = each.tokens[0], caption.nouns[each.object], caption.objects[each.object].head
        word = caption.words[at]
        others = contradicting_attributes(word)
        if not others or not image.has_one(*caption.beside(each.object)):
            continue
        for other in others:
            new = "is", usual_attribute(other), noun
            if corpus.allows(image, new):
                old = "is", usual_attribute(word), noun
                details = caption.named(head, word), caption.named(head, other)
                yield Option(partial(caption.replaced, {at: other}), [new], [old], details)


def exchanges(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Two things of different kinds take each other's attributes of a class."""
    for one, two in itertools.combinations(caption.attributes, 2):
        at, there = one.tokens[0], two.tokens[0]
        first, second = caption.words[at], caption.words[there]
        if second not in contradicting_attributes(first):
            continue
        noun, other = caption.nouns[one.object], caption.nouns[two.object]
        old = ("is", usual_attribute(first), noun), ("is", usual_attribute(second), other)
        new = ("is", usual_attribute(second), noun), ("is", usual_attribute(first), other)
        beside = *caption.beside(one.object), *caption.beside(two.object)
        if corpus.allows(image, *new) and image.has_one(*beside):
            here, elsewhere = caption.objects[one.object].head, caption.objects[two.object].head
            details = (
                f"{caption.named(here, first)} and {caption.named(elsewhere, second)}",
                f"{caption.named(here, second)} and {caption.named(elsewhere, first)}",
            )
            yield Option(partial(caption.replaced, {at: second, there: first}), new, old, details)


def object_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """A noun that is easily mistaken for another, of which captions say all that is said here of that one."""
    for each, noun in zip(caption.objects, caption.nouns, strict=True):
        said = [one for one in caption.said if noun in one]
        if not said or caption.nouns.count(noun) > 1:
            continue
        head = caption.words[each.head]
        for other in corpus.siblings.get(noun, ()):
            new = [tuple(other if word == noun else word for word in one) for one in said]
            if corpus.allows(image, *new) and not any(may_be(other, known) for known in image.nouns):
                word = other if head == noun else plural(other)
                change = partial(caption.replaced, {each.head: word})
                yield Option(change, [(NOUN, other)], [*said, (NOUN, noun)], (head, word))


def end_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Subject and object of a relation change places, one thing each."""
    for each in caption.near:
        subject, obj = caption.nouns[each.subject], caption.nouns[each.object]
        new = "relation", obj, each.lemma, subject
        symmetric = each.lemma.rpartition(" ")[2] in SYMMETRIC or not _SIDES.keys().isdisjoint(caption.words)
        if symmetric or not corpus.allows(image, new):
            continue
        heads = caption.objects[each.subject].head, caption.objects[each.object].head
        one, two = map(caption.phrase_of, heads)
        owned = caption.words[one.first] in POSSESSIVE or caption.words[two.first] in POSSESSIVE
        if not owned and one.last < each.tokens[0] and image.has_one(subject, obj):
            said = caption.written(each.tokens[0], each.tokens[-1])
            first, second = map(caption.named, heads)
            details = f"{first} {said} {second}", f"{second} {said} {first}"
            yield Option(partial(caption.swapped, one, two), [new], [caption.related(each)], details)


def relation_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """The opposite of a preposition."""
    for each in caption.near:
        chunk = caption.phrase_of(each.tokens[-1])
        words = " ".join(caption.words[chunk.first : chunk.last + 1])
        if not f" {each.lemma}".endswith(f" {words}"):
            continue
        old = caption.related(each)
        for other in OPPOSITES.get(words, ()):
            new = (*old[:2], each.lemma.removesuffix(words) + other, old[3])
            if corpus.allows(image, new) and image.has_one(old[1], old[3]):
                first, second = (caption.named(caption.objects[end].head) for end in (each.subject, each.object))
                said = caption.written(each.tokens[0], each.tokens[-1])
                edited = said.lower().removesuffix(words) + other
                details = f"{first} {said} {second}", f"{first} {edited} {second}"
                yield Option(partial(caption.rewritten, chunk, other), [new], [old], details)


def side_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Left becomes right and right left, where a caption names sides."""
    named = {at: _SIDES[word] for at, word in enumerate(caption.words) if word in _SIDES}
    if not named or not all(_is_side(caption, at) for at in named):
        return
    nouns = caption.nouns
    placed = [each for each in caption.relations if not named.keys().isdisjoint(each.tokens)]
    if len(named) == 1 and placed:
        nouns = [nouns[placed[0].subject], nouns[placed[0].object]]
    written = any(not WRITTEN.isdisjoint(each.words) for each in image.captions)
    if image.has_one(*nouns):
        yield Option(partial(caption.replaced, named), sides=not written)


def _is_side(caption: TaggedCaption, at: int) -> bool:
    """Return whether "left" or "right" is a side: after "the", before "of"; not a verb, nor "correct"."""
    before = caption.words[at - 1] if at > 0 else ""
    after = caption.words[at + 1 : at + 3]
    if after == ["of", "way"] or before in ("has", "have", "had", "all"):
        return False
    if before == "the":
        return not after or SINGULARS.get(after[0], after[0]) not in CORRECT
    return after[:1] == ["of"]


def count_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Another number from two to five."""
    for each in caption.attributes:
        at, noun = each.tokens[0], caption.nouns[each.object]
        number, named = caption.words[at], caption.words[caption.objects[each.object].head]
        if each.kind != "number" or number not in _COUNTS:
            continue
        for other in _COUNTS:
            new = "count", other, noun
            if other != number and corpus.allows(image, new):
                details = f"{number} {named}", f"{other} {named}"
                yield Option(partial(caption.replaced, {at: other}), [new], [("count", number, noun)], details)


def noun_options(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Another noun for the head of a noun phrase in plain letters, with the article that fits it.

    Words and lemmas of the captions of the image are not written.
    """
    said: set[str] = set()
    for each in image.captions:
        said.update(each.words)
        for token in each.tokens:
            said |= {token.lemma, noun_of(token)}
    for chunk in caption.chunks:
        head, words = chunk.last, caption.words[chunk.first : chunk.last + 1]
        lemma = noun_of(caption.tokens[head])
        plain_noun = caption.tags[head] == "N" and lemma in NOUN_KINDS and all(map(_LETTERS.fullmatch, words))
        if chunk.kind != "NP" or not plain_noun:
            continue
        for noun in corpus.nouns:
            if noun not in said and contradict(lemma, noun):
                form = noun if caption.words[head] == lemma else plural(noun)
                if form not in said:
                    yield Option(partial(caption.replaced, {head: form}))


def numeral_options(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Another number before a noun, which takes the form that the number asks for."""
    for position, word in enumerate(caption.words):
        value = int(word) if word.isdecimal() else NUMBER_VALUES.get(word)
        counted = _COUNTED.match(" ".join([*caption.tags[position:], ""]))
        if value is None or not counted or caption.tags[max(position - 1, 0) : position] == ["CD"]:
            continue
        noun = position + counted[0].count(" ") - 1
        ones = {"one", article_before(caption.words[position + 1])}
        for new, other in NUMBER_VALUES.items():
            if other != value and (other > 1 or new in ones):
                yield Option(partial(_recounted, caption, position, noun, value, new))


def _recounted(caption: TaggedCaption, at: int, noun: int, old: int, new: str) -> list[Edit]:
    edits = [caption.edit(at, at, new)]
    lemma, form = caption.tokens[noun].lemma, caption.words[noun]
    lemma = SINGULARS.get(lemma, lemma)
    if NUMBER_VALUES[new] == 1:
        form = lemma
    elif old == 1:
        form = plural(lemma)
    if form != caption.words[noun]:
        edits.append(caption.edit(noun, noun, form))
    return edits


def relation_options(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Another preposition before a noun phrase, or two noun phrases in each other's place."""
    said = [" ".join(caption.words[chunk.first : chunk.last + 1]) for chunk in caption.chunks]
    for number, (chunk, following) in enumerate(itertools.pairwise(caption.chunks)):
        if chunk.kind == "P" and following.kind == "NP":
            for new in contradicting(said[number]):
                yield Option(partial(caption.rewritten, chunk, new))
    # Noun phrases that are joined, as in `a dog and a cat`, are of one group and do not change places.
    phrases = []
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


EDITS: dict[str, Callable[[TaggedCaption, Image, Corpus], Iterator[Option]]] = {
    "attribute": attribute_edits,
    "exchange": exchanges,
    "object": object_edits,
    "ends": end_edits,
    "relation": relation_edits,
    "side": side_edits,
    "count": count_edits,
}
"""Kind -> the edits of a scene graph that can be made of a caption of an image, given what training captions say."""
RULES = {"nouns": noun_options, "numerals": numeral_options, "relations": relation_options, **EDITS}
"""Those of VSE-C, and the edits."""
