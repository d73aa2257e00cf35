"""What people's judgements make of recall, beside what is measured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from itrpipe.reporting.sections.corrected.section import corrected_tables
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import DASH


def figures(r1: float, rsum: float) -> dict[str, dict[str, float]]:
    values = {"t2i_r1": r1, "rsum": rsum}
    return {name: {"value": value, "low": value - 1, "high": value + 1} for name, value in values.items()}


def run(seed: int, r1: float, digest: str = "same", judged: float = 25.0) -> Any:
    precision = {"t2i_map_at_r": {"value": 30.0, "low": 29.0, "high": 31.0}}
    found = {
        "judged_percent": {"i2t": 80.0, "t2i": judged},
        "corrected": figures(r1 + 5, 210.0) | precision,
        "at_most": figures(r1 + 20, 300.0),
    }
    manifest = SimpleNamespace(finished=f"2026-03-0{seed + 1}", sources={"decisions": digest})
    own = {"figures": lambda file: found, "metrics": {"full": figures(r1, 200.0)}, "settings": {"interval_level": 0.95}}
    return SimpleNamespace(seed=seed, manifest=manifest, **own)


def plain() -> Any:
    manifest = SimpleNamespace(finished="2026-03-01", sources={})
    return SimpleNamespace(seed=0, manifest=manifest, figures=lambda file: None, metrics={"full": figures(1.0, 9.0)})


def test_plain_corrected_and_at_most_stand_below_each_other() -> None:
    several = Series("AOQ", (run(0, 40.0), run(1, 42.0)), True)
    (table,) = (each.table for each in corrected_tables([several, Series("VSRN", (plain(),), True)]))
    assert table.columns == ["AOQ"], "a run that read no judgement has no column"
    rows = {row.name: (row.cells[0].text, row.note) for row in table.rows}
    assert rows["Images found first (R@1), own pairs alone"] == ("41.0", "")
    assert rows["Images found first (R@1), with pairs that fit"] == ("46.0", "25 % of the first ten judged")
    assert rows["Images found first (R@1), at most"] == ("61.0", "")
    assert rows["RSum, with pairs that fit"] == ("210.0", "80 % of the first ten judged")
    assert "mAP@R of images, own pairs alone" not in rows, "it is measured with several matches alone"
    assert "mAP@R of images, with pairs that fit" in rows
    assert "mAP@R of images, at most" not in rows
    assert [row.name.split(",")[0] for row in table.rows[:3]] == ["RSum"] * 3


def test_other_judgements_are_named() -> None:
    two = Series("AOQ", (run(0, 40.0), run(1, 42.0, "other", 35.0)), True)
    (table,) = (each.table for each in corrected_tables([two]))
    notes = {row.note for row in table.rows if row.note}
    assert "25 to 35 % of the first ten judged, not the same judgements for all runs" in notes
    one = Series("AOQ", (run(0, 40.0),), True)
    (table,) = (each.table for each in corrected_tables([one]))
    assert table.rows[0].cells[0].interval == f"199.0{DASH}201.0"


def test_without_judgements_there_is_no_table() -> None:
    assert corrected_tables([Series("VSRN", (plain(),), True)]) == []
