"""What a plan says of its cost from earlier artifacts. No time is compared."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from itrpipe.pipeline.planning import Planner
from itrpipe.pipeline.run import Cost, cost_of, say_costs
from itrpipe.pipeline.steps import Step, earlier_artifacts, pending_steps
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need
from itrpipe.storage.artifact import Manifest, read_manifest, write_manifest
from tests.chains import only
from tests.conftest import tiny

SECONDS = 123.4


@pytest.fixture
def timed(chain: Path) -> Path:
    """The finished chain, of one training, which took so long, as its evaluation did."""
    for stage in ("train", "evaluate"):
        shutil.rmtree(only(chain, f"{stage}/aoq.vsepp"))
    for label in ("train/triplet.vsepp", "evaluate/triplet.vsepp"):
        change(only(chain, label), lambda manifest: {"timings": {"total": SECONDS}})
    return chain


def change(folder: Path, changed: Callable[[Manifest], dict[str, Any]]) -> None:
    manifest = read_manifest(folder)
    write_manifest(folder, manifest.model_copy(update=changed(manifest)))


def pending(root: Path, *more: str) -> list[Step]:
    overrides = tiny("triplet", *more)
    return pending_steps([Planner(root, "tiny", overrides, remember=False).plan(Need("evaluate", "recall"))])


def cost_of_training(root: Path, *more: str) -> Cost:
    (step,) = (each for each in pending(root, *more) if each.need.stage == "train")
    return cost_of(step, earlier_artifacts(root / "tiny" / "train"))


WIDTH, SIZE, UPDATES, SHARE = ("model.embed_dim=16", "batch_size=8", "max_updates=2", "train_share=0.5")


@pytest.mark.parametrize("changed", [WIDTH, SIZE, UPDATES, SHARE])
def test_what_decides_the_time_leaves_it_unknown(timed: Path, changed: str) -> None:
    assert cost_of_training(timed, f"train.{changed}", "train.epochs=7").seconds is None


@pytest.mark.parametrize("changed", ["train.learning_rate=1.0", "train.decay_every=3", "seed=5", "train.patience=2"])
def test_what_does_not_decide_it_is_taken_from_what_was_made(timed: Path, changed: str) -> None:
    note = f"as train/{only(timed, 'train/triplet.vsepp').name} took"
    assert cost_of_training(timed, changed) == (SECONDS, note)
    other = cost_of_training(timed, changed, "triplet.loss.sum_epochs=1")  # the nearest where that alone differs
    assert other == (SECONDS, f"{note}, with other negatives")
    scaled = cost_of_training(timed, changed, "train.epochs=7")
    assert scaled == (7 * SECONDS, f"{note} with 1 epoch, scaled to 7")


def test_other_data_are_no_measure_of_cost(timed: Path) -> None:
    def of_other_data(manifest: Manifest) -> dict[str, Any]:
        inputs = manifest.inputs.items()
        return {"inputs": {name: each.model_copy(update={"fingerprint": "0" * 64}) for name, each in inputs}}

    assert cost_of_training(timed, "seed=5").seconds == SECONDS
    change(only(timed, "train/triplet.vsepp"), of_other_data)
    assert cost_of_training(timed, "seed=5").seconds is None


def test_the_sum_is_of_what_is_known_and_the_most_where_a_training_may_end_early(
    timed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, said in (
        (("seed=5",), r"evaluate/triplet.vsepp.s5-\w+ +123 s .*sum: 4 min 07 s$"),
        (("train.patience=1", "train.epochs=3"), r"sum: at most [0-9 min]+ s$"),
        (("seed=5", "train.batch_size=8"), r"sum: 2 min 03 s and 1 step of unknown cost$"),
    ):
        say_costs(pending(timed, *more), Reporter())
        assert re.search(said, capsys.readouterr().out.rstrip(), re.DOTALL)
    say_costs(pending(timed, "seed=5", f"train.{SIZE}")[:1], Reporter())
    assert "unknown, these data have no earlier run" in capsys.readouterr().out
