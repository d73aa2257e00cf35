"""Sentences on disk, block by block, and what the statistics say of them."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.errors import DataError, MissingInputError
from itrpipe.synthesis.edits import Edit
from itrpipe.synthesis.make import Writing
from itrpipe.synthesis.opened import Opened
from itrpipe.synthesis.sentences import SENTENCES_FILE, Sentence, SentenceFile, join_parts, write_part
from itrpipe.synthesis.statistics import facts, synthesis_statistics, table_rows
from tests.maps import made


def sentence(caption: int, number: int, reason: str = "kept", score: float | None = 0.0) -> Sentence:
    edits = [Edit(position, "dog", f"new{number}") for position in range(number + 1)]
    likely = None if score is None else math.log(0.5)
    names = (f"c{caption}", f"i{caption // 2}", f"text {number}")
    return Sentence(*names, edits, score, 0.0 if score is not None else None, likely, likely, reason == "kept", reason)


class Counting:
    """Makes no sentence of the first of three captions, one of the second, two of the third; notes its blocks."""

    def __init__(self) -> None:
        self.blocks: list[int] = []

    def make(self, rows: range, block: int) -> tuple[list[Sentence], dict[str, int]]:
        self.blocks.append(block)
        found = [sentence(caption, number) for caption in rows for number in range(caption % 3)]
        return found, {"kept": len(found), "duplicate": 5}


def writing(count: int, maker: Counting | None = None) -> Writing:
    texts = {f"c{caption}": "a dog" for caption in range(count)}
    return Writing(lambda: Opened(maker or Counting(), texts, None), 2)


def joined(folder: Path, *parts: tuple[list[Sentence], dict[str, int]]) -> SentenceFile:
    paths = [folder / f"{number}.parquet" for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        write_part(path, *part)
    join_parts(paths, folder)
    return SentenceFile(folder)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    maker = Counting()
    work = writing(5, maker)
    assert [list(part.content) for part in work.parts()] == [[0, 1], [2, 3], [4]]
    paths = made(work, tmp_path / "parts").paths
    assert maker.blocks == [0, 1, 2]
    assert made(work, tmp_path / "parts").rows == 0
    join_parts(paths, tmp_path)
    file = SentenceFile(tmp_path)
    assert file.drawn == {"duplicate": 15, "kept": 4}
    rows = [row for table in file.row_groups() for row in table.to_pylist()]
    assert len(rows) == len(file) == 4
    assert rows[2] == {
        "caption_id": "c2",
        "image_id": "i1",
        "text": "text 1",
        "edits": [{"position": 0, "old": "dog", "new": "new1"}, {"position": 1, "old": "dog", "new": "new1"}],
        "score": 0.0,
        "positive_score": 0.0,
        "log_probability": pytest.approx(math.log(0.5)),
        "caption_log_probability": pytest.approx(math.log(0.5)),
        "kept": True,
        "reason": "kept",
    }


def test_an_interrupted_run_makes_only_what_is_missing_and_ends_in_the_same_bytes(tmp_path: Path) -> None:
    whole, interrupted = tmp_path / "whole", tmp_path / "interrupted"
    (interrupted / "parts").mkdir(parents=True)
    write_part(interrupted / "parts" / "000001.parquet", [sentence(2, 0), sentence(2, 1)], {"kept": 2, "duplicate": 5})
    maker = Counting()
    assert made(writing(7, maker), interrupted / "parts").rows == 5
    assert maker.blocks == [0, 2, 3]
    for folder in (whole, interrupted):
        join_parts(made(writing(7), folder / "parts").paths, folder)
    assert (whole / SENTENCES_FILE).read_bytes() == (interrupted / SENTENCES_FILE).read_bytes()


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="run `itrpipe synthesize`"):
        SentenceFile(tmp_path)
    paths = made(writing(4), tmp_path / "parts").paths
    first = paths[0]
    whole = first.read_bytes()
    first.write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"000000\.parquet (is damaged|does not match its own checksum).*remove it"):
        join_parts(paths, tmp_path)
    told: list[str] = []
    made(writing(4), tmp_path / "parts", warn=told.append)  # which makes it again
    assert first.read_bytes() == whole
    assert "1 of 2 parts" in told[0]
    join_parts(paths, tmp_path)
    path = tmp_path / SENTENCES_FILE
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"sentences\.parquet is damaged.*synthesize` again"):
        SentenceFile(tmp_path)
    metadata = {b"drawn": b"{}"}
    pq.write_table(pa.table({"text": ["a dog"]}).replace_schema_metadata(metadata), path)
    with pytest.raises(DataError, match=r"has other columns than this version writes \(text string\)"):
        SentenceFile(tmp_path)


def test_statistics_count_what_was_drawn_and_measure_what_was_kept(tmp_path: Path) -> None:
    rows = [sentence(0, 0, score=1.0), sentence(0, 2, score=-1.0), sentence(1, 1, "outranked", -9.0)]
    file = joined(tmp_path, (rows, {"kept": 2, "outranked": 1, "identical": 3, "duplicate": 2}))
    found = synthesis_statistics(file, 4)
    gap = 1 / (1 + math.exp(-1)) - 0.5
    assert found["drawn"] == {"kept": 2, "identical": 3, "false negative": 0, "duplicate": 2, "outranked": 1}
    assert found["sentences"] == 2
    assert found["captions_without_sentences"] == 3
    assert found["words_changed"] == 2.0
    assert found["gap"]["minimum"] == pytest.approx(-gap, abs=1e-4)
    assert found["gap"]["maximum"] == pytest.approx(gap, abs=1e-4)
    assert found["beats_caption_percent"] == 50.0
    assert found["perplexity"] == found["caption_perplexity"] == 2.0
    assert table_rows(found)[1:3] == [("kept", "2", "25.0%"), ("rejected: identical", "3", "37.5%")]
    assert table_rows(found)[-1] == ("drawn", "8", "")
    assert facts(found)[:2] == [
        "2 sentences for 4 captions, 2.00 places changed in each",
        "3 captions have no sentence",
    ]
    assert len(facts(found)) == 4


def test_sentences_that_no_model_scored_have_no_gap(tmp_path: Path) -> None:
    found = synthesis_statistics(joined(tmp_path, ([sentence(0, 0, score=None)], {"kept": 1})), 1)
    assert found["gap"] is found["perplexity"] is found["beats_caption_percent"] is None
    assert facts(found) == ["1 sentence for 1 caption, 1.00 places changed in each"]


def test_no_sentence_at_all_is_a_legal_result(tmp_path: Path) -> None:
    found = synthesis_statistics(joined(tmp_path, *[([], {"identical": 4})] * 2), 2)
    assert found["sentences"] == 0
    assert found["captions_without_sentences"] == 2
    assert found["drawn"]["identical"] == 8
    assert table_rows(found)[1] == ("kept", "0", "0.0%")
    assert facts(found) == ["0 sentences for 2 captions", "2 captions have no sentence"]
