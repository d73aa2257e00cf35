"""Captions with the parts of speech of their words, which rules edit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from itrpipe.errors import DataError
from itrpipe.scene_graph.chunks import Chunk, Chunker
from itrpipe.scene_graph.graph import Attribute, Object, Relation, Token
from itrpipe.scene_graph.stored import GRAPH_SCHEMA, SceneGraphFile, graphs_of
from itrpipe.scene_graph.tag import Sentence as TaggedWords
from itrpipe.scene_graph.words import plain
from itrpipe.synthesis.english import ARTICLES, article_before, may_be, usual_attribute
from itrpipe.synthesis.sentences import Edit

Statement = tuple[str, ...]
"""A kind, and words of it: `is, attribute, noun`, `relation, subject, relation, object`, `count, number, noun` or
`noun, noun`."""
NOUN = "noun"


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


@dataclass(frozen=True)
class TaggedCaption:
    """A caption with its words and their parts of speech.

    Attributes:
        text: as published.
        tokens: as `itrpipe.scene_graph.build.RulesParser` tags them.
        objects, attributes, relations: of its scene graph, all of whose words are in the caption.
    """

    text: str
    tokens: tuple[Token, ...]
    objects: tuple[Object, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    relations: tuple[Relation, ...] = ()

    @cached_property
    def words(self) -> list[str]:
        """Lower case."""
        return [sys.intern(plain(token.text)) for token in self.tokens]

    @cached_property
    def tags(self) -> list[str]:
        """Keys of the table TAGS of `itrpipe/scene_graph/words.toml`."""
        return [token.tag for token in self.tokens]

    @cached_property
    def chunks(self) -> list[Chunk]:
        """Noun phrases, prepositions and other words, from left to right."""
        return Chunker(TaggedWords(self.words, self.tags)).chunks()

    @cached_property
    def nouns(self) -> list[str]:
        """Lemma of the head of each object."""
        return [noun_of(self.tokens[each.head]) for each in self.objects]

    @cached_property
    def said(self) -> frozenset[Statement]:
        """What the caption says."""
        kinds = {"number": "count", "adjective": "is", "copula": "is"}
        said = set(map(self.related, self.relations))
        for each in self.attributes:
            word = usual_attribute(self.words[each.tokens[0]])
            said.add((kinds.get(each.kind, ""), word, self.nouns[each.object]))
        return frozenset(said)

    @cached_property
    def sure(self) -> frozenset[Statement]:
        """What it says without relations that a parser may well get wrong, as in `a cat under a chair and a box`."""
        return frozenset(each for each in self.said if each[0] != "relation").union(map(self.related, self.near))

    @cached_property
    def content(self) -> frozenset[Statement]:
        """What it surely says, and names."""
        return self.sure | {(NOUN, noun) for noun in self.nouns}

    @cached_property
    def near(self) -> list[Relation]:
        """Relations that stand between their subject and their object, and no other object among them."""
        heads, found = [each.head for each in self.objects], []
        for each in self.relations:
            before = [head for head in heads if head < each.tokens[0]]
            follows = self.phrase_of(heads[each.object]).first == each.tokens[-1] + 1
            whole = each.tokens[-1] - each.tokens[0] == len(each.tokens) - 1
            if whole and follows and heads[each.subject] == max(before, default=None):
                found.append(each)
        return found

    def related(self, relation: Relation) -> Statement:
        """What a relation says."""
        return "relation", self.nouns[relation.subject], relation.lemma, self.nouns[relation.object]

    @cached_property
    def several(self) -> frozenset[str]:
        """Nouns that stand there in the plural or with a number."""
        plural = [noun for each, noun in zip(self.objects, self.nouns, strict=True) if self.words[each.head] != noun]
        return frozenset(plural).union(words[-1] for words in self.said if words[0] == "count")

    def beside(self, number: int) -> list[str]:
        """Nouns of an object and of those that it is in a relation with."""
        numbers = {number}
        for each in self.relations:
            if number in (each.subject, each.object):
                numbers |= {each.subject, each.object}
        return [self.nouns[each] for each in numbers]

    def phrase_of(self, head: int) -> Chunk:
        """The chunk that a word lies in, or the word alone: adverbs and auxiliaries lie in none."""
        around = (chunk for chunk in self.chunks if chunk.first <= head <= chunk.last)
        return next(around, Chunk("", head, head, head))

    def named(self, head: int, attribute: str = "") -> str:
        """A noun with one attribute, and with `a` or `an` where it has one in the caption."""
        words = f"{attribute} {self.words[head]}".strip()
        if self.words[self.phrase_of(head).first] in ARTICLES:
            return f"{article_before(words)} {words}"
        return words

    def written(self, first: int, last: int) -> str:
        """Characters of the words from `first` to `last`."""
        return self.text[self.tokens[first].start : self.tokens[last].end]

    def edit(self, first: int, last: int, new: str) -> Edit:
        """Writes something instead of the words from `first` to `last`, with a capital letter where they have one."""
        old = self.written(first, last)
        return Edit(first, old, new[:1].upper() + new[1:] if old[:1].isupper() else new)

    def replaced(self, new: Mapping[int, str]) -> list[Edit]:
        """Writes other words at some places, with the articles that fit them."""
        edits = []
        for at, word in sorted(new.items()):
            article = article_before(word)
            if at and self.words[at - 1] in ARTICLES - {article}:
                edits.append(self.edit(at - 1, at - 1, article))
            edits.append(self.edit(at, at, word))
        return edits

    def rewritten(self, chunk: Chunk, new: str) -> list[Edit]:
        """Writes something instead of a chunk."""
        return [self.edit(chunk.first, chunk.last, new)]

    def swapped(self, one: Chunk, two: Chunk) -> list[Edit]:
        """Two noun phrases in each other's place."""
        first, second = self.written(one.first, one.last), self.written(two.first, two.last)
        lowered = first[:1].lower() + first[1:] if self.tags[one.first] in {"D", "CD", "J"} else first
        return [self.edit(one.first, one.last, second), Edit(two.first, second, lowered)]


@dataclass(frozen=True)
class Image:
    """All captions of an image."""

    captions: Sequence[TaggedCaption]

    @cached_property
    def said(self) -> frozenset[Statement]:
        """What they say."""
        return frozenset().union(*(each.said for each in self.captions))

    @cached_property
    def nouns(self) -> frozenset[str]:
        """What they name."""
        return frozenset(noun for each in self.captions for noun in each.nouns)

    def has_one(self, *nouns: str) -> bool:
        """Return whether no caption names several things that one of the nouns may stand for."""
        for each in self.captions:
            for noun in nouns:
                alike = [other for other in each.nouns if may_be(noun, other)]
                if len(alike) > 1 or not each.several.isdisjoint(alike):
                    return False
        return True


def nouns_of(statement: Statement) -> tuple[str, ...]:
    """The nouns of a statement."""
    kind, *words = statement
    return tuple(words[::2] if kind == "relation" else words[-1:])


def noun_of(token: Token) -> str:
    """Lemma of a noun; that of `people` is `person`, but `glasses` may well be worn."""
    return "person" if token.lemma == "people" else token.lemma


def tagged_captions(parsed: Path, caption_ids: Sequence[str]) -> list[TaggedCaption]:
    """Captions with the words of their scene graphs.

    Args:
        parsed: artifact of `itrpipe parse`.
        caption_ids: T of them.

    Raises:
        MissingInputError: there is no such artifact.
        DataError: it is damaged, or one of the captions has no scene graph.
    """
    wanted = pc.field("caption_id").isin(pa.array(caption_ids, pa.string()))
    found: dict[str, TaggedCaption] = {}
    for table in SceneGraphFile(parsed).row_groups(("caption_id", *GRAPH_SCHEMA.names)):
        own = table.filter(wanted)
        for caption_id, graph in zip(own["caption_id"].to_pylist(), graphs_of(own), strict=True):
            # Without what a foreign parser found and the caption has no words for; nothing where it lacks an object.
            parts: Any = graph.objects, graph.attributes, graph.relations
            if any(each.head < 0 for each in graph.objects):
                parts = (), (), ()
            known = [tuple(each for each in part if each.tokens) for part in parts]
            found[caption_id] = TaggedCaption(graph.text, graph.tokens, *known)
    if missing := [name for name in caption_ids if name not in found]:
        raise DataError(
            f"{parsed}: {len(missing):,} of {len(caption_ids):,} captions have no scene graph (the first: "
            f"{missing[0]!r}); run `itrpipe parse` for this dataset"
        )
    return [found[name] for name in caption_ids]
