"""Scene graphs in Parquet: what is written is read again, and files that cannot be trusted are refused."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.errors import DataError, MissingInputError
from itrpipe.scene_graph import build
from itrpipe.scene_graph.build import Parsing, parsed_row_groups
from itrpipe.scene_graph.foreign import read_foreign
from itrpipe.scene_graph.graph import Item, Object, SceneGraph, Token
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, SceneGraphFile, graphs_of
from tests.maps import made
from tests.scene_graph.shared import parser, read_graphs, write


def graph(text: str, status: str = "ok") -> SceneGraph:
    tokens = tuple(Token(word, at, at + 1, "N", word) for at, word in enumerate(text))
    return SceneGraph(text, tokens, tuple(Object(at, at, (at,), word) for at, word in enumerate(text)), (), (), status)


# Files


def test_a_file_is_read_by_row_groups(tmp_path: Path) -> None:
    graphs = [graph("abcdefghij"[:row]) for row in range(10)]
    file = SceneGraphFile(write(tmp_path, graphs, [row // 2 for row in range(10)], rows=4))
    assert [len(table) for table in file.row_groups(["text"])] == [4, 4, 2]
    assert len(file) == 10
    assert read_graphs(tmp_path) == graphs
    expected = [{"caption_id": f"caption {row}", "image_id": f"image {row // 2}"} for row in range(10)]
    assert file.read(["caption_id", "image_id"]).to_pylist() == expected


def test_no_file_and_a_file_of_another_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"scene_graphs\.parquet is not there; .*run `itrpipe parse`"):
        SceneGraphFile(tmp_path)
    pq.write_table(pa.table({"caption_id": ["1"]}), tmp_path / SCENE_GRAPHS_FILE)
    with pytest.raises(DataError, match="other columns than this version writes"):
        SceneGraphFile(tmp_path)


# Chunks and processes


class Letters:
    """A parser whose objects are letters."""

    def parse(self, item: Item) -> SceneGraph:
        if item.text == "broken":
            raise ValueError("no such letter")
        return graph(item.text)


@pytest.fixture(autouse=True)
def chunks_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "CHUNK", 3)


def test_rows_are_taken_in_any_order_and_any_number_of_times(tmp_path: Path) -> None:
    paths = made(Parsing([Item(text) for text in "abcdefgh"], Letters), tmp_path).paths
    captions = pa.table({"caption_id": list("uvwxyz"), "image_id": ["i"] * 6})
    [graphs] = parsed_row_groups(paths, captions, np.array([7, 0, 0, 4, 3, 7]))
    assert graphs["text"].to_pylist() == list("haaedh")
    assert graphs["caption_id"].to_pylist() == list("uvwxyz")
    assert list(graphs_of(graphs))[3] == graph("e")


def test_an_error_says_which_caption_it_was(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such letter") as caught:
        made(Parsing([Item("a"), Item("broken")], Letters), tmp_path)
    assert caught.value.__notes__ == ["while parsing the caption 'broken'"]
    assert not list(tmp_path.glob("*.arrow"))


# Trees


CASES = tomllib.loads((Path(__file__).parent / "cases.toml").read_text("utf-8"))["foreign"]
FILES = json.loads(Path(__file__).with_name("foreign.json").read_text("utf-8"))
DOG, CAT = "A brown dog jumps over two logs.", "a cat"


def aligned(text: str, tuples: list[list[str]]) -> SceneGraph:
    return parser("lexicon").parse(Item(text, json.dumps(tuples)))


def read(path: Path, content: Any) -> list[list[list[str]]]:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return [json.loads(item.given) for item in read_foreign(path, ["7", "8"], [DOG, CAT])]


@pytest.mark.parametrize(("content", "dog", "cat"), FILES["read"])
def test_files_of_every_layout_are_read(content: Any, dog: Any, cat: Any, tmp_path: Path) -> None:
    assert read(tmp_path / f"graphs.json{'l' * isinstance(content, str)}", content) == [dog, cat]


@pytest.mark.parametrize(("content", "parts"), FILES["refused"])
def test_files_that_cannot_be_used(content: Any, parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "graphs.json"
    with pytest.raises(DataError) as caught:
        read(path, content)
    message = str(caught.value)
    assert all(part in message for part in [str(path), *parts]), message
    assert "\n" not in message
    with pytest.raises(MissingInputError, match=r"nowhere\.json"):
        read_foreign(tmp_path / "nowhere.json", ["7"], [DOG])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_word_belongs_to_one_element(case: list[Any]) -> None:
    graph = aligned(*case[:2])
    words = [list(each.tokens) for each in (*graph.objects, *graph.attributes, *graph.relations)]
    assert [words, graph.status] == case[2:]
    assert [each.head for each in graph.objects] == [each.tokens[-1] if each.tokens else -1 for each in graph.objects]
