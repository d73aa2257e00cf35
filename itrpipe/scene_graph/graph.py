"""The data of scene graphs: tokens, typed links between them, and the graph that the links amount to.

Rules turn a caption into tokens and links (`Analysis`), and an extractor turns links into a graph.
`itrpipe.scene_graph.phrases` makes phrases of the elements of graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Item(NamedTuple):
    """A caption that a graph is made of.

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
    """The tokens of one caption and the links that the rules find between them."""

    tokens: tuple[Token, ...]
    links: tuple[Link, ...]
    status: str = "ok"


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
        kind: how the caption says it: `adjective`, `number`, `quantity`, `compound`, `action` or `copula`.
    """

    id: int
    object: int
    tokens: tuple[int, ...]
    lemma: str
    kind: str


@dataclass(frozen=True, slots=True)
class Relation:
    """Something between two objects.

    Attributes:
        id: position in `SceneGraph.relations`.
        subject, object: ids of two different objects.
        tokens: token numbers of the predicate alone, rising, not necessarily adjacent.
        lemma: of these.
        kind: how the caption says it: `verb`, `prep`, `verb_prep`, `have` or `agent`.
    """

    id: int
    subject: int
    object: int
    tokens: tuple[int, ...]
    lemma: str
    kind: str


@dataclass(frozen=True, slots=True)
class SceneGraph:
    """The graph of one caption; without any object it is empty, which is legal.

    Attributes:
        text: the caption.
        tokens: its words.
        objects, attributes, relations: the nodes and edges; elements that a foreign parser gave and whose words are
            not in the caption have no tokens, and the status is then `partial`.
        status: whether the rules analysed all of the caption (`ok`), a part of it (`partial`), or nothing (`failed`).
    """

    text: str
    tokens: tuple[Token, ...]
    objects: tuple[Object, ...] = ()
    attributes: tuple[Attribute, ...] = ()
    relations: tuple[Relation, ...] = ()
    status: str = "ok"
