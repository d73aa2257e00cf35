"""Scene graphs in Parquet: what is written is read again, and files that cannot be trusted are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.errors import DataError, MissingInputError
from itrpipe.scene_graph import build
from itrpipe.scene_graph.build import ParsedGraphs, Parsing
from itrpipe.scene_graph.graph import Item, Object, SceneGraph, Token
from itrpipe.scene_graph.stored import SCENE_GRAPHS_FILE, SceneGraphFile, caption_sha1, graphs_of
from tests.maps import made
from tests.scene_graph.shared import write


def graph(text: str, status: str = "ok") -> SceneGraph:
    tokens = tuple(Token(word, at, at + 1, "N", word) for at, word in enumerate(text))
    return SceneGraph(text, tokens, tuple(Object(at, at, (at,), word) for at, word in enumerate(text)), (), (), status)


# Rows


def test_the_digest_of_a_caption_is_that_of_its_bytes() -> None:
    assert caption_sha1("é").hex() == "bf15be717ac1b080b4f1c456692825891ff5073d"


# Files


def test_a_file_is_read_by_row_groups_and_by_rows(tmp_path: Path) -> None:
    graphs = [graph("abcdefghij"[:row]) for row in range(10)]
    file = SceneGraphFile(write(tmp_path, graphs, [row // 2 for row in range(10)], rows=4))
    assert [len(table) for table in file.row_groups(["text"])] == [4, 4, 2]
    assert len(file) == 10
    assert list(file.graphs()) == graphs
    assert [file.graph_at(row) for row in (9, 0, 4)] == [graphs[9], graphs[0], graphs[4]]
    assert file.caption_ids[3] == "caption 3"
    assert file.image_ids == [f"image {row // 2}" for row in range(10)]


def test_no_file_and_a_file_of_another_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"scene_graphs\.parquet is not there; .*run `itrpipe parse`"):
        SceneGraphFile(tmp_path)
    pq.write_table(pa.table({"caption_id": ["1"]}), tmp_path / SCENE_GRAPHS_FILE)
    with pytest.raises(DataError, match="other columns than this version writes"):
        SceneGraphFile(tmp_path)


# Chunks and processes


class Letters:
    """A parser whose objects are letters."""

    version = "letters/1"

    def parse(self, item: Item) -> SceneGraph:
        if item.text == "broken":
            raise ValueError("no such letter")
        return graph(item.text)


@pytest.fixture(autouse=True)
def chunks_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "CHUNK", 3)


def test_rows_are_taken_in_any_order_and_any_number_of_times(tmp_path: Path) -> None:
    graphs = ParsedGraphs(made(Parsing([Item(text) for text in "abcdefgh"], Letters), tmp_path).paths)
    rows = np.array([7, 0, 0, 4, 3, 7])
    assert graphs.take(rows)["text"].to_pylist() == list("haaedh")
    assert list(graphs_of(graphs.take(rows)))[3] == graph("e")


def test_an_error_says_which_caption_it_was(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such letter") as caught:
        made(Parsing([Item("a"), Item("broken")], Letters), tmp_path)
    assert caught.value.__notes__ == ["while parsing the caption 'broken'"]
    assert not list(tmp_path.glob("*.arrow"))


# Trees
