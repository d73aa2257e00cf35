"""A run of round two is compared with the very round one that its negatives were mined with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from itrpipe.reporting.comparisons import _baseline_of


def baseline(fingerprint: str, finished: str) -> Any:
    settings = {"backbone": "vsrn", "seed": 0, "features": "scenes"}
    manifest = SimpleNamespace(inputs={"train": SimpleNamespace(fingerprint=fingerprint)}, finished=finished)
    return SimpleNamespace(is_baseline=True, settings=settings, manifest=manifest, mining=None)


def later(miner: str | None, backbone: str = "vsrn", mined_by: str = "vsrn") -> Any:
    mining = None
    if miner is not None:
        inputs = {"train": SimpleNamespace(fingerprint=miner)}
        mining = SimpleNamespace(manifest=SimpleNamespace(settings={"backbone": mined_by}, inputs=inputs))
    settings = {"backbone": backbone, "seed": 0, "features": "scenes"}
    return SimpleNamespace(is_baseline=False, settings=settings, mining=mining)


OLD, NEW = baseline("aaa", "2026-01-01"), baseline("bbb", "2026-01-02")


def test_the_model_that_mined_is_the_baseline_although_a_newer_one_exists():
    assert _baseline_of(later("aaa"), [OLD, NEW]) is OLD
    assert _baseline_of(later("bbb"), [OLD, NEW]) is NEW


def test_nothing_is_compared_when_the_model_that_mined_was_not_evaluated():
    assert _baseline_of(later("ccc"), [OLD, NEW]) is None


def test_lists_of_another_backbone_or_removed_ones_leave_the_newest_of_the_same_backbone():
    assert _baseline_of(later("ccc", mined_by="scan"), [OLD, NEW]) is NEW
    assert _baseline_of(later(None), [OLD, NEW]) is NEW
    assert _baseline_of(later("aaa", backbone="vsepp", mined_by="vsepp"), [OLD, NEW]) is None
