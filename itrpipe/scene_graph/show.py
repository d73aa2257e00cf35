"""A scene graph as a tree for the terminal."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from itrpipe.scene_graph.graph import Object, SceneGraph

OBJECT_STYLE, ATTRIBUTE_STYLE, RELATION_STYLE, KIND_STYLE = "bold cyan", "green", "magenta", "dim"


def graph_tree(graph: SceneGraph) -> Tree:
    """One branch per object, with its attributes and the relations of which it is the subject.

    Lemmas are shown, and beside an element how the caption words it where that differs.
    """
    tree = Tree(Text(graph.text or "(empty caption)", style="bold"))
    for each in graph.objects:
        _add_object(tree, graph, each)
    if not graph.objects:
        tree.add(Text("no objects", style=KIND_STYLE))
    if graph.status != "ok":
        tree.add(Text(f"status: {graph.status}", style="yellow"))
    return tree


def _add_object(tree: Tree, graph: SceneGraph, each: Object) -> None:
    branch = tree.add(_element(graph, each.lemma, each.tokens, OBJECT_STYLE, ""))
    for attribute in graph.attributes:
        if attribute.object == each.id:
            branch.add(_element(graph, attribute.lemma, attribute.tokens, ATTRIBUTE_STYLE, attribute.kind))
    for relation in graph.relations:
        if relation.subject == each.id:
            line = _element(graph, relation.lemma, relation.tokens, RELATION_STYLE, "")
            line.append(" → ").append(graph.objects[relation.object].lemma, style=OBJECT_STYLE)
            branch.add(line.append(f"  {relation.kind}", style=KIND_STYLE))


def _element(graph: SceneGraph, lemma: str, tokens: tuple[int, ...], style: str, kind: str) -> Text:
    words = " ".join(graph.tokens[token].text for token in tokens)
    # Not Text(lemma, style), whose style all that follows would inherit.
    line = Text().append(lemma, style=style)
    if words.lower() != lemma:
        line.append(f"  “{words}”" if tokens else "  (no words of the caption)", style=KIND_STYLE)
    return line.append(f"  {kind}", style=KIND_STYLE) if kind else line
