"""What tests of scene graphs share: parsers, files of graphs, and what a graph says."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from itrpipe.scene_graph.build import RulesParser
from itrpipe.scene_graph.graph import SceneGraph
from itrpipe.scene_graph.stored import (
    GRAPH_SCHEMA,
    SCENE_GRAPHS_FILE,
    SceneGraphFile,
    graphs_of,
    graphs_table,
    with_ids,
    write_graphs,
)

TAGGERS = ("hanta", "lexicon")
Facts = tuple[set[str], set[tuple[str, str]], set[tuple[str, str, str]]]
"""Objects, (object, attribute) and (subject, predicate, object) of one caption, all as lemmas."""


@cache
def parser(tagger: Any) -> RulesParser:
    return RulesParser(tagger)


def write(folder: Path, graphs: Sequence[SceneGraph], images: Sequence[int], rows: int = 3) -> Path:
    """Writes graphs of captions of these images, so many a row group."""
    names = [[f"caption {row}" for row in range(len(graphs))], [f"image {image}" for image in images]]
    table = with_ids(pa.table(names, ["caption_id", "image_id"]), graphs_table(graphs))
    write_graphs(folder / SCENE_GRAPHS_FILE, [table.slice(at, rows) for at in range(0, len(graphs), rows)])
    return folder


def read_graphs(folder: Path) -> list[SceneGraph]:
    """Reads the graphs of all captions."""
    graphs: list[SceneGraph] = []
    for table in SceneGraphFile(folder).row_groups(GRAPH_SCHEMA.names):
        graphs += graphs_of(table)
    return graphs


def facts_of(graph: SceneGraph) -> Facts:
    """Sets of lemmas that a graph says, an object under the lemma of its head.

    A compound counts as its head and an attribute, as in "SPICE" (Anderson et al., ECCV 2016, section 3.1).
    """
    head = {thing.id: graph.tokens[thing.head].lemma for thing in graph.objects}
    return (
        set(head.values()),
        {(head[said.object], said.lemma) for said in graph.attributes},
        {(head[edge.subject], edge.lemma, head[edge.object]) for edge in graph.relations},
    )
