"""Reads files of scene graphs that other parsers wrote: tuples of one, two or three names per caption.

A file is JSON: an object from caption id or caption to graph, or a list of records with a key `caption_id` or
`caption` and a key `graph` or `scene_graph`; or JSON Lines of such records. What a graph is tells the format:

    factual  text "( dog , is , brown ) , ( dog , jump over , log )", as FACTUAL prints it
    tuples   lists [["dog"], ["dog", "brown"], ["dog", "jump over", "log"]]
    spice    SPICE's detailed output, records with `image_id` (of the caption) and `test_tuples`
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from itrpipe.datasets.source_files import ANY, OBJECT, load_json, rows
from itrpipe.errors import DataError
from itrpipe.scene_graph.parsing import Item

# SPICE calls the id of what it parses `image_id`; other files that have captions mean the image.
CAPTION_KEYS = ("caption_id", "caption", "text", "image_id")
GRAPH_KEYS = ("graph", "scene_graph", "test_tuples")
MOST_PARTS = 3
_GROUP = re.compile(r"\(([^()]*)\)")
_MARK = re.compile(r"^(?:v|pv|p)\s*:\s*")
Tuples = list[list[str]]


def read_foreign(path: Path, form: str, caption_ids: Sequence[str], texts: Sequence[str]) -> list[Item]:
    """Finds the graph of every caption.

    Args:
        path: the file.
        form: `factual`, `tuples`, `spice`, or empty to recognise it.
        caption_ids: of the dataset, T of them.
        texts: the captions.

    Returns:
        T items whose graphs are JSON of lists of names; what is no such list of one to three names is an empty one.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is no JSON, of no known format or of another than `form`, or lacks a caption.
    """
    records = list(_records(path))
    found, read = _format_of(path, [graph for _, graph in records], form)
    graphs: dict[str, str] = {}
    for key, graph in records:
        given = json.dumps(read(graph), ensure_ascii=False)
        if graphs.setdefault(_plain(key), given) != given:
            raise DataError(f"{path}: {key!r} has two different graphs; give every caption one")
    keys = _matching_keys(path, found, graphs, caption_ids, texts)
    return [Item(text, graphs[key]) for text, key in zip(texts, keys, strict=True)]


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the key and the graph of every caption of a file."""
    lines = path.suffix.lower() == ".jsonl"
    content = [record for _, record in rows(path, OBJECT)] if lines else load_json(path, ANY)
    if isinstance(content, dict):
        yield from content.items()
        return
    for number, record in enumerate(content, start=1):
        values = [_first(record, keys) for keys in (CAPTION_KEYS, GRAPH_KEYS)]
        if not isinstance(record, dict) or None in values:
            raise DataError(
                f"{path}: record {number} needs a key {' or '.join(CAPTION_KEYS)} and a key "
                f"{' or '.join(GRAPH_KEYS)}; rename its keys"
            )
        yield str(values[0]), values[1]


def _first(record: Any, keys: Sequence[str]) -> Any:
    return next((record[key] for key in keys if key in record), None) if isinstance(record, dict) else None


def _is_text(graph: Any) -> bool:
    return isinstance(graph, str)


def _is_tuples(graph: Any) -> bool:
    return isinstance(graph, list) and all(isinstance(each, list) for each in graph)


def _is_spice(graph: Any) -> bool:
    return isinstance(graph, list) and all(isinstance(each, dict) and "tuple" in each for each in graph)


def _read_text(graph: str) -> Tuples:
    """FACTUAL's notation; its marks of verbs and prepositions (`v:hold`) are left out.

    Text between the parentheses of two tuples other than a comma is one tuple that cannot be read.
    """
    groups = [[_MARK.sub("", part.strip()) for part in group.split(",")] for group in _GROUP.findall(graph)]
    rest = _GROUP.sub("", graph).replace(",", "").strip()
    return [*_read_tuples(groups), *([[]] if rest else [])]


def _read_tuples(graph: list[Any]) -> Tuples:
    return [_names(each) for each in graph]


def _read_spice(graph: list[dict[str, Any]]) -> Tuples:
    return [_names(each["tuple"]) for each in graph]


def _names(group: Any) -> list[str]:
    """One to three names, in lower case and with single spaces, or none if it is anything else."""
    names = [_plain(name).lower() for name in group if isinstance(name, str)] if isinstance(group, list) else []
    return names if isinstance(group, list) and 1 <= len(names) == len(group) <= MOST_PARTS and all(names) else []


FORMATS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Tuples]]] = {
    "factual": (_is_text, _read_text),
    "tuples": (_is_tuples, _read_tuples),
    "spice": (_is_spice, _read_spice),
}


def _format_of(path: Path, graphs: list[Any], form: str) -> tuple[str, Callable[[Any], Tuples]]:
    """The format that all graphs have, and what reads them."""
    wanted = [form] if form else list(FORMATS)
    for name in wanted:
        recognises, read = FORMATS[name]
        if all(map(recognises, graphs)):
            return name, read
    what = f"not all of the format {form}" if form else f"of no format that is known ({', '.join(FORMATS)})"
    odd = next(graph for graph in graphs if not FORMATS[wanted[0]][0](graph))
    raise DataError(f"{path}: its graphs are {what}, such as {str(odd)[:60]!r}; see `itrpipe parse --help`")


def _matching_keys(
    path: Path, form: str, graphs: dict[str, str], caption_ids: Sequence[str], texts: Sequence[str]
) -> Sequence[str]:
    """Caption ids or captions, whichever the file has for all captions."""
    plain = [_plain(text) for text in texts]
    missing = {}
    for keys in (caption_ids, plain):
        missing[len(missing)] = [row for row, key in enumerate(keys) if key not in graphs]
        if not missing[len(missing) - 1]:
            return keys
    rows = min(missing.values(), key=len)
    raise DataError(
        f"{path} ({form}) has no graph for {len(rows):,} of {len(texts):,} captions (the first: "
        f"{caption_ids[rows[0]]!r}, {texts[rows[0]][:60]!r}); add them, empty where there is none"
    )


def _plain(text: str) -> str:
    return " ".join(text.split())
