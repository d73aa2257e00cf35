"""Published scores beside measured ones: verdicts, what they are of, and what has none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from itrpipe.config import stages_folder
from itrpipe.report.published import RECALLS, Published, Reproduction, Tolerance, expected_json, reproductions

RECALL_VALUES = (70.0, 90.0, 95.0, 50.0, 80.0, 88.0)


@pytest.fixture
def evaluation(tmp_path: Path) -> Path:
    """An evaluation with recalls under two protocols and a further file."""
    values = dict(zip(RECALLS, RECALL_VALUES, strict=True))
    full = {name: {"value": value, "low": 0.0, "high": 100.0} for name, value in values.items()}
    full["rsum"] = {"value": sum(RECALL_VALUES), "low": 0.0, "high": 600.0}
    metrics = {"full": full, "coco-1k": {"rsum": {"value": 500.0}}}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    generators = {"phrases.tags.s1": {"percent": 99.0}, "phrases": {"tags": 0.0}}
    (tmp_path / "discrimination.json").write_text(json.dumps({"generators": generators}))
    (tmp_path / "matching.json").write_text(json.dumps({"uniform": {"i2t": {"global": 76.0, "phrase": None}}}))
    return tmp_path


def compared(evaluation: Path | None, tiny: bool = False, **published: Any) -> Reproduction:
    entry = Published.model_validate({"run": "aoq.vsrn", "where": "Table", **published})
    folders = {} if evaluation is None else {"aoq.vsrn": evaluation}
    (found,) = reproductions([entry], folders, Tolerance(ok=1.0, close=3.0), tiny=tiny)
    return found


@pytest.mark.parametrize(
    ("off", "verdict"), [(1.0, "OK"), (-1.0, "OK"), (1.01, "close"), (-3.0, "close"), (3.01, "FAIL"), (-30.0, "FAIL")]
)
def test_rsum_is_judged_by_the_tolerance(off: float, verdict: str) -> None:
    assert Tolerance(ok=1.0, close=3.0).judge(off, 6) == verdict


def test_one_recall_is_judged_by_its_share_of_the_tolerance() -> None:
    ok = 1.0 / math.sqrt(6)
    tolerance = Tolerance(ok=1.0, close=3.0)
    assert [tolerance.judge(off, 1) for off in (0.99 * ok, 1.01 * ok, 3.01 * ok)] == ["OK", "close", "FAIL"]


def test_rsum_decides_where_it_is_printed(evaluation: Path) -> None:
    found = compared(evaluation, rsum=474.0, i2t_r1=71.0)
    assert (found.headline.metric, found.headline.verdict) == ("rsum", "OK")
    assert [(score.metric, score.verdict) for score in found.scores] == [("rsum", "OK"), ("i2t_r1", "close")]
    assert found.line(10) == "OK       aoq.vsrn    rsum expected 474.0, got 473.0 (Table)"


def test_without_rsum_the_printed_recalls_are_added_up(evaluation: Path) -> None:
    found = compared(evaluation, i2t_r1=70.5, i2t_r5=90.5, t2i_r1=50.5, t2i_r5=80.5)
    assert (found.headline.metric, found.headline.expected, found.headline.measured) == (
        "sum of 4 recalls",
        292.0,
        290.0,
    )
    # 2 points off; 4 recalls may be off by sqrt(4 / 6) of 1 and of 3.
    assert found.headline.verdict == "close"


def test_what_is_not_to_be_judged_is_shown(evaluation: Path) -> None:
    recalls = {**dict(zip(RECALLS, RECALL_VALUES, strict=True)), "i2t_r1": 99.0}
    found = compared(evaluation, judged=False, note="leaks", rsum=302.0, **recalls)
    assert (found.headline.metric, found.headline.verdict, found.headline.measured) == ("rsum", "shown", 473.0)
    assert {score.verdict for score in found.scores} == {"shown"}
    assert found.line(8).startswith("shown ")
    assert found.line(8).endswith("(Table; leaks)")


def test_neither_direction_of_ascl_with_fusion_is_judged_nor_either_reading_of_ssamt() -> None:
    for name in ("flickr30k", "coco"):
        lines = (stages_folder() / "recipes" / f"{name}.toml").read_text().splitlines()
        ascl = [each for each in lines if 'where = "AsCL Table' in each]
        assert len(ascl) == 6
        for line in ascl:
            assert ("judged = false" in line) == ("w/o MF" not in line), line
    table = [each for each in lines if 'where = "SSAMT Table 4' in each]
    assert len(table) == 4
    assert all("judged = false" in each for each in table)
    assert ["matching.hardest" in each for each in table] == [False, True, False, True]


def test_scores_of_other_protocols_and_files_are_found_by_their_path(evaluation: Path) -> None:
    fold = compared(evaluation, protocol="coco-1k", rsum=500.5)
    assert fold.line(8) == "OK       aoq.vsrn  coco-1k rsum expected 500.5, got 500.0 (Table)"
    path = "matching.uniform.i2t.global"
    score: dict[str, Any] = {path: 76.2}
    found = compared(evaluation, **score)
    assert (found.headline.metric, found.headline.measured, found.headline.verdict) == (path, 76.0, "OK")
    assert compared(evaluation, **{"discrimination.generators.phrases.tags.s1.percent": 99.7}).headline.measured == 99.0
    both = compared(evaluation, **score, **{"matching.uniform.i2t.phrase": 97.1})
    assert (both.headline.metric, both.headline.verdict) == ("sum of 2 i2t scores", "missing")


@pytest.mark.parametrize("published", [{"rsum": 1.0, "protocol": "coco-5k"}, {"words.x.percent": 1.0}])
def test_what_was_not_measured_is_missing_and_never_zero(evaluation: Path, published: dict[str, Any]) -> None:
    found = compared(evaluation, **published)
    assert (found.headline.measured, found.headline.verdict) == (None, "missing")
    assert "not measured" in found.line(8)


def test_a_run_without_evaluation_is_missing() -> None:
    found = compared(None, rsum=486.3)
    assert (found.headline.measured, found.headline.verdict) == (None, "missing")
    assert found.line(8) == "missing  aoq.vsrn  rsum expected 486.3, not measured (Table)"


def test_toy_models_are_not_judged(evaluation: Path) -> None:
    assert compared(evaluation, tiny=True, rsum=473.0).headline.verdict == "tiny"
    assert compared(None, tiny=True, rsum=473.0).headline.verdict == "missing"


def test_the_same_for_programs(evaluation: Path) -> None:
    found = compared(evaluation, title="AOQ", rsum=474.0)
    written = json.loads(json.dumps(expected_json([found], Tolerance(ok=1, close=3), tiny=False)))
    assert written["tolerance"] == {"ok": 1.0, "close": 3.0}
    score = {"metric": "rsum", "expected": 474.0, "measured": 473.0, "verdict": "OK"}
    assert written["runs"] == [
        {
            **{"run": "aoq.vsrn", "title": "AOQ", "where": "Table", "note": "", "protocol": "full", "verdict": "OK"},
            "headline": score,
            "scores": [score],
        }
    ]


@pytest.mark.parametrize("given", [{}, {"where": "x"}, {"rsum": 1.0}, {"where": "x", "i2t_r2": 3.0}])
def test_a_publication_without_scores_or_source_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Published.model_validate(given)


def test_close_may_not_be_stricter_than_ok() -> None:
    with pytest.raises(ValidationError, match=r"close = 1 is less than ok = 2"):
        Tolerance(ok=2.0, close=1.0)
