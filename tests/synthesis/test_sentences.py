"""Sentences on disk, block by block, and what the statistics say of them."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.errors import DataError, MissingInputError
from itrpipe.synthesis.edits import Edit
from itrpipe.synthesis.sentences import SENTENCES_FILE, Sentence, SentenceBlocks, SentenceFile
from itrpipe.synthesis.statistics import facts, synthesis_statistics, table_rows


def sentence(caption: int, number: int, reason: str = "kept", score: float | None = 0.0) -> Sentence:
    edits = [Edit(position, "dog", f"new{number}") for position in range(number + 1)]
    likely = None if score is None else math.log(0.5)
    names = (f"c{caption}", f"i{caption // 2}", f"text {number}")
    return Sentence(*names, edits, score, 0.0 if score is not None else None, likely, likely, reason == "kept", reason)


def fill(blocks: SentenceBlocks) -> None:
    for block in blocks.pending():
        rows = [sentence(caption, number) for caption in blocks.captions(block) for number in range(caption % 3)]
        blocks.write(block, rows, {"kept": len(rows), "duplicate": 5})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    blocks = SentenceBlocks(tmp_path, 5, 2)
    assert [list(blocks.captions(block)) for block in range(len(blocks))] == [[0, 1], [2, 3], [4]]
    assert blocks.pending() == [0, 1, 2]
    fill(blocks)
    assert blocks.pending() == []
    blocks.join(tmp_path)
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
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    fill(SentenceBlocks(whole, 7, 2))
    interrupted = SentenceBlocks(parts, 7, 2)
    interrupted.write(1, [sentence(2, 0), sentence(2, 1)], {"kept": 2, "duplicate": 5})
    assert SentenceBlocks(parts, 7, 2).pending() == [0, 2, 3]
    fill(SentenceBlocks(parts, 7, 2))
    for folder in (whole, parts):
        SentenceBlocks(folder, 7, 2).join(folder)
    assert (whole / SENTENCES_FILE).read_bytes() == (parts / SENTENCES_FILE).read_bytes()


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="run `itrpipe synthesize`"):
        SentenceFile(tmp_path)
    blocks = SentenceBlocks(tmp_path, 4, 2)
    fill(blocks)
    first = tmp_path / "000000.parquet"
    whole = first.read_bytes()
    first.write_bytes(whole[:-20])
    with pytest.raises(DataError, match=r"000000\.parquet (is damaged|does not match its own checksum).*remove it"):
        blocks.join(tmp_path)
    first.write_bytes(whole)
    blocks.join(tmp_path)
    path = tmp_path / SENTENCES_FILE
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"sentences\.parquet is damaged.*synthesize` again"):
        SentenceFile(tmp_path)
    metadata = {b"drawn": b"{}"}
    pq.write_table(pa.table({"text": ["a dog"]}).replace_schema_metadata(metadata), path)
    with pytest.raises(DataError, match=r"has other columns than this version writes \(text string\)"):
        SentenceFile(tmp_path)


def test_statistics_count_what_was_drawn_and_measure_what_was_kept(tmp_path: Path) -> None:
    blocks = SentenceBlocks(tmp_path, 4, 4)
    rows = [sentence(0, 0, score=1.0), sentence(0, 2, score=-1.0), sentence(1, 1, "outranked", -9.0)]
    blocks.write(0, rows, {"kept": 2, "outranked": 1, "identical": 3, "duplicate": 2})
    blocks.join(tmp_path)
    found = synthesis_statistics(SentenceFile(tmp_path), 4)
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
    blocks = SentenceBlocks(tmp_path, 1, 4)
    blocks.write(0, [sentence(0, 0, score=None)], {"kept": 1})
    blocks.join(tmp_path)
    found = synthesis_statistics(SentenceFile(tmp_path), 1)
    assert found["gap"] is found["perplexity"] is found["beats_caption_percent"] is None
    assert facts(found) == ["1 sentences for 1 captions, 1.00 places changed in each"]


def test_no_sentence_at_all_is_a_legal_result(tmp_path: Path) -> None:
    blocks = SentenceBlocks(tmp_path, 2, 1)
    for block in blocks.pending():
        blocks.write(block, [], {"identical": 4})
    blocks.join(tmp_path)
    found = synthesis_statistics(SentenceFile(tmp_path), 2)
    assert found["sentences"] == 0
    assert found["captions_without_sentences"] == 2
    assert found["drawn"]["identical"] == 8
    assert table_rows(found)[1] == ("kept", "0", "0.0%")
    assert facts(found) == ["0 sentences for 2 captions", "2 captions have no sentence"]
