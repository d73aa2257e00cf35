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
from itertools import combinations

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

_COUNTS = ("two", "three", "four", "five")
_SIDES = {"left": "right", "right": "left"}
_LETTERS = re.compile(r"[a-z]+")
_JOINED_BY = frozenset({"with", "and", "or", "&", ","})
_COUNTED = re.compile(r"\S+ (?:(?:J|VBG|VBN|R|CC) )*(?:N )+")
"""Parts of speech of a number and of what it counts, the noun last."""


class Corpus:
    """Training captions and the statements that they make.

    Args:
        captions: all of them.
        min_count: fewest occurrences of what is written.
    """

    def __init__(self, captions: Sequence[TaggedCaption], min_count: int) -> None:
        self.captions = captions
        self._min_count = min_count

    @cached_property
    def statements(self) -> set[Statement]:
        """Return the statements that occur so often."""
        counts: Counter[Statement] = Counter()
        for caption in self.captions:
            counts.update(caption.sure_statements)
        return {statement for statement, count in counts.items() if count >= self._min_count}

    @cached_property
    def nouns(self) -> list[str]:
        """Return frequent nouns that name things, by alphabet; singular and plural of a noun count together.

        Raises:
            UsageError: no noun is frequent enough.
        """
        counts: Counter[str] = Counter()
        for caption in self.captions:
            for token in caption.tokens:
                is_plain = _LETTERS.fullmatch(plain(token.text)) and _LETTERS.fullmatch(token.lemma)
                if token.tag == "N" and is_plain:
                    counts[noun_of(token)] += 1
        nouns = []
        for noun, count in sorted(counts.items()):
            if count >= self._min_count and noun in NOUN_KINDS:
                nouns.append(noun)
        if not nouns:
            raise UsageError(
                f"none of {len(counts):,} nouns occurs {self._min_count} times and is known; lower min_count"
            )
        return nouns

    @cached_property
    def siblings(self) -> dict[str, list[str]]:
        """Return noun -> those that are easily mistaken for it, by alphabet."""
        stated: set[str] = set()
        for statement in self.statements:
            stated.update(nouns_of(statement))
        nouns = sorted(stated & NOUN_KINDS.keys())
        siblings = {}
        for noun in nouns:
            siblings[noun] = [other for other in nouns if are_siblings(noun, other)]
        return siblings

    def allows(self, image: Image, *new: Statement) -> bool:
        """Return whether training captions make these statements, and none of an image makes one."""
        return self.statements.issuperset(new) and image.statements.isdisjoint(new)


def attribute_edits(
    caption: TaggedCaption,
    image: Image,
    corpus: Corpus,
) -> Iterator[Option]:
    """Yields other attributes of a class."""
    for attribute in caption.attributes:
        place = attribute.tokens[0]
        word = caption.words[place]
        others = contradicting_attributes(word)
        if not others or not image.has_one(*caption.related_nouns(attribute.object)):
            continue
        noun = caption.nouns[attribute.object]
        for other in others:
            new = described(noun, other)
            if corpus.allows(image, new):
                yield Option(
                    partial(caption.replaced, {place: other}),
                    [new],
                    [described(noun, word)],
                    (caption.named(attribute.object, word), caption.named(attribute.object, other)),
                )


def exchanges(
    caption: TaggedCaption,
    image: Image,
    corpus: Corpus,
) -> Iterator[Option]:
    """Yields two things of different kinds with each other's attributes of a class."""
    for attribute, other in combinations(caption.attributes, 2):
        place = attribute.tokens[0]
        other_place = other.tokens[0]
        word = caption.words[place]
        other_word = caption.words[other_place]
        if other_word not in contradicting_attributes(word):
            continue
        noun = caption.nouns[attribute.object]
        other_noun = caption.nouns[other.object]
        new = described(noun, other_word), described(other_noun, word)
        nouns = caption.related_nouns(attribute.object) + caption.related_nouns(other.object)
        if corpus.allows(image, *new) and image.has_one(*nouns):
            before = f"{caption.named(attribute.object, word)} and {caption.named(other.object, other_word)}"
            after = f"{caption.named(attribute.object, other_word)} and {caption.named(other.object, word)}"
            yield Option(
                partial(caption.replaced, {place: other_word, other_place: word}),
                new,
                (described(noun, word), described(other_noun, other_word)),
                (before, after),
            )


def object_edits(
    caption: TaggedCaption,
    image: Image,
    corpus: Corpus,
) -> Iterator[Option]:
    """Yields nouns that are easily mistaken for another, of which captions say all that is said here of that one."""
    for thing, noun in zip(caption.objects, caption.nouns, strict=True):
        statements = [statement for statement in caption.statements if noun in statement]
        if not statements or caption.nouns.count(noun) > 1:
            continue
        head = caption.words[thing.head]
        for sibling in corpus.siblings.get(noun, ()):
            if any(may_be(sibling, other) for other in image.nouns):
                continue
            replacement = {noun: sibling}
            new = []
            for statement in statements:
                new.append(tuple(replacement.get(word, word) for word in statement))
            if not corpus.allows(image, *new):
                continue
            word = sibling if head == noun else plural(sibling)
            yield Option(
                partial(caption.replaced, {thing.head: word}),
                [(NOUN, sibling)],
                [*statements, (NOUN, noun)],
                (head, word),
            )


def end_edits(
    caption: TaggedCaption,
    image: Image,
    corpus: Corpus,
) -> Iterator[Option]:
    """Yields subject and object of a relation, one thing each, in each other's place."""
    if not _SIDES.keys().isdisjoint(caption.words):
        return
    for relation in caption.near_relations:
        old = caption.statement_of(relation)
        _, subject, lemma, other = old
        new = ("relation", other, lemma, subject)
        is_symmetric = lemma.rpartition(" ")[2] in SYMMETRIC
        if is_symmetric or not corpus.allows(image, new) or not image.has_one(subject, other):
            continue
        left = caption.phrase_of(caption.objects[relation.subject].head)
        right = caption.phrase_of(caption.objects[relation.object].head)
        is_owned = caption.words[left.first] in POSSESSIVE or caption.words[right.first] in POSSESSIVE
        if not is_owned and left.last < relation.tokens[0]:
            predicate = caption.written(relation.tokens[0], relation.tokens[-1])
            first = caption.named(relation.subject)
            second = caption.named(relation.object)
            details = f"{first} {predicate} {second}", f"{second} {predicate} {first}"
            yield Option(
                partial(caption.swapped, left, right),
                [new],
                [old],
                details,
            )


def relation_edits(
    caption: TaggedCaption,
    image: Image,
    corpus: Corpus,
) -> Iterator[Option]:
    """Yields the opposites of a preposition."""
    for relation in caption.near_relations:
        old = caption.statement_of(relation)
        _, subject, lemma, thing = old
        chunk = caption.phrase_of(relation.tokens[-1])
        preposition = caption.words_of(chunk)
        if not f" {lemma}".endswith(f" {preposition}"):
            continue
        predicate = caption.written(relation.tokens[0], relation.tokens[-1])
        first = caption.named(relation.subject)
        second = caption.named(relation.object)
        for opposite in OPPOSITES.get(preposition, ()):
            new = ("relation", subject, lemma.removesuffix(preposition) + opposite, thing)
            if corpus.allows(image, new) and image.has_one(subject, thing):
                edited = predicate.lower().removesuffix(preposition) + opposite
                details = f"{first} {predicate} {second}", f"{first} {edited} {second}"
                yield Option(
                    partial(caption.rewritten, chunk, opposite),
                    [new],
                    [old],
                    details,
                )


def side_edits(
    caption: TaggedCaption,
    image: Image,
    corpus: Corpus,
) -> Iterator[Option]:
    """Yields a caption that names sides with left for right and right for left."""
    sides = {place: _SIDES[word] for place, word in enumerate(caption.words) if word in _SIDES}
    if not sides:
        return
    # A side stands after "the" or before "of"; left may be a verb, and right may mean correct.
    for place in sides:
        before = caption.words[place - 1] if place > 0 else ""
        after = caption.words[place + 1 : place + 3]
        if after == ["of", "way"] or before in ("has", "have", "had", "all"):
            return
        if before == "the":
            if after and SINGULARS.get(after[0], after[0]) in CORRECT:
                return
        elif after[:1] != ["of"]:
            return
    nouns = caption.nouns
    placed = [relation for relation in caption.relations if not sides.keys().isdisjoint(relation.tokens)]
    if len(sides) == 1 and placed:
        nouns = [nouns[placed[0].subject], nouns[placed[0].object]]
    if image.has_one(*nouns):
        is_readable = all(WRITTEN.isdisjoint(other.words) for other in image.captions)
        yield Option(partial(caption.replaced, sides), sides=is_readable)


def count_edits(
    caption: TaggedCaption,
    image: Image,
    corpus: Corpus,
) -> Iterator[Option]:
    """Yields other numbers from two to five."""
    for attribute in caption.attributes:
        place = attribute.tokens[0]
        number = caption.words[place]
        if attribute.kind != "number" or number not in _COUNTS:
            continue
        noun = caption.nouns[attribute.object]
        head = caption.words[caption.objects[attribute.object].head]
        for other in _COUNTS:
            new = ("count", other, noun)
            if other != number and corpus.allows(image, new):
                yield Option(
                    partial(caption.replaced, {place: other}),
                    [new],
                    [("count", number, noun)],
                    (f"{number} {head}", f"{other} {head}"),
                )


def noun_options(
    caption: TaggedCaption,
    image: Image,
    corpus: Corpus,
) -> Iterator[Option]:
    """Yields other nouns for the head of a noun phrase in plain letters, with the article that fits.

    Words and lemmas of the captions of the image are not written.
    """
    mentioned: set[str] = set()
    for other in image.captions:
        mentioned.update(other.words)
        for token in other.tokens:
            mentioned |= {token.lemma, noun_of(token)}
    for chunk in caption.chunks:
        head = chunk.last
        lemma = noun_of(caption.tokens[head])
        if chunk.kind != "NP" or caption.tags[head] != "N" or lemma not in NOUN_KINDS:
            continue
        if not all(map(_LETTERS.fullmatch, caption.words[chunk.first : head + 1])):
            continue
        for noun in corpus.nouns:
            if noun not in mentioned and contradict(lemma, noun):
                word = noun if caption.words[head] == lemma else plural(noun)
                if word not in mentioned:
                    yield Option(partial(caption.replaced, {head: word}))


def numeral_options(
    caption: TaggedCaption,
    image: Image,
    corpus: Corpus,
) -> Iterator[Option]:
    """Yields other numbers before a noun, which takes the form that the number asks for."""
    for place, word in enumerate(caption.words):
        value = NUMBER_VALUES.get(word)
        if word.isdecimal():
            value = int(word)
        tags = "".join(f"{tag} " for tag in caption.tags[place:])
        counted = _COUNTED.match(tags)
        if value is None or not counted or (place > 0 and caption.tags[place - 1] == "CD"):
            continue
        noun = place + counted[0].count(" ") - 1
        ones = {"one", article_before(caption.words[place + 1])}
        for number, other in NUMBER_VALUES.items():
            if other != value and (other > 1 or number in ones):
                yield Option(partial(_recounted, caption, place, noun, value, number))


def _recounted(
    caption: TaggedCaption,
    place: int,
    noun: int,
    value: int,
    number: str,
) -> list[Edit]:
    """Write another number, and the noun in the form that it asks for."""
    edits = [caption.edit(place, place, number)]
    word = caption.words[noun]
    lemma = caption.tokens[noun].lemma
    lemma = SINGULARS.get(lemma, lemma)
    form = word
    if NUMBER_VALUES[number] == 1:
        form = lemma
    elif value == 1:
        form = plural(lemma)
    if form != word:
        edits.append(caption.edit(noun, noun, form))
    return edits


def relation_options(
    caption: TaggedCaption,
    image: Image,
    corpus: Corpus,
) -> Iterator[Option]:
    """Yields other prepositions before a noun phrase, and two noun phrases in each other's place."""
    phrases = []
    # Noun phrases that are joined, as in `a dog and a cat`, are of one group and do not change places.
    group = 0
    is_joined = False
    for index, chunk in enumerate(caption.chunks):
        words = caption.words_of(chunk)
        following = caption.chunks[index + 1 : index + 2]
        if chunk.kind == "P" and following and following[0].kind == "NP":
            for new in contradicting(words):
                yield Option(partial(caption.rewritten, chunk, new))
        if chunk.kind == "NP":
            if not is_joined:
                group += 1
            phrases.append((chunk, group))
            is_joined = True
        elif words not in _JOINED_BY:
            is_joined = False
    for (left, group), (right, other_group) in combinations(phrases, 2):
        first = caption.written(left.first, left.last)
        second = caption.written(right.first, right.last)
        if group != other_group and first.lower() != second.lower():
            yield Option(partial(caption.swapped, left, right))


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
