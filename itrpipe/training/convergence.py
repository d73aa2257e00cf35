"""Tells whether a training has converged, by what its validations gained last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

RISING, ANSWERS = 3.0, 3.0
"""RSum gained over the last third of the epochs, above which validation still rises; and that many answers, of which
one counts 100 / N in a recall among N images."""


def why_longer(history: Sequence[Mapping[str, Any]], settings: Mapping[str, Any], images: int) -> str:
    """Return why a training is to go on before negatives are mined or models compared; empty if nothing says so.

    A learning rate that falls lifts validation at the end in any case, so that a rise then says nothing.

    Args:
        history: a row for each validation, with `epoch` and `val_rsum`; empty for what was not trained.
        settings: of the training, as manifests keep them.
        images: of the validation split.
    """
    if not history or history[-1]["epoch"] == 0:
        return ""
    epochs = history[-1]["epoch"]
    before = [row["val_rsum"] for row in history if 0 < row["epoch"] <= 2 * epochs / 3]
    if not before:
        return "too few epochs to see whether it has converged"
    gained = max(row["val_rsum"] for row in history) - max(before)
    if gained <= RISING or gained <= 100 * ANSWERS / min(images, settings["validation_images"]):
        return ""
    patience = settings["patience"]
    was_flat = patience > 0 and not any(row["best"] for row in history[-patience:])
    rate_falls = True
    if settings["schedule"] == "step":
        planned = settings["epochs"]
        ends = settings["decay_at"] or range(settings["decay_every"], planned, settings["decay_every"])
        rate_falls = any(2 * planned / 3 <= end < planned for end in ends)
    if was_flat or rate_falls:
        return ""
    return f"validation gained {gained:.1f} RSum over the last third of its epochs"
