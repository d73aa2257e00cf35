"""What a caption says, as data: tokens, typed links between them, and the graph that the links amount to.

Rules turn a caption into tokens and links (`Analysis`), and an extractor turns links into a graph. Each element of a
graph has a phrase: a set of token numbers, which is what a mask needs, and a label, which is what two captions can have
in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from itrpipe.scene_graph.words import parsed_part

AttributeKind = Literal["adjective", "number", "quantity", "compound", "action", "copula"]
RelationKind = Literal["verb", "prep", "verb_prep", "have", "agent"]
Status = Literal["ok", "partial", "failed"]
"""Whether the rules analysed all of a caption, a part of it, or nothing."""
PhraseKind = Literal["object", "attribute", "relation"]
KINDS: tuple[PhraseKind, ...] = ("object", "attribute", "relation")
MAX_PHRASES = 32
Label = tuple[str, ...]


class Item(NamedTuple):
    """What a graph is made from.

    Attributes:
        text: the caption.
        given: its elements as another tool found them, as JSON; empty when they are to be found here.
    """

    text: str
    given: str = ""


@dataclass(frozen=True, slots=True)
class Token:
    """One word or punctuation mark.

    Attributes:
        text: as written.
        start, end: characters of the caption, end exclusive, in Unicode code points.
        tag: part of speech, a key of the table TAGS of `words.toml`.
        lemma: dictionary form, lower case.
    """

    text: str
    start: int
    end: int
    tag: str
    lemma: str


class Link(NamedTuple):
    """A typed dependency between two tokens.

    Attributes:
        kind: a key of the table LINKS of `words.toml`.
        head, dependent: token numbers.
    """

    kind: str
    head: int
    dependent: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the rules find in one caption."""

    tokens: tuple[Token, ...]
    links: tuple[Link, ...]
    status: Status = "ok"


@dataclass(frozen=True, slots=True)
class Object:
    """Something the caption speaks of.

    Attributes:
        id: position in `SceneGraph.objects`.
        head: token number of its noun.
        tokens: token numbers of the noun and the compound words before it, rising.
        lemma: of all its tokens.
    """

    id: int
    head: int
    tokens: tuple[int, ...]
    lemma: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """A property of an object.

    Attributes:
        id: position in `SceneGraph.attributes`.
        object: id of the object.
        tokens: token numbers of the words that name it, the object's not among them.
        lemma: of these.
        kind: how the caption says it.
    """

    id: int
    object: int
    tokens: tuple[int, ...]
    lemma: str
    kind: AttributeKind


@dataclass(frozen=True, slots=True)
class Relation:
    """Something between two objects.

    Attributes:
        id: position in `SceneGraph.relations`.
        subject, object: ids of two different objects.
        tokens: token numbers of the predicate alone, rising, not necessarily adjacent.
        lemma: of these.
        kind: how the caption says it.
    """

    id: int
    subject: int
    object: int
    tokens: tuple[int, ...]
    lemma: str
    kind: RelationKind


@dataclass(frozen=True, slots=True)
class SceneGraph:
    """The graph of one caption; without any object it is empty, which is legal.

    Attributes:
        text: the caption.
        tokens: its words.
        objects, attributes, relations: the nodes and edges; elements that a foreign parser gave and whose words are
            not in the caption have no tokens, and the status is then `partial`.
        status: see `Status`.
    """

    text: str
    tokens: tuple[Token, ...]
    objects: tuple[Object, ...]
    attributes: tuple[Attribute, ...]
    relations: tuple[Relation, ...]
    status: Status = "ok"


def status_of(text: str, status: Status) -> Status:
    """Status of a caption's graph, given that of the part that is parsed."""
    return "partial" if status == "ok" and parsed_part(text) != text else status


@dataclass(frozen=True, slots=True)
class Phrase:
    """What one element of a graph says.

    Attributes:
        kind: of the element.
        tokens: token numbers, rising; none where a foreign element's words are not in the caption.
        label: lemmas in canonical order, modifiers before what they modify and subject before predicate before object,
            so that `the frisbee is yellow` gives (`yellow`, `frisbee`).
    """

    kind: PhraseKind
    tokens: tuple[int, ...]
    label: Label


def elements_of(graph: SceneGraph) -> Iterator[Phrase]:
    """Yields a phrase per element: objects, then attributes with their object, then relations with both of theirs.

    An object stands in other phrases by its head alone. A phrase lacks tokens altogether if the words of its object,
    of an attribute, or of one side of a relation are not in the caption.
    """

    def phrase(kind: PhraseKind, tokens: tuple[int, ...], *parts: Object | str) -> Phrase:
        heads = [each.head for each in parts if isinstance(each, Object)]
        label = " ".join(each if isinstance(each, str) else head_lemma(each) for each in parts)
        whole = min(heads, default=0) >= 0 and (tokens or kind == "relation")
        return Phrase(kind, tuple(sorted({*heads, *tokens})) if whole else (), tuple(label.split()))

    def head_lemma(each: Object) -> str:
        return graph.tokens[each.head].lemma if each.head >= 0 else each.lemma.split()[-1]

    objects = graph.objects
    for each in objects:
        yield phrase("object", each.tokens, each.lemma)
    for each in graph.attributes:
        yield phrase("attribute", each.tokens, each.lemma, objects[each.object])
    for each in graph.relations:
        yield phrase("relation", each.tokens, objects[each.subject], each.lemma, objects[each.object])


def phrases_of(graph: SceneGraph, limit: int = MAX_PHRASES, max_words: int | None = None) -> list[Phrase]:
    """The phrases that a model sees: those with tokens, each set of tokens once per kind, the first `limit` of them.

    Args:
        graph: of a caption.
        limit: phrases kept, in the order objects, attributes, relations.
        max_words: words of the caption that the model reads; phrases that reach beyond are left out.

    Source: SSAMT, Sec. 3.1, which does not say how many phrases a caption may have.
    """
    kept: dict[tuple[PhraseKind, tuple[int, ...]], Phrase] = {}
    for phrase in elements_of(graph):
        if phrase.tokens and (max_words is None or phrase.tokens[-1] < max_words):
            kept.setdefault((phrase.kind, phrase.tokens), phrase)
    return list(kept.values())[:limit]
