"""TREC files: every line has its fields, whatever ids look like."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.datasets.truth import write_truth
from itrpipe.evaluation.metrics import ranks, ranks_of_matches
from itrpipe.evaluation.rankings import write_cross_retrieval, write_rankings
from itrpipe.exporting import tools as trec
from itrpipe.features.embeddings import SplitScores

IMAGES = ["a dog.jpg", "100%.jpg", "bild\u00a0\u00e9"]
CAPTIONS = [f"{image}#{number}" for image in IMAGES for number in range(2)]


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """Rankings and pairs of a split whose ids hold spaces, and the truth: the first caption fits two images."""
    matrix = np.random.default_rng(0).integers(0, 3, (3, 6)).astype(np.float32) * np.float32(1e-6)  # with ties
    split = SplitScores(matrix, np.array(IMAGES), np.array(CAPTIONS), np.repeat(np.arange(3), 2))
    matches = np.array([0, 2, 0, 1, 1, 2, 2]), np.array([0, 0, 1, 2, 3, 4, 5])  # images, captions
    oracle = ranks_of_matches(matrix, *matches)
    write_rankings(tmp_path / "rankings.parquet", split, ranks(matrix, split.caption_image), oracle, 3)
    write_cross_retrieval(tmp_path / "pairs.parquet", split)
    own = {caption: [IMAGES[row // 2]] for row, caption in enumerate(CAPTIONS)}
    write_truth(tmp_path, own | {CAPTIONS[0]: [IMAGES[0], IMAGES[2]]})
    return tmp_path


def fields(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


@given(st.text(st.characters(codec="utf-8")))
def test_a_name_has_no_whitespace_and_can_be_read_back(name: str) -> None:
    escaped = trec.escape(name)
    assert len(escaped.split()) == (1 if name else 0)
    assert unquote(escaped) == name


def test_runs_keep_order_ids_and_exact_scores(evaluated: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trec, "_QUERIES", 2)  # a block holds queries of both directions
    trec.write_runs(evaluated, evaluated / "rankings.parquet", "a run")
    table = pq.read_table(evaluated / "rankings.parquet").to_pylist()
    for direction in trec.SIDES:
        rows = [row for row in table if row["direction"] == direction]
        lines = fields(evaluated / f"run.{direction}.trec")
        assert len(lines) == 3 * len(rows) > 0
        assert {(len(line), line[1], line[5]) for line in lines} == {(6, "Q0", "a%20run")}
        assert [unquote(line[0]) for line in lines[::3]] == [row["query_id"] for row in rows]
        assert [unquote(line[2]) for line in lines] == [name for row in rows for name in row["candidate_ids"]]
        assert [int(line[3]) for line in lines] == [1, 2, 3] * len(rows)
        assert [np.float32(line[4]) for line in lines] == [np.float32(x) for row in rows for x in row["scores"]]


def test_right_answers_are_own_pairs_and_every_true_match(evaluated: Path) -> None:
    trec.write_qrels(evaluated, evaluated / "pairs.parquet", evaluated)
    own = {(image, caption) for image in IMAGES for caption in CAPTIONS if caption.startswith(image)}
    for oracle, expected in ((False, own), (True, own | {(IMAGES[2], CAPTIONS[0])})):
        for direction, (query, document) in {"i2t": (0, 2), "t2i": (2, 0)}.items():
            lines = fields(evaluated / f"qrels.{'oracle.' if oracle else ''}{direction}.trec")
            assert {(unquote(line[query]), unquote(line[document])) for line in lines} == expected
            assert len(lines) == len(expected)
            assert {(line[1], line[3]) for line in lines} == {("0", "1")}
