"""Precision, recall and F1 of scene graphs against graphs that people drew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from itrpipe.scene_graph.graph import Object, SceneGraph

Facts = tuple[frozenset[str], frozenset[tuple[str, str]], frozenset[tuple[str, str, str]]]
"""Objects, (object, attribute) and (subject, predicate, object) of one caption, all as lemmas."""


@dataclass(slots=True)
class Score:
    """Counts over captions.

    Attributes:
        right: elements in both graphs.
        found: elements that the parser gave.
        wanted: elements of the graphs that people drew.
    """

    right: int = 0
    found: int = 0
    wanted: int = 0

    @property
    def precision(self) -> float:
        """Share of what the parser gave that is right; in [0, 1], 1 where it gave nothing."""
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """Share of what people drew that the parser gave; in [0, 1], 1 where they drew nothing."""
        return self.right / self.wanted if self.wanted else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall, in [0, 1]."""
        total = self.found + self.wanted
        return 2 * self.right / total if total else 1.0


def facts_of(graph: SceneGraph) -> Facts:
    """Sets of lemmas that a graph says, an object under the lemma of its head.

    A compound counts as its head and an attribute, as in "SPICE" (Anderson et al., ECCV 2016, section 3.1).
    """
    head = {thing.id: _head_lemma(graph, thing) for thing in graph.objects}
    return (
        frozenset(head.values()),
        frozenset((head[said.object], said.lemma) for said in graph.attributes),
        frozenset((head[edge.subject], edge.lemma, head[edge.object]) for edge in graph.relations),
    )


def _head_lemma(graph: SceneGraph, thing: Object) -> str:
    return graph.tokens[thing.head].lemma if thing.tokens else thing.lemma


def score_facts(pairs: Iterable[tuple[Facts, Facts]]) -> dict[str, Score]:
    """Scores objects, attributes and relations over captions, each counted once per caption (micro average).

    Args:
        pairs: what the parser says and what people say of each caption.
    """
    scores = {"objects": Score(), "attributes": Score(), "relations": Score()}
    for found, wanted in pairs:
        for score, ours, theirs in zip(scores.values(), found, wanted, strict=True):
            score.right += len(ours & theirs)
            score.found += len(ours)
            score.wanted += len(theirs)
    return scores
