"""Phrases of a caption: what an object, an attribute or a relation says, as words of the caption and as a label.

A phrase is a set of token numbers, which is what a mask needs; its label is a sequence of lemmas, which is what two
captions can have in common. Here they are for one graph; `phrase_arrays` holds those of a whole dataset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from itrpipe.scene_graph.graph import Object, SceneGraph

PhraseKind = Literal["object", "attribute", "relation"]
KINDS: tuple[PhraseKind, ...] = ("object", "attribute", "relation")
MAX_PHRASES = 32
Label = tuple[str, ...]
"""Lemmas in canonical order: modifiers before what they modify, subject before predicate before object."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """What one element of a graph says.

    Attributes:
        kind: of the element.
        tokens: token numbers, rising; none where a foreign element's words are not in the caption.
        label: lemmas in canonical order, so that `the frisbee is yellow` gives (`yellow`, `frisbee`).
    """

    kind: PhraseKind
    tokens: tuple[int, ...]
    label: Label


def elements_of(graph: SceneGraph) -> Iterator[Phrase]:
    """Yields a phrase per element: objects, then attributes with their object, then relations with both of theirs.

    An object stands in other phrases by its head alone. A phrase lacks tokens altogether if the words of its object,
    of an attribute, or of one side of a relation are not in the caption.
    """
    for each in graph.objects:
        yield Phrase("object", each.tokens, _words(each.lemma))
    for attribute in graph.attributes:
        owner = graph.objects[attribute.object]
        whole = owner.head >= 0 and attribute.tokens
        tokens = _union(attribute.tokens, (owner.head,)) if whole else ()
        yield Phrase("attribute", tokens, (*_words(attribute.lemma), *_head(graph, owner)))
    for relation in graph.relations:
        subject, target = graph.objects[relation.subject], graph.objects[relation.object]
        whole = subject.head >= 0 and target.head >= 0
        tokens = _union((subject.head,), relation.tokens, (target.head,)) if whole else ()
        label = (*_head(graph, subject), *_words(relation.lemma), *_head(graph, target))
        yield Phrase("relation", tokens, label)


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


def word_labels(graph: SceneGraph) -> list[Label]:
    """The label of every token."""
    return [_words(token.lemma) for token in graph.tokens]


def _head(graph: SceneGraph, each: Object) -> Label:
    return _words(graph.tokens[each.head].lemma) if each.head >= 0 else _words(each.lemma)[-1:]


def _words(lemma: str) -> Label:
    return tuple(lemma.split())


def _union(*parts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({token for part in parts for token in part}))
