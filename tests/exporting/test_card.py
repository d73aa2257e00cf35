"""The cards: what the hub reads of them, and their tables."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from itrpipe import papers
from itrpipe.evaluation.metrics import PROTOCOLS, metrics, ranks
from itrpipe.exporting.card import PICTURE, TITLES, model_card, write_picture

FULL = {"i2t_r1": {"value": 43.84, "low": 40.0, "high": 47.96}, "rsum": {"value": 400.0, "low": 390.0, "high": 410.0}}


def card(**facts: Any) -> str:
    known = dict.fromkeys(("license", "example"))
    known |= {"title": "VSE++, AOQ, mine", "run": "aoq.vsepp", "backbone": "vsepp", "conf": "aoq", "dataset": "mine"}
    known |= {"split": "test", "embeds": True, "reads": "its features", "photographs": True, "level": 0.95}
    known |= {"results": {"full": FULL, "oracle": {**FULL, "i2t_map_at_r": {"value": 5.0}}}}
    known |= {"counts": {"train": (2000, 10000), "test": (100, 500)}, "fingerprints": {"train/aoq.vsepp": "0123abcd"}}
    known |= {"commands": ["itrpipe train --method aoq"], "trained": "2026-01-31T23:59:59+00:00"}
    known |= {"versions": {"itrpipe": "0.1.0", "torch": "2.8.0"}, "files": {"model.safetensors": "weights"}}
    known |= {"papers": [papers.AOQ], "libraries": [], "tables": {}}
    known |= dict.fromkeys(("architecture", "reason", "padded", "difference", "mteb"), "")
    return model_card(known | facts)


def test_a_table_has_every_metric_under_every_protocol() -> None:
    text = card()
    for line in (
        "| metric | full | oracle | chance |",
        "| Image to text R@1 | 43.8 (40.0–48.0) | 43.8 (40.0–48.0) | 1.0 |",
        "| Image to text mAP@R | – | 5.0 | – |",
        "| RSum | 400.0 (390.0–410.0) | 400.0 (390.0–410.0) | 31.6 |",
        "- `oracle`: as `full`, with all correct matches counted.",
    ):
        assert f"{line}\n" in text
    for name, protocol in PROTOCOLS.items():
        alone = card(results={name: FULL})
        assert f"- `{name}`: {protocol.description}.\n" in alone
        assert ("chance" in alone) == (name == "full")
    measured = metrics(ranks(np.eye(3), np.arange(3)))
    assert {*measured, "t2i_map_at_r", "t2i_r_precision"} <= {*TITLES}


def test_a_picture_holds_photographs_side_by_side_at_one_height(tmp_path: Path) -> None:
    colours = {"red": (40, 20), "lime": (30, 30), "blue": (10, 40)}
    files = []
    for colour, size in colours.items():
        stream = io.BytesIO()
        Image.new("RGB", size, colour).save(stream, "PNG")
        files.append(stream.getvalue())
    write_picture(tmp_path, files)
    strip = Image.open(tmp_path / PICTURE)
    assert strip.size == (40 + 6 + 20 + 6 + 5, 20)
    for place, expected in ((20, (255, 0, 0)), (43, (255, 255, 255)), (56, (0, 255, 0)), (74, (0, 0, 255))):
        np.testing.assert_allclose(strip.convert("RGB").getpixel((place, 10)), expected, atol=12)
