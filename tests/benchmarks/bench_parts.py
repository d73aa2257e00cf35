"""The parts of `make bench-gpu` on a processor, with smaller models: each takes so many times its limit at most."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.benchmarks import gpu

SCALE = replace(
    gpu.TINY,
    **{"train_images": 4_000, "train_texts": 20_000, "dim": 256, "num_texts": 300, "num_images": 60, "encoded": 32},
    **{"images": 100, "texts": 500, "pairs": 1_024, "regions": 36, "region_dim": 512, "words": 12, "vocabulary": 2_000},
    **{"batch": 16, "layers": 4, "width": 128, "joint": 256, "photograph": (375, 500), "short_side": 300, "rounds": 3},
)
# Line -> how many times its limit it may take: about twice what one core took.
BOUNDS = {
    "mining": {"mining": 25.0},
    "scores": {"scores, SCAN t2i, fp32": 5.0, "scores, BFAN, fp32": 8.0},
    "transformer": {"scores, UNITER": 3.0, "scores, SSAMT": 3.0},
    "steps": {
        "step, AOQ, VSRN": 3.0,
        "step, AOQ, BFAN": 6.0,
        "step, FNE": 4.0,
        "step, triplet": 2.0,
        "step, InfoNCE": 2.0,
    },
    "copies": {"steps with their copies": 2.0},
    "extraction": {"extraction, vit": 4.0, "extraction, frcnn": 3.0},
}


@pytest.mark.parametrize("part", BOUNDS)
def test_a_part_takes_a_few_times_its_limit(part: str) -> None:
    torch.manual_seed(0)
    found = list(gpu.PARTS[part](SCALE, gpu.Clock(torch.device("cpu"), SCALE.rounds)))
    for line in found:
        print(f"\n  {line}")
    for start, bound in BOUNDS[part].items():
        (line,) = (line for line in found if line.name.startswith(start))
        assert line.seconds < bound * line.limit, start
