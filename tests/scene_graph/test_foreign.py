"""Graphs of other parsers: what their files may look like, and how their names are found in the captions."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from itrpipe.errors import DataError, MissingInputError
from itrpipe.scene_graph.foreign import read_foreign
from itrpipe.scene_graph.graph import Item, SceneGraph
from tests.scene_graph.shared import parser

CASES = tomllib.loads((Path(__file__).parent / "cases.toml").read_text("utf-8"))["foreign"]
FILES = json.loads(Path(__file__).with_name("foreign.json").read_text("utf-8"))
DOG, CAT = "A brown dog jumps over two logs.", "a cat"


def aligned(text: str, tuples: list[list[str]]) -> SceneGraph:
    return parser("lexicon").parse(Item(text, json.dumps(tuples)))


def read(path: Path, content: Any, form: str = "") -> list[list[list[str]]]:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return [json.loads(item.given) for item in read_foreign(path, form, ["7", "8"], [DOG, CAT])]


@pytest.mark.parametrize(("content", "dog", "cat"), FILES["read"])
def test_files_of_every_layout_are_read(content: Any, dog: Any, cat: Any, tmp_path: Path) -> None:
    assert read(tmp_path / f"graphs.json{'l' * isinstance(content, str)}", content) == [dog, cat]


@pytest.mark.parametrize(("content", "form", "parts"), FILES["refused"])
def test_files_that_cannot_be_used(content: Any, form: str, parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "graphs.json"
    with pytest.raises(DataError) as caught:
        read(path, content, form)
    message = str(caught.value)
    assert all(part in message for part in [str(path), *parts]), message
    assert "\n" not in message
    with pytest.raises(MissingInputError, match=r"nowhere\.json"):
        read_foreign(tmp_path / "nowhere.json", "", ["7"], [DOG])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_word_belongs_to_one_element(case: list[Any]) -> None:
    graph = aligned(*case[:2])
    words = [list(each.tokens) for each in (*graph.objects, *graph.attributes, *graph.relations)]
    assert [words, graph.status] == case[2:]
    assert [each.head for each in graph.objects] == [each.tokens[-1] if each.tokens else -1 for each in graph.objects]
