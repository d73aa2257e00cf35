"""Captions with the parts of speech of their words, which rules edit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.errors import DataError
from itrpipe.scene_graph.chunks import Chunk, Chunker
from itrpipe.scene_graph.graph import Relation, SceneGraph, Token
from itrpipe.scene_graph.stored import GRAPH_SCHEMA, SceneGraphFile, graphs_of
from itrpipe.scene_graph.tag import TaggedWords
from itrpipe.scene_graph.words import plain
from itrpipe.synthesis.english import ARTICLES, article_before, canonical_attribute, may_be
from itrpipe.synthesis.sentences import Edit

Statement = tuple[str, ...]
"""A kind, and words of it: `is, attribute, noun`, `relation, subject, relation, object`, `count, number, noun` or
`noun, noun`."""
NOUN = "noun"
STATEMENTS = {"number": "count", "adjective": "is", "copula": "is"}
"""Kind of an attribute of a scene graph -> kind of the statement."""


class Option(NamedTuple):
    """A way to change a caption.

    Attributes:
        edits: gives them; called only if it is drawn.
        new, old: statements that the edited caption makes, and those that it makes no more.
        details: what the caption says and what the edit says instead, each in words of their own; empty where the
            sentences themselves do.
        sides: whether it is true of the image mirrored: left and right change places, and nothing can be read there.
    """

    edits: Callable[[], list[Edit]]
    new: Sequence[Statement] = ()
    old: Sequence[Statement] = ()
    details: tuple[str, str] = ("", "")
    sides: bool = False


class TaggedCaption(SceneGraph):
    """The scene graph of a caption, all of whose words are in the caption, with what else rules ask of it."""

    @cached_property
    def words(self) -> list[str]:
        """Return the words in lower case."""
        return [sys.intern(plain(token.text)) for token in self.tokens]

    @cached_property
    def tags(self) -> list[str]:
        """Return the parts of speech, keys of the table TAGS of `itrpipe/scene_graph/words.toml`."""
        return [token.tag for token in self.tokens]

    @cached_property
    def chunks(self) -> list[Chunk]:
        """Return noun phrases, prepositions and other words, from left to right."""
        return Chunker(TaggedWords(self.words, self.tags)).chunks()

    @cached_property
    def nouns(self) -> list[str]:
        """Return the lemma of the head of each object."""
        return [noun_of(self.tokens[thing.head]) for thing in self.objects]

    @cached_property
    def statements(self) -> frozenset[Statement]:
        """Return the statements of the caption."""
        statements = set(map(self.statement_of, self.relations))
        for attribute in self.attributes:
            kind = STATEMENTS.get(attribute.kind, "")
            word = canonical_attribute(self.words[attribute.tokens[0]])
            statements.add((kind, word, self.nouns[attribute.object]))
        return frozenset(statements)

    @cached_property
    def sure_statements(self) -> frozenset[Statement]:
        """Return its statements but relations that a parser may get wrong, as in `a cat under a chair and a box`."""
        sure = self.statements.difference(map(self.statement_of, self.relations))
        return sure.union(map(self.statement_of, self.near_relations))

    @cached_property
    def content(self) -> frozenset[Statement]:
        """Return its sure statements, and the nouns."""
        return self.sure_statements.union((NOUN, noun) for noun in self.nouns)

    @cached_property
    def near_relations(self) -> list[Relation]:
        """Return the relations that stand between their subject and their object, and no other object among them."""
        heads = [thing.head for thing in self.objects]
        near = []
        for relation in self.relations:
            first = relation.tokens[0]
            last = relation.tokens[-1]
            heads_before = [head for head in heads if head < first]
            is_whole = last - first == len(relation.tokens) - 1
            is_followed = self.phrase_of(heads[relation.object]).first == last + 1
            if is_whole and is_followed and heads[relation.subject] == max(heads_before, default=None):
                near.append(relation)
        return near

    def statement_of(self, relation: Relation) -> Statement:
        """Return the statement of a relation."""
        subject = self.nouns[relation.subject]
        target = self.nouns[relation.object]
        return "relation", subject, relation.lemma, target

    @cached_property
    def plurals(self) -> frozenset[str]:
        """Return the nouns that stand there in the plural or with a number."""
        plurals = set()
        for statement in self.statements:
            if statement[0] == "count":
                plurals.add(statement[-1])
        for thing, noun in zip(self.objects, self.nouns, strict=True):
            if self.words[thing.head] != noun:
                plurals.add(noun)
        return frozenset(plurals)

    def related_nouns(self, number: int) -> list[str]:
        """Return the nouns of an object and of those that it is in a relation with."""
        related = {number}
        for relation in self.relations:
            ends = {relation.subject, relation.object}
            if number in ends:
                related |= ends
        return [self.nouns[other] for other in related]

    def phrase_of(self, head: int) -> Chunk:
        """Return the chunk that a word lies in, or the word alone: adverbs and auxiliaries lie in none."""
        for chunk in self.chunks:
            if chunk.first <= head <= chunk.last:
                return chunk
        return Chunk("", head, head, head)

    def named(self, number: int, attribute: str = "") -> str:
        """Write an object with one attribute, and with `a` or `an` where it has one in the caption."""
        head = self.objects[number].head
        words = f"{attribute} {self.words[head]}".strip()
        if self.words[self.phrase_of(head).first] in ARTICLES:
            return f"{article_before(words)} {words}"
        return words

    def words_of(self, chunk: Chunk) -> str:
        """Return the words of a chunk in lower case."""
        return " ".join(self.words[chunk.first : chunk.last + 1])

    def written(self, first: int, last: int) -> str:
        """Return the characters of the words from `first` to `last`."""
        start = self.tokens[first].start
        end = self.tokens[last].end
        return self.text[start:end]

    def edit(
        self,
        first: int,
        last: int,
        new: str,
    ) -> Edit:
        """Writes something instead of the words from `first` to `last`, with a capital letter where they have one."""
        old = self.written(first, last)
        if old[:1].isupper():
            new = new[:1].upper() + new[1:]
        return Edit(first, old, new)

    def replaced(self, new: Mapping[int, str]) -> list[Edit]:
        """Writes other words at some places, with the articles that fit them."""
        edits = []
        for place, word in sorted(new.items()):
            article = article_before(word)
            before = place - 1
            if place > 0 and self.words[before] in ARTICLES - {article}:
                edits.append(self.edit(before, before, article))
            edits.append(self.edit(place, place, word))
        return edits

    def rewritten(self, chunk: Chunk, new: str) -> list[Edit]:
        """Writes something instead of a chunk."""
        return [self.edit(chunk.first, chunk.last, new)]

    def swapped(self, left: Chunk, right: Chunk) -> list[Edit]:
        """Writes two noun phrases in each other's place."""
        first = self.written(left.first, left.last)
        second = self.written(right.first, right.last)
        edit = self.edit(left.first, left.last, second)
        if self.tags[left.first] in {"D", "CD", "J"}:
            first = first[:1].lower() + first[1:]
        return [edit, Edit(right.first, second, first)]


@dataclass(frozen=True)
class Image:
    """All captions of an image."""

    captions: Sequence[TaggedCaption]

    @cached_property
    def statements(self) -> frozenset[Statement]:
        """Return the statements of all."""
        statements: set[Statement] = set()
        for caption in self.captions:
            statements |= caption.statements
        return frozenset(statements)

    @cached_property
    def nouns(self) -> frozenset[str]:
        """Return the nouns of all."""
        nouns: set[str] = set()
        for caption in self.captions:
            nouns.update(caption.nouns)
        return frozenset(nouns)

    def has_one(self, *nouns: str) -> bool:
        """Return whether no caption names several things that one of the nouns may stand for."""
        for caption, noun in product(self.captions, nouns):
            alike = [other for other in caption.nouns if may_be(noun, other)]
            if len(alike) > 1 or not caption.plurals.isdisjoint(alike):
                return False
        return True


def described(noun: str, attribute: str) -> Statement:
    """Return the statement that a noun has an attribute."""
    return "is", canonical_attribute(attribute), noun


def nouns_of(statement: Statement) -> tuple[str, ...]:
    """Return the nouns of a statement."""
    if statement[0] == "relation":
        return statement[1::2]
    return statement[-1:]


def noun_of(token: Token) -> str:
    """Return the lemma of a noun; that of `people` is `person`, but `glasses` may well be worn."""
    if token.lemma == "people":
        return "person"
    return token.lemma


def tagged_captions(parsed: Path, caption_ids: Sequence[str]) -> list[TaggedCaption]:
    """Read captions with their scene graphs.

    Args:
        parsed: artifact of `itrpipe parse`.
        caption_ids: T of them.

    Raises:
        MissingInputError: there is no such artifact.
        DataError: it is damaged, or one of the captions has no scene graph.
    """
    ids = pa.array(caption_ids, pa.string())
    is_asked_for = pc.field("caption_id").isin(ids)
    captions: dict[str, TaggedCaption] = {}
    for table in SceneGraphFile(parsed).row_groups(("caption_id", *GRAPH_SCHEMA.names)):
        rows = table.filter(is_asked_for)
        for caption_id, graph in zip(rows["caption_id"].to_pylist(), graphs_of(rows), strict=True):
            caption = TaggedCaption(graph.text, graph.tokens)
            # Without what a foreign parser found and the caption has no words for; nothing where it lacks an object.
            if all(thing.head >= 0 for thing in graph.objects):
                has_words = attrgetter("tokens")
                attributes = tuple(filter(has_words, graph.attributes))
                relations = tuple(filter(has_words, graph.relations))
                caption = TaggedCaption(graph.text, graph.tokens, graph.objects, attributes, relations)
            captions[caption_id] = caption
    missing = [caption_id for caption_id in caption_ids if caption_id not in captions]
    if missing:
        raise DataError(
            f"{parsed}: {len(missing):,} of {len(caption_ids):,} captions have no scene graph (the first: "
            f"{missing[0]!r}); run `itrpipe parse` for this dataset"
        )
    return [captions[caption_id] for caption_id in caption_ids]
