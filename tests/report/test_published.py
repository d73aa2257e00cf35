"""Published scores beside measured ones: verdicts, what they are of, and what has none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from itrpipe.report.published import (
    RECALLS,
    Published,
    RunScores,
    Tolerance,
    compare_published,
    expected_json,
    table_lines,
)

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
VALUES = (70.0, 90.0, 95.0, 50.0, 80.0, 88.0)
TOLERANCE = Tolerance(ok=1.0, close=3.0)


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    """An evaluation with recalls under two protocols and further files."""
    full = {name: {"value": value} for name, value in zip(RECALLS, VALUES, strict=True)} | {"rsum": {"value": 473.0}}
    written = {"metrics": {"full": full, "coco-1k": {"rsum": {"value": 500.0}}}}
    written["discrimination"] = {"generators": {"phrases.tags.s1": {"percent": 99.0}, "phrases": {"tags": 0.0}}}
    written["matching"] = {"uniform": {"i2t": {"global": 76.0, "phrase": None}}}
    for name, content in written.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def compared(evaluation: Path | None, published: dict[str, Any], *, tiny: bool = False) -> RunScores:
    entry = Published.model_validate({"run": "aoq.vsrn", "where": "Table", **published})
    (found,) = compare_published([entry], {"aoq.vsrn": evaluation} if evaluation else {}, TOLERANCE, tiny=tiny)
    return found


def test_a_sum_of_recalls_is_judged_by_its_share_of_the_tolerance() -> None:
    entry = Published(where="Table", scores={"rsum": 0.0})
    for recalls, share in ((6, 1.0), (1, 1 / math.sqrt(6))):
        found = [TOLERANCE.verdict(entry, off * share, 0.0, recalls) for off in (0.99, -0.99, 1.01, -2.99, 3.01, -30.0)]
        assert found == ["OK", "OK", "close", "close", "FAIL", "FAIL"]


@pytest.mark.parametrize(("published", "headline", "measured", "verdict"), CASES["scores"])
def test_rsum_or_the_sum_of_all_scores_decides(
    evaluation: Path, published: dict[str, Any], headline: str, measured: float | None, verdict: str
) -> None:
    found = compared(evaluation, published).total
    assert (found.metric, found.measured, found.verdict) == (headline, measured, verdict)


def test_toy_models_are_not_judged_and_a_run_without_evaluation_is_missing(evaluation: Path) -> None:
    assert compared(evaluation, {"rsum": 473.0}, tiny=True).total.verdict == "tiny"
    found = compared(None, {"rsum": 486.3}, tiny=True)
    assert table_lines([found]) == ["missing  aoq.vsrn  rsum expected 486.3, not measured (Table)"]


def test_the_same_for_people_and_programs(evaluation: Path) -> None:
    found = compared(evaluation, {"title": "AOQ", "note": "leaks", "rsum": 474.0})
    assert table_lines([found]) == ["OK       AOQ  rsum expected 474.0, got 473.0 (Table; leaks)"]
    score = {"metric": "rsum", "expected": 474.0, "measured": 473.0, "verdict": "OK"}
    run = {"run": "aoq.vsrn", "title": "AOQ", "where": "Table", "note": "leaks", "protocol": "full", "verdict": "OK"}
    runs = [{**run, "headline": score, "scores": [score]}]
    written = expected_json([found], TOLERANCE, tiny=False)
    assert written == {"tolerance": {"ok": 1.0, "close": 3.0}, "tiny": False, "runs": runs}


@pytest.mark.parametrize("given", [{}, {"where": "x"}, {"rsum": 1.0}, {"where": "x", "i2t_r2": 3.0}])
def test_a_publication_without_scores_or_source_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Published.model_validate(given)


def test_close_may_not_be_stricter_than_ok() -> None:
    with pytest.raises(ValidationError, match=r"close = 1 is less than ok = 2"):
        Tolerance(ok=2.0, close=1.0)
