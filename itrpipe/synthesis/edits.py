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

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, combinations, zip_longest

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
)
from itrpipe.synthesis.sentences import Edit
from itrpipe.synthesis.tagged import NOUN, Image, Option, Statement, TaggedCaption, described, noun_of, nouns_of

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
        """Return the statements that occur so often."""
        counts = Counter(chain.from_iterable(caption.sure for caption in self.captions))
        return {statement for statement, count in counts.items() if count >= self._min_count}

    @cached_property
    def nouns(self) -> list[str]:
        """Return frequent nouns that name things, by alphabet; singular and plural of a noun count together.

        Raises:
            UsageError: no noun is frequent enough.
        """
        counts: Counter[str] = Counter()
        for token in chain.from_iterable(caption.tokens for caption in self.captions):
            if token.tag == "N" and _LETTERS.fullmatch(plain(token.text)) and _LETTERS.fullmatch(token.lemma):
                counts[noun_of(token)] += 1
        nouns = sorted(noun for noun, count in counts.items() if count >= self._min_count and noun in NOUN_KINDS)
        if not nouns:
            raise UsageError(
                f"none of {len(counts):,} nouns occurs {self._min_count} times and is known; lower min_count"
            )
        return nouns

    @cached_property
    def siblings(self) -> dict[str, list[str]]:
        """Return noun -> those that are easily mistaken for it, by alphabet."""
        known = sorted(NOUN_KINDS.keys() & set(chain.from_iterable(map(nouns_of, self.said))))
        return {noun: list(filter(partial(are_siblings, noun), known)) for noun in known}

    def allows(self, image: Image, *new: Statement) -> bool:
        """Return whether training captions make these statements, and none of an image makes one."""
        return self.said.issuperset(new) and image.said.isdisjoint(new)


def attribute_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Yields other attributes of a class."""
    for attribute in caption.attributes:
        place, number = attribute.tokens[0], attribute.object
        word, noun = caption.words[place], caption.nouns[number]
        others = contradicting_attributes(word)
        if not others or not image.has_one(*caption.beside(number)):
            continue
        for other in others:
            new = described(noun, other)
            if corpus.allows(image, new):
                details = caption.named(number, word), caption.named(number, other)
                yield Option(partial(caption.replaced, {place: other}), [new], [described(noun, word)], details)


def exchanges(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Yields two things of different kinds with each other's attributes of a class."""
    for one, two in combinations(caption.attributes, 2):
        at, there = one.tokens[0], two.tokens[0]
        first, second = caption.words[at], caption.words[there]
        if second not in contradicting_attributes(first):
            continue
        noun, other = caption.nouns[one.object], caption.nouns[two.object]
        new = described(noun, second), described(other, first)
        beside = caption.beside(one.object) + caption.beside(two.object)
        if corpus.allows(image, *new) and image.has_one(*beside):
            old = described(noun, first), described(other, second)
            details = (
                f"{caption.named(one.object, first)} and {caption.named(two.object, second)}",
                f"{caption.named(one.object, second)} and {caption.named(two.object, first)}",
            )
            yield Option(partial(caption.replaced, {at: second, there: first}), new, old, details)


def object_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Yields nouns that are easily mistaken for another, of which captions say all that is said here of that one."""
    for thing, noun in zip(caption.objects, caption.nouns, strict=True):
        said = [statement for statement in caption.said if noun in statement]
        if not said or caption.nouns.count(noun) > 1:
            continue
        head = caption.words[thing.head]
        for other in corpus.siblings.get(noun, ()):
            new = [tuple(other if word == noun else word for word in statement) for statement in said]
            if corpus.allows(image, *new) and not any(may_be(other, known) for known in image.nouns):
                word = other if head == noun else plural(other)
                change = partial(caption.replaced, {thing.head: word})
                yield Option(change, [(NOUN, other)], [*said, (NOUN, noun)], (head, word))


def end_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Yields subject and object of a relation, one thing each, in each other's place."""
    for relation in caption.near:
        old = caption.related(relation)
        _, subject, lemma, other = old
        new = "relation", other, lemma, subject
        symmetric = lemma.rpartition(" ")[2] in SYMMETRIC or not _SIDES.keys().isdisjoint(caption.words)
        if symmetric or not corpus.allows(image, new):
            continue
        one = caption.phrase_of(caption.objects[relation.subject].head)
        two = caption.phrase_of(caption.objects[relation.object].head)
        owned = caption.words[one.first] in POSSESSIVE or caption.words[two.first] in POSSESSIVE
        if not owned and one.last < relation.tokens[0] and image.has_one(subject, other):
            said = caption.written(relation.tokens[0], relation.tokens[-1])
            first, second = caption.named(relation.subject), caption.named(relation.object)
            details = f"{first} {said} {second}", f"{second} {said} {first}"
            yield Option(partial(caption.swapped, one, two), [new], [old], details)


def relation_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Yields the opposites of a preposition."""
    for relation in caption.near:
        old = caption.related(relation)
        _, subject, lemma, thing = old
        chunk = caption.phrase_of(relation.tokens[-1])
        words = " ".join(caption.words[chunk.first : chunk.last + 1])
        if not f" {lemma}".endswith(f" {words}"):
            continue
        said = caption.written(relation.tokens[0], relation.tokens[-1])
        first, second = caption.named(relation.subject), caption.named(relation.object)
        for other in OPPOSITES.get(words, ()):
            new = "relation", subject, lemma.removesuffix(words) + other, thing
            if corpus.allows(image, new) and image.has_one(subject, thing):
                edited = said.lower().removesuffix(words) + other
                details = f"{first} {said} {second}", f"{first} {edited} {second}"
                yield Option(partial(caption.rewritten, chunk, other), [new], [old], details)


def side_edits(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Yields a caption that names sides with left for right and right for left."""
    sides = {place: _SIDES[word] for place, word in enumerate(caption.words) if word in _SIDES}
    if not sides or not all(_is_side(caption, place) for place in sides):
        return
    nouns = caption.nouns
    placed = [relation for relation in caption.relations if not sides.keys().isdisjoint(relation.tokens)]
    if len(sides) == 1 and placed:
        nouns = [nouns[placed[0].subject], nouns[placed[0].object]]
    if image.has_one(*nouns):
        readable = all(WRITTEN.isdisjoint(other.words) for other in image.captions)
        yield Option(partial(caption.replaced, sides), sides=readable)


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
    """Yields other numbers from two to five."""
    for attribute in caption.attributes:
        place, noun = attribute.tokens[0], caption.nouns[attribute.object]
        number, named = caption.words[place], caption.words[caption.objects[attribute.object].head]
        if attribute.kind != "number" or number not in _COUNTS:
            continue
        for other in _COUNTS:
            new = "count", other, noun
            if other != number and corpus.allows(image, new):
                details = f"{number} {named}", f"{other} {named}"
                yield Option(partial(caption.replaced, {place: other}), [new], [("count", number, noun)], details)


def noun_options(caption: TaggedCaption, image: Image, corpus: Corpus) -> Iterator[Option]:
    """Yields other nouns for the head of a noun phrase in plain letters, with the article that fits.

    Words and lemmas of the captions of the image are not written.
    """
    said: set[str] = set()
    for other in image.captions:
        said.update(other.words)
        for token in other.tokens:
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
    """Yields other numbers before a noun, which takes the form that the number asks for."""
    for position, word in enumerate(caption.words):
        value = NUMBER_VALUES.get(word)
        if word.isdecimal():
            value = int(word)
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
    """Yields other prepositions before a noun phrase, and two noun phrases in each other's place."""
    # Noun phrases that are joined, as in `a dog and a cat`, are of one group and do not change places.
    phrases = []
    group = joined = 0
    for chunk, following in zip_longest(caption.chunks, caption.chunks[1:]):
        words = " ".join(caption.words[chunk.first : chunk.last + 1])
        if chunk.kind == "P" and following and following.kind == "NP":
            for new in contradicting(words):
                yield Option(partial(caption.rewritten, chunk, new))
        if chunk.kind == "NP":
            group += not joined
            phrases.append((chunk, group))
        joined = chunk.kind == "NP" or (joined and words in _JOINED_BY)
    for (one, group), (two, other) in combinations(phrases, 2):
        first, second = caption.written(one.first, one.last), caption.written(two.first, two.last)
        if group != other and first.lower() != second.lower():
            yield Option(partial(caption.swapped, one, two))


RULES: dict[str, Callable[[TaggedCaption, Image, Corpus], Iterator[Option]]] = {
    "nouns": noun_options,
    "numerals": numeral_options,
    "relations": relation_options,
    "attribute": attribute_edits,
    "exchange": exchanges,
    "object": object_edits,
    "ends": end_edits,
    "relation": relation_edits,
    "side": side_edits,
    "count": count_edits,
}
"""Name -> the ways to change a caption of an image, given what training captions say; VSE-C's three come first."""
