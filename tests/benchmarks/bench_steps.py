"""Training steps on a processor against the encoders alone, forward, backward and update. Run with `make bench`.

The lines are those of `make bench-gpu ARGS='--only steps'`, with smaller models.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.benchmarks import gpu

SCALE = replace(gpu.TINY, regions=36, region_dim=512, words=12, vocabulary=2_000, batch=16, width=128, joint=128)


def test_steps_against_the_encoders_alone() -> None:
    torch.manual_seed(0)
    for line in gpu.steps(SCALE, gpu.Clock(torch.device("cpu"), 5)):
        print(f"\n  {line}")
