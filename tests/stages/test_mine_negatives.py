"""`itrpipe mine-negatives`: engines that agree, windows, duplicates and the table it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.negatives.lists import FILES, read_list

Invoke = Callable[..., Any]
TRAIN = ["train.epochs=1", "train.model.embed_dim=8", "train.model.word_dim=8", "train.min_word_count=1"]


@pytest.fixture
def mine(chain: Path, invoke: Invoke) -> Callable[..., Path]:
    """Mines with the finished round one of the dataset `tiny` and returns the artifact's folder."""

    def run(*arguments: str) -> Path:
        given = [*TRAIN, "train.batch_size=16", "num_texts=5", "num_images=3"]
        command = ["mine-negatives", "--backbone", "vsepp", "--dataset", "tiny", "--data", chain, "--no-deps"]
        outcome = invoke(*command, *(f"--set={text}" for text in given), *arguments)
        assert outcome.code == 0, outcome.err
        run.out = outcome.out  # type: ignore[attr-defined]
        return Path(outcome.out.strip().splitlines()[-1])

    return run


def test_the_engines_agree(mine: Callable[..., Path]) -> None:
    exact, faiss = mine("--engine", "torch"), mine("--engine", "faiss")
    assert exact != faiss
    for direction in FILES:
        ours, theirs = read_list(exact, direction), read_list(faiss, direction)
        np.testing.assert_array_equal(ours.anchor_ids, theirs.anchor_ids)
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=2e-3)
        assert (ours.candidates == theirs.candidates).mean() > 0.95


def test_a_window_drops_what_it_says_and_the_table_shows_it(mine: Callable[..., Path]) -> None:
    full = mine()
    narrow = mine("--set", "range_min=1", "--set", "range_max=4")
    assert "because of range_min" in mine.out  # type: ignore[attr-defined]
    assert "median" in mine.out  # type: ignore[attr-defined]
    before, after = read_list(full, "texts_for_images"), read_list(narrow, "texts_for_images")
    np.testing.assert_array_equal(after.candidates[:, :3], before.candidates[:, 1:4])
    assert (after.candidates[:, 3:] == -1).all()
    dropped = json.loads((narrow / "statistics.json").read_text())["dropped"]["texts_for_images"]
    assert dropped == {"range_min": len(before.candidates), "range_max": len(before.candidates)}


def test_duplicates_are_counted_always_and_dropped_when_asked(mine: Callable[..., Path], chain: Path) -> None:
    found = json.loads((mine() / "statistics.json").read_text())
    assert found["duplicates"]["captions"] == 0
    assert found["dropped"] == {"texts_for_images": {}, "images_for_texts": {}}
    asked = json.loads((mine("--drop-duplicates") / "statistics.json").read_text())
    assert asked["dropped"]["texts_for_images"] == {"duplicates": 0}
