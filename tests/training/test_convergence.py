"""Whether a training has converged."""

from __future__ import annotations

from typing import Any

import pytest

from itrpipe.training.checks import why_longer

STEP = {"epochs": 6, "schedule": "step", "decay_every": 6, "decay_at": [], "patience": 0, "validation_images": 1000}
SCORES = (50.0, 100.0, 300.0, 290.0, 310.0, 305.0)
"""Validation gains 10 over the last two of six epochs."""


@pytest.mark.parametrize(
    ("settings", "scores", "images", "rises"),
    [
        ({}, SCORES, 1000, True),
        ({}, (50.0, 100.0, 300.0, 290.0, 302.9), 1000, False),
        ({}, (), 1000, False),
        ({"epochs": 1}, (50.0,), 1000, True),  # too few to see
        ({}, SCORES, 31, True),
        ({}, SCORES, 29, False),  # three answers more
        ({"validation_images": 29}, SCORES, 1000, False),
        ({"schedule": "linear"}, SCORES, 1000, False),
        ({"schedule": "cosine"}, SCORES, 1000, False),
        ({"decay_at": [3]}, SCORES, 1000, True),
        ({"decay_at": [4]}, SCORES, 1000, False),
        ({"decay_at": [6]}, SCORES, 1000, True),
        ({"decay_every": 3}, SCORES, 1000, True),
        ({"decay_every": 4}, SCORES, 1000, False),
        ({"patience": 1}, SCORES, 1000, False),  # the last validation was no better
        ({"patience": 2}, SCORES, 1000, True),
    ],
)
def test_validation_rises_where_the_last_third_gained_more_than_chance_and_the_rate_does_not_fall(
    settings: dict[str, Any], scores: tuple[float, ...], images: int, rises: bool
) -> None:
    rows = [{"epoch": 0, "val_rsum": 5.0, "best": True}] if scores else []
    for epoch, score in enumerate(scores, 1):
        rows.append({"epoch": epoch, "val_rsum": score, "best": score > max(row["val_rsum"] for row in rows)})
    assert bool(why_longer(rows, STEP | settings, images)) == rises
    assert not why_longer(rows[:1], STEP | settings, images)  # weights as they were
