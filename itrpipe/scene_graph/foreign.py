"""Graphs of other parsers, read from their files and found in the words of the captions.

A file is JSON: an object from caption id or caption to graph, or a list of records with a key `caption_id` or
`caption` and a key `graph` or `scene_graph`; or JSON Lines of such records. What a graph is tells the format:

    factual  text "( dog , is , brown ) , ( dog , jump over , log )", as FACTUAL prints it
    tuples   lists [["dog"], ["dog", "brown"], ["dog", "jump over", "log"]]
    spice    SPICE's detailed output, records with `image_id` (of the caption) and `test_tuples`

These give names without saying where in the caption they stand. Objects come first, then attributes, then relations,
each in the order given. An element is the leftmost run of words with its lemmas that no other element has; a predicate
may also have other words between its own (`hold it up`). An attribute or predicate that is named again where no further
run is left shares the words of the first (`red shirt and pants`). What is not found is kept without words, and the
status of the graph is then `partial`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from itrpipe.datasets.source_files import ANY, OBJECT, load_json, rows
from itrpipe.errors import DataError
from itrpipe.scene_graph.graph import Attribute, Item, Object, Relation, SceneGraph, Token, status_of
from itrpipe.scene_graph.words import lemma_of, lists

# SPICE calls the id of what it parses `image_id`; other files that have captions mean the image.
CAPTION_KEYS = ("caption_id", "caption", "text", "image_id")
GRAPH_KEYS = ("graph", "scene_graph", "test_tuples")
_GROUP = re.compile(r"\(([^()]*)\)")
_MARK = re.compile(r"^(?:v|pv|p)\s*:\s*")
Tuples = list[list[str]]

# -- files -------------------------------------------------------------------------------------------------------------


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
    read = {name: [FORMATS[name](graph) for _, graph in records] for name in ([form] if form else FORMATS)}
    known = [name for name, all_tuples in read.items() if None not in all_tuples]
    if not known:
        what = f"not all of the format {form}" if form else f"of no format that is known ({', '.join(FORMATS)})"
        odd = str(records[next(iter(read.values())).index(None)][1])
        raise DataError(f"{path}: its graphs are {what}, such as {odd[:60]!r}; see `itrpipe parse --help`")
    graphs: dict[str, str] = {}
    for (key, _), tuples in zip(records, read[known[0]], strict=True):
        given = json.dumps(tuples, ensure_ascii=False)
        if graphs.setdefault(_plain(key), given) != given:
            raise DataError(f"{path}: {key!r} has two different graphs; give every caption one")
    # Caption ids or captions, whichever the file has for all captions.
    choices = [caption_ids, [_plain(text) for text in texts]]
    missing = [[row for row, key in enumerate(keys) if key not in graphs] for keys in choices]
    rows = min(missing, key=len)
    if rows:
        raise DataError(
            f"{path} ({known[0]}) has no graph for {len(rows):,} of {len(texts):,} captions (the first: "
            f"{caption_ids[rows[0]]!r}, {texts[rows[0]][:60]!r}); add them, empty where there is none"
        )
    return [Item(text, graphs[key]) for text, key in zip(texts, choices[missing.index(rows)], strict=True)]


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the key and the graph of every caption of a file."""
    if path.suffix.lower() == ".jsonl":
        content: Any = [record for _, record in rows(path, OBJECT)]
    else:
        content = load_json(path, ANY)
    if isinstance(content, dict):
        yield from content.items()
        return
    for number, record in enumerate(content, start=1):
        keys = [key for key in CAPTION_KEYS if key in record] if isinstance(record, dict) else []
        graphs = [record[key] for key in GRAPH_KEYS if key in record] if keys else []
        if not graphs or graphs[0] is None or record[keys[0]] is None:
            raise DataError(
                f"{path}: record {number} needs a key {' or '.join(CAPTION_KEYS)} and a key "
                f"{' or '.join(GRAPH_KEYS)}; rename its keys"
            )
        yield str(record[keys[0]]), graphs[0]


def _factual(graph: Any) -> Tuples | None:
    """FACTUAL's notation; its marks of verbs and prepositions (`v:hold`) are left out.

    Text between the parentheses of two tuples other than a comma is one tuple that cannot be read.
    """
    if not isinstance(graph, str):
        return None
    groups = [[_MARK.sub("", part.strip()) for part in group.split(",")] for group in _GROUP.findall(graph)]
    rest = _GROUP.sub("", graph).replace(",", "").strip()
    return [*map(_names, groups), *([[]] if rest else [])]


def _listed(graph: Any, key: str = "") -> Tuples | None:
    """A list of lists of names, or of records with such lists under a key."""
    if not isinstance(graph, list):
        return None
    known = (isinstance(each, dict) and key in each if key else isinstance(each, list) for each in graph)
    return [_names(each[key] if key else each) for each in graph] if all(known) else None


FORMATS = {"factual": _factual, "tuples": _listed, "spice": partial(_listed, key="tuple")}


def _names(group: Any) -> list[str]:
    """One to three names, in lower case and with single spaces, or none if it is anything else."""
    names = [_plain(name).lower() for name in group if isinstance(name, str)] if isinstance(group, list) else []
    return names if 1 <= len(names) <= 3 and len(names) == len(group) and all(names) else []


def _plain(text: str) -> str:
    return " ".join(text.split())


# -- words -------------------------------------------------------------------------------------------------------------


def align(text: str, tokens: tuple[Token, ...], tuples: Tuples) -> SceneGraph:
    """Makes a graph of tuples.

    Args:
        text: the caption.
        tokens: its words.
        tuples: (object), (object, attribute), (object, `is`, attribute) or (subject, predicate, object), in lower
            case; an empty one stands for what could not be read.
    """
    # An object that is in relation to one of its own name is a second one.
    names: dict[tuple[str, int], int] = {}
    properties: dict[tuple[int, str], None] = {}
    pairs: dict[tuple[int, str, int], None] = {}
    for each in filter(None, tuples):
        first = names.setdefault((each[0], 0), len(names))
        if len(each) == 2 or each[1:2] == ["is"]:
            properties[first, each[-1]] = None
        elif len(each) == 3:
            second = names.setdefault((each[2], int(each[2] == each[0])), len(names))
            pairs[first, each[1], second] = None

    forms = [{token.lemma, token.text.lower()} for token in tokens]
    known: dict[str, tuple[int, ...]] = {}

    def find(name: str, gaps: bool = False) -> tuple[int, ...]:
        """Token numbers of the free words of a name, rising; none if they are not there. They are then no more free.

        Args:
            name: one or more words.
            gaps: other words may stand between them.
        """
        wanted = [lists.DIGITS.get(word, word) for word in name.split()]
        wanted = [{word, lemma_of(word, "N"), lemma_of(word, "V")} for word in wanted]
        found: tuple[int, ...] = ()
        for start in range(len(forms) - len(wanted) + 1):
            if not found and all(forms[start + i] & own for i, own in enumerate(wanted)):
                found = tuple(range(start, start + len(wanted)))
        if gaps and not found:
            numbers = iter(range(len(forms)))
            scattered = [next((i for i in numbers if forms[i] & own), -1) for own in wanted]
            found = () if -1 in scattered else tuple(scattered)
        for token in found:
            forms[token] = set()
        if found:
            known.setdefault(name, found)
        return found

    objects = []
    for name, _ in names:
        own = find(name)
        objects.append(Object(len(objects), own[-1] if own else -1, own, name))
    # An attribute or predicate that is named again may have the words of the first.
    attributes = []
    for owner, name in properties:
        kind = "quantity" if name in lists.VAGUE_NUMBERS else "adjective"
        if name in lists.NUMERALS or name.isdigit():
            kind = "number"
        attributes.append(Attribute(len(attributes), owner, find(name) or known.get(name, ()), name, kind))
    relations = []
    for subject, name, target in pairs:
        words = tuple(name.split())
        kind = "verb_prep" if words[-1] in lists.PREPOSITIONS else "verb"
        if words in (("have",), ("has",)):
            kind = "have"
        elif words in lists.IDIOMS or set(words) <= lists.PREPOSITIONS:
            kind = "prep"
        own = find(name, gaps=True) or known.get(name, ())
        relations.append(Relation(len(relations), subject, target, own, name, kind))
    status = "partial" if any(tuples) else "failed"
    if all(each.tokens for each in (*objects, *attributes, *relations)) and all(tuples):
        status = "ok"
    return SceneGraph(text, tokens, tuple(objects), tuple(attributes), tuple(relations), status_of(text, status))
