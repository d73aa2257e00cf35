"""A run of the second training is compared with the very first training that its negatives were mined with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from itrpipe.reporting.comparisons import _baseline_of


def member(backbone: str, seed: int, fingerprint: str, miner: str | None = None, mined_by: str = "") -> Any:
    mining = None
    if miner is not None:
        inputs = {"train": SimpleNamespace(fingerprint=miner)}
        mining = SimpleNamespace(manifest=SimpleNamespace(settings={"backbone": mined_by or backbone}, inputs=inputs))
    artifact = SimpleNamespace(fingerprint=fingerprint)
    return SimpleNamespace(backbone_name=backbone, seed=seed, artifact=artifact, mining=mining)


def run_of(
    *members: Any, finished: str = "2026-01-03", is_baseline: bool = False, features: str = "scenes", rerank: int = 0
) -> Any:
    facts = {"settings": {"features": features}, "manifest": SimpleNamespace(finished=finished)}
    return SimpleNamespace(members=members, is_baseline=is_baseline, rerank=rerank, **facts)


def baseline(fingerprint: str, finished: str) -> Any:
    return run_of(member("vsrn", 0, fingerprint), finished=finished, is_baseline=True)


def later(miner: str | None, backbone: str = "vsrn", mined_by: str = "vsrn") -> Any:
    return run_of(member(backbone, 0, "later", miner, mined_by))


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


def test_features_must_be_equal():
    other = run_of(member("vsrn", 0, "later", "aaa"), features="mean")
    assert _baseline_of(other, [OLD, NEW]) is None


def test_scores_are_compared_with_scores_that_were_re_ranked_alike():
    again = run_of(member("vsrn", 0, "bbb"), finished="2026-01-02", is_baseline=True, rerank=20)
    found = run_of(member("vsrn", 0, "later", "bbb"), rerank=20)
    assert _baseline_of(found, [OLD, NEW, again]) is again
    assert _baseline_of(found, [OLD, NEW]) is None
    assert _baseline_of(run_of(member("vsrn", 0, "later", "bbb"), rerank=64), [NEW, again]) is None
    assert _baseline_of(later("bbb"), [again]) is None


def test_an_ensemble_is_compared_with_the_ensemble_of_the_same_members_in_round_one():
    pair = run_of(member("vsrn", 0, "aaa"), member("vsrn", 1, "ddd"), is_baseline=True)
    reordered = run_of(member("vsrn", 1, "ddd"), member("vsrn", 0, "aaa"), is_baseline=True)
    mixed = run_of(member("vsrn", 0, "aaa"), member("bfan", 1, "eee"), is_baseline=True)
    found = run_of(member("vsrn", 0, "x", "aaa"), member("vsrn", 1, "y", "ddd"))
    assert _baseline_of(found, [OLD, NEW, mixed, pair]) is pair
    assert _baseline_of(found, [OLD, NEW, mixed, reordered]) is reordered
    assert _baseline_of(found, [OLD, NEW, mixed]) is None
    assert _baseline_of(later("aaa"), [pair]) is None


def test_every_member_of_an_ensemble_needs_the_model_that_mined_for_it():
    pair = run_of(member("vsrn", 0, "aaa"), member("vsrn", 1, "ddd"), is_baseline=True)
    found = run_of(member("vsrn", 0, "x", "aaa"), member("vsrn", 1, "y", "another model"))
    assert _baseline_of(found, [pair]) is None
