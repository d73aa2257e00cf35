"""Judgements: kept through crashes and between people, undone, summed up, and what a sample of them tells."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from itrpipe.errors import DataError, MissingInputError
from itrpipe.review import (
    SCHEMA,
    DecisionFile,
    Decisions,
    Judgement,
    agreement_of,
    decisions_digest,
    read_decisions,
    share_of,
)


def judged(reviewer: str, answers: dict[str, str]) -> list[Judgement]:
    """Answers by the caption, each of another image."""
    return [Judgement(reviewer, f"image of {caption}", caption, answer) for caption, answer in answers.items()]


@pytest.fixture
def file(tmp_path: Path) -> DecisionFile:
    return DecisionFile(tmp_path / "mine" / "decisions.parquet")


def verdicts(decisions: Decisions) -> dict[str, str]:
    found = decisions.verdicts
    return dict(zip(found.caption_ids.tolist(), found.verdict.tolist(), strict=True))


def test_without_a_file_nothing_is_decided(file: DecisionFile) -> None:
    assert len(file.read()) == 0
    assert len(file.read().verdicts) == 0
    assert file.read().agreements() == {}
    with pytest.raises(MissingInputError, match="no such file of decisions"):
        read_decisions(file.path)


def test_the_last_answer_counts_and_undone_takes_it_back(file: DecisionFile) -> None:
    file.add(judged("ada", {"1": "fits", "2": "fits", "3": "unsure"}))
    file.add(judged("ada", {"1": "differs", "2": "undone"}))
    assert file.read().of("ada") == {("image of 1", "1"): "differs", ("image of 3", "3"): "unsure"}
    assert len(file.read()) == 5, "rows are added and never changed"
    assert verdicts(file.read()) == {"1": "differs", "3": "unsure"}


def test_who_is_unsure_contradicts_nobody_and_two_who_are_sure_may(file: DecisionFile) -> None:
    file.add(judged("ada", {"1": "fits", "2": "fits", "3": "unsure"}))
    file.add(judged("bob", {"1": "differs", "2": "unsure", "3": "unsure"}))
    assert verdicts(file.read()) == {"1": "disputed", "2": "fits", "3": "unsure"}


def test_only_what_is_decided_changes_what_is_made_with_it(file: DecisionFile) -> None:
    file.add(judged("ada", {"1": "fits", "2": "differs"}))
    before = decisions_digest(str(file.path))
    file.add(judged("bob", {"1": "fits", "3": "unsure"}))
    assert decisions_digest(str(file.path)) == before
    file.add(judged("bob", {"3": "fits"}))
    assert decisions_digest(str(file.path)) != before


def test_files_of_several_people_are_merged_once(file: DecisionFile, tmp_path: Path) -> None:
    other = DecisionFile(tmp_path / "bob.parquet")
    file.add(judged("ada", {"1": "fits", "2": "differs"}))
    other.add(judged("bob", {"1": "fits", "2": "fits"}))
    assert file.merge([other.read()]) == 2
    assert file.merge([other.read(), file.read()]) == 0
    assert verdicts(file.read()) == {"1": "fits", "2": "disputed"}
    assert file.read().reviewers == ["ada", "bob"]


def test_a_merged_file_keeps_the_order_of_the_answers(file: DecisionFile, tmp_path: Path) -> None:
    other = DecisionFile(tmp_path / "elsewhere.parquet")
    other.add(judged("ada", {"1": "fits"}))
    file.add(judged("ada", {"1": "differs"}))
    file.merge([other.read()])
    assert verdicts(file.read()) == {"1": "differs"}, "the later answer"


@pytest.mark.parametrize("content", [b"", b"no parquet", None])
def test_damage_is_said(file: DecisionFile, content: bytes | None) -> None:
    file.add(judged("ada", {"1": "fits"}))
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-20] if content is None else content)
    with pytest.raises(DataError, match="truncated or damaged"):
        file.add(judged("ada", {"2": "fits"}))


def test_other_tables_and_answers_are_refused(file: DecisionFile) -> None:
    file.path.parent.mkdir()
    pq.write_table(pa.table({"answer": ["fits"]}), file.path)
    with pytest.raises(DataError, match="has the columns answer"):
        file.read()
    row = {**dict.fromkeys(SCHEMA.names, ""), "at": 0, "answer": "maybe"}
    pq.write_table(pa.Table.from_pylist([row], schema=SCHEMA), file.path)
    with pytest.raises(DataError, match="'maybe'"):
        file.read()
    pq.write_table(pa.Table.from_pylist([row | {"answer": "fits", "reviewer": None}], schema=SCHEMA), file.path)
    with pytest.raises(DataError, match="reviewer is empty in 1 rows"):
        file.read()


def _add(path: Path, reviewer: str) -> None:
    for number in range(20):
        DecisionFile(path).add(judged(reviewer, {str(number): "fits"}))


def test_two_processes_lose_no_row(file: DecisionFile) -> None:
    context = multiprocessing.get_context("spawn")
    both = [context.Process(target=_add, args=(file.path, name)) for name in ("ada", "bob")]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert {name: len(file.read().of(name)) for name in ("ada", "bob")} == {"ada": 20, "bob": 20}


def test_a_kill_loses_at_most_the_row_being_written(file: DecisionFile) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from itrpipe.review import DecisionFile, Judgement\n"
        "file, number = DecisionFile(Path(sys.argv[1])), 0\n"
        "while True:\n"
        "    file.add([Judgement('ada', 'image', str(number), 'fits')])\n"
        "    number += 1\n"
        "    print(number, flush=True)\n"
    )
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", script, str(file.path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        told = 0
        deadline = time.monotonic() + 0.2
        for line in writer.stdout:
            told = int(line)
            if told > 3 and time.monotonic() > deadline:
                break
        os.kill(writer.pid, signal.SIGKILL)
        told = max([told, *map(int, writer.stdout.read().split())])
        writer.wait()
        assert told <= len(file.read().of("ada")), "what was confirmed is there"


def test_kappa_is_that_of_cohen() -> None:
    """The example of Cohen's paper in two classes: 20 and 15 alike, 5 and 10 not, as textbooks have it."""
    one = np.array([True] * 25 + [False] * 25)
    other = np.array([True] * 20 + [False] * 5 + [True] * 10 + [False] * 15)
    found = agreement_of(one, other)
    assert found.same == 0.7
    assert found.kappa == pytest.approx(0.4)
    error = math.sqrt(0.7 * 0.3 / 50) / 0.5
    assert (found.low, found.high) == pytest.approx((0.4 - 1.959964 * error, 0.4 + 1.959964 * error), abs=1e-6)
    assert agreement_of(one[:25], other[:20].repeat(2)[:25]).kappa is None


def test_wilsons_interval_is_that_of_the_textbook() -> None:
    found = share_of(10, 50, 10**9)
    assert (found.low, found.high) == pytest.approx((0.1124, 0.3304), abs=1e-4)
    assert share_of(0, 0, 9).value is None


@pytest.mark.parametrize(
    ("population", "true", "judged"), [(200, 80, 50), (200, 80, 150), (3_000, 1_200, 1_300), (400, 40, 250)]
)
def test_an_interval_of_a_finite_population_holds_the_truth_as_often_as_it_says(
    population: int, true: int, judged: int
) -> None:
    covered = 0.0
    for found in range(max(0, judged - population + true), min(true, judged) + 1):
        ways = math.lgamma(true + 1) - math.lgamma(found + 1) - math.lgamma(true - found + 1)
        rest, left = population - true, judged - found
        ways += math.lgamma(rest + 1) - math.lgamma(left + 1) - math.lgamma(rest - left + 1)
        ways -= math.lgamma(population + 1) - math.lgamma(judged + 1) - math.lgamma(population - judged + 1)
        share = share_of(found, judged, population)
        covered += math.exp(ways) * (share.low <= true / population <= share.high)
    assert 0.92 < covered < 0.98
    whole = share_of(true, population, population)
    assert whole.low == whole.high


@given(st.integers(0, 40), st.integers(1, 40))
def test_an_interval_holds_its_share(found: int, more: int) -> None:
    share = share_of(found, found + more, found + more + 7)
    assert share.value is not None
    assert 0.0 <= share.low <= share.value <= share.high <= 1.0
