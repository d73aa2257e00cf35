"""Benchmarks of hard negatives in the report: a table for each, its categories against methods."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from itrpipe.reporting.sections.benchmarks.section import benchmark_tables
from itrpipe.reporting.series import Series
from itrpipe.reporting.tables import DASH


def figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 3, "high": value + 2}


def run(seed: int, found: Mapping[str, Any], digest: str = "same") -> Any:
    sources = {"benchmark sugarcrepe": digest}
    manifest = SimpleNamespace(finished=f"2026-03-0{seed + 1}", sources=sources)
    return SimpleNamespace(seed=seed, figures=lambda file: found, manifest=manifest, settings={"interval_level": 0.95})


def series(name: str, *runs: Any) -> Any:
    return Series(name, runs, True)


def sugarcrepe(value: float, pairs: int = 40) -> dict[str, Any]:
    counts = {"pairs": pairs, "images": 20}
    own = {name: {**counts, "pairs": pairs // 2, "accuracy": figure(value + 5)} for name in ("add_att", "swap_att")}
    return {"sugarcrepe": {**counts, "accuracy": figure(value), "categories": own}}


def test_rows_are_categories_and_columns_methods() -> None:
    several = series("CLIP", *(run(seed, sugarcrepe(60.0 + seed)) for seed in range(3)))
    tables = benchmark_tables([several, series("VSRN", run(0, sugarcrepe(50.0))), series("other", run(0, {}))])
    (table,) = [each.table for each in tables]
    assert (table.title, table.columns) == ("SugarCrepe", ["CLIP", "VSRN"])
    assert [row.name for row in table.rows] == ["all pairs", "add_att", "swap_att"]
    assert [[cell.text for cell in row.cells] for row in table.rows] == [
        ["61.0", "50.0"],
        ["66.0", "55.0"],
        ["66.0", "55.0"],
    ]
    assert [cell.interval for cell in table.rows[0].cells] == ["± 1.0", f"47.0{DASH}52.0"]
    assert [cell.marked for cell in table.rows[0].cells] == [True, False]
    assert [row.note for row in table.rows] == ["40 pairs", "20 pairs", "20 pairs"]
    assert "50 % is chance" in table.caption


def test_other_pairs_are_named() -> None:
    runs = [run(0, sugarcrepe(50.0)), run(0, sugarcrepe(60.0, 30), "other")]
    (table,) = [each.table for each in benchmark_tables([series(str(each), each) for each in runs])]
    assert table.rows[0].note == "30 to 40 pairs, not the same for all runs"


def test_winoground_has_its_three_scores_in_their_order() -> None:
    counts = {"pairs": 8, "images": 8}
    scores = {name: figure(value) for name, value in (("text", 50.0), ("image", 25.0), ("group", 20.0))}
    found = {"winoground": {**counts, **scores, "categories": {"Object": {**counts, **scores}}}}
    (table,) = [each.table for each in benchmark_tables([series("CLIP", run(0, found))])]
    own = ["text score", "image score", "group score"]
    assert [row.name for row in table.rows] == [*own, *(f"Object, {name}" for name in own)]
    assert "right image" in table.caption
