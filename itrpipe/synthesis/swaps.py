"""Sentences of whole training sets by rules: another noun, another number, another relation; no model is needed.

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
from collections.abc import Iterable, Iterator
from functools import cache, partial

from itrpipe.errors import UsageError
from itrpipe.scene_graph.chunks import Chunk
from itrpipe.scene_graph.words import plain
from itrpipe.synthesis import english
from itrpipe.synthesis.english import NOUN_KINDS, NUMBER_VALUES, article_before, plural, singular
from itrpipe.synthesis.sentences import Edit
from itrpipe.synthesis.tagged import Option, TaggedCaption, noun_of

TRAIN = "train"
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
