"""What a plan says of its cost from earlier artifacts. No time is compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from itrpipe.pipeline.costs import Cost, cost_of, earlier_artifacts, say_costs
from itrpipe.pipeline.overrides import Override
from itrpipe.pipeline.planning import Planner
from itrpipe.pipeline.steps import Step, pending_steps
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need
from itrpipe.storage.artifact import read_manifest

Tiny = Callable[..., list[Override]]


def training(root: Path, overrides: list[Override]) -> Step:
    plan = Planner(root, "tiny", overrides, remember=False).plan(Need("evaluate", "recall"))
    (step,) = (each for each in pending_steps([plan]) if each.need.stage == "train")
    return step


def cost_of_training(root: Path, overrides: list[Override]) -> Cost:
    return cost_of(training(root, overrides), earlier_artifacts(root / "tiny" / "train"))


@pytest.mark.parametrize(
    "changed",
    [
        "train.model.embed_dim=16",
        "train.batch_size=8",
        "train.max_updates=2",
        "train.train_share=0.5",
        "train.loss.sum_epochs=1",
    ],
)
def test_what_decides_the_time_leaves_it_unknown(chain: Path, tiny: Tiny, changed: str) -> None:
    assert cost_of_training(chain, tiny("triplet", changed, "train.epochs=7")).seconds is None


@pytest.mark.parametrize("changed", ["train.learning_rate=1.0", "train.decay_every=3", "seed=5", "train.patience=2"])
def test_what_does_not_decide_it_is_taken_from_what_was_made(
    chain: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str], changed: str
) -> None:
    (folder,) = chain.glob("tiny/train/triplet.vsepp-*")
    seconds = read_manifest(folder).timings["total"]
    cost = cost_of_training(chain, tiny("triplet", changed))
    assert (cost.seconds, folder.name in cost.note) == (seconds, True)
    cost = cost_of_training(chain, tiny("triplet", changed, "train.epochs=7"))
    assert cost.seconds == 7 * seconds
    say_costs([training(chain, tiny("triplet", changed, "train.epochs=7"))], Reporter())
    assert ("at most" in capsys.readouterr().out) == ("patience" in changed)
