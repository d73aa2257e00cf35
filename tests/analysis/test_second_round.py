"""What the first training tells of a second one: every batch that can be drawn, one by one, and the rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from itrpipe.analysis.questions import second_round
from itrpipe.analysis.questions.false_negatives import TrainingSet
from itrpipe.analysis.questions.second_round import measured, validation
from itrpipe.analysis.second_round import RULES, recommend, signals
from itrpipe.evaluation.metrics import is_alike, share_of_hubs
from itrpipe.features.embeddings import INNER_PRODUCT, SplitEmbeddings
from tests.analysis.families import assert_recorded, families

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("size", "temperature"), [(2, 0.5), (3, 1e-4)])
def test_figures_are_means_over_all_batches_that_can_be_drawn(
    size: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was recorded was equal to a loop over all of them."""
    monkeypatch.setattr(second_round, "SIZES", ())
    monkeypatch.setattr(second_round, "_VALUES_AT_ONCE", 700)  # several blocks of anchors
    with np.errstate(all="raise", under="ignore"):
        found = measured(families(), size, 0.2, temperature)
    assert_recorded(f"batches of {size}", found, 2e-3)


def test_equal_scores_beat_nothing_and_unknown_matches_are_none() -> None:
    vectors, ids = np.ones((40, 3), np.float32), np.arange(40).astype(str)
    data = TrainingSet(SplitEmbeddings(vectors, ids, vectors, ids, np.arange(40), INNER_PRODUCT), None)
    found = measured(data, 8, 0.0, anchors=30)["texts_for_images"]
    assert [each["size"] for each in found["batches"]] == [8, 32]
    assert found["anchors"] == 30
    assert found["hardest"] == {"beaten": 0, "active": 0, "score": 3, "false": None, "estimated_false": None}


def test_what_validation_gained_is_counted_from_the_best_before_the_last_third() -> None:
    rows = [
        {"epoch": epoch, "val_rsum": score} for epoch, score in enumerate((50.0, 100.0, 300.0, 290.0, 310.0, 305.0), 1)
    ]
    found = validation([{"epoch": 0, "val_rsum": 5.0}, *rows])
    assert (found["best"], found["best_epoch"], found["gained"], found["fell"]) == (310, 5, 10, 5)
    assert validation([{"epoch": 0, "val_rsum": 5.0}, *rows[:1]])["gained"] is None


STEP = {"epochs": 9, "schedule": "step", "decay_every": 6, "decay_at": [4, 5], "patience": 0}


def diagnostics(gained: float | None = 0.0, schedule: Any = None, fit: Any = None, **model: Any) -> dict[str, Any]:
    """As `diagnose` returns them, one direction 2 above and one 2 below 10 % in a batch and 60 % in the dataset."""
    known = {"method": "triplet", "objective": "triplet", "backbone": "vsepp", "dataset": "mine", "seed": 1}
    known |= {"images": 3000, "captions": 15000, "batch_size": 128, "schedule": STEP | (schedule or {})}

    def side(more: float) -> dict[str, Any]:
        batches = [{"size": size, "beaten": share} for size, share in ((32, 1.0), (128, 10 + more), (512, 30.0))]
        return {"batches": batches, "hardest": {"beaten": 60 + more}}

    return {
        "model": known | model,
        "validation": {"gained": gained},
        "fit": {"images": 1000, "validation": 400.0, "gap": 80.0, "alike": False} | (fit or {}),
        "directions": {"texts_for_images": side(2.0), "images_for_texts": side(-2.0)},
    }


@pytest.mark.parametrize(("given", "action"), CASES["advice"])
def test_the_first_rule_that_holds_is_the_advice(given: dict[str, Any], action: str) -> None:
    advice = recommend(diagnostics(**given))
    assert advice.action == action
    assert bool(advice.evidence) == (action in ("mine", "by-heart"))


@pytest.mark.parametrize(("given", "end", "named", "command"), CASES["commands"])
def test_the_command_has_the_settings_of_the_first_training(
    given: dict[str, Any], end: str, named: str, command: str
) -> None:
    own = f"--name my-{end} --like my" if named else "--backbone vsepp"
    found = recommend(diagnostics(**given), named).command.replace("'", "")
    assert found == f"itrpipe train --dataset mine {own} --seed 1 {command}"


def test_every_rule_names_the_numbers_that_it_reads() -> None:
    figures = signals(diagnostics(gained=3.5))
    told = {rule.action: rule.sentence.format(**figures) for rule in RULES}
    numbers = {"train": ["3.5"], "by-heart": ["480", "400"], "mine": ["128", "10", "3,000", "60"]}
    for action, parts in numbers.items():
        assert all(part in told[action] for part in parts)


def test_a_model_that_gives_all_images_one_caption_is_seen() -> None:
    assert is_alike(share_of_hubs([0] * 60), 60, 60)
    assert not is_alike(share_of_hubs(range(60)), 60, 60)
