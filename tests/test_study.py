"""The script that makes the tables of a study out of the numbers of reports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from itrpipe.evaluation.intervals import seed_interval

SCRIPT = Path(__file__).parents[1] / "docs" / "study.py"


def run(method: str, seed: int, rsum: float, *, epochs: int = 0, noisy: bool = False) -> dict[str, Any]:
    setting = {"training": "2,000 images / 10,000 captions", "train_share": 1.0, "batch_size": 128}
    noise = {"data": {"noise": "0.5"}, "train_share": 0.5} if noisy else {"data": {"noise": "0.0"}}
    return {
        **{"backbone": "VSRN", "features": "scenes", "seed": seed, "shown_as": method, "baseline": method == "first"},
        "setting": setting | noise,
        "not_as_declared": {"epochs": {"value": epochs, "declared": 6}} if epochs else {},
        "metrics": {"full": {"rsum": {"value": rsum}}},
    }


def test_gains_are_those_over_the_best_baseline_of_the_same_setting(tmp_path: Path) -> None:
    runs = [
        *(run("first", 0, 400.0), run("first", 1, 402.0)),
        *(run("first", 0, 410.0, epochs=12), run("first", 1, 411.0, epochs=12)),
        *(run("mined", 0, 413.0), run("mined", 1, 412.0)),
        *(run("first", 0, 500.0, noisy=True), run("mined", 0, 490.0, noisy=True)),
        run("mined", 0, 900.0) | {"setting": {}},
    ]
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"runs": runs}), encoding="utf-8")
    done = subprocess.run([sys.executable, SCRIPT, file], capture_output=True, text=True, check=True)
    rows = dict(re.findall(r"^\| ([^|]*) \| ([^|]*) \|$", done.stdout, re.MULTILINE))
    over_seeds, over_settings = seed_interval([3.0, 1.0], 0.95), seed_interval([2.0, -10.0], 0.95)
    numbers = {
        name: [float(each) for each in re.findall(r"[+-]\d+\.\d", cell.replace("−", "-"))]
        for name, cell in rows.items()
    }
    assert done.stdout.startswith("**VSRN: RSum.**")
    assert numbers["2,000 images, batch 128, noise 0.0"] == pytest.approx(
        [2.0, over_seeds.low, over_seeds.high], abs=0.06
    )
    assert rows["1,000 images, batch 128, noise 0.5"] == "−10.0 (1 seed)"
    assert numbers["mean of all settings"] == pytest.approx([-4.0, over_settings.low, over_settings.high], abs=0.06)
