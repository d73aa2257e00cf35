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
from pathlib import Path
from typing import Any

from itrpipe.datasets.source_files import ANY, OBJECT, load_json, rows
from itrpipe.errors import DataError
from itrpipe.scene_graph.graph import Attribute, Item, Object, Relation, SceneGraph, Token
from itrpipe.scene_graph.words import lemma_of, lists, parsed_part

# SPICE calls the id of what it parses `image_id`; other files that have captions mean the image.
CAPTION_KEYS = ("caption_id", "caption", "text", "image_id")
GRAPH_KEYS = ("graph", "scene_graph", "test_tuples")
_GROUP = re.compile(r"\(([^()]*)\)")
_MARK = re.compile(r"^(?:v|pv|p)\s*:\s*")
"""Marks of verbs and prepositions in FACTUAL's notation: `v:hold`."""
Tuples = list[list[str]]

# -- files -------------------------------------------------------------------------------------------------------------


def read_foreign(
    path: Path,
    caption_ids: Sequence[str],
    texts: Sequence[str],
) -> list[Item]:
    """Finds the graph of every caption.

    Args:
        path: the file.
        caption_ids: of the dataset, T of them.
        texts: the captions.

    Returns:
        T items whose graphs are JSON of lists of names; what is no such list of one to three names is an empty one.

    Raises:
        MissingInputError: there is no such file.
        DataError: it is no JSON, of no known format, or lacks a caption.
    """
    graphs: dict[str, str] = {}
    for key, graph in _records(path):
        tuples = _tuples(graph)
        if tuples is None:
            raise DataError(
                f"{path}: its graphs are of no format that is known (factual, tuples, spice), such as "
                f"{str(graph)[:60]!r}; see `itrpipe parse --help`"
            )
        content = json.dumps(tuples, ensure_ascii=False)
        if graphs.setdefault(_with_single_spaces(key), content) != content:
            raise DataError(f"{path}: {key!r} has two different graphs; give every caption one")

    # Caption ids or captions, whichever the file has more of.
    keys = list(caption_ids)
    spaced_texts = [_with_single_spaces(text) for text in texts]
    if sum(text in graphs for text in spaced_texts) > sum(key in graphs for key in keys):
        keys = spaced_texts
    missing = [row for row, key in enumerate(keys) if key not in graphs]
    if missing:
        row = missing[0]
        raise DataError(
            f"{path} has no graph for {len(missing):,} of {len(texts):,} captions (the first: "
            f"{caption_ids[row]!r}, {texts[row][:60]!r}); add them, empty where there is none"
        )
    return [Item(text, graphs[key]) for text, key in zip(texts, keys, strict=True)]


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
        key = _first_value(record, CAPTION_KEYS)
        graph = _first_value(record, GRAPH_KEYS)
        if key is None or graph is None:
            raise DataError(
                f"{path}: record {number} needs a key {' or '.join(CAPTION_KEYS)} and a key "
                f"{' or '.join(GRAPH_KEYS)}; rename its keys"
            )
        yield str(key), graph


def _first_value(record: Any, keys: Sequence[str]) -> Any:
    if isinstance(record, dict):
        for key in keys:
            if key in record:
                return record[key]
    return None


def _tuples(graph: Any) -> Tuples | None:
    """Return the tuples of a graph, an empty one for each that cannot be read; None for a graph of no known format."""
    groups: list[Any] = []
    if isinstance(graph, str):
        for group in _GROUP.findall(graph):
            groups.append([_MARK.sub("", part.strip()) for part in group.split(",")])
        if _GROUP.sub("", graph).replace(",", "").strip():
            groups.append([])  # text between the parentheses is one tuple that cannot be read
    elif isinstance(graph, list):
        for group in graph:
            if isinstance(group, dict) and "tuple" in group:
                group = group["tuple"]
            elif not isinstance(group, list):
                return None
            groups.append(group)
    else:
        return None
    tuples = []
    for group in groups:
        names = []
        if isinstance(group, list) and all(isinstance(name, str) for name in group):
            names = [_with_single_spaces(name).lower() for name in group]
        if len(names) > 3 or "" in names:
            names = []
        tuples.append(names)
    return tuples


def _with_single_spaces(text: str) -> str:
    return " ".join(text.split())


# -- words -------------------------------------------------------------------------------------------------------------


def align(
    text: str,
    tokens: tuple[Token, ...],
    tuples: Tuples,
) -> SceneGraph:
    """Makes a graph of tuples.

    Args:
        text: the caption.
        tokens: its words.
        tuples: (object), (object, attribute), (object, `is`, attribute) or (subject, predicate, object), in lower
            case; an empty one stands for what could not be read.
    """
    # An object that is in relation to one of its own name is a second one.
    names: dict[tuple[str, bool], int] = {}
    properties: dict[tuple[int, str], None] = {}
    pairs: dict[tuple[int, str, int], None] = {}
    for parts in filter(None, tuples):
        first = names.setdefault((parts[0], False), len(names))
        if len(parts) == 2 or parts[1:2] == ["is"]:
            properties[first, parts[-1]] = None
        elif len(parts) == 3:
            subject, predicate, target = parts
            second = names.setdefault((target, target == subject), len(names))
            pairs[first, predicate, second] = None

    words = _FreeWords(tokens)
    objects = []
    for name, _ in names:
        numbers = words.take(name)
        head = numbers[-1] if numbers else -1
        objects.append(
            Object(
                len(objects),
                head,
                numbers,
                name,
            )
        )
    # An attribute or predicate that is named again may share the words of the first.
    attributes = []
    for owner, name in properties:
        kind = "adjective"
        if name in lists.VAGUE_NUMBERS:
            kind = "quantity"
        elif name in lists.NUMERALS or name.isdigit():
            kind = "number"
        numbers = words.take(name) or words.taken.get(name, ())
        attributes.append(
            Attribute(
                len(attributes),
                owner,
                numbers,
                name,
                kind,
            )
        )
    relations = []
    for subject, name, target in pairs:
        parts = tuple(name.split())
        kind = "verb"
        if name in {"have", "has"}:
            kind = "have"
        elif parts in lists.IDIOMS or lists.PREPOSITIONS.issuperset(parts):
            kind = "prep"
        elif parts[-1] in lists.PREPOSITIONS:
            kind = "verb_prep"
        numbers = words.take(name, gaps=True) or words.taken.get(name, ())
        relations.append(
            Relation(
                len(relations),
                subject,
                target,
                numbers,
                name,
                kind,
            )
        )

    is_found = all(element.tokens for element in (*objects, *attributes, *relations))
    status = "partial"
    if tuples and not any(tuples):
        status = "failed"
    elif is_found and all(tuples) and parsed_part(text) == text:
        status = "ok"
    return SceneGraph(
        text,
        tokens,
        tuple(objects),
        tuple(attributes),
        tuple(relations),
        status,
    )


class _FreeWords:
    """The words of a caption that no element of its graph has yet.

    Attributes:
        taken: token numbers of each name, as they were taken first.
    """

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self._free = [{token.lemma, token.text.lower()} for token in tokens]
        self.taken: dict[str, tuple[int, ...]] = {}

    def take(self, name: str, gaps: bool = False) -> tuple[int, ...]:
        """Return the token numbers of the free words of a name, rising, which are then no more free; else none.

        Args:
            name: one or more words.
            gaps: other words may stand between them.
        """
        forms = []
        for word in name.split():
            word = lists.DIGITS.get(word, word)
            forms.append({word, lemma_of(word, "N"), lemma_of(word, "V")})
        numbers: list[int] = []
        for start in range(len(self._free) - len(forms) + 1):
            if not any(map(set.isdisjoint, forms, self._free[start:])):
                numbers = list(range(start, start + len(forms)))
                break
        if gaps and not numbers:
            words = iter(enumerate(self._free))
            for form in forms:
                for number, word in words:
                    if word & form:
                        numbers.append(number)
                        break
            if len(numbers) < len(forms):
                return ()
        for number in numbers:
            self._free[number] = set()
        if numbers:
            self.taken.setdefault(name, tuple(numbers))
        return tuple(numbers)
