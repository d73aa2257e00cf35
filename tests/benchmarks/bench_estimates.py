"""What `--dry-run` says of trainings that nothing like it was made of, against the time that they then take.

Each estimate is taken right before its run, so that other work on the machine slows both alike. What changes in between
shows in the time, and not in that of the processor, which is estimated and compared as well. Run with `make bench`.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

from rich.console import Console

from itrpipe.artifacts.artifact import read_manifest
from itrpipe.commands.estimates import estimate
from itrpipe.plan.pipeline import run
from itrpipe.plan.planning import Planner, parse_override
from itrpipe.progress import Reporter
from itrpipe.stages.base import Need
from itrpipe.training import probe

FEW, MORE = (300, 60, 60), (800, 100, 100)
"""Images of train, val and test."""
SETTINGS = {
    "triplet.vsepp": (FEW, "epochs=8", "batch_size=128", "model.embed_dim=256"),
    "triplet.vsepp, wide": (MORE, "epochs=2", "batch_size=128", "model.embed_dim=1024"),
    "triplet.vsrn": (MORE, "epochs=2", "batch_size=64", "model.embed_dim=256"),
    "triplet.scan": (FEW, "epochs=3", "batch_size=32", "model.embed_dim=64"),
    "aoq.vsepp, lists not mined": (MORE, "epochs=4", "batch_size=256", "model.embed_dim=128"),
}
"""Name -> images, and settings of the training."""
LISTS = ("aoq.top_texts=30", "aoq.top_images=10", "mine_negatives.num_texts=30", "mine_negatives.num_images=10")
LIMIT = 1.5


def ratio(estimated, taken):
    return f"{estimated:.1f} s of {taken:.1f} s, {estimated / taken:.2f}"


def test_estimates_against_what_trainings_take(tmp_path, monkeypatch):
    quiet, ratios = Reporter(Console(quiet=True)), []
    for name, (images, *sets) in SETTINGS.items():
        method, _, backbone = name.partition(",")[0].partition(".")
        root = tmp_path / str(images[0])
        sizes = (f"prepare.{split}={count}" for split, count in zip(("train", "val", "test"), images, strict=True))
        written = [*sizes, f"backbone={backbone}", *(f"train.{each}" for each in sets)]
        written += LISTS if method == "aoq" else ()

        def planned(root=root, written=written, method=method):
            return Planner(root, "scenes", list(map(parse_override, written))).plan(Need("train", method))

        inputs = planned().inputs
        run([inputs["prepare"], inputs["extract"]], quiet)
        with monkeypatch.context() as clock:
            clock.setattr(probe, "time", SimpleNamespace(monotonic=time.process_time))
            (computed,) = estimate(root, "scenes", [planned()])
        (cost,) = estimate(root, "scenes", [planned()])
        assert cost.seconds, cost.measured
        (folder,) = run([planned()], quiet)
        taken = read_manifest(folder).timings
        ratios.append((cost.seconds / taken["total"], computed.seconds / taken["processor"]))
        print(
            f"\n  {name}, {images[0]} images, {', '.join(sets)}: estimated {ratio(cost.seconds, taken['total'])}; of "
            f"the processor {ratio(computed.seconds, taken['processor'])} ({cost.measured})"
        )
    for what, found in zip(("time", "time of the processor"), zip(*ratios, strict=True), strict=True):
        worst = max(found, key=lambda each: max(each, 1 / each))
        print(f"\n  {what}, the worst of {len(found)}: {worst:.2f}, where {1 / LIMIT:.2f} to {LIMIT} was wanted")
