"""What a plan says of its cost: what it takes from earlier artifacts, and what it measures. No time is compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from itrpipe.artifacts.artifact import read_manifest
from itrpipe.commands import estimates
from itrpipe.commands.estimates import Cost, estimate, print_costs
from itrpipe.plan.overrides import Override
from itrpipe.plan.planning import Planner
from itrpipe.plan.steps import Step, pending_steps
from itrpipe.progress import Reporter
from itrpipe.stages import train
from itrpipe.stages.base import Job, Need

Tiny = Callable[..., list[Override]]
WIDER = "train.model.embed_dim=16"


def plan(root: Path, overrides: list[Override]) -> Step:
    return Planner(root, "tiny", overrides, remember=False).plan(Need("evaluate", "recall"))


def costs(root: Path, *plans: list[Override]) -> list[Cost]:
    """Of the trainings of these plans that are to run."""
    steps = pending_steps(plan(root, overrides) for overrides in plans)
    return [cost for cost in estimate(root, "tiny", steps) if cost.step.need.stage == "train"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """The trainings that were measured; each takes a thousand seconds for each of its epochs."""
    jobs: list[Job] = []

    def measured(job: Job) -> tuple[float, str]:
        jobs.append(job)
        return 1e3 * job.settings.epochs, "measured: so much"

    monkeypatch.setattr(train, "measured", measured)
    return jobs


def trained_seconds(root: Path, label: str = "triplet.vsepp") -> tuple[str, float]:
    (folder,) = root.glob(f"tiny/train/{label}-*")
    return folder.name, read_manifest(folder).timings["total"]


@pytest.mark.parametrize(
    "changed",
    [WIDER, "train.batch_size=8", "train.max_updates=2", "train.train_share=0.5", "train.loss.sum_epochs=1"],
)
def test_what_decides_the_time_is_measured_and_not_scaled(
    chain: Path, tiny: Tiny, asked: list[Job], changed: str
) -> None:
    (cost,) = costs(chain, tiny("triplet", changed, "train.epochs=7"))
    assert (cost.seconds, cost.note, cost.measured) == (7e3, "", "measured: so much")
    assert len(asked) == 1


@pytest.mark.parametrize("changed", ["train.learning_rate=1.0", "train.decay_every=3", "seed=5", "train.patience=2"])
def test_what_does_not_decide_it_is_taken_from_what_was_made(
    chain: Path, tiny: Tiny, asked: list[Job], changed: str
) -> None:
    name, seconds = trained_seconds(chain)
    (cost,) = costs(chain, tiny("triplet", changed))
    assert (cost.seconds, cost.note) == (seconds, f"as train/{name} took")
    (cost,) = costs(chain, tiny("triplet", changed, "train.epochs=7"))
    assert (cost.seconds, cost.scaled) == (7 * seconds, "scaled to 7")
    assert not asked


def test_seeds_are_measured_once_and_a_long_plan_is_not_measured_whole(
    chain: Path, tiny: Tiny, asked: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "MOST_MEASURED", 2)
    widths = [
        tiny("triplet", f"train.model.embed_dim={width}", f"seed={seed}") for width in (9, 10, 11) for seed in (0, 1)
    ]
    found = costs(chain, *widths)
    assert [cost.seconds for cost in found] == [1e3] * 4 + [None] * 2
    assert {cost.measured for cost in found[4:]} == {"not measured: 2 others were"}
    assert len(asked) == 2


def test_a_measurement_trains_and_leaves_nothing(
    chain: Path, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    before = {path: path.stat().st_mtime_ns for path in chain.rglob("*")}
    (cost,) = costs(chain, tiny("triplet", WIDER))
    assert cost.seconds is not None
    assert cost.seconds > 0
    assert cost.measured.startswith("measured: ")
    assert " an update, 4 updates an epoch, " in cost.measured
    assert {path: path.stat().st_mtime_ns for path in chain.rglob("*")} == before
    assert not list(place.iterdir())


def test_lists_that_are_not_mined_are_drawn(chain: Path, tiny: Tiny) -> None:
    found = {cost.step.need.conf: cost for cost in costs(chain, tiny("aoq", WIDER))}
    assert found.keys() == {"triplet", "aoq"}
    for cost in found.values():
        assert cost.seconds is not None
        assert " an update, 4 updates an epoch" in cost.measured


def test_what_a_training_would_warn_of_is_told_beforehand(
    chain: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str]
) -> None:
    warnings = [
        "warmup_updates = 50, and all epochs together have ",
        "mined negatives are drawn from the first ",
    ]
    found = costs(chain, tiny("aoq", WIDER, "aoq.warmup_updates=50"))
    print_costs(found, Reporter())
    shown = " ".join(capsys.readouterr().out.split())
    for warning in warnings:
        assert f"warning: {warning}" in shown


@pytest.mark.parametrize("changed", [(), ("train.epochs=7",)])
def test_also_where_an_earlier_training_tells_the_seconds(
    chain: Path, tiny: Tiny, asked: list[Job], changed: tuple[str, ...]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in chain.rglob("*")}
    (cost,) = costs(chain, tiny("triplet", "train.warmup_updates=50", *changed))
    assert cost.earlier == trained_seconds(chain)[0]
    (warning,) = cost.warnings
    assert warning.startswith("warmup_updates = 50, and all epochs together have ")
    assert not asked
    assert {path: path.stat().st_mtime_ns for path in chain.rglob("*")} == before


def test_what_lacks_its_data_is_unknown(defined: Path, tiny: Tiny) -> None:
    found = {cost.step.need.conf: cost for cost in costs(defined, tiny("aoq"))}
    assert {conf: cost.seconds for conf, cost in found.items()} == {"triplet": None, "aoq": None}
    assert {cost.measured for cost in found.values()} == {"a training is measured once extract and prepare are done"}


def test_what_may_end_early_is_told_as_the_most(chain: Path, tiny: Tiny) -> None:
    (cost,) = costs(chain, tiny("triplet", WIDER, "train.patience=1", "train.epochs=3"))
    assert cost.measured.endswith(", at most")
