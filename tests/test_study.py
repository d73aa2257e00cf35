"""The scripts that make tables of evidence out of the numbers of reports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from itrpipe.evaluation.intervals import seed_interval

DOCS = Path(__file__).parents[1] / "docs"


def run(method: str, seed: int, rsum: float, *, epochs: int = 0, noisy: bool = False) -> dict[str, Any]:
    setting = {"training": "2,000 images / 10,000 captions", "train_share": 1.0, "batch_size": 128}
    noise = {"data": {"noise": "0.5"}, "train_share": 0.5} if noisy else {"data": {"noise": "0.0"}}
    return {
        **{"backbone": "VSRN", "features": "scenes", "seed": seed, "shown_as": method, "baseline": method == "first"},
        "setting": setting | noise,
        "not_as_declared": {"epochs": {"value": epochs, "declared": 6}} if epochs else {},
        "metrics": {"full": {"rsum": {"value": rsum}}},
    }


def tables(folder: Path, script: str, runs: list[dict[str, Any]], *more: str | Path) -> str:
    """What a script prints of these runs."""
    file = folder / "report" / "page" / "results.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"runs": runs}), encoding="utf-8")
    done = subprocess.run([sys.executable, DOCS / script, file, *more], capture_output=True, text=True, check=True)
    return done.stdout


def test_gains_are_those_over_the_best_baseline_of_the_same_setting(tmp_path: Path) -> None:
    runs = [
        *(run("first", 0, 400.0), run("first", 1, 402.0)),
        *(run("first", 0, 410.0, epochs=12), run("first", 1, 411.0, epochs=12)),
        *(run("mined", 0, 413.0), run("mined", 1, 412.0)),
        *(run("first", 0, 500.0, noisy=True), run("mined", 0, 490.0, noisy=True)),
        run("mined", 0, 900.0) | {"setting": {}},
    ]
    printed = tables(tmp_path, "study.py", runs)
    rows = dict(re.findall(r"^\| ([^|]*) \| ([^|]*) \|$", printed, re.MULTILINE))
    over_seeds, over_settings = seed_interval([3.0, 1.0], 0.95), seed_interval([2.0, -10.0], 0.95)
    numbers = {
        name: [float(each) for each in re.findall(r"[+-]\d+\.\d", cell.replace("−", "-"))]
        for name, cell in rows.items()
    }
    assert printed.startswith("**VSRN: RSum.**")
    assert numbers["2,000 images, batch 128, noise 0.0"] == pytest.approx(
        [2.0, over_seeds.low, over_seeds.high], abs=0.06
    )
    assert rows["1,000 images, batch 128, noise 0.5"] == "−10.0 (1 seed)"
    assert numbers["mean of all settings"] == pytest.approx([-4.0, over_settings.low, over_settings.high], abs=0.06)


def write_ranks(evaluation: Path, rank: int) -> None:
    """Write an evaluation of one photograph with one caption, both of this rank."""
    evaluation.mkdir(parents=True)
    captions = {"caption_id": ["1"], "image_id": ["a"]}
    ranks = {"direction": ["i2t", "t2i"], "query_id": ["a", "1"], "rank": [rank, rank]}
    pq.write_table(pa.table(captions), evaluation / "cross_retrieval.parquet")
    pq.write_table(pa.table(ranks), evaluation / "rankings.parquet")


def on_photographs(method: str, seed: int, rsum: float, **trained: Any) -> dict[str, Any]:
    kinds = {"object": {"sentences": 40, "percent": {"value": rsum / 4}, "blind": {"value": 57.5}}}
    usual = {"method": "contrastive", "freeze": "both", "train_share": 1.0, "epochs": 40, "batch_size": 256}
    return run(method, seed, rsum) | {
        "artifact": f"{method}-{seed}-{rsum}",
        "trained": {**usual, "seed": seed, **trained},
        "discrimination": {"graph-edits": {"kinds": kinds}},
        "corrected": {"by_judges": {"recalls": {"rsum": {"value": rsum + 100}}}},
    }


def test_evidence_on_photographs_is_beside_the_plain_and_the_best_baseline_of_the_same_setting(tmp_path: Path) -> None:
    runs = [
        *(on_photographs("first", 0, 300.0), on_photographs("first", 1, 302.0)),
        on_photographs("first", 0, 305.0, batch_size=512),
        *(on_photographs("mined", 0, 313.0), on_photographs("mined", 1, 312.0)),
        *(on_photographs("first", 0, 310.0, epochs=80), on_photographs("first", 1, 311.0, epochs=80)),
        on_photographs("first", 0, 350.0, freeze="vision"),
        on_photographs("mined", 0, 900.0) | {"trained": {}},
    ]
    for each in runs:
        rank = 0 if each["shown_as"] == "mined" else 10
        write_ranks(tmp_path / "evaluate" / each["artifact"], rank)
    printed = tables(tmp_path, "flickr8k.py", runs, "--to", tmp_path)
    heads, text = printed.split("**VSRN, text encoder and heads, InfoNCE.**")
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in heads.splitlines() if line.startswith("|")}
    recall = next(line for line in heads.splitlines() if line.startswith("| mined")).split(" | ")
    assert recall[1:3] == ["2", "312.5 ± 0.7"]
    for cell, differences in zip(recall[3:5], ([13.0, 10.0], [3.0, 1.0]), strict=True):
        interval = seed_interval(differences, 0.95)
        low = f"{interval.low:+.1f}".replace("-", "\N{MINUS SIGN}")
        assert cell == f"{sum(differences) / 2:+.1f} (2 seeds, {low} to {interval.high:+.1f})"
    assert recall[5] == "+360.0 to +360.0", "15 fifths of a hit as a query and 3 of its caption"
    assert recall[6] == "412.5 ± 0.7 |"
    names = [name for name in rows if name.startswith("first")]
    assert len(names) == 3, "batches and epochs tell trainings apart"
    assert [cell.strip() for cell in rows["without the image"]] == ["57.5"]
    assert [cell.strip() for cell in rows["mined"]] == ["78.1 ± 0.2"]
    assert "350.0" in text
    assert "900.0" not in printed
